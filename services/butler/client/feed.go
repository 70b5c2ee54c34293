package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/butlerhub/butler/pkg/fault"
)

// Frame types that a conversation consists of; docs/explanation/architecture.md has them all.
const (
	frameChat      = "CHAT"
	frameStream    = "CHAT_STREAM"
	frameStreamEnd = "CHAT_STREAM_END"
	frameGap       = "GAP"
	frameError     = "ERROR"
)

// Frame is one message of the WebSocket, with the fields that a client needs.
type Frame struct {
	Type           string          `json:"type"`
	ID             uint64          `json:"id"`
	LocalID        string          `json:"local_id"`
	ConversationID int64           `json:"conversation_id"`
	SenderName     string          `json:"sender_name"`
	SenderRole     string          `json:"sender_role"`
	Text           string          `json:"payload"`
	StreamID       string          `json:"stream_id"`
	ReplyToLocalID string          `json:"reply_to_local_id"`
	Status         string          `json:"status"`
	Reason         string          `json:"reason"`
	Code           fault.Code      `json:"code"`
	RetryAfter     int             `json:"retry_after"` // seconds
	Seq            uint64          `json:"seq"`
	Timestamp      time.Time       `json:"timestamp"`
	Usage          json.RawMessage `json:"usage"`

	Approval *Approval       `json:"-"` // of AUTH_REQUEST and AUTH_STATUS_UPDATE
	Raw      json.RawMessage `json:"-"` // its JSON
}

const (
	// maxFrame bounds a frame from the server, in bytes: the longest answer, with every byte escaped.
	maxFrame = 8 << 20
	// dialTimeout bounds one attempt to connect.
	dialTimeout = 10 * time.Second
	// A connection that does not answer a ping within pingTimeout is given up and made anew.
	pingEvery   = 15 * time.Second
	pingTimeout = 10 * time.Second
)

// FeedOptions adjust a Feed. The zero value is right.
type FeedOptions struct {
	// Lost is called when the connection is lost, and Back when it is there again, from a goroutine of the feed; they
	// must not block.
	Lost func(error)
	Back func()
	// Ended is called once when the server refuses the connection for good.
	Ended func(error)
	// Approval is called for each news of a request for approval that concerns the person, from a goroutine of the feed,
	// which waits for it.
	Approval func(a Approval, raw json.RawMessage)
	// GiveUp is how long a question waits for a lost connection. Default two minutes.
	GiveUp time.Duration
	// RetryWait is the wait before the first attempt to connect again; it doubles up to five seconds. Default 200 ms.
	RetryWait time.Duration
}

// Feed is one WebSocket to the gateway that comes back by itself and misses nothing. Any number of questions may wait for
// their answers; close it when done.
type Feed struct {
	c      *Client
	o      FeedOptions
	cancel context.CancelFunc
	ended  chan struct{}

	mu        sync.Mutex
	conn      *websocket.Conn // nil while there is none
	lostAt    time.Time
	seq       uint64             // of the last frame seen
	asking    map[string]*asking // by the question's id
	permanent error              // why the feed ended for good
}

// asking is a question that waits for its answer.
type asking struct {
	localID string
	events  chan event
	done    chan struct{} // closed when nobody reads events any more
}

// event is a frame, or a change of the connection (then frame is nil).
type event struct {
	frame     *Frame
	connected bool
	err       error // the feed ended for good
}

// Feed connects and returns when the connection stands; it is an error when the first attempt fails. The feed lives until
// Close, not until ctx ends.
func (c *Client) Feed(ctx context.Context, o FeedOptions) (*Feed, error) {
	if o.GiveUp <= 0 {
		o.GiveUp = 2 * time.Minute
	}
	if o.RetryWait <= 0 {
		o.RetryWait = 200 * time.Millisecond
	}
	f := &Feed{c: c, o: o, ended: make(chan struct{}), asking: map[string]*asking{}}
	conn, err := f.dial(ctx)
	if err != nil {
		return nil, err
	}
	live, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f.cancel, f.conn = cancel, conn
	go f.run(live, conn)
	return f, nil
}

// Close ends the connection. It is safe to call twice.
func (f *Feed) Close() {
	f.cancel()
	<-f.ended
}

func (f *Feed) dial(ctx context.Context) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	target := *f.c.base
	target.Path += "/api/ws"
	f.mu.Lock()
	if f.seq > 0 {
		target.RawQuery = url.Values{"after": {strconv.FormatUint(f.seq, 10)}}.Encode()
	}
	f.mu.Unlock()
	header := http.Header{}
	f.c.identify(header)
	//nolint:bodyclose // the package says that it needs no closing
	conn, resp, err := websocket.Dial(ctx, target.String(), &websocket.DialOptions{HTTPClient: f.c.http, HTTPHeader: header})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			var data []byte
			if resp.Body != nil {
				data, _ = io.ReadAll(io.LimitReader(resp.Body, 4<<10))
			}
			return nil, f.c.refusal(resp, data)
		}
		return nil, f.c.unreachable(err)
	}
	conn.SetReadLimit(maxFrame)
	return conn, nil
}

