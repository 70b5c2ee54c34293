package brain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cloudwego/eino/schema"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/transcript"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

// past is what was before a turn. The session, which has read it already, gives it to the turn's program by context.
type past struct {
	turns     []*model.Group // oldest first
	attached  string         // host of the shell that the conversation is attached to; empty for none
	unsettled bool           // a turn before this one is open, which may still change attached
	memory    remembered
}

type pastKey struct{}

func withPast(ctx context.Context, p past) context.Context {
	return context.WithValue(ctx, pastKey{}, p)
}

// talk is one attempt at one turn.
type talk struct {
	s      *Service
	run    *journal.Run
	turn   chat.Turn
	asked  *butlerv1.ChatAsked
	past   past
	speech *speech
	heads  []*schema.Message // system messages
	msgs   []*schema.Message // this turn's
	deeds  deeds
	usage  butlerv1.Usage
	model  string
}

// program is the journal's program of a turn. See package journal for what that asks of it: everything that may differ
// between two attempts is inside a Do.
func (s *Service) program(ctx context.Context, run *journal.Run) (journal.End, error) {
	t, err := s.talk(ctx, run)
	if err != nil {
		return journal.End{}, err
	}
	if end, handled, err := t.direct(ctx); err != nil {
		return t.giveUp(ctx, err)
	} else if handled {
		return end, nil
	}
	if run.Attempt() > 1 { // only the model speaks: what is carried out directly has left no stream
		t.speech.endAbandoned(ctx)
	}
	// Only what the model does is measured: a command may take as long as its own limit says.
	run.SetBudget(journal.Spent{ActiveMs: int32(min(s.settings.TurnTimeout.Milliseconds(), 1<<31-1))})
	for step := 1; step <= s.settings.MaxSteps; step++ {
		out, err := t.think(ctx, step)
		if err != nil {
			return t.giveUp(ctx, err)
		}
		if len(out.ToolCalls) == 0 {
			return t.answer(out.Cut)
		}
		t.speech.keep()
		t.msgs = append(t.msgs, out.Message())
		results, err := t.callTools(ctx, step, out.ToolCalls)
		if err != nil {
			return t.giveUp(ctx, err)
		}
		t.msgs = append(t.msgs, results...)
	}
	return t.exhaust(ctx, model.ToolLoop)
}

// exhaust ends a turn that used up what it may; the log says so, as no model or tool reported a failure.
func (t *talk) exhaust(ctx context.Context, reason model.Reason) (journal.End, error) {
	t.s.log.WarnContext(ctx, "a turn ended without an answer", "turn", t.turn.String(), "reason", reason,
		"max_steps", t.s.settings.MaxSteps)
	return t.fail(ctx, reason)
}

func (s *Service) talk(ctx context.Context, run *journal.Run) (*talk, error) {
	turn, err := chat.ParseTurn(run.Unit())
	if err != nil {
		return nil, err
	}
	var asked butlerv1.ChatAsked
	if err := chat.Decode(run.Open().Body, &asked); err != nil {
		return nil, fmt.Errorf("turn %s: %w", turn, err)
	}
	p, _ := ctx.Value(pastKey{}).(past)
	if p.attached == "" && asked.Channel == shellChannel {
		p.attached = s.shells.Default
	}
	if p.attached == transcript.Detached {
		p.attached = ""
	}
	t := &talk{s: s, run: run, turn: turn, asked: &asked, past: p, speech: newSpeech(s, turn, asked.LocalId)}
	t.heads = append([]*schema.Message{schema.SystemMessage(s.systemPrompt(&asked))}, p.memory.heads()...)
	t.msgs = []*schema.Message{schema.UserMessage(asked.Text)}
	return t, nil
}

func (s *Service) systemPrompt(asked *butlerv1.ChatAsked) string {
	return model.SystemPrompt(model.PromptState{
		Now: s.clock.Now(), PersonName: asked.GetSender().GetName(), Language: asked.Language,
		Agents: s.agents.online(), Extra: s.settings.SystemPrompt, Hosts: s.hosts,
	})
}

