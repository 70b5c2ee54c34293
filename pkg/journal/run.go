package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// Repeat says how an effect may be repeated after a crash.
type Repeat string

const (
	// Pure effects may be repeated at will: nothing outside changes. They have no intent, and their outcome is written
	// with the next record.
	Pure Repeat = "pure"
	// Idempotent effects are repeated under the same Call.Key, which makes the other side do it once.
	Idempotent Repeat = "idempotent"
	// Once effects are never repeated by themselves. After a crash the outcome is looked up or declared unknown.
	Once Repeat = "once"
)

// Effect describes a step to Do.
type Effect struct {
	Repeat      Repeat // required
	Description string // what is done, for people; in the intent; at most 1 KiB is kept
	Cost        Spent  // checked against the budget before, counted with the outcome

	// Lookup asks the other side what became of a once effect that was interrupted: found with its value; found with an
	// error, which is recorded as its failure; not found, recorded as unknown. An error without found is returned by Do
	// and not recorded. nil: nobody can tell, it is unknown.
	Lookup func(ctx context.Context, key string) (value json.RawMessage, found bool, err error)
}

// Call is handed to a step's function.
type Call struct {
	Key     string // unit and key: the same at every repetition of this step, different for every other
	Attempt int    // Run.Attempt

	mu    sync.Mutex
	spent Spent
}

// Spend adds what the call used to its outcome, and so to the unit's budgets. Safe for concurrent use.
func (c *Call) Spend(s Spent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spent = c.spent.plus(s)
}

// Arrival is what Await returns.
type Arrival struct {
	Value   json.RawMessage // what arrived; nil at a timeout
	Timeout bool            // the deadline passed first
}

// Run is a program's hold on its unit. Its methods are safe for concurrent use.
type Run struct {
	x    *Executor
	unit string
	base context.Context // Execute's: done when the process shuts down
	ctx  context.Context // the program's
	stop context.CancelCauseFunc
	gate gate // held while appending or reading the log

	mu       sync.Mutex
	st       *State
	attempt  int
	pending  []*item // entries not stored yet, in order
	bytes    int     // their size
	oldest   time.Time
	waits    []Entry // awaits of this pass
	running  map[string]*flight
	budget   Spent
	reserved Spent // costs of steps that are running
	mark     time.Time
	fate     error // set: nothing more is written
	halt     error // set: no further step; the attempt has failed
	overtime error // set: the budget of active time cut a step short
	refused  int   // appends refused though nothing was new
	closed   bool  // the program has returned for good
}

// item is an entry on its way into the log.
type item struct {
	Entry
	stored, dropped bool
}

// flight is a step that is running.
type flight struct {
	done chan struct{}
	cost Spent // reserved
}

// Unit gives the unit's name.
func (r *Run) Unit() string { return r.unit }

// Open gives the record that opened the unit.
func (r *Run) Open() Record { return *r.st.Open }

// Attempt counts the executions of the unit, from 1.
func (r *Run) Attempt() int { return r.attempt }

// Cancelled says whether the unit was cancelled.
func (r *Run) Cancelled() bool {
	_, yes := r.CancelRecord()
	return yes
}

// CancelRecord gives the record that cancelled the unit.
func (r *Run) CancelRecord() (Record, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.st.Cancel == nil {
		return Record{}, false
	}
	return *r.st.Cancel, true
}

// SetBudget sets what the unit may use in all its attempts; zero fields are unlimited.
func (r *Run) SetBudget(b Spent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.budget = b
}

// Spent gives what the unit has used in all its attempts, as far as it is recorded, and its active time until now.
func (r *Run) Spent() Spent {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spent()
}

func (r *Run) spent() Spent { return r.st.Spent.plus(Spent{ActiveMs: r.activeMs()}) }

// activeMs gives the active milliseconds that no entry has counted yet.
func (r *Run) activeMs() int32 {
	return int32(min(max(r.x.o.Clock.Now().Sub(r.mark).Milliseconds(), 0), 1<<30))
}

// takeActive counts them.
func (r *Run) takeActive() int32 {
	ms := r.activeMs()
	r.mark = r.mark.Add(time.Duration(ms) * time.Millisecond)
	return ms
}

