package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func TestEchoCenterClientsFindTheirFields(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(d *Deps) { d.Registry = fakeRegistry{} })
	has := func(res *response, status int, fields ...string) map[string]any {
		t.Helper()
		require.Equal(t, status, res.status, res.text())
		var m map[string]any
		if err := json.Unmarshal(res.body, &m); err != nil {
			var list []map[string]any
			res.into(&list)
			require.NotEmpty(t, list)
			m = list[0]
		}
		for _, f := range fields {
			require.Contains(t, m, f, res.text())
		}
		return m
	}
	require.Equal(t, `{"message":"pong"}`, r.call(nil, "GET", "/api/ping", nil).text())
	login := has(r.call(nil, "POST", "/api/auth/login", map[string]any{"username": adminName, "password": adminPassword, "extra": 1}), 200, "token", "user")
	require.Equal(t, map[string]any{"id": 1.0, "username": adminName, "role": "ADMIN", "actor_type": "HUMAN", "created_at": login["user"].(map[string]any)["created_at"]}, login["user"])
	has(r.call(r.admin, "POST", "/api/users", map[string]any{"username": "carol", "password": "password of carol", "role": "member"}), 201, "id", "username", "role", "created_at")
	r.signIn("carol", "password of carol") // a password can be set, and used
	butler := has(r.call(r.admin, "GET", "/api/users/butler", nil), 200, "id", "username", "role")
	require.EqualValues(t, 2, butler["id"])
	require.Equal(t, "BUTLER", butler["role"])
	res := r.call(r.admin, "GET", "/api/users/agents?exclude_role=butler&q=ops&page=1&limit=1", nil)
	agent := has(res, 200, "id", "username", "role", "status", "online", "last_seen_at", "agent_kind", "description")
	require.Equal(t, "ops-1", agent["username"])
	require.Equal(t, "2", res.header.Get("X-Total-Count"))
	require.NotContains(t, res.text(), "api_token")
	has(r.call(r.admin, "GET", "/api/users/agents/status", nil), 200, "id", "username", "role", "status", "last_report")
	thread := has(r.call(r.admin, "POST", "/api/chat/threads", map[string]any{"peer_id": 2, "channel_kind": "butler_direct", "title": "Plans"}), 201,
		"id", "owner_user_id", "peer_user_id", "channel_kind", "title", "is_pinned", "is_default", "created_at", "updated_at")
	path := fmt.Sprint("/api/chat/threads/", int64(thread["id"].(float64)))
	changed := has(r.call(r.admin, "PATCH", path, map[string]any{"title": "New plans", "is_pinned": true, "is_archived": true, "summary": "s"}), 200, "archived_at", "summary")
	require.Equal(t, "New plans", changed["title"])
	require.Equal(t, true, changed["is_pinned"])
	r.call(r.admin, "PATCH", path, map[string]any{"is_archived": false})
	has(r.call(r.admin, "GET", "/api/chat/threads?peer_id=2&channel_kind=butler_direct", nil), 200, "id", "title")

	sent := r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"conversation_id": thread["id"], "text": "hello", "wait": 20})
	has(sent, 200, "id", "local_id", "conversation_id", "answer")
	m := has(r.call(r.admin, "GET", path+"/messages", nil), 200, "id", "local_id", "conversation_id", "sender_id", "receiver_id", "type", "payload", "timestamp")
	require.Equal(t, "hello", m["payload"])
	require.Equal(t, "CHAT", m["type"])
	require.EqualValues(t, 2, m["receiver_id"])
	require.Equal(t, http.StatusNoContent, r.call(r.admin, "DELETE", path, nil).status)
	require.Equal(t, http.StatusNotFound, r.call(r.admin, "GET", path, nil).status)
	require.Equal(t, http.StatusNotFound, r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"conversation_id": thread["id"], "text": "hello"}).status)
	events, err := r.bus.Load(t.Context(), "CHAT", chat.Session{Person: 1, Thread: int64(thread["id"].(float64))}.Filter(), 0, 0)
	require.NoError(t, err)
	require.Empty(t, events, "nothing of it is left in the log")

	// What was documented and missing there.
	has(r.call(r.admin, "GET", "/api/users", nil), 200, "id", "username")
	require.Equal(t, http.StatusOK, r.call(r.admin, "POST", "/api/auth/logout", nil).status)
	require.Equal(t, http.StatusUnauthorized, r.call(r.admin, "GET", "/api/auth/me", nil).status)
}

type fakeRegistry struct{ butlerv1.RegistryServiceClient }

func (fakeRegistry) ListAgents(context.Context, *butlerv1.ListAgentsRequest, ...grpc.CallOption) (*butlerv1.ListAgentsResponse, error) {
	at := timestamppb.New(time.Now())
	return &butlerv1.ListAgentsResponse{Agents: []*butlerv1.Agent{
		{Id: 3, Name: "ops-1", Kind: "generic", Description: "Runs things", Online: true, LastSeen: at, CreatedAt: at},
		{Id: 4, Name: "ops-2", Kind: "generic", CreatedAt: at},
	}}, nil
}

