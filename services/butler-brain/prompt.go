package brain

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cloudwego/eino/schema"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/butlerhub/butler/pkg/tokens"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

// prompt gives the messages of the next call of the model, within its window. What had to be left out is said in the log,
// in the trace and in the metrics.
func (t *talk) prompt(ctx context.Context) []*schema.Message {
	limit := t.s.promptLimit()
	msgs, trimmed := model.Prompt{Heads: t.heads, Past: t.past.turns, Turn: t.msgs}.Fit(limit)
	span := trace.SpanFromContext(ctx)
	if span.IsRecording() {
		span.SetAttributes(
			attribute.Int("prompt.messages", len(msgs)), attribute.Int("prompt.limit_tokens", limit),
			attribute.Int("prompt.past_turns", len(t.past.turns)-trimmed.Turns),
			attribute.Bool("prompt.summary", t.past.memory.text != ""), attribute.Int("prompt.pins", len(t.past.memory.pins)),
			attribute.Int("prompt.left_out_messages", trimmed.Messages),
			attribute.Int("prompt.left_out_turns", trimmed.Turns),
			attribute.Int("prompt.cut_messages", trimmed.Cut+trimmed.Heads),
		)
	}
	if trimmed.Any() {
		t.s.metrics.trimmed.Inc()
		t.s.log.InfoContext(ctx, "the prompt was cut to the model's window", "turn", t.turn.String(), "limit", limit,
			"trimmed", fmt.Sprintf("%+v", trimmed))
	}
	return msgs
}

// mostAnswer is how many tokens of the window are kept for the answer, at most; a small window keeps an eighth.
const mostAnswer = 8192

// promptLimit is how many tokens a prompt may have, as they are counted here: the model's window without the answer and
// the descriptions of the tools.
func (s *Service) promptLimit() int {
	window := s.settings.ContextWindow
	return s.gauge.ratio.Limit(window-min(window/8, mostAnswer)) - s.tools.tokens
}

// gauge holds the count of tokens against what the model's endpoint reports. It counts off the reply path, one prompt at
// a time and now and then: the others teach nothing new.
type gauge struct {
	ratio tokens.Ratio

	mu    sync.Mutex
	busy  bool
	again time.Time
}

const (
	// gaugeEvery is how often a prompt is counted again at most.
	gaugeEvery = 10 * time.Second
	// leastGauged is from how many reported tokens on a prompt is counted: in small ones the endpoint's own additions
	// weigh too much.
	leastGauged = 2000
)

// learn compares a prompt with what the endpoint reported of it, in the background: it returns at once. extra is the tokens
// that the endpoint got besides.
func (g *gauge) learn(now time.Time, background *sync.WaitGroup, prompt []*schema.Message, extra int, reported int64) {
	if reported < leastGauged {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.busy || now.Before(g.again) {
		return
	}
	g.busy, g.again = true, now.Add(gaugeEvery)
	background.Go(func() {
		g.ratio.Learn(model.CountTokens(prompt)+extra, int(min(reported, 1<<30)))
		g.mu.Lock()
		defer g.mu.Unlock()
		g.busy = false
	})
}
