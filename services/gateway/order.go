package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
)

// This file keeps the frames of one turn in order, though they come from two streams: a question before its deltas, an
// answer after them; and the answers of a conversation in theirs. All of it runs under the hub's mutex but where the log is asked.

// stopHoldingDeltas dispatches the deltas that wait for a question that did not come, unless it is in the log and only
// this gateway is late.
func (h *hub) stopHoldingDeltas(a *audience) {
	h.mu.Lock()
	if len(a.deltas) == 0 {
		h.mu.Unlock()
		return
	}
	turn := a.deltas[0].turn
	h.mu.Unlock()
	asked, err := h.questionOf(turn)
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.timer == nil {
		return // they went meanwhile
	}
	if a.waited++; (err != nil || asked > h.at.chat) && a.waited < maxHolds {
		a.timer.Reset(holdFor)
		return
	}
	h.releaseDeltas(a, true)
}

// early says whether a delta came before its question: it begins a stream of a turn of which nothing was seen.
func (h *hub) early(a *audience, ev *event) bool {
	if ev.index > 1 || a.turns[ev.key] != nil {
		return false
	}
	_, seen := h.open[ev.key]
	return !seen
}

// releaseDeltas dispatches the deltas that need not wait any more, or all of them.
func (h *hub) releaseDeltas(a *audience, all bool) {
	for len(a.deltas) > 0 && (all || !h.early(a, a.deltas[0])) {
		ev := a.deltas[0]
		a.deltas = a.deltas[1:]
		h.delta(a, ev)
	}
	if len(a.deltas) == 0 {
		a.deltas = nil
		if a.timer != nil {
			a.timer.Stop()
			a.timer = nil
		}
	}
}

// delta dispatches one.
func (h *hub) delta(a *audience, ev *event) {
	a.at.delta = ev.seq
	p := a.progress(ev.key)
	if p.done {
		h.metrics.late.Inc()
		return
	}
	st := p.stream(ev.streamID)
	switch {
	case st.ended || !ev.end && ev.index != 0 && ev.index <= st.last: // 0: a notice, which is not numbered
		return // told before
	case ev.end:
		st.ended = true
		h.emit(a, h.writer.end(ev, ev.streamID, a.cursor()))
	default:
		st.last = max(st.last, ev.index)
		h.emit(a, h.writer.frame(ev, a.cursor()))
	}
	if len(a.answers) > 0 {
		h.releaseAnswers(a)
	}
}

// answer dispatches an answer, or holds it until its deltas and the conversation's answers before it were dispatched.
func (h *hub) answer(a *audience, ev *event) {
	if len(a.answers) == 0 && a.due(ev) {
		h.deliver(a, ev)
		return
	}
	held := &heldAnswer{event: ev}
	held.timer = time.AfterFunc(holdFor, func() { h.giveUpWaiting(a, held) })
	a.answers = append(a.answers, held)
	a.at.chat = ev.seq
	if ev.replyTo == 0 {
		go h.findQuestion(a, held)
	}
	h.releaseAnswers(a)
}

// due says whether everything that belongs before an answer is known and was dispatched.
func (a *audience) due(ev *event) bool { return ev.replyTo != 0 && a.progress(ev.key).complete(ev) }

// releaseAnswers delivers the held answers that need not wait any more.
func (h *hub) releaseAnswers(a *audience) {
	waiting := map[chat.Session]bool{}
	for i := 0; i < len(a.answers); {
		held := a.answers[i]
		session := held.event.turn.Session
		if waiting[session] || !held.overdue && !a.due(held.event) {
			waiting[session] = true
			i++
			continue
		}
		a.answers = slices.Delete(a.answers, i, i+1)
		held.timer.Stop()
		held.out = true
		h.deliver(a, held.event)
	}
}

// findQuestion looks up the question of an answer that was asked before this gateway began to follow.
func (h *hub) findQuestion(a *audience, held *heldAnswer) {
	seq, _ := h.questionOf(held.event.turn) // without it the answer does not say which message it answers
	h.mu.Lock()
	defer h.mu.Unlock()
	if !held.out {
		held.event.replyTo = seq
		h.releaseAnswers(a)
	}
}

// questionOf gives the sequence of a turn's question, 0 when there is none.
func (h *hub) questionOf(turn chat.Turn) (uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookWithin)
	defer cancel()
	s, found, err := h.bus.Last(ctx, bus.ChatStream, turn.Stored(chat.Asked))
	if err != nil || !found {
		return 0, err
	}
	return s.Seq, nil
}

// giveUpWaiting delivers an answer whose deltas did not come, unless they are in DELTA and only this gateway is late.
func (h *hub) giveUpWaiting(a *audience, held *heldAnswer) {
	ctx, cancel := context.WithTimeout(context.Background(), lookWithin)
	defer cancel()
	last, found, err := h.bus.Last(ctx, bus.DeltaStream, held.event.turn.Delta())
	h.mu.Lock()
	defer h.mu.Unlock()
	if held.out || h.people[a.person] != a {
		return
	}
	if held.waited++; (err != nil || found && last.Seq > h.at.delta) && held.waited < maxHolds {
		held.timer.Reset(holdFor)
		return
	}
	if !a.due(held.event) {
		h.metrics.incomplete.Inc()
	}
	held.overdue = true
	h.releaseAnswers(a)
}

// deliver dispatches an answer: first the ends of the turn's other streams, then the message, then the end of its own.
func (h *hub) deliver(a *audience, ev *event) {
	p := a.progress(ev.key)
	for i := range p.streams {
		if st := &p.streams[i]; !st.ended && st.id != ev.streamID {
			st.ended = true
			h.emit(a, h.writer.end(ev, st.id, a.cursor()))
		}
	}
	p.done, p.streams = true, nil
	a.at.chat = max(a.at.chat, ev.seq)
	h.emit(a, h.writer.frame(ev, a.cursor()))
	if ev.streamID != "" {
		h.emit(a, h.writer.end(ev, ev.streamID, a.cursor()))
	}
}

// cursor is where the person's connections stand. What is held back is not behind them.
func (a *audience) cursor() cursor {
	c := a.at
	for _, held := range a.answers {
		c.chat = min(c.chat, held.event.seq-1)
	}
	return c
}

func (a *audience) progress(key string) *progress {
	p := a.turns[key]
	if p == nil {
		p = &progress{}
		a.turns[key] = p
		a.order = append(a.order, key)
		if len(a.order) > keepTurns {
			delete(a.turns, a.order[0])
			a.order = a.order[1:]
		}
	}
	return p
}

func (p *progress) stream(id string) *stream {
	for i := range p.streams {
		if p.streams[i].id == id {
			return &p.streams[i]
		}
	}
	p.streams = append(p.streams, stream{id: id})
	return &p.streams[len(p.streams)-1]
}

// complete says whether all deltas that the answer counts were dispatched.
func (p *progress) complete(ev *event) bool {
	if ev.deltas <= 0 || p.done {
		return true
	}
	for i := range p.streams {
		if p.streams[i].id == ev.streamID {
			return p.streams[i].last >= ev.deltas
		}
	}
	return false
}
