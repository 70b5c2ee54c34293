package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// Options of an Executor. Log, Timers and Worker are required.
type Options struct {
	Log    Log
	Timers Timers
	Worker string        // this executor's name, unique per start of the process
	Clock  Clock         // default SystemClock
	NewID  func() string // ids of appends; default <worker>-<n>
	Limits Limits
	Budget Spent         // of every unit, unless its program sets another; zero fields are unlimited
	Grace  time.Duration // how long an append may take once Execute's context is done. Default 5 s.
	Logger *slog.Logger  // default: none

	// MaxAttempts is how many attempts in a row may bring no new outcome before the unit is ended as poison. Default 5.
	MaxAttempts int
	// MaxCrashes is how often a unit may be claimed other than to resume it after a wait. Default 100.
	MaxCrashes int

	// Poison gives the End of a unit that cannot be brought to one by its program: reason is CodePoison, or
	// CodeOutputTooLarge or CodeInvalidOutput for an End whose result cannot be stored. Default: status failed.
	Poison func(run *Run, reason string) End
	// Park keeps a unit ended as poison for inspection; called after its End is stored, an error is only logged.
	Park func(ctx context.Context, unit, reason string) error
	// Stopped gives the End of a cancelled unit: end is what its program returned, perhaps without knowing of the
	// cancel, nil when it returned an error. Default: end, else status stopped. Like Poison, it must not call Do or Await.
	// A cancel that is written while an End is being appended is either before it, and Stopped is asked, or refused.
	Stopped func(run *Run, end *End) End
}

// Mode says how Execute came to its unit.
type Mode struct {
	// First: the first delivery of the record that opened the unit, to anyone. Such an execution needs no claim.
	First bool
	// Known are records already read, from the unit's first on without gaps; they spare a Load.
	Known []Record
}

// Status says what became of an execution.
type Status string

// What may become of an execution.
const (
	Ended     Status = "ended"     // the unit has its End, from now or before: acknowledge
	Suspended Status = "suspended" // the unit waits for a signal: acknowledge
	Fenced    Status = "fenced"    // another worker has it: keep the delivery until it is ended or suspended
	Busy      Status = "busy"      // this executor is executing it already: as Fenced
)

// Result of an execution.
type Result struct {
	Status  Status
	End     *End     // Ended
	New     bool     // Ended: by this execution
	Waiting []string // Suspended: the keys
	Last    uint64   // sequence of the unit's last record that is known
	Attempt int
}

// Executor executes units. It is safe for concurrent use.
type Executor struct {
	program Program
	o       Options
	newGate func() gate
	ids     atomic.Uint64

	mu      sync.Mutex
	running map[string]*Run
	hinted  []string // units hinted as cancelled that were not running, the newest last
}

// maxHinted is how many hints are kept for units that are about to be executed with records read before the cancel.
const maxHinted = 256

// NewExecutor makes an executor; it starts nothing.
func NewExecutor(p Program, o Options) (*Executor, error) {
	if p == nil || o.Log == nil || o.Timers == nil || o.Worker == "" {
		return nil, errors.New("journal: an executor needs a program, a log, timers and a worker's name")
	}
	x := &Executor{program: p, o: o, running: make(map[string]*Run)}
	x.newGate = func() gate { return make(chanGate, 1) }
	if o.Clock == nil {
		x.o.Clock = SystemClock{}
	}
	if o.NewID == nil {
		x.o.NewID = func() string { return o.Worker + "-" + strconv.FormatUint(x.ids.Add(1), 10) }
	}
	if o.Logger == nil {
		x.o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxAttempts <= 0 {
		x.o.MaxAttempts = 5
	}
	if o.MaxCrashes <= 0 {
		x.o.MaxCrashes = 100
	}
	if o.Grace <= 0 {
		x.o.Grace = 5 * time.Second
	}
	x.o.Limits = o.Limits.withDefaults()
	if o.Poison == nil {
		x.o.Poison = func(_ *Run, reason string) End { return End{Status: "failed", Reason: reason} }
	}
	if o.Stopped == nil {
		x.o.Stopped = func(_ *Run, end *End) End {
			if end != nil {
				return *end
			}
			return End{Status: "stopped", Reason: "cancelled"}
		}
	}
	return x, nil
}

// Execute brings the unit on as far as it goes, and blocks meanwhile. An error means that the attempt failed and the
// unit is open: call Execute again later, here or elsewhere (fault.ClassOf says whether soon). Calling it for a unit that
// has ended or is suspended does no harm. When ctx is cancelled (the process shuts down), what was done is written, and
// the cause is returned.
func (x *Executor) Execute(ctx context.Context, unit string, m Mode) (Result, error) {
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}
	r := &Run{x: x, unit: unit, base: ctx, gate: x.newGate(), budget: x.o.Budget,
		running: make(map[string]*flight)}
	r.ctx, r.stop = context.WithCancelCause(ctx)
	defer r.stop(nil)
	r.gate.lock(ctx) // a Cancel that comes before the journal is read waits, and then reads what is newer
	if !x.enter(r) {
		r.gate.unlock()
		return Result{Status: Busy}, nil
	}
	defer x.leave(r)
	if x.wasHinted(unit) {
		m.Known = nil
	}
	res, own, err := r.start(ctx, m)
	r.gate.unlock()
	if err != nil || !own {
		return res, err
	}
	return r.perform(ctx)
}

