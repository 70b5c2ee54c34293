package brain

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudwego/eino/schema"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/bus/bustest"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/journal"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// rig is a brain on a real log with a scripted model.
type rig struct {
	t     testing.TB
	ctx   context.Context
	srv   *bus.Server
	bus   *bus.Bus
	model *modeltest.Server
	n     int
	// language of the messages, and the channel that they come from.
	language, channel string
}

func newRig(t testing.TB) *rig {
	srv := bustest.Server(t, "")
	return &rig{t: t, ctx: within(t), srv: srv, bus: bustest.Connect(t, srv, "gateway"), model: modeltest.Start(t),
		language: "en", channel: "test"}
}

type replica struct {
	*Service
	bus  *bus.Bus
	stop func()
}

func (r *rig) start(name string, change ...func(*Deps)) *replica {
	r.t.Helper()
	b := bustest.Connect(r.t, r.srv, "brain")
	client, err := model.New(model.Config{BaseURL: r.model.URL(), Model: "scripted", IdleTimeout: 5 * time.Second, HeaderTimeout: 5 * time.Second})
	require.NoError(r.t, err)
	d := Deps{Bus: b, Model: client, Replica: name, Log: slog.New(slog.NewTextHandler(testWriter{r.t}, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	for _, f := range change {
		f(&d)
	}
	s, err := New(d)
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx); err != nil {
			r.t.Errorf("the brain ended: %v", err)
		}
	}()
	stop := sync.OnceFunc(func() { cancel(); <-done; client.Close() })
	r.t.Cleanup(stop)
	require.Eventually(r.t, func() bool { return s.Ready(r.ctx) == nil }, 60*time.Second, 5*time.Millisecond)
	return &replica{Service: s, bus: b, stop: stop}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	defer func() { _ = recover() }() // a message after the test's end is of no interest
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

var alice = chat.Session{Person: 1, Thread: 1}

func (r *rig) ask(text string) chat.Turn {
	r.n++
	return r.askIn(alice, fmt.Sprintf("m%d", r.n), text)
}

func (r *rig) askIn(s chat.Session, local, text string) chat.Turn {
	r.t.Helper()
	turn := chat.Turn{Session: s, ID: chat.TurnID(local)}
	data, err := chat.Encode(&butlerv1.ChatAsked{
		Sender: &butlerv1.Actor{Id: s.Person, Name: "admin", Role: "ADMIN"}, ConversationId: s.Thread,
		LocalId: local, Text: text, Channel: r.channel, Language: r.language,
	})
	require.NoError(r.t, err)
	_, err = r.bus.Append(r.ctx, bus.NewEvent(chat.TypeAsked, r.bus.Source(), turn.Subject(chat.Asked), data), bus.Expect{Filter: turn.Filter()})
	require.NoError(r.t, err)
	return turn
}

func (r *rig) stop(turn chat.Turn) {
	r.t.Helper()
	for {
		last, _, err := r.bus.Last(r.ctx, bus.ChatStream, turn.Filter())
		require.NoError(r.t, err)
		ev := bus.NewEvent(chat.TypeStop, r.bus.Source(), turn.Subject(chat.Stop), []byte(`{"by":{"id":"1"}}`))
		if _, err = r.bus.Append(r.ctx, ev, bus.Expect{Filter: turn.Filter(), Seq: last.Seq}); err == nil {
			return
		}
		require.ErrorIs(r.t, err, bus.ErrFenced)
	}
}

type outcome struct {
	Status, Reason string
	Reply          *butlerv1.ChatReply
	Records        []journal.Record
}

// outcome waits for the turn's end and checks that there is one only, at the end.
func (r *rig) outcome(turn chat.Turn) outcome {
	r.t.Helper()
	log := newTurnLog(r.bus, "test")
	for {
		records, err := log.Load(r.ctx, turn.String(), 0)
		require.NoError(r.t, err)
		for i, rec := range records {
			if rec.End == nil {
				continue
			}
			require.Len(r.t, records, i+1, "nothing follows the end")
			var reply butlerv1.ChatReply
			require.NoError(r.t, chat.Decode(rec.End.Result, &reply))
			return outcome{rec.End.Status, rec.End.Reason, &reply, records}
		}
		if r.ctx.Err() != nil {
			r.t.Fatalf("turn %s has no answer; records: %+v", turn, records)
		}
		time.Sleep(5 * time.Millisecond) // polling a log
	}
}

func (r *rig) deltas(s chat.Session, stream string) (text string, n int32, ended bool) {
	r.t.Helper()
	events, err := r.bus.Load(r.ctx, bus.DeltaStream, s.Delta(), 0, 0)
	require.NoError(r.t, err)
	for _, ev := range events {
		var d butlerv1.ChatDelta
		require.NoError(r.t, chat.Decode(ev.Data, &d))
		if d.StreamId != stream {
			continue
		}
		n++
		require.Equal(r.t, n, d.Index)
		text += d.Text
		ended = ended || d.End
	}
	return text, n, ended
}

// firstStream waits for the turn's first delta and gives its stream.
func (r *rig) firstStream(turn chat.Turn) (stream string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		events, err := r.bus.Load(r.ctx, bus.DeltaStream, turn.Delta(), 0, 0)
		require.NoError(r.t, err)
		for _, ev := range events {
			var d butlerv1.ChatDelta
			require.NoError(r.t, chat.Decode(ev.Data, &d))
			if d.Turn == turn.ID {
				stream = d.StreamId
				return true
			}
		}
		return false
	}, 10*time.Second, 5*time.Millisecond)
	return stream
}

