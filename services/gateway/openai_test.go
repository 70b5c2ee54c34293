package gateway

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// chunkSeen is one chunk of a streamed completion.
type chunkSeen struct {
	Model   string
	Choices []struct {
		Delta  struct{ Role, Content string }
		Finish *string `json:"finish_reason"`
	}
	Usage *struct {
		Total int `json:"total_tokens"`
	}
	Error *struct{ Message, Type, Code string }
}

// readChunks reads a streamed completion; done says whether it ended as a whole.
func readChunks(t *testing.T, res *response) (chunks []chunkSeen, done bool) {
	t.Helper()
	require.Equal(t, http.StatusOK, res.status, res.text())
	require.Contains(t, res.header.Get("Content-Type"), "text/event-stream")
	sc := bufio.NewScanner(strings.NewReader(res.text()))
	for sc.Scan() {
		data, found := strings.CutPrefix(sc.Text(), "data: ")
		switch {
		case !found:
			require.Empty(t, sc.Text())
		case data == "[DONE]":
			done = true
		default:
			require.False(t, done)
			var c chunkSeen
			require.NoError(t, json.Unmarshal([]byte(data), &c), data)
			chunks = append(chunks, c)
		}
	}
	return chunks, done
}

func ask(text string, more map[string]any) map[string]any {
	body := map[string]any{"model": "m", "messages": []any{map[string]any{"role": "user", "content": text}}}
	for k, v := range more {
		body[k] = v
	}
	return body
}

func TestOpenAIWithASession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.admin.connect("")
	session := header{sessionHeader, "from a program"}
	res := r.call(r.admin, "POST", "/v1/chat/completions", ask("hello", map[string]any{"stream": true, "stream_options": map[string]any{"include_usage": true}}), session)
	got, done := readChunks(t, res)
	require.True(t, done)
	require.Equal(t, "assistant", got[0].Choices[0].Delta.Role)
	text := ""
	for _, c := range got[:len(got)-1] {
		require.Equal(t, "m", c.Model)
		text += c.Choices[0].Delta.Content
	}
	require.Equal(t, "You said: hello", text)
	require.Equal(t, "stop", *got[len(got)-2].Choices[0].Finish)
	require.Equal(t, 10, got[len(got)-1].Usage.Total)
	// It stands in a conversation, and every device of the person sees it.
	frames := c.until(func(f seen) bool { return f.Type == "CHAT_STREAM_END" })
	require.Equal(t, "hello", frames[0].Payload)
	thread := frames[0].ConversationID
	r.call(r.admin, "POST", "/v1/chat/completions", ask("again", nil), session)
	frames = c.until(func(f seen) bool { return f.Type == "CHAT_STREAM_END" })
	require.Equal(t, thread, frames[0].ConversationID, "the name means the same conversation")
	require.Equal(t, "openai", r.brain.questions()[1].GetChannel())

	// The same key is the same message: one answer.
	key := header{"Idempotency-Key", "k1"}
	first := r.call(r.admin, "POST", "/v1/chat/completions", ask("once", nil), session, key)
	second := r.call(r.admin, "POST", "/v1/chat/completions", ask("once", nil), session, key)
	require.Equal(t, http.StatusOK, first.status)
	require.Equal(t, http.StatusOK, second.status)
	require.Contains(t, second.text(), "You said: once")
	require.Len(t, r.brain.questions(), 3)

	// Another's conversation does not exist.
	bob := r.member("bob")
	res = r.call(bob, "POST", "/v1/chat/completions", ask("x", nil), header{sessionHeader, "1"})
	require.Equal(t, http.StatusNotFound, res.status, res.text())
	require.Contains(t, res.text(), `"type":"invalid_request_error"`)
}

