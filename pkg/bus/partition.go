package bus

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// Partitioned says how a replica of butler-brain takes its share of the sessions.
//
// Each partition has one durable pinned consumer: only one client at a time is given its messages. Which replica asks for
// which partition is decided by rendezvous hashing over the replicas that are present, so that a new one takes its share
// and the share of one that is gone is spread over the rest. The ready-made consumer groups were tried first: static ones
// lose the order with several messages pending or double the latency with one, elastic ones were not taken over after a
// kill.
type Partitioned struct {
	// Replica names this process; unique per start.
	Replica string
	// Handle takes each delivery. It must return at once: a callback that blocks makes the server think that the client is
	// gone. The delivery is held, and reported as in progress, until one of its methods is called.
	Handle func(*Delivery)
	// Lost is told that a partition is now another replica's: deliveries of it that are not being worked on should be
	// released.
	Lost func(partition int)
	// Ready is told, once, that this replica asks for its partitions.
	Ready func()
}

// Delivery is an event that wakes a session on this replica.
type Delivery struct {
	Stored
	Partition int
	// First says that nobody was given this event before, so that no other worker has begun. The server forgets what it
	// had delivered in the moments before it was killed; so only an event that was stored just now is believed to be first.
	First bool
	// Pin identifies the time during which this replica alone was given the partition's events. While it stays the same,
	// no other replica was given any; empty when the event was found in the log.
	Pin string

	w   *partitions
	mu  sync.Mutex
	msg jetstream.Msg // nil when it was found in the log after a restart
}

// Done acknowledges: the log says what became of it.
func (d *Delivery) Done() {
	d.w.drop(d)
	if msg := d.message(); msg != nil {
		if err := msg.Ack(); err != nil {
			d.w.bus.log.Debug("an acknowledgement failed; the event will come again", "error", err)
		}
	}
}

// Release gives the event back: it comes again, here or elsewhere, after the time given.
func (d *Delivery) Release(after time.Duration) {
	d.w.drop(d)
	if msg := d.message(); msg != nil {
		_ = msg.NakWithDelay(after) // without it the event comes again after the ack wait
	}
}

// Forget lets go without a word: somebody else has it.
func (d *Delivery) Forget() { d.w.drop(d) }

func (d *Delivery) message() jetstream.Msg {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.msg
}

// firstWithin is how old an event may be at its first delivery. Clocks of two machines may differ by about as much; what
// is then not believed to be first costs its turn one append more.
const firstWithin = 3 * time.Second

type partitions struct {
	bus *Bus
	o   Partitioned

	mu   sync.Mutex
	held map[uint64]*Delivery // by stream sequence
}

