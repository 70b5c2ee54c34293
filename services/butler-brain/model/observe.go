package model

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cloudwego/eino/callbacks"
	einomodel "github.com/cloudwego/eino/components/model"
	"github.com/cloudwego/eino/schema"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// firstTokenKey in a callback output's Extra holds when the first text arrived, a time.Time.
const firstTokenKey = "first_token"

// observer is the Eino callback handler that counts model calls and puts each into a span. Prompts and answers are in
// neither.
type observer struct {
	now     func() time.Time
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	first   prometheus.Histogram
	tokens  *prometheus.CounterVec
}

func newObserver(cfg Config) (*observer, error) {
	buckets := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	o := &observer{
		now: cfg.Now,
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "butler_model_calls_total", Help: "Calls of the language model by outcome: ok, or the reason of failure.",
		}, []string{"outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "butler_model_call_seconds", Help: "Time from the start of a model call to its end.", Buckets: buckets,
		}, []string{"outcome"}),
		first: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "butler_model_first_token_seconds", Help: "Time from the start of a model call to its first text.",
			Buckets: buckets,
		}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "butler_model_tokens_total", Help: "Tokens as the endpoint reported them.",
		}, []string{"kind"}),
	}
	if cfg.Registerer == nil {
		return o, nil
	}
	var err error
	o.calls, err = register(cfg.Registerer, o.calls, err)
	o.seconds, err = register(cfg.Registerer, o.seconds, err)
	o.first, err = register(cfg.Registerer, o.first, err)
	o.tokens, err = register(cfg.Registerer, o.tokens, err)
	if err != nil {
		return nil, fmt.Errorf("metrics of model calls: %w", err)
	}
	return o, nil
}

// register registers a collector, or gives the one that another client of the process has registered before.
func register[C prometheus.Collector](r prometheus.Registerer, c C, err error) (C, error) {
	if err != nil {
		return c, err
	}
	err = r.Register(c)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing, nil
		}
	}
	return c, err
}

type callStartKey struct{}

// Needed keeps Eino from copying streams for a handler that does not read them.
func (o *observer) Needed(_ context.Context, _ *callbacks.RunInfo, timing callbacks.CallbackTiming) bool {
	return timing == callbacks.TimingOnStart || timing == callbacks.TimingOnEnd || timing == callbacks.TimingOnError
}

func (o *observer) OnStart(ctx context.Context, info *callbacks.RunInfo, in callbacks.CallbackInput) context.Context {
	name := ""
	if info != nil {
		name = info.Type
	}
	ctx, span := otel.Tracer("github.com/butlerhub/butler/services/butler-brain/model").Start(ctx, "chat "+name,
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
			attribute.String("gen_ai.operation.name", "chat"), attribute.String("gen_ai.request.model", name)))
	if input := einomodel.ConvCallbackInput(in); input != nil && span.IsRecording() {
		span.SetAttributes(attribute.Int("butler.prompt_messages", len(input.Messages)))
	}
	return context.WithValue(ctx, callStartKey{}, o.now())
}

func (o *observer) OnEnd(ctx context.Context, _ *callbacks.RunInfo, out callbacks.CallbackOutput) context.Context {
	span := trace.SpanFromContext(ctx)
	defer span.End()
	began := o.finish(ctx, "ok")
	output := einomodel.ConvCallbackOutput(out)
	if output == nil {
		return ctx
	}
	if first, ok := output.Extra[firstTokenKey].(time.Time); ok {
		o.first.Observe(first.Sub(began).Seconds())
		span.AddEvent("first token", trace.WithTimestamp(first))
	}
	if used := output.TokenUsage; used != nil {
		o.tokens.WithLabelValues("prompt").Add(float64(max(used.PromptTokens, 0)))
		o.tokens.WithLabelValues("completion").Add(float64(max(used.CompletionTokens, 0)))
		span.SetAttributes(attribute.Int("gen_ai.usage.input_tokens", used.PromptTokens),
			attribute.Int("gen_ai.usage.output_tokens", used.CompletionTokens))
	}
	if m := output.Message; m != nil && m.ResponseMeta != nil {
		span.SetAttributes(attribute.StringSlice("gen_ai.response.finish_reasons", []string{m.ResponseMeta.FinishReason}))
	}
	return ctx
}

func (o *observer) OnError(ctx context.Context, _ *callbacks.RunInfo, err error) context.Context {
	span := trace.SpanFromContext(ctx)
	defer span.End()
	reason := string(ReasonOf(err))
	o.finish(ctx, reason)
	span.SetAttributes(attribute.String("error.type", reason))
	span.SetStatus(codes.Error, err.Error())
	return ctx
}

func (o *observer) finish(ctx context.Context, outcome string) (began time.Time) {
	began, ok := ctx.Value(callStartKey{}).(time.Time)
	if !ok {
		began = o.now()
	}
	o.calls.WithLabelValues(outcome).Inc()
	o.seconds.WithLabelValues(outcome).Observe(o.now().Sub(began).Seconds())
	return began
}

// OnStartWithStreamInput is part of Eino's interface and never needed here.
func (o *observer) OnStartWithStreamInput(ctx context.Context, _ *callbacks.RunInfo,
	in *schema.StreamReader[callbacks.CallbackInput]) context.Context {
	in.Close()
	return ctx
}

// OnEndWithStreamOutput is part of Eino's interface and never needed here.
func (o *observer) OnEndWithStreamOutput(ctx context.Context, _ *callbacks.RunInfo,
	out *schema.StreamReader[callbacks.CallbackOutput]) context.Context {
	out.Close()
	return ctx
}
