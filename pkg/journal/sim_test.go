package journal_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/butlerhub/butler/pkg/journal"
)

// The simulation runs a few workers over a few units against a log, timers and a clock that misbehave. One goroutine
// runs at a time: each parks at every point where something could go wrong (an append, a read, an effect, a timer), and
// the scheduler lets one of them go on, as the seed says. So a seed always gives the same history.

// faults says what may go wrong, and which rule is broken on purpose so that the checker must notice.
type faults struct {
	none bool // nothing goes wrong

	unconditional bool // appends are stored whatever they expect
	claimless     bool // claims are dropped
	forgetIntents bool // intents cannot be read back
	forgetOutcome bool // outcomes cannot be read back
	forgetSignals bool // signals cannot be read back
	loseTimers    bool // timers are not set
	eagerTimers   bool // deadlines cannot be read back, and timers claim to be due
}

type sim struct {
	seed  uint64
	rng   *rand.Rand
	f     faults
	start time.Time
	calm  bool // no more faults: everything must end
	steps int

	mu        sync.Mutex // for what goroutines register while another runs
	parked    map[string]*park
	callbacks []*callback
	now       time.Time

	log      *simLog
	timers   map[string]time.Time
	units    []*simUnit
	workers  []*simWorker
	items    []*simItem
	messages []*simMessage
	actors   int
	births   int
	trace    []string
	verbose  bool
	problems []string
}

type park struct {
	actor *simActor
	label string
	ready func() bool
	ch    chan struct{}
}

type callback struct {
	due time.Time
	f   func()
}

// simActor is one goroutine's identity, carried by its context.
type simActor struct {
	name string
	w    *simWorker // nil: outside of all workers
}

type simWorker struct {
	name   string
	x      *journal.Executor
	ctx    context.Context
	cancel context.CancelFunc
	dead   bool
	frozen bool
}

// simItem is a delivery that makes a worker execute a unit.
type simItem struct {
	unit  *simUnit
	first bool
	by    *simActor // executing it
}

// simMessage is something on its way to a unit: a signal, a timer, a cancel, the hint of a cancel.
type simMessage struct {
	unit   *simUnit
	msg    journal.Message
	cancel bool
	hint   bool
	after  time.Time
	copies int
	by     *simActor
}

type actorKey struct{}

