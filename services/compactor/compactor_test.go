package compactor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/bus/bustest"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/memory"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted is a model that answers what answer says.
type scripted struct {
	mu     sync.Mutex
	asked  []string
	answer func(n int, system, user string) (string, error)
}

func (m *scripted) Complete(ctx context.Context, system, user string, _ int) (Answer, error) {
	m.mu.Lock()
	m.asked = append(m.asked, user)
	n, answer := len(m.asked), m.answer
	m.mu.Unlock()
	text, err := answer(n, system, user)
	return Answer{Text: text, Model: "scripted", PromptTokens: 100, CompletionTokens: 20}, err
}

func (m *scripted) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.asked)
}

// summary is one with a line in each of two parts.
func summary(goal, fact string) string {
	return fmt.Sprintf("## Goals\n- %s\n## Facts and constraints\n- %s\n## Decisions and done work\nnone\n## Open questions\nnone\n"+
		"## Results of agents and commands\nnone\n## People and names\nnone\n", goal, fact)
}

type rig struct {
	t   testing.TB
	ctx context.Context
	bus *bus.Bus
	now time.Time
	n   int
}

func newRig(t testing.TB) *rig {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return &rig{t: t, ctx: ctx, bus: bustest.Start(t), now: time.Now()}
}

func (r *rig) service(m Model) *Service {
	r.t.Helper()
	s, err := New(Deps{Bus: r.bus, Model: m, Clock: func() time.Time { return r.now },
		Settings: Settings{Policy: memory.Policy{Messages: 24, Chars: 12_000, Tokens: 8000, Recent: 4}, Window: 8000}})
	require.NoError(r.t, err)
	return s
}

var alice = chat.Session{Person: 1, Thread: 7}

// say appends a whole turn, open when answer is empty, and gives the sequence of its question.
func (r *rig) say(question, answer string) int64 {
	r.t.Helper()
	r.n++
	turn := chat.Turn{Session: alice, ID: fmt.Sprintf("m%d", r.n)}
	data, err := chat.Encode(&butlerv1.ChatAsked{Text: question})
	require.NoError(r.t, err)
	asked, err := r.bus.Append(r.ctx, bus.NewEvent(chat.TypeAsked, r.bus.Source(), turn.Subject(chat.Asked), data), bus.Expect{Filter: turn.Filter()})
	require.NoError(r.t, err)
	if answer != "" {
		reply, err := chat.Encode(&butlerv1.ChatReply{Text: answer})
		require.NoError(r.t, err)
		data, err := journal.Record{Kind: journal.KindEnd, End: &journal.End{Status: chat.Answered, Result: reply}}.Encode()
		require.NoError(r.t, err)
		_, err = r.bus.Append(r.ctx, bus.NewEvent(chat.TypeAnswer, r.bus.Source(), turn.Subject(chat.Answer), data),
			bus.Expect{Filter: turn.Filter(), Seq: asked})
		require.NoError(r.t, err)
	}
	return int64(asked)
}

// talk appends turns of about 100 tokens each.
func (r *rig) talk(turns int) (asked []int64) {
	for range turns {
		asked = append(asked, r.say(fmt.Sprintf("question %d %s", r.n, strings.Repeat("about this ", 20)), strings.Repeat("an answer ", 25)))
	}
	return asked
}

func (r *rig) summaries() []bus.Stored {
	r.t.Helper()
	events, err := r.bus.Load(r.ctx, bus.ChatStream, alice.StoredSummary(), 0, 0)
	require.NoError(r.t, err)
	return events
}

func (r *rig) compact(s *Service) *butlerv1.CompactResponse {
	r.t.Helper()
	res, err := s.Compact(r.ctx, &butlerv1.CompactRequest{Person: alice.Person, Thread: alice.Thread, By: &butlerv1.Actor{Id: 1}})
	require.NoError(r.t, err)
	return res
}

