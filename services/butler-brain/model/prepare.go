package model

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/cloudwego/eino-ext/components/model/openai"
	einomodel "github.com/cloudwego/eino/components/model"
	"github.com/cloudwego/eino/schema"
)

// Quirks of an endpoint, learned from its first refusal and kept while the process runs.
const (
	quirkCompletionTokens uint32 = 1 << iota // wants max_completion_tokens in place of max_tokens
	quirkNoTemperature                       // takes no temperature
	quirkNoStreamOptions                     // takes no stream_options, so reports no usage
	quirkNoTools                             // the model cannot call tools
)

var reasoningModels = []string{"o1", "o3", "o4", "gpt-5"}

// adapt makes one call, and at once another without what the endpoint does not take, if it says so.
func (c *Client) adapt(ctx context.Context, msgs []*schema.Message, tools []*schema.ToolInfo, opts CallOptions,
	onText func(string)) (*Result, *Failure) {
	msgs = prepare(msgs)
	for {
		before := c.quirks.Load()
		offered := tools
		if before&quirkNoTools != 0 {
			offered = nil
		}
		res, f := c.once(ctx, msgs, offered, opts, onText)
		if f == nil || f.Streamed || f.Status < 400 || f.Status == http.StatusUnauthorized {
			return res, f
		}
		found := findQuirk(f.Err.Error(), len(offered) > 0, opts) &^ before
		if found == 0 {
			return res, f
		}
		c.quirks.Or(found)
		if found&quirkNoTools != 0 {
			c.cfg.Log.Warn("the model cannot call tools; Butler only talks", "model", c.cfg.Model, "cause", f.Err)
		}
	}
}

// findQuirk reads from a refusal which part of the request the endpoint does not take.
func findQuirk(refusal string, tools bool, opts CallOptions) uint32 {
	said := strings.ToLower(refusal)
	switch {
	case opts.MaxTokens > 0 && strings.Contains(said, "max_completion_tokens"):
		return quirkCompletionTokens
	case opts.Temperature != nil && strings.Contains(said, "temperature"):
		return quirkNoTemperature
	case strings.Contains(said, "stream_options"):
		return quirkNoStreamOptions
	case tools && containsAny(said, []string{
		"does not support tools", "does not support function", "tool choice requires --enable-auto-tool-choice",
		"tools are not supported", "tool use is not supported", "function calling is not supported",
	}):
		return quirkNoTools
	}
	return 0
}

func (c *Client) options(opts CallOptions) []einomodel.Option {
	if c.Demo() {
		return nil
	}
	quirks := c.quirks.Load()
	for _, prefix := range reasoningModels {
		if strings.HasPrefix(c.cfg.Model, prefix) {
			quirks |= quirkCompletionTokens | quirkNoTemperature
		}
	}
	var out []einomodel.Option
	if opts.Temperature != nil && quirks&quirkNoTemperature == 0 {
		out = append(out, einomodel.WithTemperature(*opts.Temperature))
	}
	switch {
	case opts.MaxTokens <= 0:
	case quirks&quirkCompletionTokens != 0:
		out = append(out, openai.WithMaxCompletionTokens(opts.MaxTokens))
	default:
		out = append(out, einomodel.WithMaxTokens(opts.MaxTokens))
	}
	return out
}

// prepare makes messages that every endpoint takes: no message without content, and tool arguments that are JSON
// objects, since a model that wrote bad ones must be able to hear about it. Messages that are fine are not copied, and
// the given ones are never changed.
func prepare(msgs []*schema.Message) []*schema.Message {
	out := make([]*schema.Message, 0, len(msgs))
	for _, m := range msgs {
		switch {
		case m == nil:
			continue
		case m.Role == schema.Tool && strings.TrimSpace(m.Content) == "":
			copied := *m
			copied.Content = "(no output)"
			m = &copied
		case len(m.ToolCalls) > 0:
			m = withSoundArguments(m)
		case m.Role != schema.Tool && strings.TrimSpace(m.Content) == "" && len(m.UserInputMultiContent) == 0:
			continue
		}
		out = append(out, m)
	}
	return out
}

func withSoundArguments(m *schema.Message) *schema.Message {
	copied := *m
	copied.ToolCalls = make([]schema.ToolCall, len(m.ToolCalls))
	for i, call := range m.ToolCalls {
		args := bytes.TrimSpace([]byte(call.Function.Arguments))
		if len(args) == 0 {
			call.Function.Arguments = "{}"
		} else if args[0] != '{' || !json.Valid(args) {
			sound, err := json.Marshal(map[string]string{"invalid_arguments": call.Function.Arguments})
			if err != nil {
				sound = []byte("{}")
			}
			call.Function.Arguments = string(sound)
		}
		copied.ToolCalls[i] = call
	}
	return &copied
}
