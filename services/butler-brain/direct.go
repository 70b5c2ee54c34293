package brain

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/transcript"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Messages that are not for the model: decisions about approvals, and what the person types into a shell.

// Keys of their steps. Package transcript knows routeKey.
const (
	decideKey  = "decide"
	routeKey   = transcript.RouteKey
	controlKey = "control"
	typedKey   = "cmd"
)

// directTimeout bounds a call that is answered at once or not at all.
const directTimeout = 20 * time.Second

// controlCalls is how often a slash command is passed on at most when the shell-runner does not answer: a few seconds.
const controlCalls = 4

// Kinds of a message, beside those of RouteResponse.
const (
	routeChat        = "chat"
	routeCommand     = transcript.RouteCommand
	routeInput       = transcript.RouteInput
	routeControl     = transcript.RouteControl
	routeDetach      = "detach"      // /shell off, and the shell cannot be asked
	routeUnreachable = "unreachable" // meant for a shell that does not answer
	routeRefused     = "refused"     // the shell-runner says no, with a sentence
)

// direct ends the turn when its message is not for the model; handled is false when it is.
func (t *talk) direct(ctx context.Context) (end journal.End, handled bool, err error) {
	if t.s.approval != nil {
		if said, ok := approval.ParseDecision(t.asked.Text); ok {
			if end, handled, err = t.decide(ctx, said); handled || err != nil {
				return end, handled, err
			}
		}
	}
	if end, handled, err = t.remembers(ctx); handled || err != nil {
		return end, handled, err
	}
	if !t.s.acts() {
		return end, false, nil
	}
	r, seen, err := t.route(ctx)
	if err != nil {
		return end, false, err
	}
	words := wordsIn(t.asked.Language)
	switch r.Kind {
	case routeCommand, routeInput:
		if r.Kind == routeInput && !r.Guarded {
			end, err = t.control(ctx, r)
			return end, true, err
		}
		end, err = t.typed(ctx, r, seen)
	case routeControl:
		end, err = t.control(ctx, r)
	case routeDetach:
		end, err = t.directEnd(chat.Answered, "", &butlerv1.ChatReply{Text: words.detached(), Attach: "off"})
	case routeUnreachable:
		end, err = t.directEnd(chat.Failed, "shell_unavailable", &butlerv1.ChatReply{Text: words.noShell(r.Host)})
	case routeRefused:
		end, err = t.directEnd(chat.Answered, "refused", &butlerv1.ChatReply{Text: sentence(r.Message)})
	default:
		return end, false, nil
	}
	return end, true, err
}

// decideOutcome is what is recorded of a message that decides.
type decideOutcome struct {
	Handled bool       `json:"handled,omitempty"`
	Text    string     `json:"text,omitempty"`
	Code    fault.Code `json:"code,omitempty"` // approval could not be asked, or refuses
}

// decide passes a decision on to approval, which reads it from the log itself.
func (t *talk) decide(ctx context.Context, said approval.Decision) (end journal.End, handled bool, err error) {
	effect := journal.Effect{Repeat: journal.Pure, Description: "a decision about an approval"}
	if said.Code == "" {
		// A bare word means the only request that is pending. Said twice it could mean another one.
		effect.Repeat = journal.Once
	}
	out, err := journal.Do(ctx, t.run, decideKey, effect, func(ctx context.Context, _ *journal.Call) (decideOutcome, error) {
		limited, cancel := context.WithTimeout(ctx, directTimeout)
		defer cancel()
		res, err := t.s.approval.DecideInChat(limited, &butlerv1.DecideInChatRequest{Turn: t.waiter("")})
		if err == nil {
			return decideOutcome{Handled: res.GetHandled(), Text: res.GetText()}, nil
		}
		if ctx.Err() != nil {
			return decideOutcome{}, context.Cause(ctx)
		}
		t.s.log.WarnContext(ctx, "a decision could not be passed on", "turn", t.turn.String(), "error", err)
		return decideOutcome{Code: fault.CodeOf(err), Text: fault.MessageOf(err)}, nil
	})
	words := wordsIn(t.asked.Language)
	var failure *journal.Failure
	switch {
	case errors.As(err, &failure):
		end, err = t.directEnd(chat.Failed, "decision_unknown", &butlerv1.ChatReply{Text: words.decisionUnknown()})
	case err != nil:
		return end, false, err
	case out.Code != "" && fault.ClassOf(&fault.Error{Code: out.Code}) == fault.User:
		end, err = t.directEnd(chat.Answered, "refused", &butlerv1.ChatReply{Text: sentence(out.Text)})
	case out.Code != "":
		end, err = t.directEnd(chat.Failed, "approval_unavailable", &butlerv1.ChatReply{Text: words.noApproval()})
	case !out.Handled:
		return end, false, nil
	default:
		end, err = t.directEnd(chat.Answered, "", &butlerv1.ChatReply{Text: out.Text})
	}
	return end, true, err
}