func TestCompactShowUndo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := &scripted{answer: func(n int, _, _ string) (string, error) { return summary(fmt.Sprint("goal ", n), "fact"), nil }}
	s := r.service(m)
	require.False(t, r.compact(s).Compacted, "there is nothing")
	asked := r.talk(6)
	r.say("still being answered", "")
	later := r.talk(1)

	first := r.compact(s)
	require.True(t, first.Compacted)
	got := first.Summary.Summary
	require.Equal(t, asked[4], got.CoversTo, "the newest turn stays, and all from the open one on")
	require.Zero(t, got.StartedFrom)
	require.EqualValues(t, 5, got.Receipt.Turns)
	require.EqualValues(t, 10, got.Receipt.Messages)
	require.Equal(t, memory.Asked, got.Receipt.Reason)
	require.Less(t, got.Receipt.TokensAfter, got.Receipt.TokensBefore)
	require.Contains(t, m.asked[0], "question 0")
	require.NotContains(t, m.asked[0], "still being answered")
	require.False(t, r.compact(s).Compacted, "nothing more to cover, and the model is not asked")
	require.Equal(t, 1, m.count())

	shown, err := s.ShowMemory(r.ctx, &butlerv1.ShowMemoryRequest{Person: 1, Thread: 7})
	require.NoError(t, err)
	require.Equal(t, first.Summary.Seq, shown.Summary.Seq)
	require.EqualValues(t, 2, shown.RecentMessages)
	require.Positive(t, shown.RecentTokens)

	// The open turn ends: the chain goes on from the first summary.
	_ = later
	turn := chat.Turn{Session: alice, ID: "m7"}
	last, _, err := r.bus.Last(r.ctx, bus.ChatStream, turn.Filter())
	require.NoError(t, err)
	reply, _ := chat.Encode(&butlerv1.ChatReply{Text: "late"})
	data, err := journal.Record{Kind: journal.KindEnd, End: &journal.End{Status: chat.Answered, Result: reply}}.Encode()
	require.NoError(t, err)
	_, err = r.bus.Append(r.ctx, bus.NewEvent(chat.TypeAnswer, r.bus.Source(), turn.Subject(chat.Answer), data), bus.Expect{Filter: turn.Filter(), Seq: last.Seq})
	require.NoError(t, err)
	r.talk(4)
	second := r.compact(s)
	require.True(t, second.Compacted)
	require.Equal(t, first.Summary.Seq, second.Summary.Summary.StartedFrom)
	require.Equal(t, got.CoversTo, second.Summary.Summary.CoversAfter)
	require.Contains(t, m.asked[1], "goal 1", "rolled: the old summary and the new turns")
	require.NotContains(t, m.asked[1], "question 0")
	require.Contains(t, m.asked[1], "still being answered")

	undo := func() (*butlerv1.UndoCompactionResponse, error) {
		return s.UndoCompaction(r.ctx, &butlerv1.UndoCompactionRequest{Person: 1, Thread: 7})
	}
	res, err := undo()
	require.NoError(t, err)
	require.Equal(t, got.CoversTo, res.Summary.Summary.CoversTo)
	require.Equal(t, second.Summary.Seq, res.Summary.Summary.Undoes)
	require.Contains(t, memory.Text(res.Summary.Summary), "goal 1")
	res, err = undo()
	require.NoError(t, err)
	require.Zero(t, res.Summary.Summary.CoversTo)
	require.Empty(t, memory.Text(res.Summary.Summary))
	_, err = undo()
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
	require.True(t, r.compact(s).Compacted, "and it begins anew")
}

// Whoever appends second loses, and what it covers stays covered once.
func TestTwoCompactors(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.talk(10)
	arrived, release := make(chan struct{}, 2), make(chan struct{})
	m := &scripted{answer: func(int, string, string) (string, error) {
		arrived <- struct{}{}
		<-release
		return summary("goal", "fact"), nil
	}}
	one, two := r.service(m), r.service(m)
	var wg sync.WaitGroup
	for _, s := range []*Service{one, two} {
		wg.Go(func() { _, _ = s.compact(r.ctx, alice, memory.ByChars, nil) })
	}
	<-arrived
	<-arrived
	r.talk(5) // people go on meanwhile
	close(release)
	wg.Wait()
	require.Len(t, r.summaries(), 1)
	done := testutil.ToFloat64(one.metrics.done.WithLabelValues(resultDone)) + testutil.ToFloat64(two.metrics.done.WithLabelValues(resultDone))
	fenced := testutil.ToFloat64(one.metrics.done.WithLabelValues(resultFenced)) + testutil.ToFloat64(two.metrics.done.WithLabelValues(resultFenced))
	require.InDelta(t, 1, done, 0)
	require.InDelta(t, 1, fenced, 0)
}

