package gateway

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
)

const (
	// maxMissed is how many missed events are told again; more is a GAP.
	maxMissed = 2000
	// maxMissedBytes is how much text they may have.
	maxMissedBytes = 8 << 20
	// feedPage is how many events one read asks for; a question may have 256 KiB.
	feedPage = 128
)

var (
	// errMissedTooMuch says that more was missed than is told again.
	errMissedTooMuch = fault.New(fault.TooLarge, "more was missed than is told again")
	// errAskedMeanwhile says that deltas were read whose question came after the end up to which questions were read.
	errAskedMeanwhile = errors.New("a question came meanwhile")
)

// maxReadings is how often what was missed is read, at most, while the person goes on asking elsewhere.
const maxReadings = 5

// catchUp tells a connection what its person's frames were after a cursor, by emit, and begins the live part of its
// outbox, without a gap or a repetition between the two. The outbox must have joined the hub, owned, before. A frame of
// what was dispatched to the client already is told again in one case: the end of a stream directly after its answer,
// because both frames have the same seq.
//
// Errors are those of emit, of ctx, and fault.Unavailable when the log cannot be read.
func (h *hub) catchUp(ctx context.Context, o *outbox, after cursor, emit func(*frame) error) error {
	var end cursor
	var missed []step
	err := errAskedMeanwhile
	given := after
	for n := 0; n < maxReadings && errors.Is(err, errAskedMeanwhile); n++ {
		if _, end.chat, err = h.bus.Bounds(ctx, bus.ChatStream); err != nil {
			return err
		}
		after = given
		end, missed, err = h.missed(ctx, o.person, &after, end.chat)
	}
	if errors.Is(err, errAskedMeanwhile) || err == nil && after.chat > end.chat {
		// In the second case the cursor is not of this log: it was restored from an older copy.
		err = errMissedTooMuch
	}
	if errors.Is(err, errMissedTooMuch) {
		h.metrics.gaps.Inc()
		if err := emit(h.writer.gap(time.Now(), end)); err != nil {
			return err
		}
		o.caughtUp(end, end)
		return nil
	}
	if err != nil {
		return err
	}
	at := after
	for _, s := range missed {
		at = at.max(s.at())
		for _, f := range s.frames(h.writer, at) {
			if err := emit(f); err != nil {
				return err
			}
		}
	}
	h.toldBefore(o.person, events(missed))
	o.caughtUp(end, at)
	return nil
}

// missed reads what came after a cursor and up to a sequence in CHAT, in the order in which it is told. It completes the
// cursor's position in DELTA and gives the positions up to which it read; what comes after them is live. When it read
// deltas of a question that came after chatEnd, and so would show before it, the error is errAskedMeanwhile.
func (h *hub) missed(ctx context.Context, person int64, after *cursor, chatEnd uint64) (end cursor, _ []step, _ error) {
	end.chat = chatEnd
	left := &budget{events: maxMissed, bytes: maxMissedBytes}
	from := after.chat
	if from > 0 {
		from-- // the event at the cursor itself: when it is an answer, the end of its stream is told again
	}
	asked, err1 := h.read(ctx, bus.ChatStream, chat.PersonKindFilter(person, chat.Asked), after.chat, chatEnd, left, decodeChat)
	answers, err2 := h.read(ctx, bus.ChatStream, chat.PersonKindFilter(person, chat.Answer), from, chatEnd, left, decodeChat)
	if err := cmp.Or(err1, err2); err != nil && !errors.Is(err, errMissedTooMuch) {
		return end, nil, err
	}
	if n := len(answers); n > 0 {
		h.settle(ctx, answers[n-1])
	}
	start, last, err := h.bus.Bounds(ctx, bus.DeltaStream)
	if err != nil {
		return end, nil, err
	}
	end.delta = last
	*after = after.resolve(last)
	if start > 0 {
		after.delta = max(after.delta, start-1) // what was before is gone; it goes on from the window's start
	}
	if err := cmp.Or(err1, err2); err != nil {
		return end, nil, err
	}
	deltas, err := h.read(ctx, bus.DeltaStream, chat.PersonDeltas(person), after.delta, last, left, decodeDelta)
	if err != nil {
		return end, nil, err
	}
	if len(deltas) > 0 {
		later, err := h.bus.Load(ctx, bus.ChatStream, chat.PersonKindFilter(person, chat.Asked), chatEnd, 1)
		if err != nil {
			return end, nil, err
		}
		if len(later) > 0 {
			return end, nil, errAskedMeanwhile
		}
	}
	if deltas, err = h.withoutAnswered(ctx, after.chat, answers, deltas); err != nil {
		return end, nil, err
	}
	if err := h.findQuestions(ctx, asked, answers); err != nil {
		return end, nil, err
	}
	return end, merge(bySeq(asked, answers), deltas, after.chat), nil
}

