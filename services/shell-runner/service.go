// Package shell is shell-runner: persistent shells on one host, for people who may use them. What runs in them was judged
// by the guard and granted by approval; docs/explanation/approvals.md says how.
//
// The files, in the order of a command's way:
//   - access.go: who may;
//   - route.go: whether a message is a command, a control or talk; classify.go and words.go: how a command line is told
//     from a sentence;
//   - inspect.go: the exact effect of a command line, here and now;
//   - execute.go: taking a grant and running what it allows, once; open.go: what a crash left open;
//   - stream.go: output on its way to people: redacted, without control sequences, in pieces;
//   - outputlog.go: long output on its way into the log, whole;
//   - control.go: slash commands, show.go: what they show; keys.go and input.go: what goes to the program in the foreground; mode.go;
//   - skills.go and the skills;
//   - idle.go: sessions that nobody uses;
//   - shelllog.go: the log of commands in SQL.
package shell

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/redact"
	"github.com/butlerhub/butler/pkg/sealed"
	"github.com/butlerhub/butler/pkg/storage"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/guard"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// Streams are those that shell-runner declares.
var Streams = []string{bus.ShellStream}

// Settings are what an operator chooses. Zero values mean the defaults.
type Settings struct {
	// AllowedUsers are ids or names of people, or their identities in channels; empty means nobody.
	AllowedUsers []string
	// CommandTimeout is how long a command is waited for, 30 s.
	CommandTimeout time.Duration
	// FreeAfter is how long a command is waited for whose turn is woken by its end, 3 s: as long as the call lasts, the person's
	// next message has to wait, and it may be /cancel.
	FreeAfter time.Duration
	// IdleTimeout closes a session in which nothing happens, 1 h; IdleWarning is how long before it is told, 5 min.
	IdleTimeout, IdleWarning time.Duration
	// LogOutput bounds what is logged of the output of one command, in bytes of text: 64 MiB. Negative: long output is not
	// logged, but for what its outcome keeps.
	LogOutput int64
	// Guard asks and refuses; nil makes one of DangerPatterns.
	DangerPatterns []string
	Protected      []string // folders of Butler itself
	GuardDisabled  bool     // only in single-user mode: what the guard would ask about runs, what is hard-line does not
}

func (s Settings) withDefaults() Settings {
	if s.CommandTimeout <= 0 {
		s.CommandTimeout = 30 * time.Second
	}
	if s.FreeAfter <= 0 {
		s.FreeAfter = 3 * time.Second
	}
	if s.LogOutput == 0 {
		s.LogOutput = defaultLogOutput
	}
	if s.IdleTimeout <= 0 {
		s.IdleTimeout = time.Hour
	}
	if s.IdleWarning <= 0 {
		s.IdleWarning = min(5*time.Minute, s.IdleTimeout/2)
	}
	return s
}

// Deps are what a Service needs. Bus, Approval, Host and Tmux must be set.
type Deps struct {
	Bus      *bus.Bus
	Approval butlerv1.ApprovalServiceClient
	Host     string // this host's name, a token of subjects
	// Tmux is the configuration of the sessions; its OnEvent and Log are the service's.
	Tmux tmux.Config
	// State is a folder that only this service uses: what is open is noted in it.
	State string
	// DB keeps the shell log; without it there is none to search.
	DB       *storage.DB
	Redactor *redact.Redactor
	// Skills are slash commands beside the built-in ones.
	Skills   []Skill
	Settings Settings
	Replica  string                // names this process; unique per start
	Log      *slog.Logger          // discards when nil
	Clock    func() time.Time      // time.Now when nil
	Metrics  prometheus.Registerer // none when nil
}

// Service is the shell-runner of one host. Its calls are safe for concurrent use.
type Service struct {
	butlerv1.UnimplementedShellServiceServer

	bus      *bus.Bus
	approval butlerv1.ApprovalServiceClient
	host     string
	tmux     *tmux.Host
	state    string
	replica  string
	log      *slog.Logger
	now      func() time.Time
	redactor *redact.Redactor
	metrics  *metrics
	keys     *grantKeys
	logbook  *logbook
	settings atomic.Pointer[Settings]
	guard    atomic.Pointer[guard.Guard]
	ready    atomic.Bool
	// recovered is closed once what an earlier process left was looked at.
	recovered chan struct{}
	skills    map[string]Skill // by trigger
	order     []Skill          // as they are listed

	life         context.Context // ends a little after Run
	endLife      context.CancelFunc
	logging      sync.WaitGroup // what is logged of commands that have ended; added to while mu is held and ended false
	ended        bool
	outputQueued atomic.Int64 // bytes of output that wait for the log
	maxQueued    int          // of one command

	mu     sync.Mutex
	seats  map[int64]*seat // by person
	jobs   map[string]*job // by approval
	unsure map[string]bool // approvals whose grant may have been taken, and nothing was done; one for each time NATS was away
	done   map[string]controlled
}

