package gateway

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

const (
	// docketSince is how far back requests are looked for when a gateway starts: a decision may take a day, and its
	// execution another.
	docketSince = 48 * time.Hour
	// maxDocket bounds the requests that are remembered, some KiB each.
	maxDocket = 5000
	// maxGreeted and maxGreetedBytes bound what a new connection is told of at once, the newest first; GET /api/approvals
	// has the rest.
	maxGreeted      = 200
	maxGreetedBytes = 2 << 20
	// closedFor is how long a request that is over is told to connections that come back.
	closedFor = 2 * time.Minute
	// unusedFor is how long after its time an approved request is awaited to be used, and a used one to end.
	unusedFor = time.Hour
	// pruneEvery is how often what is over is forgotten.
	pruneEvery = 30 * time.Second
)

// docket is the requests for approval that are open, or were until a moment ago. It follows the log and tells people of
// each change. A request is state: who connects is told of it for as long as it is open.
type docket struct {
	bus    *bus.Bus
	writer writer
	hub    *hub
	roster *roster
	log    *slog.Logger
	now    func() time.Time

	mu      sync.Mutex // taken before the hub's
	cases   map[string]*docketCase
	current bool   // everything that was in the log at the start was read
	upTo    uint64 // that was in the log at the start
}

// docketCase is one request.
type docketCase struct {
	approval *butlerv1.Approval
	use      *butlerv1.ApprovalUse
	seq      uint64             // of its newest event
	closed   time.Time          // when it was over; zero while it is not
	told     map[int64]struct{} // who has been told that they may decide
}

func newDocket(b *bus.Bus, w writer, h *hub, r *roster, log *slog.Logger, now func() time.Time) *docket {
	return &docket{bus: b, writer: w, hub: h, roster: r, log: log, now: now, cases: map[string]*docketCase{}}
}

