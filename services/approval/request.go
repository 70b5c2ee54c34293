package approval

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/journal"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Bounds of a request.
const (
	maxReasoning = 8 << 10
	maxExcerpt   = 2 << 10
	maxUntrusted = 20
	maxReasons   = 100
	maxDocument  = 256 << 10
)

// RequestApproval takes a wish for an effect; see the service's definition.
func (s *Service) RequestApproval(ctx context.Context, req *butlerv1.RequestApprovalRequest) (*butlerv1.RequestApprovalResponse, error) {
	if err := checkRequest(req); err != nil {
		return nil, err
	}
	if a, ok := s.book.get(req.GetId()); ok {
		return &butlerv1.RequestApprovalResponse{Approval: a}, nil
	}
	a, err := s.document(ctx, req)
	if err != nil {
		return nil, err
	}
	seq, err := s.append(ctx, a, 0)
	if errors.Is(err, bus.ErrFenced) { // asked before
		stands, _, err := s.load(ctx, a.GetId())
		if err != nil {
			return nil, err
		}
		return &butlerv1.RequestApprovalResponse{Approval: stands}, nil
	}
	if err != nil {
		return nil, err
	}
	s.book.put(a, seq)
	s.decided.WithLabelValues(a.GetStatus()).Inc()
	s.log.InfoContext(ctx, "an approval was requested", "approval", a.GetId(), "status", a.GetStatus(), "rule", a.GetPolicy().GetRule(),
		"requester", a.GetRequester().GetId(), "risk", a.GetRisk().GetLevel())
	return &butlerv1.RequestApprovalResponse{Approval: a}, nil
}

func checkRequest(req *butlerv1.RequestApprovalRequest) error {
	e, w := req.GetEffect(), req.GetWaiter()
	switch {
	case !approval.ValidID(req.GetId()):
		return fault.New(fault.Invalid, "the id of a request for approval is a UUID")
	case e.GetVersion() != 1:
		return fault.New(fault.Invalid, "effects of form %d are not known here: this approval service is older than its caller", e.GetVersion())
	case e.GetKind() != approval.KindCommand && e.GetKind() != approval.KindInput && e.GetKind() != approval.KindAgent:
		return fault.New(fault.Invalid, "there is no kind of effect %q", e.GetKind())
	case e.GetCommand() == "" || !utf8.ValidString(e.GetCommand()):
		return fault.New(fault.Invalid, "an effect needs its command, in UTF-8")
	case len(e.GetCommand()) > approval.MaxCommand:
		return fault.New(fault.TooLarge, "the command has %d bytes; at most %d can be approved", len(e.GetCommand()), approval.MaxCommand)
	case e.GetKind() != approval.KindAgent && (!approval.ValidHost(e.GetHost()) || e.GetSession() == ""):
		return fault.New(fault.Invalid, "an effect in a shell needs its host and session")
	case w.GetPerson() <= 0 || w.GetThread() <= 0 || w.GetTurn() == "":
		return fault.New(fault.Invalid, "a request for approval names the turn that it belongs to")
	case w.GetKey() != "" && !journal.ValidKey(w.GetKey()):
		return fault.New(fault.Invalid, "a turn waits under a key of 1 to 64 letters, digits, _ and -")
	case req.GetProposer() != approval.ByPerson && req.GetProposer() != approval.ByModel && req.GetProposer() != approval.ByAgent:
		return fault.New(fault.Invalid, "a request for approval says who proposed it: person, model or agent")
	case proto.Size(req) > maxDocument:
		return fault.New(fault.TooLarge, "the request for approval is larger than %d KiB", maxDocument>>10)
	}
	return nil
}

