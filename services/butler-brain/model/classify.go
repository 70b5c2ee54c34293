package model

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	maxRetryAfter   = time.Minute
	maxErrorMessage = 512 // bytes kept of an endpoint's explanation
)

// statusError is a refusal by the endpoint: an HTTP status of 300 or more, or an error object within a stream.
type statusError struct {
	status     int
	code, kind string // the body's "code" and "type", lower case
	message    string // bounded, one line
	retryAfter time.Duration
}

func (e *statusError) Error() string {
	if e.message == "" {
		return "the endpoint gave no explanation"
	}
	return "the endpoint says: " + e.message
}

// classify makes the Failure of an error that ended a call. parent is the caller's context, not the call's own.
func (c *Client) classify(parent context.Context, x *exchange, err error, streamed bool) *Failure {
	state := x.state()
	f := &Failure{Streamed: streamed, Err: errors.New(c.redact(oneLine(err.Error())))}
	status, refused := errors.AsType[*statusError](err)
	if !refused && state.failed != nil {
		status, refused = state.failed, true
	}
	switch {
	case parent.Err() != nil:
		return contextFailure(parent, parent.Err(), streamed)
	case errors.Is(err, errTooLong):
		f.Reason = AnswerTooLong
	case errors.Is(err, errEmpty):
		f.Reason, f.Retryable = EmptyAnswer, true
	case errors.Is(err, errFilter):
		f.Reason = Rejected
	case errors.Is(err, errCut):
		f.Reason, f.Retryable = CutStream, true
	case refused:
		f.Reason, f.Retryable = status.reason()
		f.Status, f.RetryAfter = status.status, status.retryAfter
		f.Err = errors.New(c.redact(status.Error()))
	case errors.Is(err, errIdle), x.idled(err):
		f.Reason, f.Retryable, f.Err = Timeout, true, errIdle
	case isTimeout(err):
		f.Reason, f.Retryable = Timeout, true
	case state.opened:
		f.Reason, f.Retryable = CutStream, true
	default:
		f.Reason, f.Retryable = Unavailable, true
	}
	return f
}

// idled says whether err is the consequence of the idle timer.
func (x *exchange) idled(err error) bool {
	return errors.Is(err, context.Canceled) && x.ctx != nil && errors.Is(context.Cause(x.ctx), errIdle)
}

func contextFailure(ctx context.Context, err error, streamed bool) *Failure {
	f := &Failure{Reason: Cancelled, Streamed: streamed, Err: err}
	if errors.Is(err, context.DeadlineExceeded) {
		f.Reason = Timeout
	}
	if cause := context.Cause(ctx); cause != nil {
		f.Err = cause // the caller's own error, so that errors.Is finds it
	}
	return f
}

func isTimeout(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return false // nobody there, however that shows
	}
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}

// tooLongCodes and tooLongPhrases are how endpoints say that a prompt does not fit: OpenAI, Azure, Anthropic, vLLM,
// llama.cpp, Ollama, DeepSeek, Mistral, Groq, Gemini, Qwen, Moonshot, Zhipu, Doubao.
var (
	tooLongCodes = []string{
		"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded", "request_too_large",
		"string_above_max_length", "1261",
	}
	tooLongPhrases = []string{
		"maximum context length", "context length", "context window", "context size", "context limit",
		"context_length", "prompt is too long", "prompt too long", "input is too long", "input too long",
		"too many tokens", "reduce the length", "range of input length", "maximum number of tokens allowed",
		"model token limit", "max message tokens", "max_model_len", "maximum input length", "input length",
		"too large for model", "超长", "上下文长度", "输入过长",
	}
	quotaWords = []string{
		"insufficient_quota", "insufficient balance", "credit balance", "billing", "quota exceeded", "exceeded your current quota",
		"payment required", "余额不足", "欠费",
	}
	missingWords = []string{"model_not_found", "does not exist", "model not found", "not found, try pulling", "unknown model", "no such model"}
)

// reason says what a refusal means, and whether the same request can succeed later.
func (e *statusError) reason() (Reason, bool) {
	said := e.code + " " + e.kind + " " + strings.ToLower(e.message)
	switch s := e.status; {
	case s == http.StatusTooManyRequests, s == http.StatusPaymentRequired:
		return RateLimited, s == http.StatusTooManyRequests && !containsAny(said, quotaWords)
	case s == http.StatusUnauthorized, s == http.StatusForbidden, s == http.StatusProxyAuthRequired:
		return Unauthorized, false
	case s == http.StatusRequestEntityTooLarge:
		return ContextTooLong, false
	case s >= 400 && containsAny(said, tooLongCodes), (s == 400 || s == 422 || s == 500) && containsAny(said, tooLongPhrases):
		return ContextTooLong, false
	case s == http.StatusNotFound, s == http.StatusMethodNotAllowed, s == http.StatusGone:
		return NotFound, false
	case s == http.StatusRequestTimeout, s == http.StatusConflict, s == http.StatusTooEarly:
		return Unavailable, true
	case s == http.StatusNotImplemented, s == http.StatusHTTPVersionNotSupported:
		return Rejected, false
	case s >= 500:
		return Unavailable, true
	case containsAny(said, quotaWords):
		return RateLimited, false
	case containsAny(said, missingWords):
		return NotFound, false
	default:
		return Rejected, false
	}
}

