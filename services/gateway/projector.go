package gateway

import (
	"context"
	"time"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/gateway/store"
)

// projectBatch is how many events are applied in one transaction.
const projectBatch = 256

// projectLinger is how long an event waits for others, so that a busy gateway makes few transactions of many:
// projectBusy when many come.
const (
	projectLinger = 20 * time.Millisecond
	projectBusy   = 150 * time.Millisecond
)

// project fills the read model from the log until ctx ends. While the database does not answer, the events wait. It begins
// once clients can be served: they do not wait for a backlog.
func (s *Service) project(ctx context.Context) error {
	select {
	case <-s.hub.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.bus.Consume(ctx, bus.Consume{
		Stream: bus.ChatStream, Durable: bus.ProjectorConsumer, Batch: projectBatch, Linger: projectLinger, BusyLinger: projectBusy,
	}, func(ctx context.Context, events []bus.Stored) error {
		if err := s.apply(ctx, events); err != nil {
			s.log.WarnContext(ctx, "the history waits for the database", "events", len(events), "error", err)
			return bus.Retry{After: time.Second}
		}
		if n := len(events); n > 0 {
			s.metrics.lag.Set(max(0, time.Since(events[n-1].At).Seconds()))
		}
		return nil
	})
}

// apply adds events to the read model. One that cannot be stored for a reason that stays is left out and logged.
func (s *Service) apply(ctx context.Context, events []bus.Stored) error {
	messages := make([]store.Message, 0, len(events))
	var position uint64
	for _, e := range events {
		position = max(position, e.Seq)
		ev, err := decodeChat(e)
		if err != nil {
			s.hub.unfit(e, err)
			continue
		}
		if ev != nil {
			messages = append(messages, ev.stored())
		}
	}
	err := s.store.Apply(ctx, messages, position)
	if err == nil || fault.ClassOf(err) == fault.Transient || ctx.Err() != nil {
		if err == nil {
			s.metrics.projected.Add(float64(len(messages)))
		}
		return err
	}
	// One of them is at fault: the others must not wait for it.
	for _, m := range messages {
		if err := s.store.Apply(ctx, []store.Message{m}, m.ID); err != nil {
			if fault.ClassOf(err) == fault.Transient || ctx.Err() != nil {
				return err
			}
			s.log.ErrorContext(ctx, "a message is missing in the history", "seq", m.ID, "person", m.PersonID, "error", err)
		}
	}
	return nil
}

// Replay empties the read model and fills it again from the log, up to where the log is when it begins; what comes later
// is added as always. It tells progress now and then how many events it read, and gives their number. It may be repeated.
func (s *Service) Replay(ctx context.Context, progress func(events int)) (int, error) {
	return Replay(ctx, s.bus, s.store, progress)
}

// Replay is Service.Replay for a program that serves nothing.
func Replay(ctx context.Context, b *bus.Bus, st *store.Store, progress func(events int)) (int, error) {
	_, end, err := b.Bounds(ctx, bus.ChatStream)
	if err != nil {
		return 0, err
	}
	if err := st.ResetProjection(ctx); err != nil {
		return 0, err
	}
	read := 0
	for _, filter := range []string{chat.AllAsked, chat.AllAnswer} {
		for after := uint64(0); after < end; {
			page, err := b.Load(ctx, bus.ChatStream, filter, after, projectBatch)
			if err != nil {
				return read, err
			}
			if len(page) == 0 {
				break
			}
			messages := make([]store.Message, 0, len(page))
			for _, e := range page {
				after = e.Seq
				if ev, err := decodeChat(e); err == nil && ev != nil && e.Seq <= end {
					messages = append(messages, ev.stored())
					read++
				}
			}
			// The position stays behind until everything up to it is there.
			if err := st.Apply(ctx, messages, 0); err != nil {
				return read, err
			}
			if progress != nil {
				progress(read)
			}
		}
	}
	return read, st.Apply(ctx, nil, end)
}