func as(ctx context.Context, a *simActor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

func actorOf(ctx context.Context) *simActor {
	a, _ := ctx.Value(actorKey{}).(*simActor)
	if a == nil {
		panic("no actor")
	}
	return a
}

var errDead = errors.New("this worker is dead")

func newSim(seed uint64, f faults, verbose bool) *sim {
	s := &sim{seed: seed, f: f, rng: rand.New(rand.NewPCG(seed, 7)), verbose: verbose,
		parked: map[string]*park{}, timers: map[string]time.Time{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	s.start = s.now
	s.log = &simLog{s: s, units: map[string][]journal.Record{}}
	for range 2 + s.rng.IntN(2) {
		s.birth()
	}
	for i := range 2 + s.rng.IntN(5) {
		s.addUnit(i)
	}
	return s
}

func (s *sim) logf(format string, args ...any) {
	if s.verbose {
		s.trace = append(s.trace, fmt.Sprintf("%5d %8s  ", s.steps, s.now.Sub(s.start))+fmt.Sprintf(format, args...))
	}
}

func (s *sim) chance(percent float64) bool { return s.rng.Float64()*100 < percent }

// fault is chance while faults are allowed.
func (s *sim) fault(percent float64) bool { return !s.calm && !s.f.none && s.chance(percent) }

func (s *sim) birth() *simWorker {
	s.births++
	w := &simWorker{name: fmt.Sprintf("w%d", s.births)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	x, err := journal.NewExecutor(s.program, journal.Options{
		Log: s.log, Timers: simTimers{s}, Worker: w.name, Clock: simClock{s}, MaxAttempts: 5,
		Limits: journal.Limits{EntryBytes: 4 << 10, RecordBytes: 16 << 10},
		Poison: func(_ *journal.Run, reason string) journal.End { return journal.End{Status: "failed", Reason: reason} },
		Stopped: func(_ *journal.Run, end *journal.End) journal.End {
			if end == nil {
				return journal.End{Status: "stopped", Reason: "cancelled"}
			}
			e := *end
			e.Status = "stopped"
			return e
		},
	})
	if err != nil {
		panic(err)
	}
	x.SetGate(func() journal.Gate { return &simGate{s: s} })
	w.x = x
	s.workers = append(s.workers, w)
	s.logf("%s is born", w.name)
	return w
}

// point parks the goroutine until the scheduler lets it go on.
func (s *sim) point(ctx context.Context, label string) error {
	return s.wait(ctx, label, func() bool { return true })
}

func (s *sim) wait(ctx context.Context, label string, ready func() bool) error {
	a := actorOf(ctx)
	p := &park{actor: a, label: label, ready: ready, ch: make(chan struct{})}
	s.mu.Lock()
	if s.parked[a.name] != nil {
		panic(a.name + " is parked twice")
	}
	s.parked[a.name] = p
	s.mu.Unlock()
	<-p.ch
	if a.w != nil && a.w.dead {
		return errDead
	}
	return nil
}

func (s *sim) spawn(w *simWorker, what string, f func(ctx context.Context, a *simActor)) *simActor {
	s.actors++
	a := &simActor{name: fmt.Sprintf("%s.%d", what, s.actors), w: w}
	ctx := context.Background()
	if w != nil {
		a.name = w.name + "." + a.name
		ctx = w.ctx
	}
	ctx = as(ctx, a)
	go func() {
		if s.point(ctx, "start") == nil {
			f(ctx, a)
		}
	}()
	return a
}

type simGate struct {
	s    *sim
	held bool
}

func (g *simGate) Lock(ctx context.Context) {
	for g.held {
		_ = g.s.wait(ctx, "gate", func() bool { return !g.held })
	}
	g.held = true
}

func (g *simGate) Unlock() { g.held = false }

type simClock struct{ s *sim }

func (c simClock) Now() time.Time { return c.s.now }

func (c simClock) AfterFunc(d time.Duration, f func()) func() {
	cb := &callback{due: c.s.now.Add(d), f: f}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.callbacks = append(c.s.callbacks, cb)
	return func() {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		c.s.callbacks = slices.DeleteFunc(c.s.callbacks, func(x *callback) bool { return x == cb })
	}
}

func (s *sim) advance(d time.Duration) {
	s.now = s.now.Add(d)
	s.mu.Lock()
	var due []*callback
	s.callbacks = slices.DeleteFunc(s.callbacks, func(c *callback) bool {
		if c.due.After(s.now) {
			return false
		}
		due = append(due, c)
		return true
	})
	s.mu.Unlock()
	for _, c := range due {
		c.f()
	}
	s.logf("the clock moves by %s", d)
}

// run plays the seed and returns what is wrong.
func (s *sim) run() []string {
	for s.steps < 400 {
		synctest.Wait()
		if s.done() {
			break
		}
		s.steps++
		s.act()
	}
	synctest.Wait()
	s.calm = true
	s.logf("calm")
	for _, w := range s.workers {
		w.frozen = false
	}
	for limit := s.steps + 20_000; s.steps < limit; {
		synctest.Wait()
		if s.done() {
			break
		}
		s.steps++
		s.act()
	}
	synctest.Wait()
	if !s.done() {
		s.problem("stuck: %s", s.stuck())
	}
	// Let everything that is left unwind.
	for _, w := range s.workers {
		w.dead = true
		w.cancel()
	}
	for i := 0; ; i++ {
		synctest.Wait()
		names := s.runnable(true)
		if len(names) == 0 {
			break
		}
		s.release(names[0])
	}
	s.check()
	return s.problems
}

func (s *sim) problem(format string, args ...any) {
	if len(s.problems) < 20 {
		s.problems = append(s.problems, fmt.Sprintf(format, args...))
	}
}

func (s *sim) done() bool {
	if len(s.parked) > 0 || len(s.items) > 0 {
		return false
	}
	for _, m := range s.messages {
		if !m.hint {
			return false
		}
	}
	for _, u := range s.units {
		if !u.ended() {
			return false
		}
	}
	return true
}

func (s *sim) stuck() string {
	var what []string
	for _, u := range s.units {
		if !u.ended() {
			what = append(what, u.name)
		}
	}
	for name, p := range s.parked {
		what = append(what, name+" at "+p.label)
	}
	slices.Sort(what)
	return fmt.Sprintf("%s (items %d, messages %d, timers %d)", strings.Join(what, ", "), len(s.items), len(s.messages),
		len(s.timers))
}

// runnable gives the parked actors that may go on, in a fixed order.
func (s *sim) runnable(frozenToo bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name, p := range s.parked {
		if p.ready() && (frozenToo || p.actor.w == nil || !p.actor.w.frozen || p.actor.w.dead) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (s *sim) release(name string) {
	s.mu.Lock()
	p := s.parked[name]
	delete(s.parked, name)
	s.mu.Unlock()
	s.logf("%s goes on at %s", name, p.label)
	close(p.ch)
}

// act does one thing.
func (s *sim) act() {
	type choice struct {
		weight int
		do     func()
	}
	var choices []choice
	add := func(weight int, do func()) { choices = append(choices, choice{weight, do}) }
	for _, name := range s.runnable(false) {
		add(10, func() { s.release(name) })
	}
	for _, it := range s.items {
		if w := s.taker(it); w != nil {
			add(6, func() { s.deliver(it, w) })
		}
	}
	for _, m := range s.messages {
		if m.by == nil && !m.after.After(s.now) {
			add(3, func() { s.bring(m) })
		}
	}
	s.timerChoices(func(do func()) { add(3, do) })
	if !s.calm && !s.f.none {
		add(1, func() { s.misfortune() })
		add(1, func() { s.advance(time.Duration(1+s.rng.IntN(3000)) * time.Millisecond) })
	}
	if len(choices) == 0 {
		s.advance(time.Second)
		return
	}
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	n := s.rng.IntN(total)
	for _, c := range choices {
		if n -= c.weight; n < 0 {
			c.do()
			return
		}
	}
}

// taker gives a worker that may take the item now, nil when it is held.
func (s *sim) taker(it *simItem) *simWorker {
	var alive []*simWorker
	for _, w := range s.workers {
		if !w.dead && !w.frozen && w.ctx.Err() == nil {
			alive = append(alive, w)
		}
	}
	if it.by != nil || len(alive) == 0 {
		return nil
	}
	for _, other := range s.items {
		if other.unit == it.unit && other.by != nil {
			return nil
		}
	}
	return alive[s.rng.IntN(len(alive))]
}

// deliver makes w execute the item's unit.
func (s *sim) deliver(it *simItem, w *simWorker) {
	first := it.first
	it.first = false
	it.by = s.spawn(w, it.unit.name, func(ctx context.Context, a *simActor) {
		mode := journal.Mode{First: first}
		if s.chance(30) {
			mode.Known = slices.Clone(s.log.units[it.unit.name])
			if s.point(ctx, "has read "+it.unit.name) != nil {
				return
			}
		}
		res, err := w.x.Execute(ctx, it.unit.name, mode)
		if w.dead {
			return
		}
		s.logf("%s: %s %v %v", a.name, res.Status, res.Waiting, err)
		if it.by != a {
			return // another has it by now
		}
		it.by = nil
		if err == nil && (res.Status == journal.Ended || res.Status == journal.Suspended) {
			s.items = slices.DeleteFunc(s.items, func(x *simItem) bool { return x == it })
		}
	})
	s.logf("%s gets %s (first %t)", it.by.name, it.unit.name, first)
}

// bring hands a message to some worker.
func (s *sim) bring(m *simMessage) {
	forget := func() { s.messages = slices.DeleteFunc(s.messages, func(x *simMessage) bool { return x == m }) }
	if m.cancel {
		m.by = s.spawn(nil, "gateway", func(ctx context.Context, a *simActor) {
			_, err := journal.RequestCancel(ctx, s.log, m.unit.name,
				journal.Record{ID: a.name, Body: []byte(`{"by":{"id":1}}`)})
			m.by = nil
			if err == nil {
				forget()
			}
		})
		return
	}
	var alive []*simWorker
	for _, w := range s.workers {
		if !w.dead && !w.frozen && w.ctx.Err() == nil {
			alive = append(alive, w)
		}
	}
	if len(alive) == 0 {
		return
	}
	if m.hint {
		for _, w := range alive {
			s.spawn(w, "hint", func(ctx context.Context, _ *simActor) { _ = w.x.Cancel(ctx, m.unit.name) })
		}
		forget()
		return
	}
	w := alive[s.rng.IntN(len(alive))]
	m.by = s.spawn(w, "signal", func(ctx context.Context, a *simActor) {
		msg := m.msg
		if s.f.eagerTimers {
			msg.Due = s.now
		}
		receipt, err := w.x.Signal(ctx, m.unit.name, msg)
		if w.dead {
			return
		}
		s.logf("%s: %s/%s %+v %v", a.name, m.unit.name, m.msg.Key, receipt, err)
		m.by = nil
		switch {
		case err != nil:
		case receipt.Hold > 0:
			m.after = s.now.Add(receipt.Hold)
		case m.copies > 0:
			m.copies--
		default:
			forget()
		}
	})
}

func (s *sim) timerChoices(add func(do func())) {
	type set struct {
		name string
		due  time.Time
	}
	var due []set
	for name, t := range s.timers {
		early := time.Duration(0)
		if !s.f.none {
			early = time.Second
		}
		if !t.Add(-early).After(s.now) {
			due = append(due, set{name, t})
		}
	}
	slices.SortFunc(due, func(a, b set) int { return cmp.Compare(a.name, b.name) })
	for _, d := range due {
		add(func() {
			unit, key, _ := strings.Cut(d.name, "/")
			delete(s.timers, d.name)
			m := &simMessage{unit: s.unit(unit), msg: journal.Message{Key: key, Timeout: true, Due: d.due}}
			if s.fault(20) {
				m.copies = 1
			}
			s.messages = append(s.messages, m)
			s.logf("timer %s fires", d.name)
		})
	}
}

// misfortune is what happens to workers and deliveries.
func (s *sim) misfortune() {
	w := s.workers[s.rng.IntN(len(s.workers))]
	switch s.rng.IntN(7) {
	case 0:
		s.kill(w)
	case 1:
		if !w.dead {
			w.frozen = true
			s.logf("%s freezes", w.name)
			s.lose(w)
		}
	case 2, 3:
		if w.frozen {
			w.frozen = false
			s.logf("%s wakes up", w.name)
		}
	case 4: // stops in order
		if !w.dead && !w.frozen && w.ctx.Err() == nil {
			s.logf("%s shuts down", w.name)
			w.cancel()
			s.lose(w)
			s.birth()
		}
	case 5: // a delivery is doubled
		u := s.units[s.rng.IntN(len(s.units))]
		s.items = append(s.items, &simItem{unit: u, first: s.chance(30) && !u.delivered()})
		s.logf("%s is delivered twice", u.name)
	case 6: // a delivery passes to another although its worker lives
		for _, it := range s.items {
			if it.by != nil && s.chance(50) {
				s.logf("%s loses %s", it.by.name, it.unit.name)
				it.by = nil
				return
			}
		}
	}
}

// kill ends a worker in the middle of whatever it does; another one is started.
func (s *sim) kill(w *simWorker) {
	if w.dead {
		return
	}
	w.dead = true
	s.logf("%s dies", w.name)
	s.lose(w)
	s.birth()
}

// lose gives everything that w holds to others.
func (s *sim) lose(w *simWorker) {
	for _, it := range s.items {
		if it.by != nil && it.by.w == w {
			it.by = nil
		}
	}
	for _, m := range s.messages {
		if m.by != nil && m.by.w == w {
			m.by = nil
		}
	}
}

// simulate runs one seed in a bubble of its own.
func simulate(t *testing.T, seed uint64, f faults, verbose bool) (problems, trace []string) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		s := newSim(seed, f, verbose)
		problems = s.run()
		trace = s.trace
	})
	return problems, trace
}
