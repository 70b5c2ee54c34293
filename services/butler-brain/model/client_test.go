package model_test

import (
	"context"
	"encoding/json"
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
	"github.com/prometheus/client_golang/prometheus"
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

func TestToolCalls(t *testing.T) {
	t.Parallel()
	call := func(id, name, args string) schema.ToolCall {
		return schema.ToolCall{ID: id, Type: "function", Function: schema.FunctionCall{Name: name, Arguments: args}}
	}
	const args = `{"city":"München 北京","n":12}`
	for name, tc := range map[string]struct {
		steps []modeltest.Step
		text  string
		calls []schema.ToolCall
	}{
		"alone": {
			steps: []modeltest.Step{modeltest.Tool("f", args)},
			calls: []schema.ToolCall{call("call_1", "f", args)},
		},
		"after text": { // EchoCenter fault 8
			steps: []modeltest.Step{modeltest.Text("I'll check ", "that now."), modeltest.Tool("f", args)},
			text:  "I'll check that now.",
			calls: []schema.ToolCall{call("call_1", "f", args)},
		},
		"before text": {
			steps: []modeltest.Step{modeltest.Tool("f", args), modeltest.Text("done")},
			text:  "done",
			calls: []schema.ToolCall{call("call_1", "f", args)},
		},
		"split over chunks": {
			steps: []modeltest.Step{modeltest.Calls(modeltest.Call{ID: "a", Name: "f", Arguments: args, Chunks: 9})},
			calls: []schema.ToolCall{call("a", "f", args)},
		},
		"two at once, interleaved": {
			steps: []modeltest.Step{modeltest.Calls(
				modeltest.Call{ID: "a", Name: "f", Arguments: args, Chunks: 5},
				modeltest.Call{ID: "b", Name: "g", Arguments: `{}`, Index: 1, Chunks: 2})},
			calls: []schema.ToolCall{call("a", "f", args), call("b", "g", `{}`)},
		},
		"without index": {
			steps: []modeltest.Step{
				modeltest.Calls(modeltest.Call{ID: "a", Name: "f", Arguments: args, NoIndex: true, Chunks: 3}),
				modeltest.Calls(modeltest.Call{ID: "b", Name: "f", Arguments: args, NoIndex: true})},
			calls: []schema.ToolCall{call("a", "f", args), call("b", "f", args)},
		},
		"all with index 0": {
			steps: []modeltest.Step{
				modeltest.Calls(modeltest.Call{ID: "a", Name: "f", Arguments: `{}`}),
				modeltest.Calls(modeltest.Call{ID: "b", Name: "g", Arguments: args})},
			calls: []schema.ToolCall{call("a", "f", `{}`), call("b", "g", args)},
		},
		"finish_reason stop all the same": {
			steps: []modeltest.Step{modeltest.Tool("f", args), modeltest.Finish("stop")},
			calls: []schema.ToolCall{call("call_1", "f", args)},
		},
		"bad arguments are kept": {
			steps: []modeltest.Step{modeltest.Tool("f", `{"a":`)},
			calls: []schema.ToolCall{call("call_1", "f", `{"a":`)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.Default(tc.steps...)
			res, err := client(t, s.URL()).Stream(deadline(t), ask("x"), nil, model.CallOptions{}, nil)
			require.NoError(t, err)
			require.Equal(t, tc.text, res.Message.Content)
			require.Equal(t, tc.calls, res.Message.ToolCalls)
		})
	}
}

func TestMissingToolCallIDsAreMadeAndStay(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.Default(modeltest.Calls(
		modeltest.Call{Name: "f", Arguments: `{}`},
		modeltest.Call{Name: "f", Arguments: `{}`, Index: 1},
		modeltest.Call{ID: "same", Name: "f", Arguments: `{}`, Index: 2},
		modeltest.Call{ID: "same", Name: "f", Arguments: `{}`, Index: 3}))
	c := client(t, s.URL())
	var ids [2][]string
	for i := range ids {
		res, err := c.Stream(deadline(t), ask("x"), nil, model.CallOptions{}, nil)
		require.NoError(t, err)
		seen := map[string]bool{}
		for _, call := range res.Message.ToolCalls {
			require.NotEmpty(t, call.ID)
			require.False(t, seen[call.ID], "ids are unique in a message")
			seen[call.ID] = true
			ids[i] = append(ids[i], call.ID)
		}
	}
	require.Len(t, ids[0], 4)
	require.Equal(t, ids[0], ids[1], "the same answer gets the same ids")
	longer, err := c.Stream(deadline(t), append(ask("x"), schema.AssistantMessage("y", nil), schema.UserMessage("x")), nil,
		model.CallOptions{}, nil)
	require.NoError(t, err)
	require.NotEqual(t, ids[0][0], longer.Message.ToolCalls[0].ID, "another round gets others")
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

func TestWholeAnswersInUnusualForms(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		steps  []modeltest.Step
		text   string
		finish string
	}{
		"no [DONE]":               {[]modeltest.Step{modeltest.Text("ok"), modeltest.FinishOnly("stop")}, "ok", "stop"},
		"no finish_reason":        {[]modeltest.Step{modeltest.Text("ok"), modeltest.DoneOnly()}, "ok", ""},
		"cut after finish_reason": {[]modeltest.Step{modeltest.Text("ok"), modeltest.FinishThenCut("stop")}, "ok", "stop"},
		"no usage":                {[]modeltest.Step{modeltest.NoUsage(), modeltest.Text("ok")}, "ok", "stop"},
		"length":                  {[]modeltest.Step{modeltest.Text("half"), modeltest.Finish("length")}, "half", "length"},
		"many comments":           {[]modeltest.Step{modeltest.Comments(2000), modeltest.Text("ok"), modeltest.Comments(400)}, "ok", "stop"},
		"reasoning apart":         {[]modeltest.Step{modeltest.Reasoning("hmm"), modeltest.Text("ok")}, "ok", "stop"},
		"thinking block":          {[]modeltest.Step{modeltest.Text("\n<thi", "nk>let me", " see</th", "ink>\n\nok <think>")}, "ok <think>", "stop"},
		"begins like one":         {[]modeltest.Step{modeltest.Text("<th", "is> is ok")}, "<this> is ok", "stop"},
		"only the beginning":      {[]modeltest.Step{modeltest.Text("<thin")}, "<thin", "stop"},
		"mentions errors": {[]modeltest.Step{modeltest.Text(`the key "error" and "finish_reason":"x" and data: [DONE]`)},
			`the key "error" and "finish_reason":"x" and data: [DONE]`, "stop"},
		"content in parts": {[]modeltest.Step{
			modeltest.Raw(`data: {"choices":[{"index":0,"delta":{"content":[{"type":"thinking","text":"hmm"},{"type":"text","text":"o"}]}}]}` + "\n\n"),
			modeltest.Text("k")}, "ok", "stop"},
		"escapes": {[]modeltest.Step{modeltest.Text(`a"`, `\`, "b\n", `\"`, "é\t", "</>")}, "a\"\\b\n\\\"é\t</>", "stop"},
		"a surrogate pair in two": {[]modeltest.Step{
			modeltest.Raw(`data: {"choices":[{"index":0,"delta":{"content":"\ud83d"}}]}` + "\n\n" + `data: {"choices":[{"index":0,"delta":{"content":"\ude00"}}]}` + "\n\n")},
			"😀", "stop"},
		"other choices": {[]modeltest.Step{
			modeltest.Raw(`data: {"choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"stop"}]}` + "\n\n"), modeltest.Text("ok")}, "ok", "stop"},
		"null error": {[]modeltest.Step{modeltest.Raw(`data: {"error":null,"choices":[{"index":0,"delta":{"content":"ok"}}]}` + "\n\n")}, "ok", "stop"},
		"CRLF and no space": {[]modeltest.Step{
			modeltest.Raw("data:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ok\"},\"finish_reason\":\"stop\"}]}\r\n\r\ndata:[DONE]\r\n\r\n"),
			modeltest.End()}, "ok", "stop"},
		"last line without its end": {[]modeltest.Step{
			modeltest.Raw(`data: {"choices":[{"index":0,"delta":{"content":"ok"},"finish_reason":"stop"}]}`), modeltest.End()}, "ok", "stop"},
		"not streamed": {[]modeltest.Step{modeltest.Body("application/json; charset=utf-8",
			"\n"+`{"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`)}, "ok", "stop"},
		"NUL and bad UTF-8": {[]modeltest.Step{modeltest.Raw("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"o\\u0000k\xff\"}}]}\n\n")}, "ok\uFFFD", "stop"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.Default(tc.steps...)
			var pieces []string
			res, err := client(t, s.URL()).Stream(deadline(t), ask("x"), nil, model.CallOptions{}, collect(&pieces))
			require.NoError(t, err)
			require.Equal(t, tc.text, res.Message.Content)
			require.Equal(t, tc.text, strings.Join(pieces, ""))
			require.Equal(t, tc.finish, res.FinishReason)
			require.Equal(t, tc.finish == "length", res.Truncated())
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
				cfg.IdleTimeout, cfg.HeaderTimeout = 50*time.Millisecond, 50*time.Millisecond
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

// A slow model is not a silent one: only silence counts, and the reader's own slowness does not.
func TestIdleTimeoutIsNotATotal(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.Default(modeltest.EchoSlow(8, 60*time.Millisecond))
	c := client(t, s.URL(), func(cfg *model.Config) { cfg.IdleTimeout = 300 * time.Millisecond })
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
	require.LessOrEqual(t, n, 2)

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

// What an endpoint does not take is left out from then on.
func TestQuirksAreLearned(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		key, refusal string
	}{
		"max_tokens":     {"max_tokens", "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."},
		"temperature":    {"temperature", "Unsupported value: 'temperature' does not support 0.5 with this model."},
		"stream_options": {"stream_options", "extra fields not permitted: stream_options"},
		"tools":          {"tools", "registry.ollama.ai/library/gemma:2b does not support tools"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.Func(func(r *modeltest.Request) modeltest.Reply {
				var body map[string]json.RawMessage
				if json.Unmarshal(r.Body, &body) != nil || body[tc.key] != nil {
					return modeltest.Reply{modeltest.Refuse(400, "", tc.refusal)}
				}
				return nil
			})
			c := client(t, s.URL())
			temperature := float32(0.5)
			opts := model.CallOptions{Temperature: &temperature, MaxTokens: 10}
			for want := range 2 {
				_, err := c.Stream(deadline(t), ask("x"), []*schema.ToolInfo{listAgents}, opts, nil)
				require.NoError(t, err)
				require.Equal(t, 2+want, s.Count(), "one refusal, then none")
			}
		})
	}
}

func TestReasoningModelsGetWhatTheyTake(t *testing.T) {
	t.Parallel()
	s := start(t)
	temperature := float32(0.5)
	c := client(t, s.URL(), func(cfg *model.Config) { cfg.Model = "gpt-5-mini" })
	_, err := c.Stream(deadline(t), ask("x"), nil, model.CallOptions{Temperature: &temperature, MaxTokens: 10}, nil)
	require.NoError(t, err)
	body := string(s.Requests()[0].Body)
	require.Contains(t, body, `"max_completion_tokens":10`)
	require.NotContains(t, body, "temperature")
}

// Bad arguments in the history must not make the endpoint refuse everything that follows.
func TestHistoryIsMadeSound(t *testing.T) {
	t.Parallel()
	s := start(t)
	calls := []schema.ToolCall{
		{ID: "a", Type: "function", Function: schema.FunctionCall{Name: "f", Arguments: `{"x":`}},
		{ID: "b", Type: "function", Function: schema.FunctionCall{Name: "g"}},
		{ID: "c", Type: "function", Function: schema.FunctionCall{Name: "h", Arguments: `{"ok":1}`}},
	}
	msgs := append(ask("x"), nil, schema.AssistantMessage(" ", nil), schema.AssistantMessage("", calls),
		schema.ToolMessage("not JSON", "a"), schema.ToolMessage("", "b"), schema.ToolMessage("fine", "c"))
	_, err := client(t, s.URL()).Stream(deadline(t), msgs, nil, model.CallOptions{}, nil)
	require.NoError(t, err)
	got := s.Requests()[0].Messages
	require.Len(t, got, 6)
	require.JSONEq(t, `{"invalid_arguments":"{\"x\":"}`, got[2].ToolCalls[0].Arguments)
	require.Equal(t, "{}", got[2].ToolCalls[1].Arguments)
	require.Equal(t, `{"ok":1}`, got[2].ToolCalls[2].Arguments)
	require.Equal(t, "a", got[3].ToolCallID)
	require.NotEmpty(t, got[4].Text)
	require.Equal(t, `{"x":`, calls[0].Function.Arguments, "the given messages stay as they are")
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := start(t)
	reg := prometheus.NewRegistry()
	with := func(cfg *model.Config) { cfg.Registerer = reg }
	c := client(t, s.URL(), with)
	_ = client(t, s.URL(), with) // a second client of the process shares them
	s.Next(modeltest.Refuse(500, "", "x"))
	_, err := c.Stream(deadline(t), ask("x"), nil, model.CallOptions{}, nil)
	require.Error(t, err)
	_, err = c.Stream(deadline(t), ask("x"), nil, model.CallOptions{}, nil)
	require.NoError(t, err)
	got := map[string]float64{}
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			key := family.GetName()
			for _, label := range m.GetLabel() {
				key += " " + label.GetValue()
			}
			got[key] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	require.Equal(t, map[string]float64{
		"butler_model_calls_total model_unavailable":  1,
		"butler_model_calls_total ok":                 1,
		"butler_model_call_seconds model_unavailable": 1,
		"butler_model_call_seconds ok":                1,
		"butler_model_first_token_seconds":            1,
		"butler_model_tokens_total prompt":            10,
		"butler_model_tokens_total completion":        20,
	}, got)
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg  model.Config
		url  string
		fail string
	}{
		"demo":            {},
		"endpoint":        {cfg: model.Config{BaseURL: "http://h:1/v1/", Model: "m"}, url: "http://h:1/v1"},
		"whole path":      {cfg: model.Config{BaseURL: "https://h/v1/chat/completions", Model: "m"}, url: "https://h/v1"},
		"anthropic":       {cfg: model.Config{AnthropicAPIKey: "k", Model: "claude"}, url: model.AnthropicURL},
		"own before":      {cfg: model.Config{AnthropicAPIKey: "k", BaseURL: "http://h", Model: "m"}, url: "http://h"},
		"no url":          {cfg: model.Config{APIToken: token, Model: "m"}, fail: "BUTLER_BASE_URL"},
		"no model":        {cfg: model.Config{BaseURL: "http://h"}, fail: "BUTLER_MODEL"},
		"anthropic model": {cfg: model.Config{AnthropicAPIKey: "k"}, fail: "BUTLER_MODEL"},
		"bad url":         {cfg: model.Config{BaseURL: "api.example.com", Model: "m"}, fail: "BUTLER_BASE_URL"},
		"token in url":    {cfg: model.Config{BaseURL: "https://u:" + token + "@h/v1", Model: "m"}, fail: "BUTLER_BASE_URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, err := tc.cfg.Complete()
			_, newErr := model.New(tc.cfg)
			if tc.fail != "" {
				require.ErrorContains(t, err, tc.fail)
				require.ErrorContains(t, newErr, tc.fail)
				require.NotContains(t, err.Error(), token)
				return
			}
			require.NoError(t, err)
			require.NoError(t, newErr)
			require.Equal(t, tc.url, cfg.BaseURL)
		})
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	s := start(t)
	require.NoError(t, client(t, s.URL()).Check(deadline(t)))
	err := client(t, strings.TrimSuffix(s.URL(), "/v1")).Check(deadline(t))
	require.Equal(t, model.NotFound, model.ReasonOf(err), err)
}
