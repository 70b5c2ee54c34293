package journal

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// gate lets one goroutine of a run at a time append to or read the log. Each holds it for the time of a few calls of the
// Log, which are bounded, so waiting for it needs no end. The simulation has its own, to decide who is next.
type gate interface {
	lock(ctx context.Context)
	unlock()
}

type chanGate chan struct{}

func (g chanGate) lock(context.Context) { g <- struct{}{} }
func (g chanGate) unlock()              { <-g }

// Buffered outcomes are written before the next step once they are this old or large: a crash loses at most that much
// work, and only pure work.
const (
	bufferFor   = 2 * time.Second
	bufferBytes = 256 << 10
)

// maxRefusals bounds how often an append is refused although nothing new is in the log.
const maxRefusals = 8

func (r *Run) queue(e Entry) *item {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queueLocked(e)
}

// queueLocked puts an entry in the line for the log. An outcome counts from now on for this run.
func (r *Run) queueLocked(e Entry) *item {
	it := &item{Entry: e}
	if len(r.pending) == 0 {
		r.oldest = r.x.o.Clock.Now()
	}
	r.pending = append(r.pending, it)
	r.bytes += e.size()
	if e.Kind == EntryOutcome {
		r.st.note(e)
	}
	return it
}

// flushOld writes the buffered outcomes when they are due.
func (r *Run) flushOld(ctx context.Context) error {
	r.mu.Lock()
	var last *item
	if n := len(r.pending); n > 0 && (r.bytes > bufferBytes || r.x.o.Clock.Now().Sub(r.oldest) >= bufferFor) {
		last = r.pending[n-1]
	}
	r.mu.Unlock()
	if last == nil {
		return nil
	}
	return r.flush(ctx, last)
}

// flush returns when it is stored, or dropped because the unit was cancelled. What else is in the line goes into the
// same record.
func (r *Run) flush(ctx context.Context, it *item) error {
	r.gate.lock(ctx)
	defer r.gate.unlock()
	return r.flushHeld(ctx, it)
}

