package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// frame is a frame of the server, as it came.
type frame struct {
	Type           string `json:"type"`
	ID             uint64 `json:"id"`
	LocalID        string `json:"local_id"`
	ConversationID int64  `json:"conversation_id"`
	SenderID       int64  `json:"sender_id"`
	SenderName     string `json:"sender_name"`
	SenderRole     string `json:"sender_role"`
	TargetID       int64  `json:"target_id"`
	Payload        string `json:"-"`
	StreamID       string `json:"stream_id"`
	ReplyTo        uint64 `json:"reply_to"`
	ReplyToLocalID string `json:"reply_to_local_id"`
	Status         string `json:"status"`
	Reason         string `json:"reason"`
	Code           string `json:"code"`
	RetryAfter     int    `json:"retry_after"`
	Seq            uint64 `json:"seq"`

	at         time.Time // when it came
	connection int       // on which connection of the device, from 1
}

// UnmarshalJSON reads a frame. A payload that is no text, as those of frames about approvals, is left empty.
func (f *frame) UnmarshalJSON(data []byte) error {
	type plain frame
	var in struct {
		*plain
		Payload json.RawMessage `json:"payload"`
	}
	in.plain = (*plain)(f)
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	_ = json.Unmarshal(in.Payload, &f.Payload)
	return nil
}

func (f *frame) String() string {
	return fmt.Sprintf("%s id=%d local=%s reply=%s stream=%s status=%s%s code=%s seq=%d conn=%d %.60q",
		f.Type, f.ID, f.LocalID, f.ReplyToLocalID, f.StreamID, f.Status, f.Reason, f.Code, f.Seq, f.connection, f.Payload)
}

// message is what a device said.
type message struct {
	Type           string `json:"type"`
	TargetID       int64  `json:"target_id"`
	LocalID        string `json:"local_id"`
	ConversationID int64  `json:"conversation_id,omitempty"`
	Payload        string `json:"payload"`

	sends int       // how often it was sent
	first time.Time // when, first
	echo  *frame    // its acceptance
	final *frame    // the first final answer
	error *frame    // a refusal that another try does not mend
}

// device is a client that behaves as documented: it keeps seq, connects again with it when the connection is lost,
// sends what was not acknowledged again under the same local_id, and remembers every frame in order.
type device struct {
	t    testing.TB
	who  *person
	urls []string

	stop func() // ends it and waits

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at each change
	ws       *websocket.Conn
	seq      uint64
	conns    int // connections so far
	frames   []*frame
	sent     map[string]*message
	order    []string // local ids as they were said
	ended    error    // why it connects no more
	lastCode websocket.StatusCode
	hold     bool // it does not connect now
	next     int  // which gateway it tries next
}

// connect opens a device of a person and waits until it is connected. It ends with the test.
func (s *site) connect(p *person) *device {
	s.t.Helper()
	return s.connectTo(p, s.urls...)
}

// connectTo is connect to some gateways, of which it takes the first that answers.
func (s *site) connectTo(p *person, urls ...string) *device {
	s.t.Helper()
	d := s.open(p, urls...)
	d.until(20*time.Second, "the connection", func() bool { return d.ws != nil })
	return d
}

// open is connectTo that does not wait.
func (s *site) open(p *person, urls ...string) *device {
	d := &device{t: s.t, who: p, urls: urls}
	s.begin(d)
	return d
}

// begin starts a device, which may know a seq already.
func (s *site) begin(d *device) {
	if len(d.urls) == 0 {
		d.urls = s.urls
	}
	d.changed, d.sent = make(chan struct{}), map[string]*message{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.run(ctx)
	}()
	d.stop = func() { cancel(); <-done }
	s.t.Cleanup(d.stop)
}

// each connects one device for each person.
func (s *site) each(people []*person) []*device {
	s.t.Helper()
	out := make([]*device, len(people))
	for i, p := range people {
		// Spread over the gateways; each knows the others.
		urls := append(append([]string(nil), s.urls[i%len(s.urls):]...), s.urls[:i%len(s.urls)]...)
		out[i] = s.open(p, urls...)
	}
	for _, d := range out {
		d.until(30*time.Second, "the connection", func() bool { return d.ws != nil })
	}
	return out
}

