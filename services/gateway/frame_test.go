package gateway

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// The shapes that the gateway decodes by hand are those of the messages.
func TestEventsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	turn := chat.Turn{Session: chat.Session{Person: 7, Thread: 12}, ID: "m1"}
	now := time.Unix(1700000000, 5).UTC()
	value, err := structpb.NewValue(map[string]any{"end": map[string]any{"status": "no"}, "text": "no"})
	require.NoError(t, err)
	asked, err := chat.Encode(&butlerv1.ChatAsked{
		Sender: &butlerv1.Actor{Id: 7, Name: "ann", Role: "MEMBER"}, ConversationId: 12, LocalId: "m1", Text: "hé\u0001<", Channel: "cli", Language: "zh",
	})
	require.NoError(t, err)
	ev, err := decodeChat(bus.Stored{Event: bus.Event{Type: chat.TypeAsked, Subject: turn.Stored(chat.Asked), Data: asked}, Seq: 5, At: now})
	require.NoError(t, err)
	require.Equal(t, &event{
		kind: eventAsked, seq: 5, at: now, turn: turn, key: "7.12.m1", text: "hé\u0001<", localID: "m1", sender: actor{7, "ann", "MEMBER"},
	}, ev)
	answer, err := chat.Encode(&butlerv1.ChatAnswer{
		Worker: "w", Entries: []*butlerv1.JournalEntry{{Kind: "outcome", Key: "model-1", Value: value}},
		End: &butlerv1.ChatOutcome{Status: "failed", Reason: "timeout", Result: &butlerv1.ChatReply{
			Text: "sorry", StreamId: "m1-1-1", Deltas: 4, ConversationId: 12, ReplyToLocalId: "m1", Model: "big",
			Usage: &butlerv1.Usage{PromptTokens: 1 << 40, CompletionTokens: 2, ModelCalls: 3, ToolCalls: 4},
		}},
	})
	require.NoError(t, err)
	ev, err = decodeChat(bus.Stored{Event: bus.Event{Type: chat.TypeAnswer, Subject: turn.Stored(chat.Answer), Data: answer}, Seq: 6, At: now})
	require.NoError(t, err)
	require.Equal(t, &event{
		kind: eventAnswer, seq: 6, at: now, turn: turn, key: "7.12.m1", text: "sorry", localID: "m1", streamID: "m1-1-1",
		status: "failed", reason: "timeout", model: "big", deltas: 4, usage: usage{1 << 40, 2, 3, 4},
	}, ev)
	delta, err := chat.Encode(&butlerv1.ChatDelta{StreamId: "m1-1-1", Index: 2, Text: "x", Turn: "m1", ConversationId: 12, ReplyToLocalId: "m1"})
	require.NoError(t, err)
	ev, err = decodeDelta(bus.Stored{Event: bus.Event{Type: chat.TypeDelta, Subject: turn.Delta(), Data: delta}, Seq: 7, At: now})
	require.NoError(t, err)
	require.Equal(t, &event{
		kind: eventDelta, seq: 7, at: now, turn: turn, key: "7.12.m1", text: "x", localID: "m1", streamID: "m1-1-1", index: 2,
	}, ev)
	// Steps and signals are of no concern.
	ev, err = decodeChat(bus.Stored{Event: bus.Event{Type: chat.TypeStep, Subject: turn.Stored(chat.Step)}})
	require.NoError(t, err)
	require.Nil(t, ev)
}

