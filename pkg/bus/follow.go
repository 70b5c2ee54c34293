package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// Follow says what to follow.
type Follow struct {
	Stream  string
	Filters []string // in stored form
	// After is the sequence after which to begin; ignored when FromNow is set.
	After uint64
	// FromNow begins with what comes next.
	FromNow bool
	// Started, when set, is called each time following has begun (again) and says after which sequence.
	Started func(after uint64)
}

// Follow hands every event to handle, one at a time, in order, without a gap or a repetition, until ctx ends; it returns
// ctx's error. It goes on by itself after a lost connection or a restarted server. When the stream was emptied by a
// restart, because it is in memory, it goes on from the stream's new beginning. handle must be quick: what is not handled
// waits in this process, at most 500 events or so.
func (b *Bus) Follow(ctx context.Context, f Follow, handle func(Stored)) error {
	position, positioned := f.After, !f.FromNow
	for wait := 50 * time.Millisecond; ; {
		began := time.Now()
		err := b.follow(ctx, f, &position, &positioned, handle)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(began) > 5*time.Second {
			wait = 50 * time.Millisecond
		}
		b.log.Debug("following again", "stream", f.Stream, "after", position, "error", err)
		if !sleep(ctx, wait) {
			return ctx.Err()
		}
		wait = min(2*wait, time.Second)
	}
}

// follow makes one consumer and hands on what it gives, until something breaks.
func (b *Bus) follow(ctx context.Context, f Follow, position *uint64, positioned *bool, handle func(Stored)) error {
	reconnects, unwatch := b.watchReconnects()
	defer unwatch()
	s, err := b.js.Stream(ctx, f.Stream)
	if err != nil {
		return err
	}
	last := s.CachedInfo().State.LastSeq
	switch {
	case !*positioned:
		*position, *positioned = last, true
	case *position > last:
		*position = 0
	}
	cfg := jetstream.ConsumerConfig{
		Name:              b.service + "-" + nuid.Next(),
		FilterSubjects:    f.Filters,
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       *position + 1,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: 30 * time.Second, // it removes itself: deleting would need rights on others' consumers too
	}
	cons, err := s.CreateConsumer(ctx, cfg)
	if err != nil {
		return err
	}
	if f.Started != nil {
		f.Started(*position)
	}
	broken := make(chan error, 1)
	fail := func(err error) {
		select {
		case broken <- err:
		default:
		}
	}
	var delivered uint64 // sequence of the consumer: a hole means that a delivery was lost
	failed := false
	cc, err := cons.Consume(func(m jetstream.Msg) {
		if failed {
			return
		}
		meta, err := m.Metadata()
		if err != nil || meta.Sequence.Consumer != delivered+1 {
			failed = true
			fail(fmt.Errorf("bus: a delivery of %s was lost", f.Stream))
			return
		}
		delivered++
		handle(stored(meta.Stream, m.Subject(), meta.Sequence.Stream, meta.Timestamp, m.Headers(), m.Data()))
		*position = meta.Sequence.Stream
	}, jetstream.PullMaxMessages(500), jetstream.PullExpiry(5*time.Second), jetstream.PullHeartbeat(time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			if errors.Is(err, jetstream.ErrNoHeartbeat) || errors.Is(err, jetstream.ErrConsumerDeleted) ||
				errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrConnectionClosed) {
				fail(err)
			}
		}))
	if err != nil {
		return err
	}
	defer func() { cc.Stop(); <-cc.Closed() }() // position is ours again only once no callback runs
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-broken:
		return err
	case <-reconnects:
		return errors.New("bus: reconnected")
	}
}
