// Package journal is durable work: a function that survives the death of the process it runs in. Turns of a
// conversation and runs of agent graphs are units of work; nothing else in Butler implements waiting, retrying across
// restarts, or doing something exactly once.
//
// A unit has a journal: the records on its subjects, in the order of their sequence numbers. The first record opens the
// unit and is written by someone else (a person's message). The worker that executes the unit calls a Program, which
// does everything that must not be forgotten through Run.Do and waits through Run.Await. When the worker dies, another
// loads the journal and calls the program again: what is recorded is returned instead of done. So a program must take
// the same path when it is given the same outcomes: anything that may differ (time, chance, what a service says)
// belongs into a Do.
//
// # A unit's life
//
//	          First, or a claim
//	┌──────┐ ────────────────────► ┌───────────┐  End record   ┌───────┐
//	│ open │                       │ executing │ ────────────► │ ended │
//	└──────┘      ┌─────────────── └───────────┘               └───────┘
//	              │ await entries   ▲    │  ▲                      ▲
//	              ▼                 │    │  │ claim (takeover,     │ End record by the executor:
//	        ┌───────────┐  signal or│    │  │ retry)               │ attempts used up (poison)
//	        │ suspended │ ──────────┘    ▼  │                      │
//	        └───────────┘  cancel,  ┌─────────────┐                │
//	                       claim    │ interrupted │ ───────────────┘
//	                                └─────────────┘
//
// Executing, suspended and interrupted are not stored: they follow from the records. A unit is suspended when its last
// step holds await entries; a worker writes these only after its program has returned, so that nothing of the unit is
// being done any more. Every record is appended on condition that nothing else was appended to the unit since its
// writer last read it. A claim is such a record: the worker that had the unit before fails its next append, finds the
// claim, and stops with ErrFenced. What others may add (signals, cancels) does not fence.
//
// # What is written when
//
// A pure outcome (a model's answer) waits in memory for the next record: a unit whose program does one pure step and
// ends costs its worker one append. An effect outside has an intent appended before it and its outcome at once after.
// A wait costs one append, and the resume another (the claim).
package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

var (
	// ErrConflict is what a Log's Append returns when the unit has records that its writer did not know of.
	ErrConflict = errors.New("journal: the unit has newer records")
	// ErrFenced says that another worker took the unit over, or that it is gone: this one writes nothing any more.
	ErrFenced = errors.New("journal: another worker took over")
	// ErrSuspended is returned by Await when the program must return and will be called again once the signal is there.
	ErrSuspended = errors.New("journal: suspended until a signal arrives")
	// ErrCancelled is returned by Do and Await when the unit was cancelled; the program should end with what it has.
	ErrCancelled = errors.New("journal: the unit was cancelled")
	// ErrBudget is in the chain of every BudgetError.
	ErrBudget = errors.New("journal: budget used up")
)

// Log stores the records of units. All writers of a unit, in every process, use the same condition: the last sequence
// over all the unit's subjects. Implementations are safe for concurrent use and bound the time of every call.
type Log interface {
	// Load returns the unit's records with a sequence above after, in order; all of them that were acknowledged before
	// the call. No records and no error when there are none.
	Load(ctx context.Context, unit string, after uint64) ([]Record, error)

	// Append stores rec if the unit's last sequence is expect, and returns the sequence it got; rec.Seq and rec.At are
	// ignored. A refused append is read back: if a record with rec.ID is there, that is success (its sequence is
	// returned), else ErrConflict. An append whose outcome is unknown is retried with the same id; any error other than
	// ErrConflict means that the record may or may not be stored.
	Append(ctx context.Context, unit string, expect uint64, rec Record) (uint64, error)
}

// Timers wakes units. When a timer is due, its owner calls Executor.Signal with Timeout and Due set.
type Timers interface {
	// Set sets the timer of (unit, key), replacing an earlier one; a due time in the past fires at once.
	Set(ctx context.Context, unit, key string, due time.Time) error
	// Clear calls the timer off; no error when there is none. One that fires all the same does no harm.
	Clear(ctx context.Context, unit, key string) error
}