// document makes the request as it stands from its beginning: who asks is read from the log, the policy applied.
func (s *Service) document(ctx context.Context, req *butlerv1.RequestApprovalRequest) (*butlerv1.Approval, error) {
	asked, err := s.message(ctx, req.GetWaiter())
	if err != nil {
		return nil, err
	}
	requester, _, known, err := s.people.find(ctx, asked.GetSender().GetId())
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, fault.New(fault.Forbidden, "who wrote the message can no longer sign in")
	}
	now, settings := s.now(), s.settings.Load()
	a := &butlerv1.Approval{
		Id: req.GetId(), Version: 1, Status: approval.Pending, Effect: req.GetEffect(), Digest: approval.Digest(req.GetEffect()),
		Why: trimWhy(req.GetWhy()), Requester: requester, Proposer: req.GetProposer(), Channel: asked.GetChannel(),
		Language: asked.GetLanguage(), Risk: trimRisk(req.GetRisk()), RequestedAt: timestamppb.New(now), Waiter: req.GetWaiter(),
		LocalId: asked.GetLocalId(),
	}
	if a.GetProposer() == approval.ByPerson && !typed(asked.GetText(), a.GetEffect()) {
		a.Proposer = approval.ByModel // what the person did not write, the person did not propose
	}
	a.Policy = s.policy.Load().verdict(a)
	switch a.GetPolicy().GetAction() {
	case actionRun:
		a.Decisions = []*butlerv1.ApprovalDecision{policyWord(a, now, true)}
		err = s.approve(a, now)
	case actionAsk:
		a.DecideBy = timestamppb.New(now.Add(settings.Timeout))
		a.Code = s.book.newCode()
	default:
		a.Status = approval.Refused
		a.Decisions = []*butlerv1.ApprovalDecision{policyWord(a, now, false)}
	}
	return a, err
}

func policyWord(a *butlerv1.Approval, now time.Time, yes bool) *butlerv1.ApprovalDecision {
	return &butlerv1.ApprovalDecision{
		By: &butlerv1.Actor{Name: "policy"}, Approved: yes, Reason: a.GetPolicy().GetRule(), Channel: "policy",
		At: timestamppb.New(now), Digest: a.GetDigest(),
	}
}

// message reads the message that a turn began with.
func (s *Service) message(ctx context.Context, w *butlerv1.Waiter) (*butlerv1.ChatAsked, error) {
	turn := chat.Turn{Session: chat.Session{Person: w.GetPerson(), Thread: w.GetThread()}, ID: w.GetTurn()}
	if _, err := chat.ParseTurn(turn.String()); err != nil {
		return nil, fault.New(fault.Invalid, "%s is not a turn", turn)
	}
	ev, found, err := s.bus.Last(ctx, bus.ChatStream, turn.Stored(chat.Asked))
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fault.New(fault.NotFound, "there is no message %s", turn)
	}
	var asked butlerv1.ChatAsked
	if err := chat.Decode(ev.Data, &asked); err != nil || ev.Type != chat.TypeAsked {
		return nil, fault.Wrap(err, fault.Invalid, "the message %s cannot be read", turn)
	}
	if asked.GetSender().GetId() != w.GetPerson() {
		return nil, fault.New(fault.Forbidden, "the message %s is not of the person whose conversation it is in", turn)
	}
	return &asked, nil
}

// typed says whether the person's message is the command, with or without the mark that makes it one, or the input.
func typed(message string, e *butlerv1.Effect) bool {
	text := strings.TrimSpace(message)
	command := strings.TrimSpace(e.GetCommand())
	if e.GetKind() == approval.KindInput {
		return true // the effect is to pass on what this person types
	}
	for _, mark := range []string{"", "!", "$ "} {
		if rest, ok := strings.CutPrefix(text, mark); ok && strings.TrimSpace(rest) == command {
			return true
		}
	}
	return false
}

func trimWhy(w *butlerv1.ApprovalReason) *butlerv1.ApprovalReason {
	out := &butlerv1.ApprovalReason{Reasoning: cut(w.GetReasoning(), maxReasoning)}
	for _, u := range w.GetUntrusted() {
		if len(out.Untrusted) == maxUntrusted {
			break
		}
		out.Untrusted = append(out.Untrusted, &butlerv1.UntrustedSource{Name: cut(u.GetName(), 200), Excerpt: cut(u.GetExcerpt(), maxExcerpt)})
	}
	return out
}

