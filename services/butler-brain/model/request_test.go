package model

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cloudwego/eino-ext/components/model/openai"
	einomodel "github.com/cloudwego/eino/components/model"
	"github.com/cloudwego/eino/schema"
	"github.com/stretchr/testify/require"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// bodyOf gives the request's body that Eino's client makes.
func bodyOf(t *testing.T, tools []*schema.ToolInfo, msgs []*schema.Message, options ...einomodel.Option) []byte {
	t.Helper()
	var body []byte
	model, err := openai.NewChatModel(t.Context(), &openai.ChatModelConfig{
		BaseURL: "http://model.example/v1", Model: "m", HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			body, _ = io.ReadAll(r.Body)
			return nil, io.ErrUnexpectedEOF
		})},
	})
	require.NoError(t, err)
	var chat einomodel.ToolCallingChatModel = model
	if len(tools) > 0 {
		chat, err = chat.WithTools(tools)
		require.NoError(t, err)
	}
	_, err = chat.Stream(t.Context(), msgs, options...)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	return body
}

// What is written here is what the client below Eino would have written.
func TestMessagesAreWrittenAsTheClientDoes(t *testing.T) {
	t.Parallel()
	msgs := []*schema.Message{
		schema.SystemMessage("rules \"quoted\" \\ \t\r\n \x01 \x1f \x7f <b> & \u2028 你好 🙂"),
		schema.UserMessage("butler puts the messages here"),
		{Role: schema.User, Content: "hm", Name: "ann"},
		schema.AssistantMessage("", []schema.ToolCall{
			{ID: "a", Type: "function", Function: schema.FunctionCall{Name: "f", Arguments: `{"x":"\n"}`}},
			{ID: "b", Type: "function", Function: schema.FunctionCall{Name: "g", Arguments: `{}`}},
		}),
		schema.ToolMessage("result", "a", schema.WithToolName("f")),
		schema.ToolMessage("", "b"),
		{Role: schema.Assistant, Content: "so", ReasoningContent: "because"},
		schema.UserMessage("not UTF-8: \xff\xfe."),
	}
	tool := &schema.ToolInfo{Name: "f", Desc: "does <this>", ParamsOneOf: schema.NewParamsOneOfByParams(map[string]*schema.ParameterInfo{
		"x": {Type: schema.String, Required: true},
	})}
	for name, noStreamOptions := range map[string]bool{"": false, "stream_options": true} {
		for _, tools := range [][]*schema.ToolInfo{nil, {tool}} {
			want := bodyOf(t, tools, msgs)
			bound := &boundTools{tools: tools}
			given, write := compose(msgs, bound, bound.fields.Load(), noStreamOptions)
			require.Equal(t, standIn, given)
			got := bodyOf(t, tools, given, write)
			if noStreamOptions {
				var err error
				want, err = withoutField(want, name)
				require.NoError(t, err)
				require.NotContains(t, string(got), name)
			}
			require.JSONEq(t, string(want), string(got))
			given, write = compose(msgs, bound, bound.fields.Load(), noStreamOptions)
			require.JSONEq(t, string(want), string(bodyOf(t, nil, given, write)), "with the tools as they were written before")
		}
	}
	parts := []*schema.Message{{Role: schema.User, UserInputMultiContent: []schema.MessageInputPart{{Type: schema.ChatMessagePartTypeText, Text: "x"}}}}
	given, write := compose(parts, &boundTools{}, nil, false)
	require.JSONEq(t, string(bodyOf(t, nil, parts)), string(bodyOf(t, nil, given, write)))
}

func FuzzAppendString(f *testing.F) {
	f.Add("plain")
	f.Add("\"\\\n\x00\xff\u2028")
	f.Fuzz(func(t *testing.T, s string) {
		want, err := json.Marshal(s)
		require.NoError(t, err)
		require.JSONEq(t, string(want), string(appendString(nil, s)))
	})
}

func BenchmarkRequest(b *testing.B) {
	var msgs []*schema.Message
	for range 40 {
		msgs = append(msgs, schema.UserMessage(strings.Repeat("question ", 6)), schema.AssistantMessage(strings.Repeat("answer ", 50), nil))
	}
	b.ReportAllocs()
	frame := append(append([]byte(`{"model":"m","messages":`), standInJSON...), '}')
	for b.Loop() {
		before, after, _ := bytes.Cut(frame, standInJSON)
		out := appendMessages(append(make([]byte, 0, 32<<10), before...), msgs)
		_ = append(out, after...)
	}
}