func TestAMessageIsAnswered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("one")
	turn := r.ask("hello")
	out := r.outcome(turn)
	require.Equal(t, chat.Answered, out.Status)
	require.Equal(t, "answer to: hello", out.Reply.Text)
	require.Equal(t, "m1", out.Reply.ReplyToLocalId)
	require.Len(t, out.Records, 2, "a plain turn is two appends")
	text, n, _ := r.deltas(alice, out.Reply.StreamId)
	require.Equal(t, out.Reply.Text, text)
	require.Equal(t, out.Reply.Deltas, n)
	require.EqualValues(t, 1, out.Reply.Usage.ModelCalls)

	r.outcome(r.ask("and again"))
	last := r.model.Requests()[1]
	var texts []string
	for _, m := range last.Messages[1:] {
		texts = append(texts, m.Role+": "+m.Text)
	}
	require.Equal(t, []string{"user: hello", "assistant: answer to: hello", "user: and again"}, texts)
}

func TestMessagesOfASessionAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("one")
	var turns []chat.Turn
	for i := range 20 {
		turns = append(turns, r.ask(fmt.Sprintf("question %d", i)))
	}
	last := uint64(0)
	for i, turn := range turns {
		out := r.outcome(turn)
		require.Equal(t, fmt.Sprintf("answer to: question %d", i), out.Reply.Text)
		seq := out.Records[len(out.Records)-1].Seq
		require.Greater(t, seq, last)
		last = seq
	}
	require.Equal(t, 20, r.model.Count())
	for i, req := range r.model.Requests() {
		require.Len(t, req.Messages, 1+2*i+1, "each prompt has everything before it")
	}
}

// A question whose delivery was lost with a connection is found in the log although this replica has written behind it.
func TestALostDeliveryIsNotOvertaken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	one := r.start("one")
	r.outcome(r.ask("first"))
	one.stop()
	w := &worker{m: one.sessions, ss: &session{id: alice}, h: newHistory(alice), pin: "before", fresh: true, held: map[string][]*bus.Delivery{}}
	require.NoError(t, w.h.load(r.ctx, r.bus, 1<<20))
	lost := r.ask("lost")
	ev, _, err := r.bus.Last(r.ctx, bus.ChatStream, lost.Filter())
	require.NoError(t, err)
	w.h.last = ev.Seq + 1 // as after an append of the turn before
	ev, _, err = r.bus.Last(r.ctx, bus.ChatStream, r.ask("later").Filter())
	require.NoError(t, err)
	w.ss.inbox = []*bus.Delivery{{Stored: ev, First: true, Pin: "after"}}
	w.collect()
	require.Equal(t, lookAgain, w.step(r.ctx))
	require.Equal(t, lost.ID, w.blind.turn)
}

func TestMemorySurvivesARestart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	one := r.start("one")
	r.outcome(r.ask("first"))
	one.stop()
	r.start("two")
	r.outcome(r.ask("second"))
	require.Len(t, r.model.Requests()[1].Messages, 4)
}

