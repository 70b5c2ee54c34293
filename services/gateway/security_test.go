package gateway

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/gateway/store"
)

// Every route, for nobody, for a member, and with another person's ids.
func TestNobodyReachesWhatIsAnothers(t *testing.T) {
	t.Parallel()
	f := &fakeApproval{tb: t}
	shells := &fakeShells{host: "host1"}
	r := newRig(t, withApproval(f), withShells(shells))
	bob, eve := r.member("bob"), r.member("eve")
	request := f.request(bob, "K7QF")
	ran := f.request(bob, "M2PX", func(a *butlerv1.Approval) { a.Status = "approved" })
	f.used(ran, "ended", &butlerv1.CommandOutcome{Output: "secret"})
	var thread struct{ ID int64 }
	r.call(bob, "POST", "/api/chat/threads", map[string]any{"title": "bob's"}).into(&thread)
	res := r.call(bob, "POST", "/api/chat/messages", map[string]any{"conversation_id": thread.ID, "text": "secret", "local_id": "m1", "wait": 20})
	require.Equal(t, 200, res.status)
	var token struct{ ID int64 }
	r.call(bob, "POST", "/api/tokens", map[string]any{"name": "bob's"}).into(&token)
	foreign := map[string]string{
		"/api/tokens/{id}": fmt.Sprint("/api/tokens/", token.ID), "/api/users/{id}": fmt.Sprint("/api/users/", bob.id),
		"/api/chat/threads/{id}":          fmt.Sprint("/api/chat/threads/", thread.ID),
		"/api/chat/threads/{id}/messages": fmt.Sprint("/api/chat/threads/", thread.ID, "/messages"),
		"/api/chat/history/{peer_id}":     fmt.Sprint("/api/chat/history/", bob.id),
		"/api/approvals/{id}":             "/api/approvals/" + request.GetId(),
		"/api/approvals/{id}/decision":    "/api/approvals/" + request.GetId() + "/decision",
		"/api/shells/{host}/{person}":     fmt.Sprint("/api/shells/host1/", bob.id),

		"/api/shell/commands/{approval_id}/output": "/api/shell/commands/" + ran.GetId() + "/output",
	}
	bodies := map[string]any{
		"PATCH /api/users/{id}": map[string]any{"role": "ADMIN"}, "PATCH /api/chat/threads/{id}": map[string]any{"title": "eve's"},
		"POST /api/chat/messages":           map[string]any{"conversation_id": thread.ID, "text": "x", "local_id": "m1"},
		"POST /api/chat/stop":               map[string]any{"conversation_id": thread.ID, "local_id": "m1"},
		"POST /api/approvals/{id}/decision": map[string]any{"approved": true},
		"POST /api/chat/auth/response":      map[string]any{"action_id": request.GetId(), "approved": true},
		"POST /api/users":                   map[string]any{"username": "x", "password": "long enough", "role": "ADMIN"},
	}
	for _, rt := range r.gates[0].api() {
		name := rt.method + " " + rt.path
		path, hasID := foreign[rt.path]
		if !hasID {
			path = rt.path
			require.NotContains(t, path, "{", "add a foreign id for %s", name)
		}
		body := bodies[name]
		if rt.who != anybody {
			require.Equal(t, http.StatusUnauthorized, r.call(nil, rt.method, path, body).status, name)
			require.Equal(t, http.StatusUnauthorized, r.call(&user{rig: r, token: "btl_wrong"}, rt.method, path, body).status, name)
		}
		switch {
		case rt.who == adminOnly, strings.HasSuffix(rt.path, "/decision"), strings.HasSuffix(rt.path, "/auth/response"):
			require.Equal(t, http.StatusForbidden, r.call(eve, rt.method, path, body).status, name)
		case hasID || strings.HasPrefix(name, "POST /api/chat/messages") || strings.HasPrefix(name, "POST /api/chat/stop"):
			res := r.call(eve, rt.method, path, body)
			require.Equal(t, http.StatusNotFound, res.status, "%s: %s", name, res.text())
			require.NotContains(t, res.text(), "secret")
		}
	}
	require.Equal(t, "[]", r.call(eve, "GET", "/api/approvals", nil).text())
	require.Empty(t, shells.closed)
	got, _, err := f.find(request.GetId())
	require.NoError(t, err)
	require.Equal(t, "pending", got.GetStatus())
	// Nor by the event stream or the WebSocket.
	c := eve.connect(after(0))
	c.silent()
	c.send(map[string]any{"type": "CHAT", "conversation_id": thread.ID, "payload": "x"})
	require.Equal(t, "not_found", c.next().Code)
	c.send(map[string]any{"type": "AUTH_RESPONSE", "action_id": request.GetId(), "approved": true})
	require.Equal(t, "forbidden", c.next().Code)
	// An administrator is no exception: conversations are their owner's.
	require.Equal(t, http.StatusNotFound, r.call(r.admin, "GET", foreign["/api/chat/threads/{id}/messages"], nil).status)
	var page []messageJSON
	r.call(bob, "GET", foreign["/api/chat/threads/{id}/messages"], nil).into(&page)
	require.Len(t, page, 2)
}

