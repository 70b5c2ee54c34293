package telemetry

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Propagator carries W3C traceparent and tracestate over HTTP, gRPC and NATS headers.
var Propagator propagation.TextMapPropagator = propagation.TraceContext{}

// newExporter gives the exporter to a collector, nil without an endpoint. It connects with the first spans.
func newExporter(endpoint string) (sdktrace.SpanExporter, error) {
	if endpoint == "" {
		return nil, nil
	}
	return otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(strings.TrimRight(endpoint, "/")+"/v1/traces"))
}

func newTracer(service, version string, exporter sdktrace.SpanExporter) *sdktrace.TracerProvider {
	o := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", service),
			attribute.String("service.version", version),
		)),
	}
	if exporter == nil {
		// Spans that are not sampled still have ids, and cost next to nothing.
		o = append(o, sdktrace.WithSampler(sdktrace.NeverSample()))
	} else {
		o = append(o, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())), sdktrace.WithBatcher(exporter))
	}
	p := sdktrace.NewTracerProvider(o...)
	otel.SetTracerProvider(p)
	otel.SetTextMapPropagator(Propagator)
	return p
}
