package approval

import (
	"context"
	"slices"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// GetApproval gives one request as it stands, to whom it concerns.
func (s *Service) GetApproval(ctx context.Context, req *butlerv1.GetApprovalRequest) (*butlerv1.GetApprovalResponse, error) {
	viewer, everybody, known, err := s.people.find(ctx, req.GetViewer().GetId())
	if err != nil {
		return nil, err
	}
	id := req.GetId()
	if !approval.ValidID(id) {
		id, _ = s.book.withCode(id)
	}
	a, _, err := s.load(ctx, id)
	if fault.CodeOf(err) == fault.NotFound || err == nil && (!known || !concerns(a, viewer, everybody)) {
		return nil, fault.New(fault.NotFound, "there is no approval %s", shown(req.GetId()))
	}
	if err != nil {
		return nil, err
	}
	out := s.view(a, viewer, everybody)
	if a.GetStatus() == approval.Approved && a.GetEffect().GetHost() != "" {
		ev, found, err := s.bus.Last(ctx, bus.ApprovalStream, approval.UseSubject(a.GetEffect().GetHost(), a.GetId()))
		if err != nil {
			return nil, err
		}
		var use butlerv1.ApprovalUse
		if found && chat.Decode(ev.Data, &use) == nil {
			use.Grant = ""
			out.Use = &use
		}
	}
	return out, nil
}

// concerns says whether viewer may see a.
func concerns(a *butlerv1.Approval, viewer *butlerv1.Actor, everybody []*butlerv1.Actor) bool {
	return viewer.GetRole() == "ADMIN" || viewer.GetId() == a.GetRequester().GetId() || approval.MayDecide(a, viewer, everybody)
}

func (s *Service) view(a *butlerv1.Approval, viewer *butlerv1.Actor, everybody []*butlerv1.Actor) *butlerv1.GetApprovalResponse {
	return &butlerv1.GetApprovalResponse{
		Approval:  a,
		MayDecide: a.GetStatus() == approval.Pending && approval.MayDecide(a, viewer, everybody),
	}
}

// ListApprovals gives requests, newest first. What is pending is always among the recent ones; what was decided is found
// in the log by its last event.
func (s *Service) ListApprovals(ctx context.Context, req *butlerv1.ListApprovalsRequest) (*butlerv1.ListApprovalsResponse, error) {
	const window = 256
	viewer, everybody, known, err := s.people.find(ctx, req.GetViewer().GetId())
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, fault.New(fault.Forbidden, "you can no longer sign in")
	}
	limit := clamp(int(req.GetLimit()), 50, 200)
	out := &butlerv1.ListApprovalsResponse{}
	wanted := func(a *butlerv1.Approval) bool {
		return (req.GetStatus() == "" || req.GetStatus() == a.GetStatus()) && concerns(a, viewer, everybody)
	}
	if req.GetBefore() == 0 && (req.GetStatus() == "" || req.GetStatus() == approval.Pending) {
		for _, a := range slices.Backward(s.book.waiting()) {
			if wanted(a) {
				out.Approvals = append(out.Approvals, s.view(a, viewer, everybody))
			}
		}
	}
	if req.GetStatus() == approval.Pending {
		return out, nil
	}
	upTo := req.GetBefore()
	if upTo == 0 {
		last, found, err := s.bus.Last(ctx, bus.ApprovalStream, "butler.>")
		if err != nil || !found {
			return out, err
		}
		upTo = last.Seq + 1
	}
	for windows := 0; upTo > 1 && windows < 40; windows++ { // events with sequences below upTo
		from := uint64(0)
		if upTo-1 > window {
			from = upTo - 1 - window
		}
		events, err := s.bus.Load(ctx, bus.ApprovalStream, approval.RequestSubject("*"), from, int(upTo-1-from))
		if err != nil {
			return nil, err
		}
		for _, ev := range slices.Backward(events) {
			if ev.Seq >= upTo {
				continue
			}
			a, err := decodeApproval(ev)
			if err != nil || a.GetStatus() == approval.Pending || !wanted(a) {
				continue // a pending one has a later event, or is in the book
			}
			out.Approvals = append(out.Approvals, s.view(a, viewer, everybody))
			if len(out.Approvals) >= limit {
				out.Next = ev.Seq
				return out, nil
			}
		}
		upTo = from + 1
	}
	if upTo > 1 {
		out.Next = upTo
	}
	return out, nil
}
