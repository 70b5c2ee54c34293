// Package telemetry is what a process says about itself: logs with trace ids and without secrets, Prometheus metrics,
// trace ids that travel with every message, and the addresses /health, /ready and /metrics.
package telemetry

import (
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Options describe one process. The zero value logs to standard error at info.
type Options struct {
	Service  string    // such as "gateway"; "butler" when empty
	Version  string    // of the build; "dev" when empty
	Output   io.Writer // of the log; nil means standard error
	LogLevel slog.Level
	// LogFormat is "text", "json", or "auto" (also ""): text when Output is a terminal, else json.
	LogFormat string
	// OTLPEndpoint is the base URL of a collector that takes finished spans by OTLP over HTTP, at /v1/traces. Without one
	// spans have ids, for logs and messages, and are not recorded. What cannot be delivered is dropped after a while.
	OTLPEndpoint string
}

// Telemetry is what the parts of one process share. Make one a process.
type Telemetry struct {
	Log      *slog.Logger
	Level    *slog.LevelVar // changes the log's level at once
	Registry *prometheus.Registry
	Tracer   *sdktrace.TracerProvider
	Checks   *Checks
}

// New sets everything up and keeps no global state but OpenTelemetry's: the tracer provider and the propagator are
// installed as the global ones, since libraries look for them there.
func New(o Options) *Telemetry {
	if o.Service == "" {
		o.Service = "butler"
	}
	if o.Version == "" {
		o.Version = "dev"
	}
	if o.Output == nil {
		o.Output = os.Stderr
	}
	t := &Telemetry{
		Level:    new(slog.LevelVar),
		Registry: newRegistry(o.Service, o.Version),
		Checks:   NewChecks(),
	}
	t.Level.Set(o.LogLevel)
	t.Log = NewLogger(o.Output, o.LogFormat, t.Level).With("service", o.Service)
	exporter, err := newExporter(o.OTLPEndpoint)
	if err != nil {
		t.Log.Warn("traces are not exported: OTEL_EXPORTER_OTLP_ENDPOINT cannot be used", "error", err)
	}
	t.Tracer = newTracer(o.Service, o.Version, exporter)
	return t
}

// Close hands the remaining spans to the exporter, until ctx ends. It is safe to call twice.
func (t *Telemetry) Close(ctx context.Context) error { return t.Tracer.Shutdown(ctx) }
