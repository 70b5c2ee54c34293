package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

// deaf opens a WebSocket by hand, which is never read again after the server's greeting.
func deaf(t *testing.T, url, token string) net.Conn {
	t.Helper()
	addr := strings.TrimPrefix(url, "http://")
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(conn, "GET /api/ws HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\n"+
		"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\n\r\n", addr, token)
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
	if err != nil || !strings.Contains(line, "101") {
		t.Fatalf("no WebSocket: %q %v", line, err)
	}
	return conn
}

// A connection that does not read is cut off; neither the same person's other connections nor anybody else is disturbed.
func TestDeafConnection(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	const size = 200 << 10
	model.by(func(text string) modeltest.Reply {
		if strings.HasPrefix(text, "large") {
			return longText(size, 400)
		}
		return nil
	})
	up := startUp(t, model)
	people := up.people(2)
	d, other := up.connect(people[0]), up.connect(people[1])
	conn := deaf(t, up.urls[0], people[0].token)
	gone := func() bool { return up.metric("butler_gateway_connections") == 2 }
	eventually(t, 10*time.Second, "three connections", func() bool { return up.metric("butler_gateway_connections") == 3 })
	// The same person's other tab gets everything, and the other person is answered quickly meanwhile.
	n := 0
	for ; !gone() && n < 60; n++ {
		m := d.say(0, fmt.Sprintf("large-%d", n), fmt.Sprintf("large answer number %d", n))
		o := other.say(0, fmt.Sprintf("small-%d", n), fmt.Sprintf("small answer number %d", n))
		other.until(10*time.Second, "an answer beside a deaf connection", func() bool { return o.final != nil })
		d.until(10*time.Second, "a large answer beside a deaf connection", func() bool { return m.final != nil })
	}
	eventually(t, 30*time.Second, "the deaf connection is cut off", gone)
	t.Logf("the connection that did not read was cut off after %d answers of %d KiB", n, size>>10)
	// Cut off also on the wire: what was sent before can be read, then it ends.
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Errorf("the deaf connection is still open: %v", err)
	}
	up.check([]*device{d, other}, conditions{})
	// Who was cut off comes back with the last number that it saw, and misses nothing or is told to read the history (MS-13).
	frames := d.seen() // the greeting on a new log stands at 0
	first := slices.IndexFunc(frames, func(f *frame) bool { return f.Seq > 0 })
	back := &device{t: t, who: people[0], seq: frames[first].Seq}
	up.site.begin(back)
	back.until(30*time.Second, "what was missed, or a GAP", func() bool {
		return slices.ContainsFunc(back.frames, func(f *frame) bool {
			return f.Type == "GAP" || f.ReplyToLocalID == fmt.Sprintf("large-%d", n-1) && f.Type == "CHAT"
		})
	})
	if a, b := d.connections(), other.connections(); a != 1 || b != 1 {
		t.Errorf("connections that read were cut off too: %d, %d", a, b)
	}
}

// Two tabs of one person: each has everything; whichever closes, the other goes on; and one that reconnects too (MS-13).
func TestTwoTabs(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	model.answers(30, 20*time.Millisecond)
	up := startUp(t, model)
	who := up.people(1)[0]
	for round, first := range []bool{true, false} {
		a, b := up.connect(who), up.connect(who)
		id := fmt.Sprintf("tabs-%d", round)
		a.say(0, id, "said in the first tab, round "+id)
		for _, tab := range []*device{a, b} {
			tab.until(20*time.Second, "the answer streams in both tabs", func() bool { return tab.streamed(id) > 3 })
		}
		closed, stays := a, b
		if !first {
			closed, stays = b, a
		}
		closed.stop()
		stays.until(20*time.Second, "the answer in the tab that stays", func() bool {
			return count(stays.frames, func(f *frame) bool { return f.ReplyToLocalID == id && f.Type == "CHAT" }) == 1
		})
		stays.mu.Lock()
		final := stays.finalOf(id)
		stays.mu.Unlock()
		if got := stays.pieces(final.StreamID); got != final.Payload {
			t.Errorf("the tab that stays has %q, not %q", got, final.Payload)
		}
		// And it can still be spoken in.
		next := stays.say(0, id+"-next", "said in the tab that stays, round "+id)
		stays.until(20*time.Second, "the next answer", func() bool { return next.final != nil })
		stays.stop()
	}
}

