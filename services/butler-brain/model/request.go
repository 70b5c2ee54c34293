package model

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"unicode/utf8"

	"github.com/cloudwego/eino-ext/components/model/openai"
	einomodel "github.com/cloudwego/eino/components/model"
	"github.com/cloudwego/eino/schema"
)

// The client below Eino writes each message of a request through reflection, twice, and checks the result: for a
// conversation of some length that was the dearest part of a call. So it is given one message that stands in for all, and
// these are written here in its place, in the same form; a test compares the two. The tools, which hardly ever change, are
// written by that client once.

// standIn is the message that the client below Eino gets, and how it writes it.
var (
	standIn     = []*schema.Message{schema.UserMessage("butler puts the messages here")}
	standInJSON = []byte(`[{"role":"user","content":"butler puts the messages here"}]`)
)

var errStandIn = errors.New("the request has no place for its messages")

// compose gives the messages that are handed to Eino, and the option that makes the request's body of what the client below
// writes. Messages with more than text are written by that client. fields is what the tools are in a request; when it is
// nil, that client writes them and they are learned from it.
func compose(msgs []*schema.Message, tools *boundTools, fields *[]byte, noStreamOptions bool) ([]*schema.Message, einomodel.Option) {
	size, plain := 0, true
	for _, m := range msgs {
		plain = plain && len(m.MultiContent)+len(m.UserInputMultiContent)+len(m.AssistantGenMultiContent) == 0
		size += len(m.Content) + len(m.Content)/16 + 48
		for i := range m.ToolCalls {
			size += len(m.ToolCalls[i].Function.Arguments) + 160
		}
	}
	given := msgs
	if plain {
		given = standIn
	}
	return given, openai.WithRequestPayloadModifier(
		func(_ context.Context, _ []*schema.Message, body []byte) ([]byte, error) {
			if noStreamOptions {
				var err error
				if body, err = withoutField(body, "stream_options"); err != nil {
					return nil, err
				}
			}
			if fields != nil {
				body = append(append(body[:len(body)-1:len(body)-1], *fields...), '}')
			} else if len(tools.tools) > 0 {
				if err := tools.learn(body); err != nil {
					return nil, err
				}
			}
			if !plain {
				return body, nil
			}
			before, after, ok := bytes.Cut(body, standInJSON)
			if !ok {
				return nil, errStandIn
			}
			out := make([]byte, 0, len(before)+size+len(after))
			out = append(out, before...)
			out = appendMessages(out, msgs)
			return append(out, after...), nil
		})
}

// learn takes from a request what its tools are in it.
func (b *boundTools) learn(body []byte) error {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(body, &doc); err != nil {
		return err
	}
	var fields []byte
	for _, name := range []string{"tools", "tool_choice", "parallel_tool_calls"} {
		if raw, ok := doc[name]; ok {
			fields = append(appendString(append(fields, ','), name), ':')
			fields = append(fields, raw...)
		}
	}
	b.fields.Store(&fields)
	return nil
}

func withoutField(body []byte, name string) ([]byte, error) {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, err
	}
	delete(doc, name)
	return json.Marshal(doc)
}

// appendMessages writes messages as the chat completions API has them.
func appendMessages(b []byte, msgs []*schema.Message) []byte {
	b = append(b, '[')
	for i, m := range msgs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"role":`...)
		b = appendString(b, string(m.Role))
		if m.Content != "" || m.Role == schema.Tool {
			b = appendField(b, "content", m.Content)
		}
		if m.Name != "" {
			b = appendField(b, "name", m.Name)
		}
		if m.ReasoningContent != "" {
			b = appendField(b, "reasoning_content", m.ReasoningContent)
		}
		if len(m.ToolCalls) > 0 {
			b = appendCalls(append(b, `,"tool_calls":`...), m.ToolCalls)
		}
		if m.ToolCallID != "" {
			b = appendField(b, "tool_call_id", m.ToolCallID)
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

func appendCalls(b []byte, calls []schema.ToolCall) []byte {
	b = append(b, '[')
	for i := range calls {
		c := &calls[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"type":`...)
		b = appendString(b, c.Type)
		if c.ID != "" {
			b = appendField(b, "id", c.ID)
		}
		b = append(b, `,"function":{"arguments":`...)
		b = appendString(b, c.Function.Arguments)
		if c.Function.Name != "" {
			b = appendField(b, "name", c.Function.Name)
		}
		b = append(b, "}}"...)
	}
	return append(b, ']')
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	return appendString(append(b, '"', ':'), value)
}

// appendString writes s as a JSON string: quickly when nothing in it needs to be escaped but quotes and line feeds.
func appendString(b []byte, s string) []byte {
	if !utf8.ValidString(s) {
		quoted, _ := json.Marshal(s) // a string: no error
		return append(b, quoted...)
	}
	b = append(b, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

const hexDigits = "0123456789abcdef"