func (d *device) run(ctx context.Context) {
	wait := 20 * time.Millisecond
	for ctx.Err() == nil {
		d.mu.Lock()
		url, held := d.urls[d.next%len(d.urls)], d.hold
		d.mu.Unlock()
		if held {
			pause(ctx, 10*time.Millisecond)
			continue
		}
		connected, err := d.once(ctx, url)
		if connected {
			wait = 20 * time.Millisecond
		}
		var closed websocket.CloseError
		if errors.As(err, &closed) {
			d.mu.Lock()
			d.lastCode = closed.Code
			d.mu.Unlock()
		}
		if errors.Is(err, errSignedOut) || websocket.CloseStatus(err) == 4401 {
			d.mu.Lock()
			d.ended = err
			d.tell()
			d.mu.Unlock()
			return
		}
		d.mu.Lock()
		d.next++
		d.mu.Unlock()
		pause(ctx, wait)
		wait = min(2*wait, 300*time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

var errSignedOut = errors.New("401: not signed in")

// once holds one connection until it ends.
func (d *device) once(ctx context.Context, url string) (connected bool, err error) {
	d.mu.Lock()
	address := "ws" + strings.TrimPrefix(url, "http") + "/api/ws"
	if d.seq > 0 {
		address += "?after=" + strconv.FormatUint(d.seq, 10)
	}
	d.mu.Unlock()
	dial, cancel := context.WithTimeout(ctx, 10*time.Second)
	ws, resp, err := websocket.Dial(dial, address, &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + d.who.token}},
	})
	cancel()
	if err != nil {
		if resp != nil && resp.StatusCode == http.StatusUnauthorized {
			return false, errSignedOut
		}
		return false, err
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(16 << 20)
	d.mu.Lock()
	d.ws = ws
	d.conns++
	number := d.conns
	var again []*message
	for _, id := range d.order {
		if m := d.sent[id]; m.echo == nil && m.error == nil {
			again = append(again, m)
		}
	}
	d.tell()
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.ws = nil
		d.tell()
		d.mu.Unlock()
	}()
	for _, m := range again {
		if err := d.send(ctx, ws, m); err != nil {
			return true, err
		}
	}
	for {
		_, data, err := ws.Read(ctx)
		if err != nil {
			return true, err
		}
		f := &frame{at: time.Now(), connection: number}
		if err := json.Unmarshal(data, f); err != nil {
			d.t.Errorf("a frame that is not JSON: %v: %.200s", err, data)
			continue
		}
		d.take(ctx, ws, f)
	}
}

func (d *device) take(ctx context.Context, ws *websocket.Conn, f *frame) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.frames = append(d.frames, f)
	if f.Seq > 0 {
		d.seq = f.Seq
	}
	switch {
	case f.Type == "CHAT" && f.ReplyToLocalID == "":
		if m := d.sent[f.LocalID]; m != nil && m.echo == nil {
			m.echo = f
		}
	case f.Type == "CHAT":
		if m := d.sent[f.ReplyToLocalID]; m != nil && m.final == nil {
			m.final = f
		}
	case f.Type == "ERROR" && f.LocalID != "":
		m := d.sent[f.LocalID]
		if m == nil || m.echo != nil {
			break
		}
		if f.Code != "rate_limited" && f.Code != "unavailable" {
			m.error = f
			break
		}
		time.AfterFunc(time.Duration(max(f.RetryAfter, 1))*time.Second, func() {
			d.mu.Lock()
			missing := m.echo == nil && d.ws == ws
			d.mu.Unlock()
			if missing {
				_ = d.send(ctx, ws, m) // if it fails, the next connection sends it
			}
		})
	}
	d.tell()
}

// tell wakes whoever waits. The mutex is held.
func (d *device) tell() {
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *device) send(ctx context.Context, ws *websocket.Conn, m *message) error {
	d.mu.Lock()
	m.sends++
	if m.first.IsZero() {
		m.first = time.Now()
	}
	data, err := json.Marshal(m)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return ws.Write(ctx, websocket.MessageText, data)
}