func (r *Run) flushHeld(ctx context.Context, it *item) error {
	ctx, done := r.writing(ctx)
	defer done()
	for {
		r.mu.Lock()
		batch, err := r.batch(), r.fate
		if err == nil && (r.closed || r.st.End != nil) {
			err = errReturned
		}
		settled := it.stored || it.dropped
		r.mu.Unlock()
		if settled {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.appendStep(ctx, batch); err != nil {
			return err
		}
	}
}

// writing gives the context for the log: what was done is written also when the unit is cancelled or the process told
// to stop, but then within a grace time.
func (r *Run) writing(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	unlink := context.AfterFunc(r.base, func() {
		stop := r.x.o.Clock.AfterFunc(r.x.o.Grace, func() { cancel(context.Cause(r.base)) })
		context.AfterFunc(ctx, stop)
	})
	return ctx, func() { unlink(); cancel(nil) }
}

// batch gives what fits into one record, from the front. On a cancelled unit nothing new begins: intents and awaits that
// are not stored are dropped.
func (r *Run) batch() []*item {
	if r.st.Cancel != nil {
		r.drop()
	}
	size, n := 0, 0
	for n < len(r.pending) {
		size += r.pending[n].size()
		if n > 0 && size > r.x.o.Limits.RecordBytes {
			break
		}
		n++
	}
	return slices.Clone(r.pending[:n])
}

// announces says that the entry is about something that has not begun.
func (it *item) announces() bool { return it.Kind == EntryIntent || it.Kind == EntryAwait }

// drop takes out of the line what only announces something.
func (r *Run) drop() {
	r.pending = slices.DeleteFunc(r.pending, func(it *item) bool {
		it.dropped = it.announces()
		if it.dropped {
			r.bytes -= it.size()
		}
		return it.dropped
	})
}

// settle marks a batch as stored.
func (r *Run) settle(batch []*item) {
	for _, it := range batch {
		it.stored = true
	}
	r.pending = slices.DeleteFunc(r.pending, func(it *item) bool {
		if it.stored {
			r.bytes -= it.size()
		}
		return it.stored
	})
	r.oldest = r.x.o.Clock.Now()
}

func entriesOf(batch []*item) []Entry {
	entries := make([]Entry, len(batch))
	for i, it := range batch {
		entries[i] = it.Entry
	}
	return entries
}

// appendStep stores batch as one record. It returns nil without having done so when the batch has to be made anew. The
// caller holds the gate.
func (r *Run) appendStep(ctx context.Context, batch []*item) error {
	rec := Record{ID: r.x.o.NewID(), Kind: KindStep, Worker: r.x.o.Worker, Entries: entriesOf(batch)}
	for {
		stored, err := r.tryAppend(ctx, rec)
		if err != nil {
			return err
		}
		r.mu.Lock()
		if stored {
			r.settle(batch)
		}
		stale := r.st.Cancel != nil && slices.ContainsFunc(batch, (*item).announces)
		r.mu.Unlock()
		if stored || stale {
			return nil
		}
	}
}

// tryAppend appends rec once. stored is false and err nil when others had written what does not fence: it is folded now,
// and the same record may be tried again. Any error is the run's fate. The caller holds the gate.
func (r *Run) tryAppend(ctx context.Context, rec Record) (stored bool, err error) {
	r.mu.Lock()
	expect, err := r.st.Last, r.fate
	r.mu.Unlock()
	if err != nil {
		return false, err
	}
	seq, err := r.x.o.Log.Append(ctx, r.unit, expect, rec)
	switch {
	case err == nil:
		r.mu.Lock()
		defer r.mu.Unlock()
		rec.Seq = seq
		r.st.Apply(rec)
		r.refused = 0
		return true, nil
	case errors.Is(err, ErrConflict):
		return r.catchUp(ctx, rec.ID)
	default:
		return false, r.doom(fault.Wrap(err, fault.Unavailable, "the log did not confirm a record of %s", r.unit))
	}
}

// catchUp folds what others wrote. stored is true when a record with the id own is among it. Steps and ends of anyone
// else are the run's fate: ErrFenced. The caller holds the gate.
func (r *Run) catchUp(ctx context.Context, own string) (stored bool, err error) {
	r.mu.Lock()
	last := r.st.Last
	r.mu.Unlock()
	records, err := r.x.o.Log.Load(ctx, r.unit, last)
	if err == nil && len(records) == 0 && own != "" {
		err = r.refusedForNothing(ctx)
	}
	if errors.Is(err, ErrFenced) {
		return false, r.doom(err)
	}
	if err != nil {
		return false, r.doom(fault.Wrap(err, fault.Unavailable, "the log cannot be read for %s", r.unit))
	}
	fenced := false
	r.mu.Lock()
	cancelled := r.st.Cancel != nil
	for _, rec := range records {
		switch {
		case own != "" && rec.ID == own:
			stored = true
		case rec.Kind == KindStep, rec.Kind == KindEnd:
			fenced = true
		}
		r.st.Apply(rec)
	}
	cancelled = !cancelled && r.st.Cancel != nil
	r.mu.Unlock()
	if fenced {
		return stored, r.doom(ErrFenced)
	}
	if cancelled {
		r.stop(ErrCancelled)
	}
	return stored, nil
}

// refusedForNothing looks whether the unit is gone: a deleted unit fences its worker.
func (r *Run) refusedForNothing(ctx context.Context) error {
	records, err := r.x.o.Log.Load(ctx, r.unit, 0)
	if err != nil {
		return err
	}
	if Fold(records).Open == nil {
		return ErrFenced
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refused++; r.refused > maxRefusals {
		return errors.New("it refuses appends without a newer record")
	}
	return nil
}

// doom ends all writing of this run and stops its program. The first reason stays.
func (r *Run) doom(err error) error {
	r.mu.Lock()
	if r.fate == nil {
		r.fate = err
	}
	err = r.fate
	r.mu.Unlock()
	r.stop(err)
	return err
}

// halted ends the attempt after a panic; what was done before is still written.
func (r *Run) halted(err error) {
	r.mu.Lock()
	if r.halt == nil {
		r.halt = err
	}
	r.mu.Unlock()
	r.stop(err)
}

// refresh looks for news without appending.
func (r *Run) refresh(ctx context.Context) error {
	r.gate.lock(ctx)
	defer r.gate.unlock()
	r.mu.Lock()
	err := r.fate
	idle := r.st == nil || r.st.End != nil
	r.mu.Unlock()
	if err != nil || idle {
		return nil
	}
	if _, err := r.catchUp(ctx, ""); err != nil && !errors.Is(err, ErrFenced) {
		return err
	}
	return nil
}
