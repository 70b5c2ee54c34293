package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/fault"
)

// script is a gateway whose WebSocket connections are played one after the other.
type script struct {
	t     *testing.T
	url   string
	mu    sync.Mutex
	n     int
	after []string // of each connection
}

// play is one connection: it reads and writes until it returns, which breaks the connection.
type play func(c *scripted)

type scripted struct {
	t  *testing.T
	ws *websocket.Conn
}

func (c *scripted) read() map[string]any {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, data, err := c.ws.Read(ctx)
	if err != nil {
		return nil
	}
	var m map[string]any
	assert.NoError(c.t, json.Unmarshal(data, &m))
	return m
}

func (c *scripted) send(format string, args ...any) {
	_ = c.ws.Write(context.Background(), websocket.MessageText, fmt.Appendf(nil, format, args...)) // the client may be gone
}

// hold keeps the connection until the client closes it.
func (c *scripted) hold() { _, _, _ = c.ws.Read(context.Background()) }

func serve(t *testing.T, history string, plays ...play) *script {
	s := &script{t: t}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/ws", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		n := s.n
		s.n++
		s.after = append(s.after, r.URL.Query().Get("after"))
		s.mu.Unlock()
		if n >= len(plays) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if plays[n] == nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		plays[n](&scripted{t, ws})
	})
	mux.HandleFunc("GET /api/chat/threads/{id}/messages", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(history))
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

func (s *script) feed(o FeedOptions) *Feed {
	c, err := New(s.url, "token", "test")
	require.NoError(s.t, err)
	o.RetryWait = time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	s.t.Cleanup(cancel)
	f, err := c.Feed(ctx, o)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { f.Close(); c.Close() })
	return f
}

// seen records progress.
type seen struct {
	accepted []int64
	text     string
	restarts int
}

func (s *seen) Accepted(conversation int64) { s.accepted = append(s.accepted, conversation) }
func (s *seen) Text(piece string, restarted bool) {
	if restarted {
		s.restarts++
		s.text = ""
	}
	s.text += piece
}

const (
	echo   = `{"type":"CHAT","id":5,"local_id":"q1","conversation_id":3,"sender_role":"MEMBER","payload":"hello","seq":10}`
	piece1 = `{"type":"CHAT_STREAM","conversation_id":3,"stream_id":"s1","reply_to_local_id":"q1","payload":"good ","seq":11}`
	piece2 = `{"type":"CHAT_STREAM","conversation_id":3,"stream_id":"s1","reply_to_local_id":"q1","payload":"morning","seq":12}`
	final  = `{"type":"CHAT","id":6,"local_id":"q1:answer","conversation_id":3,"stream_id":"s1","reply_to_local_id":"q1","status":"answered","payload":"good morning","seq":13}`
	end    = `{"type":"CHAT_STREAM_END","conversation_id":3,"stream_id":"s1","reply_to_local_id":"q1","payload":"","seq":13}`
)

func ask(t *testing.T, f *Feed) (Answer, *seen, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	p := &seen{}
	a, err := f.Ask(ctx, Question{LocalID: "q1", ConversationID: 0, Text: "hello"}, p)
	return a, p, err
}

func TestAsk(t *testing.T) {
	t.Parallel()
	f := serve(t, "", func(c *scripted) {
		assert.Equal(t, map[string]any{"type": "CHAT", "target_id": 2.0, "local_id": "q1", "payload": "hello"}, c.read())
		for _, frame := range []string{
			`{"type":"SOMETHING_NEW","payload":{"a":1}}`, `not json`, echo, piece1,
			`{"type":"CHAT_STREAM","conversation_id":3,"stream_id":"other","reply_to_local_id":"q0","payload":"of another"}`,
			piece2, final, end,
		} {
			c.send("%s", frame)
		}
		c.hold()
	}).feed(FeedOptions{})
	a, p, err := ask(t, f)
	require.NoError(t, err)
	assert.Equal(t, "good morning", a.Text)
	assert.False(t, a.Failed())
	assert.Equal(t, int64(3), a.ConversationID)
	assert.Equal(t, &seen{accepted: []int64{3}, text: "good morning"}, p)
}

