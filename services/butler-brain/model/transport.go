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
	drainTime    = 100 * time.Millisecond
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
		defer body.Close()
		return nil, t.refusal(resp, body)
	case media == "text/html":
		defer body.Close()
		return nil, &statusError{status: http.StatusNotFound, message: "the address answers with a web page"}
	case !chat:
		resp.Body = body
		return resp, nil
	}
	x.update(func(s *exchangeState) { s.opened = true })
	lines := bufio.NewReaderSize(body, 16<<10)
	if media != "text/event-stream" {
		if beginsObject(lines) {
			// An endpoint that cannot stream: its whole answer becomes a stream of one event.
			defer body.Close()
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

// eventStream passes on the data lines of a server-sent event stream and keeps what Eino drops on the way: the end
// mark, the model's name, errors in mid-stream. Comments, which busy endpoints send by the hundred to keep a connection
// open, are left out.
type eventStream struct {
	src      *idleReader
	lines    *bufio.Reader
	exchange *exchange
	ready    []byte // filtered lines not yet passed on
	off      int
	line     []byte
	model    bool // the model's name is known
	finished bool
	done     bool
	err      error
}

func (s *eventStream) Read(p []byte) (int, error) {
	for s.off == len(s.ready) {
		if s.err != nil {
			return 0, s.err
		}
		s.ready, s.off = s.ready[:0], 0
		s.err = s.fill()
	}
	n := copy(p, s.ready[s.off:])
	s.off += n
	return n, nil
}

// fill takes one line, waiting for it, and those that have arrived with it.
func (s *eventStream) fill() error {
	for {
		line, err := s.readLine()
		if err != nil {
			if s.finished || s.done {
				return io.EOF // the answer is whole; how the connection ended does not matter
			}
			return err
		}
		if err := s.take(line); err != nil {
			return err
		}
		if s.done {
			return io.EOF
		}
		buffered, _ := s.lines.Peek(s.lines.Buffered())
		if bytes.IndexByte(buffered, '\n') < 0 {
			return nil
		}
	}
}

func (s *eventStream) readLine() ([]byte, error) {
	s.line = s.line[:0]
	for {
		part, err := s.lines.ReadSlice('\n')
		if len(s.line)+len(part) > maxLine {
			return nil, errTooLong
		}
		if err == nil && len(s.line) == 0 {
			return part, nil
		}
		s.line = append(s.line, part...)
		if err == nil {
			return s.line, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if errors.Is(err, io.EOF) && len(bytes.TrimSpace(s.line)) > 0 {
				return s.line, nil // a last line without its line feed
			}
			return nil, err
		}
	}
}

var (
	dataPrefix   = []byte("data:")
	doneMark     = []byte("[DONE]")
	errorKey     = []byte(`"error"`)
	finishKey    = []byte(`"finish_reason"`)
	openingBrace = []byte("{")
	errorFirst   = []byte(`{"error":`)
)

// withoutError takes a null error out of an event: where it stands first, the client underneath takes the event for a
// refusal.
func withoutError(data []byte) []byte {
	var doc map[string]json.RawMessage
	if json.Unmarshal(data, &doc) != nil {
		return data
	}
	delete(doc, "error")
	out, err := json.Marshal(doc)
	if err != nil {
		return data
	}
	return out
}

func (s *eventStream) take(line []byte) error {
	data, ok := bytes.CutPrefix(bytes.TrimSpace(line), dataPrefix)
	if !ok {
		if bytes.HasPrefix(data, openingBrace) && bytes.Contains(data, errorKey) {
			return s.fail(data) // a bare error object within the stream
		}
		return nil
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return nil
	}
	if bytes.Equal(data, doneMark) {
		s.done = true
		s.exchange.update(func(x *exchangeState) { x.done = true })
	} else if err := s.inspect(data); err != nil {
		return err
	} else if bytes.HasPrefix(data, errorFirst) {
		data = withoutError(data)
	}
	s.ready = append(s.ready, "data: "...)
	s.ready = append(s.ready, data...)
	s.ready = append(s.ready, '\n')
	return nil
}

// inspect looks into an event. Keys are searched as bytes: within a JSON string their quotes would be escaped.
func (s *eventStream) inspect(data []byte) error {
	if bytes.Contains(data, errorKey) {
		if err := s.fail(data); err != nil {
			return err
		}
	}
	if !s.model {
		var head struct{ Model string }
		if json.Unmarshal(data, &head) == nil {
			s.model = true
			s.exchange.update(func(x *exchangeState) { x.model = cutBytes(cleanText(head.Model), maxCallName) })
		}
	}
	if !s.finished {
		if at := bytes.Index(data, finishKey); at >= 0 {
			value := bytes.TrimLeft(data[at+len(finishKey):], " \t:")
			if len(value) > 1 && value[0] == '"' && value[1] != '"' {
				s.finished = true
				s.exchange.update(func(x *exchangeState) { x.finished = true })
			}
		}
	}
	return nil
}

func (s *eventStream) fail(data []byte) error {
	var head struct {
		Error  json.RawMessage
		Object string
	}
	if json.Unmarshal(data, &head) != nil {
		return nil
	}
	if (len(head.Error) == 0 || string(head.Error) == "null") && head.Object != "error" {
		return nil
	}
	e := parseErrorBody(data)
	e.status = e.guessStatus()
	s.exchange.update(func(x *exchangeState) { x.failed = e })
	return e
}

func (s *eventStream) Close() error {
	if s.done || s.finished {
		s.src.drain()
	}
	return s.src.Close()
}