// think is one step: a call of the model, again where that can help.
func (t *talk) think(ctx context.Context, step int) (transcript.ModelOutcome, error) {
	prompt := t.prompt(ctx)
	effect := journal.Effect{Repeat: journal.Pure, Cost: journal.Spent{ModelCalls: 1}}
	spoke := false
	out, err := journal.Do(ctx, t.run, transcript.ModelKey(step), effect, func(ctx context.Context, c *journal.Call) (transcript.ModelOutcome, error) {
		spoke = true
		res, err := model.Retry(ctx, t.s.pause, rand.Float64, func(ctx context.Context, attempt int) (*model.Result, error) {
			if attempt > 1 {
				t.speech.retract()
				c.Spend(journal.Spent{ModelCalls: 1})
			}
			res, err := t.s.model.Stream(ctx, prompt, t.s.tools.infos, model.CallOptions{}, t.speech.say)
			return res, t.s.lastTry(attempt, err)
		})
		if err != nil {
			return transcript.ModelOutcome{}, t.stepError(ctx, err)
		}
		c.Spend(journal.Spent{Tokens: int32(min(res.Usage.PromptTokens+res.Usage.CompletionTokens, 1<<30))})
		out := transcript.ModelOutcome{Model: res.Model, Cut: res.Truncated(), Usage: &transcript.TokenUsage{PromptTokens: res.Usage.PromptTokens, CompletionTokens: res.Usage.CompletionTokens}}
		if len(res.Message.ToolCalls) > 0 {
			out.Text = res.Message.Content
			for _, call := range res.Message.ToolCalls {
				out.ToolCalls = append(out.ToolCalls, transcript.ToolCall{ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments})
			}
		}
		return out, nil
	})
	if err != nil {
		return out, err
	}
	if !spoke {
		t.speech.say(out.Text) // an earlier attempt's: begin this stream with it
	}
	t.usage.ModelCalls++
	t.model = out.Model
	if out.Usage != nil && spoke && !t.s.model.Demo() {
		t.s.gauge.learn(t.s.clock.Now(), &t.s.background, prompt, t.s.tools.tokens, out.Usage.PromptTokens)
	}
	if out.Usage != nil {
		t.usage.PromptTokens += out.Usage.PromptTokens
		t.usage.CompletionTokens += out.Usage.CompletionTokens
	}
	return out, nil
}

// lastTry marks the failure of the last try that the settings allow as final.
func (s *Service) lastTry(attempt int, err error) error {
	if f, ok := errors.AsType[*model.Failure](err); ok && attempt >= s.settings.ModelTries {
		f.Retryable = false
	}
	return err
}

// stepError turns the failure of a call into what is recorded: a failed model is the step's outcome, an ended context is
// not.
func (t *talk) stepError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	f, ok := errors.AsType[*model.Failure](err)
	if !ok {
		return err
	}
	t.s.log.WarnContext(ctx, "the model gave no answer", "turn", t.turn.String(), "reason", f.Reason, "error", f)
	return &fault.Error{Code: fault.Code(f.Reason), Message: "the model gave no answer", Err: f}
}