// settle waits, as the live part does, until the deltas of an answer that was given just now are in DELTA.
func (h *hub) settle(ctx context.Context, answer *event) {
	if answer.deltas <= 0 || time.Since(answer.at).Abs() > time.Second {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, holdFor)
	defer cancel()
	for {
		s, found, err := h.bus.Last(ctx, bus.DeltaStream, answer.turn.Delta())
		if err != nil {
			return
		}
		if found {
			ev, err := decodeDelta(s)
			if err == nil && (ev.streamID == answer.streamID && (ev.end || ev.index >= answer.deltas) || ev.key != answer.key && s.At.After(answer.at)) {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

type budget struct{ events, bytes int }

func (h *hub) read(ctx context.Context, stream, filter string, after, end uint64, left *budget,
	decode func(bus.Stored) (*event, error),
) ([]*event, error) {
	var out []*event
	for after < end {
		page, err := h.bus.Load(ctx, stream, filter, after, feedPage)
		if err != nil {
			return nil, err
		}
		for _, s := range page {
			if s.Seq > end {
				return out, nil
			}
			after = s.Seq
			ev, err := decode(s)
			if err != nil || ev == nil {
				h.unfit(s, err)
				continue
			}
			left.events--
			left.bytes -= len(s.Data)
			if left.events < 0 || left.bytes < 0 {
				return nil, errMissedTooMuch
			}
			out = append(out, ev)
		}
		if len(page) < feedPage/2 {
			return out, nil
		}
	}
	return out, nil
}

// withoutAnswered removes deltas that came too late: those of turns whose answer the client has seen.
func (h *hub) withoutAnswered(ctx context.Context, seen uint64, answers, deltas []*event) ([]*event, error) {
	late := map[string]bool{}
	for _, ev := range answers {
		late[ev.key] = ev.seq <= seen
	}
	out := deltas[:0]
	for _, ev := range deltas {
		isLate, known := late[ev.key]
		if !known {
			s, found, err := h.bus.Last(ctx, bus.ChatStream, ev.turn.Stored(chat.Answer))
			if err != nil {
				return nil, err
			}
			isLate = found && s.Seq <= seen
			late[ev.key] = isLate
		}
		if !isLate {
			out = append(out, ev)
		}
	}
	return out, nil
}

// findQuestions completes the answers with the sequence of their question.
func (h *hub) findQuestions(ctx context.Context, asked, answers []*event) error {
	seqs := make(map[string]uint64, len(asked))
	for _, ev := range asked {
		seqs[ev.key] = ev.seq
	}
	for _, ev := range answers {
		if ev.replyTo = seqs[ev.key]; ev.replyTo != 0 {
			continue
		}
		s, found, err := h.bus.Last(ctx, bus.ChatStream, ev.turn.Stored(chat.Asked))
		if err != nil {
			return err
		}
		if found {
			ev.replyTo = s.Seq
		}
	}
	return nil
}

// bySeq merges two lists that are in order of their sequence.
func bySeq(a, b []*event) []*event {
	out := make([]*event, 0, len(a)+len(b))
	for len(a) > 0 || len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && a[0].seq < b[0].seq {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return out
}

// step is one event as it is told again.
type step struct {
	event *event
	only  string   // "end": only the end of its stream; "": the event's frames
	ends  []string // streams of the turn that end before its answer
}

const onlyEnd = "end"

// merge puts questions and answers, and deltas, both in order of their sequence, into the order in which they are told:
// by time, but a question before the deltas of its turn and the answer after them. Both lists keep their own order, so
// that a pair of sequences says how far a client came. Deltas that cannot come before their answer are left out, as they
// are live. What is up to seen was told before, but for the end of an answer's stream.
func merge(chats, deltas []*event, seen uint64) []step {
	out := make([]step, 0, len(chats)+len(deltas))
	unasked := map[string]bool{} // turns whose question is still in chats
	remain := map[string]int{}   // deltas of a turn that are still in deltas
	open := map[string][]string{}
	answered := map[string]bool{}
	answers := map[string]*event{}
	for _, ev := range chats {
		if ev.kind == eventAsked {
			unasked[ev.key] = true
		} else {
			answers[ev.key] = ev
		}
	}
	deltas = slices.DeleteFunc(slices.Clone(deltas), func(d *event) bool {
		// What a worker said who had lost the turn. Deltas are not acknowledged: a little later is not too late.
		a := answers[d.key]
		return a != nil && d.streamID != a.streamID && d.at.After(a.at.Add(holdFor))
	})
	for _, ev := range deltas {
		remain[ev.key]++
	}
	for len(chats) > 0 || len(deltas) > 0 {
		if takeChat(chats, deltas, unasked, remain) {
			ev := chats[0]
			chats = chats[1:]
			switch {
			case ev.kind == eventAsked:
				delete(unasked, ev.key)
				out = append(out, step{event: ev})
			case ev.seq <= seen:
				answered[ev.key] = true
				if ev.streamID != "" {
					out = append(out, step{event: ev, only: onlyEnd})
				}
			default:
				answered[ev.key] = true
				s := step{event: ev}
				for _, id := range open[ev.key] {
					if id != ev.streamID {
						s.ends = append(s.ends, id)
					}
				}
				out = append(out, s)
			}
			continue
		}
		ev := deltas[0]
		deltas = deltas[1:]
		remain[ev.key]--
		if answered[ev.key] {
			continue
		}
		open[ev.key] = note(open[ev.key], ev)
		out = append(out, step{event: ev})
	}
	return out
}

// takeChat decides what comes next: the first of chats, or the first of deltas.
func takeChat(chats, deltas []*event, unasked map[string]bool, remain map[string]int) bool {
	if len(chats) == 0 || len(deltas) == 0 {
		return len(deltas) == 0
	}
	c, d := chats[0], deltas[0]
	if unasked[d.key] {
		return true
	}
	if c.kind == eventAnswer && remain[c.key] > 0 {
		return false
	}
	return !d.at.Before(c.at)
}

// note keeps the list of a turn's streams that have not ended.
func note(open []string, ev *event) []string {
	for i, id := range open {
		if id == ev.streamID {
			if ev.end {
				return append(open[:i:i], open[i+1:]...)
			}
			return open
		}
	}
	if ev.end {
		return open
	}
	return append(open, ev.streamID)
}

func (s step) at() cursor {
	if s.event.kind == eventDelta {
		return cursor{delta: s.event.seq}
	}
	return cursor{chat: s.event.seq}
}

// frames makes the frames of a step; at is where the client stands after them.
func (s step) frames(w writer, at cursor) []*frame {
	ev := s.event
	switch {
	case s.only == onlyEnd:
		return []*frame{w.end(ev, ev.streamID, at)}
	case ev.kind == eventDelta && ev.end:
		return []*frame{w.end(ev, ev.streamID, at)}
	case ev.kind != eventAnswer:
		return []*frame{w.frame(ev, at)}
	}
	before := at
	before.chat = ev.seq - 1
	out := make([]*frame, 0, 2+len(s.ends))
	for _, id := range s.ends {
		out = append(out, w.end(ev, id, before))
	}
	out = append(out, w.frame(ev, at))
	if ev.streamID != "" {
		out = append(out, w.end(ev, ev.streamID, at))
	}
	return out
}

func events(steps []step) []*event {
	out := make([]*event, len(steps))
	for i, s := range steps {
		out[i] = s.event
	}
	return out
}
