package registry

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/task"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

const (
	// bookSpan is how far back the book goes at a start: everything that can be open, and a little more.
	bookSpan = task.MaxDeadline + time.Hour
	// earlyKept bounds reports on tasks that the book does not have yet: both streams are followed, and either may be ahead.
	earlyKept = 5000
	// questionsKept bounds the questions of a task that are shown.
	questionsKept = 32
	// noAgentAfter is how long a task waits before it is said that nobody is there to take it.
	noAgentAfter = 10 * time.Second
)

// book has the open tasks with what their agents said of them, for those who look. It follows the log, so every replica has
// the same; nothing is decided by it.
type book struct {
	mu       sync.Mutex
	tasks    map[task.Ref]*entry
	early    map[task.Ref][]said
	order    []task.Ref // of early, the oldest first
	watchers map[task.Ref][]chan struct{}
}

type entry struct {
	task      *butlerv1.Task
	attempt   int
	worker    string
	progress  string
	heard     time.Time
	questions []*butlerv1.TaskQuestion
	answers   []*butlerv1.TaskAnswer
}

// said is a report with its attempt.
type said struct {
	report  *butlerv1.TaskReport
	attempt int
	at      time.Time
}

func newBook() *book {
	return &book{tasks: map[task.Ref]*entry{}, early: map[task.Ref][]said{}, watchers: map[task.Ref][]chan struct{}{}}
}

// put takes a task as it stands.
func (b *book) put(t *butlerv1.Task) {
	ref := task.Ref{Agent: t.GetAgentId(), ID: t.GetId()}
	b.mu.Lock()
	defer b.mu.Unlock()
	early := b.early[ref]
	delete(b.early, ref)
	if t.GetStatus() != task.Open {
		delete(b.tasks, ref)
		b.tell(ref)
		return
	}
	if b.tasks[ref] == nil {
		b.tasks[ref] = &entry{task: t}
		for _, s := range early {
			b.tasks[ref].hear(s)
		}
	}
	b.tell(ref)
}

// hear takes a report.
func (b *book) hear(ref task.Ref, s said) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.tasks[ref]; e != nil {
		e.hear(s)
		b.tell(ref)
		return
	}
	if len(b.order) >= earlyKept {
		delete(b.early, b.order[0])
		b.order = b.order[1:]
	}
	b.early[ref] = append(b.early[ref], s)
	b.order = append(b.order, ref)
}

func (e *entry) hear(s said) {
	if s.attempt < e.attempt {
		return // late
	}
	if s.attempt > e.attempt {
		e.attempt, e.worker, e.progress = s.attempt, "", ""
	}
	e.heard = s.at
	if w := s.report.GetWorker(); w != "" {
		e.worker = w
	}
	switch s.report.GetKind() {
	case task.Progress:
		e.progress = s.report.GetText()
	case task.Question:
		name := s.report.GetQuestion()
		known := slices.ContainsFunc(e.questions, func(q *butlerv1.TaskQuestion) bool { return q.GetQuestion() == name })
		if task.ValidWord(name) && !known && len(e.questions) < questionsKept {
			e.questions = append(e.questions, &butlerv1.TaskQuestion{Question: name, Text: s.report.GetText()})
		}
	}
}

// answered takes an answer.
func (b *book) answered(ref task.Ref, a *butlerv1.TaskAnswer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.tasks[ref]; e != nil {
		e.answers = append(e.answers, a)
		b.tell(ref)
	}
}

// get gives what is known of an open task, as a view of its own; ok is false when the book does not have it.
func (b *book) get(ref task.Ref) (*butlerv1.TaskView, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.tasks[ref]
	if e == nil {
		return nil, false
	}
	v := &butlerv1.TaskView{Task: e.task, State: task.Waiting}
	if e.attempt > 0 {
		v.State, v.Attempt, v.Worker, v.Progress = task.Running, int32(e.attempt), e.worker, e.progress
		v.ReportedAt = timestamppb.New(e.heard)
	}
	for _, q := range e.questions {
		if !slices.ContainsFunc(e.answers, func(a *butlerv1.TaskAnswer) bool { return a.GetQuestion() == q.GetQuestion() }) {
			v.Questions = append(v.Questions, q)
		}
	}
	return v, true
}

// answersTo gives the answers that there are for a task, and whether the task is open.
func (b *book) answersTo(ref task.Ref) (answers []*butlerv1.TaskAnswer, open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.tasks[ref]
	if e == nil {
		return nil, false
	}
	return slices.Clone(e.answers), true
}

// of gives the open tasks of an agent.
func (b *book) of(agent int64) []task.Ref {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []task.Ref
	for ref := range b.tasks {
		if ref.Agent == agent {
			out = append(out, ref)
		}
	}
	return out
}

// watch gives a channel that gets a value whenever something about a task changed.
func (b *book) watch(ref task.Ref) (changed chan struct{}, stop func()) {
	changed = make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watchers[ref] = append(b.watchers[ref], changed)
	return changed, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		rest := slices.DeleteFunc(b.watchers[ref], func(c chan struct{}) bool { return c == changed })
		if b.watchers[ref] = rest; len(rest) == 0 {
			delete(b.watchers, ref)
		}
	}
}

// tell wakes who watches; the caller holds the lock.
func (b *book) tell(ref task.Ref) {
	for _, c := range b.watchers[ref] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// start gives the sequence after which a stream is followed.
func (s *Service) start(ctx context.Context, stream string) (uint64, error) {
	first, found, err := s.bus.FirstSince(ctx, stream, s.now().Add(-bookSpan))
	if err != nil {
		return 0, err
	}
	if found {
		return first.Seq - 1, nil
	}
	_, last, err := s.bus.Bounds(ctx, stream)
	return last, err
}

// followTasks keeps the book's tasks until ctx ends.
func (s *Service) followTasks(ctx context.Context) error {
	after, err := s.start(ctx, bus.TaskStream)
	if err != nil {
		return err
	}
	filters := []string{task.AllTasks, task.AllAnswers}
	return s.bus.Follow(ctx, bus.Follow{Stream: bus.TaskStream, Filters: filters, After: after}, func(ev bus.Stored) {
		if strings.HasPrefix(ev.Subject, "butler.task.") {
			if t, err := decodeTask(ev); err == nil {
				s.book.put(t)
			}
			return
		}
		a := &butlerv1.TaskAnswer{}
		ref, _, err := task.Parse(ev.Subject, "butler.task-answer.")
		if err == nil && ev.Type == task.TypeAnswer && chat.Decode(ev.Data, a) == nil {
			s.book.answered(ref, a)
			s.notify(ref.Agent)
		}
	})
}

// followReports keeps what agents say in the book until ctx ends.
func (s *Service) followReports(ctx context.Context) error {
	after, err := s.start(ctx, bus.ReportStream)
	if err != nil {
		return err
	}
	return s.bus.Follow(ctx, bus.Follow{Stream: bus.ReportStream, Filters: []string{task.AllReports}, After: after}, func(ev bus.Stored) {
		ref, attempt, report, err := decodeReport(ev)
		if err == nil {
			s.book.hear(ref, said{report, attempt, ev.At})
		}
	})
}
