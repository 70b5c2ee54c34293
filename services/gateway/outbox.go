package gateway

import (
	"context"
	"sync"
	"time"
)

// Bounds of what waits for one connection. One that has more waiting does not read: it is cut off and can come back with
// its last seq.
const (
	maxWaitingFrames = 1024
	maxWaitingBytes  = 4 << 20
)

// outbox holds the frames that wait for one connection. The hub fills it and never waits for it; the connection empties
// it. It is made by hub.join and belongs to one person.
type outbox struct {
	person int64
	only   string // when set, only frames of this turn are taken
	// approvals says that with only set, requests for approval that the turn waits for are taken too.
	approvals bool

	// wake is called, without waiting, when a frame has come and nobody is known to be emptying the outbox: whoever it
	// wakes owns the outbox until take gives nothing.
	wake func()
	// slow is called once, without waiting, when the connection does not keep up; nothing comes after it.
	slow func()

	mu     sync.Mutex
	queue  []*frame
	bytes  int
	owned  bool // somebody empties the outbox, or is about to
	closed bool
	// What was given to the connection by catching up. Live frames of events up to seen are passed over; cursors below
	// floor are raised to it, so that the seq of a connection never goes back.
	seen, floor cursor
}

// push hands a frame to the connection. It never blocks.
func (o *outbox) push(f *frame) {
	o.mu.Lock()
	if o.closed || !o.wants(f) ||
		f.chat != 0 && f.chat <= o.seen.chat || f.delta != 0 && f.delta <= o.seen.delta {
		o.mu.Unlock()
		return
	}
	if len(o.queue) >= maxWaitingFrames || o.bytes+len(f.body) > maxWaitingBytes {
		o.closed, o.queue, o.bytes = true, nil, 0
		o.mu.Unlock()
		o.slow()
		return
	}
	o.queue = append(o.queue, o.raise(f))
	o.bytes += len(f.body)
	wake := !o.owned
	o.owned = true
	o.mu.Unlock()
	if wake {
		o.wake()
	}
}

func (o *outbox) wants(f *frame) bool {
	switch {
	case o.only == "":
		return true
	case f.approval != nil:
		return o.approvals && f.approval.turn == o.only
	}
	return f.event != nil && f.event.key == o.only
}

func (o *outbox) raise(f *frame) *frame {
	if o.floor == (cursor{}) {
		return f
	}
	if f.at.chat >= o.floor.chat && f.at.delta >= o.floor.delta {
		if f.seqAt != 0 {
			o.floor = cursor{} // the hub is past it, for good
		}
		return f
	}
	return f.withCursor(f.at.max(o.floor))
}

// take gives what waits, in order, using spare for the next ones. When nothing waits it gives nil and ends the caller's
// ownership.
func (o *outbox) take(spare []*frame) []*frame {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		o.owned = false
		if cap(o.queue) > 64 {
			o.queue = nil
		}
		return nil
	}
	q := o.queue
	clear(spare)
	o.queue, o.bytes = spare[:0], 0
	return q
}

// caughtUp begins the live part of a connection that caught up: everything up to seen was told, up to floor with a frame.
func (o *outbox) caughtUp(seen, floor cursor) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen, o.floor = seen, floor
	waiting := o.queue
	o.queue, o.bytes = nil, 0
	for _, f := range waiting {
		if f.chat != 0 && f.chat <= seen.chat || f.delta != 0 && f.delta <= seen.delta {
			continue
		}
		o.queue = append(o.queue, o.raise(f))
		o.bytes += len(f.body)
	}
}

// deltasBeganAnew forgets positions in DELTA: the stream was emptied and counts from 1 again.
func (o *outbox) deltasBeganAnew() {
	o.mu.Lock()
	o.seen.delta, o.floor.delta = 0, 0
	o.mu.Unlock()
}

// close makes the outbox take nothing any more.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed, o.queue, o.bytes = true, nil, 0
	o.mu.Unlock()
}

// waiter is an outbox that one goroutine reads: a request that streams or waits.
type waiter struct {
	*outbox
	ready  chan struct{} // holds one token while there is something to take
	broken chan struct{} // closed when the reader is too slow
	rest   []*frame
}

func newWaiter(person int64) *waiter {
	w := &waiter{ready: make(chan struct{}, 1), broken: make(chan struct{})}
	w.outbox = &outbox{
		person: person,
		wake: func() {
			select {
			case w.ready <- struct{}{}:
			default:
			}
		},
		slow: sync.OnceFunc(func() { close(w.broken) }),
	}
	return w
}

// next waits for the next frame. It returns nil and no error when tick fires first, and errTooSlow when the reader did
// not keep up.
func (w *waiter) next(ctx context.Context, tick <-chan time.Time) (*frame, error) {
	for {
		if len(w.rest) > 0 {
			f := w.rest[0]
			w.rest = w.rest[1:]
			return f, nil
		}
		if w.rest = w.take(nil); w.rest != nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-w.broken:
			return nil, errTooSlow
		case <-tick:
			return nil, nil
		case <-w.ready:
		}
	}
}