func TestAskSurvivesALostConnection(t *testing.T) {
	t.Parallel()
	var lost, back int
	s := serve(t, "",
		func(c *scripted) { c.read() }, // lost before it was accepted
		nil,                            // Butler starts
		func(c *scripted) { // sent again, lost in mid-answer
			assert.Equal(t, "q1", c.read()["local_id"])
			c.send(echo)
			c.send(piece1)
		},
		func(c *scripted) {
			c.send(piece2)
			c.send(final)
			c.hold()
		})
	f := s.feed(FeedOptions{Lost: func(error) { lost++ }, Back: func() { back++ }})
	a, p, err := ask(t, f)
	require.NoError(t, err)
	assert.Equal(t, "good morning", a.Text)
	assert.Equal(t, "good morning", p.text)
	assert.Zero(t, p.restarts)
	assert.Equal(t, []int64{3}, p.accepted)
	f.Close()
	assert.Equal(t, []string{"", "", "", "11"}, s.after)
	assert.Equal(t, 2, lost)
	assert.Equal(t, 2, back)
}

func TestAskTellsThatAnAnswerBeganAgain(t *testing.T) {
	t.Parallel()
	f := serve(t, "", func(c *scripted) {
		c.read()
		c.send(echo)
		c.send(`{"type":"CHAT_STREAM","conversation_id":3,"stream_id":"s0","reply_to_local_id":"q1","payload":"bad "}`)
		c.send(`{"type":"CHAT_STREAM_END","conversation_id":3,"stream_id":"s0","reply_to_local_id":"q1","payload":""}`)
		c.send(piece1)
		c.send(piece2)
		c.send(final)
		c.hold()
	}).feed(FeedOptions{})
	_, p, err := ask(t, f)
	require.NoError(t, err)
	assert.Equal(t, 1, p.restarts)
	assert.Equal(t, "good morning", p.text)
}

func TestAskFindsTheAnswerAfterAGap(t *testing.T) {
	t.Parallel()
	history := `[{"id":5,"local_id":"q1","conversation_id":3,"payload":"hello"},
		{"id":6,"local_id":"q1:answer","reply_to_local_id":"q1","conversation_id":3,"payload":"good morning","status":"failed","reason":"x"}]`
	f := serve(t, history,
		func(c *scripted) { c.read(); c.send(echo) },
		func(c *scripted) { c.send(`{"type":"GAP","seq":99}`); c.hold() }).feed(FeedOptions{})
	a, _, err := ask(t, f)
	require.NoError(t, err)
	assert.Equal(t, "good morning", a.Text)
	assert.True(t, a.Failed())
}

func TestAskSendsAgainWhatCannotBeTakenNow(t *testing.T) {
	t.Parallel()
	f := serve(t, "", func(c *scripted) {
		c.read()
		c.send(`{"type":"ERROR","code":"unavailable","local_id":"q1","payload":"Butler cannot take messages now"}`)
		assert.Equal(t, "q1", c.read()["local_id"])
		c.send(echo)
		c.send(final)
		c.hold()
	}).feed(FeedOptions{})
	a, _, err := ask(t, f)
	require.NoError(t, err)
	assert.Equal(t, "good morning", a.Text)
}

