// Package modeltest is a scripted OpenAI-compatible model endpoint: a real HTTP server on 127.0.0.1 that answers
// /v1/chat/completions, streamed and not, and /v1/models. Tests say request by request what it does, also everything
// that goes wrong with real endpoints; benchmarks use its instant echo.
//
//	s := modeltest.Start(t)                                    // echoes: "answer to: <text>"
//	s.On("weather", modeltest.Tool("get_weather", `{}`))       // by the last user message
//	s.Next(modeltest.Status(429, "Retry-After: 1", ""))        // by order, before any rule
//	s.Func(func(r *modeltest.Request) modeltest.Reply { … })   // by anything
package modeltest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxRequest  = 32 << 20 // bytes
	maxRecorded = 1000     // requests kept for inspection, the newest
)

// TB is what Start needs of a *testing.T or *testing.B.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// Request is one call of the endpoint.
type Request struct {
	N           int // from 1, in order of arrival
	Model       string
	Stream      bool
	Messages    []Message
	Tools       []string // names
	Temperature *float64
	MaxTokens   int
	Header      http.Header
	Body        []byte
}

// Message is one message of a request.
type Message struct {
	Role       string
	Text       string // content, its text parts joined when it came in parts
	ToolCallID string
	ToolCalls  []ToolCall
}

// ToolCall is a call in an assistant's message of a request.
type ToolCall struct {
	ID, Name, Arguments string
}

// LastUser gives the text of the last user message, "" when there is none.
func (r *Request) LastUser() string {
	for i := len(r.Messages) - 1; i >= 0; i-- {
		if r.Messages[i].Role == "user" {
			return r.Messages[i].Text
		}
	}
	return ""
}

// Last gives the last message; the zero Message when there is none.
func (r *Request) Last() Message {
	if len(r.Messages) == 0 {
		return Message{}
	}
	return r.Messages[len(r.Messages)-1]
}

// Server is a running endpoint. All methods are safe for concurrent use.
type Server struct {
	addr     string
	http     *http.Server
	done     chan struct{} // closed by Close: lets everything that hangs go
	closing  sync.Once
	requests atomic.Int64
	active   atomic.Int64
	aborted  atomic.Int64

	mu       sync.Mutex
	next     []Reply
	rules    []rule
	fn       func(*Request) Reply
	fallback Reply
	record   bool
	recorded []*Request
	changed  chan struct{} // closed and replaced when a request has been recorded
}

type rule struct {
	contains string
	reply    Reply
}

// Start runs an endpoint until the test ends. It echoes in 3 chunks until told otherwise.
func Start(tb TB) *Server {
	tb.Helper()
	s, err := Listen("127.0.0.1:0")
	if err != nil {
		tb.Fatalf("model endpoint: %v", err)
	}
	tb.Cleanup(s.Close)
	return s
}

// Listen runs an endpoint at an address until Close.
func Listen(addr string) (*Server, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	s := &Server{
		addr: ln.Addr().String(), done: make(chan struct{}), changed: make(chan struct{}),
		fallback: Reply{Echo(3)}, record: true,
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.chat)
	mux.HandleFunc("GET /v1/models", s.models)
	s.http = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := s.http.Serve(ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
			panic(fmt.Sprintf("modeltest: %v", err))
		}
	}()
	return s, nil
}

// URL gives the base URL for clients: http://127.0.0.1:<port>/v1.
func (s *Server) URL() string { return "http://" + s.addr + "/v1" }

// Addr gives the address that the server listens on.
func (s *Server) Addr() string { return s.addr }

// Close ends the server and cuts every request. It may be called twice.
func (s *Server) Close() {
	s.closing.Do(func() {
		close(s.done)
		_ = s.http.Close()
	})
}

// Default sets the answer to requests for which nothing else is said.
func (s *Server) Default(steps ...Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fallback = steps
}

// Next adds an answer for one coming request; answers are used up in the order in which they were added.
func (s *Server) Next(steps ...Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = append(s.next, steps)
}

// On sets the answer to every request whose last message is a user's that contains a text. The newest rule that fits
// counts.
func (s *Server) On(contains string, steps ...Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = append(s.rules, rule{contains, steps})
}

// Func asks fn for every answer; where it returns nil, the rules go on. fn is called concurrently.
func (s *Server) Func(fn func(*Request) Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fn = fn
}

