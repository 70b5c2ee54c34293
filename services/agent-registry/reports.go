package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/task"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// tasksAtOnce bounds how many tasks are judged at the same time.
const tasksAtOnce = 16

// decodeReport reads a report of an agent. Everything in it is an outsider's.
func decodeReport(ev bus.Stored) (task.Ref, int, *butlerv1.TaskReport, error) {
	ref, attempt, err := task.ParseReport(ev.Subject)
	if err != nil {
		return task.Ref{}, 0, nil, err
	}
	if ev.Type != task.TypeReport {
		// A reply that was led here is no report, whatever it says.
		return ref, attempt, nil, fault.New(fault.Invalid, "it is no report: its type is %q", ev.Type)
	}
	r := &butlerv1.TaskReport{}
	if err := chat.Decode(ev.Data, r); err != nil {
		return ref, attempt, nil, fault.New(fault.Invalid, "it cannot be read")
	}
	if utf8.RuneCountInString(r.GetText()) > task.MaxText {
		r.Text = string([]rune(r.GetText())[:task.MaxText])
	}
	if len(r.GetWorker()) > 64 {
		r.Worker = strings.ToValidUTF8(r.GetWorker()[:64], "")
	}
	return ref, attempt, r, nil
}

// actOnReports ends tasks by what their agents report, until ctx ends. Reports of one task are judged in order.
func (s *Service) actOnReports(ctx context.Context) error {
	return s.bus.Consume(ctx, bus.Consume{Stream: bus.ReportStream, Durable: bus.ReportConsumer, Batch: 256},
		func(ctx context.Context, events []bus.Stored) error {
			byTask := map[string][]bus.Stored{}
			for _, ev := range events {
				key := ev.Subject
				if ref, _, err := task.ParseReport(ev.Subject); err == nil {
					key = ref.String()
				}
				byTask[key] = append(byTask[key], ev)
			}
			group, ctx := errgroup.WithContext(ctx)
			group.SetLimit(tasksAtOnce)
			for _, events := range byTask {
				group.Go(func() error {
					for _, ev := range events {
						if err := s.actOnReport(ctx, ev); err != nil {
							return err
						}
					}
					return nil
				})
			}
			return group.Wait()
		})
}

// actOnReport judges one report; doing it again does nothing more.
func (s *Service) actOnReport(ctx context.Context, ev bus.Stored) error {
	ref, attempt, r, err := decodeReport(ev)
	if err != nil {
		return s.drop(ctx, ev, fault.MessageOf(err))
	}
	id := fmt.Sprintf("report-%d", ev.Seq) // of the event that this report leads to
	for {
		last, found, err := s.bus.Last(ctx, bus.TaskStream, ref.Subject())
		if err != nil {
			return err
		}
		if !found {
			return s.drop(ctx, ev, "there is no such task of this agent")
		}
		t, err := decodeTask(last)
		if err != nil {
			return s.drop(ctx, ev, "the task cannot be read")
		}
		if t.GetStatus() != task.Open {
			if last.ID == id {
				return nil // it was this one that ended it
			}
			if r.GetKind() == task.Claim || r.GetKind() == task.Progress {
				s.notify(ref.Agent) // somebody works on it still
			}
			return s.drop(ctx, ev, "the task is over: "+t.GetStatus())
		}
		later, err := s.laterAttempt(ctx, ref, attempt, int(t.GetMaxAttempts()), ev.Seq)
		if err != nil {
			return err
		}
		if later > 0 {
			return s.drop(ctx, ev, fmt.Sprintf("attempt %d was lost: attempt %d has begun", attempt, later))
		}
		status, outcome, reason := verdict(t, attempt, r)
		if reason != "" {
			return s.drop(ctx, ev, reason)
		}
		if outcome == nil {
			return nil
		}
		if _, err = s.end(ctx, t, last.Seq, status, outcome, id); !errors.Is(err, bus.ErrFenced) {
			return err
		}
	}
}

