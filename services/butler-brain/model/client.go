// Package model calls the language model: an OpenAI-compatible endpoint through Eino, or a rule-based demo model when
// none is configured. One call streams text as it comes, collects tool calls from the whole stream, and ends either in a
// whole message or in a Failure with its reason; a half answer is never returned as an answer. Everything that comes
// from the endpoint is bounded.
package model

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cloudwego/eino-ext/components/model/openai"
	"github.com/cloudwego/eino/callbacks"
	"github.com/cloudwego/eino/components"
	einomodel "github.com/cloudwego/eino/components/model"
	"github.com/cloudwego/eino/schema"
	"github.com/prometheus/client_golang/prometheus"
)

// AnthropicURL is Anthropic's OpenAI-compatible endpoint.
const AnthropicURL = "https://api.anthropic.com/v1"

// Config says which model is called and how long is waited for it. The zero Config is the demo model.
type Config struct {
	// BaseURL is the endpoint's address, up to but without /chat/completions (BUTLER_BASE_URL).
	BaseURL string
	// APIToken is sent as a bearer token; empty: none is sent (BUTLER_API_TOKEN).
	APIToken string
	// Model is the model's name at the endpoint (BUTLER_MODEL).
	Model string
	// AnthropicAPIKey with a Model and without a BaseURL selects Anthropic's endpoint (ANTHROPIC_API_KEY).
	AnthropicAPIKey string

	// DialTimeout bounds connecting, and the TLS handshake again. Default 10 s.
	DialTimeout time.Duration
	// HeaderTimeout bounds the time from the request to the response's header. Default 2 min: a local model may have
	// to be loaded first.
	HeaderTimeout time.Duration
	// IdleTimeout bounds the time in which nothing at all arrives within a response. Default 2 min: a reasoning model
	// may think in silence. The whole answer has no limit here; the caller's context has.
	IdleTimeout time.Duration

	// DemoDelay is the pause between the words of the demo model. Default 15 ms; negative: none.
	DemoDelay time.Duration
	// Now tells the time. Default time.Now.
	Now func() time.Time
	// Log gets what an operator should know, once: for example that the model cannot call tools. Default: none.
	Log *slog.Logger
	// Registerer takes the metrics of model calls. Default: none are kept.
	Registerer prometheus.Registerer
	// Handlers are told of every call: its start, and either its whole message or its Failure. Handlers registered with
	// Eino globally hear of each HTTP attempt as well, without its messages.
	Handlers []callbacks.Handler
}

