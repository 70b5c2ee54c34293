package gateway

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/gateway/store"
)

const (
	// rosterEvery is how often everybody is read again though nothing changed: another gateway's news may be lost.
	rosterEvery = time.Minute
	// rosterWithin bounds one read.
	rosterWithin = 2 * time.Second
	// rosterRest is how long the database is left alone after it did not answer.
	rosterRest = 2 * time.Second
)

// roster is everybody who can sign in, as the database last told.
type roster struct {
	store *store.Store
	now   func() time.Time
	log   *slog.Logger
	wake  chan struct{} // holds a token while the list may be old
	// changed is called after the list became another one.
	changed func()

	reading sync.Mutex // one read at a time, so that an older list never follows a newer one

	mu     sync.Mutex
	list   []*butlerv1.Actor // by id; never changed in place
	byID   map[int64]*butlerv1.Actor
	read   bool
	failed time.Time // when the database last did not answer
}

func newRoster(st *store.Store, now func() time.Time, log *slog.Logger) *roster {
	return &roster{store: st, now: now, log: log, wake: make(chan struct{}, 1), changed: func() {}}
}

// run keeps the list until ctx ends.
func (r *roster) run(ctx context.Context) error {
	for {
		_, err := r.get(ctx)
		wait := rosterEvery
		if err != nil || r.outdated() {
			wait = rosterRest
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-r.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// news says that the list may be old.
func (r *roster) news() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *roster) outdated() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.failed.IsZero()
}

// known gives the list from memory.
func (r *roster) known() []*butlerv1.Actor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list
}

// person gives somebody of the list from memory, nil when they are not in it.
func (r *roster) person(id int64) *butlerv1.Actor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id]
}

// get reads the list. While the database does not answer it gives the last one; when there is none, fault.Unavailable.
func (r *roster) get(ctx context.Context) ([]*butlerv1.Actor, error) {
	r.reading.Lock()
	defer r.reading.Unlock()
	r.mu.Lock()
	rests := !r.failed.IsZero() && r.now().Sub(r.failed) < rosterRest
	list, read := r.list, r.read
	r.mu.Unlock()
	if rests && read {
		return list, nil
	}
	ctx, cancel := context.WithTimeout(ctx, rosterWithin)
	defer cancel()
	people, err := r.store.People(ctx)
	if err != nil {
		r.mu.Lock()
		r.failed = r.now()
		r.mu.Unlock()
		if read {
			r.log.DebugContext(ctx, "who may sign in cannot be read now", "error", err)
			return list, nil
		}
		return nil, fault.Wrap(err, fault.Unavailable, "who may sign in cannot be read now; try again")
	}
	next := make([]*butlerv1.Actor, 0, len(people))
	byID := make(map[int64]*butlerv1.Actor, len(people))
	for _, p := range people {
		if p.Disabled || p.Role != store.Admin && p.Role != store.Member {
			continue
		}
		a := &butlerv1.Actor{Id: p.ID, Name: p.Name, Role: string(p.Role)}
		next = append(next, a)
		byID[p.ID] = a
	}
	r.mu.Lock()
	other := !slices.EqualFunc(r.list, next, func(a, b *butlerv1.Actor) bool {
		return a.GetId() == b.GetId() && a.GetName() == b.GetName() && a.GetRole() == b.GetRole()
	})
	r.list, r.byID, r.read, r.failed = next, byID, true, time.Time{}
	r.mu.Unlock()
	if other {
		r.changed()
	}
	return next, nil
}

// peopleServer is PeopleService.
type peopleServer struct {
	butlerv1.UnimplementedPeopleServiceServer
	roster *roster
}

// ListPeople gives everybody who can sign in.
func (p peopleServer) ListPeople(ctx context.Context, _ *butlerv1.ListPeopleRequest) (*butlerv1.ListPeopleResponse, error) {
	people, err := p.roster.get(ctx)
	if err != nil {
		return nil, err
	}
	return &butlerv1.ListPeopleResponse{People: people}, nil
}

// Register adds the gateway's gRPC API, PeopleService, to a server.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	butlerv1.RegisterPeopleServiceServer(r, peopleServer{roster: s.roster})
}
