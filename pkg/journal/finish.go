package journal

import (
	"context"
	"maps"
	"slices"
)

// finish writes the End. cancelled says that end takes the cancel into account.
func (r *Run) finish(ctx context.Context, end End, cancelled bool) (Result, error) {
	r.gate.lock(ctx)
	defer r.gate.unlock()
	return r.finishHeld(ctx, end, cancelled)
}

func (r *Run) finishHeld(ctx context.Context, end End, cancelled bool) (Result, error) {
	wctx, done := r.writing(ctx)
	defer done()
	end = r.fitEnd(end)
	r.mu.Lock()
	for _, key := range slices.Sorted(maps.Keys(r.st.Intents)) {
		intent := r.st.Intents[key]
		if _, settled := r.st.Outcomes[key]; !settled && intent.Repeat == Once {
			r.queueLocked(Entry{Kind: EntryOutcome, Key: key, Error: &EntryError{Class: ClassUnknown, Code: CodeUnknown,
				Message: "it was interrupted; whether it happened is unknown"}})
		}
	}
	r.mu.Unlock()
	id := r.x.o.NewID()
	for {
		if !cancelled && r.Cancelled() {
			cancelled = true
			end = r.fitEnd(r.x.o.Stopped(r, &end))
			id = r.x.o.NewID() // another content
		}
		r.mu.Lock()
		r.drop() // what a goroutine that the program left behind wants to begin
		batch, last := r.batch(), (*item)(nil)
		if r.bytes+len(end.Result)+1024 > r.x.o.Limits.RecordBytes && len(r.pending) > 0 {
			last = r.pending[len(r.pending)-1]
		}
		r.mu.Unlock()
		if last != nil {
			if err := r.flushHeld(ctx, last); err != nil {
				return r.doomed(err)
			}
			continue
		}
		stored, err := r.tryAppend(wctx, Record{ID: id, Kind: KindEnd, Worker: r.x.o.Worker,
			Entries: entriesOf(batch), End: &end})
		if err != nil {
			return r.doomed(err)
		}
		if stored {
			break
		}
	}
	r.clearTimers(wctx)
	res := r.result(Ended)
	res.New = true
	return res, nil
}

// fitEnd gives end as it can be stored.
func (r *Run) fitEnd(end End) End {
	fits := func(e *End) *EntryError {
		e.Status, e.Reason = clip(e.Status, 64), clip(e.Reason, 256)
		if e.Result == nil {
			return nil
		}
		var wrong *EntryError
		e.Result, wrong = r.x.o.Limits.fit(e.Result)
		return wrong
	}
	wrong := fits(&end)
	if wrong == nil {
		return end
	}
	end = r.x.o.Poison(r, wrong.Code)
	if fits(&end) != nil {
		end.Result = nil
	}
	return end
}

// clearTimers calls off what nobody waits for any more. Best effort: a timer of an ended unit does no harm.
func (r *Run) clearTimers(ctx context.Context) {
	r.mu.Lock()
	var keys []string
	for key, await := range r.st.Awaits {
		if _, arrived := r.st.Signals[key]; !arrived && !await.Deadline.IsZero() {
			keys = append(keys, key)
		}
	}
	r.mu.Unlock()
	slices.Sort(keys)
	for _, key := range keys {
		if err := r.x.o.Timers.Clear(ctx, r.unit, key); err != nil {
			r.x.o.Logger.Warn("timer not cleared", "unit", r.unit, "key", key, "err", err)
			return
		}
	}
}

// poison ends a unit whose attempts are used up. The caller holds the gate.
func (r *Run) poison(ctx context.Context) (Result, error) {
	r.mu.Lock()
	r.mark = r.x.o.Clock.Now()
	r.attempt = r.st.Attempt + 1
	r.queueLocked(Entry{Kind: EntryClaim, Attempt: int32(r.attempt)}) // the end is this worker's from here on
	r.mu.Unlock()
	if r.st.Cancel != nil {
		return r.finishHeld(ctx, r.x.o.Stopped(r, nil), true)
	}
	r.x.o.Logger.Error("unit given up", "unit", r.unit, "attempts", r.attempt-1)
	res, err := r.finishHeld(ctx, r.x.o.Poison(r, CodePoison), false)
	if err == nil && res.New && r.x.o.Park != nil {
		if err := r.x.o.Park(ctx, r.unit, CodePoison); err != nil {
			r.x.o.Logger.Warn("unit not parked", "unit", r.unit, "err", err)
		}
	}
	return res, err
}
