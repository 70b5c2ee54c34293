package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// fakeApproval is ApprovalService without a network: its documents are real events, and its rules those of package approval.
type fakeApproval struct {
	butlerv1.ApprovalServiceClient // what is not here is not called
	tb                             testing.TB
	bus                            *bus.Bus
	roster                         func() ([]*butlerv1.Actor, error)

	mu      sync.Mutex
	down    bool
	decides []*butlerv1.DecideApprovalRequest
	audits  []*butlerv1.ListAuditRequest
	verify  []*butlerv1.VerifyAuditResponse
}

// withApproval gives a gateway an approval service.
func withApproval(f *fakeApproval) option {
	return func(d *Deps) {
		d.Approval = f
		f.bus = d.Bus
		require.NoError(f.tb, d.Bus.Ensure(f.tb.Context(), bus.ApprovalStream))
		st := d.Store
		f.roster = func() ([]*butlerv1.Actor, error) { return newRoster(st, time.Now, nil).get(context.Background()) }
	}
}

func (f *fakeApproval) available() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return fault.New(fault.Unavailable, "approval does not answer now; try again")
	}
	return nil
}

func (f *fakeApproval) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *fakeApproval) decided() []*butlerv1.DecideApprovalRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*butlerv1.DecideApprovalRequest(nil), f.decides...)
}

// request appends a request that waits, or is what change makes of it.
func (f *fakeApproval) request(who *user, code string, change ...func(*butlerv1.Approval)) *butlerv1.Approval {
	f.tb.Helper()
	a := &butlerv1.Approval{
		Id: uuid.NewString(), Version: 1, Status: approval.Pending, Code: code,
		Effect: &butlerv1.Effect{
			Version: 1, Kind: approval.KindCommand, Command: "rm -rf /tmp/x", Dir: "/srv", Host: "host1", User: "ops", Session: "s-1",
		},
		Why: &butlerv1.ApprovalReason{
			Reasoning: "The disk is full.", Untrusted: []*butlerv1.UntrustedSource{{Name: "web", Excerpt: "please run rm"}},
		},
		Requester: &butlerv1.Actor{Id: who.id, Name: who.name, Role: "MEMBER"}, Proposer: approval.ByModel, Channel: "websocket", Language: "en",
		Risk: &butlerv1.Risk{Level: "high", Verdict: "ask", Visible: "rm -rf /tmp/x", Reasons: []*butlerv1.RiskReason{
			{Code: "delete-tree", Text: "Deletes a whole folder.", TextZh: "删除整个目录。", Start: 0, End: 6},
		}},
		Policy:      &butlerv1.ApprovalPolicy{Rule: "model", Action: "ask", Quorum: 1, Roles: []string{"ADMIN"}, Requester: approval.RequesterSole},
		RequestedAt: timestamppb.Now(), DecideBy: timestamppb.New(time.Now().Add(5 * time.Minute)),
		Waiter: &butlerv1.Waiter{Person: who.id, Thread: 77, Turn: "t1", Key: "step"}, LocalId: "m-77",
	}
	for _, c := range change {
		c(a)
	}
	a.Digest = approval.Digest(a.GetEffect())
	require.NoError(f.tb, f.put(a, 0))
	return a
}

func (f *fakeApproval) put(a *butlerv1.Approval, after uint64) error {
	data, err := chat.Encode(a)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	subject := approval.RequestSubject(a.GetId())
	_, err = f.bus.Append(ctx, bus.NewEvent(approval.TypeApproval, "/test/approval", subject, data), bus.Expect{Filter: subject, Seq: after})
	return err
}

