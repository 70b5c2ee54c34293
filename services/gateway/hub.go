package gateway

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
)

const (
	// holdFor is how long a frame waits for another that belongs before it: an answer for its deltas, a delta for its
	// question. The two come from different streams, so either may be first by a little; what is later than this was lost.
	holdFor = 250 * time.Millisecond
	// maxHolds is how often that is done again when the other is in the log and this gateway is behind with reading it.
	maxHolds = 40
	// lookWithin bounds the look into the log that decides that.
	lookWithin = time.Second
	// maxOpenTurns bounds what is remembered of unanswered turns, about 150 bytes each.
	maxOpenTurns = 100_000
	// maxHeldDeltas bounds the deltas of one person that wait for a question.
	maxHeldDeltas = 512
	// keepTurns is how many turns' streams are remembered for a person who is connected.
	keepTurns = 64
)

// hub follows the log, once for the whole gateway, and hands each event's frame to every connection of its person. It
// holds what belongs together in order and waits for nobody: see outbox.
type hub struct {
	bus     *bus.Bus
	writer  writer
	log     *slog.Logger
	metrics *metrics
	started chan struct{} // closed once positions are known

	mu     sync.Mutex
	at     cursor              // how far the streams were followed
	anew   int                 // how often DELTA began anew
	people map[int64]*audience // who is connected
	open   map[string]uint64   // unanswered turns and the sequence of their question
	unmet  map[int64]int       // how many of them a person has
}

// audience is all connections of one person, and what was dispatched to them.
type audience struct {
	person  int64
	boxes   []*outbox
	at      cursor
	turns   map[string]*progress
	order   []string // keys of turns, oldest first
	answers []*heldAnswer
	deltas  []*event    // the first waits for its question, the others for the first
	timer   *time.Timer // of deltas
	waited  int         // how often it went off
}

// progress is what was dispatched of a turn's streams.
type progress struct {
	streams []stream
	done    bool // answered: what comes later is too late
}

type stream struct {
	id    string
	last  int32
	ended bool
}

type heldAnswer struct {
	event   *event
	timer   *time.Timer
	waited  int  // how often it went off
	overdue bool // its deltas did not come
	out     bool // it was delivered
}

func newHub(b *bus.Bus, w writer, log *slog.Logger, m *metrics) *hub {
	return &hub{
		bus: b, writer: w, log: log, metrics: m, started: make(chan struct{}),
		people: map[int64]*audience{}, open: map[string]uint64{}, unmet: map[int64]int{},
	}
}

// run follows the log until ctx ends.
func (h *hub) run(ctx context.Context) error {
	for {
		at, err := h.position(ctx)
		if err == nil {
			h.at = at
			close(h.started)
			break
		}
		h.log.Debug("waiting for the log", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	at := h.at
	g.Go(func() error {
		return h.bus.Follow(ctx, bus.Follow{
			Stream: bus.ChatStream, Filters: []string{chat.AllAsked, chat.AllAnswer}, After: at.chat,
		}, h.onChat)
	})
	g.Go(func() error {
		return h.bus.Follow(ctx, bus.Follow{Stream: bus.DeltaStream, Filters: []string{chat.AllDeltas}, After: at.delta}, h.onDelta)
	})
	return g.Wait()
}

// position gives the newest sequences of the streams.
func (h *hub) position(ctx context.Context) (cursor, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, c, err := h.bus.Bounds(ctx, bus.ChatStream)
	if err != nil {
		return cursor{}, err
	}
	_, d, err := h.bus.Bounds(ctx, bus.DeltaStream)
	return cursor{c, d}, err
}

// ready says whether connections can be served.
func (h *hub) ready() error {
	select {
	case <-h.started:
		return nil
	default:
		e := fault.New(fault.Unavailable, "Butler is starting and waits for its log; try again in a moment")
		e.RetryAfter = time.Second
		return e
	}
}

// join adds a connection: from now on it gets its person's frames. The hub must be ready.
func (h *hub) join(o *outbox) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(o)
}

// greet is join, and the first frame says where the connection stands.
func (h *hub) greet(o *outbox) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o.push(h.writer.ready(time.Now(), h.add(o).cursor()))
}

func (h *hub) add(o *outbox) *audience {
	a := h.people[o.person]
	if a == nil {
		a = &audience{person: o.person, at: h.at, turns: map[string]*progress{}}
		h.people[o.person] = a
	}
	a.boxes = append(a.boxes, o)
	h.metrics.connected(1)
	return a
}

// leave removes a connection; it is known by its outbox, so that no other of the same person is meant. It may be called
// more than once.
func (h *hub) leave(o *outbox) {
	o.close()
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.people[o.person]
	if a == nil {
		return
	}
	for i, b := range a.boxes {
		if b == o {
			a.boxes = append(a.boxes[:i:i], a.boxes[i+1:]...)
			h.metrics.connected(-1)
			break
		}
	}
	if len(a.boxes) > 0 {
		return
	}
	for _, held := range a.answers {
		held.timer.Stop()
	}
	if a.timer != nil {
		a.timer.Stop()
	}
	delete(h.people, o.person)
}

