package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// conditions say what went wrong on purpose, and so what may be expected.
type conditions struct {
	// cut: connections were lost, so frames may have been told again, and a CHAT_STREAM_END may have been missed.
	cut bool
	// deltasLost: the memory stream of deltas did not survive, so a stream may have holes when its connection changed.
	deltasLost bool
	// natsAway: NATS was away while connections stayed: what was streamed meanwhile is dropped, and only the final text
	// is whole.
	natsAway bool
	// refusable: a message may have been refused.
	refusable bool
	// unanswerable: the model failed on purpose: answers may have failed, with a reason.
	unanswerable bool
	// again: the model may have been called more than once for a message.
	again bool
}

// stored is a message of the history.
type stored struct {
	ID             uint64
	LocalID        string `json:"local_id"`
	ConversationID int64  `json:"conversation_id"`
	SenderRole     string `json:"sender_role"`
	SenderID       int64  `json:"sender_id"`
	Payload        string
	StreamID       string `json:"stream_id"`
	Status         string
	Reason         string
	ReplyTo        uint64 `json:"reply_to"`
	ReplyToLocalID string `json:"reply_to_local_id"`
}

// tally is what a check counted.
type tally struct {
	accepted, refused, answered, failed, stopped, toldAgain, chunks int
}

func (n tally) String() string {
	return fmt.Sprintf("%d accepted, %d refused; %d answered, %d failed, %d stopped; 0 lost, 0 doubled; %d pieces, %d frames told again",
		n.accepted, n.refused, n.answered, n.failed, n.stopped, n.chunks, n.toldAgain)
}

// check counts what the devices saw and what the history has. Devices must have waited for their answers.
func (s *site) check(devices []*device, c conditions) {
	s.t.Helper()
	var n tally
	for _, d := range devices {
		if !c.natsAway {
			d.ends()
		}
		s.checkFrames(d, c, &n)
		s.checkHistory(d, c)
	}
	if s.t.Failed() {
		return
	}
	s.t.Log(n)
}

// ends waits until the streams of all answers have ended, which is right after them.
func (d *device) ends() {
	d.t.Helper()
	d.until(10*time.Second, "the end of each answered stream", func() bool {
		ended := map[string]bool{}
		for _, f := range d.frames {
			ended[f.StreamID] = ended[f.StreamID] || f.Type == "CHAT_STREAM_END"
		}
		for _, m := range d.sent {
			if m.final != nil && m.final.StreamID != "" && !ended[m.final.StreamID] {
				return false
			}
		}
		return true
	})
}