// Record says whether requests are kept for inspection. They are by default.
func (s *Server) Record(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record = on
}

// Count gives the number of chat completions asked for so far.
func (s *Server) Count() int { return int(s.requests.Load()) }

// Active gives the number of requests that are being answered now.
func (s *Server) Active() int { return int(s.active.Load()) }

// Aborted gives the number of requests whose client went away before the end.
func (s *Server) Aborted() int { return int(s.aborted.Load()) }

// Requests gives the recorded requests, oldest first: the last 1,000.
func (s *Server) Requests() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Request(nil), s.recorded...)
}

// Wait blocks until n chat completions have been asked for, and gives those recorded.
func (s *Server) Wait(ctx context.Context, n int) ([]*Request, error) {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if s.Count() >= n {
			return s.Requests(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return s.Requests(), fmt.Errorf("%d of %d requests: %w", s.Count(), n, ctx.Err())
		}
	}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"test-model","object":"model","created":1,"owned_by":"test"}]}`)
}

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	s.active.Add(1)
	defer s.active.Add(-1)
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		http.Error(w, `{"error":{"message":"request too large"}}`, http.StatusRequestEntityTooLarge)
		return
	}
	req, err := parseRequest(body)
	if err != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, `{"error":{"message":%q,"type":"invalid_request_error"}}`, err.Error())
		return
	}
	req.Header = r.Header
	reply := s.pick(req)
	out := newWriter(w, r, req, s.done)
	defer out.release()
	ended := false
	for _, step := range reply {
		if ended = step(out); ended {
			break
		}
	}
	if !ended {
		out.finish("")
	}
	if r.Context().Err() != nil {
		s.aborted.Add(1)
	}
}

func (s *Server) pick(req *Request) Reply {
	s.mu.Lock()
	req.N = int(s.requests.Add(1))
	if s.record {
		if len(s.recorded) == maxRecorded {
			s.recorded = append(s.recorded[:0:0], s.recorded[1:]...)
		}
		s.recorded = append(s.recorded, req)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	fn, reply := s.fn, s.fallback
	switch {
	case len(s.next) > 0:
		reply, fn, s.next = s.next[0], nil, s.next[1:]
	case len(req.Messages) > 0 && req.Last().Role == "user":
		for i := len(s.rules) - 1; i >= 0; i-- {
			if strings.Contains(req.LastUser(), s.rules[i].contains) {
				reply = s.rules[i].reply
				break
			}
		}
	}
	s.mu.Unlock()
	if fn != nil {
		if own := fn(req); own != nil {
			return own
		}
	}
	return reply
}

func parseRequest(body []byte) (*Request, error) {
	var doc struct {
		Model     string
		Stream    bool
		MaxTokens int      `json:"max_tokens"`
		Temp      *float64 `json:"temperature"`
		Messages  []struct {
			Role       string
			Content    json.RawMessage
			ToolCallID string `json:"tool_call_id"`
			ToolCalls  []struct {
				ID       string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		Tools []struct{ Function struct{ Name string } }
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("not a chat completion request: %w", err)
	}
	if len(doc.Messages) == 0 {
		return nil, errors.New("messages is empty")
	}
	req := &Request{
		Model: doc.Model, Stream: doc.Stream, Temperature: doc.Temp, MaxTokens: doc.MaxTokens, Body: body,
		Messages: make([]Message, 0, len(doc.Messages)),
	}
	for _, m := range doc.Messages {
		msg := Message{Role: m.Role, ToolCallID: m.ToolCallID}
		if len(m.Content) > 0 && m.Content[0] == '[' {
			var parts []struct{ Text string }
			_ = json.Unmarshal(m.Content, &parts)
			for _, p := range parts {
				msg.Text += p.Text
			}
		} else if len(m.Content) > 0 {
			_ = json.Unmarshal(m.Content, &msg.Text)
		}
		for _, c := range m.ToolCalls {
			msg.ToolCalls = append(msg.ToolCalls, ToolCall{c.ID, c.Function.Name, c.Function.Arguments})
		}
		req.Messages = append(req.Messages, msg)
	}
	for _, t := range doc.Tools {
		req.Tools = append(req.Tools, t.Function.Name)
	}
	return req, nil
}