// standing gives where the person's connections are.
func (h *hub) standing(person int64) cursor {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a := h.people[person]; a != nil {
		return a.cursor()
	}
	return h.at
}

// onChat handles one event of CHAT.
func (h *hub) onChat(s bus.Stored) {
	turn, kind, err := chat.ParseSubject(s.Subject)
	if err != nil {
		h.unfit(s, err)
		return
	}
	key := turn.String()
	h.mu.Lock()
	elsewhere := h.people[turn.Person] == nil
	if elsewhere { // most people are: no need to read it
		h.at.chat = s.Seq
		h.note(turn.Person, key, kind, s.Seq)
	}
	h.mu.Unlock()
	if elsewhere {
		return
	}
	ev, err := decodeChat(s)
	h.mu.Lock()
	defer h.mu.Unlock()
	// An event counts as followed once it is dispatched, not before: others look at that.
	h.at.chat = s.Seq
	if err != nil || ev == nil {
		h.unfit(s, err)
		return
	}
	ev.replyTo = h.note(turn.Person, key, kind, s.Seq)
	a := h.people[turn.Person]
	if a == nil {
		return
	}
	if ev.kind == eventAsked {
		a.at.chat = ev.seq
		if h.open[key] != ev.seq && h.open[key] != 0 {
			return // the turn was asked before: somebody published it again
		}
		h.emit(a, h.writer.frame(ev, a.cursor()))
		h.releaseDeltas(a, false)
		return
	}
	h.answer(a, ev)
}

// note remembers a turn while it is open. For an answer it gives the sequence of its question, when it is known.
func (h *hub) note(person int64, key string, kind chat.Kind, seq uint64) (asked uint64) {
	switch kind {
	case chat.Asked:
		if _, again := h.open[key]; !again && len(h.open) < maxOpenTurns {
			h.open[key] = seq
			h.unmet[person]++
		}
	case chat.Answer:
		asked = h.open[key]
		h.close(person, key)
	}
	return asked
}

// close forgets an open turn.
func (h *hub) close(person int64, key string) {
	if _, open := h.open[key]; !open {
		return
	}
	delete(h.open, key)
	if h.unmet[person]--; h.unmet[person] == 0 {
		delete(h.unmet, person)
	}
}

// waiting gives how many turns of a person are known to be unanswered.
func (h *hub) waiting(person int64) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unmet[person]
}

// onDelta handles one event of DELTA.
func (h *hub) onDelta(s bus.Stored) {
	session, err := chat.ParseDelta(s.Subject)
	h.mu.Lock()
	if s.Seq <= h.at.delta {
		h.beganAnew()
	}
	elsewhere := err == nil && h.people[session.Person] == nil
	if elsewhere {
		h.at.delta = s.Seq
	}
	h.mu.Unlock()
	if elsewhere {
		return
	}
	var ev *event
	if err == nil {
		ev, err = decodeDelta(s)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at.delta = s.Seq
	if err != nil {
		h.unfit(s, err)
		return
	}
	a := h.people[session.Person]
	if a == nil {
		return
	}
	if len(a.deltas) == 0 && !h.early(a, ev) {
		h.delta(a, ev)
		return
	}
	a.deltas = append(a.deltas, ev)
	if a.timer == nil {
		a.waited = 0
		a.timer = time.AfterFunc(holdFor, func() { h.stopHoldingDeltas(a) })
	}
	if len(a.deltas) > maxHeldDeltas {
		h.releaseDeltas(a, true)
	}
}

func (h *hub) emit(a *audience, f *frame) {
	h.metrics.frames.Add(float64(len(a.boxes)))
	for _, o := range a.boxes {
		o.push(f)
	}
}

// beganAnew notes that DELTA was emptied, as a restart of its server does.
func (h *hub) beganAnew() {
	h.anew++
	for _, a := range h.people {
		a.at.delta = 0
		for _, o := range a.boxes {
			o.deltasBeganAnew()
		}
	}
}

// toldBefore notes what a connection was told by catching up, so that the live part goes on from there.
func (h *hub) toldBefore(person int64, events []*event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.people[person]
	if a == nil {
		return
	}
	if len(a.deltas) > 0 {
		return // what is held comes live
	}
	for _, ev := range events {
		// What the hub has not dispatched yet comes live as well, for the person's other connections.
		if p := a.progress(ev.key); ev.kind == eventDelta && !p.done && ev.seq <= h.at.delta {
			st := p.stream(ev.streamID)
			st.last = max(st.last, ev.index)
		}
	}
}

func (h *hub) unfit(s bus.Stored, err error) {
	h.metrics.unfit.Inc()
	h.log.Warn("an event does not fit and is passed over", "stream", s.Stream, "subject", s.Subject, "seq", s.Seq, "error", err)
}
