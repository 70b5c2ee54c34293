// Package agent is the Go SDK for agents: programs that Butler hands tasks to.
//
//	a, err := agent.New(agent.Config{Credentials: "agent.creds"})
//	a.Handle("check", func(ctx context.Context, t *agent.Task) (any, error) {
//		var in struct{ Host string }
//		if err := t.Input(&in); err != nil {
//			return nil, err
//		}
//		t.Progress(ctx, "looking at "+in.Host)
//		return map[string]string{"status": "ok"}, nil
//	})
//	err = a.Run(ctx)
//
// Any number of processes may run with the same credentials: they are replicas, and share the tasks. A task that a replica
// dies with goes to another within half a minute, so a handler may run again for the same task: what it does to the world it
// does once for each Task.IdempotencyKey.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
)

// Defaults of Config.
const (
	DefaultURL          = "nats://127.0.0.1:4222"
	DefaultConcurrency  = 10
	DefaultDrainTimeout = 30 * time.Second
)

// Timings towards the server. A task whose agent says nothing for bus.AgentAckWait goes to another replica.
const (
	aliveEvery  = bus.AgentAckWait / 3
	beatEvery   = 5 * time.Second
	beatTimeout = 4 * time.Second
	pullWait    = 5 * time.Second
	pauseMin    = 100 * time.Millisecond
	pauseMax    = 5 * time.Second
)

// Config says how an agent runs. Only Credentials must be set.
type Config struct {
	// Credentials is the path of the .creds file that the registry gave when the agent was added (AddAgent).
	Credentials string
	// URL of the NATS server; DefaultURL when empty.
	URL string
	// Concurrency is how many tasks this process works on at the same time; DefaultConcurrency when 0. All replicas together
	// get at most as many as the agent was registered with.
	Concurrency int
	// DrainTimeout is how long tasks may go on when Run is told to stop; then they are given back, and another replica gets
	// them at once. DefaultDrainTimeout when 0.
	DrainTimeout time.Duration
	// Worker names this process in what people see; host name and process id when empty. At most 64 bytes.
	Worker string
	// Log takes what happens; nil discards it.
	Log *slog.Logger
	// Options are added to those of the NATS connection, for example TLS.
	Options []nats.Option
}

// Handler does a task and gives its result, which is marshalled as JSON (at most 256 KiB). ctx ends at the task's deadline,
// when the task is cancelled, and when the process stops: context.Cause says which (ErrDeadline, ErrCancelled, ErrStopping).
// An error ends the task as failed, with the error's text, which people and the model read; wrapped by Retry it is tried
// again. A panic is an error. Handlers run at the same time.
type Handler func(ctx context.Context, t *Task) (any, error)

// Why the context of a handler ended.
var (
	// ErrDeadline: the time of the task is over.
	ErrDeadline = errors.New("the time of the task is over")
	// ErrCancelled: somebody cancelled the task, or it ended otherwise. What the handler returns is not used.
	ErrCancelled = errors.New("the task was cancelled")
	// ErrStopping: the process stops. The task goes to another replica.
	ErrStopping = errors.New("the agent stops")
	// ErrSuperseded: the task was handed out again, because this process was not heard of.
	ErrSuperseded = errors.New("the task was given to another replica")
)

// retryError is a failure that may go away.
type retryError struct {
	err   error
	after time.Duration
}

func (e retryError) Error() string { return e.err.Error() }
func (e retryError) Unwrap() error { return e.err }

// Retry marks an error as one that may go away: the task is tried again after the time given, on any replica, if it has an
// attempt left. Retry(nil, …) is nil.
func Retry(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return retryError{err, after}
}

// Agent takes tasks and hands them to its handlers. Make one with New.
type Agent struct {
	config   Config
	id       int64
	log      *slog.Logger
	handlers map[string]Handler
	beatNow  chan struct{}

	nc *nats.Conn
	js jetstream.JetStream

	mu      sync.Mutex
	running map[string]*Task // by id
}

// New checks the configuration and reads the credentials. It does not connect.
func New(c Config) (*Agent, error) {
	if c.URL == "" {
		c.URL = DefaultURL
	}
	if c.Concurrency == 0 {
		c.Concurrency = DefaultConcurrency
	}
	if c.Concurrency < 1 {
		return nil, fault.New(fault.Invalid, "an agent works on one task at least")
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Worker == "" {
		host, _ := os.Hostname() // only a name for people
		c.Worker = fmt.Sprintf("%.40s-%d-%s", host, os.Getpid(), nuid.Next()[16:])
	}
	data, err := os.ReadFile(c.Credentials)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the credentials cannot be read: give the path of the .creds file that the agent was added with")
	}
	id, err := idOf(data)
	if err != nil {
		return nil, err
	}
	return &Agent{
		config: c, id: id, log: c.Log, handlers: map[string]Handler{}, beatNow: make(chan struct{}, 1), running: map[string]*Task{},
	}, nil
}

