package approval

import (
	"context"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// ConfirmUse is the last look before an effect; see the service's definition. Whatever is not right is Forbidden, with a
// sentence that the requester reads.
func (s *Service) ConfirmUse(ctx context.Context, req *butlerv1.ConfirmUseRequest) (*butlerv1.ConfirmUseResponse, error) {
	if !approval.ValidHost(req.GetHost()) || req.GetSeq() == 0 {
		return nil, fault.New(fault.Invalid, "a use is named by its approval, host and sequence")
	}
	// All at once: a person waits, and each is a look into the log or a wait for it. The link of the audit chain is of an
	// event that is in the log already, whatever this decides.
	var a *butlerv1.Approval
	var use *butlerv1.ApprovalUse
	var uncovered error
	var g errgroup.Group
	g.Go(func() error { uncovered = s.chain.cover(ctx, req.GetSeq()); return nil })
	g.Go(func() (err error) { a, _, err = s.load(ctx, req.GetId()); return err })
	g.Go(func() (err error) { use, err = s.use(ctx, req); return err })
	if err := g.Wait(); err != nil {
		return nil, err
	}
	switch {
	case a.GetStatus() != approval.Approved:
		return nil, fault.New(fault.Forbidden, "it is not approved: %s", standing(a))
	case use.GetStatus() != approval.Taken || use.GetGrant() != a.GetGrant() || use.GetDigest() != a.GetDigest():
		return nil, fault.New(fault.Forbidden, "what is about to be done is not what was approved")
	case a.GetEffect().GetHost() != req.GetHost():
		return nil, fault.New(fault.Forbidden, "it was approved for another host")
	case s.now().After(a.GetRunBy().AsTime()):
		return nil, fault.New(fault.Forbidden, "it had to begin earlier; ask anew")
	}
	if err := s.stillAllowed(ctx, a); err != nil {
		return nil, err
	}
	if uncovered != nil {
		return nil, fault.Wrap(uncovered, fault.Unavailable, "it could not be written to the audit chain, so it does not happen")
	}
	return &butlerv1.ConfirmUseResponse{}, nil
}

// use reads the event that took the grant and checks that it is the first on its subject.
func (s *Service) use(ctx context.Context, req *butlerv1.ConfirmUseRequest) (*butlerv1.ApprovalUse, error) {
	subject := approval.UseSubject(req.GetHost(), req.GetId())
	ev, found, err := s.bus.Last(ctx, bus.ApprovalStream, subject)
	if err != nil {
		return nil, err
	}
	if !found || ev.Seq != req.GetSeq() || ev.Type != approval.TypeUse {
		return nil, fault.New(fault.Forbidden, "the grant was not taken, or more happened since")
	}
	var use butlerv1.ApprovalUse
	if err := chat.Decode(ev.Data, &use); err != nil || use.GetId() != req.GetId() {
		return nil, fault.New(fault.Forbidden, "the use of the grant cannot be read")
	}
	return &use, nil
}

// stillAllowed looks at the rights of everybody who said yes, and of the requester, as they are now.
func (s *Service) stillAllowed(ctx context.Context, a *butlerv1.Approval) error {
	if _, _, known, err := s.people.find(ctx, a.GetRequester().GetId()); err != nil {
		return err
	} else if !known {
		return fault.New(fault.Forbidden, "%s can no longer sign in", a.GetRequester().GetName())
	}
	if a.GetPolicy().GetAction() != actionAsk {
		return nil
	}
	var lost []string
	good := 0
	for _, d := range valid(a) {
		now, everybody, known, err := s.people.find(ctx, d.GetBy().GetId())
		if err != nil {
			return err
		}
		if known && approval.MayDecide(a, now, everybody) {
			good++
		} else {
			lost = append(lost, d.GetBy().GetName())
		}
	}
	if good < int(a.GetPolicy().GetQuorum()) {
		return fault.New(fault.Forbidden, "%s approved it and may not do so any more; ask anew", strings.Join(lost, ", "))
	}
	return nil
}
