package brain

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/memory"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// summarise appends a summary as compactor does, and gives its sequence.
func (r *rig) summarise(s chat.Session, expect uint64, summary *butlerv1.ChatSummary) uint64 {
	r.t.Helper()
	data, err := chat.Encode(summary)
	require.NoError(r.t, err)
	seq, err := r.bus.Append(r.ctx, bus.NewEvent(chat.TypeSummary, r.bus.Source(), s.Summary(), data),
		bus.Expect{Filter: s.StoredSummary(), Seq: expect})
	require.NoError(r.t, err)
	return seq
}

func (r *rig) askedSeq(turn chat.Turn) int64 {
	r.t.Helper()
	ev, found, err := r.bus.Last(r.ctx, bus.ChatStream, turn.Stored(chat.Asked))
	require.NoError(r.t, err)
	require.True(r.t, found)
	return int64(ev.Seq)
}

// prompt gives the last prompt that the model saw, without the first message, which holds the time.
func (r *rig) prompt() []string {
	reqs := r.model.Requests()
	var out []string
	for _, m := range reqs[len(reqs)-1].Messages[1:] {
		out = append(out, m.Role+": "+m.Text)
	}
	return out
}

// until asks until the prompt satisfies done: what was written beside the turns is heard of soon, not at once.
func (r *rig) until(done func(prompt []string) bool) []string {
	r.t.Helper()
	for {
		r.outcome(r.ask("again"))
		if p := r.prompt(); done(p) {
			return p
		}
		require.NoError(r.t, r.ctx.Err())
	}
}

func TestSummaryAndPinsStandInThePrompt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.model.Default(modeltest.Text("ok"))
	one := r.start("one")
	var turns []chat.Turn
	for i := range 4 {
		turn := r.ask(fmt.Sprintf("question %d", i))
		r.outcome(turn)
		turns = append(turns, turn)
	}
	require.Equal(t, []string{"user: question 0", "assistant: ok", "user: question 1", "assistant: ok", "user: question 2", "assistant: ok",
		"user: question 3"}, r.prompt())

	pinned := r.outcome(r.ask("/remember The host is  web1"))
	require.Equal(t, "Pinned in this conversation: The host is  web1", pinned.Reply.Text)
	r.outcome(r.ask("and now?"))
	require.Contains(t, r.prompt()[0], "1. The host is  web1", "the very next prompt has it")
	listed := r.outcome(r.ask("/remember"))
	require.Contains(t, listed.Reply.Text, "1. The host is  web1")

	first := r.summarise(alice, 0, &butlerv1.ChatSummary{CoversTo: r.askedSeq(turns[1]),
		Parts: []*butlerv1.SummaryPart{{Name: memory.Goals, Text: "- know things"}}})
	p := r.until(func(p []string) bool { return strings.Contains(p[1], "know things") })
	require.Contains(t, p[0], "web1")
	require.Equal(t, "user: question 2", p[2], "covered turns are not told twice, the others all are")

	// Everything anew: the same prompt.
	before := r.prompt()
	one.stop()
	two := r.start("two")
	r.outcome(r.ask("again"))
	after := r.prompt()
	require.Equal(t, before, after[:len(before)])

	second := r.summarise(alice, first, &butlerv1.ChatSummary{CoversTo: r.askedSeq(turns[3]), CoversAfter: r.askedSeq(turns[1]), StartedFrom: int64(first),
		Parts: []*butlerv1.SummaryPart{{Name: memory.Goals, Text: "- know more"}}})
	p = r.until(func(p []string) bool { return strings.Contains(p[1], "know more") })
	require.Equal(t, "user: /remember The host is  web1", p[2])

	// An undo: what the summary before does not stand for is read again.
	r.summarise(alice, second, &butlerv1.ChatSummary{CoversTo: r.askedSeq(turns[1]), Undoes: int64(second),
		Parts: []*butlerv1.SummaryPart{{Name: memory.Goals, Text: "- know things"}}})
	p = r.until(func(p []string) bool { return strings.Contains(p[1], "know things") })
	require.Equal(t, []string{"user: question 2", "assistant: ok", "user: question 3", "assistant: ok", "user: /remember The host is  web1"}, p[2:7])

	forgotten := r.outcome(r.ask("/forget 1"))
	require.Equal(t, "Forgotten: The host is  web1", forgotten.Reply.Text)
	r.outcome(r.ask("and now?"))
	require.NotContains(t, r.prompt()[0], "pinned in this conversation, word for word")
	require.Contains(t, r.prompt()[0], "know things")
	require.Equal(t, "refused", r.outcome(r.ask("/forget 1")).Reason)
	two.stop()
}

// A summary of a session that another replica's brain wrote answers of does not make a turn disappear.
func TestACoveredTurnThatIsOpenIsAnswered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.model.Default(modeltest.Text("ok"))
	turn := r.ask("a question that waits")
	r.summarise(alice, 0, &butlerv1.ChatSummary{CoversTo: r.askedSeq(turn), Parts: []*butlerv1.SummaryPart{{Name: memory.Goals, Text: "- lies"}}})
	r.start("one")
	require.Equal(t, "ok", r.outcome(turn).Reply.Text)
}

func TestSummaryIsAskedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.model.Default(modeltest.Text("ok"))
	r.start("one", func(d *Deps) { d.Settings.Compaction = memory.Policy{Messages: 6, Recent: 2} })
	items := func() []bus.Stored {
		events, err := r.bus.Load(r.ctx, bus.WorkStream, chat.AllCompact, 0, 0)
		require.NoError(t, err)
		return events
	}
	for range 3 {
		r.outcome(r.ask("question"))
	}
	require.Empty(t, items())
	r.outcome(r.ask("question"))
	require.Eventually(t, func() bool { return len(items()) == 1 }, 20*time.Second, 5*time.Millisecond)
	require.Equal(t, alice.Compact(), items()[0].Subject)
	for range askAgain - 1 {
		r.outcome(r.ask("question"))
	}
	require.Len(t, items(), 1, "it is not asked for again at once")
	r.outcome(r.ask("question"))
	require.Eventually(t, func() bool { return len(items()) == 2 }, 20*time.Second, 5*time.Millisecond)
}

type fakeCompactor struct {
	butlerv1.CompactorServiceClient
	answer *butlerv1.CompactResponse
	err    error
}

func (f *fakeCompactor) Compact(context.Context, *butlerv1.CompactRequest, ...grpc.CallOption) (*butlerv1.CompactResponse, error) {
	return f.answer, f.err
}

func TestCompactByMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := &fakeCompactor{answer: &butlerv1.CompactResponse{}}
	r.start("one", func(d *Deps) { d.Compactor = c })
	require.Contains(t, r.outcome(r.ask("/compact")).Reply.Text, "nothing to compact")
	c.answer = &butlerv1.CompactResponse{Compacted: true, Summary: &butlerv1.StoredSummary{Summary: &butlerv1.ChatSummary{
		Receipt: &butlerv1.SummaryReceipt{Messages: 34, TokensBefore: 8210, TokensAfter: 640}}}}
	require.Contains(t, r.outcome(r.ask(" /compact ")).Reply.Text, "a summary of 640 tokens stands for 34 older messages now, which took 8210 tokens")
	c.err = context.DeadlineExceeded
	require.Equal(t, "memory_unavailable", r.outcome(r.ask("/compact")).Reason)
	require.Zero(t, r.model.Count(), "the model is not asked")
}
