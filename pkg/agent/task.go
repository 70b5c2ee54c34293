package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/task"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// reportTimeout bounds how long the end of a task is tried to be reported; then the task is given back.
const reportTimeout = time.Minute

// Task is what a handler is to do. Its methods are safe for concurrent use.
type Task struct {
	// ID names the task, IdempotencyKey the work: what is done to the world is done once for each key.
	ID, IdempotencyKey string
	// Capability is what is asked for.
	Capability string
	// Attempt counts how often the task was handed out, from 1.
	Attempt int
	// Deadline is when its time is over.
	Deadline time.Time
	// Requester is the name of the person it is done for.
	Requester string

	agent  *Agent
	ref    task.Ref
	input  []byte
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	answers map[string]Answer
	asked   map[string]chan struct{} // closed when the answer is there
}

// Answer is what a person, or the policy, says to a question.
type Answer struct {
	Approved bool
	Text     string // words of who answered
	By       string // name of who answered
}

// Input reads the input of the task into v, as json.Unmarshal does.
func (t *Task) Input(v any) error {
	if err := json.Unmarshal(t.input, v); err != nil {
		return fault.Wrap(err, fault.Invalid, "the input of the task is not what this agent expects")
	}
	return nil
}

// Progress says in words how it goes, at most 4,000 characters. It is shown to people; if it cannot be sent now, it is lost.
func (t *Task) Progress(ctx context.Context, text string) {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	if err := t.agent.publish(ctx, t, &butlerv1.TaskReport{Kind: task.Progress, Text: shortened(text)}); err != nil {
		t.agent.log.Debug("progress was not told", "task", t.ID, "error", err)
	}
}

// Ask asks a person whether something may be done, and blocks until there is an answer or ctx ends, with its cause. key names
// the question within the task, 1 to 64 characters of A–Z, a–z, 0–9, - and _: when the task is done again, asking under the same
// key gives the answer that there was.
func (t *Task) Ask(ctx context.Context, key, question string) (Answer, error) {
	if !task.ValidWord(key) {
		return Answer{}, fault.New(fault.Invalid, "a question is named with 1 to 64 characters of A–Z, a–z, 0–9, - and _")
	}
	t.mu.Lock()
	if a, ok := t.answers[key]; ok {
		t.mu.Unlock()
		return a, nil
	}
	answered := t.asked[key]
	if answered == nil {
		answered = make(chan struct{})
		t.asked[key] = answered
	}
	t.mu.Unlock()
	report := &butlerv1.TaskReport{Kind: task.Question, Question: key, Text: shortened(question)}
	if err := t.agent.insist(ctx, t, report); err != nil {
		return Answer{}, err
	}
	t.agent.hurry() // there may be an answer from an attempt before
	select {
	case <-answered:
	case <-ctx.Done():
		return Answer{}, context.Cause(ctx)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answers[key], nil
}

func (t *Task) answer(key string, a Answer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.answers[key]; ok {
		return
	}
	t.answers[key] = a
	if c := t.asked[key]; c != nil {
		close(c)
	}
}

// receive does what a message of the consumer is about.
func (a *Agent) receive(work context.Context, m jetstream.Msg) {
	data := &butlerv1.Task{}
	meta, err := m.Metadata()
	if err == nil {
		err = chat.Decode(m.Data(), data)
	}
	if err != nil || m.Headers().Get("ce-type") != task.TypeTask {
		a.log.Error("something that is no task", "subject", m.Subject(), "error", err)
		_ = m.Term()
		return
	}
	if data.GetStatus() != task.Open {
		a.stop(data.GetId(), ErrCancelled)
		_ = m.Ack() // if it is lost, the same comes again
		return
	}
	a.do(work, m, a.newTask(data, int(meta.NumDelivered)), data)
}

func (a *Agent) newTask(data *butlerv1.Task, attempt int) *Task {
	input := []byte("null")
	if data.GetInput() != nil {
		if in, err := protojson.Marshal(data.GetInput()); err == nil {
			input = in
		}
	}
	return &Task{
		ID: data.GetId(), IdempotencyKey: data.GetIdempotencyKey(), Capability: data.GetCapability(), Attempt: attempt,
		Deadline: data.GetDeadline().AsTime(), Requester: data.GetRequester().GetName(),
		agent: a, ref: task.Ref{Agent: a.id, ID: data.GetId()}, input: input,
		answers: map[string]Answer{}, asked: map[string]chan struct{}{},
	}
}

// do runs the handler of a task and reports how it ended.
func (a *Agent) do(work context.Context, m jetstream.Msg, t *Task, data *butlerv1.Task) {
	ctx, cancel := context.WithCancelCause(work)
	defer cancel(nil)
	t.cancel = cancel
	ctx, end := context.WithDeadlineCause(ctx, t.Deadline, ErrDeadline)
	defer end()

	a.mu.Lock()
	if before := a.running[t.ID]; before != nil {
		before.cancel(ErrSuperseded)
	}
	a.running[t.ID] = t
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		if a.running[t.ID] == t {
			delete(a.running, t.ID)
		}
		a.mu.Unlock()
	}()
	stopAlive := a.keepAlive(m)
	defer stopAlive()

	if err := a.insist(ctx, t, &butlerv1.TaskReport{Kind: task.Claim}); err != nil {
		_ = m.Nak()
		return
	}
	if t.Attempt > int(data.GetMaxAttempts()) {
		_ = m.Ack() // the claim tells the registry that it was lost too often
		return
	}
	output, err := a.call(ctx, t)
	report := ending(output, err)
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrStopping):
		if err != nil {
			_ = m.Nak() // another replica takes it at once
			return
		}
	case errors.Is(cause, ErrCancelled), errors.Is(cause, ErrSuperseded):
		_ = m.Ack()
		return
	}
	report.Worker = a.config.Worker
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer stop()
	if err := a.insist(last, t, report); err != nil {
		a.log.Error("how a task ended could not be reported; it is given back", "task", t.ID, "error", err)
		_ = m.Nak()
		return
	}
	var again retryError
	if report.GetRetry() && errors.As(err, &again) && t.Attempt < int(data.GetMaxAttempts()) {
		_ = m.NakWithDelay(max(again.after, pauseMin))
		return
	}
	if err := m.DoubleAck(last); err != nil {
		a.log.Debug("an acknowledgement was lost; the task is over nevertheless", "task", t.ID, "error", err)
	}
}