// checkFrames holds what a device saw against what it said.
func (s *site) checkFrames(d *device, c conditions, n *tally) {
	d.mu.Lock()
	defer d.mu.Unlock()
	wrong := func(format string, args ...any) { s.t.Errorf(d.who.name+": "+format, args...) }

	finals := map[string][]*frame{} // by local id
	pieces := map[string][]*frame{} // by stream
	endAt := map[string]int{}       // by stream, where in frames
	finalAt := map[string]int{}     // by local id
	lastAnswer := map[int64]*frame{}
	for i, f := range d.frames {
		switch f.Type {
		case "CHAT":
			if f.ReplyToLocalID == "" {
				if f.SenderID != d.who.id || f.SenderRole == "BUTLER" || f.TargetID != butlerID {
					wrong("the echo of %s names the wrong people: %s", f.LocalID, f)
				}
				break
			}
			if f.SenderID != butlerID || f.SenderRole != "BUTLER" || f.TargetID != d.who.id {
				wrong("an answer names the wrong people: %s", f)
			}
			if len(finals[f.ReplyToLocalID]) == 0 {
				finalAt[f.ReplyToLocalID] = i
				// Questions of a conversation are answered in their order.
				if last := lastAnswer[f.ConversationID]; last != nil && f.ReplyTo < last.ReplyTo {
					wrong("out of order: the answer to %s (question %d, answer %d, connection %d) came after that to question %d (answer %d, connection %d)",
						f.ReplyToLocalID, f.ReplyTo, f.ID, f.connection, last.ReplyTo, last.ID, last.connection)
				}
				lastAnswer[f.ConversationID] = f
			}
			finals[f.ReplyToLocalID] = append(finals[f.ReplyToLocalID], f)
		case "CHAT_STREAM":
			n.chunks++
			if ended, ok := endAt[f.StreamID]; ok && d.frames[ended].connection == f.connection && !c.cut {
				wrong("a piece of %s after its end", f.StreamID)
			}
			pieces[f.StreamID] = append(pieces[f.StreamID], f)
		case "CHAT_STREAM_END":
			if _, twice := endAt[f.StreamID]; !twice {
				endAt[f.StreamID] = i
			} else if !c.cut {
				wrong("the stream %s ended twice", f.StreamID)
			}
		case "GAP":
			if !c.cut {
				wrong("a GAP without a reason")
			}
		case "ERROR":
			if !c.refusable && f.Code != "rate_limited" && f.Code != "unavailable" {
				wrong("an error: %s", f)
			}
		}
	}

	for _, id := range d.order {
		m := d.sent[id]
		if m.echo == nil {
			if !c.refusable || m.error == nil {
				wrong("%s was never accepted: %v", id, m.error)
			}
			n.refused++
			continue
		}
		n.accepted++
		if m.echo.Payload != m.Payload {
			wrong("%s is echoed as another text: %.80q", id, m.echo.Payload)
		}
		got := finals[id]
		if len(got) == 0 {
			wrong("LOST: %s has no answer", id)
			continue
		}
		final := got[0]
		for _, other := range got[1:] {
			n.toldAgain++
			switch {
			case other.ID != final.ID || other.Payload != final.Payload:
				wrong("DOUBLED: %s has two answers:\n  %s\n  %s", id, final, other)
			case !c.cut && m.sends == 1:
				wrong("the answer to %s was told twice though no connection was lost", id)
			}
		}
		if final.ReplyTo != m.echo.ID {
			wrong("the answer to %s names question %d, not %d", id, final.ReplyTo, m.echo.ID)
		}
		switch final.Status {
		case "answered":
			n.answered++
		case "failed":
			n.failed++
			if !c.unanswerable {
				wrong("%s failed: %s %q", id, final.Reason, final.Payload)
			}
			if final.Reason == "" || strings.TrimSpace(final.Payload) == "" {
				wrong("%s failed without a reason that a person can read: %s", id, final)
			}
		case "stopped":
			n.stopped++
		default:
			wrong("%s ended as %q", id, final.Status)
		}
		s.checkStream(d, final, pieces[final.StreamID], c, wrong)
		if final.StreamID != "" {
			switch end, ok := endAt[final.StreamID]; {
			case !ok && !c.natsAway:
				wrong("the stream %s of %s never ended; connections %d, frames:%s", final.StreamID, id, d.conns, d.about(id))
			case ok && end < finalAt[id] && d.frames[end].connection == final.connection:
				wrong("the stream %s ended before the final message", final.StreamID)
			}
		}
		if !c.again && s.model != nil && final.Status == "answered" {
			if calls := len(s.model.asked(m.Payload)); calls != 1 {
				wrong("%s: the model was called %d times", id, calls)
			}
		}
	}
}

// checkStream holds what was streamed against the final text.
func (s *site) checkStream(d *device, final *frame, pieces []*frame, c conditions, wrong func(string, ...any)) {
	if final.Status != "answered" || len(pieces) == 0 {
		if final.Status == "answered" && final.StreamID != "" && !c.cut {
			wrong("MISSING: %s has a stream and no piece of it came", final.ReplyToLocalID)
		}
		return
	}
	var text strings.Builder
	for _, f := range pieces {
		text.WriteString(f.Payload)
	}
	if text.String() == final.Payload {
		return
	}
	if c.natsAway || c.deltasLost && pieces[0].connection != final.connection {
		// What came must at least be parts of the text, in order.
		rest, whole := final.Payload, true
		for _, f := range pieces {
			_, after, ok := strings.Cut(rest, f.Payload)
			rest, whole = after, whole && ok
		}
		if whole {
			return
		}
	}
	wrong("MISSING: the pieces of %s are not its text: %d bytes of %d\n got %.300q\nwant %.300q",
		final.StreamID, text.Len(), len(final.Payload), text.String(), final.Payload)
}

// checkHistory holds the HTTP history against what a device saw, as soon as it is complete.
func (s *site) checkHistory(d *device, c conditions) {
	s.t.Helper()
	d.mu.Lock()
	conversations := map[int64][]*message{}
	for _, id := range d.order {
		if m := d.sent[id]; m.echo != nil && m.final != nil {
			conversations[m.echo.ConversationID] = append(conversations[m.echo.ConversationID], m)
		}
	}
	d.mu.Unlock()
	for conversation, messages := range conversations {
		deadline := time.Now().Add(time.Duration(20*slack()) * time.Second)
		for {
			problems := compareHistory(s.readHistory(d, conversation), messages)
			if len(problems) == 0 {
				break
			}
			if time.Now().After(deadline) {
				s.t.Errorf("%s: the history of conversation %d: %d problems\n  %s", d.who.name, conversation,
					len(problems), strings.Join(problems[:min(5, len(problems))], "\n  "))
				break
			}
			time.Sleep(50 * time.Millisecond) // the read model follows the log
		}
	}
}