func (x *Executor) enter(r *Run) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.running[r.unit] != nil {
		return false
	}
	x.running[r.unit] = r
	return true
}

func (x *Executor) leave(r *Run) {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.running, r.unit)
}

// Cancel is the hint that a cancel record was written: it is looked for, and the running program told at once. It does
// nothing when the unit is not executing here: whoever executes it next finds the record. It may wait for an append.
// Without the hint the record is found by the next append: before the next effect outside, or at the End.
func (x *Executor) Cancel(ctx context.Context, unit string) error {
	x.mu.Lock()
	r := x.running[unit]
	if r == nil {
		if len(x.hinted) == maxHinted {
			x.hinted = slices.Delete(x.hinted, 0, 1)
		}
		x.hinted = append(x.hinted, unit)
	}
	x.mu.Unlock()
	if r == nil {
		return nil
	}
	return r.refresh(ctx)
}

// wasHinted says whether a hint came shortly before unit was executed, so that Mode.Known may be too old.
func (x *Executor) wasHinted(unit string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := len(x.hinted)
	x.hinted = slices.DeleteFunc(x.hinted, func(u string) bool { return u == unit })
	return len(x.hinted) < n
}

// start reads the journal and makes the unit this run's own: own says whether it is, else the result says what else is
// to do. The caller holds the gate.
func (r *Run) start(ctx context.Context, m Mode) (res Result, own bool, err error) {
	records := m.Known
	if len(records) == 0 {
		if records, err = r.x.o.Log.Load(ctx, r.unit, 0); err != nil {
			return res, false, fault.Wrap(err, fault.Unavailable, "the log cannot be read for %s", r.unit)
		}
	}
	st := Fold(records)
	if st.Open == nil {
		return res, false, fault.New(fault.NotFound, "journal: there is no unit %s", r.unit)
	}
	r.mu.Lock()
	r.st = st
	r.mu.Unlock()
	stale := len(m.Known) > 0
	for {
		if stale && st.Suspended() { // what it waits for may have come since
			newer, err := r.x.o.Log.Load(ctx, r.unit, st.Last)
			if err != nil {
				return res, false, fault.Wrap(err, fault.Unavailable, "the log cannot be read for %s", r.unit)
			}
			for _, n := range newer {
				st.Apply(n)
			}
			stale = false
		}
		switch {
		case st.End != nil:
			return r.result(Ended), false, nil
		case m.First && st.Holder != "" && st.Holder != r.x.o.Worker:
			return r.result(Fenced), false, nil
		case st.Suspended():
			return r.result(Suspended), false, r.setTimers(ctx)
		case m.First && st.Holder == "":
			return r.owned(st.Attempt)
		case st.Tries >= r.x.o.MaxAttempts || st.Crashes >= r.x.o.MaxCrashes:
			res, err := r.poison(ctx)
			return res, false, err
		}
		attempt := st.Attempt + 1
		rec := Record{ID: r.x.o.NewID(), Kind: KindStep, Worker: r.x.o.Worker,
			Entries: []Entry{{Kind: EntryClaim, Attempt: int32(attempt)}}}
		seq, err := r.x.o.Log.Append(ctx, r.unit, st.Last, rec)
		if err == nil {
			rec.Seq = seq
			st.Apply(rec)
			return r.owned(attempt)
		}
		if !errors.Is(err, ErrConflict) {
			return res, false, fault.Wrap(err, fault.Unavailable, "the log did not confirm a claim of %s", r.unit)
		}
		// The worker before may still be writing: that does not matter, it is about to be fenced. Another claim does.
		newer, err := r.x.o.Log.Load(ctx, r.unit, st.Last)
		if err == nil && len(newer) == 0 {
			err = r.refusedForNothing(ctx)
		}
		if errors.Is(err, ErrFenced) {
			return r.result(Fenced), false, nil
		}
		if err != nil {
			return res, false, fault.Wrap(err, fault.Unavailable, "the log cannot be read for %s", r.unit)
		}
		claimed := false
		for _, n := range newer {
			st.Apply(n)
			for _, e := range n.Entries {
				claimed = claimed || n.Kind == KindStep && e.Kind == EntryClaim
			}
		}
		if claimed && st.End == nil {
			return r.result(Fenced), false, nil
		}
	}
}

func (r *Run) owned(attempt int) (Result, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempt = attempt
	r.mark = r.x.o.Clock.Now()
	if r.st.Cancel != nil {
		r.stop(ErrCancelled)
	}
	return Result{}, true, nil
}