// Identity travels with each message: an admin and a member who speak at the same time are never taken for each other.
func TestIdentityTravelsWithTheMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bob := r.member("bob")
	var wg sync.WaitGroup
	for _, u := range []*user{r.admin, bob} {
		c := u.connect("")
		wg.Go(func() {
			for i := range 50 {
				c.say(fmt.Sprint("m", i), u.name)
				for _, f := range c.turn(fmt.Sprint("m", i)) {
					if f.Type == "CHAT" && f.SenderRole != "BUTLER" && (f.SenderID != u.id || f.SenderName != u.name) {
						t.Errorf("%s sees %+v", u.name, f)
					}
				}
			}
		})
	}
	wg.Wait()
	for _, q := range r.brain.questions() {
		require.Equal(t, q.GetText(), q.GetSender().GetName())
		require.Equal(t, map[string]string{adminName: "ADMIN", "bob": "MEMBER"}[q.GetText()], q.GetSender().GetRole())
	}
}

func TestARevokedTokenEndsEverywhereWithinASecond(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.gate()
	bob := r.member("bob")
	var token struct {
		ID    int64
		Token string
	}
	r.call(bob, "POST", "/api/tokens", map[string]any{"name": "program"}).into(&token)
	program := &user{rig: r, id: bob.id, token: token.Token}
	here, there := program.connect(""), program.connectAt(r.gates[1].url, "")
	still := bob.connectAt(r.gates[1].url, "")
	require.Equal(t, 200, r.callAt(r.gates[1].url, program, "GET", "/api/auth/me", nil).status)
	began := time.Now()
	require.Equal(t, http.StatusNoContent, r.call(bob, "DELETE", fmt.Sprint("/api/tokens/", token.ID), nil).status)
	require.Equal(t, 4401, here.closeCode())
	require.Equal(t, 4401, there.closeCode())
	t.Logf("revoked within %s", time.Since(began))
	require.Equal(t, 401, r.callAt(r.gates[1].url, program, "GET", "/api/auth/me", nil).status)
	still.say("m1", "hello")
	still.turn("m1")

	// A changed role holds for connections that are open, a disabled person has none.
	require.Equal(t, 403, r.call(bob, "GET", "/api/users", nil).status)
	require.Equal(t, 200, r.call(r.admin, "PATCH", fmt.Sprint("/api/users/", bob.id), map[string]any{"role": "ADMIN"}).status)
	require.Eventually(t, func() bool { return r.callAt(r.gates[1].url, bob, "GET", "/api/users", nil).status == 200 }, patience, 5*time.Millisecond)
	require.Eventually(t, func() bool {
		still.say(fmt.Sprint("m", time.Now().UnixNano()), "who am I?")
		qs := r.brain.questions()
		return qs[len(qs)-1].GetSender().GetRole() == "ADMIN"
	}, patience, 20*time.Millisecond)
	require.Equal(t, 200, r.call(r.admin, "PATCH", fmt.Sprint("/api/users/", bob.id), map[string]any{"disabled": true}).status)
	require.Equal(t, 4401, still.closeCode())
	require.Equal(t, 401, r.call(bob, "GET", "/api/auth/me", nil).status)
}

