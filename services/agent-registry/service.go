// Package registry is agent-registry: it knows the agents that Butler can hand work to, and which of them are online.
//
// Who an agent is stands in SQL; that it is alive is a key in the presence bucket, which every replica reads. When SQL
// is down the last known list is served, so that turns go on; only registering fails.
package registry

import (
	"context"
	"embed"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

const (
	// Interval is how often an agent says that it is alive.
	Interval = 5 * time.Second
	// Silence is how long an agent may be silent before it counts as offline: three intervals.
	Silence = 3 * Interval

	// startRetry is how often a service whose database is not there yet looks again.
	startRetry = 500 * time.Millisecond
	// presenceTimeout bounds a call of Presence.
	presenceTimeout = 2 * time.Second
)

// Presence is who is alive, shared by all replicas.
type Presence interface {
	// Beat says that key, for example agent.7, is alive now.
	Beat(ctx context.Context, key string) error
	// Alive gives the keys that begin with prefix and a dot, with the time of their last beat. Keys that were silent for
	// longer than Silence may be missing.
	Alive(ctx context.Context, prefix string) (map[string]time.Time, error)
}

// Deps are what a Service needs. Presence and DB must be set.
type Deps struct {
	// DB may be unreachable when the service starts.
	DB       *storage.DB
	Presence Presence
	// Bus has the log of tasks. Without it there are neither tasks nor credentials.
	Bus *bus.Bus
	// Issuer is the seed of the key that lets agents in on NATS; empty lets none in, and gives no credentials.
	Issuer string
	// Log discards when nil.
	Log *slog.Logger
	// Clock is time.Now when nil.
	Clock func() time.Time
}

// Service is one replica of agent-registry. Its calls are safe for concurrent use.
type Service struct {
	butlerv1.UnimplementedRegistryServiceServer

	db       *storage.DB
	presence *presence
	bus      *bus.Bus
	issuer   string
	book     *book
	schemas  schemas
	again    chan int64 // agents whose connections are to be ended once more
	log      *slog.Logger
	now      func() time.Time

	mu       sync.Mutex
	migrated bool
	known    []agent // what SQL had last; replaced, never changed
	loaded   bool    // known was read at least once
	loadedAt time.Time
	failedAt time.Time
	unsaved  map[int64]time.Time // beats that came here and are not in SQL yet
	trouble  string              // what was logged last, to say it once
}

//go:embed migrations/*.sql
var migrations embed.FS

// New returns a Service. It touches neither database nor NATS: Run does.
func New(deps Deps) (*Service, error) {
	if deps.DB == nil || deps.Presence == nil {
		return nil, fault.New(fault.Invalid, "the registry needs a database and the presence bucket")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = time.Now
	}
	return &Service{
		db: deps.DB, log: deps.Log, now: deps.Clock, unsaved: map[int64]time.Time{},
		bus: deps.Bus, issuer: deps.Issuer, book: newBook(), again: make(chan int64, 64),
		presence: newPresence(deps.Presence, deps.Clock),
	}, nil
}

// Register adds the service to a gRPC server.
func (s *Service) Register(server grpc.ServiceRegistrar) {
	butlerv1.RegisterRegistryServiceServer(server, s)
}

// Migrate brings the tables up to date; Run does it too, and waits for the database. Calling it again is safe.
func (s *Service) Migrate(ctx context.Context) error {
	if err := s.db.MigratePrincipals(ctx); err != nil {
		return err
	}
	own, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	if err := s.db.Migrate(ctx, "registry", own); err != nil {
		return err
	}
	s.mu.Lock()
	s.migrated = true
	s.mu.Unlock()
	return nil
}

// Ready says what is missing for the service to answer, or nil.
func (s *Service) Ready(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		return fault.New(fault.Unavailable, "the list of agents was not read yet: the database does not answer")
	}
	return nil
}

// Run prepares the tables, waiting for the database when it is not there yet, and keeps what is known fresh, until ctx
// ends. It gives nil then. With a Bus it lets agents in, too, and looks after their tasks.
func (s *Service) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	if s.bus != nil {
		for _, part := range []func(context.Context) error{s.door, s.kickLater, s.beats, s.followTasks, s.followReports, s.actOnTasks, s.actOnReports, s.actOnDeadlines} {
			group.Go(func() { s.keep(ctx, part) })
		}
	}
	for {
		pause := Interval
		if err := s.refresh(ctx); err != nil && s.Ready(ctx) != nil {
			pause = startRetry
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			// What was heard last is kept, if that can be done quickly.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = s.saveLastSeen(ctx)
			return nil
		}
	}
}

// keep runs a part until ctx ends, again after a pause when it ends before.
func (s *Service) keep(ctx context.Context, part func(context.Context) error) {
	for {
		err := part(ctx)
		if ctx.Err() != nil {
			return
		}
		s.log.WarnContext(ctx, "a part of the registry begins again", "error", err)
		timer := time.NewTimer(startRetry)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// refresh is one round of Run.
func (s *Service) refresh(ctx context.Context) error {
	err := s.look(ctx)
	if ctx.Err() != nil {
		return err
	}
	said := ""
	if err != nil {
		said = fault.MessageOf(err)
	}
	s.mu.Lock()
	news := said != s.trouble
	s.trouble = said
	s.mu.Unlock()
	switch {
	case news && err != nil:
		s.log.WarnContext(ctx, "the list of agents cannot be refreshed; the last known one is served", "error", err)
	case news:
		s.log.InfoContext(ctx, "the list of agents is fresh again")
	}
	return err
}

func (s *Service) look(ctx context.Context) error {
	// Also while SQL is down: silence is measured from when a beat was seen.
	presenceErr := s.presence.look(ctx)
	s.mu.Lock()
	migrated := s.migrated
	s.mu.Unlock()
	if !migrated {
		if err := s.Migrate(ctx); err != nil {
			return err
		}
	}
	if err := s.saveLastSeen(ctx); err != nil {
		s.noteFailure()
		return err
	}
	if _, err := s.load(ctx); err != nil {
		s.noteFailure()
		return err
	}
	return presenceErr
}
