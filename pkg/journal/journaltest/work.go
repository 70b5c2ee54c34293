package journaltest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/journal"
)

const (
	workUnits   = 60
	workWorkers = 3
)

// work runs units on workers that die, freeze and are robbed, with goroutines and in real time.
type work struct {
	t      *testing.T
	b      Backend
	ctx    context.Context
	queue  chan delivery
	faulty func() bool

	mu      sync.Mutex
	rng     *rand.Rand
	born    int
	runs    map[string]int // executions of effects by idempotency key
	left    map[string]bool
	done    chan struct{}
	current *crew // for signals
	over    bool  // nothing more is started
	started sync.WaitGroup
}

type delivery struct {
	unit  string
	first bool
}

// crew is one worker: an executor whose log can fail for good.
type crew struct {
	w    *work
	name string
	x    *journal.Executor
	log  journal.Log
	mu   sync.Mutex
	dead bool
}

var errDead = errors.New("this worker is dead")

func (c *crew) isDead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

func (c *crew) die() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = true
	return errDead
}

// Load implements journal.Log.
func (c *crew) Load(ctx context.Context, unit string, after uint64) ([]journal.Record, error) {
	if c.isDead() {
		return nil, errDead
	}
	return c.log.Load(ctx, unit, after)
}

// Append implements journal.Log.
func (c *crew) Append(ctx context.Context, unit string, expect uint64, rec journal.Record) (uint64, error) {
	switch {
	case c.isDead():
		return 0, errDead
	case c.w.chance(2): // before it is stored
		return 0, c.die()
	case c.w.chance(2): // frozen while another takes over
		c.w.deliver(delivery{unit: unit})
		c.w.pause(30 * time.Millisecond)
	}
	seq, err := c.log.Append(ctx, unit, expect, rec)
	if c.w.chance(2) { // after it was stored
		return 0, c.die()
	}
	return seq, err
}

func (w *work) chance(percent int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.faulty() && w.rng.IntN(100) < percent
}

func (w *work) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.ctx.Done():
	}
}

// later runs f after d in a goroutine, unless the work is over by then.
func (w *work) later(d time.Duration, f func()) {
	time.AfterFunc(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.over {
			w.started.Go(f)
		}
	})
}

func (w *work) deliver(d delivery) {
	select {
	case w.queue <- d:
	case <-w.ctx.Done():
	}
}

func (w *work) hire() *crew {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.born++
	c := &crew{w: w, name: fmt.Sprintf("w%d", w.born), log: w.b.Log}
	x, err := journal.NewExecutor(w.program, journal.Options{Log: c, Timers: w.b.Timers, Worker: c.name, MaxAttempts: 50})
	if err != nil {
		w.t.Fatal(err)
	}
	c.x = x
	w.current = c
	return c
}

// serve takes deliveries until the work is done; a dead worker is replaced.
func (w *work) serve() {
	c := w.hire()
	for {
		var d delivery
		select {
		case <-w.done:
			return
		case <-w.ctx.Done():
			return
		case d = <-w.queue:
		}
		if c.isDead() {
			c = w.hire()
		}
		res, err := c.x.Execute(w.ctx, d.unit, journal.Mode{First: d.first})
		switch {
		case w.ctx.Err() != nil:
			return
		case err == nil && res.Status == journal.Ended:
			w.ended(d.unit)
		case err == nil && res.Status == journal.Suspended:
		default:
			w.later(20*time.Millisecond, func() { w.deliver(delivery{unit: d.unit}) })
		}
	}
}

func (w *work) ended(unit string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if delete(w.left, unit); len(w.left) == 0 {
		select {
		case <-w.done:
		default:
			close(w.done)
		}
	}
}

// signal brings m until somebody has recorded it, and then has the unit executed.
func (w *work) signal(unit string, m journal.Message) {
	w.mu.Lock()
	c := w.current
	w.mu.Unlock()
	if c == nil || c.isDead() {
		c = w.hire()
	}
	receipt, err := c.x.Signal(w.ctx, unit, m)
	switch {
	case w.ctx.Err() != nil:
	case err != nil:
		w.later(20*time.Millisecond, func() { w.signal(unit, m) })
	case receipt.Hold > 0:
		w.later(receipt.Hold, func() { w.signal(unit, m) })
	default:
		w.deliver(delivery{unit: unit})
	}
}

func (w *work) effect(_ context.Context, c *journal.Call) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs[c.Key]++
	return fmt.Sprintf("run %d of %s <&>", w.runs[c.Key], c.Key), nil
}

