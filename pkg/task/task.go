// Package task is what agent-registry and agents share: the subjects of tasks, the types of their events, and their limits.
// It decides nothing.
package task

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// Types of the events.
const (
	TypeTask   = "butler.task.changed"
	TypeAnswer = "butler.task.answered"
	TypeDue    = "butler.task.due"
	TypeReport = "butler.agent.report"
	TypeBeat   = "butler.agent.beat"
	TypeNotice = "butler.agent.notice"
)

// Statuses of a task.
const (
	Open      = "open"
	Done      = "done"
	Failed    = "failed"
	Cancelled = "cancelled"
	Expired   = "expired"
)

// Kinds of a report.
const (
	Claim    = "claim"
	Progress = "progress"
	Result   = "result"
	Failure  = "failure"
	Question = "question"
)

// Codes say why a task was not done.
const (
	ByAgent       = "agent"     // the agent said so
	Lost          = "lost"      // the agent was lost with it too often
	Deadline      = "deadline"  // its time was over
	NoAgent       = "no_agent"  // its time was over, and nobody had taken it
	ByPerson      = "cancelled" // somebody cancelled it
	Deleted       = "deleted"   // the agent was deleted
	OutputTooMuch = "too_large" // the result was larger than allowed
)

// States of a task for those who look at it.
const (
	Waiting = "waiting"  // nobody took it yet
	Nobody  = "no_agent" // for a while, and its agent is not online
	Running = "running"
	Over    = "over"
)

// Limits.
const (
	// MaxValue bounds input and output of a task, in bytes of JSON.
	MaxValue = 256 << 10
	// MaxText bounds what an agent says in words, in characters.
	MaxText = 4000
	// MaxDeadline is how far a deadline may be away, DefaultDeadline where none is given.
	MaxDeadline     = 7 * 24 * time.Hour
	DefaultDeadline = 10 * time.Minute
	// MaxAttempts bounds attempts, DefaultAttempts where none are given.
	MaxAttempts     = 10
	DefaultAttempts = 5
)

// Ref names a task.
type Ref struct {
	Agent int64
	ID    string
}

func (r Ref) String() string { return strconv.FormatInt(r.Agent, 10) + "." + r.ID }

// Subject is where the task stands.
func (r Ref) Subject() string { return "butler.task." + r.String() }

// Answer is where the answer to a question stands.
func (r Ref) Answer(question string) string {
	return "butler.task-answer." + r.String() + "." + question
}

// Timer is the schedule of its deadline, Work where that fires.
func (r Ref) Timer() string { return "butler.timer.task." + r.String() }

// Work is the work item that ends a task whose time is over.
func (r Ref) Work() string { return "butler.work.task." + r.String() }

// Report is where the agent reports on an attempt.
func (r Ref) Report(attempt int) string {
	return "butler.report." + r.String() + "." + strconv.Itoa(attempt)
}

// AnyReport matches the reports on all attempts.
func (r Ref) AnyReport() string { return "butler.report." + r.String() + ".*" }

// Filters of everything.
const (
	AllTasks   = "butler.task.*.*"
	AllAnswers = "butler.task-answer.*.*.*"
	AllReports = "butler.report.*.*.*"
	AllBeats   = "butler.beat.*"
)

// Beat is where an agent says that it is alive.
func Beat(agent int64) string { return "butler.beat." + strconv.FormatInt(agent, 10) }

// Notice is where an agent hears that there is news.
func Notice(agent int64) string { return "butler.notice." + strconv.FormatInt(agent, 10) }

var word = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ValidWord says whether text can be the id of a task, the name of a question or of a capability: 1 to 64 characters of
// A–Z, a–z, 0–9, - and _.
func ValidWord(text string) bool { return word.MatchString(text) }

// Parse reads what a subject names, beginning with prefix, such as "butler.task.": the task, and the token after it where
// the subject has one.
func Parse(subject, prefix string) (ref Ref, last string, err error) {
	rest, ok := strings.CutPrefix(subject, prefix)
	parts := strings.Split(rest, ".")
	if ok && (len(parts) == 2 || len(parts) == 3) && ValidWord(parts[1]) {
		if ref.Agent, err = strconv.ParseInt(parts[0], 10, 64); err == nil && ref.Agent > 0 && strconv.FormatInt(ref.Agent, 10) == parts[0] {
			ref.ID = parts[1]
			if len(parts) == 3 {
				last = parts[2]
			}
			return ref, last, nil
		}
	}
	return Ref{}, "", fault.New(fault.Invalid, "%q names no task", subject)
}

// ParseReport reads the task and the attempt that a report is about.
func ParseReport(subject string) (Ref, int, error) {
	ref, last, err := Parse(subject, "butler.report.")
	if err != nil {
		return Ref{}, 0, err
	}
	attempt, err := strconv.Atoi(last)
	if err != nil || attempt < 1 || attempt > 1000 || strconv.Itoa(attempt) != last {
		return Ref{}, 0, fault.New(fault.Invalid, "%q names no attempt", subject)
	}
	return ref, attempt, nil
}