// Clock is the time. AfterFunc calls f in a goroutine of its own once d has passed, unless stop is called before.
type Clock interface {
	Now() time.Time
	AfterFunc(d time.Duration, f func()) (stop func())
}

// SystemClock is the machine's clock.
type SystemClock struct{}

// Now gives the time in UTC.
func (SystemClock) Now() time.Time { return time.Now().UTC() }

// AfterFunc is time.AfterFunc.
func (SystemClock) AfterFunc(d time.Duration, f func()) func() {
	t := time.AfterFunc(d, f)
	return func() { t.Stop() }
}

// Program is the work. It is called again from the start, on any worker, until it returns an End; see the package
// comment for what that asks of it. ctx is cancelled when the unit is cancelled, fenced, or the process shuts down
// (context.Cause says which). A program passes on ErrSuspended, ErrFenced and, unless it has an End for that,
// ErrCancelled. Any other error leaves the unit open: the attempt failed, another one may follow.
// A program that starts goroutines waits for them before it returns; Parallel does.
type Program func(ctx context.Context, run *Run) (End, error)

// Limits bound a unit. Zero values mean the defaults.
type Limits struct {
	// EntryBytes bounds one value; a larger outcome is recorded as the failure output_too_large. Default 512 KiB.
	EntryBytes int
	// RecordBytes bounds one record, which must fit one message. Default 900 KiB.
	RecordBytes int
	// Entries bounds the number of entries of a unit; then Do and Await fail with too_many_entries. Default 10,000.
	Entries int
	// UnitBytes bounds the size of a unit's entries together; then as above, unit_too_large. Default 64 MiB.
	UnitBytes int
}

func (l Limits) withDefaults() Limits {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.EntryBytes, 512<<10)
	def(&l.RecordBytes, 900<<10)
	def(&l.Entries, 10_000)
	def(&l.UnitBytes, 64<<20)
	l.EntryBytes = min(l.EntryBytes, max(l.RecordBytes-8<<10, 1<<10)) // and what stands around it
	return l
}

// Failure is the recorded failure of a step: what Do returns now is what it returns after a crash, so the error that
// the step's function returned is not in its chain. A fault.Error with the same code and message is.
type Failure struct { //nolint:errname // a step's outcome, only then an error
	Class   string // ClassTransient, ClassPermanent, ClassUser or ClassUnknown
	Code    string // for programs, for example model_unavailable
	Message string // for people
}

// Classes of a Failure.
const (
	ClassTransient = string(fault.Transient)
	ClassPermanent = string(fault.Permanent)
	ClassUser      = string(fault.User)
	// ClassUnknown: the effect may or may not have happened, and is not repeated by itself.
	ClassUnknown = "unknown"
)

// Codes of failures that this package records or returns.
const (
	CodeOutputTooLarge = "output_too_large" // a value over Limits.EntryBytes
	CodeInvalidOutput  = "invalid_output"   // a value that is not JSON
	CodeUnknown        = "outcome_unknown"  // a once effect that was interrupted
	CodeTooManyEntries = "too_many_entries" // Limits.Entries reached
	CodeUnitTooLarge   = "unit_too_large"   // Limits.UnitBytes reached
	CodePoison         = "poison"           // every attempt failed
)

// Error gives the message and code.
func (f *Failure) Error() string { return fmt.Sprintf("%s (%s)", f.Message, f.Code) }

// Unwrap gives a fault.Error, so that fault.CodeOf and fault.MessageOf work.
func (f *Failure) Unwrap() error {
	return &fault.Error{Code: fault.Code(f.Code), Message: f.Message}
}

// BudgetError says which budget is used up.
type BudgetError struct {
	Which string // model_calls, tool_calls, tokens or active_ms
	Limit int64
}

// Error names the budget.
func (e *BudgetError) Error() string {
	return fmt.Sprintf("the budget of %d %s is used up", e.Limit, e.Which)
}

// Unwrap gives ErrBudget.
func (e *BudgetError) Unwrap() error { return ErrBudget }

// PanicError is a failed attempt: the program, or a step's function, panicked.
type PanicError struct {
	Value any
	Stack []byte
}

// Error gives the value, not the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }
