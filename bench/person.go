package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"
)

// Limits of the gateway on what one person sends: see services/gateway.Settings.
const (
	personBurst = 100
	personRate  = 30 // a second
)

// person is somebody with an account.
type person struct {
	name  string
	token string

	tokens float64 // messages that may be sent now
	at     time.Time
}

var callers = &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}

// call makes a request with a JSON body and reads the JSON of the answer.
func (b *product) call(ctx context.Context, token, method, path string, in, out any) error {
	data, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+b.http+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := callers.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %.200s", method, path, resp.Status, body)
	}
	return json.Unmarshal(body, out)
}

func (b *product) signIn(ctx context.Context, name, password string) (string, error) {
	var out struct{ Token string }
	err := b.call(ctx, "", http.MethodPost, "/api/auth/login", map[string]string{"username": name, "password": password}, &out)
	return out.Token, err
}

// people makes n accounts and signs them in.
func (b *product) people(ctx context.Context, n int) ([]*person, error) {
	admin, err := b.signIn(ctx, adminName, adminPassword)
	if err != nil {
		return nil, err
	}
	out := make([]*person, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := range out {
		g.Go(func() error {
			name := fmt.Sprintf("person-%d", i+1)
			password := "password of " + name
			var made struct{ ID int64 }
			err := b.call(ctx, admin, http.MethodPost, "/api/users",
				map[string]string{"username": name, "password": password, "role": "MEMBER"}, &made)
			if err != nil {
				return err
			}
			token, err := b.signIn(ctx, name, password)
			out[i] = &person{name: name, token: token, tokens: personBurst, at: time.Now()}
			return err
		})
	}
	return out, g.Wait()
}

// conversation begins a new one.
func (b *product) conversation(ctx context.Context, p *person) (int64, error) {
	var out struct{ ID int64 }
	err := b.call(ctx, p.token, http.MethodPost, "/api/chat/threads", map[string]string{"title": "a conversation"}, &out)
	return out.ID, err
}

// connect opens a WebSocket of a person.
func (b *product) connect(ctx context.Context, p *person) (*websocket.Conn, error) {
	ws, resp, err := websocket.Dial(ctx, "ws://"+b.http+"/api/ws", &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + p.token}},
	})
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	ws.SetReadLimit(8 << 20)
	return ws, nil
}

// spend notes that n messages are sent now, and gives how long to wait before.
func (p *person) spend(n int, now time.Time) (wait time.Duration) {
	p.tokens = min(personBurst, p.tokens+personRate*now.Sub(p.at).Seconds())
	p.at = now
	p.tokens -= float64(n)
	if p.tokens < 0 {
		return time.Duration(-p.tokens / personRate * float64(time.Second))
	}
	return 0
}

// heard is what one person, or all of them, experienced in a round.
type heard struct {
	echo, first, final durations // from sending: the own message told, the first piece, the answer
	answered           int
	lost               int // no answer
	doubled            int // answers beyond the first
	missing            int // answers whose pieces are not their text
	failed             int // answers that are none, and messages that were refused
	waits              int // times that the gateway said to wait
	why                string
}

func (h *heard) merge(o *heard) {
	h.echo, h.first, h.final = append(h.echo, o.echo...), append(h.first, o.first...), append(h.final, o.final...)
	h.answered, h.lost, h.doubled = h.answered+o.answered, h.lost+o.lost, h.doubled+o.doubled
	h.missing, h.failed, h.waits = h.missing+o.missing, h.failed+o.failed, h.waits+o.waits
	if h.why == "" {
		h.why = o.why
	}
}

// wholeness is an error when anything was lost, doubled, incomplete or failed.
func (h *heard) wholeness() error {
	if h.lost+h.doubled+h.missing+h.failed == 0 {
		return nil
	}
	return fmt.Errorf("of %d answers: %d lost, %d doubled, %d with missing pieces, %d failed (%s)",
		h.answered+h.lost, h.lost, h.doubled, h.missing, h.failed, h.why)
}

// frame is what is looked at in a frame of the server.
type frame struct {
	Type           string `json:"type"`
	LocalID        string `json:"local_id"`
	Payload        string `json:"payload"`
	StreamID       string `json:"stream_id"`
	ReplyToLocalID string `json:"reply_to_local_id"`
	Status         string `json:"status"`
	Reason         string `json:"reason"`
	Code           string `json:"code"`
	RetryAfter     int    `json:"retry_after"`
}

// talker says one message after the other on one connection: the next one as soon as the last is answered. The goroutine
// that reads does the sending, so that no time of this program's scheduler is counted as Butler's.
type talker struct {
	ws           *websocket.Conn
	prefix       string
	conversation int64
	left         int
	heard        heard
	done         chan struct{} // closed when all is answered
	ended        bool

	n       int
	local   string
	sent    time.Time
	echoed  bool
	pieces  strings.Builder
	answers map[string]int
}

func (t *talker) say(ctx context.Context) error {
	t.n++
	t.local = fmt.Sprintf("%s-%d", t.prefix, t.n)
	t.echoed = false
	t.pieces.Reset()
	return t.send(ctx)
}

func (t *talker) send(ctx context.Context) error {
	data, err := json.Marshal(map[string]any{
		"type": "CHAT", "target_id": 2, "local_id": t.local, "conversation_id": t.conversation,
		"payload": "What is the state of the three servers in the cellar? This is " + t.local,
	})
	if err != nil {
		return err
	}
	t.sent = time.Now()
	return t.ws.Write(ctx, websocket.MessageText, data)
}

// talk runs until the connection ends.
func (t *talker) talk(ctx context.Context) error {
	if err := t.say(ctx); err != nil {
		return err
	}
	for {
		_, data, err := t.ws.Read(ctx)
		if err != nil {
			if t.ended {
				return nil
			}
			return err
		}
		now := time.Now()
		var f frame
		if err := json.Unmarshal(data, &f); err != nil {
			return err
		}
		if err := t.take(ctx, &f, now); err != nil {
			return err
		}
	}
}

func (t *talker) take(ctx context.Context, f *frame, now time.Time) error {
	switch {
	case f.Type == "CHAT" && f.LocalID == t.local:
		if !t.echoed {
			t.echoed = true
			t.heard.echo = append(t.heard.echo, now.Sub(t.sent))
		}
	case f.Type == "CHAT_STREAM" && f.ReplyToLocalID == t.local:
		if t.pieces.Len() == 0 {
			t.heard.first = append(t.heard.first, now.Sub(t.sent))
		}
		t.pieces.WriteString(f.Payload)
	case f.Type == "CHAT" && f.ReplyToLocalID != "":
		return t.answer(ctx, f, now)
	case f.Type == "ERROR" && f.RetryAfter > 0:
		t.heard.waits++
		if err := pause(ctx, time.Duration(f.RetryAfter)*time.Second); err != nil {
			return err
		}
		return t.send(ctx)
	case f.Type == "ERROR":
		t.heard.failed++
		t.heard.why = f.Code + ": " + f.Payload
		return t.next(ctx)
	}
	return nil
}

func (t *talker) answer(ctx context.Context, f *frame, now time.Time) error {
	t.answers[f.ReplyToLocalID]++
	if t.answers[f.ReplyToLocalID] > 1 {
		t.heard.doubled++
		return nil
	}
	if f.ReplyToLocalID != t.local {
		return nil
	}
	t.heard.final = append(t.heard.final, now.Sub(t.sent))
	t.heard.answered++
	if f.Status != "answered" {
		t.heard.failed++
		t.heard.why = f.Reason
	} else if t.pieces.String() != f.Payload {
		t.heard.missing++
		t.heard.why = fmt.Sprintf("pieces %q, answer %q", t.pieces.String(), f.Payload)
	}
	return t.next(ctx)
}

func (t *talker) next(ctx context.Context) error {
	t.left--
	if t.left > 0 {
		return t.say(ctx)
	}
	if !t.ended {
		t.ended = true
		close(t.done)
	}
	return nil
}

const (
	// lostAfter is how long an answer is waited for before it counts as lost.
	lostAfter = 60 * time.Second
	// doubledWithin is how long connections stay open after the last answer, to see second ones.
	doubledWithin = 100 * time.Millisecond
)

// speak has people say n messages each at the same time, each in a new conversation, and gives what they heard and how
// long it took. mark, when not nil, is called when that time begins and when it ends.
func (b *product) speak(ctx context.Context, people []*person, n int, round string, mark func()) (*heard, time.Duration, error) {
	if mark == nil {
		mark = func() {}
	}
	talkers := make([]*talker, len(people))
	var wait time.Duration
	for i, p := range people {
		conversation, err := b.conversation(ctx, p)
		if err != nil {
			return nil, 0, err
		}
		ws, err := b.connect(ctx, p)
		if err != nil {
			return nil, 0, err
		}
		defer ws.CloseNow() //nolint:errcheck // whatever is left of it
		talkers[i] = &talker{
			ws: ws, prefix: fmt.Sprintf("%s-%s", p.name, round), conversation: conversation, left: n,
			done: make(chan struct{}), answers: make(map[string]int, n),
		}
		wait = max(wait, p.spend(n, time.Now()))
	}
	if err := pause(ctx, wait); err != nil {
		return nil, 0, err
	}
	var wg sync.WaitGroup
	failed := make(chan error, len(talkers))
	mark()
	began := time.Now()
	for _, t := range talkers {
		wg.Go(func() {
			if err := t.talk(ctx); err != nil {
				failed <- fmt.Errorf("%s: %w", t.prefix, err)
			}
		})
	}
	var took time.Duration
	var err error
	limit := time.NewTimer(lostAfter + time.Duration(n)*time.Second)
	defer limit.Stop()
wait:
	for _, t := range talkers {
		select {
		case <-t.done:
		case <-limit.C:
			break wait
		case err = <-failed:
			break wait
		}
	}
	took = time.Since(began)
	mark()
	if err == nil {
		err = pause(ctx, doubledWithin)
	}
	for _, t := range talkers {
		_ = t.ws.CloseNow() // ends its reader
	}
	wg.Wait()
	if err != nil {
		return nil, 0, errors.Join(err, errors.New(b.tail()))
	}
	out := &heard{}
	for _, t := range talkers {
		t.heard.lost = t.left
		out.merge(&t.heard)
	}
	return out, took, nil
}
