package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Schedule makes ev appear on its subject at the time given, or at once when that is past. timer is the schedule's own
// subject: scheduling there again replaces. The server fires up to a second early, so the one who takes ev checks the
// time.
func (b *Bus) Schedule(ctx context.Context, timer string, at time.Time, ev Event) error {
	target := ev.Subject
	ev.Subject = timer
	msg, err := ev.message(ctx)
	if err != nil {
		return err
	}
	msg.Header[jetstream.ExpectedStreamHeader] = []string{WorkStream}
	msg.Header[jetstream.ScheduleHeader] = []string{"@at " + at.UTC().Format(time.RFC3339)}
	msg.Header[jetstream.ScheduleTargetHeader] = []string{target}
	_, err = b.append(ctx, msg, nil)
	return err
}

// Unschedule calls a schedule off. Nothing happens when there is none.
func (b *Bus) Unschedule(ctx context.Context, timer string) error {
	s, err := b.js.Stream(ctx, WorkStream)
	if err != nil {
		return fmt.Errorf("bus: %w", err)
	}
	if err := s.Purge(ctx, jetstream.WithPurgeSubject(timer)); err != nil {
		return fmt.Errorf("bus: calling off a timer: %w", err)
	}
	return nil
}
