package brain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/journal"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// How a turn makes something happen, whoever proposed it: what exactly would happen is inspected, approval is asked for,
// the turn waits where a person decides, and what was approved is executed. See docs/explanation/approvals.md.

const (
	// maxRounds is how often one wish is asked for: once, and three times more when what would run has changed since.
	maxRounds = 4
	// decideGrace is how much longer than a request may be decided its turn waits: approval says when it is over, this is
	// for an approval service that does not.
	decideGrace = 30 * time.Second
	// executeGrace is how much longer than a command is waited for the call may take.
	executeGrace = 30 * time.Second
	// maxCalls bounds how often a service that does not answer is called, and callFirst and callLast the time between:
	// about an hour in all. The turn holds nothing meanwhile.
	maxCalls  = 65
	callFirst = 500 * time.Millisecond
	callLast  = time.Minute
)

// wish is something that a turn wants to happen in a shell.
type wish struct {
	key      string // its steps' keys begin with it and a hyphen
	host     string
	command  string
	program  string                // pass input to this program, instead of a command
	input    string                // the input
	sealed   *butlerv1.SealedInput // instead of it, when it answers a password prompt
	proposer string
	why      *butlerv1.ApprovalReason
	// effect and risk are what was just seen of it; nil: it is inspected.
	effect *butlerv1.Effect
	risk   *butlerv1.Risk
	// waits says that the turn waits for the end of a command that outlives the wait of the call.
	waits bool
}

// Ends of a wish, beside the statuses of an approval and of a use.
const (
	byGuard = "guard"   // the guard refuses it; nobody was asked
	failed  = "failed"  // it could not be asked for or begun; nothing ran
	drifted = "drifted" // it changed each time that it was to begin
	running = "running" // it goes on as a job
	notRun  = "not_run" // it was approved, and the executor refused
)

// deed is what became of a wish.
type deed struct {
	end      string // see above, and approval.Denied, Expired, Withdrawn, Refused, Ended, Unknown
	approval *butlerv1.Approval
	sentence string // failed, notRun, unknown: why
	outcome  *butlerv1.CommandOutcome
	shell    *butlerv1.ShellState
}

// carryOut makes a wish happen, or says why not. What it returns as an error is about the turn.
func (t *talk) carryOut(ctx context.Context, w wish) (deed, error) {
	d, err := t.carry(ctx, w)
	if err == nil {
		t.s.metrics.commands.WithLabelValues(w.proposer, d.end).Inc()
	}
	return d, err
}

func (t *talk) carry(ctx context.Context, w wish) (deed, error) {
	var a *butlerv1.Approval
	for round := 1; round <= maxRounds; round++ {
		var err error
		var fresh bool
		if a, fresh, err = t.ask(ctx, w, round); err != nil {
			return gone(err)
		}
		waited := a.GetStatus() == approval.Pending
		if waited {
			if a, err = t.decided(ctx, w, round, a, fresh); err != nil {
				return gone(err)
			}
		}
		if a.GetStatus() != approval.Approved {
			return deed{end: a.GetStatus(), approval: a}, nil
		}
		d, drift, err := t.execute(ctx, w, round, a, waited)
		if err != nil || !drift {
			return d, err
		}
		w.effect, w.risk = nil, nil
	}
	return deed{end: drifted, approval: a}, nil
}

// gone turns a call that failed for good, before anything was begun, into the end of the wish.
func gone(err error) (deed, error) {
	if f, ok := errors.AsType[*callFailure](err); ok {
		return deed{end: failed, sentence: f.message}, nil
	}
	return deed{}, err
}