// run reads from one connection after the other until ctx ends or the server refuses for good.
func (f *Feed) run(ctx context.Context, conn *websocket.Conn) {
	defer close(f.ended)
	for {
		err := f.read(ctx, conn)
		_ = conn.Close(websocket.StatusNormalClosure, "")
		f.mu.Lock()
		f.conn, f.lostAt = nil, time.Now()
		f.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		if f.o.Lost != nil {
			f.o.Lost(err)
		}
		f.tell(event{})
		if conn = f.again(ctx); conn == nil {
			return
		}
		f.mu.Lock()
		f.conn = conn
		f.mu.Unlock()
		if f.o.Back != nil {
			f.o.Back()
		}
		f.tell(event{connected: true})
	}
}

// again connects until it works. It gives nil when ctx ended or the server refuses what no waiting mends.
func (f *Feed) again(ctx context.Context) *websocket.Conn {
	for wait := f.o.RetryWait; ; wait = min(2*wait, 5*time.Second) {
		conn, err := f.dial(ctx)
		if err == nil {
			return conn
		}
		if ctx.Err() != nil {
			return nil
		}
		if fault.ClassOf(err) == fault.User {
			f.mu.Lock()
			f.permanent = err
			f.mu.Unlock()
			f.tell(event{err: err})
			if f.o.Ended != nil {
				f.o.Ended(err)
			}
			return nil
		}
		timer := time.NewTimer(max(wait, min(fault.RetryAfter(err), 30*time.Second)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// read hands on frames until the connection breaks.
func (f *Feed) read(ctx context.Context, conn *websocket.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	var pinging sync.WaitGroup
	pinging.Go(func() { keepAlive(ctx, cancel, conn) })
	defer pinging.Wait()
	defer cancel()
	for {
		_, data, err := conn.Read(ctx)
		if err != nil {
			return err
		}
		frame, err := decodeFrame(data)
		if err != nil {
			continue // a type that this version does not know may hold anything
		}
		if frame.Approval != nil && f.o.Approval != nil {
			f.o.Approval(*frame.Approval, frame.Raw)
		}
		f.mu.Lock()
		if frame.Seq > 0 {
			f.seq = frame.Seq
		}
		f.mu.Unlock()
		f.tell(event{frame: frame})
	}
}

func keepAlive(ctx context.Context, broken func(), conn *websocket.Conn) {
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		ping, cancel := context.WithTimeout(ctx, pingTimeout)
		err := conn.Ping(ping)
		cancel()
		if err != nil {
			broken()
			return
		}
	}
}

// tell hands an event to the questions that it concerns.
func (f *Feed) tell(e event) {
	f.mu.Lock()
	waiting := make([]*asking, 0, len(f.asking))
	for _, a := range f.asking {
		if e.frame == nil || a.concerns(e.frame) {
			waiting = append(waiting, a)
		}
	}
	f.mu.Unlock()
	for _, a := range waiting {
		select {
		case a.events <- e:
		case <-a.done:
		}
	}
}

func (a *asking) concerns(frame *Frame) bool {
	switch frame.Type {
	case frameGap:
		return true
	case frameError:
		return frame.LocalID == "" || frame.LocalID == a.localID
	default:
		return frame.LocalID == a.localID || frame.ReplyToLocalID == a.localID
	}
}

// begin registers a question; it says whether there is a connection now.
func (f *Feed) begin(localID string) (a *asking, connected bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.permanent != nil {
		return nil, false, f.permanent
	}
	if f.asking[localID] != nil {
		return nil, false, errors.New("client: this question waits for its answer already")
	}
	a = &asking{localID: localID, events: make(chan event, 64), done: make(chan struct{})}
	f.asking[localID] = a
	return a, f.conn != nil, nil
}

func (f *Feed) finish(a *asking) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.asking, a.localID)
	close(a.done)
}

// write sends a frame; an error is of no concern, since the reader then finds the connection broken. It does not end with
// ctx: a frame that is broken off breaks the connection, which is that of other questions too.
func (f *Feed) write(ctx context.Context, frame any) {
	f.mu.Lock()
	conn := f.conn
	f.mu.Unlock()
	if conn == nil {
		return
	}
	data, err := json.Marshal(frame)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout)
	defer cancel()
	if conn.Write(ctx, websocket.MessageText, data) != nil {
		_ = conn.CloseNow()
	}
}
