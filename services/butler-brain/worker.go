package brain

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/transcript"
)

const (
	// astrayAfter, added to the longest time that a turn may take, is how long an open turn whose delivery is not here is
	// left to whoever has it. The delivery of one who died comes again after the ack wait; this is for one that went astray.
	astrayAfter = time.Minute
	// retryFirst and retryLast bound the time until a turn whose attempt failed is tried again.
	retryFirst = 250 * time.Millisecond
	retryLast  = 10 * time.Second
)

// worker is a session at work.
type worker struct {
	m     *sessions
	ss    *session
	h     *history
	epoch int // of sessions, when h was taken
	pin   string
	fresh bool // h holds everything of the log that this replica was not told of
	marks int  // of sessions, when that was found
	held  map[string][]*bus.Delivery
	blind struct { // the open turn that is in nobody's hands here, and since when
		turn  string
		since time.Time
	}
	fails int
}

func (m *sessions) run(ctx context.Context, ss *session) {
	w := &worker{m: m, ss: ss, held: map[string][]*bus.Delivery{}}
	for {
		w.collect()
		again := w.step(ctx)
		if ctx.Err() != nil {
			w.release(0)
			m.finished(ss)
			return
		}
		if again == 0 {
			continue
		}
		if again > 0 {
			w.idle(ctx, again)
			continue
		}
		if m.finished(ss) {
			if w.fresh {
				w.h.trim(m.s.settings.ContextWindow * keepText)
				m.put(w.h, w.pin, w.epoch, w.marks)
			}
			return
		}
	}
}

// collect takes what came in, and the history when there is none.
func (w *worker) collect() {
	w.ss.mu.Lock()
	inbox := w.ss.inbox
	w.ss.inbox = nil
	w.ss.mu.Unlock()
	for _, d := range inbox {
		if d.Pin != w.pin {
			// Another replica may have had the session in between, or what was delivered to this one was lost with its
			// connection. That may stand before what was written here since: the history is taken anew.
			w.h, w.pin = nil, d.Pin
		}
		turn, _, err := chat.ParseSubject(d.Subject)
		if err != nil {
			d.Done()
			continue
		}
		w.held[turn.ID] = append(w.held[turn.ID], d)
		if w.h != nil {
			w.note(d)
		}
	}
	if w.h != nil {
		return
	}
	w.marks = w.m.marked()
	w.h, w.epoch, w.fresh = w.m.take(w.ss.id, w.pin)
	for _, ds := range w.held {
		for _, d := range ds {
			w.note(d)
		}
	}
}

// note adds a delivered event to the history. That a question stands in the log is known from its delivery, without
// another read, as long as nobody else can have written to the session; all else of it is written here.
func (w *worker) note(d *bus.Delivery) {
	if !w.fresh || !d.First {
		w.fresh = false
		return
	}
	if turn, r, err := transcript.Record(d.Stored); err == nil {
		w.h.add(turn, r)
	}
}

// step does the next thing there is to do. It returns 0 to be called again at once, a time after which to look again, or
// -1 when there is nothing to do.
func (w *worker) step(ctx context.Context) time.Duration {
	s := w.m.s
	if w.ss.takeDoubt() {
		w.h = nil // taken again, from the log
		return 0
	}
	if w.ss.takeStale() {
		w.fresh, w.h.stale = false, true
	}
	if !w.fresh {
		w.marks = w.m.marked()
		if err := w.m.read(ctx, w.h); err != nil {
			if ctx.Err() != nil {
				return lookAgain
			}
			s.log.Warn("a session cannot be read now", "session", w.ss.id.String(), "error", err)
			return lookAgain
		}
		w.fresh = true
	}
	w.settle(ctx)
	next := w.next()
	if next == nil {
		return -1
	}
	if w.ss.isLeaving() {
		// The partition is another replica's: only what is held could be begun here, and that one will begin it.
		w.release(0)
		return -1
	}
	if len(w.held[next.turn.ID]) == 0 {
		// Somebody else has it, or it comes again soon.
		if w.blind.turn != next.turn.ID {
			w.blind.turn, w.blind.since = next.turn.ID, time.Now()
		}
		if time.Since(w.blind.since) < s.settings.TurnTimeout+astrayAfter {
			w.fresh = false
			return lookAgain
		}
	}
	return w.execute(ctx, next)
}

// next gives the oldest turn that can go on: open, and not waiting for something that has not come.
func (w *worker) next() *turnState {
	for _, t := range w.h.turns {
		if !t.ended && !t.waiting() {
			return t
		}
	}
	return nil
}

