package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/journal"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// actOnChanges does what follows from each event of APPROVAL: timers are set, who waits is woken, and the chain covers it.
// All of it can be done again. It returns when ctx ends.
func (s *Service) actOnChanges(ctx context.Context) error {
	return s.bus.Consume(ctx, bus.Consume{Stream: bus.ApprovalStream, Durable: bus.ApprovalConsumer, Batch: 64},
		func(ctx context.Context, events []bus.Stored) error {
			for _, ev := range events {
				if err := s.actOn(ctx, ev); err != nil {
					return err
				}
			}
			return s.chain.cover(ctx, events[len(events)-1].Seq)
		})
}

func (s *Service) actOn(ctx context.Context, ev bus.Stored) error {
	var use butlerv1.ApprovalUse
	switch {
	case strings.HasPrefix(ev.Subject, "butler.approval."):
		a, err := decodeApproval(ev)
		if err == nil {
			return s.act(ctx, a)
		}
		s.log.WarnContext(ctx, "an event that cannot be read", "stream", ev.Stream, "seq", ev.Seq, "error", err)
	case ev.Type != approval.TypeUse || chat.Decode(ev.Data, &use) != nil:
		s.log.WarnContext(ctx, "an event that cannot be read", "stream", ev.Stream, "seq", ev.Seq)
	case use.GetStatus() != approval.Taken:
		// The executor wakes who waits for the end itself, and at once. This is for one that died between recording the
		// end and doing so: nobody else would ever wake that turn.
		use.Grant = ""
		return s.wake(ctx, use.GetWaiter(), "use-"+use.GetId(), &use)
	}
	return nil
}

func (s *Service) act(ctx context.Context, a *butlerv1.Approval) error {
	if a.GetPolicy().GetAction() != actionAsk {
		return nil // nobody waits: the answer to the request was the decision
	}
	if a.GetStatus() == approval.Pending {
		data, err := chat.Encode(&butlerv1.ApprovalDue{Id: a.GetId()})
		if err != nil {
			return err
		}
		ev := bus.NewEvent(approval.TypeDue, s.bus.Source(), approval.WorkSubject(a.GetId()), data)
		return s.bus.Schedule(ctx, approval.TimerSubject(a.GetId()), a.GetDecideBy().AsTime(), ev)
	}
	if err := s.wakeDecided(ctx, a); err != nil {
		return err
	}
	return s.bus.Unschedule(ctx, approval.TimerSubject(a.GetId()))
}

// wakeDecided gives the turn that waits for a request the document.
func (s *Service) wakeDecided(ctx context.Context, a *butlerv1.Approval) error {
	return s.wake(ctx, a.GetWaiter(), fmt.Sprintf("approval-%s-%d", a.GetId(), a.GetVersion()), a)
}

// wake gives the turn that waits for something the document, by a work item with the id. A turn that cannot be is passed
// over: no event may hold up those after it.
func (s *Service) wake(ctx context.Context, w *butlerv1.Waiter, id string, of proto.Message) error {
	turn := chat.Turn{Session: chat.Session{Person: w.GetPerson(), Thread: w.GetThread()}, ID: w.GetTurn()}
	if _, err := chat.ParseTurn(turn.String()); err != nil || !journal.ValidKey(w.GetKey()) {
		return nil //nolint:nilerr // nobody waits
	}
	document, err := chat.Encode(of)
	if err != nil {
		return err
	}
	data, err := json.Marshal(map[string]json.RawMessage{"value": document})
	if err != nil {
		return err
	}
	ev := bus.NewEvent("butler.work.signal", s.bus.Source(), turn.Signal(w.GetKey()), data)
	ev.ID = id
	_, err = s.bus.Publish(ctx, bus.WorkStream, ev)
	return err
}

// expire ends requests whose time is over, until ctx ends.
func (s *Service) expire(ctx context.Context) error {
	return s.bus.Consume(ctx, bus.Consume{Stream: bus.WorkStream, Durable: bus.ApprovalTimerConsumer, MaxTries: 20},
		func(ctx context.Context, events []bus.Stored) error {
			for _, ev := range events {
				if err := s.expireOne(ctx, strings.TrimPrefix(ev.Subject, approval.WorkSubject(""))); err != nil {
					return err
				}
			}
			return nil
		})
}

func (s *Service) expireOne(ctx context.Context, id string) error {
	for {
		a, seq, err := s.load(ctx, id)
		if fault.CodeOf(err) == fault.NotFound {
			return nil // erased
		}
		if err != nil {
			return err
		}
		if a.GetStatus() != approval.Pending {
			return nil
		}
		if early := a.GetDecideBy().AsTime().Sub(s.now()); early > 0 { // schedules fire up to a second early
			return bus.Retry{After: min(early, time.Minute)}
		}
		if _, err = s.end(ctx, a, seq, approval.Expired, nil, ""); !errors.Is(err, bus.ErrFenced) {
			return err
		}
	}
}