func (s *Service) pause(ctx context.Context, d time.Duration) error {
	done := make(chan struct{})
	stop := s.clock.AfterFunc(d, func() { close(done) })
	defer stop()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// callTools runs the calls of one step at the same time and gives their results in order.
func (t *talk) callTools(ctx context.Context, step int, calls []transcript.ToolCall) ([]*schema.Message, error) {
	results := make([]*schema.Message, len(calls))
	err := journal.Parallel(ctx, len(calls), maxParallel, func(ctx context.Context, i int) error {
		text, err := t.callTool(ctx, transcript.ToolKey(step, i), calls[i])
		if err != nil {
			return err
		}
		results[i] = schema.ToolMessage(text, calls[i].ID, schema.WithToolName(calls[i].Name))
		return nil
	})
	t.usage.ToolCalls += int32(len(calls))
	return results, err
}

// callTool runs one call. What goes wrong with the tool is a result that the model reads; an error ends the attempt.
func (t *talk) callTool(ctx context.Context, key string, call transcript.ToolCall) (string, error) {
	tool, known := t.s.tools.by[call.Name]
	args := json.RawMessage(call.Arguments)
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	caller := Caller{Turn: t.turn, Person: t.asked.Sender, Language: t.asked.Language, talk: t}
	effect := journal.Effect{Repeat: journal.Pure, Description: call.Name, Cost: journal.Spent{ToolCalls: 1}}
	var do func(context.Context, *journal.Call) (string, error)
	switch {
	case !known:
		do = func(context.Context, *journal.Call) (string, error) {
			return "", fmt.Errorf("there is no tool %q", call.Name)
		}
	case !json.Valid(args):
		do = func(context.Context, *journal.Call) (string, error) {
			return "", errors.New("the arguments are not valid JSON; call again with valid ones")
		}
	case tool.Flow != nil:
		text, err := tool.Flow(ctx, t.run, caller, key, args)
		if notTheTools(err) {
			return "", err
		}
		do = func(context.Context, *journal.Call) (string, error) { return text, err }
	default:
		effect.Repeat, effect.Lookup = tool.Repeat, tool.Lookup
		do = func(ctx context.Context, c *journal.Call) (string, error) {
			limited, cancel := context.WithTimeout(ctx, toolTimeout)
			defer cancel()
			text, err := tool.Run(limited, caller, c.Key, args)
			if err != nil && ctx.Err() == nil && limited.Err() != nil {
				err = errors.New("the tool took too long")
			}
			return text, err
		}
	}
	out, err := journal.Do(ctx, t.run, key, effect, func(ctx context.Context, c *journal.Call) (transcript.ToolOutcome, error) {
		text, err := do(ctx, c)
		if err != nil && ctx.Err() == nil {
			return transcript.ToolOutcome{Text: clip("error: " + err.Error())}, nil
		}
		return transcript.ToolOutcome{Text: clip(text)}, err
	})
	var failure *journal.Failure
	if errors.As(err, &failure) {
		return "error: " + failure.Message, nil
	}
	return out.Text, err
}

// notTheTools says that err is about the turn, not about what a tool did.
func notTheTools(err error) bool {
	var failure *journal.Failure
	return errors.Is(err, journal.ErrSuspended) || errors.Is(err, journal.ErrCancelled) || errors.Is(err, journal.ErrFenced) ||
		errors.Is(err, journal.ErrBudget) || errors.Is(err, context.Canceled) ||
		fault.ClassOf(err) == fault.Transient && !errors.As(err, &failure)
}

// giveUp ends the turn after an error where that is the turn's outcome; else it passes the error on and the turn stays
// open, for later or for another worker.
func (t *talk) giveUp(ctx context.Context, err error) (journal.End, error) {
	var failure *journal.Failure
	var budget *journal.BudgetError
	switch {
	case errors.Is(err, journal.ErrFenced), errors.Is(err, journal.ErrSuspended):
		return journal.End{}, err
	case errors.Is(err, journal.ErrCancelled):
		return t.stop(ctx)
	case errors.As(err, &budget) && budget.Which == "active_ms":
		return t.exhaust(ctx, model.Timeout)
	case errors.As(err, &budget):
		return t.exhaust(ctx, model.Budget)
	case errors.As(err, &failure):
		return t.fail(ctx, model.Reason(failure.Code))
	default:
		return journal.End{}, err
	}
}

// answer ends the turn with what was said. What the endpoint cut short says so at its end: it must not pass for whole.
func (t *talk) answer(cut bool) (journal.End, error) {
	reason := ""
	if cut {
		reason = string(model.AnswerCut)
		t.speech.say("\n\n" + model.Sentence(model.AnswerCut, t.asked.Language))
	}
	text, stream, deltas := t.speech.finish()
	return t.end(chat.Answered, reason, text, stream, deltas)
}

// fail answers with the reason. What was streamed of an answer is taken back: a half answer never stands as a whole one.
func (t *talk) fail(ctx context.Context, reason model.Reason) (journal.End, error) {
	t.withdraw(ctx, nil, "the message that led to it could not be answered")
	t.speech.abandon()
	_, stream, deltas := t.speech.finish()
	return t.end(chat.Failed, string(reason), model.Sentence(reason, t.asked.Language), stream, deltas)
}

// stop answers with what there was until the person stopped it. What was asked for is withdrawn, and what runs is
// interrupted.
func (t *talk) stop(ctx context.Context) (journal.End, error) {
	text, stream, deltas := t.speech.finish()
	note := model.Sentence(model.Stopped, t.asked.Language)
	if n := t.withdraw(ctx, t.stopper(), "the message that led to it was stopped"); n > 0 {
		note += " " + wordsIn(t.asked.Language).withdrawn(n)
	}
	for _, said := range t.interrupt(ctx) {
		note += " " + said
	}
	if text == "" {
		text = note
	} else {
		text += "\n\n" + note
	}
	return t.end(chat.Stopped, string(model.Stopped), text, stream, deltas)
}

func (t *talk) end(status, reason, text, stream string, deltas int32) (journal.End, error) {
	t.s.metrics.turns.WithLabelValues(status, reason).Inc()
	return turnEnd(status, reason, &butlerv1.ChatReply{
		Text: text, StreamId: stream, Deltas: deltas, ConversationId: t.turn.Thread,
		ReplyToLocalId: t.asked.LocalId, Model: t.model, Usage: &t.usage,
	})
}

func turnEnd(status, reason string, reply *butlerv1.ChatReply) (journal.End, error) {
	result, err := chat.Encode(reply)
	if err != nil {
		return journal.End{}, fmt.Errorf("the answer cannot be written: %w", err)
	}
	return journal.End{Status: status, Reason: reason, Result: result}, nil
}

// poisoned gives the end of a turn that no worker could bring to one.
func (s *Service) poisoned(run *journal.Run, reason string) journal.End {
	s.log.Error("a turn was given up", "turn", run.Unit(), "reason", reason)
	return s.bareEnd(run, chat.Failed, model.Poison)
}

// stopped gives the end of a turn that was stopped while its program did not get to say so. One that had come to its
// answer keeps it: the person sees it, and that is what happened.
func (s *Service) stopped(run *journal.Run, end *journal.End) journal.End {
	if end != nil {
		return *end
	}
	return s.bareEnd(run, chat.Stopped, model.Stopped)
}

// bareEnd is an end with nothing but its reason.
func (s *Service) bareEnd(run *journal.Run, status string, reason model.Reason) journal.End {
	var asked butlerv1.ChatAsked
	_ = chat.Decode(run.Open().Body, &asked) // an undecodable question is one way to get here
	turn, _ := chat.ParseTurn(run.Unit())
	s.metrics.turns.WithLabelValues(status, string(reason)).Inc()
	end, err := turnEnd(status, string(reason), &butlerv1.ChatReply{
		Text: model.Sentence(reason, asked.Language), StreamId: streamID(turn, newTag(), 1),
		ConversationId: turn.Thread, ReplyToLocalId: asked.LocalId,
	})
	if err != nil {
		return journal.End{Status: status, Reason: string(reason)}
	}
	return end
}

// park keeps a note of a turn that was given up where an operator looks for such things; the turn itself stays in CHAT.
func (s *Service) park(ctx context.Context, unit, reason string) error {
	ev := bus.NewEvent("butler.turn.parked", s.bus.Source(), "butler.turn."+unit, json.RawMessage(fmt.Sprintf(`{"turn":%q}`, unit)))
	s.withdrawAll(ctx, unit)
	return s.bus.Park(ctx, ev, reason)
}