// program has one of everything; its end says what it saw.
func (w *work) program(ctx context.Context, run *journal.Run) (journal.End, error) {
	saw := make([]string, 7)
	do := func(ctx context.Context, i int, key string, repeat journal.Repeat) error {
		v, err := journal.Do(ctx, run, key, journal.Effect{Repeat: repeat, Cost: journal.Spent{ToolCalls: 1}}, w.effect)
		if f, ok := errors.AsType[*journal.Failure](err); ok {
			v, err = "failed "+f.Class, nil
		}
		saw[i] = v
		return err
	}
	wait := func(i int, key string, deadline time.Time) error {
		got, err := run.Await(ctx, key, deadline)
		saw[i] = fmt.Sprintf("%s %t", got.Value, got.Timeout)
		return err
	}
	err := do(ctx, 0, "model", journal.Pure)
	if err == nil {
		err = journal.Parallel(ctx, 3, 0, func(ctx context.Context, i int) error {
			return do(ctx, 1+i, fmt.Sprintf("tool-%d", i), []journal.Repeat{journal.Once, journal.Idempotent, journal.Pure}[i])
		})
	}
	if err == nil {
		err = wait(4, "answer", time.Now().Add(time.Hour))
	}
	if err == nil {
		err = wait(5, "timer", time.Now().Add(200*time.Millisecond))
	}
	if err == nil {
		err = do(ctx, 6, "last", journal.Once)
	}
	if err != nil {
		return journal.End{}, err
	}
	result, err := json.Marshal(saw)
	return journal.End{Status: "answered", Result: result}, err
}

func checkWork(t *testing.T, factory Factory) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	calm := time.Now().Add(5 * time.Second)
	w := &work{t: t, ctx: ctx, queue: make(chan delivery, 100*workUnits), rng: rand.New(rand.NewPCG(1, 2)),
		runs: map[string]int{}, left: map[string]bool{}, done: make(chan struct{}),
		faulty: func() bool { return time.Now().Before(calm) }}
	fire := func(unit, key string, due time.Time) {
		w.later(0, func() { w.signal(unit, journal.Message{Key: key, Timeout: true, Due: due}) })
	}
	w.b = factory(t, fire)
	if w.b.Timers == nil {
		w.b.Timers = goTimers{fire}
	}
	units := make([]string, workUnits)
	for i := range units {
		units[i] = w.b.Unit(i + 1)
		w.left[units[i]] = true
		require.NoError(t, w.b.Open(ctx, units[i], []byte(`{"text":"work"}`)))
	}
	var serving sync.WaitGroup
	for range workWorkers {
		serving.Go(w.serve)
	}
	for i, unit := range units {
		w.deliver(delivery{unit: unit, first: true})
		if i%5 == 0 {
			w.deliver(delivery{unit: unit, first: i%2 == 0})
		}
		for n := range 1 + i%2 {
			w.signal(unit, journal.Message{Key: "answer", Value: fmt.Appendf(nil, "%d", n)})
		}
		if i%6 == 5 {
			_, err := journal.RequestCancel(ctx, w.b.Log, unit, journal.Record{ID: "cancel-" + unit, Body: []byte(`{}`)})
			require.NoError(t, err)
			w.deliver(delivery{unit: unit})
		}
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		w.mu.Lock()
		t.Errorf("stuck: %v", w.left)
		w.mu.Unlock()
	}
	cancel()
	serving.Wait()
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.started.Wait()

	ctx = context.WithoutCancel(ctx)
	answered := 0
	for _, unit := range units {
		records, err := w.b.Log.Load(ctx, unit, 0)
		require.NoError(t, err)
		require.NoError(t, CheckUnit(records), unit)
		st := journal.Fold(records)
		if st.End != nil && st.End.Status == "answered" {
			answered++
			checkSaw(t, unit, st)
		}
	}
	require.GreaterOrEqual(t, answered, workUnits/2)
	for _, unit := range units {
		for _, key := range []string{"tool-0", "last"} {
			require.LessOrEqual(t, w.runs[unit+"/"+key], 1, "once effect %s of %s", key, unit)
		}
	}
}

func checkSaw(t *testing.T, unit string, st *journal.State) {
	var saw []string
	require.NoError(t, json.Unmarshal(st.End.Result, &saw))
	for i, key := range []string{"model", "tool-0", "tool-1", "tool-2", "", "", "last"} {
		if key == "" {
			continue
		}
		e := st.Outcomes[key]
		want := ""
		if e.Error != nil {
			want = "failed " + e.Error.Class
		} else {
			require.NoError(t, json.Unmarshal(e.Value, &want))
		}
		require.Equal(t, want, saw[i], "%s of %s", key, unit)
	}
	require.Equal(t, fmt.Sprintf("%s false", st.Signals["answer"].Value), saw[4], unit)
	require.Equal(t, " true", saw[5], unit)
}

// goTimers are timers in memory that are never cleared.
type goTimers struct {
	fire func(unit, key string, due time.Time)
}

// Set implements journal.Timers.
func (g goTimers) Set(_ context.Context, unit, key string, due time.Time) error {
	time.AfterFunc(time.Until(due), func() { g.fire(unit, key, due) })
	return nil
}

// Clear implements journal.Timers.
func (g goTimers) Clear(context.Context, string, string) error { return nil }