// A thousand idle connections cost less than 40 MB.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	up := startUp(t, nil)
	people := up.people(20)
	const connections = 1000
	dial := func(i int) (*websocket.Conn, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		// Nothing is read on it: nothing is sent to it either.
		ws, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(up.urls[0], "http")+"/api/ws", &websocket.DialOptions{
			HTTPHeader: http.Header{"Authorization": {"Bearer " + people[i%len(people)].token}},
		})
		return ws, err
	}
	// Connect some and drop them first: what is grown once is no cost of a connection.
	for i := range 50 {
		ws, err := dial(i)
		if err != nil {
			t.Fatal(err)
		}
		_ = ws.CloseNow()
	}
	eventually(t, 20*time.Second, "the first connections are gone", func() bool { return up.metric("butler_gateway_connections") == 0 })
	before := up.memory()
	var g sync.WaitGroup
	limit := make(chan struct{}, 16)
	for i := range connections {
		g.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			ws, err := dial(i)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = ws.CloseNow() })
		})
	}
	g.Wait()
	eventually(t, 20*time.Second, "all are connected", func() bool { return up.metric("butler_gateway_connections") == connections })
	after := up.memory()
	t.Logf("%d idle connections cost %.1f MB (%.1f → %.1f MB)", connections, mb(after-before), mb(before), mb(after))
	if after-before > 40<<20 {
		t.Errorf("%d idle connections cost %.1f MB; the limit is 40", connections, mb(after-before))
	}
}

func mb(n int64) float64 { return float64(n) / (1 << 20) }

// What begins on one gateway is continued on the other with the client's seq, without a hole and without a repetition.
func TestResumeOnOtherGateway(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	model.answers(40, 25*time.Millisecond)
	c := startCluster(t, model, storagetest.Shared(t))
	who := c.people(1)[0]
	d := c.connectTo(who, c.urls...)
	for n := range sample(4, 20) {
		id := fmt.Sprintf("resume-%d", n)
		m := d.say(0, id, "an answer that is read over two gateways, number "+id)
		for part := range 3 {
			d.until(20*time.Second, "a part of the answer", func() bool { return d.streamed(id) > 5+8*part })
			d.halt(true)
			d.prefer(n + part + 1)
			d.halt(false)
		}
		d.until(20*time.Second, "the answer", func() bool { return m.final != nil })
		if got := d.pieces(m.final.StreamID); got != m.final.Payload {
			t.Errorf("%s: read over several connections:\n %q, not\n %q", id, got, m.final.Payload)
		}
	}
	c.check([]*device{d}, conditions{cut: true})
	if n := count(d.seen(), func(f *frame) bool { return f.Type == "GAP" }); n > 0 {
		t.Errorf("%d GAPs although nothing was missed for long", n)
	}
}

// A token that is revoked on one gateway closes its sockets on the other within a second, and opens none any more.
func TestRevoke(t *testing.T) {
	t.Parallel()
	c := startCluster(t, startModel(t), storagetest.Shared(t))
	who := c.people(1)[0]
	var made struct {
		ID    int64
		Token string
	}
	c.as(who).must(t, http.StatusCreated, "POST", "/api/tokens", map[string]any{"name": "to be revoked"}, &made)
	revokedTab := c.connectTo(&person{id: who.id, name: who.name, token: made.Token}, c.urls[1])
	keeps := c.connectTo(who, c.urls[1])
	revoked := time.Now()
	c.as(who, 0).must(t, http.StatusNoContent, "DELETE", fmt.Sprintf("/api/tokens/%d", made.ID), nil, nil)
	revokedTab.until(10*time.Second, "the end of the connection", func() bool { return revokedTab.ended != nil })
	within(t, "from the revocation to the end of the connection on the other gateway", time.Since(revoked), time.Second)
	if websocket.CloseStatus(revokedTab.ended) != 4401 && revokedTab.ended != errSignedOut {
		t.Errorf("closed with %v", revokedTab.ended)
	}
	for i := range c.urls {
		status, _, err := caller{c.urls[i], made.Token}.do(context.Background(), "GET", "/api/auth/me", nil, nil)
		if err != nil || status != http.StatusUnauthorized {
			t.Errorf("the revoked token on gateway %d: %d %v", i+1, status, err)
		}
	}
	keeps.say(0, "still", "I am still here")
	keeps.answered(10 * time.Second)
	c.check([]*device{keeps}, conditions{})

	// An account that is disabled loses all of them, also an own sign-in.
	disabled := time.Now()
	c.as(c.admin).must(t, http.StatusOK, "PATCH", fmt.Sprintf("/api/users/%d", who.id), map[string]any{"disabled": true}, nil)
	keeps.until(10*time.Second, "the end of the connection", func() bool { return keeps.ended != nil })
	within(t, "from disabling an account to the end of its connection", time.Since(disabled), time.Second)
}
