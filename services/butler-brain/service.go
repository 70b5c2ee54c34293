// Package brain is butler-brain: it takes the messages that gateways append to the log, thinks with a language model and
// its tools, streams what it says and ends each message's turn with exactly one answer.
//
// How it works, from the outside in:
//   - sessions.go, worker.go: what wakes which session on this replica, and one turn of a session at a time;
//   - history.go: what a session has said so far, read from the log;
//   - remembered.go: its summary and what is pinned in it; pins.go: messages that pin, forget and compact;
//   - turn.go: the program of one turn, run on the journal (pkg/journal), so that any replica can go on with it;
//   - prompt.go: what of all that was said stands in the prompt;
//   - speech.go: the streamed text of a turn;
//   - tools.go: what the model may call;
//   - effects.go: how a command is inspected, approved and executed; runcommand.go: the model's tool for that; direct.go:
//     messages that are decisions or commands themselves; words.go: what people read about them;
//   - turnlog.go: the journal's records as events of the stream CHAT;
//   - complete.go: answers without a session, over gRPC.
package brain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/memory"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

// Streams are those that butler-brain declares and writes.
var Streams = []string{bus.ChatStream, bus.DeltaStream, bus.WorkStream, bus.ParkedStream, bus.PresenceBucket}

// Settings bound the work. Zero values mean the defaults.
type Settings struct {
	MaxSteps       int           // calls of the model in one turn, 15
	TurnTimeout    time.Duration // active time of one turn, 10 min
	ContextWindow  int           // tokens that a prompt may have, 128,000
	Concurrency    int           // turns at the same time in this process, 256
	ModelTries     int           // how often a call of the model is made at most, where trying again can help, 4
	Coalesce       time.Duration // streamed text is collected for this long, 30 ms
	SystemPrompt   string        // added to the built-in description of who Butler is
	CommandTimeout time.Duration // how long the shell-runners wait for a command, 30 s
	CachedSessions int           // sessions whose history is kept in memory, 2,000
	// Compaction says when a summary is asked for; the zero value: never. Summaries that are there are always used.
	Compaction memory.Policy
}

func (s Settings) withDefaults() Settings {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&s.MaxSteps, 15)
	def(&s.ModelTries, 4)
	def(&s.ContextWindow, 128_000)
	def(&s.Concurrency, 256)
	def(&s.CachedSessions, 2000)
	if s.TurnTimeout <= 0 {
		s.TurnTimeout = 10 * time.Minute
	}
	if s.CommandTimeout <= 0 {
		s.CommandTimeout = 30 * time.Second
	}
	if s.Coalesce <= 0 {
		s.Coalesce = 30 * time.Millisecond
	}
	return s
}

// Deps are what the service works with. Bus, Model, Replica are required.
type Deps struct {
	Bus      *bus.Bus
	Model    *model.Client
	Agents   butlerv1.RegistryServiceClient // nil: nothing is known of agents
	Approval butlerv1.ApprovalServiceClient // nil: no decisions by message, and no commands
	Shells   Shells                         // none: no commands
	// Compactor makes summaries when a person asks; nil: nobody does.
	Compactor butlerv1.CompactorServiceClient
	Tools     []Tool // besides the built-in ones
	Settings  Settings
	Replica   string // names this process; unique per start
	Log       *slog.Logger
	Metrics   prometheus.Registerer
	Clock     journal.Clock
}

// Service is butler-brain. One process runs one.
type Service struct {
	butlerv1.UnimplementedBrainServiceServer

	bus       *bus.Bus
	model     *model.Client
	settings  Settings
	replica   string
	log       *slog.Logger
	clock     journal.Clock
	metrics   *metrics
	agents    *agentList
	approval  butlerv1.ApprovalServiceClient
	shells    Shells
	compactor butlerv1.CompactorServiceClient
	hosts     []string // of the shells, for the prompt; empty when commands cannot be run
	tools     *toolbox
	turns     *turnLog
	exec      *journal.Executor
	sessions  *sessions

	gauge       gauge
	background  sync.WaitGroup // what nobody waits for, until the end
	asking      chan struct{}  // places of those who ask for a summary
	completions *slots         // of answers without a session at the same time
	ready       atomic.Bool
}

// New puts the service together; it starts nothing and calls nobody.
func New(d Deps) (*Service, error) {
	if d.Bus == nil || d.Model == nil || d.Replica == "" {
		return nil, errors.New("brain: Bus, Model and Replica are required")
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = journal.SystemClock{}
	}
	s := &Service{
		bus: d.Bus, model: d.Model, settings: d.Settings.withDefaults(), replica: d.Replica,
		log: d.Log, clock: d.Clock, metrics: newMetrics(d.Metrics),
		agents: newAgentList(d.Agents, d.Clock), turns: newTurnLog(d.Bus, d.Replica),
		approval: d.Approval, shells: d.Shells, compactor: d.Compactor, asking: make(chan struct{}, askers),
	}
	err := d.Shells.check()
	if err != nil {
		return nil, err
	}
	tools := builtinTools(s.agents, d.Clock)
	if s.acts() {
		s.hosts = d.Shells.names()
		tools = append(tools, commandTool(d.Shells))
	}
	if s.tools, err = newToolbox(append(tools, d.Tools...)); err != nil {
		return nil, err
	}
	s.exec, err = journal.NewExecutor(s.program, journal.Options{
		Log: s.turns, Timers: s.turns, Worker: d.Replica, Clock: d.Clock, Logger: d.Log,
		Poison: s.poisoned, Park: s.park, Stopped: s.stopped,
	})
	if err != nil {
		return nil, fmt.Errorf("brain: %w", err)
	}
	s.sessions = newSessions(s)
	s.completions = newSlots(s.settings.Concurrency)
	return s, nil
}

// Register adds the service's gRPC API to a server.
func (s *Service) Register(r grpc.ServiceRegistrar) { butlerv1.RegisterBrainServiceServer(r, s) }

// Ready returns nil when this replica takes its share of the sessions.
func (s *Service) Ready(ctx context.Context) error {
	if !s.ready.Load() {
		return fault.New(fault.Unavailable, "butler-brain is not working for its sessions yet")
	}
	return s.bus.Check(ctx)
}

// Run makes the streams and works until ctx ends; then it gives back what it was doing, for another replica or the next
// start, and returns nil.
func (s *Service) Run(ctx context.Context) error {
	if err := s.bus.Ensure(ctx, Streams...); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopListening := s.bus.OnReconnect(s.sessions.distrust)
	defer stopListening()
	s.sessions.open(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = s.bus.Consume(ctx, bus.Consume{Stream: bus.WorkStream, Durable: bus.SignalConsumer, MaxTries: 20}, s.relay)
	})
	wg.Go(func() { s.followMemory(ctx) })
	err := s.bus.Work(ctx, bus.Partitioned{
		Replica: s.replica,
		Handle:  s.sessions.wake,
		Lost:    s.sessions.lost,
		Ready:   func() { s.ready.Store(true) },
	})
	s.ready.Store(false)
	cancel()
	s.sessions.wait()
	wg.Wait()
	s.background.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}
