package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// eventStream is an open event stream of a person.
type eventStream struct {
	t      *testing.T
	cancel context.CancelFunc
	res    *http.Response
	sc     *bufio.Scanner
	id     string // Last-Event-ID as a browser keeps it
}

func (u *user) events(t *testing.T, base, lastID string) *eventStream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", base+"/api/events", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+u.token)
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	res, err := testClient.Do(req)
	require.NoError(t, err)
	require.Equal(t, 200, res.StatusCode)
	require.Contains(t, res.Header.Get("Content-Type"), "text/event-stream")
	e := &eventStream{t: t, cancel: cancel, res: res, sc: bufio.NewScanner(res.Body), id: lastID}
	e.sc.Buffer(nil, 8<<20)
	t.Cleanup(e.close)
	require.True(t, e.sc.Scan())
	require.Equal(t, "retry: 1000", e.sc.Text())
	return e
}

func (e *eventStream) close() {
	e.cancel()
	_ = e.res.Body.Close()
}

// next gives the next event; ok is false when the stream ended.
func (e *eventStream) next() (f seen, ok bool) {
	e.t.Helper()
	for e.sc.Scan() {
		switch line := e.sc.Text(); {
		case strings.HasPrefix(line, "id: "):
			e.id = line[4:]
		case strings.HasPrefix(line, "data: "):
			require.NoError(e.t, json.Unmarshal([]byte(line[6:]), &f), line)
			return f, true
		}
	}
	return f, false
}

func TestTheEventStreamGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.gate()
	say := func(id string) {
		t.Helper()
		res := r.call(r.admin, "POST", "/api/chat/messages", map[string]any{"text": "hello", "local_id": id, "wait": 20})
		require.Equal(t, 200, res.status, res.text())
	}
	e := r.admin.events(t, r.url(), "")
	e.sc.Scan()
	require.True(t, strings.HasPrefix(e.sc.Text(), "id: "), "it says where it begins, so that nothing is missed from here on")
	start := strings.TrimPrefix(e.sc.Text(), "id: ")
	say("m1")
	var frames []seen
	for i := range 5 {
		f, ok := e.next()
		require.True(t, ok)
		require.Equal(t, strconv.FormatUint(f.Seq, 10), e.id)
		frames = append(frames, f)
		if i == 2 {
			e.close()
			e = r.admin.events(t, r.gates[1].url, e.id)
		}
	}
	text, types := chunks(frames)
	require.Equal(t, "You said: hello", text)
	require.Equal(t, map[string]int{"CHAT": 2, "CHAT_STREAM": 2, "CHAT_STREAM_END": 1}, types)
	e.close()
	again := r.admin.events(t, r.url(), start)
	f, _ := again.next()
	require.Equal(t, "m1", f.LocalID)

	require.Equal(t, 400, r.call(r.admin, "GET", "/api/events?after=x", nil).status)
	require.Equal(t, 401, r.call(nil, "GET", "/api/events", nil).status)
	// A sign-out ends it, and says so.
	e = r.admin.events(t, r.url(), "")
	require.Equal(t, 200, r.call(r.admin, "POST", "/api/auth/logout", nil).status)
	f, ok := e.next()
	require.True(t, ok)
	require.Equal(t, "unauthenticated", f.Code)
	_, ok = e.next()
	require.False(t, ok)
}