func TestFailedSignInsAreLimited(t *testing.T) {
	t.Parallel()
	now := time.Now() // stands still
	r := newRig(t, func(d *Deps) {
		d.Clock = func() time.Time { return now }
		d.Settings.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	from := func(addr string) header { return header{"X-Forwarded-For", "1.2.3.4, " + addr} }
	try := func(name, password, addr string) *response {
		return r.call(nil, "POST", "/api/auth/login", map[string]string{"username": name, "password": password}, from(addr))
	}
	// Right ones do not count.
	for range 15 {
		require.Equal(t, 200, try(adminName, adminPassword, "10.0.0.1").status)
	}
	// By name and address.
	for range 10 {
		res := try(strings.ToUpper(adminName), "wrong password", "10.2.0.1")
		require.Equal(t, 401, res.status, res.text())
	}
	res := try(adminName, adminPassword, "10.2.0.1")
	require.Equal(t, 429, res.status)
	require.NotEmpty(t, res.header.Get("Retry-After"))
	// By name from many addresses: it becomes slow, and stays possible with the right password from elsewhere.
	var pauses []time.Duration
	r.gates[0].signIns.pause = func(_ context.Context, d time.Duration) error { pauses = append(pauses, d); return nil }
	for i := range 100 {
		require.Equal(t, 401, try(adminName, "wrong password", fmt.Sprint("10.1.0.", i)).status)
	}
	require.Equal(t, 200, try(adminName, adminPassword, "10.2.0.2").status)
	require.IsIncreasing(t, pauses[:4])
	require.LessOrEqual(t, slices.Max(pauses), 5*time.Second)
	// Who is signed in can still change their password, and is limited by their own attempts alone.
	change := map[string]string{"current_password": "wrong password", "new_password": "another password"}
	for range 10 {
		require.Equal(t, 403, r.call(r.admin, "POST", "/api/auth/password", change, from("10.2.0.1")).status)
	}
	require.Equal(t, 429, r.call(r.admin, "POST", "/api/auth/password", change, from("10.2.0.1")).status)
	// By address, for any number of names.
	for i := range 30 {
		require.Equal(t, 401, try(fmt.Sprint("nobody", i), "wrong password", "10.3.0.1").status)
	}
	require.Equal(t, 429, try("somebody", "wrong password", "10.3.0.1").status)
	require.Equal(t, 401, try("somebody", "wrong password", "10.3.0.2").status)
}

func TestForwardedAddressesAreOnlyBelievedFromProxies(t *testing.T) {
	t.Parallel()
	s := &Service{settings: Settings{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
	for _, c := range []struct{ peer, forwarded, want string }{
		{"192.0.2.1:5", "9.9.9.9", "192.0.2.1"},
		{"10.0.0.1:5", "9.9.9.9", "9.9.9.9"},
		{"10.0.0.1:5", "1.1.1.1, 9.9.9.9, 10.0.0.2", "9.9.9.9"},
		{"10.0.0.1:5", "garbage", "10.0.0.1"},
		{"10.0.0.1:5", "", "10.0.0.1"},
		{"[::ffff:192.0.2.1]:5", "9.9.9.9", "192.0.2.1"},
	} {
		r := &http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": {c.forwarded}}}
		require.Equal(t, c.want, s.client(r).String(), "%+v", c)
	}
}

// A page of another site cannot use the cookie: not for a change, and not for a WebSocket.
func TestTheCookieIsForTheOwnPageOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(d *Deps) { d.Settings.AllowedOrigins = []string{"https://app.example.org"} })
	login := r.call(nil, "POST", "/api/auth/login", map[string]string{"username": adminName, "password": adminPassword})
	set := login.header.Get("Set-Cookie")
	for _, attribute := range []string{"HttpOnly", "SameSite=Strict", "Path=/"} {
		require.Contains(t, set, attribute)
	}
	require.NotContains(t, set, "Secure", "the connection is not https")
	cookie := header{"Cookie", strings.Split(set, ";")[0]}
	require.Equal(t, 200, r.call(nil, "GET", "/api/auth/me", nil, cookie).status)
	require.Equal(t, 201, r.call(nil, "POST", "/api/chat/threads", map[string]any{}, cookie, header{"Sec-Fetch-Site", "same-origin"}).status)
	require.Equal(t, 201, r.call(nil, "POST", "/api/chat/threads", map[string]any{}, cookie, header{"Origin", r.url()}).status)
	for _, evil := range []header{{"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "same-site"}} {
		require.Equal(t, 403, r.call(nil, "POST", "/api/chat/threads", map[string]any{}, cookie, evil).status, evil)
		require.Equal(t, 403, r.call(nil, "POST", "/api/auth/logout", nil, cookie, evil).status, evil)
		require.Equal(t, 403, r.call(nil, "POST", "/api/auth/login", map[string]string{"username": adminName, "password": adminPassword}, evil).status, evil)
		for _, path := range []string{"/api/events"} {
			require.Equal(t, 403, r.call(nil, "GET", path, nil, cookie, evil).status, evil)
		}
		_, res, err := websocket.Dial(t.Context(), r.url()+"/api/ws", &websocket.DialOptions{
			HTTPClient: testClient, HTTPHeader: http.Header{"Cookie": {cookie.value}, evil.name: {evil.value}},
		})
		require.Error(t, err)
		require.Equal(t, 403, res.StatusCode)
	}
	ws, _, err := websocket.Dial(t.Context(), r.url()+"/api/ws", &websocket.DialOptions{
		HTTPClient: testClient, HTTPHeader: http.Header{"Cookie": {cookie.value}, "Origin": {r.url()}},
	})
	require.NoError(t, err)
	require.NoError(t, ws.CloseNow())
	// Other sites see nothing unless they are allowed, and then only with a token.
	res := r.call(nil, "GET", "/api/ping", nil, header{"Origin", "https://evil.example"})
	require.Empty(t, res.header.Get("Access-Control-Allow-Origin"))
	res = r.call(r.admin, "GET", "/api/auth/me", nil, header{"Origin", "https://app.example.org"})
	require.Equal(t, "https://app.example.org", res.header.Get("Access-Control-Allow-Origin"))
	require.Empty(t, res.header.Get("Access-Control-Allow-Credentials"))
	res = r.call(nil, "OPTIONS", "/api/chat/threads", nil, header{"Origin", "https://app.example.org"}, header{"Access-Control-Request-Method", "PATCH"})
	require.Equal(t, 204, res.status)
	require.Contains(t, res.header.Get("Access-Control-Allow-Methods"), "PATCH")
	require.Equal(t, "nosniff", res.header.Get("X-Content-Type-Options"))
}

// Tokens may stand in the query for old clients and are never logged.
func TestTokensAreNotLogged(t *testing.T) {
	t.Parallel()
	var logged syncBuffer
	r := newRig(t, func(d *Deps) {
		d.Log = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	ws, _, err := websocket.Dial(t.Context(), r.url()+"/api/ws?token="+r.admin.token, &websocket.DialOptions{HTTPClient: testClient})
	require.NoError(t, err)
	require.NoError(t, ws.CloseNow())
	require.Equal(t, 401, r.call(nil, "GET", "/api/auth/me?token="+r.admin.token, nil).status, "only the WebSocket and the event stream take it")
	var ticket struct {
		Ticket  string
		Expires int `json:"expires_in"`
	}
	r.call(r.admin, "POST", "/api/ws/ticket", nil).into(&ticket)
	require.Equal(t, 30, ticket.Expires)
	ws, _, err = websocket.Dial(t.Context(), r.url()+"/api/ws?ticket="+ticket.Ticket, &websocket.DialOptions{HTTPClient: testClient})
	require.NoError(t, err)
	require.NoError(t, ws.CloseNow())
	_, res, err := websocket.Dial(t.Context(), r.url()+"/api/ws?ticket="+ticket.Ticket, &websocket.DialOptions{HTTPClient: testClient})
	require.Error(t, err)
	require.Equal(t, 401, res.StatusCode, "a ticket is for once")
	require.Equal(t, 401, r.call(&user{rig: r, token: ticket.Ticket}, "GET", "/api/auth/me", nil).status, "and no token")
	require.NoError(t, r.gates[0].stop())
	require.Contains(t, logged.String(), "/api/ws")
	for _, secret := range []string{r.admin.token, ticket.Ticket, adminPassword, "token="} {
		require.NotContains(t, logged.String(), secret)
	}
}

func TestPasswordsAndTokensOfOnesOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bob := r.member("bob")
	old := r.signIn("bob", "password of bob")
	res := r.call(bob, "POST", "/api/auth/password", map[string]string{"current_password": "wrong", "new_password": "another one"})
	require.Equal(t, 403, res.status)
	res = r.call(bob, "POST", "/api/auth/password", map[string]string{"current_password": "password of bob", "new_password": "another one"})
	require.Equal(t, 200, res.status, res.text())
	var out struct{ Token string }
	res.into(&out)
	require.Equal(t, 401, r.call(old, "GET", "/api/auth/me", nil).status, "all other sign-ins end")
	bob.token = out.Token
	var tokens []tokenJSON
	r.call(bob, "GET", "/api/tokens", nil).into(&tokens)
	require.Len(t, tokens, 1)
	require.True(t, tokens[0].Current)
	require.Empty(t, tokens[0].Token, "a secret is shown once")
	require.Equal(t, 400, r.call(bob, "POST", "/api/tokens", map[string]any{"name": ""}).status)
	require.Equal(t, 409, r.call(r.admin, "PATCH", "/api/users/1", map[string]any{"disabled": true}).status, "an admin remains")
	require.Equal(t, 400, r.call(r.admin, "POST", "/api/users", map[string]any{"username": "x", "password": "long enough", "role": "BUTLER"}).status)
	require.Equal(t, 409, r.call(r.admin, "POST", "/api/users", map[string]any{"username": "BOB", "password": "long enough"}).status)
	require.Equal(t, 401, r.call(nil, "POST", "/api/auth/login", map[string]string{"username": "Butler", "password": "x"}).status)
}

func TestTheFirstAdministrator(t *testing.T) {
	t.Parallel()
	r := newRig(t) // made one already
	made, err := FirstAdmin(t.Context(), r.store, "other", "", t.TempDir()+"/first")
	require.NoError(t, err)
	require.Empty(t, made)
	p, err := r.store.Person(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, store.Admin, p.Role)
	b, err := r.store.Person(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, store.ButlerRole, b.Role)
}

// syncBuffer is a buffer that several may write to.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