func TestFailuresKeepTheOldState(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.talk(10)
	for name, tc := range map[string]struct {
		answer string
		err    error
		calls  int
	}{
		"error":     {"", errors.New("500"), 1},
		"empty":     {" ", nil, 2},
		"no parts":  {"I would rather not.", nil, 2},
		"all empty": {strings.NewReplacer("- x", "none", "- y", "None.").Replace(summary("x", "y")), nil, 2},
		"too long":  {summary(strings.Repeat("many words ", 3000), "y"), nil, 2},
		"garbage":   {summary(strings.Repeat("\uFFFD", 500), "y"), nil, 2},
		"a loop":    {summary("x", strings.Repeat("again\n- ", 300)), nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &scripted{answer: func(int, string, string) (string, error) { return tc.answer, tc.err }}
			s := r.service(m)
			_, err := s.compact(r.ctx, alice, memory.ByMessages, nil)
			require.Error(t, err)
			require.Equal(t, tc.calls, m.count(), "bounded in cost")
			_, err = s.compact(r.ctx, alice, memory.ByMessages, nil)
			require.NoError(t, err)
			require.Equal(t, tc.calls, m.count(), "not tried again at once")
			require.InDelta(t, 1, testutil.ToFloat64(s.metrics.failing), 0)
			require.Empty(t, r.summaries())
		})
	}
}

func TestPatienceEnds(t *testing.T) {
	t.Parallel()
	p := newPatience()
	now := time.Unix(0, 0)
	require.Zero(t, p.left(now, alice))
	for range 50 {
		p.failed(now, alice, false)
	}
	require.Equal(t, lastWait, p.left(now, alice))
	require.Zero(t, p.left(now, chat.Session{Person: 2, Thread: 1}))
	p.failed(now, alice, true)
	require.Equal(t, firstWait, p.left(now, chat.Session{Person: 2, Thread: 1}))
	p.succeeded(alice)
	require.Zero(t, p.left(now, alice))
}

// A compactor that ends while the model answers has changed nothing. butler-brain asks again before the item comes again.
func TestItemsOfWork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.talk(10)
	ask := func() {
		data, err := chat.Encode(&butlerv1.WorkCompact{Reason: memory.ByMessages})
		require.NoError(t, err)
		_, err = r.bus.Publish(r.ctx, bus.WorkStream, bus.NewEvent(chat.TypeCompact, r.bus.Source(), alice.Compact(), data))
		require.NoError(t, err)
	}
	ask()
	asked := make(chan struct{}, 10)
	killed, stop := context.WithCancel(r.ctx)
	require.NoError(t, r.service(&scripted{answer: func(int, string, string) (string, error) {
		stop() // the process ends while the model answers
		asked <- struct{}{}
		return "", killed.Err()
	}}).Run(killed))
	<-asked
	require.Empty(t, r.summaries())
	ask()

	good := &scripted{answer: func(int, string, string) (string, error) { return summary("goal", "fact"), nil }}
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan error, 1)
	s := r.service(good)
	go func() { done <- s.Run(ctx) }()
	require.Eventually(t, func() bool { return len(r.summaries()) == 1 }, 60*time.Second, 10*time.Millisecond)
	require.NoError(t, s.Ready(r.ctx))
	cancel()
	require.NoError(t, <-done)
}

func TestDeletedConversationDoesNotComeBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.talk(10)
	m := &scripted{answer: func(int, string, string) (string, error) {
		_, err := r.bus.Erase(r.ctx, bus.ChatStream, alice.Filter())
		return summary("goal", "fact"), err
	}}
	_, err := r.service(m).compact(r.ctx, alice, memory.ByChars, nil)
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
	require.Empty(t, r.summaries())
}

func TestHistoryLargerThanTheWindow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.talk(150) // about 15,000 tokens beside a window of 8,000
	r.say(strings.Repeat("one giant message ", 12_000), "read")
	r.talk(3)
	m := &scripted{answer: func(n int, _, user string) (string, error) {
		if len(user) > 8000*6 {
			return "", fmt.Errorf("context length exceeded: %d bytes", len(user))
		}
		return summary(fmt.Sprint("goal ", n), "fact"), nil
	}}
	s := r.service(m)
	for range 20 {
		if made, err := s.compact(r.ctx, alice, memory.ByTokens, nil); err == nil && made == nil {
			break
		} else {
			require.NoError(t, err)
		}
	}
	require.Greater(t, m.count(), 3)
	covered := int64(0)
	for _, ev := range r.summaries() {
		got := &butlerv1.ChatSummary{}
		require.NoError(t, chat.Decode(ev.Data, got))
		require.Equal(t, covered, got.CoversAfter, "one chain")
		require.Greater(t, got.CoversTo, covered)
		require.LessOrEqual(t, got.Receipt.Pieces, int32(mostPieces))
		covered = got.CoversTo
	}
	c, err := s.read(r.ctx, alice)
	require.NoError(t, err)
	require.Len(t, c.turns, 2, "all but the recent ones are covered")
}
