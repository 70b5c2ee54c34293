package model_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudwego/eino/schema"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

func TestStreamsAWholeAnswer(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.Default(modeltest.Echo(5), modeltest.Usage(11, 7))
	c := client(t, s.URL())
	var pieces []string
	temperature := float32(0.5)
	res, err := c.Stream(deadline(t), ask("héllo 你好"), []*schema.ToolInfo{listAgents},
		model.CallOptions{Temperature: &temperature, MaxTokens: 99}, collect(&pieces))
	require.NoError(t, err)
	require.Equal(t, modeltest.EchoText("héllo 你好"), res.Message.Content)
	require.Equal(t, schema.Assistant, res.Message.Role)
	require.NotEmpty(t, pieces)
	require.Equal(t, res.Message.Content, strings.Join(pieces, ""))
	require.Equal(t, model.Usage{PromptTokens: 11, CompletionTokens: 7}, res.Usage)
	require.Equal(t, "stop", res.FinishReason)
	require.Equal(t, "test-model", res.Model)
	require.False(t, res.Truncated())

	req := s.Requests()[0]
	require.True(t, req.Stream)
	require.Equal(t, "Bearer "+token, req.Header.Get("Authorization"))
	require.Equal(t, []string{"list_agents"}, req.Tools)
	require.Equal(t, 99, req.MaxTokens)
	require.InDelta(t, 0.5, *req.Temperature, 1e-6)
	require.Equal(t, "You are a test.", req.Messages[0].Text)
}

// The pieces are handed out while the endpoint is still writing.
func TestTextComesWhileTheModelWrites(t *testing.T) {
	t.Parallel()
	s := start(t)
	gate := modeltest.NewGate()
	s.Default(modeltest.Text("one "), modeltest.At(gate), modeltest.Text("two"))
	var got []string
	res, err := client(t, s.URL()).Stream(deadline(t), ask("x"), nil, model.CallOptions{}, func(p string) {
		got = append(got, p)
		gate.Open() // the second piece is only sent once the first has arrived
	})
	require.NoError(t, err)
	require.Equal(t, []string{"one ", "two"}, got)
	require.Equal(t, "one two", res.Message.Content)
}

