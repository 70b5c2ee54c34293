package model

import (
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// What endpoints really say when a conversation does not fit, and what sounds like it but is not.
func TestContextTooLong(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status int
		body   string
		want   Reason
	}{
		"OpenAI":    {400, `{"error":{"message":"This model's maximum context length is 128000 tokens. However, your messages resulted in 140000 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`, ContextTooLong},
		"Anthropic": {400, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 208310 tokens > 200000 maximum"}}`, ContextTooLong},
		"Anthropic output": {400, `{"error":{"code":"invalid_request_error","message":"input length and ` + "`max_tokens`" +
			` exceed context limit: 198000 + 8192 > 200000","type":"invalid_request_error"}}`, ContextTooLong},
		"vLLM":      {400, `{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens","type":"BadRequestError","param":null,"code":400}`, ContextTooLong},
		"llama.cpp": {400, `{"error":{"code":400,"message":"the request exceeds the available context size. try increasing the context size","type":"exceed_context_size_error"}}`, ContextTooLong},
		"Ollama":    {400, `{"error":"input length exceeds maximum context length"}`, ContextTooLong},
		"DeepSeek":  {400, `{"error":{"message":"This model's maximum context length is 65536 tokens. However, you requested 70000 tokens","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}`, ContextTooLong},
		"Mistral":   {422, `{"object":"error","message":"Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length","type":"invalid_request_error","code":"3051"}`, ContextTooLong},
		"Gemini":    {400, `[{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]`, ContextTooLong},
		"Groq":      {400, `{"error":{"message":"Please reduce the length of the messages or completion.","type":"invalid_request_error","code":"context_length_exceeded"}}`, ContextTooLong},
		"Qwen":      {400, `{"error":{"message":"Range of input length should be [1, 30720]","type":"invalid_request_error","code":"invalid_parameter_error"}}`, ContextTooLong},
		"Moonshot":  {400, `{"error":{"message":"Invalid request: Your request exceeded model token limit: 8192","type":"invalid_request_error"}}`, ContextTooLong},
		"Zhipu":     {400, `{"error":{"code":"1261","message":"Prompt 超长"}}`, ContextTooLong},
		"by size":   {413, ``, ContextTooLong},

		"other 400":      {400, `{"error":{"message":"Invalid value for temperature","code":"invalid_value"}}`, Rejected},
		"missing model":  {400, `{"error":{"message":"The model gpt-9 does not exist","code":"model_not_found"}}`, NotFound},
		"token":          {401, `{"error":{"message":"Invalid context size token"}}`, Unauthorized},
		"rate of tokens": {429, `{"error":{"message":"Rate limit reached: too many tokens per minute, reduce the length"}}`, RateLimited},
		"credit":         {400, `{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}`, RateLimited},
	} {
		e := parseErrorBody([]byte(tc.body))
		e.status = tc.status
		got, _ := e.reason()
		require.Equal(t, tc.want, got, name)
	}
}

func TestParseErrorBody(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]statusError{
		`{"error":{"message":"m","type":"T","code":"C"}}`: {code: "c", kind: "t", message: "m"},
		`{"error":{"message":["a","b"],"code":429}}`:      {code: "429", message: "a"},
		`{"error":"just text"}`:                           {message: "just text"},
		`{"error":null,"message":"m"}`:                    {message: "m"},
		`{"detail":"Not Found"}`:                          {message: "Not Found"},
		`{"detail":[{"loc":["body"],"msg":"required"}]}`:  {message: "required"},
		"upstream connect\r\n error\x00 \x1b[31mred":      {message: "upstream connect error [31mred"},
		`<html><body>no</body></html>`:                    {},
		`{"error":{`:                                      {},
		`[]`:                                              {},
		``:                                                {},
	} {
		require.Equal(t, &want, parseErrorBody([]byte(body)), body)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":     0,
		"3":    3 * time.Second,
		" 1.5": 1500 * time.Millisecond,
		"-3":   0,
		"0":    0,
		"NaN":  0,
		"Inf":  time.Minute,
		"1e99": time.Minute,
		"3600": time.Minute,
		"soon": 0,
		now.Add(20 * time.Second).Format(http.TimeFormat): 20 * time.Second,
		now.Add(-time.Hour).Format(http.TimeFormat):       0,
		now.Add(time.Hour).Format(http.TimeFormat):        time.Minute,
		"Mon, 01 Jan 9999 00:00:00 GMT":                   time.Minute,
	} {
		require.Equal(t, want, parseRetryAfter(http.Header{"Retry-After": {value}}, now), value)
	}
	require.Equal(t, 250*time.Millisecond,
		parseRetryAfter(http.Header{"Retry-After-Ms": {"250"}, "Retry-After": {"9"}}, now))
}

func TestRedact(t *testing.T) {
	t.Parallel()
	c := &Client{cfg: Config{APIToken: "hunter2-secret"}}
	for in, want := range map[string]string{
		"key hunter2-secret refused":                    "key [redacted] refused",
		"Incorrect API key provided: sk-pro*****WXyz.":  "Incorrect API key provided: [redacted]",
		"header Bearer abcdefgh12345 is not valid":      "header [redacted] is not valid",
		"the model gpt-4o-mini and its key are unknown": "the model gpt-4o-mini and its key are unknown",
	} {
		require.Equal(t, want, c.redact(in))
	}
}

func FuzzErrorBody(f *testing.F) {
	for _, seed := range []string{
		`{"error":{"message":"m","type":"t","code":1}}`, `[{"error":{"message":["a"]}}]`, `{"detail":[{"msg":1}]}`, `{"error":`,
		"\xff\x00", `{"error":{"message":{"message":"x"}}}`, `"text"`, `{"object":"error","code":"context_length_exceeded"}`,
	} {
		f.Add([]byte(seed), 400)
	}
	f.Fuzz(func(t *testing.T, body []byte, status int) {
		e := parseErrorBody(body)
		for _, s := range []string{e.message, e.code, e.kind} {
			if len(s) > 2*maxErrorMessage || !utf8.ValidString(s) || strings.ContainsAny(s, "\x00\n\r\x1b") {
				t.Fatalf("%q", s)
			}
		}
		if s := e.guessStatus(); s < 400 || s > 599 {
			t.Fatalf("status %d", s)
		}
		e.status = status
		if reason, again := e.reason(); reason == "" || (again && reason != Unavailable && reason != RateLimited) {
			t.Fatalf("%s %v", reason, again)
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	for _, seed := range []string{"3", "1e308", "-1", "NaN", "Tue, 01 Dec 2026 12:00:20 GMT", "0x10", "9223372036854775807"} {
		f.Add(seed, seed)
	}
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, seconds, ms string) {
		h := http.Header{"Retry-After": {seconds}, "Retry-After-Ms": {ms}}
		if d := parseRetryAfter(h, now); d < 0 || d > maxRetryAfter {
			t.Fatalf("%q %q: %v", seconds, ms, d)
		}
	})
}
