package journaltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/journal"
)

// Backend is a Log and Timers to be checked.
type Backend struct {
	Log journal.Log
	// Timers sets timers that call the fire function of the Factory. nil: timers are not checked, and the work waits
	// on timers in memory.
	Timers journal.Timers
	// Open writes the record that opens unit, whose name Unit made. Calling it again for the same unit does nothing.
	Open func(ctx context.Context, unit string, body []byte) error
	// Unit makes the n-th unit's name; names of different n differ. n is below 100,000.
	Unit func(n int) string
}

// Factory makes an empty Backend. Its timers call fire, from any goroutine and as often as they like, until the test's
// cleanup; fire does not block for long.
type Factory func(t *testing.T, fire func(unit, key string, due time.Time)) Backend

// Run checks a Backend: the log's contract, the timers', and that work on them, done by workers that die, freeze and
// lose answers, keeps the promises of package journal. It takes about ten seconds.
func Run(t *testing.T, factory Factory) {
	t.Run("log", func(t *testing.T) { checkLog(t, factory(t, func(string, string, time.Time) {})) })
	t.Run("timers", func(t *testing.T) { checkTimers(t, factory) })
	t.Run("work", func(t *testing.T) { checkWork(t, factory) })
}

func record(id string, kind journal.Kind, entries ...journal.Entry) journal.Record {
	r := journal.Record{ID: id, Kind: kind, Worker: "w1", Entries: entries}
	switch kind {
	case journal.KindCancel:
		r = journal.Record{ID: id, Kind: kind, Body: []byte(`{"by":{"id":"7"}}`)}
	case journal.KindEnd:
		r.End = &journal.End{Status: "answered", Result: []byte(`{"text":"<&> \u2028 é"}`)}
	}
	return r
}