func TestAskingSeveralQuestionsAtOnce(t *testing.T) {
	t.Parallel()
	f := serve(t, "", func(c *scripted) {
		first := c.read()
		c.send(`{"type":"CHAT","local_id":%q,"conversation_id":3,"payload":"sudo ls"}`, first["local_id"])
		second := c.read()
		c.send(`{"type":"CHAT","local_id":%q,"conversation_id":3,"payload":"••••"}`, second["local_id"])
		for _, m := range []map[string]any{second, first} {
			c.send(`{"type":"CHAT","local_id":"%s:answer","reply_to_local_id":%q,"conversation_id":3,"status":"answered","payload":"to %s"}`,
				m["local_id"], m["local_id"], m["payload"])
		}
		c.hold()
	}).feed(FeedOptions{})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	first := &echoes{accepted: make(chan struct{})}
	var answered sync.WaitGroup
	answered.Go(func() {
		a, err := f.Ask(ctx, Question{LocalID: "a", Text: "sudo ls"}, first)
		assert.NoError(t, err)
		assert.Equal(t, "to sudo ls", a.Text)
	})
	<-first.accepted
	second := &echoes{accepted: make(chan struct{})}
	a, err := f.Ask(ctx, Question{LocalID: "b", ConversationID: 3, Text: "hunter2"}, second)
	require.NoError(t, err)
	assert.Equal(t, "to hunter2", a.Text)
	answered.Wait()
	assert.Equal(t, []string{"sudo ls"}, first.written)
	assert.Equal(t, []string{"••••"}, second.written)
}

// echoes records how a message stands in the log.
type echoes struct {
	accepted chan struct{}
	written  []string
}

func (e *echoes) Accepted(int64)      { close(e.accepted) }
func (e *echoes) Text(string, bool)   {}
func (e *echoes) Echo(written string) { e.written = append(e.written, written) }

func TestOneQuestionIsNotAskedTwiceAtOnce(t *testing.T) {
	t.Parallel()
	f := serve(t, "", func(c *scripted) { c.read(); c.send(echo); c.hold() }).feed(FeedOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	first := &echoes{accepted: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := f.Ask(ctx, Question{LocalID: "q1", Text: "hello"}, first)
		assert.ErrorIs(t, err, context.Canceled)
	}()
	<-first.accepted
	_, err := f.Ask(ctx, Question{LocalID: "q1", Text: "hello"}, &echoes{accepted: make(chan struct{})})
	assert.Error(t, err)
	cancel()
	<-ended
}

func TestAskEndsWhenItIsRefused(t *testing.T) {
	t.Parallel()
	f := serve(t, "", func(c *scripted) {
		c.read()
		c.send(`{"type":"ERROR","code":"too_large","local_id":"q1","payload":"a message has at most 256 KiB"}`)
		c.hold()
	}).feed(FeedOptions{})
	_, _, err := ask(t, f)
	assert.Equal(t, fault.TooLarge, fault.CodeOf(err))
	assert.Equal(t, "a message has at most 256 KiB", fault.MessageOf(err))
}

func TestAskEndsWhenTheTokenIsRevoked(t *testing.T) {
	t.Parallel()
	f := serve(t, "", func(c *scripted) { c.read(); c.send(echo) }).feed(FeedOptions{})
	_, _, err := ask(t, f)
	assert.Equal(t, fault.Unauthenticated, fault.CodeOf(err))
	_, _, err = ask(t, f)
	assert.Equal(t, fault.Unauthenticated, fault.CodeOf(err), "and stays so")
}

func TestAskGivesUp(t *testing.T) {
	t.Parallel()
	plays := []play{func(c *scripted) { c.read(); c.send(echo) }}
	plays = append(plays, make([]play, 1000)...)
	f := serve(t, "", plays...).feed(FeedOptions{GiveUp: 50 * time.Millisecond})
	_, _, err := ask(t, f)
	assert.Equal(t, fault.Unavailable, fault.CodeOf(err))
	assert.Contains(t, fault.MessageOf(err), "sessions show 3")
}

func TestFeedFailsAtOnceWhenNobodyIsThere(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.NotFoundHandler())
	addr := srv.URL
	srv.Close()
	c, err := New(addr, "token", "test")
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Feed(context.Background(), FeedOptions{})
	assert.Equal(t, fault.Unavailable, fault.CodeOf(err))
}
