package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// maxTries bounds how often a change is made anew because somebody else changed the request at the same moment.
const maxTries = 20

// DecideApproval takes a person's word; see the service's definition.
func (s *Service) DecideApproval(ctx context.Context, req *butlerv1.DecideApprovalRequest) (*butlerv1.DecideApprovalResponse, error) {
	a, err := s.decide(ctx, req, "")
	if err != nil {
		s.noteAttempt(ctx, req, err)
		return nil, err
	}
	return &butlerv1.DecideApprovalResponse{Approval: a}, nil
}

// decide takes a person's word; message is the turn of the message by which it was said in a chat.
func (s *Service) decide(ctx context.Context, req *butlerv1.DecideApprovalRequest, message string) (*butlerv1.Approval, error) {
	if len(req.GetReason()) > approval.MaxReason {
		return nil, fault.New(fault.TooLarge, "the reason has %d bytes; at most %d are kept", len(req.GetReason()), approval.MaxReason)
	}
	if len(req.GetEditedCommand()) > approval.MaxCommand {
		return nil, fault.New(fault.TooLarge, "the command has %d bytes; at most %d can be approved",
			len(req.GetEditedCommand()), approval.MaxCommand)
	}
	if req.GetEditedCommand() != "" && !req.GetApproved() {
		return nil, fault.New(fault.Invalid, "an edited command is for approving; to deny, send none")
	}
	person, everybody, known, err := s.people.find(ctx, req.GetBy().GetId())
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, fault.New(fault.Forbidden, "you can no longer sign in")
	}
	id := req.GetId()
	if !approval.ValidID(id) {
		var found bool
		if id, found = s.book.withCode(id); !found {
			return nil, fault.New(fault.NotFound, "there is no pending approval %s", shown(req.GetId()))
		}
	}
	for range maxTries {
		a, seq, err := s.load(ctx, id)
		if err != nil {
			return nil, err
		}
		if a.GetStatus() != approval.Pending && concerns(a, person, everybody) {
			// Nobody may decide what the policy refused, or let run: that is not for want of a right.
			return nil, fault.New(fault.Conflict, "%s", standing(a))
		}
		if !approval.MayDecide(a, person, everybody) {
			return nil, fault.New(fault.Forbidden, "this approval is not yours to decide; %s may", whoMay(a, everybody))
		}
		if !s.now().Before(a.GetDecideBy().AsTime()) {
			if a, err = s.end(ctx, a, seq, approval.Expired, nil, ""); errors.Is(err, bus.ErrFenced) {
				continue
			} else if err != nil {
				return nil, err
			}
		}
		if a.GetStatus() != approval.Pending {
			return nil, fault.New(fault.Conflict, "%s", standing(a))
		}
		if req.GetDigest() != "" && req.GetDigest() != a.GetDigest() {
			return nil, fault.New(fault.Conflict, "the command was changed since you saw it; look at it again")
		}
		next, err := s.apply(ctx, a, person, everybody, req, message)
		if err != nil {
			return nil, err
		}
		stored, err := s.append(ctx, next, seq)
		if errors.Is(err, bus.ErrFenced) {
			continue // somebody else decided, or it expired: look again
		}
		if err != nil {
			return nil, err
		}
		s.changed(ctx, next, stored)
		if next.GetStatus() != approval.Pending {
			_ = s.wakeDecided(ctx, next) // at once; who acts on changes does it again, under the same id
		}
		return next, nil
	}
	return nil, fault.New(fault.Unavailable, "too many people decide this at the same moment; try again")
}