// perform calls the program until its unit has ended or is suspended.
func (r *Run) perform(ctx context.Context) (Result, error) {
	for {
		r.mu.Lock()
		r.waits = nil
		r.mu.Unlock()
		end, err := r.callProgram()
		r.mu.Lock()
		fate, halt, waits, cancelled := r.fate, r.halt, len(r.waits), r.st.Cancel != nil
		r.mu.Unlock()
		switch {
		case fate != nil:
			return r.doomed(fate)
		case cancelled && errors.Is(err, ErrSuspended) && waits > 0:
			continue // the cancel came after Await: let the program say how it ends
		case cancelled && (err != nil || halt != nil || end.Status == ""):
			return r.finish(ctx, r.x.o.Stopped(r, nil), true)
		case cancelled:
			return r.finish(ctx, r.x.o.Stopped(r, &end), true)
		case halt != nil:
			return r.failed(ctx, halt)
		case err == nil && end.Status == "":
			return r.failed(ctx, errors.New("journal: the program returned an end without a status"))
		case err == nil:
			return r.finish(ctx, end, false)
		case errors.Is(err, ErrSuspended) && waits > 0:
			res, again, err := r.suspend(ctx)
			if again {
				continue
			}
			return res, err
		default:
			return r.failed(ctx, err)
		}
	}
}

func (r *Run) callProgram() (end End, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return r.x.program(r.ctx, r)
}

// suspend writes what the program waits for. again says that something of it has arrived, or a cancel: the program is to
// be called once more.
func (r *Run) suspend(ctx context.Context) (res Result, again bool, err error) {
	r.gate.lock(ctx)
	defer r.gate.unlock()
	if again, err = r.writeWaits(ctx); err != nil {
		res, err = r.doomed(err)
		return res, false, err
	}
	if again {
		return res, true, nil
	}
	return r.result(Suspended), false, r.setTimers(ctx)
}

func (r *Run) writeWaits(ctx context.Context) (again bool, err error) {
	r.mu.Lock()
	size := 0
	for i := range r.waits {
		size += r.waits[i].size()
		if _, arrived := r.st.Signals[r.waits[i].Key]; arrived {
			again = true
		}
	}
	again = again || r.st.Cancel != nil
	var before *item
	if n := len(r.pending); n > 0 && r.bytes+size > r.x.o.Limits.RecordBytes {
		before = r.pending[n-1]
	}
	r.mu.Unlock()
	if again {
		return true, nil
	}
	if before != nil { // all waits belong into one record
		if err := r.flushHeld(ctx, before); err != nil {
			return false, err
		}
	}
	r.mu.Lock()
	r.waits[0].Spent = nil
	if ms := r.takeActive(); ms > 0 {
		r.waits[0].Spent = &Spent{ActiveMs: ms}
	}
	var last *item
	for _, w := range r.waits {
		last = r.queueLocked(w)
	}
	r.mu.Unlock()
	if err := r.flushHeld(ctx, last); err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = r.st.Suspended()
	return !r.closed, nil
}

// setTimers sets the timers of a suspended unit, again when it was found suspended: its worker may have died between
// the record and the timer.
func (r *Run) setTimers(ctx context.Context) error {
	ctx, done := r.writing(ctx)
	defer done()
	r.mu.Lock()
	waiting, awaits := r.st.Waiting, r.st.Awaits
	r.mu.Unlock()
	for _, key := range waiting {
		if due := awaits[key].Deadline; !due.IsZero() {
			if err := r.x.o.Timers.Set(ctx, r.unit, key, due); err != nil {
				return fault.Wrap(err, fault.Unavailable, "a timer of %s cannot be set", r.unit)
			}
		}
	}
	return nil
}

// failed gives up the attempt, not the unit, and keeps what was done.
func (r *Run) failed(ctx context.Context, cause error) (Result, error) {
	r.mu.Lock()
	r.drop()
	var last *item
	if n := len(r.pending); n > 0 {
		last = r.pending[n-1]
	}
	r.mu.Unlock()
	if last != nil {
		if err := r.flush(ctx, last); errors.Is(err, ErrFenced) {
			return r.doomed(err)
		}
	}
	if r.base.Err() != nil {
		return r.result(""), context.Cause(r.base)
	}
	if p, ok := errors.AsType[*PanicError](cause); ok {
		r.x.o.Logger.Error("program panicked", "unit", r.unit, "attempt", r.attempt, "panic", fmt.Sprint(p.Value),
			"stack", string(p.Stack))
	}
	return r.result(""), fmt.Errorf("journal: attempt %d at %s failed: %w", r.attempt, r.unit, cause)
}

// doomed gives the result of a run that may not write any more.
func (r *Run) doomed(fate error) (Result, error) {
	if errors.Is(fate, ErrFenced) {
		if res := r.result(Ended); res.End != nil {
			return res, nil
		}
		return r.result(Fenced), nil
	}
	return r.result(""), fate
}

func (r *Run) result(s Status) Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := Result{Status: s, Last: r.st.Last, Attempt: r.attempt}
	switch s {
	case Ended:
		res.End = r.st.End
	case Suspended:
		res.Waiting = r.st.Waiting
	}
	return res
}
