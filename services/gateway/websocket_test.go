package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/chat"
)

func TestATurnOnTheWebSocket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, second := r.admin.connect(""), r.admin.connect("")
	other := r.member("bob").connect("")
	// What a client says of ids and senders does not count.
	first.send(map[string]any{
		"type": "CHAT", "local_id": "m1", "payload": "hello", "id": 99, "sender_id": 77, "sender_name": "mallory", "sender_role": "BUTLER",
	})
	for _, c := range []*client{first, second} {
		frames := c.turn("m1")
		require.Len(t, frames, 5, "%+v", frames)
		asked, answer, end := frames[0], frames[3], frames[4]
		require.Equal(t, "CHAT", asked.Type)
		require.Equal(t, seen{
			Type: "CHAT", ID: asked.ID, LocalID: "m1", ConversationID: asked.ConversationID, SenderID: 1, SenderName: adminName,
			SenderRole: "ADMIN", TargetID: 2, Payload: "hello", Timestamp: asked.Timestamp, Seq: asked.Seq,
		}, asked)
		require.NotZero(t, asked.ConversationID)
		for _, f := range frames[1:3] {
			require.Equal(t, "CHAT_STREAM", f.Type)
			require.Equal(t, "m1", f.ReplyToLocalID)
			require.Equal(t, answer.StreamID, f.StreamID)
			require.Equal(t, "BUTLER", f.SenderRole)
			require.EqualValues(t, 1, f.TargetID)
		}
		require.Equal(t, "CHAT", answer.Type)
		require.Equal(t, "You said: hello", answer.Payload)
		require.Equal(t, "m1:answer", answer.LocalID)
		require.Equal(t, asked.ID, answer.ReplyTo)
		require.Equal(t, chat.Answered, answer.Status)
		require.JSONEq(t, `{"prompt_tokens":7,"completion_tokens":3,"model_calls":1,"tool_calls":0}`, string(answer.Usage))
		require.Equal(t, answer.StreamID, end.StreamID)
		for i := 1; i < len(frames); i++ {
			require.GreaterOrEqual(t, frames[i].Seq, frames[i-1].Seq)
			_, err := time.Parse(time.RFC3339Nano, frames[i].Timestamp)
			require.NoError(t, err)
		}
	}
	other.silent()
}

func TestTheSameMessageIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c, other := r.admin.connect(""), r.admin.connect("")
	c.say("m1", "hello")
	first := c.turn("m1")
	other.turn("m1")
	c.say("m1", "hello")
	again := c.turn("m1")
	require.Len(t, again, 3, "the question, the answer and the end: %+v", again)
	require.Equal(t, first[0].ID, again[0].ID)
	require.Equal(t, first[3].ID, again[1].ID)
	require.Equal(t, first[3].Payload, again[1].Payload)
	require.Equal(t, first[3].ReplyTo, again[1].ReplyTo)
	other.silent() // only who asks again is told again
	require.Len(t, r.brain.questions(), 1)

	c.say("m1", "something else")
	f := c.next()
	require.Equal(t, "ERROR", f.Type)
	require.Equal(t, "conflict", f.Code)
	require.Equal(t, "m1", f.LocalID)

	// The same local_id of another person is another message.
	bob := r.member("bob").connect("")
	bob.say("m1", "hello")
	require.Len(t, bob.turn("m1"), 5)
}

func TestBadFramesKeepTheConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.admin.connect("")
	for _, bad := range []struct{ frame, code string }{
		{`{`, "invalid"},
		{`[]`, "invalid"},
		{`{"payload":"x"}`, "invalid"},
		{`{"type":"AUTH_STATUS_UPDATE","payload":{"status":"APPROVED"}}`, "invalid"},
		{`{"type":"CHAT_STREAM","payload":"x","target_id":2}`, "invalid"},
		{`{"type":"SYSTEM_LOG","payload":"x"}`, "invalid"},
		{`{"type":"CHAT"}`, "invalid"},
		{`{"type":"CHAT","payload":" \n"}`, "invalid"},
		{`{"type":"CHAT","payload":"a\u0000b"}`, "invalid"},
		{`{"type":"CHAT","payload":"x","target_id":3}`, "invalid"},
		{`{"type":"CHAT","payload":"x","conversation_id":987654}`, "not_found"},
		{`{"type":"CHAT","payload":"x","local_id":"` + strings.Repeat("x", 129) + `"}`, "invalid"},
		{`{"type":"CHAT","payload":"` + strings.Repeat("x", chat.MaxText+1) + `"}`, "too_large"},
		{`{"type":"CHAT","payload":"` + strings.Repeat("x", maxFrame) + `"}`, "too_large"},
		{`{"type":"STOP","conversation_id":987654}`, "not_found"},
	} {
		c.send([]byte(bad.frame))
		f := c.next()
		require.Equal(t, "ERROR", f.Type, "%.80s: %+v", bad.frame, f)
		require.Equal(t, bad.code, f.Code, "%.80s: %+v", bad.frame, f)
		require.NotEmpty(t, f.Payload)
	}
	require.NoError(t, c.ws.Write(t.Context(), websocket.MessageBinary, []byte("x")))
	require.Equal(t, "ERROR", c.next().Type)
	require.Empty(t, r.brain.questions(), "nothing of it was said")

	text := strings.Repeat("é", chat.MaxText/2)
	c.say("big", text)
	frames := c.turn("big")
	require.True(t, text == frames[0].Payload, "%s %s %d", frames[0].Type, frames[0].Code, len(frames[0].Payload))

	// Old clients send what they like as payload.
	c.send([]byte(`{"type":"CHAT","local_id":"json","payload":{"a":[1, 2]}}`))
	require.Equal(t, `{"a":[1, 2]}`, c.turn("json")[0].Payload)

	// Even one beyond all reason leaves the connection as it is.
	require.NoError(t, c.ws.Write(t.Context(), websocket.MessageText, make([]byte, 20<<20)))
	require.Equal(t, "too_large", c.next().Code)
	c.say("after", "still here?")
	require.Equal(t, "still here?", c.turn("after")[0].Payload)
}

func TestClosingOneTabLeavesTheOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.admin.connect("")
	second := r.admin.connect("")
	first.close()
	second.say("m1", "still there?")
	require.Len(t, second.turn("m1"), 5)
	third := r.admin.connect("")
	second.close()
	third.say("m2", "and now?")
	require.Len(t, third.turn("m2"), 5)
	third.close()
	require.Eventually(t, func() bool {
		r.gates[0].hub.mu.Lock()
		defer r.gates[0].hub.mu.Unlock()
		return len(r.gates[0].hub.people) == 0
	}, patience, time.Millisecond, "nothing is kept of who went away")
}

func TestOneWhoDoesNotReadIsCutOffAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	reads := r.admin.connect("")
	deaf, _, err := websocket.Dial(t.Context(), r.url()+"/api/ws?token="+r.admin.token, &websocket.DialOptions{HTTPClient: testClient})
	require.NoError(t, err)
	defer deaf.CloseNow() //nolint:errcheck // cleanup
	text := strings.Repeat("x", 200<<10)
	for i := range 25 {
		id := fmt.Sprint("m", i)
		reads.say(id, text)
		require.Equal(t, "CHAT CHAT_STREAM CHAT_STREAM CHAT CHAT_STREAM_END", kinds(reads.turn(id)))
	}
	h := r.gates[0].hub
	require.Eventually(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.people[1].boxes) == 1
	}, patience, time.Millisecond)
	reads.say("last", "fine?")
	require.Len(t, reads.turn("last"), 5)

	// The same person comes back at once and is not disturbed by the end of the old connection.
	back := r.admin.connect("")
	back.say("again", "here")
	require.Len(t, back.turn("again"), 5)
}

func kinds(frames []seen) string {
	var types []string
	for _, f := range frames {
		types = append(types, f.Type)
	}
	return strings.Join(types, " ")
}

func TestStopOnTheWebSocket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stopped := make(chan struct{})
	r.brain.answerWith(func(tk *talk) {
		tk.delta(tk.turn.ID+"-1-1", 1, "a long ")
		<-stopped
		seq, err := lastSeq(tk)
		if err != nil {
			t.Error(err)
		}
		tk.seq = seq
		tk.end(chat.Stopped, "stopped", "a long (stopped)", tk.turn.ID+"-1-1", 1)
	})
	c := r.admin.connect("")
	c.say("m1", "tell me")
	require.Equal(t, "CHAT", c.next().Type)
	require.Equal(t, "CHAT_STREAM", c.next().Type)
	c.send(map[string]any{"type": "STOP"})
	require.Eventually(t, func() bool {
		_, found, err := r.bus.Last(context.Background(), "CHAT", "butler.chat.*.1.*.m1.stop")
		return err == nil && found
	}, patience, 5*time.Millisecond)
	close(stopped)
	frames := c.turn("m1")
	require.Equal(t, chat.Stopped, frames[0].Status)
	require.Equal(t, "CHAT_STREAM_END", frames[1].Type)
	c.send(map[string]any{"type": "STOP"}) // nothing to stop: nothing happens
	c.silent()
}