// call runs the handler.
func (a *Agent) call(ctx context.Context, t *Task) (output any, err error) {
	h := a.handlers[t.Capability]
	if h == nil {
		h = a.handlers[""]
	}
	if h == nil {
		return nil, fault.New(fault.NotFound, "this agent has no handler for %q", t.Capability)
	}
	defer func() {
		if r := recover(); r != nil {
			a.log.Error("a handler panicked", "task", t.ID, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("the handler panicked: %v", r)
		}
	}()
	return h(ctx, t)
}

// ending gives the report on how a handler ended.
func ending(output any, err error) *butlerv1.TaskReport {
	failed := func(err error) *butlerv1.TaskReport {
		var again retryError
		return &butlerv1.TaskReport{Kind: task.Failure, Text: shortened(err.Error()), Retry: errors.As(err, &again)}
	}
	if err != nil {
		return failed(err)
	}
	data, err := json.Marshal(output)
	if err != nil {
		return failed(fmt.Errorf("the result is no JSON: %w", err))
	}
	if len(data) > task.MaxValue {
		return failed(fmt.Errorf("the result has %d KiB; at most %d are allowed", len(data)>>10, task.MaxValue>>10))
	}
	value := &structpb.Value{}
	if err := protojson.Unmarshal(data, value); err != nil {
		return failed(fmt.Errorf("the result is no JSON: %w", err))
	}
	return &butlerv1.TaskReport{Kind: task.Result, Output: value}
}

// keepAlive tells the server that a task is being worked on, until stop is called.
func (a *Agent) keepAlive(m jetstream.Msg) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(aliveEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if err := m.InProgress(); err != nil {
					a.log.Debug("a sign of life was not sent", "error", err)
				}
			}
		}
	}()
	return func() { close(done); <-ended }
}

// insist reports until it is stored or ctx ends.
func (a *Agent) insist(ctx context.Context, t *Task, r *butlerv1.TaskReport) error {
	for wait := pauseMin; ; wait = min(2*wait, pauseMax) {
		one, cancel := context.WithTimeout(ctx, pullWait)
		err := a.publish(one, t, r)
		cancel()
		if err == nil {
			return nil
		}
		if errors.Is(err, nats.ErrMaxPayload) {
			return fault.Wrap(err, fault.TooLarge, "a report is too large")
		}
		if !sleep(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

func (a *Agent) publish(ctx context.Context, t *Task, r *butlerv1.TaskReport) error {
	r.Worker = a.config.Worker
	data, err := chat.Encode(r)
	if err != nil {
		return err
	}
	_, err = a.js.PublishMsg(ctx, a.message(t.ref.Report(t.Attempt), task.TypeReport, data))
	return err
}

// message frames an event. It has no Nats-Msg-Id: the registry knows what it has heard already.
func (a *Agent) message(subject, typ string, data []byte) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = data
	for k, v := range map[string]string{
		"ce-specversion": "1.0", "ce-id": nuid.Next(), "ce-type": typ, "ce-source": "/butler/agent/" + a.config.Worker,
		"ce-time": time.Now().UTC().Format(time.RFC3339Nano), "content-type": "application/json",
	} {
		m.Header[k] = []string{v}
	}
	return m
}

func shortened(text string) string {
	if r := []rune(text); len(r) > task.MaxText {
		return string(r[:task.MaxText-1]) + "…"
	}
	return text
}
