package gateway

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/gateway/store"
)

const (
	// accessSubject carries butlerv1.AccessChanged.
	accessSubject = "butler.access.changed"
	// trustFor is how long a token is believed without asking the database again. Revocations come by accessSubject; this
	// is for what did not come that way.
	trustFor = time.Minute
	// maxCached bounds the tokens that are remembered, about 400 bytes each.
	maxCached = 20_000
)

// principal is who speaks, and by which token. It is never changed.
type principal struct {
	person store.Person
	token  store.Token
	asOf   int // access.changes when this was read
}

func (p *principal) id() int64    { return p.person.ID }
func (p *principal) admin() bool  { return p.person.Role == store.Admin }
func (p *principal) actor() actor { return actor{p.person.ID, p.person.Name, string(p.person.Role)} }

func (p *principal) valid(now time.Time) bool { return !p.person.Disabled && p.token.Valid(now) }

// access knows who may enter. It remembers tokens, by their hash, so that chat goes on while the database is down, and
// forgets them when what they allow changes.
type access struct {
	store *store.Store
	bus   *bus.Bus
	now   func() time.Time
	log   *slog.Logger

	// changed is told of each person whose rights may have changed (0: anybody's), after the cache forgot them.
	changed func(person int64)

	wake chan struct{} // holds a token while due is not empty

	mu      sync.Mutex
	cache   map[[sha256.Size]byte]*grant
	changes int                           // counts; what was read before a change must not be remembered after it
	live    map[int64]map[*guest]struct{} // open connections by person
	due     map[int64]struct{}            // people whose connections have to be checked again
}

// grant is a remembered token.
type grant struct {
	who     *principal
	checked time.Time
	stale   bool // a change may have been missed: ask the database before believing it
}

// guest is an open connection. Its rights are checked again when they may have changed.
type guest struct {
	access *access

	mu  sync.Mutex
	who *principal
	// end closes the connection because its token is not valid any more. It must not block.
	end func()
}

func newAccess(st *store.Store, b *bus.Bus, now func() time.Time, log *slog.Logger) *access {
	return &access{
		store: st, bus: b, now: now, log: log, wake: make(chan struct{}, 1), due: map[int64]struct{}{},
		cache: map[[sha256.Size]byte]*grant{}, live: map[int64]map[*guest]struct{}{},
	}
}

// authenticate gives who a token belongs to. While the database does not answer, a token that was valid before is still
// believed, and any other gives fault.Unavailable.
func (a *access) authenticate(ctx context.Context, secret string) (*principal, error) {
	key := sha256.Sum256([]byte(secret))
	now := a.now()
	a.mu.Lock()
	g, changes := a.cache[key], a.changes
	var known *principal
	fresh := false
	if g != nil {
		known = g.who
		fresh = !g.stale && now.Sub(g.checked) < trustFor
	}
	a.mu.Unlock()
	if known != nil && !known.valid(now) {
		return nil, fault.New(fault.Unauthenticated, "your sign-in has ended; sign in again")
	}
	// Without NATS nobody tells of revocations.
	if known != nil && fresh && a.bus.Connected() {
		return known, nil
	}
	person, token, err := a.store.Authenticate(ctx, secret)
	switch {
	case err == nil:
	case fault.CodeOf(err) == fault.Unavailable && known != nil && ctx.Err() == nil:
		return known, nil
	case fault.CodeOf(err) == fault.Unavailable:
		return nil, fault.Wrap(err, fault.Unavailable, "sign-ins cannot be checked now; try again in a moment")
	default:
		a.mu.Lock()
		delete(a.cache, key)
		a.mu.Unlock()
		return nil, err
	}
	who := &principal{person, token, changes}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.cache) >= maxCached {
		for k := range a.cache { // any: the others come back at the cost of a read
			delete(a.cache, k)
			if len(a.cache) < maxCached*9/10 {
				break
			}
		}
	}
	if a.changes == changes {
		a.cache[key] = &grant{who: who, checked: now}
	}
	return who, nil
}

// enter registers an open connection; leave ends that.
func (a *access) enter(who *principal, end func()) *guest {
	g := &guest{access: a, who: who, end: end}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.live[who.id()] == nil {
		a.live[who.id()] = map[*guest]struct{}{}
	}
	a.live[who.id()][g] = struct{}{}
	if who.asOf != a.changes {
		// Something changed since these rights were read; it may have been these.
		a.due[who.id()] = struct{}{}
		a.signal()
	}
	return g
}

