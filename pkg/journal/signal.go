package journal

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// Message is what arrives for a unit.
type Message struct {
	Key     string
	Value   json.RawMessage
	Timeout bool      // a timer
	Due     time.Time // when the timer is due
}

// Receipt says what became of a Message.
type Receipt struct {
	New   bool          // recorded now: execute the unit, not as First
	Ended bool          // the unit has ended
	Hold  time.Duration // above 0: a timer came early and nothing was recorded; bring it again after this time
}

// Signal records what arrived for a unit; any worker may. Only the first signal for a key counts, later ones are
// dropped, and so are those of an ended unit and of timers that nobody waits for. A value that is too large, or not
// JSON, is recorded as a failure, which the waiting program gets. It is a fault.NotFound error if there is no such
// unit, and after any other error the message must be brought again.
func (x *Executor) Signal(ctx context.Context, unit string, m Message) (Receipt, error) {
	if !ValidKey(m.Key) {
		return Receipt{}, fault.New(fault.Invalid, "journal: %q cannot name a wait", clip(m.Key, 100))
	}
	if m.Timeout {
		if hold := m.Due.Sub(x.o.Clock.Now()); hold > 0 {
			return Receipt{Hold: hold}, nil
		}
	}
	e := Entry{Kind: EntrySignal, Key: m.Key, Timeout: m.Timeout}
	if !m.Timeout {
		e.Value, e.Error = x.o.Limits.fit(m.Value)
	}
	rec := Record{ID: x.o.NewID(), Kind: KindSignal, Worker: x.o.Worker}
	var receipt Receipt
	var deadline time.Time
	added, err := appendUnless(ctx, x.o.Log, unit, &rec, func(st *State) (bool, error) {
		receipt = Receipt{Ended: st.End != nil}
		_, known := st.Signals[m.Key]
		await, awaited := st.Awaits[m.Key]
		deadline = await.Deadline
		switch {
		case receipt.Ended, known:
			return false, nil
		case len(st.Signals) >= x.o.Limits.Entries:
			return false, fault.New(fault.TooLarge, "journal: %s has too many signals", unit)
		case m.Timeout && (!awaited || deadline.IsZero()):
			return false, nil
		case m.Timeout:
			e.Deadline = deadline
			receipt.Hold = max(deadline.Sub(x.o.Clock.Now()), 0)
		}
		rec.Entries = []Entry{e}
		return receipt.Hold == 0, nil
	})
	if err != nil {
		return Receipt{}, err
	}
	receipt.New = added
	if added && !m.Timeout && !deadline.IsZero() {
		if err := x.o.Timers.Clear(ctx, unit, m.Key); err != nil { // it will be dropped when it fires
			x.o.Logger.Warn("timer not cleared", "unit", unit, "key", m.Key, "err", err)
		}
	}
	return receipt, nil
}

// RequestCancel appends the cancel record rec (its ID and Body are the caller's) unless the unit has ended or is
// cancelled already, and says whether it did. Then give the unit's worker a hint (Executor.Cancel) and have the unit
// executed, in case that it is suspended. It is a fault.NotFound error if there is no such unit.
func RequestCancel(ctx context.Context, log Log, unit string, rec Record) (bool, error) {
	rec.Kind = KindCancel
	return appendUnless(ctx, log, unit, &rec, func(st *State) (bool, error) {
		return st.End == nil && st.Cancel == nil, nil
	})
}

// appendUnless appends rec at the unit's end as long as wanted says so; it is asked again after every conflict and may
// change rec's entries.
func appendUnless(ctx context.Context, log Log, unit string, rec *Record, wanted func(*State) (bool, error)) (
	bool, error) {
	st := &State{}
	for refused := 0; ; refused++ {
		records, err := log.Load(ctx, unit, st.Last)
		if err != nil {
			return false, fault.Wrap(err, fault.Unavailable, "the log cannot be read for %s", unit)
		}
		for _, r := range records {
			if r.ID == rec.ID {
				return true, nil
			}
			st.Apply(r)
		}
		if st.Open == nil {
			return false, fault.New(fault.NotFound, "journal: there is no unit %s", unit)
		}
		if yes, err := wanted(st); !yes || err != nil {
			return false, err
		}
		if len(records) > 0 {
			refused = 0
		}
		_, err = log.Append(ctx, unit, st.Last, *rec)
		switch {
		case err == nil:
			return true, nil
		case !errors.Is(err, ErrConflict):
			return false, fault.Wrap(err, fault.Unavailable, "the log did not confirm a record of %s", unit)
		case refused >= maxRefusals:
			return false, fault.Wrap(err, fault.Unavailable, "the log refuses a record of %s", unit)
		}
	}
}