func TestModelFailuresEndInASentence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		steps  []modeltest.Step
		reason model.Reason
	}{
		"refused":      {[]modeltest.Step{modeltest.Refuse(400, "bad", "no")}, model.Rejected},
		"unauthorized": {[]modeltest.Step{modeltest.Refuse(401, "key", "no")}, model.Unauthorized},
		"too long":     {[]modeltest.Step{modeltest.Refuse(400, "context_length_exceeded", "too long")}, model.ContextTooLong},
		"cut":          {[]modeltest.Step{modeltest.Text("half an "), modeltest.Cut()}, model.CutStream},
		"empty":        {[]modeltest.Step{modeltest.Empty()}, model.EmptyAnswer},
		"down":         {[]modeltest.Step{modeltest.Status(503, "", "down")}, model.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.model.Default(c.steps...)
			r.start("one")
			out := r.outcome(r.ask("hello"))
			require.Equal(t, chat.Failed, out.Status)
			require.Equal(t, string(c.reason), out.Reason)
			require.Equal(t, model.Sentence(c.reason, "en"), out.Reply.Text)
			require.NotContains(t, out.Reply.Text, "half an")

			r.model.Default(modeltest.Echo(3))
			require.Equal(t, chat.Answered, r.outcome(r.ask("next")).Status, "the session goes on")
		})
	}
}

func TestARetryAfterTextHasItsOwnStream(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("one")
	r.model.Next(modeltest.Text("half of it"), modeltest.Cut())
	turn := r.ask("hello")
	out := r.outcome(turn)
	require.Equal(t, "answer to: hello", out.Reply.Text)
	require.True(t, strings.HasSuffix(out.Reply.StreamId, "-2"))
	text, _, ended := r.deltas(alice, strings.TrimSuffix(out.Reply.StreamId, "2")+"1")
	require.Equal(t, "half of it", text)
	require.True(t, ended, "the old stream ends")
	text, n, _ := r.deltas(alice, out.Reply.StreamId)
	require.Equal(t, out.Reply.Text, text)
	require.Equal(t, out.Reply.Deltas, n)
}

func TestAnAnswerThatTheEndpointCutsSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("one")
	for _, finish := range []string{"length", "content_filter"} {
		r.model.Next(modeltest.Text("half of "), modeltest.Finish(finish))
		out := r.outcome(r.ask("hello"))
		require.Equal(t, chat.Answered, out.Status)
		require.Equal(t, string(model.AnswerCut), out.Reason)
		require.Equal(t, "half of \n\n"+model.Sentence(model.AnswerCut, "en"), out.Reply.Text)
		text, _, _ := r.deltas(alice, out.Reply.StreamId)
		require.Equal(t, out.Reply.Text, text)
	}
}

func TestATurnOfADeletedConversationLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("one")
	gate := modeltest.NewGate()
	r.model.Next(modeltest.Text("half of "), modeltest.At(gate))
	turn := r.ask("hello")
	<-gate.Reached()
	_, err := r.bus.Erase(r.ctx, bus.ChatStream, turn.Session.Filter())
	require.NoError(t, err)
	gate.Open()
	require.Equal(t, chat.Answered, r.outcome(r.ask("and now")).Status, "the session goes on at once")
	left, err := r.bus.Load(r.ctx, bus.ChatStream, turn.Filter(), 0, 0)
	require.NoError(t, err)
	require.Empty(t, left)
}

// probe is a tool that counts its calls.
type probe struct {
	mu    sync.Mutex
	calls []string
	do    func(ctx context.Context) (string, error)
}

func (p *probe) called(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, key)
}

func (p *probe) tool(name string, repeat journal.Repeat) Tool {
	return Tool{Info: &schema.ToolInfo{Name: name, Desc: "a test"}, Repeat: repeat,
		Run: func(ctx context.Context, _ Caller, key string, _ json.RawMessage) (string, error) {
			p.called(key)
			if p.do != nil {
				return p.do(ctx)
			}
			return name + " was done", nil
		}}
}

// waiting is a tool that waits for the signal "<key>-word".
func (p *probe) waiting(name string, deadline func(*journal.Run) time.Time) Tool {
	return Tool{Info: &schema.ToolInfo{Name: name, Desc: "a test"},
		Flow: func(ctx context.Context, run *journal.Run, _ Caller, key string, _ json.RawMessage) (string, error) {
			p.called(key)
			a, err := run.Await(ctx, key+"-word", deadline(run))
			return fmt.Sprintf("value %s, timeout %v", a.Value, a.Timeout), err
		}}
}

func (p *probe) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.calls)
}

func withTools(tools ...Tool) func(*Deps) {
	return func(d *Deps) { d.Tools = append(d.Tools, tools...) }
}

