package model

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Reason says in one word why there is no answer. It is stored with the turn and read by programs; Sentence gives the
// words for people.
type Reason string

// Reasons of a failed model call.
const (
	// Unavailable: the endpoint cannot be reached or answers with a server error.
	Unavailable Reason = "model_unavailable"
	// RateLimited: the endpoint refuses because of too many requests or a used-up quota.
	RateLimited Reason = "rate_limited"
	// Rejected: the endpoint refuses this request as it is.
	Rejected Reason = "model_rejected"
	// Unauthorized: the endpoint does not accept the token.
	Unauthorized Reason = "model_unauthorized"
	// NotFound: there is no such model, or nothing that speaks this protocol at the address.
	NotFound Reason = "model_not_found"
	// ContextTooLong: the conversation does not fit into the model's window.
	ContextTooLong Reason = "context_too_long"
	// CutStream: the stream ended before the answer did.
	CutStream Reason = "cut_stream"
	// EmptyAnswer: a whole stream with neither text nor tool call.
	EmptyAnswer Reason = "empty_answer"
	// AnswerTooLong: the answer broke one of the bounds in this package.
	AnswerTooLong Reason = "answer_too_long"
	// Cancelled: the caller's context was cancelled.
	Cancelled Reason = "cancelled"
	// Timeout: nothing arrived for too long, or the caller's deadline passed.
	Timeout Reason = "timeout"
)

// Reasons that the loop around the model gives; Sentence has words for them too.
const (
	// ToolLoop: the model kept calling tools without coming to an answer.
	ToolLoop Reason = "tool_loop"
	// Budget: the turn used up what one turn may use.
	Budget Reason = "budget"
	// AnswerCut: the endpoint ended the answer early, by its length limit or its content filter.
	AnswerCut Reason = "answer_cut"
	// Stopped: the person stopped it.
	Stopped Reason = "stopped"
	// Poison: the turn was given up after several workers failed on it.
	Poison Reason = "poison"
	// Internal: a defect of Butler.
	Internal Reason = "internal"
)

// Failure is the error of every model call. Its text is for logs: bounded, one line, without tokens.
type Failure struct {
	Reason     Reason
	Retryable  bool          // the same call may succeed later
	RetryAfter time.Duration // what the endpoint asked for; 0 when it did not, at most a minute
	Streamed   bool          // text of this call was already handed out
	Status     int           // HTTP status, 0 when there was none
	Err        error         // cause, never nil
}

// Error gives the reason and the cause.
func (f *Failure) Error() string {
	if f.Status != 0 {
		return fmt.Sprintf("%s (HTTP %d): %v", f.Reason, f.Status, f.Err)
	}
	return fmt.Sprintf("%s: %v", f.Reason, f.Err)
}

// Unwrap gives the cause.
func (f *Failure) Unwrap() error { return f.Err }

// ReasonOf gives the reason of err: a Failure's own, Internal for any other error, "" for nil.
func ReasonOf(err error) Reason {
	if err == nil {
		return ""
	}
	if f, ok := errors.AsType[*Failure](err); ok {
		return f.Reason
	}
	return Internal
}

const (
	firstWait      = 500 * time.Millisecond
	longestWait    = 8 * time.Second
	maxTries       = 4
	maxDearTries   = 3 // a try that used the model up to its end, or made the person wait for a timeout
	longestAskedOf = 30 * time.Second
)

// NextTry decides, after attempt tries (from 1) of which the last ended in f, whether one more may help and how long to
// wait before it. jitter is a random number in [0, 1): it spreads the tries of many turns. Waits grow from half a second
// and honour what the endpoint asked for; when it asks for more than 30 s, there is no other try.
func NextTry(attempt int, f *Failure, jitter float64) (wait time.Duration, again bool) {
	if f == nil || !f.Retryable || attempt < 1 || f.RetryAfter > longestAskedOf {
		return 0, false
	}
	tries := maxTries
	switch f.Reason {
	case CutStream, EmptyAnswer, Timeout:
		tries = maxDearTries
	case Cancelled, Rejected, Unauthorized, NotFound, ContextTooLong, AnswerTooLong:
		return 0, false
	}
	if attempt >= tries {
		return 0, false
	}
	jitter = min(max(jitter, 0), 1)
	wait = min(firstWait<<(attempt-1), longestWait)
	wait = time.Duration(float64(wait) * (0.5 + jitter/2))
	if f.RetryAfter > 0 {
		wait = max(wait, f.RetryAfter+time.Duration(float64(firstWait)*jitter))
	}
	return wait, true
}

// Retry calls try until it succeeds or NextTry gives up, and returns the last outcome. try gets the number of the try,
// from 1. wait blocks for a duration or until ctx ends (then its error ends the retries as Cancelled or Timeout);
// jitter gives numbers in [0, 1).
func Retry(ctx context.Context, wait func(context.Context, time.Duration) error, jitter func() float64,
	try func(ctx context.Context, attempt int) (*Result, error)) (*Result, error) {
	for attempt := 1; ; attempt++ {
		res, err := try(ctx, attempt)
		if err == nil {
			return res, nil
		}
		f, ok := errors.AsType[*Failure](err)
		if !ok {
			return nil, err
		}
		pause, again := NextTry(attempt, f, jitter())
		if !again {
			return nil, err
		}
		if err := wait(ctx, pause); err != nil {
			return nil, contextFailure(ctx, err, f.Streamed)
		}
	}
}