// Work takes this replica's share of the partitions until ctx ends, then gives it back and returns ctx's error. The streams
// must be there.
func (b *Bus) Work(ctx context.Context, o Partitioned) error {
	w := &partitions{bus: b, o: o, held: map[uint64]*Delivery{}}
	changed := make(chan struct{}, 1)

	before, err := b.Alive(ctx, "replica.brain")
	if err != nil {
		return err
	}
	var life sync.WaitGroup
	defer life.Wait()
	presence, stop := context.WithCancel(ctx)
	defer stop()
	view := b.watchReplicas(presence, &life, "brain", o.Replica, changed)
	life.Go(func() { w.beat(ctx) })
	reconnects, unwatch := b.watchReconnects()
	defer unwatch()

	active := map[int]jetstream.ConsumeContext{}
	broken := make(chan int, Partitions)
	defer func() {
		for p, cc := range active {
			cc.Stop()
			w.unpin(p)
		}
		w.releaseAll()
	}()

	if len(before) == 0 {
		// Nobody else is here, so whatever somebody had begun was begun by one that is gone: go on with it now instead of
		// after the ack wait.
		if err := w.recover(ctx); err != nil && ctx.Err() == nil {
			b.log.Warn("interrupted work is picked up only after the ack wait", "error", err)
		}
	} else {
		// Hear of the others first; else the first share would be everything.
		for id := range before {
			view.mu.Lock()
			view.seen[id[len("replica.brain."):]] = time.Now()
			view.mu.Unlock()
		}
	}
	ready := false
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	for {
		alive := view.alive(o.Replica)
		w.startAll(ctx, alive, active, broken)
		for p := range Partitions {
			if cc := active[p]; cc != nil && owner(alive, p) != o.Replica {
				cc.Stop()
				<-cc.Closed()
				delete(active, p)
				w.unpin(p)
				if o.Lost != nil {
					o.Lost(p)
				}
			}
		}
		if !ready {
			ready = true
			if o.Ready != nil {
				o.Ready()
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case p := <-broken:
			if cc := active[p]; cc != nil {
				cc.Stop()
				delete(active, p)
			}
		case <-reconnects:
			// The server may be another one now, without our requests and pins.
			for p, cc := range active {
				cc.Stop()
				delete(active, p)
			}
		case <-retry.C:
		}
	}
}

// owner decides whose a partition is: the replica with the highest hash of both (rendezvous hashing), so that only the
// partitions of one that comes or goes change hands.
func owner(alive []string, partition int) string {
	best, bestHash := "", uint64(0)
	for _, id := range alive {
		h := fnv.New64a()
		fmt.Fprintf(h, "%s/%d", id, partition)
		// FNV alone spreads short strings badly over the high bits; finish it as MurmurHash3 does.
		x := h.Sum64()
		x ^= x >> 33
		x *= 0xff51afd7ed558ccd
		x ^= x >> 33
		x *= 0xc4ceb9fe1a85ec53
		x ^= x >> 33
		if best == "" || x > bestHash {
			best, bestHash = id, x
		}
	}
	return best
}

// startAll asks for those partitions of this replica that it does not ask for yet. It looks all of them up before it asks
// for the first: what a backlog's deliveries set off would hold up the rest for minutes.
func (w *partitions) startAll(ctx context.Context, alive []string, active map[int]jetstream.ConsumeContext, broken chan<- int) {
	var found [Partitions]jetstream.Consumer
	var group errgroup.Group
	group.SetLimit(Partitions / 2)
	for p := range Partitions {
		if active[p] != nil || owner(alive, p) != w.o.Replica {
			continue
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			cons, err := w.bus.js.Consumer(ctx, ChatStream, PartitionConsumer(p))
			if err != nil {
				w.bus.log.Debug("partition not taken yet", "partition", p, "error", err)
				return nil // it is tried again
			}
			found[p] = cons
			return nil
		})
	}
	_ = group.Wait() // none of them fails
	for p, cons := range found {
		if cons == nil {
			continue
		}
		cc, err := w.start(p, cons, broken)
		if err != nil {
			w.bus.log.Debug("partition not taken yet", "partition", p, "error", err)
			continue
		}
		active[p] = cc
	}
}

// start asks for a partition, without waiting for an answer.
func (w *partitions) start(p int, cons jetstream.Consumer, broken chan<- int) (jetstream.ConsumeContext, error) {
	made := cons.CachedInfo().Created
	return cons.Consume(func(m jetstream.Msg) { w.deliver(p, made, m) },
		jetstream.PullPriorityGroup(partitionGroup), jetstream.PullMaxMessages(100),
		jetstream.PullExpiry(partitionExpiry), jetstream.PullHeartbeat(partitionExpiry/4),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			w.bus.log.Debug("partition", "partition", p, "error", err)
			if errors.Is(err, jetstream.ErrNoHeartbeat) {
				return // the client asks again by itself; asking anew would wait until the pin expires
			}
			select {
			case broken <- p:
			default:
			}
		}))
}

