package registry

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/task"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// actOnTasks does what follows from each change of a task: its timer is set or called off, and who waits is woken. All of it
// can be done again. It returns when ctx ends.
func (s *Service) actOnTasks(ctx context.Context) error {
	return s.bus.Consume(ctx, bus.Consume{Stream: bus.TaskStream, Durable: bus.TaskConsumer, Batch: 128},
		func(ctx context.Context, events []bus.Stored) error {
			group, ctx := errgroup.WithContext(ctx)
			group.SetLimit(tasksAtOnce)
			for _, ev := range events {
				t, err := decodeTask(ev)
				if err != nil {
					s.log.WarnContext(ctx, "an event that cannot be read", "stream", ev.Stream, "seq", ev.Seq, "error", err)
					continue
				}
				group.Go(func() error { return s.actOnTask(ev.Context(ctx), t) })
			}
			return group.Wait()
		})
}

func (s *Service) actOnTask(ctx context.Context, t *butlerv1.Task) error {
	ref := refOf(t)
	if t.GetStatus() == task.Open {
		data, err := chat.Encode(&butlerv1.TaskDue{AgentId: ref.Agent, Id: ref.ID})
		if err != nil {
			return err
		}
		return s.bus.Schedule(ctx, ref.Timer(), t.GetDeadline().AsTime(), bus.NewEvent(task.TypeDue, s.bus.Source(), ref.Work(), data))
	}
	if err := s.wake(ctx, t); err != nil {
		return err
	}
	if t.GetOutcome().GetAttempt() == 0 {
		s.notify(ref.Agent) // it did not end it itself, and may be working on it
	}
	return s.bus.Unschedule(ctx, ref.Timer())
}

// wake gives the turn that waits for a task the task.
func (s *Service) wake(ctx context.Context, t *butlerv1.Task) error {
	w := t.GetWaiter()
	if w.GetKey() == "" {
		return nil
	}
	document, err := chat.Encode(t)
	if err != nil {
		return err
	}
	data, err := json.Marshal(map[string]json.RawMessage{"value": document})
	if err != nil {
		return err
	}
	turn := chat.Turn{Session: chat.Session{Person: w.GetPerson(), Thread: w.GetThread()}, ID: w.GetTurn()}
	ev := bus.NewEvent("butler.work.signal", s.bus.Source(), turn.Signal(w.GetKey()), data)
	ev.ID = "task-" + refOf(t).String()
	_, err = s.bus.Publish(ctx, bus.WorkStream, ev)
	return err
}

// actOnDeadlines ends tasks whose time is over, until ctx ends.
func (s *Service) actOnDeadlines(ctx context.Context) error {
	return s.bus.Consume(ctx, bus.Consume{Stream: bus.WorkStream, Durable: bus.TaskTimerConsumer, MaxTries: 20},
		func(ctx context.Context, events []bus.Stored) error {
			for _, ev := range events {
				ref, _, err := task.Parse(ev.Subject, "butler.work.task.")
				if err != nil {
					return err
				}
				if err := s.expire(ctx, ref); err != nil {
					return err
				}
			}
			return nil
		})
}

func (s *Service) expire(ctx context.Context, ref task.Ref) error {
	for {
		t, seq, found, err := s.loadTask(ctx, ref)
		if err != nil || !found || t.GetStatus() != task.Open {
			return err
		}
		if early := t.GetDeadline().AsTime().Sub(s.now()); early > 0 { // schedules fire up to a second early
			return bus.Retry{After: min(early, time.Minute)}
		}
		o := &butlerv1.TaskOutcome{Code: task.Deadline, Reason: "Its time was over before the agent had done it."}
		if _, taken, err := s.bus.Last(ctx, bus.ReportStream, ref.AnyReport()); err != nil {
			return err
		} else if !taken {
			o.Code, o.Reason = task.NoAgent, "Its time was over, and the agent was not there to take it."
		}
		if _, err = s.end(ctx, t, seq, task.Expired, o, ""); !errors.Is(err, bus.ErrFenced) {
			return err
		}
	}
}
