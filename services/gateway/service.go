// Package gateway is Butler's edge: accounts and sign-in, the WebSocket, the HTTP API with its event stream, the
// OpenAI-compatible API, and the page. It appends what people say to CHAT, shows them what CHAT and DELTA bring, and fills
// the read model. Any number of replicas serve the same people.
//
// Who it reads for: hub.go follows the log and hands each event to its person's connections, outbox.go is what waits for
// one of them, feed.go tells what a connection missed, send.go is the one way in.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/telemetry"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/gateway/store"
)

// Settings are what an operator chooses. Zero fields have the defaults that each names.
type Settings struct {
	// Addr is host:port to listen on, when Deps has no listener.
	Addr string
	// PublicURL is where people reach the gateway, for example https://butler.example.org; empty when it is Addr.
	PublicURL string
	// TrustedProxies are the peers whose X-Forwarded-For and X-Forwarded-Proto are believed. Default none.
	TrustedProxies []netip.Prefix
	// AllowedOrigins are the web origins beside the gateway's own that may call the API from a browser, with a token.
	// Default none.
	AllowedOrigins []string
	// CookieSecure says when the cookie has the Secure attribute: "true", "false", or "auto", the default: when the
	// request, or PublicURL, is https.
	CookieSecure string
	// Language of people who do not say which: "en", the default, or "zh".
	Language string
	// SignInLifetime is how long a sign-in lasts. Default 30 days.
	SignInLifetime time.Duration
	// MessageRate is how many messages a person may send in a second, and MessageBurst how many at once. Defaults 30 and
	// 100; a negative rate is no limit.
	MessageRate  float64
	MessageBurst int
	// MaxWaiting is how many messages of a person may wait for their answer; those count that were asked since this gateway
	// began. Default 100; negative is no limit.
	MaxWaiting int
	// ApprovalWait is how long a request to the OpenAI API waits for an approval before it ends as pending. Default a
	// minute.
	ApprovalWait time.Duration
	// DrainTimeout bounds how long requests may take to end when the gateway stops. Default 10 seconds.
	DrainTimeout time.Duration
}

func (s Settings) complete() (Settings, error) {
	if s.Language == "" {
		s.Language = "en"
	}
	if s.SignInLifetime == 0 {
		s.SignInLifetime = 30 * 24 * time.Hour
	}
	if s.MessageRate == 0 {
		s.MessageRate = 30
	}
	if s.MaxWaiting == 0 {
		s.MaxWaiting = 100
	}
	if s.MessageBurst == 0 {
		s.MessageBurst = 100
	}
	if s.ApprovalWait == 0 {
		s.ApprovalWait = time.Minute
	}
	if s.DrainTimeout == 0 {
		s.DrainTimeout = 10 * time.Second
	}
	switch s.CookieSecure {
	case "":
		s.CookieSecure = "auto"
	case "auto", "true", "false":
	default:
		return s, fault.New(fault.Invalid, "the cookie's Secure attribute is auto, true or false, not %q", s.CookieSecure)
	}
	return s, nil
}

// Deps are what a Service needs. Bus and Store must be set.
type Deps struct {
	Bus   *bus.Bus
	Store *store.Store
	// Brain answers OpenAI requests without a session; without it they get 503.
	Brain butlerv1.BrainServiceClient
	// Registry knows the agents; without it the lists of agents get 503.
	Registry butlerv1.RegistryServiceClient
	// Approval decides about requests; without it decisions get 503.
	Approval butlerv1.ApprovalServiceClient
	// Shells are the shell-runners by the name of their host; without any there are no shells to list.
	Shells   map[string]butlerv1.ShellServiceClient
	Settings Settings
	// Listener, when set, is served instead of Settings.Addr. Run closes it.
	Listener net.Listener
	// Page is what stands at "/"; nothing when nil.
	Page http.Handler
	// Ops answers /health, /ready and /metrics on the gateway's own address; 404 when nil.
	Ops http.Handler
	// Log discards when nil.
	Log *slog.Logger
	// Metrics takes the gateway's metrics; they are kept to itself when nil.
	Metrics prometheus.Registerer
	// Clock is used for limits and lifetimes. Default time.Now.
	Clock func() time.Time
}

// Service is one gateway.
type Service struct {
	bus      *bus.Bus
	store    *store.Store
	brain    butlerv1.BrainServiceClient
	agents   *agentList
	approval butlerv1.ApprovalServiceClient
	shells   map[string]butlerv1.ShellServiceClient
	settings Settings
	listener net.Listener
	log      *slog.Logger
	now      func() time.Time
	metrics  *metrics
	hub      *hub
	access   *access
	roster   *roster
	docket   *docket
	prompts  *prompts
	threads  *threadCache
	signIns  *signInLimits
	senders  *limiter[int64]
	deciders *limiter[int64]
	sockets  sockets
	origins  *http.CrossOriginProtection
	handler  http.Handler

	verifying chan struct{} // holds a token for each check of the audit chain
	reading   chan struct{} // holds a token for each output of a command that is read

	stop   context.CancelFunc // ends what serves people
	ending context.Context

	afterwards sync.WaitGroup // what requests left to be done; it ends soon after ending
}

// butlerActor is how Butler appears.
var butlerActor = actor{id: store.ButlerID, name: "Butler", role: string(store.ButlerRole)}