// EchoCenter's history gave the oldest rows: after many messages the newest was never seen.
func TestHistoryPagesFromTheNewest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 7 {
		res := r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"payload": fmt.Sprint("message ", i), "local_id": fmt.Sprint("m", i), "wait": 20})
		require.Equal(t, 200, res.status, res.text())
		// What was just said is there at once.
		var page []messageJSON
		r.call(r.admin, "GET", "/api/chat/history/2?limit=2", nil).into(&page)
		require.Len(t, page, 2)
		require.Equal(t, fmt.Sprint("m", i), page[0].LocalID)
		require.Equal(t, fmt.Sprint("m", i, ":answer"), page[1].LocalID)
		require.Equal(t, "answered", page[1].Status)
	}
	var all []messageJSON
	before := ""
	for {
		res := r.call(r.admin, "GET", "/api/chat/history/2?limit=4"+before, nil)
		var page []messageJSON
		res.into(&page)
		all = append(page, all...)
		next := res.header.Get("X-Next-Before")
		if next == "" {
			break
		}
		before = "&before=" + next
	}
	require.Len(t, all, 14)
	for i := 1; i < len(all); i++ {
		require.Less(t, all[i-1].ID, all[i].ID)
	}
	for _, bad := range []string{"?limit=0", "?limit=x", "?before=0", "?before=x"} {
		require.Equal(t, http.StatusBadRequest, r.call(r.admin, "GET", "/api/chat/history/2"+bad, nil).status, bad)
	}
}

func TestSendingWithoutASocket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hold := make(chan struct{})
	r.brain.answerWith(func(tk *talk) {
		if tk.asked.GetText() == "slow" {
			<-hold
		}
		tk.stream("fine")
	})
	res := r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": "slow", "local_id": "m1", "wait": 0.2})
	require.Equal(t, http.StatusAccepted, res.status)
	var out acceptedJSON
	res.into(&out)
	require.NotZero(t, out.ID)
	require.Equal(t, "m1", out.LocalID)
	require.Nil(t, out.Answer)
	close(hold)
	res = r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": "slow", "local_id": "m1", "wait": 20})
	require.Equal(t, http.StatusOK, res.status)
	var again acceptedJSON
	res.into(&again)
	require.Equal(t, out.ID, again.ID)
	require.Equal(t, "fine", again.Answer.Payload)
	require.Equal(t, out.ID, again.Answer.ReplyTo)
	require.Len(t, r.brain.questions(), 1)
	require.Equal(t, http.StatusConflict, r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": "other", "local_id": "m1"}).status)
	made := r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": "no id"}, header{"Accept-Language", "zh-CN,zh;q=0.9"})
	require.Equal(t, http.StatusAccepted, made.status)
	require.Eventually(t, func() bool { return len(r.brain.questions()) == 2 }, patience, time.Millisecond)
	require.Equal(t, "zh", r.brain.questions()[1].GetLanguage())
	for body, status := range map[string]int{
		`{"text":""}`: 400, `{`: 400, `[]`: 400, `{"text":"x","wait":61}`: 400, `{"text":"x","wait":-1}`: 400, `{"text":"x","target_id":3}`: 400,
		`{"text":"x","conversation_id":"a"}`: 400, `{"text":"x","conversation_id":424242}`: 404,
		`{"text":"` + strings.Repeat("x", chat.MaxText+1) + `"}`: 413, `{"text":"` + strings.Repeat("x", maxFrame) + `"}`: 413,
	} {
		res := r.call(r.admin, "POST", "/api/chat/messages", body)
		require.Equal(t, status, res.status, "%.60s: %s", body, res.text())
		require.NotEmpty(t, res.code())
	}
}

func TestStopping(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	release := make(chan struct{})
	r.brain.answerWith(func(tk *talk) {
		<-release
		seq, err := lastSeq(tk)
		if err != nil {
			t.Error(err)
		}
		tk.seq = seq
		tk.end(chat.Stopped, "stopped", "(stopped)", tk.turn.ID+"-1-1", 0)
	})
	stop := func(body map[string]any) (out struct {
		Stopped bool
		Turns   int
	}) {
		t.Helper()
		res := r.call(r.admin, "POST", "/api/chat/stop", body)
		require.Equal(t, 200, res.status, res.text())
		res.into(&out)
		return out
	}
	require.False(t, stop(map[string]any{}).Stopped)
	var first acceptedJSON
	r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": "one", "local_id": "m1"}).into(&first)
	r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": "two", "local_id": "m2"})
	require.Equal(t, 1, stop(map[string]any{"local_id": "m2"}).Turns)
	require.Equal(t, 2, stop(map[string]any{"conversation_id": first.ConversationID}).Turns, "a repeated stop is no error")
	require.False(t, stop(map[string]any{"local_id": "unknown"}).Stopped)
	// A gateway that began later finds them too.
	r.gate()
	res := r.callAt(r.gates[1].url, r.admin, "POST", "/api/chat/stop", map[string]any{})
	require.Contains(t, res.text(), `"turns":2`)
	close(release)
	res = r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": "one", "local_id": "m1", "wait": 20})
	require.Contains(t, res.text(), `"status":"stopped"`)
	require.Equal(t, http.StatusOK, r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": "two", "local_id": "m2", "wait": 20}).status)
	require.False(t, stop(map[string]any{}).Stopped, "what is answered is not stopped")
	stops, err := r.bus.Load(t.Context(), "CHAT", chat.PersonKindFilter(1, chat.Stop), 0, 0)
	require.NoError(t, err)
	require.Len(t, stops, 2)
}
