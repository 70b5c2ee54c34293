package gateway

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
)

func after(seq uint64) string { return url.Values{"after": {strconv.FormatUint(seq, 10)}}.Encode() }

// A client that goes away after any frame of an answer and comes back, to the same gateway or another, during the answer
// or after it, has everything once.
func TestReconnectAtEveryPointOfAnAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.gate()
	const pieces = 6
	var want strings.Builder
	for i := range pieces {
		fmt.Fprintf(&want, "piece %d. ", i+1)
	}
	total := pieces + 3 // question, pieces, answer, end
	for point := 1; point <= total; point++ {
		for _, while := range []string{"during", "after"} {
			for _, base := range []string{r.gates[0].url, r.gates[1].url} {
				id := fmt.Sprintf("m-%d-%s-%d", point, while, len(r.brain.questions()))
				goOn := make(chan struct{})
				r.brain.answerWith(func(tk *talk) {
					stream := tk.turn.ID + "-1-1"
					for i := range pieces {
						if i == pieces/2 && while == "during" {
							<-goOn
						}
						tk.delta(stream, i+1, fmt.Sprintf("piece %d. ", i+1))
					}
					tk.answer(want.String(), stream, pieces)
				})
				c := r.admin.connect("")
				c.say(id, "go")
				var frames []seen
				before := point
				if while == "during" {
					before = min(point, 1+pieces/2)
				}
				for len(frames) < before {
					frames = append(frames, c.next())
				}
				c.close()
				if while == "after" {
					// All of it is in the log before the client is back.
					w := r.admin.connect(after(frames[0].Seq))
					if before < total {
						w.turn(id)
					}
					w.close()
				}
				back := r.admin.connectAt(base, after(frames[len(frames)-1].Seq))
				close(goOn)
				if before < total {
					frames = append(frames, back.turn(id)...)
				}
				text, types := chunks(frames)
				where := fmt.Sprintf("%s: %+v", id, frames)
				require.Equal(t, want.String(), text, where)
				require.Equal(t, pieces, types["CHAT_STREAM"], where)
				require.Equal(t, 2, types["CHAT"], where)
				require.Equal(t, 1, types["CHAT_STREAM_END"], where)
				for i := 1; i < len(frames); i++ {
					require.GreaterOrEqual(t, frames[i].Seq, frames[i-1].Seq, where)
				}
				require.NotZero(t, frames[len(frames)-2].ReplyTo, where)
				back.close()
				// A gateway that is a little behind would show the next client this answer, and hold it for its pieces.
				_, delta, err := r.bus.Bounds(t.Context(), bus.DeltaStream)
				require.NoError(t, err)
				for _, g := range r.gates {
					require.Eventually(t, func() bool {
						g.hub.mu.Lock()
						defer g.hub.mu.Unlock()
						return g.hub.at.chat >= frames[len(frames)-2].ID && g.hub.at.delta >= delta && len(g.hub.people) == 0
					}, patience, time.Millisecond)
				}
			}
		}
	}
}

func TestWhatWasMissedWhileAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.admin.connect("")
	c.say("m1", "one")
	frames := c.turn("m1")
	c.close()
	for i := range 5 {
		res := r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": "more", "local_id": fmt.Sprint("x", i), "wait": 60})
		require.Equal(t, 200, res.status, res.text())
	}
	back := r.admin.connect(after(frames[len(frames)-2].Seq))
	missed := back.turn("x4")
	_, types := chunks(missed)
	// The end of the first answer's stream has the seq of that answer: it is told (again).
	require.Equal(t, map[string]int{"CHAT": 10, "CHAT_STREAM": 10, "CHAT_STREAM_END": 6}, types)
	back.silent()
	// From the very beginning.
	all := r.admin.connect(after(0))
	_, types = chunks(all.turn("x4"))
	require.Equal(t, map[string]int{"CHAT": 12, "CHAT_STREAM": 12, "CHAT_STREAM_END": 6}, types)
}

// What is asked while a client catches up must not show after the beginning of its answer: CHAT and DELTA are read one
// after the other.
func TestAQuestionThatComesWhileCatchingUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.admin.connect("")
	c.say("m1", "one")
	first := c.turn("m1")
	_, before, err := r.bus.Bounds(t.Context(), bus.ChatStream)
	require.NoError(t, err)
	c.say("m2", "two")
	c.turn("m2")
	hub := r.gates[0].hub
	from, err := parseCursor(strconv.FormatUint(first[len(first)-1].Seq, 10))
	require.NoError(t, err)
	_, _, err = hub.missed(t.Context(), r.admin.id, &from, before)
	require.ErrorIs(t, err, errAskedMeanwhile)
	_, now, err := r.bus.Bounds(t.Context(), bus.ChatStream)
	require.NoError(t, err)
	_, steps, err := hub.missed(t.Context(), r.admin.id, &from, now)
	require.NoError(t, err)
	require.NotEmpty(t, steps)
}

