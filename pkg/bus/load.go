package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/butlerhub/butler/pkg/fault"
)

const (
	// loadBatch is how many events one request of Load asks for, and loadBytes after how many bytes the server ends it.
	loadBatch = 256
	loadBytes = 8 << 20
	// loadSilence is how long the server may say nothing in the middle of an answer.
	loadSilence = 5 * time.Second
)

// Load reads the events that match filter (in stored form, wildcards allowed) and come after the sequence given, oldest
// first, at most limit of them; 0 means all. Giving the sequence where the events begin makes it cheap: without one the
// server searches from the stream's start. What it returns without an error is complete: an answer that breaks off is
// fault.Unavailable.
func (b *Bus) Load(ctx context.Context, stream, filter string, after uint64, limit int) ([]Stored, error) {
	var out []Stored
	for {
		n := loadBatch
		if limit > 0 {
			n = min(n, limit-len(out))
		}
		got, more, err := b.loadOnce(ctx, stream, filter, after, n)
		if err != nil {
			return nil, err
		}
		out = append(out, got...)
		if !more || limit > 0 && len(out) >= limit {
			return out, nil
		}
		after = got[len(got)-1].Seq
	}
}

// loadOnce asks for one batch by JetStream's direct get and says whether more events match. The server ends a batch with a
// message of its own; without that the answer broke off. (The ready-made client for batches takes silence for the end.)
func (b *Bus) loadOnce(ctx context.Context, stream, filter string, after uint64, n int) (events []Stored, more bool, err error) {
	return b.directGet(ctx, stream, map[string]any{
		"seq": after + 1, "next_by_subj": filter, "batch": n, "max_bytes": loadBytes,
	}, n)
}

// FirstSince gives the first event that was stored at the time given or later, and says whether there is one.
func (b *Bus) FirstSince(ctx context.Context, stream string, at time.Time) (Stored, bool, error) {
	got, _, err := b.directGet(ctx, stream, map[string]any{
		"start_time": at.UTC().Format(time.RFC3339Nano), "next_by_subj": ">", "batch": 1,
	}, 1)
	if err != nil || len(got) == 0 {
		return Stored{}, false, err
	}
	return got[0], true, nil
}

func (b *Bus) directGet(ctx context.Context, stream string, request map[string]any, n int) (events []Stored, more bool, err error) {
	req, err := json.Marshal(request)
	if err != nil {
		return nil, false, err
	}
	inbox := b.nc.NewInbox()
	answers := make(chan *nats.Msg, n+1)
	sub, err := b.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return nil, false, loadError(stream, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := b.nc.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, req); err != nil {
		return nil, false, loadError(stream, err)
	}
	silence := time.NewTimer(loadSilence)
	defer silence.Stop()
	for {
		var m *nats.Msg
		select {
		case m = <-answers:
		case <-ctx.Done():
			return nil, false, loadError(stream, ctx.Err())
		case <-silence.C:
			return nil, false, loadError(stream, errors.New("the answer broke off"))
		}
		switch status := m.Header.Get("Status"); status {
		case "":
		case "204": // the end of the batch
			more := m.Header.Get(headerPending) != "0" && len(events) > 0
			return events, more, nil
		case "404": // nothing matches
			return nil, false, nil
		default:
			return nil, false, loadError(stream, fmt.Errorf("status %s: %s", status, m.Header.Get("Description")))
		}
		seq, err1 := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
		at, err2 := time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer))
		if err := errors.Join(err1, err2); err != nil {
			return nil, false, loadError(stream, err)
		}
		events = append(events, stored(stream, m.Header.Get(jetstream.SubjectHeader), seq, at, m.Header, m.Data))
		silence.Reset(loadSilence)
	}
}

// headerPending counts what follows the batch.
const headerPending = "Nats-Num-Pending"

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
		events, more, err := b.loadOnce(ctx, stream, filter, after, loadBatch)
		if err != nil {
			return n, err
		}
		for _, ev := range events {
			err := s.SecureDeleteMsg(ctx, ev.Seq)
			if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) && !errors.Is(err, nats.ErrMsgNotFound) {
				return n, fmt.Errorf("bus: erasing %s %d: %w", stream, ev.Seq, err)
			}
			n++
			after = ev.Seq
		}
		if !more {
			break
		}
	}
	if err := s.Purge(ctx, jetstream.WithPurgeSubject(filter)); err != nil {
		return n, fmt.Errorf("bus: purging %s: %w", stream, err)
	}
	return n, nil
}
