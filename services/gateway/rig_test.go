package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/bus/bustest"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/storage"
	"github.com/butlerhub/butler/pkg/storage/storagetest"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/gateway/store"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgconn.(*PgConn).asyncClose.func1"))
}

const (
	adminName     = "ada"
	adminPassword = "correct horse battery"
	patience      = time.Minute // how long a test waits for what must happen
)

// rig is a gateway, or several, with a real bus and a real database, and a brain that the test scripts.
type rig struct {
	tb    testing.TB
	bus   *bus.Bus
	db    *storage.DB
	store *store.Store
	brain *fakeBrain
	gates []*gate
	admin *user
}

// gate is one running gateway.
type gate struct {
	*Service
	url  string
	stop func() error
}

// user is somebody who is signed in.
type user struct {
	rig   *rig
	id    int64
	name  string
	token string
}

type option func(*Deps)

func newRig(tb testing.TB, opts ...option) *rig {
	tb.Helper()
	return newRigOn(tb, storagetest.SQLiteURL(tb), opts...)
}

func newRigOn(tb testing.TB, url string, opts ...option) *rig {
	tb.Helper()
	return newRigWith(tb, bustest.Connect(tb, bustest.Server(tb, ""), "gateway"), url, opts...)
}

func newRigWith(tb testing.TB, b *bus.Bus, url string, opts ...option) *rig {
	tb.Helper()
	r := &rig{tb: tb, bus: b}
	r.db = storagetest.Open(tb, url)
	st, err := store.New(r.db, store.Options{Password: store.Params{Time: 1, MemoryKiB: 64, Threads: 1}})
	require.NoError(tb, err)
	r.store = st
	require.NoError(tb, st.Migrate(tb.Context()))
	_, err = FirstAdmin(tb.Context(), st, adminName, adminPassword, "")
	require.NoError(tb, err)
	r.brain = startBrain(tb, r.bus)
	r.gate(opts...)
	r.admin = r.signIn(adminName, adminPassword)
	return r
}

