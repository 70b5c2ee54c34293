package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/butlerhub/butler/pkg/fault"
)

// stopTimeout is how long open requests may take to finish when a server stops.
const stopTimeout = 5 * time.Second

// Handler serves GET and HEAD of /health (200 while the process lives), /ready (200 or 503 with a Report as JSON) and
// /metrics (Prometheus). The gateway mounts it on its own address too; elsewhere ServeOps does.
func (t *Telemetry) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		report := t.Checks.Report(r.Context())
		status := http.StatusOK
		if !report.Ready {
			status = http.StatusServiceUnavailable
		}
		writeJSON(w, status, report)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(t.Registry, promhttp.HandlerOpts{
		Registry:            t.Registry,
		ErrorLog:            slog.NewLogLogger(t.Log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: 8,
		Timeout:             10 * time.Second,
	}))
	return mux
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone; there is nobody to tell
}

// ServeOps serves Handler on l until ctx ends, then lets open requests finish for up to five seconds. It closes l. The
// error is nil when it ended because of ctx.
func (t *Telemetry) ServeOps(ctx context.Context, l net.Listener) error {
	return Serve(ctx, l, &http.Server{
		Handler:           http.MaxBytesHandler(t.Handler(), 4<<10),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(t.Log.Handler(), slog.LevelDebug),
	})
}

// Serve runs s on l until ctx ends, then lets open requests finish for up to five seconds and cuts off the rest. It
// closes l. The error is nil when it ended because of ctx.
func Serve(ctx context.Context, l net.Listener, s *http.Server) error {
	shutdown := Graceful(s)
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := shutdown(stop); err != nil {
		_ = s.Close()
	}
	<-failed //nolint:errcheck // that it was closed
	return nil
}

// Listen opens a TCP address. Setting is the environment variable that addr comes from; the error names it and says
// what to do. Port 0 takes a free port.
func Listen(setting, addr string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
	if err == nil {
		return l, nil
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fault.Wrap(err, fault.Conflict, "%s: the address %s is taken by another program, or by a Butler that "+
			"already runs; stop that one, or set %s to another address", setting, addr, setting)
	case errors.Is(err, syscall.EACCES):
		return nil, fault.Wrap(err, fault.Forbidden, "%s: this user may not listen on %s; set %s to a port from 1024 on",
			setting, addr, setting)
	default:
		return nil, fault.Wrap(err, fault.Invalid, "%s: cannot listen on %s; set %s to an address of this machine, such "+
			"as 127.0.0.1:8080", setting, addr, setting)
	}
}