// Words about a command come on the stream of its approval, numbered 0: they are marked, and its output is not.
func TestANoticeIsMarked(t *testing.T) {
	t.Parallel()
	id := "6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f57"
	turn := chat.Turn{Session: chat.Session{Person: 7, Thread: 12}, ID: "m1"}
	for name, c := range map[string]struct {
		delta  *butlerv1.ChatDelta
		notice any
	}{
		"words":            {&butlerv1.ChatDelta{StreamId: id, Text: "Waiting for approval **K7QF**"}, true},
		"output":           {&butlerv1.ChatDelta{StreamId: id, Index: 1, Text: "total 0"}, nil},
		"of an answer":     {&butlerv1.ChatDelta{StreamId: "m1-1-1", Index: 1, Text: "Let me"}, nil},
		"an answer from 0": {&butlerv1.ChatDelta{StreamId: "m1-1-1", Text: "Let me"}, nil},
	} {
		c.delta.Turn, c.delta.ConversationId, c.delta.ReplyToLocalId = "m1", 12, "m1"
		data, err := chat.Encode(c.delta)
		require.NoError(t, err)
		ev, err := decodeDelta(bus.Stored{Event: bus.Event{Type: chat.TypeDelta, Subject: turn.Delta(), Data: data}, Seq: 7})
		require.NoError(t, err)
		var got map[string]any
		require.NoError(t, json.Unmarshal(writer{butler: butlerActor}.frame(ev, cursor{5, 6}).body, &got))
		require.Equal(t, c.notice, got["notice"], name)
		require.Equal(t, c.delta.GetText(), got["payload"], name)
	}
}

func TestFramesChangeTheirCursorOnly(t *testing.T) {
	t.Parallel()
	w := writer{butler: butlerActor}
	ev := &event{kind: eventDelta, seq: 3, at: time.Unix(0, 0), text: "x\"\\\u2028</script>", streamID: "s", turn: chat.Turn{Session: chat.Session{Person: 1, Thread: 2}, ID: "m"}}
	f := w.frame(ev, cursor{5, 6})
	g := f.withCursor(cursor{7, 8})
	var a, b map[string]any
	require.NoError(t, json.Unmarshal(f.body, &a))
	require.NoError(t, json.Unmarshal(g.body, &b))
	require.EqualValues(t, cursor{5, 6}.number(), a["seq"])
	require.EqualValues(t, cursor{7, 8}.number(), b["seq"])
	require.Equal(t, ev.text, a["payload"])
	delete(a, "seq")
	delete(b, "seq")
	require.Equal(t, a, b)
	require.NotContains(t, string(f.body), "</script")
	require.Same(t, f, f.withCursor(cursor{5, 6}))
}

func FuzzStringsInFrames(f *testing.F) {
	f.Add("plain")
	f.Add("\x00\x1f\x7f\"\\\n\r\t<>&\u2028\u2029\xff\xf0\x9f\x98\x80")
	f.Fuzz(func(t *testing.T, s string) {
		b := appendString(nil, s)
		require.True(t, utf8.Valid(b))
		require.False(t, bytes.ContainsAny(b, "\n\r<"))
		var got string
		require.NoError(t, json.Unmarshal(b, &got), "%q", b)
		require.Equal(t, strings.ToValidUTF8(s, "\ufffd"), collapse(s, got))
	})
}

// collapse makes got comparable: ToValidUTF8 writes one replacement for a run of invalid bytes, appendString one for each.
func collapse(s, got string) string {
	if utf8.ValidString(s) {
		return got
	}
	return strings.ToValidUTF8(s, "\ufffd")
}

