package model_test

import (
	"strings"
	"testing"

	"github.com/cloudwego/eino/schema"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

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