func (a *access) leave(g *guest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	person := g.principal().id()
	delete(a.live[person], g)
	if len(a.live[person]) == 0 {
		delete(a.live, person)
	}
}

// principal gives who the connection is for, as last checked.
func (g *guest) principal() *principal {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.who
}

// announce tells every gateway, this one included, that a person's rights or conversations changed.
func (a *access) announce(ctx context.Context, person, token int64) {
	a.change(person, token)
	data, err := chat.Encode(&butlerv1.AccessChanged{PersonId: person, TokenId: token})
	if err == nil {
		err = a.bus.Notify(accessSubject, data)
	}
	if err != nil {
		// The others learn it when they ask the database again, which they do while NATS is away.
		a.log.WarnContext(ctx, "a change of rights could not be announced", "person", person, "error", err)
	}
}

// run hears of changes until ctx ends.
func (a *access) run(ctx context.Context) error {
	stop, err := a.bus.Listen(accessSubject, func(data []byte) {
		var m butlerv1.AccessChanged
		if err := chat.Decode(data, &m); err != nil || m.GetPersonId() <= 0 {
			a.log.Warn("a notice that cannot be read", "subject", accessSubject, "error", err)
			return
		}
		a.change(m.GetPersonId(), m.GetTokenId())
	})
	if err != nil {
		return err
	}
	defer stop()
	// Notices sent while the connection was away are lost.
	unwatch := a.bus.OnReconnect(a.recheckAll)
	defer unwatch()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.wake:
		}
		a.mu.Lock()
		people := a.due
		a.due = map[int64]struct{}{}
		a.mu.Unlock()
		failed := false
		for person := range people {
			if !a.recheck(ctx, person) {
				failed = true
				a.mu.Lock()
				a.due[person] = struct{}{}
				a.mu.Unlock()
			}
		}
		if failed {
			time.AfterFunc(time.Second, a.signal)
		}
	}
}

func (a *access) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// change forgets what is remembered of a person, and has their connections checked again.
func (a *access) change(person, token int64) {
	a.mu.Lock()
	a.changes++
	for k, g := range a.cache {
		if g.who.id() == person && (token == 0 || g.who.token.ID == token) {
			delete(a.cache, k)
		}
	}
	if len(a.live[person]) > 0 {
		a.due[person] = struct{}{}
	}
	a.mu.Unlock()
	if a.changed != nil {
		a.changed(person)
	}
	a.signal()
}

// recheckAll has everybody's rights read again: a change may have been missed.
func (a *access) recheckAll() {
	a.mu.Lock()
	a.changes++
	for _, g := range a.cache {
		g.stale = true
	}
	for person := range a.live {
		a.due[person] = struct{}{}
	}
	a.mu.Unlock()
	if a.changed != nil {
		a.changed(0)
	}
	a.signal()
}

// recheck looks at a person's open connections again and ends those whose token is not valid any more. While the
// database does not answer they stay, and it says false.
func (a *access) recheck(ctx context.Context, person int64) bool {
	a.mu.Lock()
	changes := a.changes
	guests := make([]*guest, 0, len(a.live[person]))
	for g := range a.live[person] {
		guests = append(guests, g)
	}
	a.mu.Unlock()
	if len(guests) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	now := a.now()
	who, err := a.store.Person(ctx, person)
	var tokens []store.Token
	if err == nil {
		tokens, err = a.store.Tokens(ctx, person)
	}
	if err != nil && fault.CodeOf(err) != fault.NotFound {
		a.log.DebugContext(ctx, "the rights of a person cannot be checked now", "person", person, "error", err)
		return false
	}
	byID := make(map[int64]store.Token, len(tokens))
	for _, t := range tokens {
		byID[t.ID] = t
	}
	for _, g := range guests {
		token, known := byID[g.principal().token.ID]
		p := &principal{who, token, changes}
		if err != nil || !known || !p.valid(now) {
			g.end()
			continue
		}
		g.mu.Lock()
		g.who = p
		g.mu.Unlock()
	}
	return true
}
