package journal

import (
	"context"
	"encoding/json"
	"time"
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
	Repeat      Repeat
	Description string // what is done, for people; in the intent
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
}

// Spend adds what the call used to its outcome, and so to the unit's budgets. Safe for concurrent use.
func (c *Call) Spend(s Spent) { panic("unwritten") }

// Arrival is what Await returns.
type Arrival struct {
	Value   json.RawMessage // what arrived; nil at a timeout
	Timeout bool            // the deadline passed first
}

// Run is a program's hold on its unit. Its methods are safe for concurrent use.
type Run struct{}

// Unit gives the unit's name.
func (r *Run) Unit() string { panic("unwritten") }

// Open gives the record that opened the unit.
func (r *Run) Open() Record { panic("unwritten") }

// Attempt counts the executions of the unit, from 1.
func (r *Run) Attempt() int { panic("unwritten") }

// Cancelled says whether the unit was cancelled.
func (r *Run) Cancelled() bool { panic("unwritten") }

// CancelRecord gives the record that cancelled the unit.
func (r *Run) CancelRecord() (Record, bool) { panic("unwritten") }

// SetBudget sets what the unit may use in all its attempts; zero fields are unlimited.
func (r *Run) SetBudget(b Spent) { panic("unwritten") }

// Spent gives what the unit has used in all its attempts.
func (r *Run) Spent() Spent { panic("unwritten") }

// Do gives the outcome of the step key: the recorded one, or fn's, which is then recorded.
func (r *Run) Do(ctx context.Context, key string, e Effect,
	fn func(ctx context.Context, c *Call) (json.RawMessage, error)) (json.RawMessage, error) {
	panic("unwritten")
}

// Await gives the first signal for key, or suspends the unit: it returns ErrSuspended. Zero deadline: no timer.
func (r *Run) Await(ctx context.Context, key string, deadline time.Time) (Arrival, error) {
	panic("unwritten")
}

// Do is Run.Do for a function that returns a T, kept as JSON.
func Do[T any](ctx context.Context, r *Run, key string, e Effect,
	fn func(ctx context.Context, c *Call) (T, error)) (T, error) {
	panic("unwritten")
}

// Parallel calls fn for 0 … n-1 at the same time and waits for all.
func Parallel(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	panic("unwritten")
}