// settle acknowledges what the log has settled: deliveries of turns that have ended, or that wait.
func (w *worker) settle(ctx context.Context) {
	for id, ds := range w.held {
		t := w.h.by[id]
		if t == nil {
			// Ended before what the history keeps, erased, or not a question at all: the log says which.
			t = w.lookUp(ctx, ds[0])
			if t == nil {
				continue
			}
		}
		var keep []*bus.Delivery
		for _, d := range ds {
			if t.ended || t.waiting() && d.Seq <= t.last {
				d.Done()
			} else {
				keep = append(keep, d)
			}
		}
		if len(keep) == 0 {
			delete(w.held, id)
		} else {
			w.held[id] = keep
		}
	}
}

// lookUp reads one turn that the history does not have. nil means: later.
func (w *worker) lookUp(ctx context.Context, d *bus.Delivery) *turnState {
	turn, _, err := chat.ParseSubject(d.Subject)
	if err != nil {
		return &turnState{ended: true}
	}
	records, err := w.m.s.turns.Load(ctx, turn.String(), 0)
	if err != nil && fault.ClassOf(err) == fault.Transient {
		return nil
	}
	if err != nil {
		w.m.s.log.Error("a turn cannot be read; it is left alone", "turn", turn.String(), "error", err)
		return &turnState{ended: true}
	}
	if len(records) == 0 || records[0].Kind != journal.KindOpen {
		return &turnState{ended: true} // erased
	}
	for _, r := range records {
		w.h.add(turn, r)
	}
	if t := w.h.by[turn.ID]; t != nil {
		return t
	}
	return &turnState{ended: true}
}

// execute brings a turn on.
func (w *worker) execute(ctx context.Context, t *turnState) time.Duration {
	s, unit := w.m.s, t.turn.String()
	free, err := w.m.slots.take(ctx, w.ss.id.Person)
	if err != nil {
		return 0
	}
	defer free()
	first, traced := false, ctx
	for _, d := range w.held[t.turn.ID] {
		if _, kind, err := chat.ParseSubject(d.Subject); err == nil && kind == chat.Asked {
			first, traced = d.First, d.Context(ctx)
			s.metrics.waiting.Observe(max(0, s.clock.Now().Sub(d.At).Seconds()))
		}
	}
	if !w.ss.begin(unit) {
		return 0 // a stop came just now
	}
	s.metrics.running.Inc()
	written := s.turns.watch(unit)
	traced, span := otel.Tracer("github.com/butlerhub/butler/services/butler-brain").Start(traced, "turn")
	res, err := s.exec.Execute(withPast(traced, w.h.before(t)), unit, journal.Mode{First: first, Known: t.records})
	span.End()
	for _, r := range written() {
		w.h.add(t.turn, r)
	}
	s.metrics.running.Dec()
	w.ss.end()
	if ctx.Err() != nil {
		return 0
	}
	switch {
	case err != nil:
		w.fails++
		wait := min(retryFirst<<min(w.fails, 10), retryLast)
		s.log.WarnContext(traced, "a turn could not be brought on; it is tried again", "turn", unit, "after", wait, "error", err)
		w.reread(t)
		w.again(t.turn.ID)
		return wait
	case res.Status == journal.Ended || res.Status == journal.Suspended:
		w.fails = 0
		if t.ended {
			s.askForSummary(w.h)
		}
		if !t.ended {
			w.reread(t) // it waits, or somebody else ended it
		}
		return 0
	default: // another worker has it: its delivery is with that one now
		for _, d := range w.held[t.turn.ID] {
			d.Forget()
		}
		delete(w.held, t.turn.ID)
		w.reread(t)
		return lookAgain
	}
}

// reread has a turn read from the log again: what others added to it while it was executed here is not in the history.
func (w *worker) reread(t *turnState) {
	w.h.drop(t)
	w.fresh = false
}

// again marks what is held of a turn as no first deliveries: whoever executes it now claims it.
func (w *worker) again(id string) {
	for _, d := range w.held[id] {
		d.First = false
	}
}

// release gives back everything held.
func (w *worker) release(after time.Duration) {
	w.collect()
	for _, ds := range w.held {
		for _, d := range ds {
			d.Release(after)
		}
	}
	clear(w.held)
}

// idle waits until something comes or the time is over.
func (w *worker) idle(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-w.ss.wake:
	case <-t.C:
	}
}
