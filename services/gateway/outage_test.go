package gateway

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/bus/bustest"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

func TestChatGoesOnWhileTheDatabaseIsDown(t *testing.T) {
	t.Parallel()
	cluster := storagetest.New(t)
	r := newRigOn(t, cluster.NewDatabase(t))
	c := r.admin.connect("")
	c.say("m1", "before")
	c.turn("m1")
	cluster.Stop(t)
	c.say("m2", "while it is down")
	require.Len(t, c.turn("m2"), 5)
	// New connections of those who are known, too; and what was missed is told.
	c.close()
	c = r.admin.connect(after(0))
	c.turn("m2")
	res := r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": "and by HTTP", "local_id": "m3", "wait": 20})
	require.Equal(t, 200, res.status, res.text())
	// The rest says that it cannot, and when to come back.
	for _, res := range []*response{
		r.call(nil, "POST", "/api/auth/login", map[string]string{"username": adminName, "password": adminPassword}),
		r.call(r.admin, "GET", "/api/chat/history/2", nil),
		r.call(&user{rig: r, token: "btl_" + "x23456789012345678901234567890123456789012x"[:43]}, "GET", "/api/auth/me", nil),
	} {
		require.Equal(t, 503, res.status, res.text())
		require.NotEmpty(t, res.header.Get("Retry-After"))
		require.Equal(t, "unavailable", res.code())
	}
	cluster.Start(t)
	require.Eventually(t, func() bool {
		res := r.call(r.admin, "GET", "/api/chat/history/2", nil)
		var page []messageJSON
		if res.status != 200 {
			return false
		}
		res.into(&page)
		return len(page) == 6
	}, patience, 50*time.Millisecond, "what was said meanwhile is in the history")
}

// NATS is stopped under load and started again: what was accepted is answered, and what was not can be sent again.
func TestNATSStopsAndComesBack(t *testing.T) {
	t.Parallel()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := ln.Addr().String()
	require.NoError(t, ln.Close())
	dir := t.TempDir()
	start := func() *bus.Server {
		srv, err := bus.StartServer(bus.ServerOptions{Dir: dir, Addr: addr, Operator: "secret"})
		require.NoError(t, err)
		return srv
	}
	srv := start()
	t.Cleanup(func() { srv.Close() })
	b, err := bus.Connect(t.Context(), bus.Options{URL: "nats://operator:secret@" + addr, Service: "gateway"})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	require.NoError(t, b.Ensure(t.Context(), bustest.All...))
	r := newRigWith(t, b, storagetest.SQLiteURL(t))
	c := r.admin.connect("")

	const messages = 60
	var wg sync.WaitGroup
	accepted := make(chan string, messages)
	wg.Go(func() { // by HTTP, again under the same local_id until it is accepted
		for i := range messages {
			for {
				res := r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": fmt.Sprint("text ", i), "local_id": fmt.Sprint("m", i)})
				if res.status == http.StatusAccepted {
					break
				}
				if res.status != http.StatusServiceUnavailable {
					t.Errorf("%d: %s", res.status, res.text())
					return
				}
			}
			accepted <- fmt.Sprint("m", i)
		}
		close(accepted)
	})
	for range 10 {
		<-accepted
	}
	srv.Close()
	// Time without a server, while messages wait: there is nothing to wait for.
	time.Sleep(500 * time.Millisecond)
	srv = start()
	wg.Wait()
	answers := map[string]int{}
	for len(answers) < messages {
		f := c.next()
		if f.Type == "CHAT" && f.SenderRole == "BUTLER" {
			answers[f.ReplyToLocalID]++
			require.Equal(t, "You said: text "+f.ReplyToLocalID[1:], f.Payload)
		}
	}
	for id, n := range answers {
		require.Equal(t, 1, n, id)
	}
	require.Len(t, r.brain.questions(), messages)
}

