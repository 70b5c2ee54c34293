package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Consume says which durable consumer to work for.
type Consume struct {
	Stream  string
	Durable string // one of those that Consumers declares
	Batch   int    // most items of one call, 1 when zero
	// Linger is how long an item waits for others to come, so that busy times make few large batches. 0 means not at all.
	Linger time.Duration
	// BusyLinger, when set, is Linger while much comes: when the batch before had more than a sixteenth of Batch.
	BusyLinger time.Duration
	// MaxTries, when set, is how often a batch of one may fail before its item is parked.
	MaxTries int
}

// Retry is an error of a handler that says when to try again. It does not count towards MaxTries: nothing was wrong.
type Retry struct{ After time.Duration }

// Error says when.
func (r Retry) Error() string { return fmt.Sprintf("again in %s", r.After) }

// Consume hands batches of items to handle until ctx ends and returns ctx's error. Items are acknowledged when handle
// returns nil; else they come again, after a growing time, to whichever replica asks. They are in order as long as nothing
// fails and one replica works.
func (b *Bus) Consume(ctx context.Context, c Consume, handle func(context.Context, []Stored) error) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		began := time.Now()
		err := b.consume(ctx, c, handle)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(began) > 5*time.Second {
			wait = 50 * time.Millisecond
		}
		b.log.Debug("consuming again", "consumer", c.Durable, "error", err)
		if !sleep(ctx, wait) {
			return ctx.Err()
		}
	}
}

func (b *Bus) consume(ctx context.Context, c Consume, handle func(context.Context, []Stored) error) error {
	batch := max(c.Batch, 1)
	cons, err := b.js.Consumer(ctx, c.Stream, c.Durable)
	if err != nil {
		return err
	}
	items := make(chan jetstream.Msg, batch)
	broken := make(chan error, 1)
	gone := make(chan struct{}) // nobody reads items any more
	defer close(gone)
	cc, err := cons.Consume(func(m jetstream.Msg) {
		select {
		case items <- m:
		case <-gone:
		}
	}, jetstream.PullMaxMessages(batch), jetstream.PullExpiry(5*time.Second), jetstream.PullHeartbeat(time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) ||
				errors.Is(err, jetstream.ErrConnectionClosed) {
				select {
				case broken <- err:
				default:
				}
			}
		}))
	if err != nil {
		return err
	}
	defer cc.Stop()
	msgs := make([]jetstream.Msg, 0, batch)
	for {
		linger := c.Linger
		if len(msgs) > batch/16 {
			linger = max(linger, c.BusyLinger)
		}
		msgs = msgs[:0]
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-broken:
			return err
		case m := <-items:
			msgs = append(msgs, m)
		}
		if linger > 0 && !sleep(ctx, linger) {
			return ctx.Err()
		}
	more:
		for len(msgs) < batch {
			select {
			case m := <-items:
				msgs = append(msgs, m)
			default:
				break more
			}
		}
		b.handleBatch(ctx, c, msgs, handle)
	}
}

func (b *Bus) handleBatch(ctx context.Context, c Consume, msgs []jetstream.Msg, handle func(context.Context, []Stored) error) {
	events := make([]Stored, 0, len(msgs))
	for _, m := range msgs {
		ev, err := fromMsg(m)
		if err != nil {
			b.log.Error("an item that is none", "consumer", c.Durable, "error", err)
			_ = m.Term()
			continue
		}
		events = append(events, ev)
	}
	if len(events) == 0 {
		return
	}
	err := handle(ctx, events)
	if err == nil {
		for _, m := range msgs {
			if err := m.Ack(); err != nil {
				b.log.Warn("an acknowledgement failed; the item will come again", "consumer", c.Durable, "error", err)
			}
		}
		return
	}
	if ctx.Err() != nil {
		for _, m := range msgs {
			_ = m.Nak() // for whoever comes next, at once instead of after the ack wait
		}
		return
	}
	var retry Retry
	if errors.As(err, &retry) {
		for _, m := range msgs {
			_ = m.NakWithDelay(retry.After) // without it the item comes again after the ack wait
		}
		return
	}
	for _, m := range msgs {
		meta, metaErr := m.Metadata()
		if metaErr != nil {
			continue
		}
		tries := int(meta.NumDelivered)
		if c.MaxTries > 0 && len(msgs) == 1 && tries >= c.MaxTries {
			if b.park(ctx, events[0], err) {
				_ = m.Term()
			}
			continue
		}
		b.log.Warn("an item could not be handled; it is tried again", "consumer", c.Durable, "subject", m.Subject(), "tries", tries, "error", err)
		_ = m.NakWithDelay(min(100*time.Millisecond<<min(tries, 7), 10*time.Second))
	}
}

// park keeps an item that was given up where it can be looked at, and says whether that worked: an item stays in its
// queue until it did.
func (b *Bus) park(ctx context.Context, ev Stored, cause error) bool {
	if err := b.Park(ctx, ev.Event, cause.Error()); err != nil {
		b.log.Error("an item could not be parked", "subject", ev.Subject, "error", err)
		return false
	}
	b.log.Error("an item was given up and parked", "subject", ev.Subject, "error", cause)
	return true
}

// Park stores ev under butler.parked.<its subject without "butler."> with the reason in the header butler-reason.
func (b *Bus) Park(ctx context.Context, ev Event, reason string) error {
	ev.Subject = "butler.parked." + strings.TrimPrefix(ev.Subject, "butler.")
	ev.ID = "parked-" + ev.ID
	msg, err := ev.message(ctx)
	if err != nil {
		return err
	}
	msg.Header[jetstream.ExpectedStreamHeader] = []string{ParkedStream}
	msg.Header["butler-reason"] = []string{strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, reason)}
	_, err = b.append(ctx, msg, nil)
	return err
}