// used appends what became of a grant.
func (f *fakeApproval) used(a *butlerv1.Approval, status string, outcome *butlerv1.CommandOutcome) {
	f.tb.Helper()
	u := &butlerv1.ApprovalUse{
		Id: a.GetId(), Status: status, Host: "host1", Worker: "w", Grant: "secret-grant", TakenAt: timestamppb.Now(),
		Outcome: outcome, Requester: a.GetRequester(),
	}
	if status != approval.Taken {
		u.EndedAt = timestamppb.Now()
	}
	if status == approval.UseRefused || status == approval.Unknown {
		u.Reason = "the script was edited"
	}
	data, err := chat.Encode(u)
	require.NoError(f.tb, err)
	subject := approval.UseSubject("host1", a.GetId())
	last, _, err := f.bus.Last(f.tb.Context(), bus.ApprovalStream, subject)
	require.NoError(f.tb, err)
	_, err = f.bus.Append(f.tb.Context(), bus.NewEvent(approval.TypeUse, "/test/shell", subject, data), bus.Expect{Filter: subject, Seq: last.Seq})
	require.NoError(f.tb, err)
}

// change appends the next version of a request.
func (f *fakeApproval) change(id string, change func(*butlerv1.Approval)) *butlerv1.Approval {
	f.tb.Helper()
	a, seq, err := f.find(id)
	require.NoError(f.tb, err)
	a.Version++
	change(a)
	require.NoError(f.tb, f.put(a, seq))
	return a
}

func (f *fakeApproval) find(id string) (*butlerv1.Approval, uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if !approval.ValidID(id) {
		events, err := f.bus.Load(ctx, bus.ApprovalStream, approval.RequestSubject("*"), 0, 0)
		if err != nil {
			return nil, 0, err
		}
		code := id
		for _, ev := range events {
			if a, _, err := decodeApproval(ev); err == nil && a.GetCode() == code && a.GetStatus() == approval.Pending {
				id = a.GetId()
			}
		}
	}
	ev, found, err := f.bus.Last(ctx, bus.ApprovalStream, approval.RequestSubject(id))
	if err != nil {
		return nil, 0, err
	}
	if !found {
		return nil, 0, fault.New(fault.NotFound, "there is no approval")
	}
	a, _, err := decodeApproval(ev)
	return a, ev.Seq, err
}

func (f *fakeApproval) who(id int64) (*butlerv1.Actor, []*butlerv1.Actor, error) {
	people, err := f.roster()
	if err != nil {
		return nil, nil, err
	}
	for _, p := range people {
		if p.GetId() == id {
			return p, people, nil
		}
	}
	return nil, nil, fault.New(fault.Forbidden, "you can no longer sign in")
}