// routeOutcome is what is recorded of how a message is meant. The effect itself is not: it is asked for at once, or
// inspected again after a crash.
type routeOutcome struct {
	Kind    string `json:"kind"`
	Host    string `json:"host,omitempty"`
	Command string `json:"command,omitempty"`
	Program string `json:"program,omitempty"`
	Guarded bool   `json:"guarded,omitempty"` // input that needs a grant
	Message string `json:"message,omitempty"`
	// Secret says that a password was asked for: the message is not shown to the model.
	Secret bool `json:"secret,omitempty"`
}

// route says how the message is meant, and what was seen of its effect if that was just now. A message of a conversation
// that is not attached is for the model without asking anybody, unless it begins with a slash.
func (t *talk) route(ctx context.Context) (r routeOutcome, seen *butlerv1.RouteResponse, err error) {
	text, attached := t.asked.Text, t.past.attached
	if attached == "" && t.asked.Sealed == nil && !t.past.unsettled && !strings.HasPrefix(strings.TrimSpace(text), "/") {
		return routeOutcome{Kind: routeChat}, nil, nil
	}
	// Recorded, because a turn before this one that is still open may attach the conversation, or not any more, until
	// this turn is resumed: what a message means does not change by that.
	r, err = journal.Do(ctx, t.run, routeKey, journal.Effect{Repeat: journal.Pure}, func(ctx context.Context, _ *journal.Call) (routeOutcome, error) {
		r, res, err := t.askRoute(ctx, text, attached)
		seen = res
		if err != nil && ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		return r, nil
	})
	if err == nil {
		t.s.metrics.routes.WithLabelValues(r.Kind).Inc()
	}
	return r, seen, err
}

func (t *talk) askRoute(ctx context.Context, text, attached string) (routeOutcome, *butlerv1.RouteResponse, error) {
	if attached == "" && t.asked.Sealed == nil && !strings.HasPrefix(strings.TrimSpace(text), "/") {
		return routeOutcome{Kind: routeChat}, nil, nil
	}
	wanted := attached
	if t.asked.Sealed != nil { // an answer to a password prompt of that host
		attached, wanted = t.asked.Sealed.GetHost(), t.asked.Sealed.GetHost()
	}
	if named := t.s.shells.namedHost(text); named != "" {
		wanted = named
	}
	host, shell, known := t.s.shells.pick(wanted)
	if !known {
		return t.withoutShell(text, attached, routeOutcome{Kind: routeUnreachable, Host: host}), nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, directTimeout)
	defer cancel()
	res, err := shell.Route(limited, &butlerv1.RouteRequest{
		Person: t.asked.Sender, Text: text, Attached: attached != "", Language: t.asked.Language, Sealed: t.asked.Sealed,
	})
	switch {
	case err == nil:
		return routeOutcome{
			Kind: res.GetKind(), Host: host, Command: res.GetEffect().GetCommand(), Program: res.GetEffect().GetProgram(),
			Guarded: res.GetEffect() != nil, Secret: t.asked.Sealed != nil || res.GetKind() == routeInput && res.GetShell().GetPassword(),
		}, res, nil
	case ctx.Err() != nil:
		return routeOutcome{}, nil, err
	case fault.ClassOf(err) == fault.User:
		return t.withoutShell(text, attached, routeOutcome{Kind: routeRefused, Host: host, Message: fault.MessageOf(err)}), nil, nil
	}
	t.s.log.WarnContext(ctx, "a message could not be routed", "turn", t.turn.String(), "host", host, "error", err)
	return t.withoutShell(text, attached, routeOutcome{Kind: routeUnreachable, Host: host}), nil, nil
}