func checkLog(t *testing.T, b Backend) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := 0
	open := func(t *testing.T) (unit string, seq uint64) {
		n++
		unit = b.Unit(n)
		require.NoError(t, b.Open(ctx, unit, []byte(`{"text":"hello"}`)))
		records, err := b.Log.Load(ctx, unit, 0)
		require.NoError(t, err)
		require.Len(t, records, 1)
		require.Equal(t, journal.KindOpen, records[0].Kind)
		require.NotZero(t, records[0].Seq)
		require.NotZero(t, records[0].At)
		require.JSONEq(t, `{"text":"hello"}`, string(records[0].Body))
		return unit, records[0].Seq
	}
	claim := journal.Entry{Kind: journal.EntryClaim, Attempt: 2}

	t.Run("a unit without records", func(t *testing.T) {
		records, err := b.Log.Load(ctx, b.Unit(99_999), 0)
		require.NoError(t, err)
		require.Empty(t, records)
	})
	t.Run("every kind comes back as written", func(t *testing.T) {
		unit, seq := open(t)
		deadline := time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)
		written := []journal.Record{
			record(unit+"-1", journal.KindStep, claim,
				journal.Entry{Kind: journal.EntryIntent, Key: "a", Repeat: journal.Once, Description: "say <hello>"}),
			record(unit+"-2", journal.KindStep, journal.Entry{Kind: journal.EntryOutcome, Key: "a",
				Value: []byte(`{"b":1,"a":[1.50,12345678901234567890,"<&>é"]}`), Spent: &journal.Spent{Tokens: 7}},
				journal.Entry{Kind: journal.EntryAwait, Key: "w", Deadline: deadline}),
			record(unit+"-3", journal.KindSignal,
				journal.Entry{Kind: journal.EntrySignal, Key: "w", Timeout: true, Deadline: deadline}),
			record(unit+"-4", journal.KindCancel),
			record(unit+"-5", journal.KindEnd, journal.Entry{Kind: journal.EntryOutcome, Key: "c",
				Error: &journal.EntryError{Class: "user", Code: "invalid", Message: "no"}}),
		}
		last := seq
		for _, r := range written {
			next, err := b.Log.Append(ctx, unit, last, r)
			require.NoError(t, err, r.Kind)
			require.Greater(t, next, last)
			last = next
		}
		read, err := b.Log.Load(ctx, unit, seq)
		require.NoError(t, err)
		require.Len(t, read, len(written))
		for i, r := range read {
			require.Equal(t, written[i].ID, r.ID)
			require.Equal(t, written[i].Kind, r.Kind)
			want, err := written[i].Encode()
			require.NoError(t, err)
			got, err := r.Encode()
			require.NoError(t, err)
			require.Equal(t, string(want), string(got))
		}
		tail, err := b.Log.Load(ctx, unit, read[2].Seq)
		require.NoError(t, err)
		require.Len(t, tail, 2, "after a sequence")
	})
	t.Run("the condition covers all kinds", func(t *testing.T) {
		for _, kind := range []journal.Kind{journal.KindStep, journal.KindSignal, journal.KindCancel, journal.KindEnd} {
			unit, seq := open(t)
			_, err := b.Log.Append(ctx, unit, seq, record(unit+"-x", kind))
			require.NoError(t, err)
			for _, other := range []journal.Kind{journal.KindStep, journal.KindSignal, journal.KindCancel, journal.KindEnd} {
				_, err := b.Log.Append(ctx, unit, seq, record(unit+"-y-"+string(other), other))
				require.ErrorIs(t, err, journal.ErrConflict, "%s after %s", other, kind)
			}
			records, err := b.Log.Load(ctx, unit, 0)
			require.NoError(t, err)
			require.Len(t, records, 2)
		}
	})
	t.Run("a repeated append is the same record", func(t *testing.T) {
		unit, seq := open(t)
		r := record(unit+"-1", journal.KindStep, claim)
		first, err := b.Log.Append(ctx, unit, seq, r)
		require.NoError(t, err)
		again, err := b.Log.Append(ctx, unit, seq, r)
		require.NoError(t, err)
		require.Equal(t, first, again)
		_, err = b.Log.Append(ctx, unit, first, record(unit+"-2", journal.KindStep, claim))
		require.NoError(t, err)
		again, err = b.Log.Append(ctx, unit, seq, r)
		require.NoError(t, err)
		require.Equal(t, first, again, "also when others have followed")
	})
	t.Run("a refused append can be repeated", func(t *testing.T) {
		unit, seq := open(t)
		first, err := b.Log.Append(ctx, unit, seq, record(unit+"-1", journal.KindSignal))
		require.NoError(t, err)
		r := record(unit+"-2", journal.KindStep, claim)
		_, err = b.Log.Append(ctx, unit, seq, r)
		require.ErrorIs(t, err, journal.ErrConflict)
		_, err = b.Log.Append(ctx, unit, first, r)
		require.NoError(t, err)
	})
	t.Run("of competing writers one wins", func(t *testing.T) {
		for range 20 {
			unit, seq := open(t)
			var wg sync.WaitGroup
			errs := make([]error, 4)
			for i := range errs {
				wg.Go(func() {
					_, errs[i] = b.Log.Append(ctx, unit, seq, record(fmt.Sprintf("%s-%d", unit, i), journal.KindStep, claim))
				})
			}
			wg.Wait()
			won := 0
			for _, err := range errs {
				if err == nil {
					won++
				} else {
					require.ErrorIs(t, err, journal.ErrConflict)
				}
			}
			require.Equal(t, 1, won)
		}
	})
	t.Run("units do not touch each other", func(t *testing.T) {
		one, seq := open(t)
		two, _ := open(t)
		_, err := b.Log.Append(ctx, one, seq, record(one+"-1", journal.KindStep, claim))
		require.NoError(t, err)
		records, err := b.Log.Load(ctx, two, 0)
		require.NoError(t, err)
		require.Len(t, records, 1)
	})
	t.Run("long journals and large records", func(t *testing.T) {
		unit, last := open(t)
		big := append(append([]byte{'"'}, bytes.Repeat([]byte{'x'}, 440<<10)...), '"')
		var err error
		for i := range 300 {
			r := record(fmt.Sprintf("%s-%d", unit, i), journal.KindStep, claim)
			if i == 7 {
				r.Entries = []journal.Entry{{Kind: journal.EntryOutcome, Key: "a", Value: big},
					{Kind: journal.EntryOutcome, Key: "b", Value: big}}
			}
			last, err = b.Log.Append(ctx, unit, last, r)
			require.NoError(t, err)
		}
		records, err := b.Log.Load(ctx, unit, 0)
		require.NoError(t, err)
		require.Len(t, records, 301)
		require.Equal(t, len(big), len(records[8].Entries[1].Value))
		require.Equal(t, last, records[300].Seq)
	})
	t.Run("a done context is an error", func(t *testing.T) {
		unit, seq := open(t)
		done, cancel := context.WithCancel(ctx)
		cancel()
		_, err := b.Log.Append(done, unit, seq, record(unit+"-1", journal.KindStep, claim))
		require.Error(t, err)
		require.False(t, errors.Is(err, journal.ErrConflict))
	})
}

func checkTimers(t *testing.T, factory Factory) {
	fired := make(chan [2]string, 100)
	var mu sync.Mutex
	early := time.Duration(0)
	b := factory(t, func(unit, key string, due time.Time) {
		mu.Lock()
		early = max(early, time.Until(due))
		mu.Unlock()
		select {
		case fired <- [2]string{unit, key}:
		default:
		}
	})
	if b.Timers == nil {
		t.Skip("the backend has no timers of its own")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	unit := b.Unit(1)
	require.NoError(t, b.Open(ctx, unit, []byte(`{}`)))
	require.NoError(t, b.Timers.Clear(ctx, unit, "never"), "clearing what is not set")
	require.NoError(t, b.Timers.Set(ctx, unit, "gone", time.Now().Add(2*time.Second)))
	require.NoError(t, b.Timers.Clear(ctx, unit, "gone"))
	require.NoError(t, b.Timers.Set(ctx, unit, "moved", time.Now().Add(time.Hour)))
	require.NoError(t, b.Timers.Set(ctx, unit, "moved", time.Now().Add(3*time.Second)), "setting again replaces")
	require.NoError(t, b.Timers.Set(ctx, unit, "past", time.Now().Add(-time.Minute)))
	got := map[string]bool{}
	for !got["past"] || !got["moved"] {
		select {
		case f := <-fired:
			require.Equal(t, unit, f[0])
			got[f[1]] = true
		case <-ctx.Done():
			t.Fatalf("fired are only %v", got)
		}
	}
	require.False(t, got["gone"], "a cleared timer fired")
	mu.Lock()
	defer mu.Unlock()
	require.LessOrEqual(t, early, 1100*time.Millisecond, "fired too early")
}