// DecideApproval decides.
func (f *fakeApproval) DecideApproval(_ context.Context, req *butlerv1.DecideApprovalRequest, _ ...grpc.CallOption) (*butlerv1.DecideApprovalResponse, error) {
	if err := f.available(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.decides = append(f.decides, req)
	f.mu.Unlock()
	for {
		a, seq, err := f.find(req.GetId())
		if err != nil {
			return nil, err
		}
		person, people, err := f.who(req.GetBy().GetId())
		switch {
		case err != nil:
			return nil, err
		case !approval.MayDecide(a, person, people):
			return nil, fault.New(fault.Forbidden, "this approval is not yours to decide; ADMIN may")
		case a.GetStatus() != approval.Pending:
			return nil, fault.New(fault.Conflict, "it is %s", a.GetStatus())
		case req.GetDigest() != "" && req.GetDigest() != a.GetDigest():
			return nil, fault.New(fault.Conflict, "the command was changed")
		case req.GetEditedCommand() == "if":
			return nil, fault.New(fault.Invalid, "the command is incomplete")
		}
		a.Version++
		if text := req.GetEditedCommand(); text != "" {
			a.Edits = append(a.Edits, &butlerv1.ApprovalEdit{By: person, At: timestamppb.Now(), Command: a.GetEffect().GetCommand(), Digest: a.GetDigest()})
			a.Effect.Command = text
			a.Digest = approval.Digest(a.GetEffect())
		}
		a.Decisions = append(a.Decisions, &butlerv1.ApprovalDecision{
			By: person, Approved: req.GetApproved(), Reason: req.GetReason(), Channel: req.GetChannel(), At: timestamppb.Now(), Digest: a.GetDigest(),
		})
		switch {
		case !req.GetApproved():
			a.Status = approval.Denied
		case approval.Agreed(a) >= int(max(1, a.GetPolicy().GetQuorum())):
			a.Status, a.Grant, a.RunBy = approval.Approved, "secret-grant", timestamppb.New(time.Now().Add(time.Minute))
		}
		if err := f.put(a, seq); errors.Is(err, bus.ErrFenced) {
			continue
		} else if err != nil {
			return nil, err
		}
		return &butlerv1.DecideApprovalResponse{Approval: proto.Clone(a).(*butlerv1.Approval)}, nil
	}
}

// GetApproval gives one.
func (f *fakeApproval) GetApproval(_ context.Context, req *butlerv1.GetApprovalRequest, _ ...grpc.CallOption) (*butlerv1.GetApprovalResponse, error) {
	if err := f.available(); err != nil {
		return nil, err
	}
	a, _, err := f.find(req.GetId())
	if err != nil {
		return nil, err
	}
	person, people, err := f.who(req.GetViewer().GetId())
	if err != nil {
		return nil, err
	}
	may := approval.MayDecide(a, person, people)
	if !may && person.GetRole() != "ADMIN" && person.GetId() != a.GetRequester().GetId() {
		return nil, fault.New(fault.NotFound, "there is no approval")
	}
	return &butlerv1.GetApprovalResponse{Approval: a, MayDecide: may && a.GetStatus() == approval.Pending}, nil
}

// ListApprovals gives all that the viewer may see, newest first.
func (f *fakeApproval) ListApprovals(ctx context.Context, req *butlerv1.ListApprovalsRequest, _ ...grpc.CallOption) (*butlerv1.ListApprovalsResponse, error) {
	if err := f.available(); err != nil {
		return nil, err
	}
	events, err := f.bus.Load(ctx, bus.ApprovalStream, approval.RequestSubject("*"), 0, 0)
	if err != nil {
		return nil, err
	}
	out := &butlerv1.ListApprovalsResponse{}
	seen := map[string]bool{}
	for i := len(events) - 1; i >= 0; i-- {
		a, _, err := decodeApproval(events[i])
		if err != nil || seen[a.GetId()] || req.GetBefore() != 0 && events[i].Seq >= req.GetBefore() {
			continue
		}
		seen[a.GetId()] = true
		g, err := f.GetApproval(ctx, &butlerv1.GetApprovalRequest{Id: a.GetId(), Viewer: req.GetViewer()})
		if err != nil || req.GetStatus() != "" && req.GetStatus() != a.GetStatus() {
			continue
		}
		if out.Approvals = append(out.Approvals, g); len(out.Approvals) == int(req.GetLimit()) {
			out.Next = events[i].Seq
			break
		}
	}
	return out, nil
}

// ListAudit gives one entry.
func (f *fakeApproval) ListAudit(_ context.Context, req *butlerv1.ListAuditRequest, _ ...grpc.CallOption) (*butlerv1.ListAuditResponse, error) {
	if err := f.available(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.audits = append(f.audits, req)
	return &butlerv1.ListAuditResponse{Next: 4, Entries: []*butlerv1.AuditEntry{{N: 5, Item: &butlerv1.AuditItem{
		Kind: "decided", At: timestamppb.Now(), Actor: &butlerv1.Actor{Id: 1, Name: adminName, Role: "ADMIN"}, Summary: "ada approved rm", Stream: "APPROVAL", Seq: 9,
	}}}}, nil
}

// VerifyAudit gives what the test scripted; without an end, it breaks off.
func (f *fakeApproval) VerifyAudit(ctx context.Context, _ *butlerv1.VerifyAuditRequest, _ ...grpc.CallOption) (
	grpc.ServerStreamingClient[butlerv1.VerifyAuditResponse], error,
) {
	if err := f.available(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return &verifyClient{ctx: ctx, rest: f.verify}, nil
}

type verifyClient struct {
	grpc.ClientStream
	ctx  context.Context
	rest []*butlerv1.VerifyAuditResponse
}

func (c *verifyClient) Recv() (*butlerv1.VerifyAuditResponse, error) {
	if len(c.rest) == 0 {
		return nil, io.EOF
	}
	m := c.rest[0]
	c.rest = c.rest[1:]
	if m == nil {
		<-c.ctx.Done()
		return nil, fmt.Errorf("cut: %w", c.ctx.Err())
	}
	return m, nil
}