// ask requests approval of a wish. fresh says that it was requested just now and not by an earlier attempt.
func (t *talk) ask(ctx context.Context, w wish, round int) (a *butlerv1.Approval, fresh bool, err error) {
	id := approvalID(t.run.Unit(), w, round)
	t.deeds.put(id, asking, w.host)
	a = &butlerv1.Approval{}
	// The request is idempotent by its id, and the guard's look changes nothing: so the step is pure and costs no append
	// of its own. After a crash the same id gives what stands.
	ask := step{key: stepKey(w.key, "ask", round), repeat: journal.Pure, calls: maxCalls}
	fresh, err = t.reach(ctx, ask, a, func(ctx context.Context, try int) (proto.Message, error) {
		defer t.deeds.seat(w.host)()
		effect, risk := w.effect, w.risk
		if effect == nil || try > 1 {
			_, shell, ok := t.s.shells.pick(w.host)
			if !ok {
				return nil, fault.New(fault.NotFound, "there is no shell-runner on a host named %q", w.host)
			}
			seen, err := shell.Inspect(ctx, &butlerv1.InspectRequest{Person: t.asked.Sender, Command: w.command, Program: w.program})
			if err != nil {
				return nil, err
			}
			effect, risk = seen.GetEffect(), seen.GetRisk()
		}
		if risk.GetVerdict() == "refuse" && !risk.GetHardline() { // what is hard-line the policy refuses, and it is audited
			return &butlerv1.Approval{Id: id, Status: byGuard, Effect: effect, Risk: risk}, nil
		}
		res, err := t.s.approval.RequestApproval(ctx, &butlerv1.RequestApprovalRequest{
			Id: id, Effect: effect, Risk: risk, Why: w.why, Proposer: w.proposer,
			Waiter: t.waiter(stepKey(w.key, "decided", round)),
		})
		return res.GetApproval(), err
	}, func(string) { t.notice(id, wordsIn(t.asked.Language).unreachable(w.host)) })
	if err != nil {
		return nil, false, err
	}
	if a.GetStatus() != approval.Pending {
		t.deeds.drop(id)
	}
	return a, fresh, nil
}

// decided waits until a request is decided.
func (t *talk) decided(ctx context.Context, w wish, round int, a *butlerv1.Approval, fresh bool) (*butlerv1.Approval, error) {
	id := a.GetId()
	t.deeds.put(id, asking, w.host)
	if fresh {
		t.notice(id, wordsIn(t.asked.Language).waits(a, t.s.clock.Now()))
	}
	deadline := time.Time{}
	if by := a.GetDecideBy(); by.IsValid() && by.GetSeconds() > 0 {
		deadline = by.AsTime().Add(decideGrace)
	}
	arrival, err := t.run.Await(ctx, stepKey(w.key, "decided", round), deadline)
	var failure *journal.Failure
	if err != nil && !errors.As(err, &failure) {
		return nil, err
	}
	now := &butlerv1.Approval{}
	if err != nil || arrival.Timeout || chat.Decode(arrival.Value, now) != nil || now.GetId() != id || now.GetStatus() == approval.Pending {
		// Nobody said how it was decided, or not in a way that can be read: it is asked for, and ended if it still is open.
		now = &butlerv1.Approval{}
		late := step{key: stepKey(w.key, "late", round), repeat: journal.Pure, calls: maxCalls}
		_, err := t.reach(ctx, late, now, func(ctx context.Context, _ int) (proto.Message, error) {
			res, err := t.s.approval.WithdrawApproval(ctx, &butlerv1.WithdrawApprovalRequest{Id: id, Reason: "nobody decided in time"})
			return res.GetApproval(), err
		}, nil)
		if err != nil {
			return nil, err
		}
		if now.GetStatus() == approval.Withdrawn {
			now.Status = approval.Expired
		}
	}
	t.deeds.drop(id)
	return now, nil
}

// execute runs what was approved. drift says that it is not what would run now, so that it is to be asked for again.
// waited says that the turn has waited for the approval.
func (t *talk) execute(ctx context.Context, w wish, round int, a *butlerv1.Approval, waited bool) (d deed, drift bool, err error) {
	id := a.GetId()
	t.deeds.put(id, granted, w.host)
	// The executor takes the grant by the first append on its use, and answers every later call with what became of that:
	// so this step may be repeated after a crash as if it were pure, and needs no intent. It must not be Once: after a
	// crash the executor still knows what the journal does not. Only what the model proposed and nobody waited for has an
	// intent all the same, because that makes the model's call a fact before it has an effect: a model that is asked again
	// after a crash may say something else, and a command would have run of which the turn knows nothing.
	begin := step{key: stepKey(w.key, "run", round), repeat: journal.Pure, calls: maxCalls}
	if w.proposer != approval.ByPerson && !waited {
		begin.repeat = journal.Idempotent
	}
	res := &butlerv1.ExecuteResponse{}
	call := func(ctx context.Context, _ int) (proto.Message, error) {
		_, shell, ok := t.s.shells.pick(w.host)
		if !ok {
			return nil, fault.New(fault.NotFound, "there is no shell-runner on a host named %q", w.host)
		}
		defer t.deeds.seat(w.host)()
		ctx, cancel := context.WithTimeout(ctx, t.s.settings.CommandTimeout+executeGrace)
		defer cancel()
		waiter := t.waiter("")
		if w.waits {
			waiter.Key = stepKey(w.key, "end", round)
		}
		return shell.Execute(ctx, &butlerv1.ExecuteRequest{
			ApprovalId: id, Grant: a.GetGrant(), Effect: a.GetEffect(), Waiter: waiter, LocalId: t.asked.LocalId,
			Person: t.asked.Sender, Input: w.input, Language: t.asked.Language,
			Sealed: w.sealed,
		})
	}
	_, err = t.reach(ctx, begin, res, call,
		func(string) { t.notice(id, wordsIn(t.asked.Language).unreachable(w.host)) })
	if f, ok := errors.AsType[*callFailure](err); ok {
		late := a.GetRunBy().GetSeconds() > 0 && f.at.After(a.GetRunBy().AsTime())
		switch {
		case f.code == fault.Drift, late && f.class() == fault.User:
			t.deeds.drop(id)
			return deed{}, true, nil
		case f.class() == fault.User:
			t.deeds.drop(id)
			return deed{end: notRun, approval: a, sentence: f.message}, false, nil
		default:
			return deed{end: approval.Unknown, approval: a, sentence: f.message}, false, nil
		}
	}
	if err != nil {
		return deed{}, false, err
	}
	if res.GetStatus() == running && w.waits {
		if res, err = t.ended(ctx, w, round, a, res, call); err != nil {
			return deed{}, false, err
		}
	}
	t.deeds.drop(id)
	d = deed{approval: a, sentence: res.GetReason(), outcome: res.GetOutcome(), shell: res.GetShell()}
	switch res.GetStatus() {
	case approval.Ended, running:
		d.end = res.GetStatus()
	case approval.UseRefused:
		d.end = notRun
	default:
		d.end = approval.Unknown
	}
	return d, false, nil
}