// Complete fills in the defaults and checks the settings. The error names the setting to change.
func (c Config) Complete() (Config, error) {
	if c.BaseURL == "" && c.APIToken == "" && c.AnthropicAPIKey != "" {
		c.BaseURL, c.APIToken = AnthropicURL, c.AnthropicAPIKey
	}
	switch {
	case c.BaseURL == "" && (c.APIToken != "" || c.Model != ""):
		return c, errors.New("BUTLER_BASE_URL is not set: set it to an OpenAI-compatible endpoint, " +
			"for example https://api.openai.com/v1, or unset BUTLER_API_TOKEN and BUTLER_MODEL for the demo model")
	case c.BaseURL != "" && c.Model == "":
		return c, errors.New("BUTLER_MODEL is not set: set it to the name of a model of the endpoint")
	}
	if c.BaseURL != "" {
		u, err := url.Parse(c.BaseURL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil ||
			u.RawQuery != "" || u.Fragment != "" {
			return c, errors.New("BUTLER_BASE_URL is not a plain http or https address such as https://api.openai.com/v1")
		}
		u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/chat/completions")
		c.BaseURL = u.String()
	}
	c.DialTimeout = orDefault(c.DialTimeout, 10*time.Second)
	c.HeaderTimeout = orDefault(c.HeaderTimeout, 2*time.Minute)
	c.IdleTimeout = orDefault(c.IdleTimeout, 2*time.Minute)
	c.DemoDelay = orDefault(c.DemoDelay, 15*time.Millisecond)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// Client calls one model. It is safe for concurrent use.
type Client struct {
	cfg      Config
	chat     einomodel.ToolCallingChatModel
	http     *http.Client // nil for the demo model
	handlers []callbacks.Handler
	bound    atomic.Pointer[boundTools]
	quirks   atomic.Uint32
}

// boundTools is the model with the tools of the last call: converting their schemas costs more than the rest of a call,
// and they rarely change.
type boundTools struct {
	tools  []*schema.ToolInfo
	chat   einomodel.ToolCallingChatModel
	fields atomic.Pointer[[]byte] // what they are in a request, once one was made
}

// New makes a client. It does not call the endpoint: whether that answers is seen by Check and by each call.
func New(cfg Config) (*Client, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, handlers: slices.Clone(cfg.Handlers)}
	observer, err := newObserver(cfg)
	if err != nil {
		return nil, err
	}
	c.handlers = append(c.handlers, observer)
	if cfg.BaseURL == "" {
		c.chat = NewDemo(max(cfg.DemoDelay, 0), cfg.Now)
		return c, nil
	}
	c.http = newHTTPClient(cfg)
	c.chat, err = openai.NewChatModel(context.Background(), &openai.ChatModelConfig{
		BaseURL: cfg.BaseURL, APIKey: cfg.APIToken, Model: cfg.Model, HTTPClient: c.http,
	})
	if err != nil {
		return nil, fmt.Errorf("model client: %w", err)
	}
	return c, nil
}

// Demo says whether the built-in demo model answers.
func (c *Client) Demo() bool { return c.http == nil }

// Model gives the configured model's name; the demo model's is "demo".
func (c *Client) Model() string {
	if c.Demo() {
		return demoName
	}
	return c.cfg.Model
}

// Close closes idle connections. Calls that are running are not disturbed.
func (c *Client) Close() {
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
}

// CallOptions are what one call may set. The zero value leaves everything to the model.
type CallOptions struct {
	Temperature *float32 // nil: the model's own
	MaxTokens   int      // longest answer in tokens; 0: the model's own
}

// Usage counts tokens as the endpoint reported them, 0 where it did not.
type Usage struct {
	PromptTokens     int64
	CompletionTokens int64
}

// Result is a whole answer of the model.
type Result struct {
	// Message is the assistant's message: text, tool calls, or both. Every tool call has an id that is unique in the
	// message and a name; its arguments are as the model wrote them and may not be valid JSON.
	Message      *schema.Message
	Usage        Usage
	FinishReason string // stop, tool_calls, length, content_filter; "" when the endpoint gave none
	Model        string // as the endpoint named it
}

// Truncated says whether the answer was cut by the endpoint: by its length limit or by its content filter.
func (r *Result) Truncated() bool {
	return r.FinishReason == finishLength || r.FinishReason == finishFilter
}

const (
	finishLength = "length"
	finishFilter = "content_filter"
	finishError  = "error"
)

// Stream makes one call of the model with a prompt and the tools it may call, and blocks until the answer is whole or
// has failed. onText (may be nil) gets the pieces of text as they come, in order, from the calling goroutine; pieces that
// have arrived together are handed out together, and when it blocks, the endpoint is held up. The error is always a *Failure. Stream does not retry: see NextTry.
func (c *Client) Stream(ctx context.Context, msgs []*schema.Message, tools []*schema.ToolInfo, opts CallOptions,
	onText func(string)) (*Result, error) {
	ctx = callbacks.InitCallbacks(ctx, &callbacks.RunInfo{
		Name: "model", Type: c.Model(), Component: components.ComponentOfChatModel,
	}, c.handlers...)
	config := &einomodel.Config{Model: c.Model(), MaxTokens: opts.MaxTokens}
	ctx = callbacks.OnStart(ctx, &einomodel.CallbackInput{Messages: msgs, Tools: tools, Config: config})
	var first time.Time
	res, failure := c.adapt(ctx, msgs, tools, opts, func(piece string) {
		if first.IsZero() {
			first = c.cfg.Now()
		}
		if onText != nil {
			onText(piece)
		}
	})
	if failure != nil {
		callbacks.OnError(ctx, failure)
		return nil, failure
	}
	out := &einomodel.CallbackOutput{Message: res.Message, Config: config, TokenUsage: &einomodel.TokenUsage{
		PromptTokens: int(res.Usage.PromptTokens), CompletionTokens: int(res.Usage.CompletionTokens),
		TotalTokens: int(res.Usage.PromptTokens + res.Usage.CompletionTokens),
	}}
	if !first.IsZero() {
		out.Extra = map[string]any{firstTokenKey: first}
	}
	callbacks.OnEnd(ctx, out)
	return res, nil
}

// once makes exactly one HTTP request, or one call of the demo model.
func (c *Client) once(parent context.Context, msgs []*schema.Message, tools []*schema.ToolInfo, opts CallOptions,
	onText func(string)) (*Result, *Failure) {
	ctx, cancel := context.WithCancelCause(callbacks.InitCallbacks(parent, nil))
	defer cancel(nil)
	conn := &exchange{ctx: ctx, cancel: cancel}
	ctx = context.WithValue(ctx, exchangeKey{}, conn)

	got := newCollector(len(msgs))
	bound, err := c.withTools(tools)
	if err != nil {
		return nil, &Failure{Reason: Rejected, Err: err}
	}
	chat, options := bound.chat, c.options(opts)
	if !c.Demo() && len(msgs) > 0 {
		fields := bound.fields.Load()
		if fields != nil {
			chat = c.chat // without the tools: compose writes them
		}
		var write einomodel.Option
		msgs, write = compose(msgs, bound, fields, c.quirks.Load()&quirkNoStreamOptions != 0)
		options = append(options, write)
	}
	stream, err := chat.Stream(ctx, msgs, options...)
	if err != nil {
		return nil, c.classify(parent, conn, err, false)
	}
	defer stream.Close()
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = got.add(msg, onText)
		}
		if err != nil {
			return nil, c.classify(parent, conn, err, got.streamed)
		}
	}
	if err := got.flush(onText); err != nil {
		return nil, c.classify(parent, conn, err, got.streamed)
	}
	end := conn.state()
	if end.model == "" {
		end.model = c.Model()
	}
	res, err := got.result(end.done || c.Demo(), end.model)
	if err != nil {
		return nil, c.classify(parent, conn, err, got.streamed)
	}
	return res, nil
}

func (c *Client) withTools(tools []*schema.ToolInfo) (*boundTools, error) {
	if len(tools) == 0 {
		return &boundTools{chat: c.chat}, nil
	}
	if b := c.bound.Load(); b != nil && slices.Equal(b.tools, tools) {
		return b, nil
	}
	chat, err := c.chat.WithTools(tools)
	if err != nil {
		return nil, fmt.Errorf("tools: %w", err)
	}
	b := &boundTools{tools: slices.Clone(tools), chat: chat}
	c.bound.Store(b)
	return b, nil
}