// run follows the log until ctx ends. Chat does not wait for it: where nothing is ever approved, there is no such stream.
func (d *docket) run(ctx context.Context) error {
	var after uint64
	for {
		var err error
		if after, err = d.position(ctx); err == nil {
			break
		}
		d.log.Debug("waiting for the log of approvals", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	pruned := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	defer func() { cancel(); <-pruned }()
	go func() {
		defer close(pruned)
		tick := time.NewTicker(pruneEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				d.prune()
			}
		}
	}()
	return d.bus.Follow(ctx, bus.Follow{
		Stream: bus.ApprovalStream, Filters: []string{approval.RequestSubject("*"), approval.UseSubject("*", "*")}, After: after,
	}, d.onEvent)
}

// position says after which event to begin.
func (d *docket) position(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, end, err := d.bus.Bounds(ctx, bus.ApprovalStream)
	if err != nil {
		return 0, err
	}
	// The stream's end may have been erased: what is waited for must be there.
	newest, found, err := d.bus.Last(ctx, bus.ApprovalStream, "butler.>")
	if err != nil {
		return 0, err
	}
	last := end
	if found {
		last = newest.Seq
	}
	first, found, err := d.bus.FirstSince(ctx, bus.ApprovalStream, d.now().Add(-docketSince))
	if err != nil {
		return 0, err
	}
	after := end
	if found && first.Seq <= last {
		after = first.Seq - 1
	}
	d.mu.Lock()
	d.upTo, d.current = last, after >= last
	d.mu.Unlock()
	return after, nil
}

// onEvent handles one event of APPROVAL.
func (d *docket) onEvent(s bus.Stored) {
	a, use, err := decodeApproval(s)
	if err != nil {
		d.hub.unfit(s, err)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.catchUp(s.Seq)
		return
	}
	if use != nil {
		if a, err = d.find(use.GetId()); err != nil {
			d.hub.unfit(s, err)
			d.mu.Lock()
			defer d.mu.Unlock()
			d.catchUp(s.Seq)
			return
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.cases[a.GetId()]
	if c == nil {
		if len(d.cases) >= maxDocket {
			d.dropOldest()
		}
		c = &docketCase{approval: a, told: map[int64]struct{}{}}
		d.cases[a.GetId()] = c
	}
	c.seq = s.Seq
	if use != nil {
		c.use = use
	} else {
		c.approval = a
	}
	if c.closed = (time.Time{}); over(c) {
		c.closed = s.At
	}
	if d.current {
		d.publish(c)
	}
	d.catchUp(s.Seq)
}

// catchUp notes how far the log was read. Once all of what was there at the start was, those who are connected are told.
func (d *docket) catchUp(seq uint64) {
	if d.current || seq < d.upTo {
		return
	}
	d.current = true
	d.pruneAt(d.now())
	for _, c := range d.cases {
		if c.closed.IsZero() {
			d.publish(c)
		}
	}
}

// decodeApproval reads an event of APPROVAL: a request, or a use.
func decodeApproval(s bus.Stored) (*butlerv1.Approval, *butlerv1.ApprovalUse, error) {
	parts := strings.Split(s.Subject, ".")
	switch {
	case len(parts) == 3 && parts[1] == "approval" && s.Type == approval.TypeApproval:
		var a butlerv1.Approval
		if err := chat.Decode(s.Data, &a); err != nil {
			return nil, nil, fault.Wrap(err, fault.Invalid, "a request that cannot be read on %s", s.Subject)
		}
		if a.GetId() != parts[2] || !approval.ValidID(a.GetId()) {
			return nil, nil, fault.New(fault.Invalid, "a request that does not fit its subject %s", s.Subject)
		}
		return &a, nil, nil
	case len(parts) == 4 && parts[1] == "approval-use" && s.Type == approval.TypeUse:
		var u butlerv1.ApprovalUse
		if err := chat.Decode(s.Data, &u); err != nil {
			return nil, nil, fault.Wrap(err, fault.Invalid, "a use that cannot be read on %s", s.Subject)
		}
		if u.GetId() != parts[3] || !approval.ValidID(u.GetId()) {
			return nil, nil, fault.New(fault.Invalid, "a use that does not fit its subject %s", s.Subject)
		}
		return nil, &u, nil
	}
	return nil, nil, fault.New(fault.Invalid, "an event of type %q on %s", s.Type, s.Subject)
}

// find gives a request by its id, from the log when it is not remembered.
func (d *docket) find(id string) (*butlerv1.Approval, error) {
	d.mu.Lock()
	c := d.cases[id]
	d.mu.Unlock()
	if c != nil {
		return c.approval, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookWithin)
	defer cancel()
	s, found, err := d.bus.Last(ctx, bus.ApprovalStream, approval.RequestSubject(id))
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fault.New(fault.NotFound, "a use without a request: %s", id)
	}
	a, _, err := decodeApproval(s)
	return a, err
}

// over says whether nothing will become of a request any more.
func over(c *docketCase) bool {
	switch c.use.GetStatus() {
	case "":
		return c.approval.GetStatus() != approval.Pending && c.approval.GetStatus() != approval.Approved
	case approval.Taken:
		return false
	}
	return true
}

// silent says that nobody was asked: what the policy lets run is no news to anybody.
func silent(a *butlerv1.Approval) bool { return a.GetPolicy().GetAction() == "run" }

// publish tells everybody whom a request concerns, and who is connected, how it stands.
func (d *docket) publish(c *docketCase) {
	if silent(c.approval) {
		return
	}
	for _, id := range d.hub.connected() {
		if f := d.frameFor(c, id, false); f != nil {
			d.hub.tell(id, f)
		}
	}
}

// frameFor makes the frame of a request for a person, nil when it does not concern them. Who may decide is asked, once or,
// when fresh, again; after that, and everybody else, is told how it stands.
func (d *docket) frameFor(c *docketCase, person int64, fresh bool) *frame {
	a := c.approval
	who := d.roster.person(person)
	may := who != nil && approval.MayDecide(a, who, d.roster.known())
	if !may && person != a.GetRequester().GetId() {
		return nil
	}
	_, said := approval.Said(a, person)
	may = may && !said && a.GetStatus() == approval.Pending
	typ := frameAuthStatus
	if _, told := c.told[person]; may && (fresh || !told) {
		typ = frameAuthRequest
		c.told[person] = struct{}{}
	}
	return d.writer.approval(typ, cardOf(a, c.use, may), person, a, d.now())
}

// greet tells a connection what is open and concerns its person; one that comes back is told also what is over since a
// moment ago. The outbox must have joined the hub.
func (d *docket) greet(o *outbox, back bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.current {
		return // everybody who is connected is told once it is
	}
	now := d.now()
	var list []*docketCase
	for _, c := range d.cases {
		if !silent(c.approval) && (c.closed.IsZero() || back && now.Sub(c.closed) < closedFor) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b *docketCase) int { return cmp.Compare(b.seq, a.seq) })
	var frames []*frame
	bytes := 0
	for _, c := range list {
		f := d.frameFor(c, o.person, true)
		if f == nil {
			continue
		}
		if bytes += len(f.body); len(frames) == maxGreeted || bytes > maxGreetedBytes {
			break
		}
		frames = append(frames, f)
	}
	for _, f := range slices.Backward(frames) { // in the order in which they were asked
		o.push(f)
	}
}

// rights tells people whose rights changed: who may decide now is asked, and who may not any more is told so.
func (d *docket) rights() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.current {
		return
	}
	people := d.roster.known()
	for _, c := range d.cases {
		if c.approval.GetStatus() != approval.Pending || silent(c.approval) {
			continue
		}
		for _, id := range d.hub.connected() {
			_, told := c.told[id]
			who := d.roster.person(id)
			may := who != nil && approval.MayDecide(c.approval, who, people)
			switch {
			case may && !told:
				if f := d.frameFor(c, id, false); f != nil {
					d.hub.tell(id, f)
				}
			case told && !may:
				delete(c.told, id)
				if f := d.frameFor(c, id, false); f != nil { // the requester, who sees it go on
					d.hub.tell(id, f)
				} else {
					d.hub.tell(id, d.writer.approval(frameAuthStatus, notYours(c.approval), id, c.approval, d.now()))
				}
			}
		}
	}
}