// ended waits for the end of a command that goes on. It takes as long as the command does; the person may stop it.
func (t *talk) ended(ctx context.Context, w wish, round int, a *butlerv1.Approval, res *butlerv1.ExecuteResponse,
	call func(context.Context, int) (proto.Message, error)) (*butlerv1.ExecuteResponse, error) {
	if t.fresh(stepKey(w.key, "run", round)) {
		t.notice(a.GetId(), wordsIn(t.asked.Language).goesOn(a, res, t.s.settings.CommandTimeout))
	}
	_, err := t.run.Await(ctx, stepKey(w.key, "end", round), time.Time{})
	var failure *journal.Failure
	if err != nil && !errors.As(err, &failure) {
		return nil, err
	}
	// What woke the turn is only that: the executor says how it ended, also when the message could not be kept.
	end := &butlerv1.ExecuteResponse{}
	look := step{key: stepKey(w.key, "outcome", round), repeat: journal.Pure, calls: maxCalls}
	_, err = t.reach(ctx, look, end, func(ctx context.Context, try int) (proto.Message, error) {
		res, err := call(ctx, try)
		if r, ok := res.(*butlerv1.ExecuteResponse); ok && err == nil && r.GetStatus() == running {
			return nil, fault.New(fault.Unavailable, "the command still runs")
		}
		return res, err
	}, nil)
	if f, ok := errors.AsType[*callFailure](err); ok {
		return &butlerv1.ExecuteResponse{Status: approval.Unknown, Outcome: res.GetOutcome(), Reason: f.message}, nil
	}
	return end, err
}

// approvalID names the request for a wish of a turn. The command is part of it: when a crash lost the model's call, the
// next one in its place may be another, which must not get what was approved for the first.
func approvalID(unit string, w wish, round int) string {
	return approval.NewID(unit, w.key, strconv.Itoa(round), w.host, w.program, w.command)
}

func stepKey(key, step string, round int) string { return fmt.Sprintf("%s-%s-%d", key, step, round) }

// waiter names this turn, and the key that it waits for.
func (t *talk) waiter(key string) *butlerv1.Waiter {
	return &butlerv1.Waiter{Person: t.turn.Person, Thread: t.turn.Thread, Turn: t.turn.ID, Key: key}
}

// notice tells the person something on the stream of an approval. It is no part of the stream's text: its index is 0, and
// the output of the command is numbered from 1.
func (t *talk) notice(id, text string) {
	t.speech.send(&butlerv1.ChatDelta{StreamId: id, Text: text})
}

// callFailure is a call that failed for good, as it was recorded.
type callFailure struct {
	code    fault.Code
	message string
	at      time.Time
}

func (f *callFailure) Error() string { return f.message }

func (f *callFailure) class() fault.Class { return fault.ClassOf(&fault.Error{Code: f.code}) }

// reached is what is recorded of one call.
type reached struct {
	Value   json.RawMessage `json:"value,omitempty"`
	Code    fault.Code      `json:"code,omitempty"`
	Message string          `json:"message,omitempty"`
	At      time.Time       `json:"at,omitzero"`
	Again   bool            `json:"again,omitempty"`
}