// withoutShell says how a message is meant that the shell-runner did not judge: refused or unreachable says why. What is
// plainly meant for the shell never becomes chat; what is not, is.
func (t *talk) withoutShell(text, attached string, why routeOutcome) routeOutcome {
	switch {
	case t.asked.Sealed != nil: // the model has nothing to say to dots
		return why
	case attached != "" && detaches(text):
		return routeOutcome{Kind: routeDetach}
	case attached != "" && (marked(text) || why.Kind == routeRefused), shellWords[firstWord(text)]:
		return why
	}
	return routeOutcome{Kind: routeChat}
}

// control has a slash command, a skill or input done that needs no grant.
func (t *talk) control(ctx context.Context, r routeOutcome) (journal.End, error) {
	res := &butlerv1.ControlResponse{}
	// Repeated under the same key it is done once, so the step is as good as pure.
	pass := step{key: controlKey, repeat: journal.Pure, calls: controlCalls}
	_, err := t.reach(ctx, pass, res, func(ctx context.Context, _ int) (proto.Message, error) {
		host, shell, ok := t.s.shells.pick(r.Host)
		if !ok {
			return nil, fault.New(fault.NotFound, "there is no shell-runner on a host named %q", host)
		}
		return shell.Control(ctx, &butlerv1.ControlRequest{
			Person: t.asked.Sender, Text: t.asked.Text, Language: t.asked.Language, Attached: t.past.attached != "", Key: t.run.Unit(),
			Sealed: t.asked.Sealed, ConversationId: t.turn.Thread,
		})
	}, nil)
	if f, ok := errors.AsType[*callFailure](err); ok {
		if f.class() == fault.User {
			return t.directEnd(chat.Answered, "refused", &butlerv1.ChatReply{Text: sentence(f.message)})
		}
		return t.directEnd(chat.Failed, "shell_unavailable", &butlerv1.ChatReply{Text: wordsIn(t.asked.Language).noShell(r.Host)})
	}
	if err != nil {
		return journal.End{}, err
	}
	reply := &butlerv1.ChatReply{Text: res.GetText(), Shell: res.GetShell(), Attach: res.GetAttach()}
	if reply.Shell == nil && reply.Attach == "on" {
		reply.Shell = &butlerv1.ShellState{Host: r.Host}
	}
	return t.directEnd(chat.Answered, "", reply)
}

// typed carries out what the person typed into the shell, and answers with what came out.
func (t *talk) typed(ctx context.Context, r routeOutcome, seen *butlerv1.RouteResponse) (journal.End, error) {
	w := wish{
		key: typedKey, host: r.Host, command: r.Command, program: r.Program, proposer: approval.ByPerson, waits: true,
		effect: seen.GetEffect(), risk: seen.GetRisk(),
	}
	if r.Kind == routeInput {
		w.command, w.input, w.sealed = "", t.asked.Text, t.asked.Sealed
	}
	d, err := t.carryOut(ctx, w)
	if err != nil {
		return journal.End{}, err
	}
	reply := &butlerv1.ChatReply{Text: wordsIn(t.asked.Language).result(r, d), Shell: d.shell}
	if reply.Shell == nil {
		reply.Shell = seen.GetShell()
	}
	if a := d.approval; a.GetStatus() != byGuard {
		reply.StreamId, reply.Deltas = a.GetId(), d.outcome.GetDeltas()
	}
	reason := ""
	if d.end != approval.Ended && d.end != running {
		reason = d.end
	}
	return t.directEnd(chat.Answered, reason, reply)
}

// directEnd ends the turn without the model.
func (t *talk) directEnd(status, reason string, reply *butlerv1.ChatReply) (journal.End, error) {
	if reply.StreamId == "" {
		_, reply.StreamId, reply.Deltas = t.speech.finish()
	}
	reply.ConversationId, reply.ReplyToLocalId, reply.Usage = t.turn.Thread, t.asked.LocalId, &t.usage
	t.s.metrics.turns.WithLabelValues(status, reason).Inc()
	return turnEnd(status, reason, reply)
}