// Every kind of failure, against a real server: the reason, whether a retry can help, and whether text was out.
func TestFailures(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 64<<10)
	var manyCalls []modeltest.Call
	for i := range 33 {
		manyCalls = append(manyCalls, modeltest.Call{ID: fmt.Sprint(i), Name: "f", Arguments: `{}`, Index: i})
	}
	type steps = []modeltest.Step
	for name, tc := range map[string]struct {
		steps     steps
		reason    model.Reason
		retry     bool
		streamed  bool
		status    int
		after     time.Duration
		mentioned string
	}{
		"500":       {steps: steps{modeltest.Refuse(500, "", "boom")}, reason: model.Unavailable, retry: true, status: 500, mentioned: "boom"},
		"502 html":  {steps: steps{modeltest.Status(502, "Content-Type: text/html", "<html>bad gateway</html>")}, reason: model.Unavailable, retry: true, status: 502},
		"503 after": {steps: steps{modeltest.Status(503, "Retry-After: 7", "")}, reason: model.Unavailable, retry: true, status: 503, after: 7 * time.Second},
		"429":       {steps: steps{modeltest.Status(429, "Retry-After: 2", `{"error":{"message":"slow down"}}`)}, reason: model.RateLimited, retry: true, status: 429, after: 2 * time.Second, mentioned: "slow down"},
		"429 capped": {steps: steps{modeltest.Status(429, "Retry-After: 86400", "")}, reason: model.RateLimited, retry: true,
			status: 429, after: time.Minute},
		"429 quota": {steps: steps{modeltest.Refuse(429, "insufficient_quota", "You exceeded your current quota")}, reason: model.RateLimited, status: 429},
		"402":       {steps: steps{modeltest.Refuse(402, "", "Insufficient Balance")}, reason: model.RateLimited, status: 402},
		"400":       {steps: steps{modeltest.Refuse(400, "invalid", "bad request")}, reason: model.Rejected, status: 400, mentioned: "bad request"},
		"422":       {steps: steps{modeltest.Status(422, "", `{"detail":[{"msg":"field required"}]}`)}, reason: model.Rejected, status: 422, mentioned: "field required"},
		"401":       {steps: steps{modeltest.Refuse(401, "invalid_api_key", "Incorrect API key provided: "+token)}, reason: model.Unauthorized, status: 401, mentioned: "Incorrect API key provided"},
		"403":       {steps: steps{modeltest.Refuse(403, "", "no")}, reason: model.Unauthorized, status: 403},
		"404":       {steps: steps{modeltest.Status(404, "", `{"error":"model \"x\" not found, try pulling it first"}`)}, reason: model.NotFound, status: 404, mentioned: "try pulling"},
		"redirect":  {steps: steps{modeltest.Status(302, "Location: http://127.0.0.1:1/", "")}, reason: model.NotFound, status: 404},
		"web page":  {steps: steps{modeltest.Body("text/html; charset=utf-8", "<html>welcome</html>")}, reason: model.NotFound, status: 404},
		"413":       {steps: steps{modeltest.Status(413, "", "")}, reason: model.ContextTooLong, status: 413},
		"long code": {steps: steps{modeltest.Refuse(400, "context_length_exceeded", "too long")}, reason: model.ContextTooLong, status: 400},
		"huge error": {steps: steps{modeltest.Status(500, "Content-Type: text/plain", strings.Repeat("wrong ", 100<<10))}, reason: model.Unavailable, retry: true,
			status: 500},
		"nothing but hang-up":    {steps: steps{modeltest.Cut()}, reason: model.CutStream, retry: true},
		"cut in mid-answer":      {steps: steps{modeltest.Text("half an "), modeltest.Cut()}, reason: model.CutStream, retry: true, streamed: true},
		"ends without a finish":  {steps: steps{modeltest.Text("half an "), modeltest.End()}, reason: model.CutStream, retry: true, streamed: true},
		"tool call cut":          {steps: steps{modeltest.Tool("f", `{"a":1`), modeltest.End()}, reason: model.CutStream, retry: true},
		"garbage":                {steps: steps{modeltest.Text("a"), modeltest.Garbage()}, reason: model.CutStream, retry: true, streamed: true},
		"not a completion":       {steps: steps{modeltest.Body("application/json", `{"hello":1}`)}, reason: model.CutStream, retry: true},
		"error finish":           {steps: steps{modeltest.Text("a"), modeltest.Finish("error")}, reason: model.CutStream, retry: true, streamed: true},
		"empty":                  {steps: steps{modeltest.Empty()}, reason: model.EmptyAnswer, retry: true},
		"white space":            {steps: steps{modeltest.Text(" \n")}, reason: model.EmptyAnswer, retry: true, streamed: true},
		"reasoning only":         {steps: steps{modeltest.Reasoning("hmm")}, reason: model.EmptyAnswer, retry: true},
		"thinking only":          {steps: steps{modeltest.Text("<think>", "hmm", "</think>")}, reason: model.EmptyAnswer, retry: true},
		"empty by [DONE]":        {steps: steps{modeltest.DoneOnly()}, reason: model.EmptyAnswer, retry: true},
		"filtered":               {steps: steps{modeltest.Finish("content_filter")}, reason: model.Rejected},
		"too much text":          {steps: steps{modeltest.Text(long, long, long, long, long, long, long, long, "!")}, reason: model.AnswerTooLong, streamed: true},
		"too many tool calls":    {steps: steps{modeltest.Calls(manyCalls...)}, reason: model.AnswerTooLong},
		"too long arguments":     {steps: steps{modeltest.Tool("f", long+"!")}, reason: model.AnswerTooLong},
		"too long a line":        {steps: steps{modeltest.Raw("data: " + strings.Repeat("x", 2<<20))}, reason: model.AnswerTooLong},
		"too long a stream":      {steps: steps{modeltest.Comments(700_000)}, reason: model.AnswerTooLong},
		"error within":           {steps: steps{modeltest.Text("a"), modeltest.Raw(`data: {"error":{"message":"The server had an error","type":"server_error"}}` + "\n\n")}, reason: model.Unavailable, retry: true, streamed: true, status: 502, mentioned: "had an error"},
		"spaced error within":    {steps: steps{modeltest.Comments(3), modeltest.Raw("event: error\ndata: { \"type\": \"error\", \"error\": {\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n")}, reason: model.Unavailable, retry: true, status: 502, mentioned: "Overloaded"},
		"rate limit within":      {steps: steps{modeltest.Raw(`data: {"error":{"message":"x","code":429}}` + "\n\n")}, reason: model.RateLimited, retry: true, status: 429},
		"too long within (vLLM)": {steps: steps{modeltest.Raw(`data: {"object":"error","message":"This model's maximum context length is 10 tokens","code":400}` + "\n\n")}, reason: model.ContextTooLong, status: 400},
		"bare error within":      {steps: steps{modeltest.Raw(`{"error":{"message":"x","type":"rate_limit_exceeded"}}` + "\n")}, reason: model.RateLimited, retry: true, status: 429},
		"error as JSON with 200": {steps: steps{modeltest.Body("application/json", `{"error":{"message":"x","code":"503"}}`)}, reason: model.Unavailable, retry: true, status: 503},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.Default(tc.steps...)
			var pieces []string
			res, err := client(t, s.URL()).Stream(deadline(t), ask("x"), nil, model.CallOptions{}, collect(&pieces))
			require.Nil(t, res)
			var f *model.Failure
			require.ErrorAs(t, err, &f)
			require.Equal(t, tc.reason, f.Reason, err)
			require.Equal(t, tc.reason, model.ReasonOf(err))
			require.Equal(t, tc.retry, f.Retryable, err)
			require.Equal(t, tc.streamed, f.Streamed, err)
			require.Equal(t, tc.streamed, len(pieces) > 0)
			require.Equal(t, tc.status, f.Status, err)
			require.Equal(t, tc.after, f.RetryAfter)
			require.Contains(t, err.Error(), tc.mentioned)
			require.NotContains(t, err.Error(), token)
			require.Less(t, len(err.Error()), 1024)
			require.Equal(t, 1, s.Count(), "one request")
		})
	}
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		steps    []modeltest.Step
		streamed bool
	}{
		"no header":     {steps: []modeltest.Step{modeltest.HangSilently()}},
		"no first text": {steps: []modeltest.Step{modeltest.Hang()}},
		"silence":       {steps: []modeltest.Step{modeltest.Text("a"), modeltest.Hang()}, streamed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.Default(tc.steps...)
			c := client(t, s.URL(), func(cfg *model.Config) {
				cfg.IdleTimeout, cfg.HeaderTimeout = 500*time.Millisecond, 500*time.Millisecond
			})
			_, err := c.Stream(deadline(t), ask("x"), nil, model.CallOptions{}, nil)
			var f *model.Failure
			require.ErrorAs(t, err, &f)
			require.Equal(t, model.Timeout, f.Reason, err)
			require.True(t, f.Retryable)
			require.Equal(t, tc.streamed, f.Streamed)
		})
	}
}