// readHistory reads all pages of a conversation, oldest first.
func (s *site) readHistory(d *device, conversation int64) []stored {
	s.t.Helper()
	var out []stored
	before := ""
	for {
		var page []stored
		status, header, err := caller{d.urls[0], d.who.token}.do(context.Background(), "GET",
			fmt.Sprintf("/api/chat/threads/%d/messages?limit=200%s", conversation, before), nil, &page)
		if err != nil || status != http.StatusOK {
			s.t.Fatalf("%s: the history of conversation %d: %d %v", d.who.name, conversation, status, err)
		}
		out = append(page, out...)
		next := header.Get("X-Next-Before")
		if next == "" || len(page) == 0 {
			return out
		}
		before = "&before=" + next
	}
}

// compareHistory gives what is wrong with a history.
func compareHistory(history []stored, messages []*message) (problems []string) {
	questions, answers := map[string][]stored{}, map[string][]stored{}
	lastQuestion := uint64(0)
	for i, m := range history {
		if i > 0 && m.ID <= history[i-1].ID {
			problems = append(problems, fmt.Sprintf("message %d stands after message %d", m.ID, history[i-1].ID))
		}
		if m.ReplyToLocalID == "" {
			questions[m.LocalID] = append(questions[m.LocalID], m)
			continue
		}
		answers[m.ReplyToLocalID] = append(answers[m.ReplyToLocalID], m)
		if q := questions[m.ReplyToLocalID]; len(q) == 1 {
			if q[0].ID < lastQuestion {
				problems = append(problems, "out of order: "+m.ReplyToLocalID+" was answered after a later question")
			}
			lastQuestion = q[0].ID
		}
	}
	for _, m := range messages {
		q, a := questions[m.LocalID], answers[m.LocalID]
		switch {
		case len(q) != 1 || len(a) != 1:
			problems = append(problems, fmt.Sprintf("%s: %d questions, %d answers", m.LocalID, len(q), len(a)))
		case q[0].Payload != m.Payload || q[0].ID != m.echo.ID:
			problems = append(problems, m.LocalID+": another question is stored: "+strconv.Quote(q[0].Payload))
		case a[0].Payload != m.final.Payload || a[0].ID != m.final.ID || a[0].Status != m.final.Status:
			problems = append(problems, m.LocalID+": another answer is stored")
		}
	}
	return problems
}

// The checker itself finds what it is there for.
func TestChecker(t *testing.T) {
	t.Parallel()
	q := func(id uint64, local string) stored { return stored{ID: id, LocalID: local, Payload: local} }
	a := func(id uint64, local string) stored {
		return stored{ID: id, LocalID: local + ":answer", ReplyToLocalID: local, Payload: "answer", Status: "answered"}
	}
	m := func(id, answer uint64, local string) *message {
		return &message{
			LocalID: local, Payload: local, echo: &frame{ID: id}, final: &frame{ID: answer, Payload: "answer", Status: "answered"},
		}
	}
	messages := []*message{m(1, 3, "a"), m(2, 4, "b")}
	for name, history := range map[string][]stored{
		"a lost answer":     {q(1, "a"), q(2, "b"), a(3, "a")},
		"a doubled answer":  {q(1, "a"), q(2, "b"), a(3, "a"), a(4, "b"), a(5, "b")},
		"a lost question":   {q(1, "a"), a(3, "a"), a(4, "b")},
		"out of order":      {q(1, "a"), q(2, "b"), a(3, "b"), a(4, "a")},
		"pages not sorted":  {q(2, "b"), q(1, "a"), a(3, "a"), a(4, "b")},
		"another text":      {q(1, "a"), {ID: 2, LocalID: "b", Payload: "c"}, a(3, "a"), a(4, "b")},
		"nothing at all":    nil,
		"another answer id": {q(1, "a"), q(2, "b"), a(3, "a"), a(5, "b")},
	} {
		if len(compareHistory(history, messages)) == 0 {
			t.Errorf("%s was not found", name)
		}
	}
	if p := compareHistory([]stored{q(1, "a"), q(2, "b"), a(3, "a"), a(4, "b")}, messages); len(p) > 0 {
		t.Errorf("a good history is said to be wrong: %v", p)
	}
}

// about tells the frames that have to do with a message, for people. The mutex is held.
func (d *device) about(localID string) string {
	var b strings.Builder
	for i, f := range d.frames {
		if f.LocalID == localID || f.ReplyToLocalID == localID {
			fmt.Fprintf(&b, "\n    %d %s", i, f)
		}
	}
	return b.String()
}
