package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/butlerhub/butler/pkg/config"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/telemetry"
)

const (
	// stopTimeout bounds the end of a process: what is not finished by then is cut off, and goes on elsewhere or at the
	// next start.
	stopTimeout = 12 * time.Second
	// drainTimeout is how long requests to the gateway may take to end.
	drainTimeout = 4 * time.Second
	// callsTimeout is how long gRPC calls may take to end.
	callsTimeout = 3 * time.Second
)

// process is a running service, or all of them. What is opened is closed in reverse, also when a later step fails.
type process struct {
	app     *app
	name    string
	replica string // names this process; unique per start
	tel     *telemetry.Telemetry
	log     *slog.Logger

	opsURL  string // where /ready is
	parts   []*part
	closers []func()
	failed  chan error
	hangup  chan os.Signal

	mu           sync.Mutex
	checks       map[string]func(context.Context) error // as in tel.Checks, which answers from memory for a second
	settings     config.Settings
	shellsFolder string                                               // where shell-runner keeps the shells, once it is known
	reloaded     []func(next config.Settings, changed []string) error // told of each reload
}

// part is something that runs until it is told to stop.
type part struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
}

// newProcess reads the settings and sets up logs, metrics and traces.
func (a *app) newProcess(name string) (*process, error) {
	settings, warnings, err := a.settings()
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname() // only a name for people
	p := &process{
		app: a, name: name, settings: settings, failed: make(chan error, 16), hangup: make(chan os.Signal, 1),
		replica: replicaName(name, host), checks: map[string]func(context.Context) error{},
		tel: telemetry.New(telemetry.Options{
			Service: name, Version: version, Output: a.err, LogLevel: settings.Log.Level, LogFormat: settings.Log.Format,
			OTLPEndpoint: settings.Telemetry.OTLPEndpoint,
		}),
	}
	p.log = p.tel.Log
	signal.Notify(p.hangup, syscall.SIGHUP) // from now on: it must not end a process that is still waiting
	p.onClose(func() { signal.Stop(p.hangup) })
	for _, w := range warnings {
		p.log.Warn(string(w))
	}
	p.onClose(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = p.tel.Close(ctx) // spans that cannot be delivered are lost with the process
	})
	p.onReload(func(next config.Settings, _ []string) error {
		p.tel.Level.Set(next.Log.Level)
		return nil
	})
	return p, nil
}

// replicaName gives a subject token: letters, digits, - and _.
func replicaName(service, host string) string {
	keep := func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		default:
			return '-'
		}
	}
	return strings.Map(keep, fmt.Sprintf("%s-%.40s-%s", service, host, strings.ToLower(rand.Text()[:8])))
}

func (p *process) onClose(f func()) { p.closers = append(p.closers, f) }

// onReload registers what is told at each reload; f gets all settings and the keys that changed, which may be none.
func (p *process) onReload(f func(next config.Settings, changed []string) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reloaded = append(p.reloaded, f)
}

// check registers what /ready asks; a nil f takes it away.
func (p *process) check(name string, f func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f == nil {
		delete(p.checks, name)
		p.tel.Checks.Remove(name)
		return
	}
	p.checks[name] = f
	p.tel.Checks.Add(name, f)
}

// missing asks all checks now and gives those that fail, as "name: why".
func (p *process) missing(ctx context.Context) []string {
	p.mu.Lock()
	checks := maps.Clone(p.checks)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var out []string
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		if err := checks[name](ctx); err != nil {
			out = append(out, name+": "+sentence(err))
		}
	}
	return out
}

// start runs a part until the process stops. Parts are stopped one after the other, the last one first. A part that
// ends before it is told to ends the process.
func (p *process) start(name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	part := &part{name: name, cancel: cancel, done: make(chan struct{})}
	p.parts = append(p.parts, part)
	go func() {
		defer close(part.done)
		err := run(ctx)
		if ctx.Err() == nil {
			if err == nil {
				err = errors.New("it ended by itself")
			}
			select {
			case p.failed <- fmt.Errorf("%s: %w", name, err):
			default: // enough is known
			}
		}
	}()
}

// starting names the check that fails until everything is started.
const starting = "start"

// run serves until ctx ends (a signal) or a part fails. All checks are registered by then.
func (p *process) run(ctx context.Context) error {
	p.check(starting, nil)
	for {
		select {
		case <-ctx.Done():
			p.log.Info("stopping", "why", context.Cause(ctx).Error())
			return nil
		case err := <-p.failed:
			return err
		case <-p.hangup:
			if _, err := p.reload(); err != nil {
				p.log.Error("the settings were not reloaded", "error", err)
			}
		}
	}
}