// guessStatus gives the HTTP status that an error within a stream stands for.
func (e *statusError) guessStatus() int {
	if n, err := strconv.Atoi(e.code); err == nil && n >= 400 && n <= 599 {
		return n
	}
	said := e.code + " " + e.kind + " " + strings.ToLower(e.message)
	switch {
	case containsAny(said, []string{"rate_limit", "rate limit", "insufficient_quota", "too many requests"}):
		return http.StatusTooManyRequests
	case containsAny(said, []string{"authentication", "invalid_api_key", "permission"}):
		return http.StatusUnauthorized
	case containsAny(said, tooLongCodes), containsAny(said, tooLongPhrases), strings.Contains(said, "invalid_request"):
		return http.StatusBadRequest
	default:
		return http.StatusBadGateway
	}
}

func containsAny(s string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// parseErrorBody reads what an endpoint says about a refusal, in any of the shapes in use: OpenAI's error object or
// string, vLLM's flat object, FastAPI's detail, Gemini's array, plain text. It never fails; what it cannot read is
// empty. body must be bounded.
func parseErrorBody(body []byte) *statusError {
	e := &statusError{}
	body = bytes.TrimSpace(body)
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	var doc map[string]json.RawMessage
	if json.Unmarshal(body, &doc) != nil {
		if len(body) > 0 && body[0] != '<' && body[0] != '{' && body[0] != '[' {
			e.message = oneLine(string(body))
		}
		return e
	}
	if inner, ok := doc["error"]; ok && string(inner) != "null" {
		var object map[string]json.RawMessage
		if json.Unmarshal(inner, &object) == nil {
			doc = object
		} else {
			e.message = oneLine(scalar(inner))
		}
	}
	e.code = strings.ToLower(oneLine(scalar(doc["code"])))
	e.kind = strings.ToLower(oneLine(scalar(doc["type"])))
	for _, key := range []string{"message", "detail", "msg", "error_msg"} {
		if e.message != "" {
			break
		}
		e.message = oneLine(scalar(doc[key]))
	}
	return e
}

// scalar gives a JSON string's text, a number as written, and for lists and objects the first text in them that is
// called msg or message, or is a string itself.
func scalar(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var n json.Number
	if json.Unmarshal(raw, &n) == nil {
		return n.String()
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 {
		if json.Unmarshal(list[0], &s) == nil {
			return s
		}
		raw = list[0]
	}
	var object struct{ Msg, Message string }
	if json.Unmarshal(raw, &object) == nil {
		return object.Msg + object.Message
	}
	return ""
}

// parseRetryAfter gives how long the endpoint asks to wait, from Retry-After in seconds or as an HTTP date, or OpenAI's
// retry-after-ms. It is 0 when nothing usable is said, and at most a minute.
func parseRetryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(strings.TrimSpace(h.Get("Retry-After-Ms")), 64); err == nil {
		return boundWait(ms / 1000)
	}
	value := strings.TrimSpace(h.Get("Retry-After"))
	if seconds, err := strconv.ParseFloat(value, 64); err == nil {
		return boundWait(seconds)
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

func boundWait(seconds float64) time.Duration {
	if math.IsNaN(seconds) || seconds <= 0 {
		return 0
	}
	if seconds >= maxRetryAfter.Seconds() {
		return maxRetryAfter
	}
	return time.Duration(seconds * float64(time.Second))
}

// keyLike finds what looks like an API key, which some endpoints repeat in their refusals.
var keyLike = regexp.MustCompile(`(?i)\b(?:(?:sk|pk|key|api|gsk|xai)[-_]|bearer )[a-z0-9*._-]{8,}`)

// redact takes the client's token, and whatever looks like one, out of a text for logs.
func (c *Client) redact(s string) string {
	if token := c.cfg.APIToken; token != "" {
		s = strings.ReplaceAll(s, token, "[redacted]")
	}
	return keyLike.ReplaceAllString(s, "[redacted]")
}

// oneLine makes text fit for one line of a log: no control characters, bounded.
func oneLine(s string) string {
	s = cutBytes(s, 4*maxErrorMessage)
	s = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		if unicode.IsControl(r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, s)
	return cutBytes(strings.Join(strings.Fields(s), " "), maxErrorMessage)
}

// cutBytes cuts s to at most n bytes at the border of a character.
func cutBytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Check asks the endpoint for its models: it tells whether the address and the token work, without spending tokens. The
// demo model is always fine. The error is a *Failure.
func (c *Client) Check(ctx context.Context) error {
	if c.Demo() {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x := &exchange{cancel: cancel, ctx: ctx}
	req, err := http.NewRequestWithContext(context.WithValue(ctx, probeKey{}, x), http.MethodGet, c.cfg.BaseURL+"/models", nil)
	if err != nil {
		return c.classify(ctx, x, fmt.Errorf("request: %w", err), false)
	}
	if c.cfg.APIToken != "" {
		req.Header.Set("Authorization", "Bearer "+c.cfg.APIToken)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.classify(ctx, x, err, false)
	}
	return resp.Body.Close()
}