// deliver takes a message of partition p, whose consumer was made at the time given: what it delivered before that, or
// another one in its place, nobody knows any more.
func (w *partitions) deliver(p int, made time.Time, m jetstream.Msg) {
	ev, err := fromMsg(m)
	if err != nil {
		w.bus.log.Error("a delivery that is none", "error", err)
		_ = m.Term()
		return
	}
	meta, err := m.Metadata()
	if err != nil {
		return
	}
	first := meta.NumDelivered == 1 && time.Since(ev.At) < firstWithin && ev.At.After(made)
	d := &Delivery{Stored: ev, Partition: p, First: first, Pin: m.Headers().Get("Nats-Pin-Id"), w: w, msg: m}
	w.mu.Lock()
	if old := w.held[ev.Seq]; old != nil {
		// It came again while it is held here, for instance after a lost connection: only its reply subject is new.
		old.mu.Lock()
		old.msg = m
		old.mu.Unlock()
		w.mu.Unlock()
		return
	}
	w.held[ev.Seq] = d
	w.mu.Unlock()
	w.o.Handle(d)
}

// drop ends holding d.
func (w *partitions) drop(d *Delivery) {
	w.mu.Lock()
	if w.held[d.Seq] == d {
		delete(w.held, d.Seq)
	}
	w.mu.Unlock()
}

// beat says of everything held that it is in progress, so that it is not given to another.
func (w *partitions) beat(ctx context.Context) {
	tick := time.NewTicker(partitionBeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.mu.Lock()
		msgs := make([]jetstream.Msg, 0, len(w.held))
		for _, d := range w.held {
			if m := d.message(); m != nil {
				msgs = append(msgs, m)
			}
		}
		w.mu.Unlock()
		for _, m := range msgs {
			_ = m.InProgress() // without it the event comes again, and the claim settles who has it
		}
	}
}

func (w *partitions) releaseAll() {
	w.mu.Lock()
	all := make([]*Delivery, 0, len(w.held))
	for _, d := range w.held {
		all = append(all, d)
	}
	w.mu.Unlock()
	for _, d := range all {
		d.Release(0)
	}
}

// unpin lets the next replica have the partition at once instead of after the pin's time.
func (w *partitions) unpin(p int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if !w.bus.nc.IsConnected() {
		return
	}
	s, err := w.bus.js.Stream(ctx, ChatStream)
	if err == nil {
		err = s.UnpinConsumer(ctx, PartitionConsumer(p), partitionGroup)
	}
	if err != nil {
		w.bus.log.Debug("not unpinned", "partition", p, "error", err)
	}
}

// recover hands out what consumers have delivered and nobody acknowledged.
func (w *partitions) recover(ctx context.Context) error {
	for p := range Partitions {
		cons, err := w.bus.js.Consumer(ctx, ChatStream, PartitionConsumer(p))
		if err != nil {
			return err
		}
		info := cons.CachedInfo()
		if info.NumAckPending == 0 {
			continue
		}
		for _, filter := range partitionFilters(p) {
			events, err := w.loadDelivered(ctx, filter, info.AckFloor.Stream, info.Delivered.Stream)
			if err != nil {
				return err
			}
			for _, ev := range events {
				d := &Delivery{Stored: ev, Partition: p, w: w}
				w.mu.Lock()
				w.held[ev.Seq] = d
				w.mu.Unlock()
				w.o.Handle(d)
			}
		}
	}
	return nil
}

// loadDelivered reads what matches filter after one sequence and up to another, and no more: a backlog may follow.
func (w *partitions) loadDelivered(ctx context.Context, filter string, after, last uint64) ([]Stored, error) {
	var out []Stored
	for after < last {
		page, err := w.bus.Load(ctx, ChatStream, filter, after, loadBatch)
		if err != nil {
			return nil, err
		}
		for _, ev := range page {
			if ev.Seq > last {
				return out, nil
			}
			out = append(out, ev)
			after = ev.Seq
		}
		if len(page) < loadBatch {
			break
		}
	}
	return out, nil
}
