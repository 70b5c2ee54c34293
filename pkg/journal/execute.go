package journal

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"
)

// Options of an Executor. Log, Timers and Worker are required.
type Options struct {
	Log    Log
	Timers Timers
	Worker string        // this process's name, unique per start; no spaces
	Clock  Clock         // default SystemClock
	NewID  func() string // ids of appends; default <worker>-<n>
	Limits Limits
	Budget Spent        // of every unit, unless its program sets another; zero fields are unlimited
	Logger *slog.Logger // default: none

	// MaxAttempts is how many attempts in a row may bring no new outcome before the unit is ended as poison. Default 5.
	MaxAttempts int
	// MaxCrashes is how often a unit may be claimed other than to resume it after a wait. Default 100.
	MaxCrashes int

	// Poison gives the End of a unit that cannot be brought to one by its program. Default: status failed.
	Poison func(run *Run, reason string) End
	// Park keeps a unit ended by Poison for inspection; called after its End is stored, an error is only logged.
	Park func(ctx context.Context, unit, reason string) error
	// Stopped gives the End of a cancelled unit whose program returned an error (end is nil), or returned an end without
	// knowing of the cancel. Default: the end, else status stopped.
	Stopped func(run *Run, end *End) End
}

// Mode says how Execute came to its unit.
type Mode struct {
	// First: the first delivery of the record that opened the unit, to anyone.
	First bool
	// Known are records already read, from the unit's first on; they spare a Load.
	Known []Record
}

// Status says what became of an execution.
type Status string

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
	Waiting []string // Suspended: keys
	Last    uint64   // sequence of the unit's last record that is known
	Attempt int
}

// Executor executes units. It is safe for concurrent use.
type Executor struct{}

// NewExecutor makes an executor; it starts nothing.
func NewExecutor(p Program, o Options) (*Executor, error) { panic("unwritten") }

// Execute brings the unit on as far as it goes, and blocks meanwhile. An error means that the attempt failed and the
// unit is open: call Execute again later (fault.ClassOf says whether soon).
func (x *Executor) Execute(ctx context.Context, unit string, m Mode) (Result, error) {
	panic("unwritten")
}

// Cancel is the hint that a cancel record was written: it is looked for, and the running program told at once.
// It does nothing when the unit is not executing here.
func (x *Executor) Cancel(ctx context.Context, unit string) error { panic("unwritten") }

// Message is what arrives for a unit.
type Message struct {
	Key     string
	Value   json.RawMessage
	Timeout bool      // a timer
	Due     time.Time // when the timer is due
}

// Receipt says what became of a Message.
type Receipt struct {
	New   bool          // recorded now: the unit can go on
	Ended bool          // the unit has ended
	Hold  time.Duration // above 0: a timer came early and was not recorded; bring it again after this time
}

// Signal records what arrived for a unit. Only the first signal for a key counts; later ones are dropped.
func (x *Executor) Signal(ctx context.Context, unit string, m Message) (Receipt, error) {
	panic("unwritten")
}

// RequestCancel appends the cancel record rec (ID and Body are its writer's) unless the unit has ended or is cancelled
// already, and says whether it did.
func RequestCancel(ctx context.Context, log Log, unit string, rec Record) (bool, error) {
	panic("unwritten")
}
