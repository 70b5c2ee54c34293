package model

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"sync"
	"time"
)

// Bounds of one response.
const (
	maxStream    = 8 << 20  // bytes
	maxLine      = 1 << 20  // bytes of one event
	maxErrorBody = 64 << 10 // bytes
	drainLimit   = 64 << 10 // bytes read after the end of an answer so that the connection can be used again
	drainTime    = 250 * time.Millisecond
	turnsAtOnce  = 256 // connections kept to the endpoint
)

var errIdle = errors.New("nothing arrived from the endpoint for too long")

// newHTTPClient makes the client for the endpoint. It has no total timeout, since an answer may take minutes; each wait
// in it has one. Redirects are not followed: the token is for one address.
func newHTTPClient(cfg Config) *http.Client {
	dialer := &net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 30 * time.Second}
	base := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		TLSHandshakeTimeout:   cfg.DialTimeout,
		ResponseHeaderTimeout: cfg.HeaderTimeout,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConns:          2 * turnsAtOnce,
		MaxIdleConnsPerHost:   turnsAtOnce,
		DisableCompression:    true, // a compressed stream arrives in lumps
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	return &http.Client{
		Transport:     &transport{base: base, cfg: cfg},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// exchangeKey is the context key of a chat completion's exchange, probeKey that of any other request's.
type (
	exchangeKey struct{}
	probeKey    struct{}
)

// exchange is what the transport learns about one call and Eino does not pass on. The goroutine that reads the stream
// writes it; state reads it.
type exchange struct {
	ctx    context.Context // the call's own
	cancel context.CancelCauseFunc

	mu sync.Mutex
	exchangeState
}

type exchangeState struct {
	opened   bool         // a successful response began
	done     bool         // the stream said that it is over: [DONE]
	finished bool         // a finish_reason was seen
	model    string       // as the endpoint named it
	failed   *statusError // an error that came within the stream
}

func (x *exchange) state() exchangeState {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.exchangeState
}

func (x *exchange) update(change func(*exchangeState)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	change(&x.exchangeState)
}

// transport turns refusals into typed errors, with what Eino's client drops (Retry-After, the status), and passes on
// only well-formed, bounded streams.
type transport struct {
	base http.RoundTripper
	cfg  Config
}

func (t *transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	x, chat := req.Context().Value(exchangeKey{}).(*exchange)
	if !chat {
		x, _ = req.Context().Value(probeKey{}).(*exchange)
	}
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	body := &idleReader{body: resp.Body, exchange: x, idle: t.cfg.IdleTimeout, left: maxStream}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		defer func() { _ = body.Close() }()
		return nil, t.refusal(resp, body)
	case media == "text/html":
		defer func() { _ = body.Close() }()
		return nil, &statusError{status: http.StatusNotFound, message: "the address answers with a web page"}
	case !chat:
		resp.Body = body
		return resp, nil
	}
	x.update(func(s *exchangeState) { s.opened = true })
	lines := bufio.NewReaderSize(body, 8<<10)
	if media != "text/event-stream" {
		if beginsObject(lines) {
			// An endpoint that cannot stream: its whole answer becomes a stream of one event.
			defer func() { _ = body.Close() }()
			whole, err := io.ReadAll(lines)
			if err != nil {
				return nil, err
			}
			event, err := asEvent(whole)
			if err != nil {
				return nil, err
			}
			body = &idleReader{
				body: io.NopCloser(bytes.NewReader(event)), exchange: x, idle: t.cfg.IdleTimeout, left: maxStream,
			}
			lines.Reset(body)
		}
	}
	resp.Body = &eventStream{src: body, lines: lines, exchange: x}
	return resp, nil
}

func (t *transport) refusal(resp *http.Response, body io.Reader) *statusError {
	text, err := io.ReadAll(io.LimitReader(body, maxErrorBody))
	e := parseErrorBody(text)
	if err != nil && e.message == "" {
		e.message = "its explanation did not arrive"
	}
	if resp.StatusCode < 400 {
		e.message = fmt.Sprintf("the address redirects elsewhere (%d)", resp.StatusCode)
		resp.StatusCode = http.StatusNotFound
	}
	e.status = resp.StatusCode
	e.retryAfter = parseRetryAfter(resp.Header, t.cfg.Now())
	return e
}

// beginsObject says whether the first byte that is not white space opens a JSON object; it waits for that byte.
func beginsObject(r *bufio.Reader) bool {
	for {
		first, err := r.Peek(1)
		if err != nil {
			return false
		}
		if first[0] != ' ' && first[0] != '\n' && first[0] != '\r' && first[0] != '\t' {
			return first[0] == '{'
		}
		_, _ = r.Discard(1)
	}
}

// asEvent makes the events of a stream from a whole chat completion.
func asEvent(whole []byte) ([]byte, error) {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(whole, &doc); err != nil {
		return nil, fmt.Errorf("the endpoint's answer is not JSON: %w", err)
	}
	if e, ok := doc["error"]; ok && string(e) != "null" {
		e := parseErrorBody(whole)
		e.status = e.guessStatus()
		return nil, e
	}
	var choices []map[string]json.RawMessage
	if err := json.Unmarshal(doc["choices"], &choices); err != nil || len(choices) == 0 {
		return nil, errors.New("the endpoint's answer is not a chat completion")
	}
	for _, c := range choices {
		c["delta"] = c["message"]
		delete(c, "message")
	}
	doc["choices"], _ = json.Marshal(choices)
	event, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("the endpoint's answer is not a chat completion: %w", err)
	}
	return fmt.Appendf(nil, "data: %s\n\ndata: [DONE]\n\n", event), nil
}

// idleReader reads a body within its bounds of size and silence. Not safe for concurrent use.
type idleReader struct {
	body     io.ReadCloser
	exchange *exchange
	idle     time.Duration
	timer    *time.Timer
	left     int
	ended    bool
}

func (r *idleReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, errTooLong
	}
	if r.timer == nil {
		r.timer = time.AfterFunc(r.idle, func() { r.exchange.cancel(errIdle) })
	} else {
		r.timer.Reset(r.idle)
	}
	n, err := r.body.Read(p[:min(len(p), r.left)])
	r.timer.Stop()
	r.left -= n
	r.ended = r.ended || err != nil
	return n, err
}

func (r *idleReader) Close() error {
	if r.timer != nil {
		r.timer.Stop()
	}
	return r.body.Close()
}

// drain reads what is left after an answer's end, usually nothing but the end itself: without it the connection could
// not be used again.
func (r *idleReader) drain() {
	if r.ended {
		return
	}
	stop := time.AfterFunc(drainTime, func() { r.exchange.cancel(errIdle) })
	defer stop.Stop()
	_, _ = io.Copy(io.Discard, io.LimitReader(r.body, drainLimit))
}