// verdict says how a report ends its task: with an outcome, or not at all; or why it is not believed.
func verdict(t *butlerv1.Task, attempt int, r *butlerv1.TaskReport) (status string, outcome *butlerv1.TaskOutcome, drop string) {
	o := &butlerv1.TaskOutcome{Attempt: int32(attempt), Worker: r.GetWorker()}
	failed := func(code, reason string) (string, *butlerv1.TaskOutcome, string) {
		o.Code, o.Reason = code, reason
		return task.Failed, o, ""
	}
	most := int(t.GetMaxAttempts())
	if attempt > most {
		return failed(task.Lost, fmt.Sprintf("The agent was lost with it %d times.", most))
	}
	switch r.GetKind() {
	case task.Claim, task.Progress:
		return "", nil, ""
	case task.Question:
		if !task.ValidWord(r.GetQuestion()) {
			return "", nil, "a question without a valid name"
		}
		return "", nil, ""
	case task.Result:
		output, err := valueJSON(r.GetOutput())
		if err != nil {
			return "", nil, "the result is no JSON value"
		}
		if len(output) > task.MaxValue {
			return failed(task.OutputTooMuch, fmt.Sprintf("The result has %d KiB; %d are allowed.", len(output)>>10, task.MaxValue>>10))
		}
		o.Output = r.GetOutput()
		return task.Done, o, ""
	case task.Failure:
		if r.GetRetry() && attempt < most {
			return "", nil, ""
		}
		reason := strings.TrimSpace(r.GetText())
		if reason == "" {
			reason = "The agent failed, and did not say why."
		}
		return failed(task.ByAgent, reason)
	default:
		return "", nil, "a report of an unknown kind"
	}
}

// laterAttempt gives the number of an attempt that is newer than the one given and reported before the sequence given; 0
// when there is none. most is how many attempts the task may have.
func (s *Service) laterAttempt(ctx context.Context, ref task.Ref, attempt, most int, before uint64) (int, error) {
	for n := attempt + 1; n <= most+1; n++ { // one more: it tells that the last was lost
		after := uint64(0)
		for {
			events, err := s.bus.Load(ctx, bus.ReportStream, ref.Report(n), after, 8)
			if err != nil {
				return 0, err
			}
			for _, ev := range events {
				if after = ev.Seq; ev.Seq < before && ev.Type == task.TypeReport {
					return n, nil
				}
			}
			if len(events) < 8 || after >= before {
				break
			}
		}
	}
	return 0, nil
}

// drop keeps a report that is not believed where it can be looked at.
func (s *Service) drop(ctx context.Context, ev bus.Stored, reason string) error {
	s.log.InfoContext(ctx, "a report was not believed", "subject", ev.Subject, "seq", ev.Seq, "reason", reason)
	kept := ev.Event
	kept.ID = fmt.Sprintf("report-%d", ev.Seq) // not the agent's: ids are remembered by stream
	kept.Source = "/butler/agent"
	return s.bus.Park(ctx, kept, reason)
}

// notify tells an agent to ask for news at once; if that is lost, the next beat asks anyway.
func (s *Service) notify(agent int64) {
	if err := s.bus.Notify(task.Notice(agent), []byte("{}")); err != nil {
		s.log.Debug("an agent was not told that there is news", "agent", agent, "error", err)
	}
}

// beats answers agents that say that they are alive, until ctx ends.
func (s *Service) beats(ctx context.Context) error {
	stop, err := s.bus.Serve(task.AllBeats, s.beaten)
	if err != nil {
		return err
	}
	defer stop()
	<-ctx.Done()
	return nil
}

// maxBeatTasks bounds the tasks of one beat.
const maxBeatTasks = 1000

func (s *Service) beaten(ctx context.Context, ev bus.Event) []byte {
	ctx, cancel := context.WithTimeout(ctx, Interval)
	defer cancel()
	beat := &butlerv1.AgentBeat{}
	ref, _, err := task.Parse(ev.Subject+".x", "butler.beat.")
	if err != nil || ev.Type != task.TypeBeat || chat.Decode(ev.Data, beat) != nil || len(beat.GetTasks()) > maxBeatTasks {
		return nil
	}
	answer := &butlerv1.AgentBeatAnswer{IntervalSeconds: int32(Interval / time.Second)}
	// Alive is who takes tasks, not who only says so.
	if answer.Consuming, err = s.bus.AgentConsumes(ctx, ref.Agent); err != nil {
		s.log.DebugContext(ctx, "whether an agent takes tasks cannot be told", "agent", ref.Agent, "error", err)
		return nil
	}
	if answer.Consuming {
		if _, err := s.Heartbeat(ctx, &butlerv1.HeartbeatRequest{AgentId: ref.Agent}); err != nil {
			s.log.DebugContext(ctx, "a beat was not noted", "agent", ref.Agent, "error", err)
			return nil
		}
	}
	for _, id := range beat.GetTasks() {
		if !task.ValidWord(id) {
			continue
		}
		one := task.Ref{Agent: ref.Agent, ID: id}
		answers, open := s.book.answersTo(one)
		if !open {
			t, _, found, err := s.loadTask(ctx, one)
			if err == nil && (!found || t.GetStatus() != task.Open) {
				answer.Stop = append(answer.Stop, id)
			}
			continue
		}
		for _, a := range answers {
			answer.Answers = append(answer.Answers, &butlerv1.AgentAnswer{Task: id, Answer: a})
		}
	}
	data, err := chat.Encode(answer)
	if err != nil {
		return nil
	}
	return data
}