func lastSeq(tk *talk) (uint64, error) {
	s, _, err := tk.bus.Last(context.Background(), "CHAT", tk.turn.Filter())
	return s.Seq, err
}

func TestTooManyMessagesAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(d *Deps) { d.Settings.MessageRate, d.Settings.MessageBurst = 0.1, 3 })
	c := r.admin.connect("")
	for i := range 3 {
		c.say(fmt.Sprint("m", i), "x")
		c.turn(fmt.Sprint("m", i))
	}
	c.say("m4", "x")
	f := c.next()
	require.Equal(t, "rate_limited", f.Code)
	require.Equal(t, "m4", f.LocalID)
	require.Positive(t, f.RetryAfter)
}

func TestStoppingSendsClientsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.admin.connect("")
	c.say("m1", "hello")
	c.turn("m1")
	require.NoError(t, r.gates[0].stop())
	require.Equal(t, 1001, c.closeCode())
}

// Browsers open connections in advance; one that never brought a request must not hold the gateway up.
func TestStoppingDoesNotWaitForUnusedConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(d *Deps) { d.Settings.DrainTimeout = patience })
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.url(), "http://"))
	require.NoError(t, err)
	defer conn.Close()
	// Connections are accepted in their order: when this is answered, the one before is the server's.
	r.call(r.admin, "GET", "/api/auth/me", nil)
	began := time.Now()
	require.NoError(t, r.gates[0].stop())
	require.Less(t, time.Since(began), 3*time.Second)
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func TestUnansweredMessagesOfAPersonAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(d *Deps) { d.Settings.MaxWaiting = 3 })
	release := make(chan struct{})
	r.brain.answerWith(func(tk *talk) { <-release; tk.answer("done", "", 0) })
	c, other := r.admin.connect(""), r.member("bob").connect("")
	for i := range 3 {
		id := fmt.Sprint("m", i)
		c.say(id, "hello")
		require.Equal(t, id, c.next().LocalID)
	}
	c.say("m3", "one too many")
	f := c.next()
	require.Equal(t, "rate_limited", f.Code)
	require.Equal(t, "m3", f.LocalID)
	require.Positive(t, f.RetryAfter)
	require.Contains(t, f.Payload, "3 of your messages")
	c.say("m0", "hello")
	f = c.next()
	require.Equal(t, "CHAT", f.Type, "what was accepted is not refused when it is sent again: %+v", f)
	other.say("x", "others are not concerned")
	require.Equal(t, "CHAT", other.next().Type)
	close(release)
	for range 3 { // in any order: this brain answers all at once
		require.Equal(t, "answered", c.next().Status)
	}
	c.say("m3", "now it may")
	require.Equal(t, "m3", c.next().LocalID)
}

// Who connects without a cursor is told where they stand, so that a break before the first message loses nothing.
func TestAConnectionIsToldWhereItStands(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.admin.connect("")
	at := <-c.ready
	c.close()
	w := r.admin.connect("")
	w.say("m1", "said while away")
	w.turn("m1")
	back := r.admin.connect(after(at))
	frames := back.turn("m1")
	require.Equal(t, "m1", frames[0].LocalID)
	back.close()
	last := frames[len(frames)-1].Seq
	require.GreaterOrEqual(t, <-r.admin.connect("").ready, last)
	require.Empty(t, back.ready, "who catches up has a cursor")
	bad := r.admin.connect("after=nonsense")
	require.Equal(t, "ERROR", bad.next().Type)
	require.GreaterOrEqual(t, <-bad.ready, last)
}