// notYours is what is left of a card for somebody who may not decide it any more.
func notYours(a *butlerv1.Approval) cardJSON {
	return cardJSON{
		ActionID: a.GetId(), Code: a.GetCode(), Version: a.GetVersion(), Status: cardWithdrawn, Reasons: []reasonJSON{}, Decisions: []decisionJSON{},
	}
}

// pending gives the requests that wait for a decision and concern a person, newest first; with thread not 0, those that
// the person asked for in it alone.
func (d *docket) pending(person, thread int64) []cardJSON {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []*docketCase
	for _, c := range d.cases {
		if c.approval.GetStatus() == approval.Pending {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b *docketCase) int { return cmp.Compare(b.seq, a.seq) })
	out := []cardJSON{}
	people := d.roster.known()
	for _, c := range list {
		who := d.roster.person(person)
		may, mine := who != nil && approval.MayDecide(c.approval, who, people), person == c.approval.GetRequester().GetId()
		if thread != 0 && (!mine || c.approval.GetWaiter().GetThread() != thread) || !may && !mine {
			continue
		}
		_, said := approval.Said(c.approval, person)
		card := cardOf(c.approval, c.use, may && !said)
		if mine {
			card.ConversationID, card.ReplyToLocalID = c.approval.GetWaiter().GetThread(), c.approval.GetLocalId()
		}
		out = append(out, card)
	}
	return out
}

// prune forgets what is over.
func (d *docket) prune() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pruneAt(d.now())
}

func (d *docket) pruneAt(now time.Time) {
	for id, c := range d.cases {
		a := c.approval
		var end time.Time
		switch {
		case !c.closed.IsZero():
			end = c.closed.Add(closedFor)
		case c.use != nil:
			end = c.use.GetTakenAt().AsTime().Add(docketSince)
		case a.GetStatus() == approval.Approved:
			end = a.GetRunBy().AsTime().Add(unusedFor)
		default:
			end = a.GetDecideBy().AsTime().Add(docketSince)
		}
		if now.After(end) {
			delete(d.cases, id)
		}
	}
}

// dropOldest makes room: what is over goes first, then what is oldest.
func (d *docket) dropOldest() {
	var oldest string
	var seq uint64
	closed := false
	for id, c := range d.cases {
		isClosed := !c.closed.IsZero()
		if oldest == "" || isClosed && !closed || isClosed == closed && c.seq < seq {
			oldest, seq, closed = id, c.seq, isClosed
		}
	}
	delete(d.cases, oldest)
	if !closed {
		d.log.Warn("too many requests for approval are open; the oldest are no longer shown by themselves", "most", maxDocket)
	}
}

func turnOf(w *butlerv1.Waiter) chat.Turn {
	return chat.Turn{Session: chat.Session{Person: w.GetPerson(), Thread: w.GetThread()}, ID: w.GetTurn()}
}

// connected gives who is connected now.
func (h *hub) connected() []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]int64, 0, len(h.people))
	for id := range h.people {
		out = append(out, id)
	}
	return out
}

// tell hands a frame to every connection of a person.
func (h *hub) tell(person int64, f *frame) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a := h.people[person]; a != nil {
		h.emit(a, f)
	}
}
