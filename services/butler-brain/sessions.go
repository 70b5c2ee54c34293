package brain

import (
	"container/list"
	"context"
	"sync"
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
	// lookAgain is how often the log is looked at while another replica ends the turn before.
	lookAgain = 200 * time.Millisecond
	// retryFirst and retryLast bound the time until a turn whose attempt failed is tried again.
	retryFirst = 250 * time.Millisecond
	retryLast  = 10 * time.Second
	// keepText is how much text of a session is kept, in bytes per token of the model's window.
	keepText = 8
)

// sessions runs the turns: one at a time and in order in each session, many sessions at once. A session exists here only
// while it has something to do; its history stays cached a little longer.
type sessions struct {
	s     *Service
	slots *slots // of turns at the same time

	mu     sync.Mutex
	ctx    context.Context // of Run
	active map[chat.Session]*session
	epoch  int // grows when what is cached can no longer be trusted
	marks  int // grows when something was written beside the turns of a session
	cache  map[chat.Session]*list.Element
	recent *list.List // of *cached, newest first
	wg     sync.WaitGroup

	reads chan struct{} // places of those who read a session from the log
}

// concurrentReads is how many sessions are read from the log at the same time. After an outage thousands are woken at once;
// the log answers few at a time as fast, and has room for others' requests.
const concurrentReads = 8

// cached is a session's history between its turns.
type cached struct {
	history *history
	pin     string // time of ownership in which it was read; see bus.Delivery
	epoch   int
	stale   bool // something was written beside its turns since
}

// session is one that has something to do.
type session struct {
	id        chat.Session
	partition int
	wake      chan struct{} // told when inbox has something new

	mu      sync.Mutex
	inbox   []*bus.Delivery
	leaving bool // its partition is another replica's now
	stale   bool // something was written beside its turns
	// doubtful says that this process may have missed something of the session: it is to be read anew.
	doubtful bool
	running  string // the turn that is being executed
}

func newSessions(s *Service) *sessions {
	return &sessions{
		s: s, slots: newSlots(s.settings.Concurrency),
		active: map[chat.Session]*session{}, cache: map[chat.Session]*list.Element{}, recent: list.New(),
		reads: make(chan struct{}, concurrentReads),
	}
}

func (m *sessions) open(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ctx = ctx
}

// wait blocks until every session has put down what it was doing, after the context ended.
func (m *sessions) wait() { m.wg.Wait() }

// distrust drops what is cached: this process may have missed something. Turns that are being executed look whether
// another worker has them now.
func (m *sessions) distrust() {
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx := m.ctx
	for _, ss := range m.active {
		ss.mu.Lock()
		ss.doubtful = true // a delivery of it may be lost, and what comes next stands behind that
		ss.mu.Unlock()
		if unit := ss.runs(); unit != "" {
			m.wg.Go(func() {
				if err := m.s.exec.Cancel(ctx, unit); err != nil && ctx.Err() == nil {
					m.s.log.Debug("a running turn could not be looked at", "turn", unit, "error", err)
				}
			})
		}
	}
	m.epoch++
	clear(m.cache)
	m.recent.Init()
	m.s.metrics.sessions.Set(0)
}