// close stops the parts and closes what was opened, in reverse. It is safe to call twice.
func (p *process) close() {
	p.tel.Checks.Drain()
	timeout := time.AfterFunc(stopTimeout, func() {
		p.log.Error("stopping takes too long and is cut off", "after", stopTimeout)
		os.Exit(exitFailed)
	})
	defer timeout.Stop()
	for i := len(p.parts) - 1; i >= 0; i-- {
		began := time.Now()
		p.parts[i].cancel()
		<-p.parts[i].done
		p.log.Debug("stopped", "part", p.parts[i].name, "took", time.Since(began))
	}
	p.parts = nil
	for i := len(p.closers) - 1; i >= 0; i-- {
		p.closers[i]()
	}
	p.closers = nil
}

// reloadReport says what a reload did.
type reloadReport struct {
	Changed     []string `json:"changed"`
	NeedRestart []string `json:"need_restart"`
}

// reload reads the settings again and takes over those that can change while the process runs.
func (p *process) reload() (reloadReport, error) {
	next, warnings, err := p.app.settings()
	if err != nil {
		return reloadReport{}, err
	}
	for _, w := range warnings {
		p.log.Warn(string(w))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	merged, changed, needRestart := p.settings.Reload(next)
	needRestart = withoutGenerated(needRestart, next)
	report := reloadReport{Changed: append([]string{}, changed...), NeedRestart: append([]string{}, needRestart...)}
	// Also when no setting has changed: a file that one names may have. What was registered first cannot fail and comes
	// last; when one fails, those before it have changed already, and all are told again at the next reload.
	for _, f := range slices.Backward(p.reloaded) {
		if err := f(merged, changed); err != nil {
			return report, err
		}
	}
	p.settings = merged
	p.log.Info("settings reloaded", "changed", changed)
	if len(needRestart) > 0 {
		p.log.Warn("some changed settings take effect at the next start only", "settings", needRestart)
	}
	return report, nil
}

// withoutGenerated leaves out the internal token when `butler up` made one up.
func withoutGenerated(keys []string, next config.Settings) []string {
	var out []string
	for _, k := range keys {
		if k == "rpc.token" && next.RPC.Token == "" {
			continue
		}
		out = append(out, k)
	}
	return out
}

// serveOps serves /health, /ready and /metrics, and POST /config/reload, from now on: also while the process waits for
// what it needs.
func (p *process) serveOps() error {
	l, err := telemetry.Listen("BUTLER_OPS_ADDR", p.settings.Ops.Addr)
	if err != nil {
		return err
	}
	p.opsURL = "http://" + localAddr(l.Addr().String())
	// What a later step will check is not known yet: until all of it is, the answer is no.
	p.check(starting, func(context.Context) error { return fault.New(fault.Unavailable, "not everything is started") })
	mux := http.NewServeMux()
	mux.Handle("/", p.tel.Handler())
	mux.HandleFunc("POST /config/reload", func(w http.ResponseWriter, r *http.Request) {
		// A page in a browser must not reach what only listens on this machine.
		if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
			http.Error(w, "not from a browser", http.StatusForbidden)
			return
		}
		report, err := p.reload()
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": sentence(err), "code": string(fault.Invalid)})
			return
		}
		_ = json.NewEncoder(w).Encode(report) // the caller may be gone
	})
	server := &http.Server{
		Handler:           http.MaxBytesHandler(mux, 4<<10),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	p.start("ops", func(ctx context.Context) error { return telemetry.Serve(ctx, l, server) })
	return nil
}

// listen opens an address that a setting names; it is closed with the process.
func (p *process) listen(setting, addr string) (net.Listener, error) {
	l, err := telemetry.Listen(setting, addr)
	if err != nil {
		return nil, err
	}
	p.onClose(func() { _ = l.Close() }) // whoever serves on it closes it first
	return l, nil
}

// waitFor calls f until it works, while /ready tells what is waited for. It gives up when ctx ends, or when f's error is
// none that waiting mends.
func (p *process) waitFor(ctx context.Context, name string, f func(context.Context) error) error {
	var mu sync.Mutex
	last := fault.New(fault.Unavailable, "was not asked yet")
	p.check(name, func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		return last
	})
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := f(ctx)
		if err == nil {
			p.check(name, nil)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if fault.ClassOf(err) != fault.Transient {
			return err
		}
		mu.Lock()
		last = fault.Wrap(err, fault.Unavailable, "waiting")
		mu.Unlock()
		p.log.Warn("waiting for "+name, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}