func TestTextBeforeAToolCallDoesNotHideIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var p probe
	r.start("one", withTools(p.tool("probe", journal.Once)))
	r.model.Next(modeltest.Text("I'll check ", "that now."), modeltest.Tool("probe", `{}`))
	r.model.Next(modeltest.Text("All is well."))
	out := r.outcome(r.ask("check"))
	require.Equal(t, 1, p.count())
	require.Equal(t, "I'll check that now.\n\nAll is well.", out.Reply.Text)
	text, n, _ := r.deltas(alice, out.Reply.StreamId)
	require.Equal(t, out.Reply.Text, text)
	require.Equal(t, out.Reply.Deltas, n)

	r.outcome(r.ask("next"))
	var roles []string
	msgs := r.model.Requests()[2].Messages
	for _, m := range msgs[1:] {
		roles = append(roles, m.Role)
	}
	require.Equal(t, []string{"user", "assistant", "tool", "assistant", "user"}, roles, "calls and results are part of the history")
	require.Equal(t, "probe was done", msgs[3].Text)
	require.Equal(t, "All is well.", msgs[4].Text)
}

func TestToolTroubleIsToldToTheModel(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := probe{do: func(context.Context) (string, error) { return "", fmt.Errorf("the disk is full") }}
	r.start("one", withTools(p.tool("probe", journal.Once)))
	r.model.Next(modeltest.Calls(
		modeltest.Call{ID: "a", Name: "probe", Arguments: `{}`},
		modeltest.Call{ID: "b", Index: 1, Name: "nothing", Arguments: `{}`},
		modeltest.Call{ID: "c", Index: 2, Name: "probe", Arguments: `{"a`}))
	out := r.outcome(r.ask("do three things"))
	require.Equal(t, chat.Answered, out.Status)
	msgs := r.model.Requests()[1].Messages
	results := msgs[len(msgs)-3:]
	require.Equal(t, "error: the disk is full", results[0].Text)
	require.Contains(t, results[1].Text, "no tool")
	require.Contains(t, results[2].Text, "not valid JSON")
	require.Equal(t, 1, p.count())
}

func TestAToolLoopEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var p probe
	var logged lockedBuffer
	r.start("one", withTools(p.tool("probe", journal.Pure)), func(d *Deps) {
		d.Settings.MaxSteps = 4
		d.Log = slog.New(slog.NewTextHandler(&logged, nil))
	})
	r.model.Default(modeltest.Tool("probe", `{}`))
	out := r.outcome(r.ask("loop"))
	require.Equal(t, chat.Failed, out.Status)
	require.Equal(t, string(model.ToolLoop), out.Reason)
	require.Equal(t, 4, r.model.Count())
	require.Contains(t, logged.String(), "reason=tool_loop")
}

// lockedBuffer is a buffer that several goroutines may use.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestStopAtAnyMoment(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("one")
	gate := modeltest.NewGate()
	defer gate.Open()
	r.model.Next(modeltest.Text("one two three "), modeltest.At(gate), modeltest.Text("four"))
	turn := r.ask("count")
	<-gate.Reached()
	r.firstStream(turn)
	began := time.Now()
	r.stop(turn)
	out := r.outcome(turn)
	require.Equal(t, chat.Stopped, out.Status)
	require.True(t, strings.HasPrefix(out.Reply.Text, "one two three "), out.Reply.Text)
	require.NotContains(t, out.Reply.Text, "four")
	require.Less(t, time.Since(began), 10*time.Second) // a busy machine; it takes milliseconds

	// Stopped before it was begun: another turn of the session is still running.
	hold := modeltest.NewGate()
	r.model.Next(modeltest.At(hold), modeltest.Text("the first"))
	first := r.ask("first")
	<-hold.Reached()
	second := r.ask("second")
	r.stop(second)
	hold.Open()
	require.Equal(t, chat.Answered, r.outcome(first).Status)
	require.Equal(t, chat.Stopped, r.outcome(second).Status)

	// Stopped at once, many times over.
	r.model.Default(modeltest.EchoSlow(50, time.Millisecond))
	for range 10 {
		turn := r.ask("quick")
		r.stop(turn)
		require.Contains(t, []string{chat.Stopped, chat.Answered}, r.outcome(turn).Status)
	}
}