func TestOpenAIFailuresAreNeverHalfAnAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	session := header{sessionHeader, "s"}
	for name, c := range map[string]struct {
		script func(*talk)
		status int // when nothing was sent
		code   string
		text   string // when something was sent
	}{
		"model down": {func(tk *talk) {
			tk.end(chat.Failed, "model_unavailable", "The model does not answer.", tk.turn.ID+"-1-1", 0)
		}, 503, "model_unavailable", ""},
		"model busy":  {func(tk *talk) { tk.end(chat.Failed, "rate_limited", "Too many.", tk.turn.ID+"-1-1", 0) }, 429, "rate_limit_exceeded", ""},
		"too long":    {func(tk *talk) { tk.end(chat.Failed, "context_too_long", "Too long.", tk.turn.ID+"-1-1", 0) }, 400, "context_length_exceeded", ""},
		"too slow":    {func(tk *talk) { tk.end(chat.Failed, "timeout", "Too slow.", tk.turn.ID+"-1-1", 0) }, 504, "timeout", ""},
		"bad gateway": {func(tk *talk) { tk.end(chat.Failed, "cut_stream", "Cut.", tk.turn.ID+"-1-1", 0) }, 502, "cut_stream", ""},
		"broke off": {func(tk *talk) {
			tk.delta(tk.turn.ID+"-1-1", 1, "half an ans")
			tk.abandon(tk.turn.ID+"-1-1", 2)
			tk.end(chat.Failed, "cut_stream", "It broke off.", tk.turn.ID+"-1-2", 0)
		}, 502, "cut_stream", "half an ans"},
		"began anew": {func(tk *talk) {
			tk.delta(tk.turn.ID+"-1-1", 1, "half an ans")
			tk.abandon(tk.turn.ID+"-1-1", 2)
			tk.delta(tk.turn.ID+"-1-2", 1, "an answer")
			tk.answer("an answer", tk.turn.ID+"-1-2", 1)
		}, 200, "unavailable", "half an ans"},
		"taken over": {func(tk *talk) {
			tk.delta(tk.turn.ID+"-1-1", 1, "half an ans")
			tk.delta(tk.turn.ID+"-2-1", 1, "an answer")
			tk.answer("an answer", tk.turn.ID+"-2-1", 1)
		}, 200, "unavailable", "half an ans"},
	} {
		r.brain.answerWith(c.script)
		res := r.call(r.admin, "POST", "/v1/chat/completions", ask(name, map[string]any{"stream": true}), session)
		if c.text == "" {
			require.Equal(t, c.status, res.status, name)
			var e struct {
				Error struct{ Message, Type, Code string }
			}
			res.into(&e)
			require.Equal(t, c.code, e.Error.Code, name)
			require.NotEmpty(t, e.Error.Message)
			require.Equal(t, "false", res.header.Get("X-Should-Retry"), "the message is said already")
			continue
		}
		if res.status == c.status && c.status != 200 {
			require.Contains(t, res.text(), c.code, "the answer came before what was taken back: also right")
			continue
		}
		got, done := readChunks(t, res)
		require.False(t, done, name)
		text := ""
		for _, c := range got[:len(got)-1] {
			require.Nil(t, c.Error)
			text += c.Choices[0].Delta.Content
		}
		require.Equal(t, c.text, text, name)
		last := got[len(got)-1]
		require.NotNil(t, last.Error, "%s: %s", name, res.text())
		require.Equal(t, c.code, last.Error.Code, name)
	}
	// Stopped by the person: what there was, and it is whole.
	r.brain.answerWith(func(tk *talk) {
		tk.delta(tk.turn.ID+"-1-1", 1, "as far as this")
		tk.end(chat.Stopped, "stopped", "as far as this\n\n(stopped)", tk.turn.ID+"-1-1", 1)
	})
	got, done := readChunks(t, r.call(r.admin, "POST", "/v1/chat/completions", ask("stop", map[string]any{"stream": true}), session))
	require.True(t, done)
	text := ""
	for _, c := range got {
		text += c.Choices[0].Delta.Content
	}
	require.Equal(t, "as far as this\n\n(stopped)", text)
}

func TestOpenAIWithoutASessionRemembersNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var asked *butlerv1.CompleteRequest
	r.brain.complete = func(req *butlerv1.CompleteRequest, send func(*butlerv1.CompleteResponse) error) error {
		asked = req
		return send(&butlerv1.CompleteResponse{Text: "fine", Done: true, Model: "big", FinishReason: "length", Usage: &butlerv1.Usage{PromptTokens: 1}})
	}
	res := r.call(r.admin, "POST", "/v1/chat/completions", `{"messages":[
		{"role":"developer","content":"be brief"},{"role":"user","content":"one"},{"role":"assistant","content":"two"},
		{"role":"user","content":"three"}],"temperature":0.5,"max_tokens":9,"seed":1,"top_p":0.3,"user":"x","n":1,"tools":[]}`)
	require.Equal(t, http.StatusOK, res.status, res.text())
	require.Contains(t, res.text(), `"finish_reason":"length"`)
	require.Len(t, asked.GetMessages(), 4)
	require.Equal(t, "system", asked.GetMessages()[0].GetRole())
	require.InDelta(t, 0.5, asked.GetTemperature(), 0)
	require.EqualValues(t, 9, asked.GetMaxTokens())
	require.EqualValues(t, 1, asked.GetActor().GetId())
	require.Empty(t, r.brain.questions(), "nothing is in the log")
	// The request's messages are nobody's history.
	res = r.call(r.admin, "GET", "/api/chat/history/2", nil)
	require.Equal(t, "[]", res.text())
}