// Do gives the outcome of the step key: the recorded one, or fn's, which is then recorded. Its error is a *Failure when
// the step failed and that is recorded. Not recorded, and to be passed on: ErrFenced, ErrCancelled, a BudgetError, the
// context's cause at shutdown, and an error of the log. At most one call of a key runs at a time; another waits for it.
// What fn returns is final: it retries by itself what a retry can help. The value comes back with the same bytes as
// after a crash and must not be changed.
//
// fn's ctx is ctx, which is also cancelled by whatever stops the unit; fn should then return soon. A step that it leaves
// with an error counts as interrupted, not as failed.
func (r *Run) Do(ctx context.Context, key string, e Effect,
	fn func(ctx context.Context, c *Call) (json.RawMessage, error)) (json.RawMessage, error) {
	if !ValidKey(key) {
		return nil, fault.New(fault.Invalid, "journal: %q cannot name a step", clip(key, 100))
	}
	if e.Repeat != Pure && e.Repeat != Idempotent && e.Repeat != Once {
		return nil, fault.New(fault.Invalid, "journal: step %s does not say how it may be repeated", key)
	}
	recorded, intent, err := r.begin(ctx, key, e)
	if err != nil {
		return nil, err
	}
	if recorded != nil {
		return recorded.outcome()
	}
	defer r.landed(key)

	if intent != nil && (e.Repeat == Once || intent.Repeat == Once) {
		return r.lookup(ctx, key, e)
	}
	if intent == nil && e.Repeat != Pure {
		it := r.queue(Entry{Kind: EntryIntent, Key: key, Repeat: e.Repeat, Description: clip(e.Description, 1<<10)})
		if err := r.flush(ctx, it); err != nil {
			return nil, err
		}
		if r.Cancelled() {
			if !it.dropped && e.Repeat == Once { // the log has an intent, but nothing was done
				r.queue(Entry{Kind: EntryOutcome, Key: key, Error: &EntryError{
					Class: ClassPermanent, Code: "cancelled", Message: "cancelled before it began"}})
			}
			return nil, ErrCancelled
		}
	} else if err := r.flushOld(ctx); err != nil {
		return nil, err
	}

	c := &Call{Key: r.unit + "/" + key, Attempt: r.attempt}
	value, err := r.call(ctx, c, fn)
	if err != nil {
		if panicked, ok := errors.AsType[*PanicError](err); ok {
			r.halted(panicked)
			return nil, panicked
		}
		if stop := r.interrupted(err); stop != nil {
			return nil, stop
		}
	}
	return r.record(ctx, key, e, c, value, err)
}

// begin gives what is recorded of key, or admits the step. intent is one of an earlier attempt, or of an earlier call
// that was interrupted.
func (r *Run) begin(ctx context.Context, key string, e Effect) (recorded, intent *Entry, err error) {
	for {
		r.mu.Lock()
		if r.fate != nil {
			r.mu.Unlock()
			return nil, nil, r.fate
		}
		if entry, ok := r.st.Outcomes[key]; ok {
			r.mu.Unlock()
			return &entry, nil, nil
		}
		if err := r.admits(); err != nil {
			r.mu.Unlock()
			return nil, nil, err
		}
		if other, ok := r.running[key]; ok {
			r.mu.Unlock()
			select {
			case <-other.done:
				continue
			case <-ctx.Done():
				return nil, nil, context.Cause(ctx)
			}
		}
		defer r.mu.Unlock()
		if err := r.budget.over(r.spent().plus(r.reserved), e.Cost); err != nil {
			return nil, nil, err
		}
		r.reserved = r.reserved.plus(e.Cost)
		r.running[key] = &flight{done: make(chan struct{}), cost: e.Cost}
		if entry, ok := r.st.Intents[key]; ok {
			return nil, &entry, nil
		}
		return nil, nil, nil
	}
}

// admits says why no further step or wait may begin. The caller holds mu.
func (r *Run) admits() error {
	limits := r.x.o.Limits
	switch {
	case r.fate != nil:
		return r.fate
	case r.closed:
		return errReturned
	case r.halt != nil:
		return r.halt
	case r.st.Cancel != nil:
		return ErrCancelled
	case r.base.Err() != nil:
		return context.Cause(r.base)
	case r.st.Entries+len(r.waits)+2*len(r.running) >= limits.Entries:
		return &Failure{Class: ClassPermanent, Code: CodeTooManyEntries,
			Message: fmt.Sprintf("this has more than %d steps", limits.Entries)}
	case r.st.Bytes >= limits.UnitBytes:
		return &Failure{Class: ClassPermanent, Code: CodeUnitTooLarge,
			Message: fmt.Sprintf("the results of this are larger than %d MiB together", limits.UnitBytes>>20)}
	}
	return nil
}