// idOf reads from credentials whose they are.
func idOf(credentials []byte) (int64, error) {
	wrong := fault.New(fault.Invalid, "these are no credentials of an agent")
	token, err := jwt.ParseDecoratedJWT(credentials)
	if err != nil {
		return 0, wrong
	}
	claims, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return 0, wrong
	}
	number, ok := strings.CutPrefix(claims.Name, "agent-")
	id, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || id <= 0 {
		return 0, wrong
	}
	return id, nil
}

// ID is the agent's.
func (a *Agent) ID() int64 { return a.id }

// Handle says what does the tasks of a capability; "" for those that have none. Call it before Run.
func (a *Agent) Handle(capability string, h Handler) { a.handlers[capability] = h }

// Run connects and takes tasks until ctx ends. Then it takes no more, lets what it works on end (for DrainTimeout at most),
// and returns nil. It goes on by itself after lost connections, for ever: whoever runs it decides when to give up.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.connect(ctx); err != nil {
		return err
	}
	defer a.nc.Close()

	// What was taken goes on after ctx ended.
	work, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	var background, tasks sync.WaitGroup
	alive, rest := context.WithCancel(context.WithoutCancel(ctx))
	background.Go(func() { a.beat(alive) })
	a.take(ctx, work, &tasks)

	done := make(chan struct{})
	go func() { tasks.Wait(); close(done) }()
	drain := time.NewTimer(a.config.DrainTimeout)
	defer drain.Stop()
	select {
	case <-done:
	case <-drain.C:
		giveUp(ErrStopping)
		<-done
	}
	rest()
	background.Wait()
	return nil
}

func (a *Agent) connect(ctx context.Context) error {
	name := bus.AgentName(a.id)
	options := append([]nats.Option{
		nats.UserCredentials(a.config.Credentials), nats.Name(name), nats.CustomInboxPrefix(bus.AgentInbox(a.id)),
		nats.MaxReconnects(-1), nats.ReconnectWait(time.Second), nats.ReconnectJitter(500*time.Millisecond, 500*time.Millisecond),
		nats.IgnoreAuthErrorAbort(), // also while agent-registry is away nobody is let in
		nats.ReconnectBufSize(-1),   // reports are tried again
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { a.log.Warn("the connection was lost", "error", err) }),
		nats.ReconnectHandler(func(*nats.Conn) { a.log.Info("connected again"); a.hurry() }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { a.log.Warn("NATS", "error", err) }),
	}, a.config.Options...)
	for wait := pauseMin; ; wait = min(2*wait, pauseMax) {
		nc, err := nats.Connect(a.config.URL, options...)
		if err == nil {
			a.nc = nc
			a.js, err = jetstream.NewWithAPIPrefix(nc, bus.AgentAPI)
			return err
		}
		a.log.Warn("waiting to be let in", "error", err)
		if !sleep(ctx, wait) {
			return fault.Wrap(err, fault.Unavailable, "Butler's NATS server does not let the agent in")
		}
	}
}

// take hands out tasks until ctx ends; work is the context of what was taken.
func (a *Agent) take(ctx, work context.Context, tasks *sync.WaitGroup) {
	slots := make(chan struct{}, a.config.Concurrency)
	var consumer jetstream.Consumer
	for wait := pauseMin; ctx.Err() == nil; {
		select {
		case slots <- struct{}{}: // first the place, then the task: one that waits in here would seem to be worked on
		case <-ctx.Done():
			return
		}
		m, err := a.next(ctx, &consumer)
		if err != nil || m == nil {
			<-slots
			if err != nil && ctx.Err() == nil {
				a.log.Warn("tasks cannot be asked for now", "error", err)
				sleep(ctx, wait)
				wait = min(2*wait, pauseMax)
			}
			continue
		}
		wait = pauseMin
		tasks.Go(func() {
			defer func() { <-slots }()
			a.receive(work, m)
		})
	}
}

// next waits a while for a task; nil when there was none.
func (a *Agent) next(ctx context.Context, consumer *jetstream.Consumer) (jetstream.Msg, error) {
	if *consumer == nil {
		looked, cancel := context.WithTimeout(ctx, pullWait)
		defer cancel()
		c, err := a.js.Consumer(looked, bus.TaskStream, bus.AgentName(a.id))
		if err != nil {
			return nil, err
		}
		*consumer = c
	}
	one, cancel := context.WithTimeout(ctx, pullWait)
	defer cancel()
	m, err := (*consumer).Next(jetstream.FetchContext(one))
	switch {
	case err == nil:
		return m, nil
	case one.Err() != nil, errors.Is(err, nats.ErrTimeout), errors.Is(err, jetstream.ErrNoMessages):
		return nil, nil
	}
	return nil, err
}

// sleep waits for d or until ctx ends, and says whether it waited.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