// wake takes a delivery. It returns at once.
func (m *sessions) wake(d *bus.Delivery) {
	turn, kind, err := chat.ParseSubject(d.Subject)
	if err != nil {
		m.s.log.Error("a delivery on a subject that is none of a turn", "subject", d.Subject)
		d.Done()
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx == nil || m.ctx.Err() != nil {
		d.Release(0)
		return
	}
	ss := m.active[turn.Session]
	if ss == nil {
		ss = &session{id: turn.Session, partition: d.Partition, wake: make(chan struct{}, 1)}
		m.active[turn.Session] = ss
		m.wg.Go(func() { m.run(m.ctx, ss) })
	}
	ss.mu.Lock()
	ss.inbox = append(ss.inbox, d)
	running := ss.running == turn.String()
	ss.mu.Unlock()
	select {
	case ss.wake <- struct{}{}:
	default:
	}
	if kind == chat.Stop && running {
		ctx := m.ctx
		m.wg.Go(func() { m.interrupt(ctx, ss, turn.String()) })
	}
}

// interrupt has the running turn look for the stop that was just delivered, until it has ended: the execution may not have
// begun when this is first called.
func (m *sessions) interrupt(ctx context.Context, ss *session, unit string) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for ss.isRunning(unit) {
		if err := m.s.exec.Cancel(ctx, unit); err != nil && ctx.Err() == nil {
			m.s.log.Warn("a stop was not seen yet", "turn", unit, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// lost has the sessions of a partition end after what they are executing now.
func (m *sessions) lost(partition int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.epoch++
	for _, ss := range m.active {
		if ss.partition != partition {
			continue
		}
		ss.mu.Lock()
		ss.leaving = true
		ss.mu.Unlock()
		select {
		case ss.wake <- struct{}{}:
		default:
		}
	}
}

// mark has what is new in the log of a session be read before its next turn: a summary or pins were written.
func (m *sessions) mark(id chat.Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.marks++
	if ss := m.active[id]; ss != nil {
		ss.mu.Lock()
		ss.stale = true
		ss.mu.Unlock()
	}
	if e := m.cache[id]; e != nil {
		e.Value.(*cached).stale = true
	}
}

func (m *sessions) marked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.marks
}

// take gives the session's history, from memory when it was read while the partition was this replica's all along; fresh
// says that nothing is to be read.
func (m *sessions) take(id chat.Session, pin string) (h *history, epoch int, fresh bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.cache[id]; e != nil {
		c := e.Value.(*cached)
		m.recent.Remove(e)
		delete(m.cache, id)
		if c.epoch == m.epoch && pin != "" && c.pin == pin {
			c.history.stale = c.history.stale || c.stale
			return c.history, m.epoch, c.history.last > 0 && !c.history.stale
		}
	}
	return newHistory(id), m.epoch, false
}

// put keeps a session's history. marks is what marked said before it was read.
func (m *sessions) put(h *history, pin string, epoch, marks int) {
	if pin == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if epoch != m.epoch {
		return
	}
	m.cache[h.session] = m.recent.PushFront(&cached{h, pin, epoch, marks != m.marks})
	for m.recent.Len() > m.s.settings.CachedSessions {
		e := m.recent.Back()
		m.recent.Remove(e)
		delete(m.cache, e.Value.(*cached).history.session)
	}
	m.s.metrics.sessions.Set(float64(m.recent.Len()))
}

// finished ends a session that has nothing to do; false when something came meanwhile.
func (m *sessions) finished(ss *session) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if len(ss.inbox) > 0 {
		return false
	}
	delete(m.active, ss.id)
	return true
}

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

// read brings h up to date with the log, when its turn comes.
func (m *sessions) read(ctx context.Context, h *history) error {
	select {
	case m.reads <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-m.reads }()
	return h.load(ctx, m.s.bus, m.s.settings.ContextWindow*keepText)
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

func (ss *session) isLeaving() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.leaving
}

// begin says that unit is being executed now, unless something has come for the session since it was looked at.
func (ss *session) begin(unit string) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, d := range ss.inbox {
		if turn, kind, err := chat.ParseSubject(d.Subject); err == nil && kind == chat.Stop && turn.String() == unit {
			return false
		}
	}
	ss.running = unit
	return true
}

// takeStale says whether something was written beside the turns since it was called last.
func (ss *session) takeStale() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	stale := ss.stale
	ss.stale = false
	return stale
}

// takeDoubt says whether the session is to be read anew since it was called last.
func (ss *session) takeDoubt() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	doubtful := ss.doubtful
	ss.doubtful = false
	return doubtful
}

func (ss *session) end() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.running = ""
}

func (ss *session) isRunning(unit string) bool { return ss.runs() == unit }

// runs gives the turn that is being executed, empty for none.
func (ss *session) runs() string {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.running
}