func TestErrorsAreInThePersonsLanguage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.admin.connect("lang=zh")
	for payload, want := range map[string]string{
		" ":                                 "消息是空的",
		strings.Repeat("x", chat.MaxText+1): "内容太长，一条消息最多 256 KiB",
	} {
		c.say("m", payload)
		require.Equal(t, want, c.next().Payload)
	}
	c.send(map[string]any{"type": "NOTHING"})
	require.Contains(t, c.next().Payload, "请求有误（")
	english := r.admin.connect("lang=en")
	english.say("m", " ")
	require.Equal(t, "the message is empty", english.next().Payload)

	bob := r.member("bob")
	zh := header{"Accept-Language", "fr, zh-Hans-CN;q=0.8, en;q=0.5"}
	for _, c := range []struct {
		who          *user
		method, path string
		body         any
		status       int
		en, zh       string
	}{
		{nil, "GET", "/api/auth/me", nil, 401, "sign in first", "请先登录"},
		{nil, "POST", "/api/auth/login", map[string]any{"username": "bob", "password": "no"}, 401, "the name or the password is wrong", "用户名或密码错误"},
		{nil, "POST", "/api/auth/login", map[string]any{}, 400, "username and password are needed", "需要用户名和密码"},
		{bob, "POST", "/api/auth/password", map[string]any{"current_password": "no", "new_password": "xxxxxxxx"}, 403,
			"the current password is not right", "当前密码不正确"},
		{bob, "GET", "/api/chat/threads/999", nil, 404, "there is no such conversation", "没有这个会话"},
		{bob, "GET", "/api/chat/threads/x", nil, 404, "there is no /api/chat/threads/x", "没有 /api/chat/threads/x"},
		{bob, "GET", "/api/nothing", nil, 404, "there is no GET /api/nothing", "没有 GET /api/nothing"},
		{bob, "GET", "/api/users", nil, 403, "only an administrator may do this", "只有管理员可以执行此操作"},
		{bob, "POST", "/api/tokens", map[string]any{"name": " "}, 400, "a personal token needs a name", "个人令牌需要一个名称"},
		{bob, "POST", "/api/tokens", map[string]any{"name": strings.Repeat("x", 500)}, 400, "the name of a token has at most", "令牌名称最多"},
		{r.admin, "POST", "/api/users", map[string]any{"username": "bob", "password": "correct horse", "role": "MEMBER"}, 409,
			"the name bob is taken; choose another", "名称 bob 已被使用，请换一个"},
		{r.admin, "POST", "/api/users", map[string]any{"username": "eve", "password": "x", "role": "MEMBER"}, 400, "a password must have", "密码必须为"},
		{r.admin, "GET", "/api/audit?limit=9999", nil, 400, "limit must be a whole number from 1 to 500", "limit 必须是 1 到 500 之间的整数"},
		{bob, "GET", "/api/approvals?limit=x", nil, 400, "limit must be a whole number from 1 to 200", "limit 必须是 1 到 200 之间的整数"},
		{bob, "GET", "/api/chat/threads?limit=0", nil, 400, "limit must be a whole number of at least 1", "limit 必须是不小于 1 的整数"},
		{bob, "POST", "/v1/chat/completions", map[string]any{"messages": []any{}}, 400, "messages is needed", "请求有误（messages is needed"},
	} {
		res := r.call(c.who, c.method, c.path, c.body)
		require.Equal(t, c.status, res.status, "%s: %s", c.path, res.text())
		require.Contains(t, res.text(), c.en)
		code := res.code()
		res = r.call(c.who, c.method, c.path, c.body, zh)
		require.Equal(t, c.status, res.status, "%s: %s", c.path, res.text())
		require.Contains(t, res.text(), c.zh)
		require.Equal(t, code, res.code(), "programs read the code")
	}
	// A limit is told in words too.
	var res *response
	for range 40 {
		if res = r.call(nil, "POST", "/api/auth/login", map[string]any{"username": "bob", "password": "no"}, zh); res.status == 429 {
			break
		}
	}
	require.Equal(t, 429, res.status)
	require.Contains(t, res.text(), "登录失败次数过多")
	// What the body says of the language counts before the header.
	res = r.call(bob, "POST", "/api/chat/messages", map[string]any{"text": " ", "language": "en"}, zh)
	require.Contains(t, res.text(), "the message is empty")
}

func TestAcceptLanguage(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"":                                "",
		"*":                               "",
		"fr":                              "",
		"zh":                              "zh",
		"ZH-cn":                           "zh",
		"zh-Hans":                         "zh",
		"zh_CN":                           "zh",
		"zha":                             "",
		"english":                         "",
		"en-GB,en;q=0.9,zh;q=0.8":         "en",
		"zh-CN,zh;q=0.9,en;q=0.8":         "zh",
		"en;q=0.5, zh;q=0.7":              "zh",
		"en;q=0.7, zh;q=0.7":              "en",
		"fr, de;q=0.9, zh-TW;q=0.1":       "zh",
		"zh;q=0":                          "",
		"zh;q=0, en;q=0.1":                "en",
		"zh;q=2, en;q=0.1":                "en",
		"zh;q=x":                          "",
		"zh;q=NaN, en":                    "en",
		" zh ; Q = 0.9 , en ; q=0.8":      "zh",
		",,;;,zh":                         "zh",
		strings.Repeat("fr,", 40) + "zh":  "",
		strings.Repeat("x", 2000):         "",
		"zh," + strings.Repeat("f", 2000): "zh",
	} {
		require.Equal(t, want, acceptedLanguage(header), "%.60q", header)
	}
}