// New puts a Service together. It does not touch the network.
func New(d Deps) (*Service, error) {
	if d.Bus == nil || d.Store == nil {
		return nil, errors.New("gateway: Bus and Store are needed")
	}
	settings, err := d.Settings.complete()
	if err != nil {
		return nil, err
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	if d.Metrics == nil {
		d.Metrics = prometheus.NewRegistry()
	}
	m, err := newMetrics(d.Metrics)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	s := &Service{
		bus: d.Bus, store: d.Store, brain: d.Brain, agents: &agentList{client: d.Registry}, approval: d.Approval, shells: d.Shells, settings: settings,
		listener: d.Listener, log: d.Log, now: d.Clock, metrics: m,
		threads: newThreadCache(d.Store), signIns: newSignInLimits(d.Clock),
		senders:   newLimiter[int64](d.Clock, settings.MessageRate, settings.MessageBurst),
		deciders:  newLimiter[int64](d.Clock, settings.MessageRate, settings.MessageBurst),
		verifying: make(chan struct{}, maxVerifying), reading: make(chan struct{}, maxReading),
	}
	s.hub = newHub(d.Bus, writer{butler: butlerActor}, d.Log, m)
	s.access = newAccess(d.Store, d.Bus, d.Clock, d.Log)
	s.prompts = newPrompts(d.Clock)
	s.roster = newRoster(d.Store, d.Clock, d.Log)
	s.docket = newDocket(d.Bus, s.hub.writer, s.hub, s.roster, d.Log, d.Clock)
	s.roster.changed = s.docket.rights
	s.access.changed = func(person int64) {
		s.threads.forget(person)
		s.roster.news()
	}
	s.ending, s.stop = context.WithCancel(context.Background())
	s.origins = http.NewCrossOriginProtection()
	for _, origin := range append([]string{settings.PublicURL}, settings.AllowedOrigins...) {
		if origin == "" {
			continue
		}
		if err := s.origins.AddTrustedOrigin(trimPath(origin)); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "%q is not a web origin", origin)
		}
	}
	s.handler = s.routes(d.Page, d.Ops)
	return s, nil
}

// Handler is everything that the gateway serves; for tests and for wiring it into another server. Run must be running.
func (s *Service) Handler() http.Handler { return s.handler }

// Checks says what readiness depends on, by name; each gives nil or what is missing.
func (s *Service) Checks() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"log": s.bus.Check,
		"hub": func(context.Context) error { return s.hub.ready() },
	}
}

// Database gives nil when the database answers. While it does not, chat goes on: a gateway must then not be taken out of
// service.
func (s *Service) Database(ctx context.Context) error { return s.store.Ping(ctx) }

// Run serves until ctx ends; then it stops accepting, closes the connections so that clients go elsewhere, waits for
// requests to end, at most for Settings.DrainTimeout, and returns nil. It can be called once.
func (s *Service) Run(ctx context.Context) error {
	defer s.stop()
	ln := s.listener
	if ln == nil {
		var err error
		if ln, err = new(net.ListenConfig).Listen(ctx, "tcp", s.settings.Addr); err != nil {
			return fault.Wrap(err, fault.Invalid, "the gateway cannot listen on %s", s.settings.Addr)
		}
	}
	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       60 * time.Second,
		IdleTimeout:       120 * time.Second,
		MaxHeaderBytes:    32 << 10,
		BaseContext:       func(net.Listener) context.Context { return s.ending },
		ErrorLog:          slog.NewLogLogger(quiet{s.log.Handler()}, slog.LevelDebug),
	}
	shutdown := telemetry.Graceful(server)
	// What works in the background ends after the requests that may need it.
	background, endBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer endBackground()
	g, gctx := errgroup.WithContext(background)
	g.Go(func() error { return s.hub.run(gctx) })
	g.Go(func() error { return s.project(gctx) })
	g.Go(func() error { return s.access.run(gctx) })
	g.Go(func() error { return s.runPrompts(gctx) })
	g.Go(func() error { return s.roster.run(gctx) })
	g.Go(func() error { return s.docket.run(gctx) })
	g.Go(func() error { s.housekeeping(gctx); return nil })
	serve := make(chan error, 1)
	go func() { serve <- server.Serve(ln) }()

	var failed error
	select {
	case <-ctx.Done():
	case failed = <-serve:
	case <-gctx.Done(): // one of them failed
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.settings.DrainTimeout)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.stop() // streams end; their clients come back with their cursor
		s.sockets.closeAll(drain, closeGoingAway, "Butler restarts; connect again")
	}()
	if err := shutdown(drain); err != nil {
		s.log.Warn("some requests did not end in time", "error", err)
		_ = server.Close()
	}
	<-done
	s.afterwards.Wait()
	endBackground()
	err := g.Wait()
	switch {
	case failed != nil && !errors.Is(failed, http.ErrServerClosed):
		return fmt.Errorf("gateway: serving: %w", failed)
	case err != nil && !errors.Is(err, context.Canceled):
		return fmt.Errorf("gateway: %w", err)
	}
	return nil
}

// housekeeping does what has to be done now and then, once for all connections.
func (s *Service) housekeeping(ctx context.Context) {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-second.C:
		}
		s.sockets.ping(time.Now())
		if n%60 == 59 {
			s.access.recheckAll()
			s.signIns.forget()
			s.senders.forget()
			s.deciders.forget()
		}
		if n%3600 == 60 {
			if _, err := s.store.PruneTokens(ctx); err != nil {
				s.log.Debug("old tokens could not be removed", "error", err)
			}
		}
	}
}

// quiet keeps net/http's own messages (TLS scanners, broken clients) at debug level.
type quiet struct{ slog.Handler }