func TestOpenAIRefusesWhatButlerCannotDo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	user := `{"role":"user","content":"x"}`
	for _, c := range []struct{ body, param string }{
		{`{"messages":[` + user + `],"tools":[{"type":"function"}]}`, "tools"},
		{`{"messages":[` + user + `],"functions":[{}]}`, "functions"},
		{`{"messages":[` + user + `],"n":2}`, "n"},
		{`{"messages":[` + user + `],"response_format":{"type":"json_object"}}`, "response_format"},
		{`{"messages":[` + user + `],"modalities":["text","audio"]}`, "modalities"},
		{`{"messages":[` + user + `],"temperature":3}`, "temperature"},
		{`{"messages":[` + user + `],"max_tokens":0}`, "max_tokens"},
		{`{"messages":[]}`, "messages"},
		{`{"messages":[{"role":"assistant","content":"x"}]}`, "messages"},
		{`{"messages":[{"role":"robot","content":"x"}]}`, "messages"},
		{`{"messages":[{"role":"tool","content":"x"},` + user + `]}`, "messages"},
		{`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`, "messages"},
		{`{"messages":[{"role":"user","content":7}]}`, "messages"},
		{`{"messages":[{"role":"user","content":" "}]}`, "messages"},
	} {
		res := r.call(r.admin, "POST", "/v1/chat/completions", c.body)
		require.Equal(t, http.StatusBadRequest, res.status, c.body)
		var e struct {
			Error struct {
				Message, Type, Code string
				Param               string
			}
		}
		res.into(&e)
		require.Equal(t, c.param, e.Error.Param, c.body)
		require.Equal(t, "invalid_request_error", e.Error.Type)
		require.NotEmpty(t, e.Error.Message)
	}
	require.Equal(t, http.StatusBadRequest, r.call(r.admin, "POST", "/v1/chat/completions", `{`).status)
	require.Equal(t, http.StatusUnauthorized, r.call(nil, "POST", "/v1/chat/completions", `{}`).status)
	require.Equal(t, http.StatusRequestEntityTooLarge, r.call(r.admin, "POST", "/v1/chat/completions", strings.Repeat("x", maxCompletionBody+1)).status)
	require.Equal(t, http.StatusNotFound, r.call(r.admin, "GET", "/v1/models/none", nil).status)
	require.Equal(t, http.StatusNotFound, r.call(r.admin, "GET", "/v1/nothing", nil).status)
}

// Clients ask for "butler", whatever model that is; any other name is taken too, as it always was.
func TestModelsBeginWithButler(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.brain.complete = func(_ *butlerv1.CompleteRequest, send func(*butlerv1.CompleteResponse) error) error {
		return send(&butlerv1.CompleteResponse{Text: "yes", Done: true, Model: "fake", FinishReason: "stop"})
	}
	var list struct{ Data []struct{ ID, Object string } }
	r.call(r.admin, "GET", "/v1/models", nil).into(&list)
	var names []string
	for _, m := range list.Data {
		require.Equal(t, "model", m.Object)
		names = append(names, m.ID)
	}
	require.Equal(t, []string{"butler", "fake", "fake/large"}, names)
	for _, name := range []string{"butler", "fake", "fake%2Flarge"} {
		require.Equal(t, http.StatusOK, r.call(r.admin, "GET", "/v1/models/"+name, nil).status, name)
	}
	for _, name := range []string{"butler", "fake", "gpt-4o", ""} {
		res := r.call(r.admin, "POST", "/v1/chat/completions", ask("there?", map[string]any{"model": name}))
		require.Equal(t, http.StatusOK, res.status, "%s: %s", name, res.text())
	}
	res := r.call(r.admin, "GET", "/v1/models/none", nil, header{"Accept-Language", "zh"})
	require.Equal(t, http.StatusNotFound, res.status)
	require.Contains(t, res.text(), "没有模型")
	require.Contains(t, res.text(), `"param":"model"`)
	require.Contains(t, res.text(), `"code":"model_not_found"`)
}

func FuzzOpenAIRequest(f *testing.F) {
	f.Add([]byte(`{"messages":[{"role":"user","content":"x"}]}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"stream":true,"stream_options":null}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":null}],"response_format":{}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := decodeCompletion(body)
		if err != nil {
			e := openAIError(err, "")
			require.Equal(t, http.StatusBadRequest, e.status)
			return
		}
		require.NotEmpty(t, req.messages)
		require.Equal(t, "user", req.messages[len(req.messages)-1].GetRole())
		for _, m := range req.messages {
			require.NotContains(t, m.GetText(), "\x00")
		}
	})
}