// Many people at once, with a model that answers at once. BUTLER_SOAK makes it 50 people with 40 messages each.
func TestManyPeopleLoseNothing(t *testing.T) {
	r := newRig(t)
	people, messages := 12, 15
	if os.Getenv("BUTLER_SOAK") != "" {
		people, messages = 50, 40
	}
	r.brain.answerWith(func(tk *talk) {
		pieces := make([]string, 20)
		for i := range pieces {
			pieces[i] = fmt.Sprint(tk.asked.GetText(), " ", i, ". ")
		}
		tk.stream(pieces...)
	})
	var wg sync.WaitGroup
	var users []*user
	for i := range people {
		users = append(users, r.member(fmt.Sprint("person", i)))
	}
	began := time.Now()
	for _, u := range users {
		c := u.connect("")
		wg.Go(func() {
			for i := range messages {
				id := fmt.Sprint("m", i)
				c.say(id, id)
				frames := c.turn(id)
				text, types := chunks(frames)
				if types["CHAT"] != 2 || types["CHAT_STREAM"] != 20 || types["CHAT_STREAM_END"] != 1 || text != frames[21].Payload {
					t.Errorf("%s %s: %v", u.name, id, types)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%.0f turns/s", float64(people*messages)/time.Since(began).Seconds())
	for _, u := range users {
		require.Eventually(t, func() bool {
			var page []messageJSON
			r.call(u, "GET", "/api/chat/history/2?limit=200", nil).into(&page)
			return len(page) == 2*messages
		}, patience, 20*time.Millisecond, "all of it is in the history")
	}
}

func TestReplayFillsTheHistoryAgain(t *testing.T) {
	t.Parallel()
	storagetest.EachURL(t, func(t *testing.T, url string) {
		r := newRigOn(t, url)
		for i := range 5 {
			res := r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": "hello", "local_id": fmt.Sprint("m", i), "wait": 20})
			require.Equal(t, 200, res.status, res.text())
		}
		before := r.call(r.admin, "GET", "/api/chat/history/2", nil).text()
		require.NoError(t, r.store.ResetProjection(t.Context()))
		told := 0
		n, err := r.gates[0].Replay(t.Context(), func(n int) { told = n })
		require.NoError(t, err)
		require.Equal(t, 10, n)
		require.Equal(t, 10, told)
		require.JSONEq(t, before, r.call(r.admin, "GET", "/api/chat/history/2", nil).text())
	})
}

// Events whose type or content does not fit their subject are passed over, by those who read live and by the history.
func TestWhatDoesNotFitIsPassedOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.admin.connect("")
	c.say("m0", "hello")
	thread := c.turn("m0")[0].ConversationID
	turn := chat.Turn{Session: chat.Session{Person: 1, Thread: thread}, ID: "forged"}
	for i, e := range []bus.Event{
		bus.NewEvent(chat.TypeAnswer, "/x", turn.Subject(chat.Asked), []byte(`{"sender":{"id":"1"},"local_id":"forged","text":"x"}`)),
		bus.NewEvent(chat.TypeAsked, "/x", turn.Subject(chat.Asked), []byte(`{"sender":{"id":"2","name":"x","role":"ADMIN"},"local_id":"forged","text":"x"}`)),
		bus.NewEvent(chat.TypeAsked, "/x", turn.Subject(chat.Asked), []byte(`{"sender":{"id":"1"},"local_id":"other","text":"x"}`)),
		bus.NewEvent(chat.TypeAsked, "/x", turn.Subject(chat.Asked), []byte(`{`)),
		bus.NewEvent(chat.TypeAnswer, "/x", turn.Subject(chat.Answer), []byte(`{"end":{"status":"answered","result":{"text":"x","reply_to_local_id":"m9"}}}`)),
	} {
		_, err := r.bus.Publish(t.Context(), bus.ChatStream, e)
		require.NoError(t, err, i)
	}
	for _, e := range []bus.Event{
		bus.NewEvent(chat.TypeAnswer, "/x", turn.Delta(), []byte(`{"stream_id":"s","index":1,"text":"x","turn":"forged","reply_to_local_id":"forged"}`)),
		bus.NewEvent(chat.TypeDelta, "/x", turn.Delta(), []byte(`{"stream_id":"s","index":1,"text":"x","turn":"forged","reply_to_local_id":"m0"}`)),
		bus.NewEvent(chat.TypeDelta, "/x", turn.Delta(), []byte(`[]`)),
	} {
		require.NoError(t, r.bus.Send(t.Context(), e))
	}
	c.say("m1", "hello")
	for _, f := range c.turn("m1") {
		require.NotContains(t, []string{"forged"}, f.LocalID+f.ReplyToLocalID)
	}
	var page []messageJSON
	r.call(r.admin, "GET", "/api/chat/history/2", nil).into(&page)
	require.Len(t, page, 4)
	back := r.admin.connect(after(0))
	back.turn("m1")
	back.silent()
}
