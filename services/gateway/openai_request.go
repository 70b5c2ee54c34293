package gateway

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

const (
	// maxCompletionBody bounds the body of POST /v1/chat/completions; gRPC takes 4 MiB.
	maxCompletionBody = 3 << 20
	// maxCompletionMessages bounds its messages.
	maxCompletionMessages = 5000
)

// completion is a request of OpenAI's chat API, as far as it can be fulfilled.
type completion struct {
	model       string
	messages    []*butlerv1.CompleteMessage
	stream      bool
	usage       bool // stream: a last chunk says what was used
	temperature *float64
	maxTokens   *int32
}

// param is an error of a request's parameter.
type param struct {
	name string
	err  error
}

func (p *param) Error() string { return p.err.Error() }
func (p *param) Unwrap() error { return p.err }

func badParam(name, format string, args ...any) error {
	return &param{name, fault.New(fault.Invalid, format, args...)}
}

// decodeCompletion reads a request. What Butler cannot do is refused with the reason; parameters that are not known, or
// only tune the model, are passed over.
func decodeCompletion(body []byte) (completion, error) {
	var in struct {
		Model    string `json:"model"`
		Messages []struct {
			Role      string          `json:"role"`
			Content   json.RawMessage `json:"content"`
			ToolCalls json.RawMessage `json:"tool_calls"`
			Function  json.RawMessage `json:"function_call"`
			Audio     json.RawMessage `json:"audio"`
		} `json:"messages"`
		Stream        bool `json:"stream"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
		Temperature         *float64        `json:"temperature"`
		MaxTokens           *int32          `json:"max_tokens"`
		MaxCompletionTokens *int32          `json:"max_completion_tokens"`
		N                   *int            `json:"n"`
		Tools               json.RawMessage `json:"tools"`
		Functions           json.RawMessage `json:"functions"`
		Modalities          []string        `json:"modalities"`
		Audio               json.RawMessage `json:"audio"`
		Logprobs            bool            `json:"logprobs"`
		ResponseFormat      *struct {
			Type string `json:"type"`
		} `json:"response_format"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return completion{}, fault.Wrap(err, fault.Invalid, "the body is not a JSON object as the chat completions API has it")
	}
	out := completion{model: in.Model, stream: in.Stream, usage: in.StreamOptions.IncludeUsage, temperature: in.Temperature}
	out.maxTokens = in.MaxCompletionTokens
	if out.maxTokens == nil {
		out.maxTokens = in.MaxTokens
	}
	switch {
	case given(in.Tools):
		return out, badParam("tools", "tools of the client are not supported: Butler has its own; leave tools out")
	case given(in.Functions):
		return out, badParam("functions", "functions of the client are not supported: Butler has its own; leave functions out")
	case in.N != nil && *in.N != 1:
		return out, badParam("n", "only one answer is given to a request; leave n out")
	case given(in.Audio) || len(in.Modalities) > 0 && (len(in.Modalities) > 1 || in.Modalities[0] != "text"):
		return out, badParam("modalities", "Butler answers in text only")
	case in.Logprobs:
		return out, badParam("logprobs", "log probabilities are not supported")
	case in.ResponseFormat != nil && in.ResponseFormat.Type != "" && in.ResponseFormat.Type != "text":
		return out, badParam("response_format", "answers are plain text; response_format %q is not supported", clip(in.ResponseFormat.Type))
	case out.temperature != nil && (*out.temperature < 0 || *out.temperature > 2):
		return out, badParam("temperature", "temperature is between 0 and 2")
	case out.maxTokens != nil && *out.maxTokens < 1:
		return out, badParam("max_tokens", "the limit of tokens must be at least 1")
	case len(in.Messages) == 0:
		return out, badParam("messages", "messages is needed, and the last one must be the user's")
	case len(in.Messages) > maxCompletionMessages:
		return out, badParam("messages", "at most %d messages can be sent", maxCompletionMessages)
	case len(in.Model) > 256:
		return out, badParam("model", "the name of a model has at most 256 bytes")
	}
	for _, m := range in.Messages {
		role := m.Role
		switch role {
		case "developer":
			role = "system"
		case "system", "user", "assistant":
		case "tool", "function":
			return out, badParam("messages", "messages of tools are not supported: Butler has its own tools")
		default:
			return out, badParam("messages", "%q is no role; system, developer, user and assistant are", clip(role))
		}
		if given(m.ToolCalls) || given(m.Function) {
			return out, badParam("messages", "calls of tools are not supported: Butler has its own tools")
		}
		text, err := contentText(m.Content)
		if err != nil {
			return out, err
		}
		if strings.TrimSpace(text) == "" {
			if role == "user" {
				return out, badParam("messages", "a message of the user is empty")
			}
			continue
		}
		out.messages = append(out.messages, &butlerv1.CompleteMessage{Role: role, Text: text})
	}
	if n := len(out.messages); n == 0 || in.Messages[len(in.Messages)-1].Role != "user" {
		return out, badParam("messages", "the last message must be the user's")
	}
	return out, nil
}

// contentText gives the text of a message's content: a string, or an array of text parts.
func contentText(content json.RawMessage) (string, error) {
	if !given(content) {
		return "", nil
	}
	var text string
	if content[0] == '"' {
		if err := json.Unmarshal(content, &text); err != nil {
			return "", badParam("messages", "the content of a message is not a string")
		}
		return text, checkContent(text)
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(content, &parts); err != nil {
		return "", badParam("messages", "the content of a message must be a string or an array of text parts")
	}
	var all strings.Builder
	for _, p := range parts {
		if p.Type != "text" {
			return "", badParam("messages", "parts of type %q are not supported; send text only", clip(p.Type))
		}
		all.WriteString(p.Text)
	}
	return all.String(), checkContent(all.String())
}

func checkContent(text string) error {
	if strings.IndexByte(text, 0) >= 0 || !utf8.ValidString(text) {
		return badParam("messages", "a message must be UTF-8 without the character NUL")
	}
	return nil
}

// given says whether a JSON value is there and not empty.
func given(v json.RawMessage) bool {
	v = bytes.TrimSpace(v)
	return len(v) > 0 && string(v) != "null" && string(v) != "[]" && string(v) != "{}" && string(v) != `""`
}

// clip shortens what a client sent for a sentence about it.
func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}