// gate starts a gateway and waits until it serves.
func (r *rig) gate(opts ...option) *gate {
	r.tb.Helper()
	ln, err := new(net.ListenConfig).Listen(r.tb.Context(), "tcp", "127.0.0.1:0")
	require.NoError(r.tb, err)
	d := Deps{
		Bus: r.bus, Store: r.store, Listener: ln, Brain: r.brain,
		Settings: Settings{MessageRate: 1000, MessageBurst: 1000, DrainTimeout: 3 * time.Second},
	}
	for _, o := range opts {
		o(&d)
	}
	s, err := New(d)
	require.NoError(r.tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	g := &gate{Service: s, url: "http://" + ln.Addr().String()}
	g.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	r.tb.Cleanup(func() { require.NoError(r.tb, g.stop()) })
	r.gates = append(r.gates, g)
	select {
	case <-s.hub.started:
	case <-time.After(patience):
		r.tb.Fatal("the gateway does not start")
	}
	return g
}

func (r *rig) url() string { return r.gates[0].url }

// member makes a person and signs them in.
func (r *rig) member(name string) *user {
	r.tb.Helper()
	password := "password of " + name
	_, err := r.store.CreatePerson(r.tb.Context(), store.NewPerson{Name: name, Role: store.Member, Password: password})
	require.NoError(r.tb, err)
	return r.signIn(name, password)
}

func (r *rig) signIn(name, password string) *user {
	r.tb.Helper()
	res := r.call(nil, "POST", "/api/auth/login", map[string]string{"username": name, "password": password})
	require.Equal(r.tb, http.StatusOK, res.status, res.text())
	var out struct {
		Token string
		User  struct{ ID int64 }
	}
	res.into(&out)
	return &user{rig: r, id: out.User.ID, name: name, token: out.Token}
}

// response is what an HTTP call gave.
type response struct {
	tb     testing.TB
	status int
	header http.Header
	body   []byte
}

func (r *response) text() string { return string(r.body) }
func (r *response) into(v any) {
	r.tb.Helper()
	require.NoError(r.tb, json.Unmarshal(r.body, v), string(r.body))
}

func (r *response) code() string {
	var e struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal(r.body, &e)
	return e.Code
}

type header struct{ name, value string }

// call makes an HTTP call; u may be nil, body a string or anything that is JSON.
func (r *rig) call(u *user, method, path string, body any, headers ...header) *response {
	r.tb.Helper()
	return r.callAt(r.url(), u, method, path, body, headers...)
}

func (r *rig) callAt(base string, u *user, method, path string, body any, headers ...header) *response {
	r.tb.Helper()
	var rd io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		rd = strings.NewReader(b)
	default:
		data, err := json.Marshal(b)
		require.NoError(r.tb, err)
		rd = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(r.tb.Context(), method, base+path, rd)
	require.NoError(r.tb, err)
	if u != nil {
		req.Header.Set("Authorization", "Bearer "+u.token)
	}
	for _, h := range headers {
		req.Header.Set(h.name, h.value)
	}
	res, err := testClient.Do(req)
	require.NoError(r.tb, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(r.tb, err)
	return &response{r.tb, res.StatusCode, res.Header, data}
}

// testClient keeps no connections, so that none outlives a test.
var testClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// seen is a frame as a client reads it.
type seen struct {
	Type           string          `json:"type"`
	ID             uint64          `json:"id"`
	LocalID        string          `json:"local_id"`
	ConversationID int64           `json:"conversation_id"`
	SenderID       int64           `json:"sender_id"`
	SenderName     string          `json:"sender_name"`
	SenderRole     string          `json:"sender_role"`
	TargetID       int64           `json:"target_id"`
	Payload        string          `json:"payload"`
	StreamID       string          `json:"stream_id"`
	ReplyTo        uint64          `json:"reply_to"`
	ReplyToLocalID string          `json:"reply_to_local_id"`
	Status         string          `json:"status"`
	Reason         string          `json:"reason"`
	Code           string          `json:"code"`
	RetryAfter     int             `json:"retry_after"`
	Usage          json.RawMessage `json:"usage"`
	Timestamp      string          `json:"timestamp"`
	Seq            uint64          `json:"seq"`
	ActionID       string          `json:"action_id"`
	Shell          json.RawMessage `json:"shell"`
	Attach         string          `json:"attach"`
	Card           *cardJSON       `json:"-"` // of a frame about a request for approval
}

// UnmarshalJSON reads a frame; those about requests for approval have an object as payload.
func (s *seen) UnmarshalJSON(data []byte) error {
	type plain seen
	var f struct {
		*plain
		Payload json.RawMessage `json:"payload"`
	}
	f.plain = (*plain)(s)
	if err := json.Unmarshal(data, &f); err != nil {
		return err
	}
	switch {
	case len(f.Payload) == 0:
		return nil
	case f.Payload[0] == '"':
		return json.Unmarshal(f.Payload, &s.Payload)
	}
	var top cardJSON
	s.Card = &cardJSON{}
	if err := errors.Join(json.Unmarshal(f.Payload, s.Card), json.Unmarshal(data, &top)); err != nil {
		return err
	}
	if !reflect.DeepEqual(top, *s.Card) {
		return fmt.Errorf("the frame and its payload differ: %s", data)
	}
	return nil
}

// client is one WebSocket of a person.
type client struct {
	tb     testing.TB
	ws     *websocket.Conn
	ready  chan uint64 // the seq of READY
	frames chan seen
	closed chan struct{} // closed when the connection ended; then err says why
	err    error
}

func (u *user) connect(query string) *client {
	u.rig.tb.Helper()
	return u.connectAt(u.rig.url(), query)
}

func (u *user) connectAt(base, query string) *client {
	u.rig.tb.Helper()
	c, err := u.dial(base, query)
	require.NoError(u.rig.tb, err)
	return c
}

func (u *user) dial(base, query string) (*client, error) {
	if query != "" {
		query = "?" + query
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ws, res, err := websocket.Dial(ctx, base+"/api/ws"+query, &websocket.DialOptions{
		HTTPClient: testClient, HTTPHeader: http.Header{"Authorization": {"Bearer " + u.token}},
	})
	if err != nil {
		if res != nil {
			err = fmt.Errorf("%d: %w", res.StatusCode, err)
		}
		return nil, err
	}
	ws.SetReadLimit(8 << 20)
	c := &client{tb: u.rig.tb, ws: ws, ready: make(chan uint64, 1), frames: make(chan seen, 4096), closed: make(chan struct{})}
	go func() {
		defer close(c.closed)
		defer close(c.frames)
		for {
			_, data, err := ws.Read(context.Background())
			if err != nil {
				c.err = err
				return
			}
			var f seen
			if err := json.Unmarshal(data, &f); err != nil {
				c.err = fmt.Errorf("%w: %s", err, data)
				return
			}
			if f.Type == "READY" {
				c.ready <- f.Seq
				continue
			}
			c.frames <- f
		}
	}()
	u.rig.tb.Cleanup(c.close)
	return c, nil
}

func (c *client) close() {
	_ = c.ws.CloseNow()
	<-c.closed
}

func (c *client) send(v any) {
	c.tb.Helper()
	data, isBytes := v.([]byte)
	if !isBytes {
		var err error
		data, err = json.Marshal(v)
		require.NoError(c.tb, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(c.tb, c.ws.Write(ctx, websocket.MessageText, data))
}

func (c *client) say(localID, text string) {
	c.tb.Helper()
	c.send(map[string]any{"type": "CHAT", "target_id": 2, "local_id": localID, "payload": text})
}

// next waits for the next frame.
func (c *client) next() seen {
	c.tb.Helper()
	select {
	case f, ok := <-c.frames:
		if !ok {
			c.tb.Fatalf("the connection ended: %v", c.err)
		}
		return f
	case <-time.After(patience):
		c.tb.Fatal("no frame came")
	}
	return seen{}
}

// until reads frames up to the first for which done is true.
func (c *client) until(done func(seen) bool) []seen {
	c.tb.Helper()
	var out []seen
	for {
		f := c.next()
		out = append(out, f)
		if done(f) {
			return out
		}
	}
}

// turn reads frames until the turn of a message has ended for this client.
func (c *client) turn(localID string) []seen {
	c.tb.Helper()
	return c.until(func(f seen) bool { return f.Type == "CHAT_STREAM_END" && f.ReplyToLocalID == localID })
}

// silent says that nothing comes, by a message of its own that is refused: what was to come before it has come.
func (c *client) silent() {
	c.tb.Helper()
	c.send(map[string]any{"type": "NOTHING"})
	f := c.next()
	require.Equal(c.tb, "ERROR", f.Type, "%+v", f)
}

func (c *client) closeCode() int {
	c.tb.Helper()
	select {
	case <-c.closed:
	case <-time.After(patience):
		c.tb.Fatal("the connection does not end")
	}
	return int(websocket.CloseStatus(c.err))
}

// fakeBrain answers what people say, as a test scripts it, with the events of architecture.md.
type fakeBrain struct {
	tb  testing.TB
	bus *bus.Bus

	mu       sync.Mutex
	script   func(*talk)
	complete func(*butlerv1.CompleteRequest, func(*butlerv1.CompleteResponse) error) error
	asked    []*butlerv1.ChatAsked
	wg       sync.WaitGroup
}

// talk is one turn that is being answered.
type talk struct {
	*fakeBrain
	turn  chat.Turn
	seq   uint64 // last of the turn
	asked *butlerv1.ChatAsked
}

func startBrain(tb testing.TB, b *bus.Bus) *fakeBrain {
	f := &fakeBrain{tb: tb, bus: b}
	f.answerWith(func(t *talk) { t.stream("You said: ", t.asked.GetText()) })
	ctx, cancel := context.WithCancel(context.Background())
	started := make(chan struct{})
	var once sync.Once
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.Follow(ctx, bus.Follow{
			Stream: bus.ChatStream, Filters: []string{chat.AllAsked}, FromNow: true,
			Started: func(uint64) { once.Do(func() { close(started) }) },
		}, func(s bus.Stored) {
			ev, err := decodeChat(s)
			var asked butlerv1.ChatAsked
			if err != nil || chat.Decode(s.Data, &asked) != nil {
				return
			}
			turn := ev.turn
			f.mu.Lock()
			script := f.script
			f.asked = append(f.asked, &asked)
			f.mu.Unlock()
			f.wg.Go(func() { script(&talk{f, turn, s.Seq, &asked}) })
		})
	}()
	<-started
	tb.Cleanup(func() { cancel(); <-done; f.wg.Wait() })
	return f
}

func (f *fakeBrain) answerWith(script func(*talk)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = script
}

func (f *fakeBrain) questions() []*butlerv1.ChatAsked {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*butlerv1.ChatAsked(nil), f.asked...)
}

// stream answers at once, in pieces.
func (t *talk) stream(pieces ...string) {
	id := t.turn.ID + "-1-1"
	for i, p := range pieces {
		t.delta(id, i+1, p)
	}
	t.answer(strings.Join(pieces, ""), id, len(pieces))
}

func (t *talk) delta(stream string, index int, text string) {
	t.send(&butlerv1.ChatDelta{StreamId: stream, Index: int32(index), Text: text})
}

func (t *talk) abandon(stream string, index int) {
	t.send(&butlerv1.ChatDelta{StreamId: stream, Index: int32(index), End: true})
}

func (t *talk) send(d *butlerv1.ChatDelta) {
	d.Turn, d.ConversationId, d.ReplyToLocalId = t.turn.ID, t.turn.Thread, t.asked.GetLocalId()
	data, err := chat.Encode(d)
	if err != nil {
		t.tb.Errorf("a delta: %v", err)
	}
	// What cannot be sent is lost, as with the real brain.
	_ = t.bus.Send(context.Background(), bus.NewEvent(chat.TypeDelta, "/test/brain", t.turn.Delta(), data))
}

func (t *talk) answer(text, stream string, deltas int) {
	t.end(chat.Answered, "", text, stream, deltas)
}

func (t *talk) end(status, reason, text, stream string, deltas int) {
	t.outcome(&butlerv1.ChatOutcome{Status: status, Reason: reason, Result: &butlerv1.ChatReply{
		Text: text, StreamId: stream, Deltas: int32(deltas), Model: "fake", Usage: &butlerv1.Usage{PromptTokens: 7, CompletionTokens: 3, ModelCalls: 1},
	}})
}

func (t *talk) outcome(end *butlerv1.ChatOutcome) {
	end.Result.ConversationId, end.Result.ReplyToLocalId = t.turn.Thread, t.asked.GetLocalId()
	data, err := chat.Encode(&butlerv1.ChatAnswer{Worker: "test", End: end})
	if err != nil {
		t.tb.Errorf("an answer: %v", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ev := bus.NewEvent(chat.TypeAnswer, "/test/brain", t.turn.Subject(chat.Answer), data)
	_, err = t.bus.Append(ctx, ev, bus.Expect{Filter: t.turn.Filter(), Seq: t.seq})
	if err != nil && !errors.Is(err, bus.ErrFenced) {
		t.tb.Errorf("an answer: %v", err)
	}
}

// chunks joins the text of a stream, and says how many times frames of each type came.
func chunks(frames []seen) (text string, types map[string]int) {
	types = map[string]int{}
	for _, f := range frames {
		types[f.Type]++
		if f.Type == "CHAT_STREAM" {
			text += f.Payload
		}
	}
	return text, types
}