// apply gives the document with person's word added.
func (s *Service) apply(ctx context.Context, a *butlerv1.Approval, person *butlerv1.Actor, everybody []*butlerv1.Actor,
	req *butlerv1.DecideApprovalRequest, message string) (*butlerv1.Approval, error) {
	now := s.now()
	next := proto.Clone(a).(*butlerv1.Approval)
	next.Version++
	if text := req.GetEditedCommand(); text != "" && text != a.GetEffect().GetCommand() {
		if err := s.edit(ctx, next, person, everybody, text, now); err != nil {
			return nil, err
		}
	}
	edited := len(next.GetEdits()) > len(a.GetEdits())
	word := &butlerv1.ApprovalDecision{
		By: person, Approved: req.GetApproved(), Reason: cut(req.GetReason(), approval.MaxReason), Channel: req.GetChannel(),
		At: timestamppb.New(now), Digest: next.GetDigest(), Message: message,
	}
	if !req.GetApproved() {
		next.Decisions = append(next.Decisions, word)
		next.Status = approval.Denied
		return next, nil
	}
	if slices.ContainsFunc(valid(next), func(d *butlerv1.ApprovalDecision) bool { return d.GetBy().GetId() == person.GetId() }) {
		return nil, fault.New(fault.Conflict, "you have approved this already; it needs %d more", missing(next))
	}
	next.Decisions = append(next.Decisions, word)
	if missing(next) > 0 {
		if edited { // the old code was said of another text
			next.Code = s.book.newCode()
		}
		return next, nil
	}
	return next, s.approve(next, now)
}

// valid gives the approvals that are of the effect as it is now.
func valid(a *butlerv1.Approval) []*butlerv1.ApprovalDecision {
	var out []*butlerv1.ApprovalDecision
	for _, d := range a.GetDecisions() {
		if d.GetApproved() && d.GetDigest() == a.GetDigest() && d.GetBy().GetId() != 0 {
			out = append(out, d)
		}
	}
	return out
}

// missing is how many people must still approve.
func missing(a *butlerv1.Approval) int {
	return max(0, int(a.GetPolicy().GetQuorum())-len(valid(a)))
}

// edit puts another command into the document: its effect is inspected and judged anew, and what others approved before
// does not count for it.
func (s *Service) edit(ctx context.Context, a *butlerv1.Approval, by *butlerv1.Actor, everybody []*butlerv1.Actor, text string, now time.Time) error {
	a.Edits = append(a.Edits, &butlerv1.ApprovalEdit{
		By: by, At: timestamppb.New(now), Command: a.GetEffect().GetCommand(), Digest: a.GetDigest(),
	})
	if len(a.GetEdits()) > 10 {
		return fault.New(fault.Invalid, "this was edited too often; deny it and ask anew")
	}
	switch a.GetEffect().GetKind() {
	case approval.KindCommand:
		shell := s.shells[a.GetEffect().GetHost()]
		if shell == nil {
			return fault.New(fault.Invalid, "the command cannot be edited: the shell-runner of %s is not known to approval", a.GetEffect().GetHost())
		}
		seen, err := shell.Inspect(ctx, &butlerv1.InspectRequest{Person: a.GetRequester(), Command: text})
		if err != nil {
			return err
		}
		a.Effect, a.Risk = seen.GetEffect(), trimRisk(seen.GetRisk())
	case approval.KindAgent:
		a.Effect.Command = text
	default:
		return fault.New(fault.Invalid, "this cannot be edited; approve or deny it")
	}
	a.Digest = approval.Digest(a.GetEffect())
	policy := s.policy.Load().verdict(a)
	if policy.GetAction() == actionRefuse {
		return fault.New(fault.Invalid, "the edited command cannot be allowed%s", because(a.GetRisk()))
	}
	if policy.GetAction() == actionAsk {
		a.Policy = policy
		if !approval.MayDecide(a, by, everybody) {
			return fault.New(fault.Forbidden, "the edited command is not yours to decide; %s may", whoMay(a, everybody))
		}
	}
	return nil // what runs without asking may be approved by whoever may decide more
}

func because(r *butlerv1.Risk) string {
	if len(r.GetReasons()) == 0 {
		return ""
	}
	return ": " + r.GetReasons()[0].GetText()
}

// whoMay names those who may decide, for a sentence.
func whoMay(a *butlerv1.Approval, everybody []*butlerv1.Actor) string {
	var names []string
	for _, p := range approval.Deciders(a, everybody) {
		if len(names) == 3 {
			names = append(names, "…")
			break
		}
		names = append(names, p.GetName())
	}
	if len(names) == 0 {
		return "nobody"
	}
	return strings.Join(names, ", ")
}

// standing says how a request stands that is not pending any more.
func standing(a *butlerv1.Approval) string {
	who := ""
	if n := len(a.GetDecisions()); n > 0 {
		who = " by " + a.GetDecisions()[n-1].GetBy().GetName()
	}
	switch a.GetStatus() {
	case approval.Approved:
		return "it was approved already" + who
	case approval.Denied:
		return "it was denied already" + who
	case approval.Expired:
		return "it expired at " + a.GetDecideBy().AsTime().UTC().Format("15:04:05 MST") + "; ask anew"
	case approval.Withdrawn:
		return "it was withdrawn: what wanted it was stopped"
	case approval.Refused:
		return "the policy refuses it"
	default:
		return "it is " + a.GetStatus()
	}
}