// trimRisk bounds the risk, and lets no level be lower than the verdict that comes with it.
func trimRisk(r *butlerv1.Risk) *butlerv1.Risk {
	if r == nil {
		return &butlerv1.Risk{Level: "critical", Verdict: actionRefuse}
	}
	out := proto.Clone(r).(*butlerv1.Risk)
	out.Reasons = out.Reasons[:min(len(out.Reasons), maxReasons)]
	switch out.Level {
	case "low":
		if out.Verdict != actionRun {
			out.Level = "medium"
		}
	case "medium", "high", "critical":
	default:
		out.Level = "critical"
	}
	return out
}

func cut(s string, most int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// approve completes a document whose decisions are enough: status, run-by, grant.
func (s *Service) approve(a *butlerv1.Approval, now time.Time) error {
	runBy := now.Add(s.settings.Load().RunTimeout)
	a.Status, a.RunBy = approval.Approved, timestamppb.New(runBy)
	var approvers []int64
	for _, d := range valid(a) {
		approvers = append(approvers, d.GetBy().GetId())
	}
	grant, err := s.signer.Grant(approval.Grant{
		ID: a.GetId(), Effect: a.GetDigest(), Kind: a.GetEffect().GetKind(), Risk: a.GetRisk().GetLevel(), Hardline: a.GetRisk().GetHardline(),
		Host: a.GetEffect().GetHost(), Session: a.GetEffect().GetSession(), Requester: a.GetRequester().GetId(), Approvers: approvers,
		RunBy: runBy.Unix(), Issued: now.Unix(),
	})
	if err != nil {
		return fault.Wrap(err, fault.Internal, "the grant could not be signed")
	}
	a.Grant = grant
	return nil
}

// append stores a document; expect is the sequence of its version before, 0 for none. bus.ErrFenced: somebody changed it.
func (s *Service) append(ctx context.Context, a *butlerv1.Approval, expect uint64) (uint64, error) {
	data, err := chat.Encode(a)
	if err != nil {
		return 0, fault.Wrap(err, fault.Invalid, "the request for approval cannot be written")
	}
	if len(data) > bus.MaxPayload {
		return 0, fault.New(fault.TooLarge, "the request for approval is too large")
	}
	subject := approval.RequestSubject(a.GetId())
	return s.bus.Append(ctx, bus.NewEvent(approval.TypeApproval, s.bus.Source(), subject, data), bus.Expect{Filter: subject, Seq: expect})
}

// load reads a request as it stands in the log, with the sequence of its last event.
func (s *Service) load(ctx context.Context, id string) (*butlerv1.Approval, uint64, error) {
	if !approval.ValidID(id) {
		return nil, 0, fault.New(fault.NotFound, "there is no approval %s", shown(id))
	}
	ev, found, err := s.bus.Last(ctx, bus.ApprovalStream, approval.RequestSubject(id))
	if err != nil {
		return nil, 0, err
	}
	if !found {
		return nil, 0, fault.New(fault.NotFound, "there is no approval %s", shown(id))
	}
	a, err := decodeApproval(ev)
	if err != nil {
		return nil, 0, fault.Wrap(err, fault.Internal, "the approval %s cannot be read", id)
	}
	return a, ev.Seq, nil
}

func decodeApproval(ev bus.Stored) (*butlerv1.Approval, error) {
	if ev.Type != approval.TypeApproval {
		return nil, errors.New("it has another type")
	}
	var a butlerv1.Approval
	if err := chat.Decode(ev.Data, &a); err != nil {
		return nil, err
	}
	if approval.RequestSubject(a.GetId()) != ev.Subject {
		return nil, errors.New("it stands on another's subject")
	}
	return &a, nil
}

// shown bounds a name that came from outside, for a sentence.
func shown(s string) string { return cut(strings.ToValidUTF8(s, "\uFFFD"), 64) }
