package rpc

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

var propagator = propagation.TraceContext{}

// carrier lets trace context travel in gRPC metadata.
type carrier metadata.MD

func (c carrier) Get(key string) string {
	if v := metadata.MD(c).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	return keys
}

// observer counts, times and traces the calls of one side.
type observer struct {
	tracer   trace.Tracer
	handled  *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
}

// newObserver registers the metrics of a side ("server", "client"); the servers and clients of one process share them.
func newObserver(side string, tracer trace.TracerProvider, reg prometheus.Registerer) *observer {
	if tracer == nil {
		tracer = otel.GetTracerProvider()
	}
	name := "butler_rpc_" + side
	o := &observer{
		tracer: tracer.Tracer("github.com/butlerhub/butler/pkg/rpc"),
		handled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name + "_calls_total", Help: "gRPC calls that have ended, by method and status.",
		}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name + "_call_seconds", Help: "How long gRPC calls took, streams as a whole.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"method"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: name + "_calls_in_flight", Help: "gRPC calls that run now.",
		}, []string{"method"}),
	}
	if reg != nil {
		o.handled = registered(reg, o.handled)
		o.seconds = registered(reg, o.seconds)
		o.inFlight = registered(reg, o.inFlight)
	}
	return o
}

func registered[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	err := reg.Register(c)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if c, ok := already.ExistingCollector.(C); ok {
			return c
		}
	}
	if err != nil {
		panic(err) // another package took a name of ours
	}
	return c
}

// incoming opens the span of a call that arrived, as a child of the caller's.
func (o *observer) incoming(ctx context.Context, method string) (context.Context, func(error)) {
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = propagator.Extract(ctx, carrier(md))
	}
	return o.begin(ctx, method, trace.SpanKindServer)
}

// outgoing opens the span of a call that is made, and sends it along.
func (o *observer) outgoing(ctx context.Context, method string) (context.Context, func(error)) {
	ctx, end := o.begin(ctx, method, trace.SpanKindClient)
	md, _ := metadata.FromOutgoingContext(ctx)
	md = md.Copy()
	if md == nil {
		md = metadata.MD{}
	}
	propagator.Inject(ctx, carrier(md))
	return metadata.NewOutgoingContext(ctx, md), end
}

// begin gives a function that ends the call; it must be called once, with the status error or nil.
func (o *observer) begin(ctx context.Context, method string, kind trace.SpanKind) (context.Context, func(error)) {
	method = strings.TrimPrefix(method, "/")
	ctx, span := o.tracer.Start(ctx, method, trace.WithSpanKind(kind))
	o.inFlight.WithLabelValues(method).Inc()
	start := time.Now()
	return ctx, func(err error) {
		code := status.Code(err)
		o.inFlight.WithLabelValues(method).Dec()
		o.seconds.WithLabelValues(method).Observe(time.Since(start).Seconds())
		o.handled.WithLabelValues(method, code.String()).Inc()
		if span.IsRecording() {
			span.SetAttributes(attribute.String("rpc.system", "grpc"), attribute.String("rpc.grpc.status", code.String()))
			if code != codes.OK {
				span.SetStatus(otelcodes.Error, code.String())
			}
		}
		span.End()
	}
}