func TestASuspendedTurnDoesNotHoldUpItsSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := probe{}
	never := func(*journal.Run) time.Time { return time.Now().Add(time.Hour) }
	one := r.start("one", withTools(p.waiting("probe", never)))
	r.model.Next(modeltest.Tool("probe", `{}`))
	waiting := r.ask("wait for the word")
	require.Eventually(t, func() bool { return p.count() == 1 }, 10*time.Second, 5*time.Millisecond)
	require.Equal(t, chat.Answered, r.outcome(r.ask("meanwhile")).Status)
	one.stop()

	r.start("two", withTools(p.waiting("probe", never)))
	r.model.Next(modeltest.Text("Thank you."))
	for _, key := range []string{"something-else", "tool-1-0-word"} {
		_, err := r.bus.Publish(r.ctx, bus.WorkStream, bus.NewEvent(typeSignal, "", waiting.Signal(key), []byte(`{"value":"butler"}`)))
		require.NoError(t, err)
	}
	out := r.outcome(waiting)
	require.Equal(t, "Thank you.", out.Reply.Text)
	msgs := r.model.Requests()[2].Messages
	require.Equal(t, `value "butler", timeout false`, msgs[len(msgs)-1].Text)
	require.Equal(t, "m1", out.Reply.ReplyToLocalId, "a resumed answer names the message it answers")
}

func TestAWaitThatIsStoppedOrTimesOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := probe{}
	r.start("one", withTools(p.waiting("probe", func(run *journal.Run) time.Time { return run.Open().At.Add(1500 * time.Millisecond) })))
	r.model.Next(modeltest.Tool("probe", `{}`))
	turn := r.ask("wait")
	require.Eventually(t, func() bool { return p.count() == 1 }, 10*time.Second, 5*time.Millisecond)
	r.stop(turn)
	require.Equal(t, chat.Stopped, r.outcome(turn).Status)

	r.model.Next(modeltest.Tool("probe", `{}`))
	r.model.Next(modeltest.Text("It timed out."))
	turn = r.ask("wait again")
	require.Equal(t, "It timed out.", r.outcome(turn).Reply.Text)
	msgs := r.model.Requests()
	last := msgs[len(msgs)-1].Messages
	require.Equal(t, "value , timeout true", last[len(last)-1].Text)
}

func TestADeadWorkersTurnIsTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	one := r.start("one")
	gate := modeltest.NewGate()
	defer gate.Open()
	r.model.Next(modeltest.Text("half of "), modeltest.At(gate))
	turn := r.ask("hello")
	<-gate.Reached()
	old := r.firstStream(turn)
	second := r.ask("second")
	began := time.Now()
	one.bus.Close() // its end is abrupt: it can give nothing back
	r.start("two")
	out := r.outcome(turn)
	require.Equal(t, "answer to: hello", out.Reply.Text)
	require.Less(t, time.Since(began), 30*time.Second)
	require.NotEqual(t, old, out.Reply.StreamId)
	_, _, ended := r.deltas(alice, old)
	require.True(t, ended, "the dead worker's stream is ended")
	require.Equal(t, "answer to: second", r.outcome(second).Reply.Text)
	t.Logf("taken over after %s", time.Since(began))
}

func TestPoisonEndsWithAReason(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := probe{do: func(context.Context) (string, error) { panic("poison") }}
	r.start("one", withTools(p.tool("probe", journal.Idempotent)))
	r.model.Default(modeltest.Tool("probe", `{}`))
	out := r.outcome(r.ask("hello"))
	require.Equal(t, chat.Failed, out.Status)
	require.Equal(t, string(model.Poison), out.Reason)
	parked, err := r.bus.Load(r.ctx, bus.ParkedStream, "butler.parked.turn.>", 0, 0)
	require.NoError(t, err)
	require.Len(t, parked, 1)
	r.model.Default(modeltest.Echo(1))
	require.Equal(t, chat.Answered, r.outcome(r.ask("next")).Status)
}

func TestManySessionsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("one")
	r.start("two")
	const people, each = 20, 10
	var wg sync.WaitGroup
	for p := range people {
		wg.Go(func() {
			s := chat.Session{Person: int64(p + 1), Thread: 1}
			last := uint64(0)
			var turns []chat.Turn
			for i := range each {
				turns = append(turns, r.askIn(s, fmt.Sprintf("q%d", i), fmt.Sprintf("%d of %d", i, p)))
			}
			for i, turn := range turns {
				out := r.outcome(turn)
				if want := fmt.Sprintf("answer to: %d of %d", i, p); out.Reply.Text != want {
					t.Errorf("%s: %q, want %q", turn, out.Reply.Text, want)
				}
				seq := out.Records[len(out.Records)-1].Seq
				if seq <= last {
					t.Errorf("%s was answered out of order", turn)
				}
				last = seq
			}
		})
	}
	wg.Wait()
	require.Equal(t, people*each, r.model.Count(), "nothing was answered twice")
}
