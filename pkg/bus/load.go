package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/butlerhub/butler/pkg/fault"
)

// loadBatch is how many events one request of Load asks for.
const loadBatch = 256

// Load reads the events that match filter (in stored form, wildcards allowed) and come after the sequence given, oldest
// first, at most limit of them; 0 means all. Giving the sequence where the events begin makes it cheap: without one the
// server searches from the stream's start.
func (b *Bus) Load(ctx context.Context, stream, filter string, after uint64, limit int) ([]Stored, error) {
	var out []Stored
	for {
		n := loadBatch
		if limit > 0 {
			n = min(n, limit-len(out))
		}
		got, err := b.loadOnce(ctx, stream, filter, after, n)
		if err != nil {
			return nil, err
		}
		out = append(out, got...)
		if len(got) == 0 || limit > 0 && len(out) >= limit {
			return out, nil
		}
		after = got[len(got)-1].Seq
		// A short batch can be the end, or the server's own limit in bytes: only an empty one is the end, unless it was
		// far from both.
		if len(got) < n/2 {
			return out, nil
		}
	}
}

func (b *Bus) loadOnce(ctx context.Context, stream, filter string, after uint64, n int) ([]Stored, error) {
	msgs, err := jetstreamext.GetBatch(ctx, b.js, stream, n, jetstreamext.GetBatchSeq(after+1), jetstreamext.GetBatchSubject(filter))
	if err != nil {
		return nil, loadError(stream, err)
	}
	var out []Stored
	for m, err := range msgs {
		if errors.Is(err, jetstreamext.ErrNoMessages) {
			break
		}
		if err != nil {
			return nil, loadError(stream, err)
		}
		out = append(out, fromRaw(stream, m))
	}
	return out, nil
}

func loadError(stream string, err error) error {
	return fault.Wrap(err, fault.Unavailable, "the log %s cannot be read now", stream)
}

// Last reads the newest event that matches filter, and says whether there is one.
func (b *Bus) Last(ctx context.Context, stream, filter string) (Stored, bool, error) {
	ev, found, err := b.lastFromLeader(ctx, stream, filter)
	if err != nil {
		return Stored{}, false, loadError(stream, err)
	}
	return ev, found, nil
}

// Bounds gives the sequences of a stream's first and last message; both are 0 for a new one. A stream that was emptied
// has first = last + 1.
func (b *Bus) Bounds(ctx context.Context, stream string) (first, last uint64, err error) {
	s, err := b.js.Stream(ctx, stream)
	if err != nil {
		return 0, 0, loadError(stream, err)
	}
	state := s.CachedInfo().State
	return state.FirstSeq, state.LastSeq, nil
}

// Erase removes every event that matches filter, its bytes on disk included, and says how many there were. A purge alone
// leaves the bytes; so each is deleted securely first (about a millisecond each).
func (b *Bus) Erase(ctx context.Context, stream, filter string) (int, error) {
	s, err := b.js.Stream(ctx, stream)
	if err != nil {
		return 0, loadError(stream, err)
	}
	n := 0
	for after := uint64(0); ; {
		events, err := b.loadOnce(ctx, stream, filter, after, loadBatch)
		if err != nil {
			return n, err
		}
		if len(events) == 0 {
			break
		}
		for _, ev := range events {
			err := s.SecureDeleteMsg(ctx, ev.Seq)
			if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) && !errors.Is(err, nats.ErrMsgNotFound) {
				return n, fmt.Errorf("bus: erasing %s %d: %w", stream, ev.Seq, err)
			}
			n++
			after = ev.Seq
		}
	}
	if err := s.Purge(ctx, jetstream.WithPurgeSubject(filter)); err != nil {
		return n, fmt.Errorf("bus: purging %s: %w", stream, err)
	}
	return n, nil
}