func TestTooMuchMissedIsAGap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.brain.answerWith(func(tk *talk) {
		pieces := make([]string, 0, 1500)
		for i := range 1500 {
			pieces = append(pieces, fmt.Sprint(i, " "))
		}
		tk.stream(pieces...)
	})
	c := r.admin.connect("")
	for i := range 2 {
		res := r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": "much", "local_id": fmt.Sprint("x", i), "wait": 60})
		require.Equal(t, 200, res.status, res.text())
	}
	c.close()
	back := r.admin.connect(after(0))
	f := back.next()
	require.Equal(t, "GAP", f.Type)
	require.NotZero(t, f.Seq)
	r.brain.answerWith(func(tk *talk) { tk.stream("fine") })
	back.say("m2", "go on")
	require.Len(t, back.turn("m2"), 4)
	// A cursor of another log is a gap as well; what is none is said to be none.
	other := r.admin.connect(after(cursor{chat: 1 << 30}.number()))
	require.Equal(t, "GAP", other.next().Type)
	for _, bad := range []string{"x", "-1", "9007199254740992", "1.5"} {
		c := r.admin.connect("after=" + bad)
		require.Equal(t, "ERROR", c.next().Type)
		c.silent()
	}
}

func TestAnAnswerWaitsForItsDeltasButNotForEver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.brain.answerWith(func(tk *talk) {
		stream := tk.turn.ID + "-1-1"
		tk.delta(stream, 1, "a")
		go func() {
			time.Sleep(holdFor / 5) // the answer is in the log by then; the others come late
			tk.delta(stream, 2, "b")
			tk.delta(stream, 3, "c")
		}()
		tk.answer("abc", stream, 3)
	})
	c := r.admin.connect("")
	c.say("m1", "late")
	frames := c.turn("m1")
	text, _ := chunks(frames)
	require.Equal(t, "abc", text)
	require.Len(t, frames, 6)

	r.brain.answerWith(func(tk *talk) {
		stream := tk.turn.ID + "-1-1"
		tk.delta(stream, 1, "a")
		tk.answer("abc", stream, 3) // two are lost
	})
	began := time.Now()
	c.say("m2", "lost")
	frames = c.turn("m2")
	require.Len(t, frames, 4)
	require.Equal(t, "abc", frames[2].Payload)
	require.GreaterOrEqual(t, time.Since(began), holdFor-50*time.Millisecond)
}

func TestOtherConversationsDoNotWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var thread struct{ ID int64 }
	r.call(r.admin, "POST", "/api/chat/threads", map[string]any{"title": "second"}).into(&thread)
	require.Equal(t, []string{"m2", "m1"}, r.answeredAfterALoss(thread.ID))
}

func TestTheNextAnswerOfAConversationWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.Equal(t, []string{"m1", "m2"}, r.answeredAfterALoss(0))
}

// answeredAfterALoss gives the order of two answers; of the first a delta is lost, and the second is asked in a conversation
// of one's choice.
func (r *rig) answeredAfterALoss(conversation int64) (order []string) {
	held := make(chan struct{})
	r.brain.answerWith(func(tk *talk) {
		stream := tk.turn.ID + "-1-1"
		if tk.asked.GetText() == "slow" {
			tk.delta(stream, 1, "a")
			tk.answer("ab", stream, 2)
			close(held)
			return
		}
		<-held
		tk.stream("quick")
	})
	c := r.admin.connect("")
	c.say("m1", "slow")
	c.send(map[string]any{"type": "CHAT", "local_id": "m2", "payload": "quick", "conversation_id": conversation})
	for len(order) < 2 {
		if f := c.next(); f.Type == "CHAT_STREAM_END" {
			order = append(order, f.ReplyToLocalID)
		}
	}
	return order
}

func TestAnAbandonedStreamEndsFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	answered := make(chan struct{})
	r.brain.answerWith(func(tk *talk) {
		one, two, three := tk.turn.ID+"-1-1", tk.turn.ID+"-1-2", tk.turn.ID+"-2-1"
		tk.delta(one, 1, "half an ans")
		tk.abandon(one, 2)
		tk.delta(two, 1, "left open by one who died")
		tk.delta(three, 1, "an answer")
		tk.answer("an answer", three, 1)
		<-answered
		tk.delta(two, 2, "and a word of the dead") // too late
	})
	c := r.admin.connect("")
	c.say("m1", "x")
	var got []string
	for len(got) < 8 {
		f := c.next()
		got = append(got, f.Type+" "+strings.TrimPrefix(f.StreamID, "m1"))
	}
	require.Equal(t, []string{
		"CHAT ", "CHAT_STREAM -1-1", "CHAT_STREAM_END -1-1", "CHAT_STREAM -1-2", "CHAT_STREAM -2-1",
		"CHAT_STREAM_END -1-2", "CHAT -2-1", "CHAT_STREAM_END -2-1",
	}, got)
	_, before, err := r.bus.Bounds(t.Context(), "DELTA")
	require.NoError(t, err)
	close(answered)
	require.Eventually(t, func() bool {
		_, last, err := r.bus.Bounds(t.Context(), "DELTA")
		h := r.gates[0].hub
		h.mu.Lock()
		defer h.mu.Unlock()
		return err == nil && last == before+1 && h.at.delta == last
	}, patience, time.Millisecond)
	c.silent()
	back := r.admin.connect(after(0))
	var again []string
	for len(again) == 0 || again[len(again)-1] != got[7] {
		f := back.next()
		again = append(again, f.Type+" "+strings.TrimPrefix(f.StreamID, "m1"))
	}
	// The word of the dead may be told again: its stream ends before the answer all the same.
	require.Equal(t, got[:5], again[:5])
	require.Equal(t, got[5:], again[len(again)-3:])
	require.LessOrEqual(t, len(again), 9)
	back.silent()
}

// The order of what is told again, over any interleaving.
func TestMergeKeepsTurnsInOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		base := time.Unix(1000, 0)
		skew := func(name string) time.Duration {
			return time.Duration(rapid.IntRange(-5, 5).Draw(t, name)) * time.Millisecond
		}
		var chats, deltas []*event
		now := base
		tick := func() { now = now.Add(3 * time.Millisecond) }
		for i := range rapid.IntRange(1, 6).Draw(t, "turns") {
			turn := chat.Turn{Session: chat.Session{Person: 1, Thread: int64(i + 1)}, ID: fmt.Sprint("t", i)}
			ev := event{turn: turn, key: turn.String(), localID: turn.ID}
			asked, answer := ev, ev
			asked.kind, asked.seq, asked.at = eventAsked, uint64(len(chats)+1), now.Add(skew("asked"))
			chats = append(chats, &asked)
			n := rapid.IntRange(0, 4).Draw(t, "deltas")
			for j := range n {
				tick()
				d := ev
				d.kind, d.seq, d.at, d.streamID, d.index = eventDelta, uint64(len(deltas)+1), now.Add(skew("delta")), "s", int32(j+1)
				deltas = append(deltas, &d)
			}
			tick()
			answer.kind, answer.seq, answer.at, answer.streamID, answer.deltas = eventAnswer, uint64(len(chats)+1), now.Add(skew("answer")), "s", int32(n)
			chats = append(chats, &answer)
			tick()
		}
		steps := merge(chats, deltas, 0)
		require.Len(t, steps, len(chats)+len(deltas))
		var at cursor
		asked, answered := map[string]bool{}, map[string]bool{}
		for _, s := range steps {
			next := at.max(s.at())
			require.Equal(t, at.chat+at.delta+1, next.chat+next.delta, "each stream in its own order")
			at = next
			switch s.event.kind {
			case eventAsked:
				asked[s.event.key] = true
			case eventDelta:
				require.True(t, asked[s.event.key])
				require.False(t, answered[s.event.key])
			case eventAnswer:
				answered[s.event.key] = true
			}
		}
	})
}

func TestCursorsComeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := cursor{rapid.Uint64Range(0, 1<<32-1).Draw(t, "chat"), rapid.Uint64Range(0, 1<<40).Draw(t, "delta")}
		got, err := parseCursor(strconv.FormatUint(c.number(), 10))
		require.NoError(t, err)
		last := c.delta + rapid.Uint64Range(0, deltaMask).Draw(t, "newer")
		require.Equal(t, c, got.resolve(last))
	})
	// The stream began anew: the position is not in it.
	require.Equal(t, cursor{chat: 5}, cursor{chat: 5, delta: 4000}.resolve(100))
}

func FuzzCursor(f *testing.F) {
	f.Add("0")
	f.Add("9007199254740991")
	f.Add("-1")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := parseCursor(s)
		if err == nil {
			require.LessOrEqual(t, c.number(), uint64(maxCursor))
		}
	})
}