func FuzzInboundFrame(f *testing.F) {
	f.Add([]byte(`{"type":"CHAT","payload":"x","target_id":2,"local_id":"m"}`))
	f.Add([]byte(`{"type":"STOP","conversation_id":"12"}`))
	f.Add([]byte(`{"type":"CHAT","payload":{"a":null}}`))
	f.Add([]byte(`{"type":"AUTH_RESPONSE","payload":{"action_id":"x","approved":true}}`))
	f.Add([]byte(`{"type":"AUTH_RESPONSE","code":"K7QF","approved":false,"payload":"x"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		in, text, err := decodeInbound(data)
		if err != nil {
			return
		}
		require.Contains(t, []string{"CHAT", "STOP", "AUTH_RESPONSE"}, in.Type)
		if said, err := in.withPayload(in.Payload); err == nil {
			if v, err := said.verdict("websocket", "en"); err == nil && v.check() == nil {
				require.True(t, v.approved == *said.Approved && (v.command == "" || v.approved))
			}
		}
		if checkText(text) == nil {
			require.True(t, utf8.ValidString(text))
			require.NotContains(t, text, "\x00")
		}
	})
}

func FuzzApprovalEvents(f *testing.F) {
	id := "6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f57"
	f.Add("butler.approval."+id, approval.TypeApproval, []byte(`{"id":"`+id+`","status":"pending","risk":{"reasons":[{}]},"policy":{"action":"ask"}}`))
	f.Add("butler.approval-use.h."+id, approval.TypeUse, []byte(`{"id":"`+id+`","status":"ended","outcome":{"output":"x"}}`))
	f.Fuzz(func(t *testing.T, subject, typ string, data []byte) {
		a, use, err := decodeApproval(bus.Stored{Event: bus.Event{Subject: subject, Type: typ, Data: data}})
		if err != nil {
			return
		}
		require.True(t, a == nil != (use == nil))
		if a != nil {
			frame := writer{butler: butlerActor}.approval(frameAuthStatus, cardOf(a, use, true), a.GetRequester().GetId(), a, time.Now())
			require.True(t, json.Valid(frame.body), string(frame.body))
		}
	})
}

func FuzzEvents(f *testing.F) {
	f.Add("butler.chat.25.1.2.m.asked", chat.TypeAsked, []byte(`{"sender":{"id":"1"},"local_id":"m"}`))
	f.Add("butler.chat.25.1.2.m.answer", chat.TypeAnswer, []byte(`{"end":{"result":{"reply_to_local_id":"m","deltas":-1}}}`))
	f.Add("butler.delta.1.2", chat.TypeDelta, []byte(`{"turn":"m","stream_id":"s","reply_to_local_id":"m"}`))
	f.Fuzz(func(t *testing.T, subject, typ string, data []byte) {
		s := bus.Stored{Event: bus.Event{Subject: subject, Type: typ, Data: data}, Seq: 1}
		w := writer{butler: butlerActor}
		for _, decode := range []func(bus.Stored) (*event, error){decodeChat, decodeDelta} {
			ev, err := decode(s)
			if err != nil || ev == nil {
				continue
			}
			require.True(t, json.Valid(w.frame(ev, cursor{1, 1}).body))
			require.True(t, json.Valid(w.end(ev, ev.streamID, cursor{1, 1}).body))
		}
	})
}

func TestLimiterGivesBackAndForgets(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	l := newLimiter[string](func() time.Time { return now }, 0.5, 2)
	require.Zero(t, l.take("a"))
	require.Zero(t, l.take("a"))
	require.Equal(t, 2*time.Second, l.take("a"))
	require.Zero(t, l.take("b"))
	l.give("a")
	require.Zero(t, l.take("a"))
	now = now.Add(2 * time.Second)
	require.Zero(t, l.take("a"))
	require.Positive(t, l.take("a"))
	now = now.Add(time.Minute)
	l.forget()
	require.Empty(t, l.buckets)
	for i := range maxLimited + 10 {
		l.take(string(rune('a'+i%26)) + time.Duration(i).String())
	}
	require.LessOrEqual(t, len(l.buckets), maxLimited)
}

func BenchmarkFrame(b *testing.B) {
	w := writer{butler: butlerActor}
	ev := &event{kind: eventDelta, seq: 3, at: time.Now(), text: "some words of an answer ", streamID: "m-1-1", localID: "m", turn: chat.Turn{Session: chat.Session{Person: 1, Thread: 2}, ID: "m"}}
	b.ReportAllocs()
	for b.Loop() {
		w.frame(ev, cursor{5, 6})
	}
}

func BenchmarkDecodeDelta(b *testing.B) {
	data, err := chat.Encode(&butlerv1.ChatDelta{StreamId: "m1-1-1", Index: 2, Text: "some words of an answer ", Turn: "m1", ConversationId: 12, ReplyToLocalId: "m1"})
	require.NoError(b, err)
	s := bus.Stored{Event: bus.Event{Type: chat.TypeDelta, Subject: "butler.delta.7.12", Data: data}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeDelta(s); err != nil {
			b.Fatal(err)
		}
	}
}
