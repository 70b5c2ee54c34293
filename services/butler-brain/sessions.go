package brain

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
)

const (
	// lookAgain is how often the log is looked at while another replica ends the turn before.
	lookAgain = 200 * time.Millisecond
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