// A slow model is not a silent one: the whole takes longer than the limit, no silence in it does.
func TestIdleTimeoutIsNotATotal(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.Default(modeltest.EchoSlow(10, 150*time.Millisecond))
	c := client(t, s.URL(), func(cfg *model.Config) { cfg.IdleTimeout = time.Second })
	_, err := c.Stream(deadline(t), ask("0123456789"), nil, model.CallOptions{}, nil)
	require.NoError(t, err)
}

func TestNobodyThere(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := ln.Addr().String()
	require.NoError(t, ln.Close())
	c := client(t, "http://"+addr+"/v1")
	_, err = c.Stream(deadline(t), ask("x"), nil, model.CallOptions{}, nil)
	require.Equal(t, model.Unavailable, model.ReasonOf(err), err)
	require.Equal(t, model.Unavailable, model.ReasonOf(c.Check(deadline(t))))
}

var errStop = errors.New("stopped by the person")

func TestCancel(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][]modeltest.Step{
		"before the header": {modeltest.HangSilently()},
		"in mid-answer":     {modeltest.Text("a"), modeltest.Hang()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.Default(steps...)
			ctx, cancel := context.WithCancelCause(deadline(t))
			go func() {
				_, _ = s.Wait(ctx, 1)
				cancel(errStop)
			}()
			_, err := client(t, s.URL()).Stream(ctx, ask("x"), nil, model.CallOptions{}, nil)
			var f *model.Failure
			require.ErrorAs(t, err, &f)
			require.Equal(t, model.Cancelled, f.Reason)
			require.False(t, f.Retryable)
			require.ErrorIs(t, err, errStop, "the caller's own cause is kept")
		})
	}
	t.Run("deadline", func(t *testing.T) {
		t.Parallel()
		s := start(t)
		s.Default(modeltest.Hang())
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_, err := client(t, s.URL()).Stream(ctx, ask("x"), nil, model.CallOptions{}, nil)
		var f *model.Failure
		require.ErrorAs(t, err, &f)
		require.Equal(t, model.Timeout, f.Reason)
		require.False(t, f.Retryable, "the time is up")
	})
	t.Run("from onText", func(t *testing.T) {
		t.Parallel()
		s := start(t)
		s.Default(modeltest.Text("a"), modeltest.Hang())
		ctx, cancel := context.WithCancel(deadline(t))
		_, err := client(t, s.URL()).Stream(ctx, ask("x"), nil, model.CallOptions{}, func(string) { cancel() })
		require.Equal(t, model.Cancelled, model.ReasonOf(err))
	})
}

// Many calls at once share few connections, and one after another use the same.
func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	var conns sync.Map
	s := start(t)
	counted := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"content":"a"}}]}`+"\n\n")
			w.(http.Flusher).Flush()
		}
		fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	}))
	counted.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Store(c.RemoteAddr().String(), true)
		}
	}
	counted.Start()
	t.Cleanup(counted.Close)
	c := client(t, counted.URL+"/v1")
	for range 30 {
		_, err := c.Stream(deadline(t), ask("x"), nil, model.CallOptions{}, nil)
		require.NoError(t, err)
	}
	n := 0
	conns.Range(func(any, any) bool { n++; return true })
	require.Less(t, n, 10, "nearly all calls used a connection again")

	busy := client(t, s.URL())
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 5 {
				if _, err := busy.Stream(deadline(t), ask("y"), []*schema.ToolInfo{listAgents}, model.CallOptions{}, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, 320, s.Count())
}