func (r *Run) landed(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release(key)
	close(r.running[key].done)
	delete(r.running, key)
}

// release gives back what the step reserved of the budgets. The caller holds mu.
func (r *Run) release(key string) {
	f := r.running[key]
	r.reserved = r.reserved.minus(f.cost)
	f.cost = Spent{}
}

// call runs fn under a context that everything that stops the unit cancels.
func (r *Run) call(ctx context.Context, c *Call, fn func(context.Context, *Call) (json.RawMessage, error)) (
	value json.RawMessage, err error) {
	ctx, stop := r.bound(ctx)
	defer stop()
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return fn(ctx, c)
}

func (r *Run) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(r.ctx, func() { cancel(context.Cause(r.ctx)) })
	r.mu.Lock()
	limit, left := r.budget.ActiveMs, time.Duration(0)
	if limit > 0 {
		left = time.Duration(limit-r.spent().ActiveMs) * time.Millisecond
	}
	r.mu.Unlock()
	unset := func() {}
	if limit > 0 {
		unset = r.x.o.Clock.AfterFunc(left, func() {
			r.mu.Lock()
			cut := &BudgetError{Which: "active_ms", Limit: int64(limit)}
			if r.halt == nil && r.st.Cancel == nil {
				r.overtime = cut
			}
			r.mu.Unlock()
			cancel(cut)
		})
	}
	return ctx, func() { unset(); unlink(); cancel(nil) }
}

// interrupted says what stopped the step that returned err, nil when it failed by itself.
func (r *Run) interrupted(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.fate != nil:
		return r.fate
	case r.st.Cancel != nil:
		return ErrCancelled
	case r.base.Err() != nil:
		return context.Cause(r.base)
	case r.overtime != nil:
		return r.overtime
	case errors.Is(err, ErrSuspended), errors.Is(err, ErrFenced), errors.Is(err, ErrCancelled):
		return fmt.Errorf("journal: a step cannot wait or nest: %w", err)
	}
	return nil
}

// lookup settles a once effect whose intent is recorded and whose outcome is not.
func (r *Run) lookup(ctx context.Context, key string, e Effect) (json.RawMessage, error) {
	unknown := &Failure{Class: ClassUnknown, Code: CodeUnknown,
		Message: "it was interrupted; whether it happened is unknown, and it is not repeated"}
	c := &Call{Key: r.unit + "/" + key, Attempt: r.attempt}
	if e.Lookup == nil {
		return r.record(ctx, key, e, c, nil, unknown)
	}
	var found bool
	value, err := r.call(ctx, c, func(ctx context.Context, c *Call) (v json.RawMessage, err error) {
		v, found, err = e.Lookup(ctx, c.Key)
		return v, err
	})
	if panicked, ok := errors.AsType[*PanicError](err); ok {
		r.halted(panicked)
		return nil, panicked
	}
	if err != nil && !found {
		if stop := r.interrupted(err); stop != nil {
			return nil, stop
		}
		return nil, fmt.Errorf("journal: look up %s: %w", key, err)
	}
	if !found {
		err = unknown
	}
	return r.record(ctx, key, e, c, value, err)
}

// record makes the outcome of what fn returned a fact.
func (r *Run) record(ctx context.Context, key string, e Effect, c *Call, value json.RawMessage, err error) (
	json.RawMessage, error) {
	entry := Entry{Kind: EntryOutcome, Key: key}
	if err == nil {
		entry.Value, entry.Error = r.x.o.Limits.fit(value)
	} else {
		entry.Error = describe(err)
	}
	c.mu.Lock()
	spent := e.Cost.plus(c.spent)
	c.mu.Unlock()

	r.mu.Lock()
	if r.fate != nil || r.closed {
		defer r.mu.Unlock()
		if r.fate != nil {
			return nil, r.fate
		}
		return nil, errReturned
	}
	spent.ActiveMs = add(spent.ActiveMs, r.takeActive())
	if spent != (Spent{}) {
		entry.Spent = &spent
	}
	r.release(key)
	it := r.queueLocked(entry)
	r.mu.Unlock()
	if e.Repeat != Pure {
		if err := r.flush(ctx, it); err != nil {
			return nil, err
		}
	}
	return entry.outcome()
}