// New checks what is needed and prepares the shells' folder. It starts no shell: Run finds those of an earlier process.
func New(d Deps) (*Service, error) {
	if d.Bus == nil || d.Approval == nil || d.State == "" {
		return nil, errors.New("shell: the bus, approval and a folder are needed")
	}
	if !approval.ValidHost(d.Host) {
		return nil, fault.New(fault.Invalid, "%q cannot name a host; set BUTLER_SHELL_HOST to letters, digits, - and _", d.Host)
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	if d.Redactor == nil {
		d.Redactor = new(redact.Redactor)
	}
	s := &Service{
		bus: d.Bus, approval: d.Approval, host: d.Host, state: d.State, replica: d.Replica, log: d.Log, now: d.Clock,
		redactor: d.Redactor, keys: &grantKeys{client: d.Approval},
		maxQueued: maxQueued, recovered: make(chan struct{}), seats: map[int64]*seat{}, jobs: map[string]*job{}, unsure: map[string]bool{}, done: map[string]controlled{},
	}
	s.life, s.endLife = context.WithCancel(context.Background())
	if err := s.SetSettings(d.Settings); err != nil {
		return nil, err
	}
	var err error
	if s.metrics, err = newMetrics(d.Metrics, s); err != nil {
		return nil, fmt.Errorf("shell: %w", err)
	}
	if s.logbook, err = newLogbook(d.DB, d.Log); err != nil {
		return nil, err
	}
	if err := s.learn(append(builtinSkills(s), d.Skills...)); err != nil {
		return nil, err
	}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	d.Tmux.OnEvent, d.Tmux.Log, d.Tmux.Now = s.event, d.Log, d.Clock
	if s.tmux, err = tmux.Open(d.Tmux); err != nil {
		return nil, err
	}
	for _, w := range s.tmux.Warnings() {
		d.Log.Warn(w)
	}
	return s, nil
}

// SetSettings changes what can be changed while the service runs.
func (s *Service) SetSettings(v Settings) error {
	v = v.withDefaults()
	g, err := guard.New(guard.Options{DangerPatterns: v.DangerPatterns, Protected: v.Protected})
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "guardrail.danger_patterns: %v", err)
	}
	s.settings.Store(&v)
	s.guard.Store(g)
	return nil
}

// Register adds the service to a gRPC server.
func (s *Service) Register(r grpc.ServiceRegistrar) { butlerv1.RegisterShellServiceServer(r, s) }

// Warnings gives what an operator should know about isolation and limits, as sentences.
func (s *Service) Warnings() []string { return s.tmux.Warnings() }

// Ready says what is missing for the service to answer, or nil.
func (s *Service) Ready(ctx context.Context) error {
	if !s.ready.Load() {
		return fault.New(fault.Unavailable, "the shells of an earlier process are being looked for")
	}
	if err := s.tmux.Ready(ctx); err != nil {
		return err
	}
	return s.bus.Check(ctx)
}

// Run finds what an earlier process left, and looks after the sessions until ctx ends. It returns nil then; the sessions
// live on.
func (s *Service) Run(ctx context.Context) error {
	defer s.endOutputs()
	defer s.tmux.Close()
	unlisten, err := s.bus.Listen(sealed.Asked, func([]byte) { s.announceAgain() })
	if err != nil {
		return err
	}
	defer unlisten()
	err = s.bus.Ensure(ctx, Streams...)
	if err == nil {
		err = s.bus.Wait(ctx, bus.ApprovalStream)
	}
	if err == nil {
		err = s.recover(ctx)
	}
	if err == nil {
		s.ready.Store(true)
		g, gctx := errgroup.WithContext(ctx)
		g.Go(func() error { return s.watchIdle(gctx) })
		g.Go(func() error { return s.logbook.run(gctx, s.bus) })
		err = g.Wait()
		s.ready.Store(false)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// endWait bounds what is still logged when the service ends.
const endWait = 5 * time.Second

// endOutputs logs what was printed so far by commands that go on: the next process cannot know it.
func (s *Service) endOutputs() {
	late := time.AfterFunc(endWait, s.endLife)
	defer late.Stop()
	defer s.endLife()
	s.mu.Lock()
	s.ended = true
	var logs []*outputLog
	for _, j := range s.jobs {
		if l := j.out.logged(); l != nil {
			logs = append(logs, l)
		}
	}
	s.mu.Unlock()
	for _, l := range logs {
		l.close()
	}
	for _, l := range logs {
		<-l.done
	}
	s.logging.Wait()
}

// afterwards does what nobody waits for. Run ends after it.
func (s *Service) afterwards(f func()) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		f() // s.life bounds it
		return
	}
	defer s.mu.Unlock()
	s.logging.Go(f)
}

// seat is a person's place on this host: one thing at a time happens to their session.
type seat struct {
	sync.Mutex
	person int64

	mu     sync.Mutex
	grants map[string]time.Time // programs that input may be passed to, until when
	chosen chosenMode           // what the person chose for the mode
	warned time.Time            // when the person was told that the session closes
	prompt *prompt              // a program asks for a password
	// thread and language are of the conversation that last had to do with the shell, for what is told outside of a turn.
	thread   int64
	language string
}

func (s *Service) seat(person int64) *seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.seats[person]
	if st == nil {
		st = &seat{person: person, grants: map[string]time.Time{}}
		s.seats[person] = st
	}
	return st
}

// detach notes that a conversation has left the shell: what is said there does not answer its prompts any more.
func (st *seat) detach(thread int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.thread == thread {
		st.thread = 0
	}
}

// remember notes in which conversation, and language, the person last used the shell.
func (st *seat) remember(thread int64, language string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if thread > 0 {
		st.thread, st.language = thread, language
	}
}

// sessionUser names a person to package tmux, personOf gives them back.
func sessionUser(person int64) string { return strconv.FormatInt(person, 10) }

func personOf(sess *tmux.Session) int64 {
	person, _ := strconv.ParseInt(sess.User(), 10, 64)
	return person
}