// step is one call of another service.
type step struct {
	key    string
	repeat journal.Repeat // Pure or Idempotent
	calls  int            // at most, when it does not answer
}

// reach calls another service in a step and gives its answer in into, and whether it was called just now. A service
// that does not answer is called again later: the turn is suspended meanwhile, so that it neither holds anything nor is
// given up; silent, when not nil, is called when that begins. A call that failed for good, or so often, is a
// *callFailure; any other error is the turn's.
func (t *talk) reach(ctx context.Context, s step, into proto.Message,
	call func(ctx context.Context, try int) (proto.Message, error), silent func(reason string)) (fresh bool, err error) {
	key, wait := s.key, callFirst
	for try := 1; ; try++ {
		fresh = false
		out, err := journal.Do(ctx, t.run, key, journal.Effect{Repeat: s.repeat, Description: "a call for a command"}, func(ctx context.Context, _ *journal.Call) (reached, error) {
			fresh = true
			t.freshen(s.key)
			return t.call(ctx, key, s.calls-try, func(ctx context.Context) (proto.Message, error) { return call(ctx, try) })
		})
		switch {
		case err != nil:
			return false, err
		case out.Code == "" && !out.Again:
			if err := chat.Decode(out.Value, into); err != nil {
				return fresh, fmt.Errorf("turn %s: what is recorded of %s cannot be read: %w", t.turn, key, err)
			}
			return fresh, nil
		case !out.Again:
			return fresh, &callFailure{out.Code, out.Message, out.At}
		}
		if fresh && try == 1 && silent != nil {
			silent(out.Message)
		}
		if _, err := t.run.Await(ctx, fmt.Sprintf("%s-w%d", s.key, try), t.s.clock.Now().Add(wait)); err != nil {
			return false, err
		}
		wait = min(2*wait, callLast)
		key = fmt.Sprintf("%s-t%d", s.key, try+1)
	}
}

// call makes one call and gives what is recorded of it; left is how many more may follow.
func (t *talk) call(ctx context.Context, key string, left int, call func(context.Context) (proto.Message, error)) (reached, error) {
	msg, err := call(ctx)
	if err == nil {
		data, err := chat.Encode(msg)
		return reached{Value: data}, err
	}
	if ctx.Err() != nil {
		return reached{}, context.Cause(ctx)
	}
	code := fault.CodeOf(err)
	again := left > 0 && (fault.ClassOf(err) == fault.Transient || code == fault.Internal && left > maxCalls-4)
	t.s.log.WarnContext(ctx, "a call for a command failed", "turn", t.turn.String(), "step", key, "again", again, "error", err)
	return reached{Code: code, Message: fault.MessageOf(err), At: t.s.clock.Now().UTC(), Again: again}, nil
}

// freshen notes that a step was done in this pass, fresh asks.
func (t *talk) freshen(key string) {
	t.deeds.mu.Lock()
	defer t.deeds.mu.Unlock()
	t.deeds.fresh = append(t.deeds.fresh, key)
}

func (t *talk) fresh(key string) bool {
	t.deeds.mu.Lock()
	defer t.deeds.mu.Unlock()
	return slices.Contains(t.deeds.fresh, key)
}

// phase is how far an approval that matters when the turn ends has come.
type phase int

const (
	asking  phase = iota // it may be pending
	granted              // it may be executed
)

// deeds are the approvals of a turn that are not settled: who stops the turn wants them ended.
type deeds struct {
	mu    sync.Mutex
	open  []openDeed // in the order in which they were begun
	fresh []string   // steps that were done in this pass
	seats map[string]*sync.Mutex
}

// seat takes a person's shell on a host, until free is called: calls of the model that are made at the same time find it
// busy otherwise. It is held during a call of the shell-runner, never while people decide.
func (d *deeds) seat(host string) (free func()) {
	d.mu.Lock()
	if d.seats == nil {
		d.seats = map[string]*sync.Mutex{}
	}
	seat := d.seats[host]
	if seat == nil {
		seat = &sync.Mutex{}
		d.seats[host] = seat
	}
	d.mu.Unlock()
	seat.Lock()
	return seat.Unlock
}

type openDeed struct {
	id    string
	phase phase
	host  string
}

func (d *deeds) put(id string, p phase, host string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.open {
		if d.open[i].id == id {
			d.open[i].phase = p
			return
		}
	}
	d.open = append(d.open, openDeed{id, p, host})
}

func (d *deeds) drop(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = slices.DeleteFunc(d.open, func(o openDeed) bool { return o.id == id })
}

func (d *deeds) all() []openDeed {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.open)
}