// end ends a pending request without a person's word.
func (s *Service) end(ctx context.Context, a *butlerv1.Approval, seq uint64, status string, by *butlerv1.Actor, reason string) (*butlerv1.Approval, error) {
	next := proto.Clone(a).(*butlerv1.Approval)
	next.Version++
	next.Status = status
	if by != nil || reason != "" {
		next.Decisions = append(next.Decisions, &butlerv1.ApprovalDecision{
			By: by, Reason: cut(reason, approval.MaxReason), Channel: status, At: timestamppb.New(s.now()), Digest: a.GetDigest(),
		})
	}
	stored, err := s.append(ctx, next, seq)
	if err != nil {
		return nil, err
	}
	s.changed(ctx, next, stored)
	return next, nil
}

func (s *Service) changed(ctx context.Context, a *butlerv1.Approval, seq uint64) {
	s.book.put(a, seq)
	if a.GetStatus() != approval.Pending {
		s.decided.WithLabelValues(a.GetStatus()).Inc()
		s.log.InfoContext(ctx, "an approval was decided", "approval", a.GetId(), "status", a.GetStatus())
	}
}

// WithdrawApproval ends a pending request whose work was stopped.
func (s *Service) WithdrawApproval(ctx context.Context, req *butlerv1.WithdrawApprovalRequest) (*butlerv1.WithdrawApprovalResponse, error) {
	for range maxTries {
		a, seq, err := s.load(ctx, req.GetId())
		if err != nil {
			return nil, err
		}
		if a.GetStatus() != approval.Pending {
			return &butlerv1.WithdrawApprovalResponse{Approval: a}, nil
		}
		next, err := s.end(ctx, a, seq, approval.Withdrawn, req.GetBy(), req.GetReason())
		if errors.Is(err, bus.ErrFenced) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &butlerv1.WithdrawApprovalResponse{Approval: next}, nil
	}
	return nil, fault.New(fault.Unavailable, "the approval changes all the time; try again")
}

// DecideInChat decides by a message of the log.
func (s *Service) DecideInChat(ctx context.Context, req *butlerv1.DecideInChatRequest) (*butlerv1.DecideInChatResponse, error) {
	asked, err := s.message(ctx, req.GetTurn())
	if err != nil {
		return nil, err
	}
	said, ok := approval.ParseDecision(asked.GetText())
	if !ok {
		return &butlerv1.DecideInChatResponse{}, nil
	}
	person, everybody, known, err := s.people.find(ctx, asked.GetSender().GetId())
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, fault.New(fault.Forbidden, "you can no longer sign in")
	}
	words := wordsIn(asked.GetLanguage())
	turn := chat.Turn{Session: chat.Session{Person: req.GetTurn().GetPerson(), Thread: req.GetTurn().GetThread()}, ID: req.GetTurn().GetTurn()}
	if a := s.book.decidedBy(turn.String()); a != nil {
		// The same message again: a call that was repeated, or a crash between the decision and its answer. A bare word must
		// not decide another request.
		return words.answer(a), nil
	}
	id := ""
	var mine []*butlerv1.Approval
	for _, a := range s.book.waiting() {
		if approval.MayDecide(a, person, everybody) {
			mine = append(mine, a)
			if said.Code != "" && strings.EqualFold(a.GetCode(), said.Code) {
				id = a.GetId()
			}
		}
	}
	switch {
	case said.Code == "" && len(mine) == 0:
		return &butlerv1.DecideInChatResponse{}, nil // an ordinary word
	case said.Code == "" && len(mine) > 1:
		return &butlerv1.DecideInChatResponse{Handled: true, Text: words.which(mine)}, nil
	case said.Code == "":
		id = mine[0].GetId()
	case id == "":
		// Not one that this person may decide now. A code that was used lately, or is another's to decide, gets its answer.
		if id = s.book.lately(said.Code); id == "" {
			if !said.Certain {
				return &butlerv1.DecideInChatResponse{}, nil
			}
			id = said.Code
		}
	}
	decision := &butlerv1.DecideApprovalRequest{
		Id: id, By: person, Approved: said.Approve, Reason: said.Reason, Channel: "chat:" + asked.GetChannel(),
	}
	a, err := s.decide(ctx, decision, turn.String())
	if err == nil {
		return words.answer(a), nil
	}
	if fault.ClassOf(err) != fault.User {
		return nil, err // tried again
	}
	s.noteAttempt(ctx, decision, err)
	return &butlerv1.DecideInChatResponse{Handled: true, Text: words.refused(err)}, nil
}

