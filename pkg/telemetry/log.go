package telemetry

import (
	"context"
	"io"
	"log/slog"
	"os"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/term"
)

// NewLogger gives a logger that writes one record a line to w, adds trace_id and span_id of the context, and masks
// secrets. Format is as in Options.LogFormat.
func NewLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	text := format == "text"
	if format == "" || format == "auto" {
		f, ok := w.(*os.File)
		text = ok && term.IsTerminal(int(f.Fd()))
	}
	o := &slog.HandlerOptions{Level: level}
	if text {
		return slog.New(NewHandler(slog.NewTextHandler(w, o)))
	}
	return slog.New(NewHandler(slog.NewJSONHandler(w, o)))
}

// NewHandler wraps a handler: records get trace_id and span_id of their context (inside the open group, if any), and
// secrets are masked in messages, attributes and groups.
func NewHandler(next slog.Handler) slog.Handler { return &handler{next} }

type handler struct{ next slog.Handler }

func (h *handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, redactText(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(redactAttr(a))
		return true
	})
	if s := trace.SpanContextFromContext(ctx); s.IsValid() {
		out.AddAttrs(slog.String("trace_id", s.TraceID().String()), slog.String("span_id", s.SpanID().String()))
	}
	return h.next.Handle(ctx, out)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	masked := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		masked[i] = redactAttr(a)
	}
	return &handler{h.next.WithAttrs(masked)}
}

func (h *handler) WithGroup(name string) slog.Handler { return &handler{h.next.WithGroup(name)} }