func (e Entry) outcome() (json.RawMessage, error) {
	if e.Error != nil {
		return nil, e.Error.failure()
	}
	return e.Value, nil
}

// fit gives a value as it is stored, or why it cannot be.
func (l Limits) fit(value json.RawMessage) (json.RawMessage, *EntryError) {
	if len(value) > 8*l.EntryBytes {
		return nil, l.tooLarge(len(value))
	}
	value, err := canonical(value)
	if err != nil {
		return nil, &EntryError{Class: ClassPermanent, Code: CodeInvalidOutput,
			Message: "the result is not valid JSON"}
	}
	if len(value) > l.EntryBytes {
		return nil, l.tooLarge(len(value))
	}
	return value, nil
}

func (l Limits) tooLarge(size int) *EntryError {
	return &EntryError{Class: ClassPermanent, Code: CodeOutputTooLarge,
		Message: fmt.Sprintf("the result has %d KiB, more than the %d KiB that can be kept", size>>10, l.EntryBytes>>10)}
}

// describe gives the recorded form of a step's error.
func describe(err error) *EntryError {
	if f, ok := errors.AsType[*Failure](err); ok {
		return &EntryError{Class: clip(f.Class, 64), Code: clip(f.Code, 64), Message: clip(f.Message, 4<<10)}
	}
	return &EntryError{Class: string(fault.ClassOf(err)), Code: clip(string(fault.CodeOf(err)), 64),
		Message: clip(fault.MessageOf(err), 4<<10)}
}

// Await gives the first signal for key, also one that arrived before. Without one it returns ErrSuspended: the program
// returns, the unit is suspended, and called again when a signal is there. At deadline a signal with Timeout arrives;
// the deadline of the first suspension stays, whatever later calls say. A zero deadline waits for ever. A signal whose
// value was too large to keep is returned as a *Failure.
// A program may wait for several keys before it returns (see Parallel); any of them makes it go on.
func (r *Run) Await(_ context.Context, key string, deadline time.Time) (Arrival, error) {
	if !ValidKey(key) {
		return Arrival{}, fault.New(fault.Invalid, "journal: %q cannot name a wait", clip(key, 100))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fate != nil {
		return Arrival{}, r.fate
	}
	if s, ok := r.st.Signals[key]; ok {
		if s.Error != nil {
			return Arrival{}, s.Error.failure()
		}
		return Arrival{Value: s.Value, Timeout: s.Timeout}, nil
	}
	if err := r.admits(); err != nil {
		return Arrival{}, err
	}
	for _, w := range r.waits {
		if w.Key == key {
			return Arrival{}, ErrSuspended
		}
	}
	if len(r.waits) >= maxWaits {
		return Arrival{}, &Failure{Class: ClassPermanent, Code: CodeTooManyEntries,
			Message: fmt.Sprintf("this waits for more than %d things at once", maxWaits)}
	}
	if before, ok := r.st.Awaits[key]; ok {
		deadline = before.Deadline
	}
	if deadline.Year() > 9999 { // not a time in protobuf or JSON
		deadline = time.Time{}
	}
	if !deadline.IsZero() {
		deadline = deadline.UTC().Truncate(time.Millisecond)
	}
	r.waits = append(r.waits, Entry{Kind: EntryAwait, Key: key, Deadline: deadline})
	return Arrival{}, ErrSuspended
}

// errReturned is what goroutines get that a program left behind.
var errReturned = errors.New("journal: the program has returned already")

// maxWaits keeps all waits of a suspension in one record.
const maxWaits = 1000

// Do is Run.Do for a function that returns a T, which is kept as JSON.
func Do[T any](ctx context.Context, r *Run, key string, e Effect,
	fn func(ctx context.Context, c *Call) (T, error)) (T, error) {
	var v T
	raw, err := r.Do(ctx, key, e, func(ctx context.Context, c *Call) (json.RawMessage, error) {
		v, err := fn(ctx, c)
		if err != nil {
			return nil, err
		}
		return marshal(v)
	})
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, fmt.Errorf("journal: outcome of %s is no %T: %w", key, v, err)
	}
	return v, nil
}
