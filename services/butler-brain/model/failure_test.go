package model_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

var allReasons = []model.Reason{
	model.Unavailable, model.RateLimited, model.Rejected, model.Unauthorized, model.NotFound, model.ContextTooLong,
	model.CutStream, model.EmptyAnswer, model.AnswerTooLong, model.Cancelled, model.Timeout, model.ToolLoop, model.Budget,
	model.Stopped, model.Poison, model.Internal,
}

func TestSentences(t *testing.T) {
	t.Parallel()
	seen := map[string]model.Reason{}
	for _, reason := range allReasons {
		en, zh := model.Sentence(reason, "en"), model.Sentence(reason, "zh-CN")
		require.NotEmpty(t, en, reason)
		require.NotEmpty(t, zh, reason)
		require.NotEqual(t, en, zh)
		require.Empty(t, seen[en], "every reason has its own words")
		seen[en] = reason
		require.Equal(t, en, model.Sentence(reason, ""))
		require.True(t, strings.HasSuffix(en, "."), en)
		require.True(t, strings.HasSuffix(zh, "。"), zh)
	}
	require.Equal(t, model.Sentence(model.Internal, "en"), model.Sentence("something else", "en"))
}

func TestNextTry(t *testing.T) {
	t.Parallel()
	const half = 0.5
	for name, tc := range map[string]struct {
		attempt int
		f       *model.Failure
		wait    time.Duration
		again   bool
	}{
		"first":               {1, &model.Failure{Reason: model.Unavailable, Retryable: true}, 375 * time.Millisecond, true},
		"second":              {2, &model.Failure{Reason: model.Unavailable, Retryable: true}, 750 * time.Millisecond, true},
		"third":               {3, &model.Failure{Reason: model.Unavailable, Retryable: true}, 1500 * time.Millisecond, true},
		"fourth is the last":  {4, &model.Failure{Reason: model.Unavailable, Retryable: true}, 0, false},
		"asked for":           {1, &model.Failure{Reason: model.RateLimited, Retryable: true, RetryAfter: 5 * time.Second}, 5250 * time.Millisecond, true},
		"asked for too much":  {1, &model.Failure{Reason: model.RateLimited, Retryable: true, RetryAfter: 31 * time.Second}, 0, false},
		"asked for very soon": {2, &model.Failure{Reason: model.RateLimited, Retryable: true, RetryAfter: time.Millisecond}, 750 * time.Millisecond, true},
		"not retryable":       {1, &model.Failure{Reason: model.RateLimited}, 0, false},
		"rejected":            {1, &model.Failure{Reason: model.Rejected, Retryable: true}, 0, false},
		"cut":                 {2, &model.Failure{Reason: model.CutStream, Retryable: true, Streamed: true}, 750 * time.Millisecond, true},
		"cut three times":     {3, &model.Failure{Reason: model.CutStream, Retryable: true}, 0, false},
		"nil":                 {1, nil, 0, false},
		"no attempt":          {0, &model.Failure{Reason: model.Unavailable, Retryable: true}, 0, false},
	} {
		wait, again := model.NextTry(tc.attempt, tc.f, half)
		require.Equal(t, tc.again, again, name)
		require.Equal(t, tc.wait, wait, name)
	}
}

// Whatever fails, retrying ends after a few tries and within bounded waits.
func TestNextTryEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := &model.Failure{
			Reason:     rapid.SampledFrom(allReasons).Draw(t, "reason"),
			Retryable:  rapid.Bool().Draw(t, "retryable"),
			RetryAfter: time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "after")),
		}
		attempt := rapid.IntRange(1, 1000).Draw(t, "attempt")
		wait, again := model.NextTry(attempt, f, rapid.Float64Range(-1, 2).Draw(t, "jitter"))
		switch {
		case again && (attempt > 3 || !f.Retryable):
			t.Fatalf("one more after %d", attempt)
		case again && (wait < 250*time.Millisecond || wait > 31*time.Second || wait < f.RetryAfter):
			t.Fatalf("wait %v", wait)
		case !again && wait != 0:
			t.Fatalf("no more, but wait %v", wait)
		}
	})
}

func TestRetry(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.Next(modeltest.Refuse(500, "", "x"))
	s.Next(modeltest.Text("half"), modeltest.Cut())
	c := client(t, s.URL())
	var waits []time.Duration
	wait := func(ctx context.Context, d time.Duration) error {
		waits = append(waits, d)
		return ctx.Err()
	}
	try := func(ctx context.Context, _ int) (*model.Result, error) {
		return c.Stream(ctx, ask("x"), nil, model.CallOptions{}, nil)
	}
	res, err := model.Retry(deadline(t), wait, rand.Float64, try)
	require.NoError(t, err)
	require.Equal(t, modeltest.EchoText("x"), res.Message.Content)
	require.Equal(t, 3, s.Count())
	require.Len(t, waits, 2)

	s.Default(modeltest.Refuse(401, "", "x"))
	_, err = model.Retry(deadline(t), wait, rand.Float64, try)
	require.Equal(t, model.Unauthorized, model.ReasonOf(err))
	require.Equal(t, 4, s.Count(), "no retry where none can help")

	s.Default(modeltest.Refuse(500, "", "x"))
	ctx, cancel := context.WithCancelCause(deadline(t))
	_, err = model.Retry(ctx, func(context.Context, time.Duration) error {
		cancel(errStop)
		return ctx.Err()
	}, rand.Float64, try)
	require.Equal(t, model.Cancelled, model.ReasonOf(err))
	require.ErrorIs(t, err, errStop)
}

func TestReasonOf(t *testing.T) {
	t.Parallel()
	f := &model.Failure{Reason: model.RateLimited, Err: errors.New("internal detail")}
	require.Equal(t, model.RateLimited, model.ReasonOf(fmt.Errorf("a call: %w", f)))
	require.Equal(t, model.Internal, model.ReasonOf(errors.New("x")))
	require.Empty(t, model.ReasonOf(nil))
}
