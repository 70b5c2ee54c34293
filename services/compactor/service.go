// Package compactor makes the summaries that stand in prompts for the older turns of conversations. It is best effort:
// butler-brain asks for a summary when it has answered, and goes on without one. The conversation itself is never changed.
//
// A compaction reads the turns after the last summary, has a model fold the older ones into it, piece by piece, checks what
// came out, and appends it under the condition that no other summary was made meanwhile. The files:
//   - compact.go: one compaction, from the log to the log;
//   - read.go: what there is to summarise;
//   - pieces.go: the same in pieces that fit into the model's window;
//   - fold.go: what the model is asked, and how its answer is read;
//   - check.go: what an answer must be to replace anything;
//   - patience.go: how long is waited after a failure;
//   - memory.go: showing and undoing.
package compactor

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/memory"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Answer is what a model said.
type Answer struct {
	Text             string
	Model            string // that answered
	PromptTokens     int64  // as reported; 0 when nothing was
	CompletionTokens int64
	Cut              bool // the answer is not whole
}

// Model writes summaries.
type Model interface {
	// Complete answers one question in a whole; maxTokens bounds the answer. It returns when ctx ends.
	Complete(ctx context.Context, system, user string, maxTokens int) (Answer, error)
}

// Settings bound the work. Zero values mean the defaults.
type Settings struct {
	// Policy says what stays as it is and how long a summary may be; butler-brain's says when it is time.
	Policy      memory.Policy
	Window      int           // tokens of the model's window, 32,000
	CallTimeout time.Duration // of one call of the model, 2 min
	Concurrency int           // compactions at the same time in this process, 2
}

// timeout bounds one compaction. The work queue hands an item to another replica a little later.
const timeout = 5 * time.Minute

func (s Settings) withDefaults() Settings {
	if s.Policy == (memory.Policy{}) {
		s.Policy = memory.Policy{Recent: 8}
	}
	if s.Window <= 0 {
		s.Window = 32_000
	}
	if s.CallTimeout <= 0 {
		s.CallTimeout = 2 * time.Minute
	}
	if s.Concurrency <= 0 {
		s.Concurrency = 2
	}
	return s
}

// Deps are what the service works with. Bus is required.
type Deps struct {
	Bus      *bus.Bus
	Model    Model // nil: none is configured; nothing is compacted, summaries are shown and undone all the same
	Settings Settings
	Log      *slog.Logger          // discards when nil
	Clock    func() time.Time      // time.Now when nil
	Metrics  prometheus.Registerer // none when nil
}

// Service is one replica of compactor. Its calls are safe for concurrent use.
type Service struct {
	butlerv1.UnimplementedCompactorServiceServer

	bus      *bus.Bus
	model    Model
	settings Settings
	log      *slog.Logger
	now      func() time.Time
	metrics  *metrics
	patience *patience
	ready    atomic.Bool

	mu   sync.Mutex
	busy map[chat.Session]bool
}

// New puts the service together; it starts nothing and calls nobody.
func New(d Deps) (*Service, error) {
	if d.Bus == nil {
		return nil, errors.New("compactor: Bus is required")
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	return &Service{
		bus: d.Bus, model: d.Model, settings: d.Settings.withDefaults(), log: d.Log, now: d.Clock,
		metrics: newMetrics(d.Metrics), patience: newPatience(), busy: map[chat.Session]bool{},
	}, nil
}

// Register adds the service's gRPC API to a server.
func (s *Service) Register(r grpc.ServiceRegistrar) { butlerv1.RegisterCompactorServiceServer(r, s) }

// Ready returns nil when this replica takes work.
func (s *Service) Ready(ctx context.Context) error {
	if !s.ready.Load() {
		return fault.New(fault.Unavailable, "compactor waits for the streams of butler-brain")
	}
	return s.bus.Check(ctx)
}

// Run takes work until ctx ends; then it puts down what it was doing, for another replica or the next start, and returns
// nil.
func (s *Service) Run(ctx context.Context) error {
	if err := s.bus.Wait(ctx, bus.ChatStream, bus.WorkStream); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	s.ready.Store(true)
	defer s.ready.Store(false)
	var wg sync.WaitGroup
	for range s.settings.Concurrency {
		wg.Go(func() {
			_ = s.bus.Consume(ctx, bus.Consume{Stream: bus.WorkStream, Durable: bus.CompactConsumer}, s.work)
		})
	}
	wg.Wait()
	return nil
}

// work takes items of work. An item is done whatever came of it: butler-brain asks again as long as it is needed, so
// nothing that fails costs more than one try for each time it is asked.
func (s *Service) work(ctx context.Context, events []bus.Stored) error {
	for _, ev := range events {
		session, err := chat.ParseCompact(ev.Subject)
		work := &butlerv1.WorkCompact{}
		if err != nil || ev.Type != chat.TypeCompact || chat.Decode(ev.Data, work) != nil {
			s.log.WarnContext(ctx, "a work item that is none", "subject", ev.Subject)
			continue
		}
		_, err = s.compact(ctx, session, work.GetReason(), nil)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.log.WarnContext(ctx, "a conversation was not compacted; it stays as it is", "session", session.String(), "error", err)
		}
	}
	return nil
}

// claim says that this replica compacts a session now; false when it does so already.
func (s *Service) claim(session chat.Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[session] {
		return false
	}
	s.busy[session] = true
	return true
}

func (s *Service) release(session chat.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, session)
}