// settleTimeout bounds what is tried at the end of a turn that is stopped.
const settleTimeout = 10 * time.Second

// withdraw ends the requests of a turn that ends before they were decided. Best effort: without it they expire, and what
// is approved meanwhile is not executed, because the turn that would have it executed has ended.
func (t *talk) withdraw(ctx context.Context, by *butlerv1.Actor, reason string) (withdrawn int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	for _, o := range t.deeds.all() {
		if o.phase != asking {
			continue
		}
		res, err := t.s.approval.WithdrawApproval(ctx, &butlerv1.WithdrawApprovalRequest{Id: o.id, By: by, Reason: reason})
		switch {
		case err == nil:
			t.deeds.drop(o.id)
			if res.GetApproval().GetStatus() == approval.Withdrawn {
				withdrawn++
			}
		case fault.CodeOf(err) == fault.NotFound: // it was not asked for yet
			t.deeds.drop(o.id)
		default:
			t.s.log.WarnContext(ctx, "a request could not be withdrawn; it expires", "approval", o.id, "error", err)
		}
	}
	return withdrawn
}

// withdrawAll ends the requests of a turn that was given up without its program. Best effort, as withdraw.
func (s *Service) withdrawAll(ctx context.Context, unit string) {
	if s.approval == nil {
		return
	}
	records, err := s.turns.Load(ctx, unit, 0)
	if err != nil {
		s.log.WarnContext(ctx, "requests of a turn that was given up are not withdrawn; they expire", "turn", unit, "error", err)
		return
	}
	for _, e := range journal.Fold(records).Outcomes {
		var out reached
		var a butlerv1.Approval
		if json.Unmarshal(e.Value, &out) != nil || chat.Decode(out.Value, &a) != nil || a.GetStatus() != approval.Pending {
			continue
		}
		// One that was decided meanwhile stays as it is.
		_, err := s.approval.WithdrawApproval(ctx, &butlerv1.WithdrawApprovalRequest{Id: a.GetId(), Reason: "the message that led to it was given up"})
		if err != nil {
			s.log.WarnContext(ctx, "a request could not be withdrawn; it expires", "approval", a.GetId(), "error", err)
		}
	}
}

// interrupt stops what a stopped turn has running, and gives sentences about it for the person.
func (t *talk) interrupt(ctx context.Context) (said []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	words := wordsIn(t.asked.Language)
	for _, o := range t.deeds.all() {
		if o.phase != granted {
			continue
		}
		res, err := t.s.approval.GetApproval(ctx, &butlerv1.GetApprovalRequest{Id: o.id, Viewer: t.asked.Sender})
		command := res.GetApproval().GetEffect().GetCommand()
		switch status := res.GetUse().GetStatus(); {
		case err != nil:
			said = append(said, words.mayRun(command, o.host))
		case status == "":
			said = append(said, words.notBegun(command))
		case status == approval.Taken:
			if t.pressInterrupt(ctx, o) != nil {
				said = append(said, words.mayRun(command, o.host))
			} else {
				said = append(said, words.interrupted(command, o.host))
			}
		case status == approval.Ended:
			said = append(said, words.hadEnded(command))
		}
	}
	return said
}

func (t *talk) pressInterrupt(ctx context.Context, o openDeed) error {
	_, shell, ok := t.s.shells.pick(o.host)
	if !ok {
		return fault.New(fault.NotFound, "there is no shell-runner on a host named %q", o.host)
	}
	_, err := shell.Control(ctx, &butlerv1.ControlRequest{
		Person: t.asked.Sender, Text: "/key C-c", Language: t.asked.Language, Attached: true, Key: t.run.Unit() + "/stop/" + o.id,
	})
	if err != nil {
		t.s.log.WarnContext(ctx, "a running command could not be interrupted", "approval", o.id, "error", err)
	}
	return err
}

// stopper gives who stopped the turn.
func (t *talk) stopper() *butlerv1.Actor {
	rec, _ := t.run.CancelRecord()
	var stop butlerv1.ChatStop
	if chat.Decode(rec.Body, &stop) != nil || stop.By == nil {
		return t.asked.Sender
	}
	return stop.By
}