// decidedBy gives the request in which a message counts as somebody's word.
func (b *book) decidedBy(message string) *butlerv1.Approval {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range slices.Backward(b.order) {
		p, ok := b.by[id]
		if ok && slices.ContainsFunc(p.a.GetDecisions(), func(d *butlerv1.ApprovalDecision) bool { return d.GetMessage() == message }) {
			return p.a
		}
	}
	return nil
}

// lately gives the id of the newest request that has or had the code.
func (b *book) lately(code string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range slices.Backward(b.order) {
		if p, ok := b.by[id]; ok && p.a.GetCode() != "" && strings.EqualFold(p.a.GetCode(), code) {
			return id
		}
	}
	return ""
}

// words are what chat answers, in one language.
type words struct{ zh bool }

func wordsIn(language string) words { return words{strings.HasPrefix(language, "zh")} }

func (w words) which(all []*butlerv1.Approval) string {
	var b strings.Builder
	if w.zh {
		b.WriteString("有多个请求等待您决定，请写明编号：\n")
	} else {
		b.WriteString("Several requests wait for you; say which, with its code:\n")
	}
	for i, a := range all {
		if i == 10 {
			_, _ = fmt.Fprintf(&b, "\n- … %d", len(all)-i)
			break
		}
		_, _ = fmt.Fprintf(&b, "\n- **%s** `%s`", a.GetCode(), oneLine(a.GetRisk().GetVisible(), a.GetEffect().GetCommand()))
	}
	return b.String()
}

// oneLine gives the visible form of a command, or the command, short and without line breaks and backquotes.
func oneLine(visible, command string) string {
	if visible == "" {
		visible = command
	}
	visible = strings.NewReplacer("\n", " ⏎ ", "\r", " ", "`", "'").Replace(visible)
	return cut(visible, 200)
}

func (w words) answer(a *butlerv1.Approval) *butlerv1.DecideInChatResponse {
	text := w.decided(a)
	if a.GetStatus() == approval.Pending {
		text = w.more(a)
	}
	return &butlerv1.DecideInChatResponse{Handled: true, Text: text, Approval: a}
}

func (w words) more(a *butlerv1.Approval) string {
	if w.zh {
		return fmt.Sprintf("已记录您的同意（%s），还需要 %d 人同意。", a.GetCode(), missing(a))
	}
	return fmt.Sprintf("Your approval of %s is noted; it needs %d more.", a.GetCode(), missing(a))
}

func (w words) decided(a *butlerv1.Approval) string {
	command := oneLine(a.GetRisk().GetVisible(), a.GetEffect().GetCommand())
	yes := a.GetStatus() == approval.Approved
	switch {
	case w.zh && yes:
		return fmt.Sprintf("已批准 %s：`%s`", a.GetCode(), command)
	case w.zh:
		return fmt.Sprintf("已拒绝 %s：`%s`，不会执行。", a.GetCode(), command)
	case yes:
		return fmt.Sprintf("Approved %s: `%s`", a.GetCode(), command)
	default:
		return fmt.Sprintf("Denied %s: `%s` will not run.", a.GetCode(), command)
	}
}

func (w words) refused(err error) string {
	if !w.zh {
		return "Nothing was decided: " + fault.MessageOf(err) + "."
	}
	switch fault.CodeOf(err) {
	case fault.NotFound:
		return "没有作出决定：没有这个编号的待批准请求。"
	case fault.Forbidden:
		return "没有作出决定：您无权决定此请求。"
	case fault.Conflict:
		return "没有作出决定：此请求已被决定、已过期或已更改（" + fault.MessageOf(err) + "）。"
	default:
		return "没有作出决定：" + fault.MessageOf(err) + "。"
	}
}