// say sends a message, now or as soon as there is a connection, and gives it.
func (d *device) say(conversation int64, localID, text string) *message {
	m := &message{Type: "CHAT", TargetID: butlerID, LocalID: localID, ConversationID: conversation, Payload: text}
	d.mu.Lock()
	d.sent[localID] = m
	d.order = append(d.order, localID)
	ws := d.ws
	d.mu.Unlock()
	if ws != nil {
		_ = d.send(context.Background(), ws, m) // if it fails, the next connection sends it
	}
	return m
}

// raw sends a frame as it is.
func (d *device) raw(text string) {
	d.t.Helper()
	d.mu.Lock()
	ws := d.ws
	d.mu.Unlock()
	if ws == nil {
		d.t.Fatal("not connected")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := ws.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		d.t.Fatal(err)
	}
}

// halt says whether the device stays away; when told to, its connection ends as a broken network would.
func (d *device) halt(on bool) {
	d.mu.Lock()
	d.hold = on
	ws := d.ws
	d.mu.Unlock()
	if on && ws != nil {
		_ = ws.CloseNow()
		d.until(10*time.Second, "the end of the connection", func() bool { return d.ws == nil })
	}
}

// prefer has the device try that gateway next.
func (d *device) prefer(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next = n
}

// until waits until ok gives true. ok is called with the device's mutex held.
func (d *device) until(timeout time.Duration, what string, ok func() bool) {
	d.t.Helper()
	timer := time.NewTimer(time.Duration(float64(timeout) * slack()))
	defer timer.Stop()
	for {
		d.mu.Lock()
		good, changed := ok(), d.changed
		d.mu.Unlock()
		if good {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			d.t.Fatalf("%s: still not after %v: %s\n%s", d.who.name, timeout, what, d.history(30))
		}
	}
}

// answered waits until every message has its final answer, or was refused.
func (d *device) answered(timeout time.Duration) {
	d.t.Helper()
	d.until(timeout, "an answer to every message", func() bool { return d.open() == 0 })
}

// open counts the messages without a final answer. The mutex is held.
func (d *device) open() int {
	n := 0
	for _, m := range d.sent {
		if m.final == nil && m.error == nil {
			n++
		}
	}
	return n
}

// seen gives all frames so far.
func (d *device) seen() []*frame {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]*frame(nil), d.frames...)
}

// connections counts the connections so far.
func (d *device) connections() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.conns
}

// took gives how long a message that has its answer took, from when it was sent first.
func (d *device) took(m *message) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return m.final.at.Sub(m.first)
}

// pieces gives what was streamed of a stream so far.
func (d *device) pieces(stream string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	for _, f := range d.frames {
		if f.Type == "CHAT_STREAM" && f.StreamID == stream {
			b.WriteString(f.Payload)
		}
	}
	return b.String()
}

// streamed counts the pieces that came of the answer to a message. The mutex is held.
func (d *device) streamed(localID string) int {
	n := 0
	for _, f := range d.frames {
		if f.Type == "CHAT_STREAM" && f.ReplyToLocalID == localID {
			n++
		}
	}
	return n
}

// history tells the last n frames, and what is open, for people.
func (d *device) history(n int) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "  connections %d, connected %v, last close %d, ended %v\n", d.conns, d.ws != nil, d.lastCode, d.ended)
	for _, id := range d.order {
		if m := d.sent[id]; m.final == nil {
			fmt.Fprintf(&b, "  open: %s sent %d times, echo %v, error %v\n", id, m.sends, m.echo != nil, m.error)
		}
	}
	for _, f := range d.frames[max(0, len(d.frames)-n):] {
		fmt.Fprintf(&b, "  %s\n", f)
	}
	return b.String()
}

// all runs f for each device at once and waits.
func all(devices []*device, f func(i int, d *device)) {
	var g sync.WaitGroup
	for i, d := range devices {
		g.Go(func() { f(i, d) })
	}
	g.Wait()
}
