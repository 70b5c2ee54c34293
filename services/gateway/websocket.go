package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
)

const (
	// maxFrame bounds a frame of a client. A bigger one gets an ERROR frame.
	maxFrame = 512 << 10
	// pingEvery is how often an open connection is asked whether it is still there; pongWithin is how long it may take.
	pingEvery  = 30 * time.Second
	pongWithin = 10 * time.Second
	// writeWithin is how long one write may take.
	writeWithin = 10 * time.Second

	closeGoingAway    = websocket.StatusGoingAway
	closeTryAgain     = websocket.StatusTryAgainLater
	closeUnauthorized = websocket.StatusCode(4401)
)

// socket is one WebSocket. One goroutine reads it; another writes while there is something to write, and only then, so
// that an idle connection costs one goroutine and two small buffers.
type socket struct {
	service  *Service
	ws       *websocket.Conn
	wire     *corked
	box      *outbox
	guest    *guest
	language string
	nextPing time.Time // of sockets' mutex
	once     sync.Once
}

// serveWS serves GET /api/ws.
func (s *Service) serveWS(w http.ResponseWriter, r *http.Request) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		w.Header().Set("Upgrade", "websocket")
		writeJSON(w, http.StatusUpgradeRequired, map[string]string{
			"error": "this address speaks WebSocket; /api/events is for plain HTTP", "code": string(fault.Invalid),
		})
		return nil
	}
	who, err := s.identifyStream(r)
	if err != nil {
		return err
	}
	if err := s.hub.ready(); err != nil {
		return err
	}
	hj := &hijacker{ResponseWriter: w}
	// The origin was checked where it matters: when a cookie said who it is.
	ws, err := websocket.Accept(hj, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		s.log.DebugContext(r.Context(), "no WebSocket", "error", err)
		return nil // Accept has answered
	}
	ws.SetReadLimit(-1) // read bounds what is kept; the rest of a frame is passed over, however long it is
	c := &socket{service: s, ws: ws, wire: hj.wire, language: s.language(r, "")}
	c.box = &outbox{
		person: who.id(),
		wake:   func() { go c.write() },
		slow: func() {
			s.metrics.slow.Inc()
			go c.close(closeTryAgain, "too slow; connect again with after")
		},
	}
	after := r.URL.Query().Get("after")
	from, badCursor := cursor{}, error(nil)
	if after != "" {
		from, badCursor = parseCursor(after)
		c.box.owned = badCursor == nil // until it caught up
	}
	c.guest = s.access.enter(who, func() { go c.close(closeUnauthorized, "your sign-in has ended; sign in again") })
	if !s.sockets.add(c) {
		go c.close(closeGoingAway, "Butler restarts; connect again")
	}
	if c.box.owned {
		s.hub.join(c.box)
	} else {
		s.hub.greet(c.box)
	}
	s.docket.greet(c.box, after != "")
	switch {
	case badCursor != nil:
		c.problem(badCursor, "")
	case after != "":
		go c.catchUp(from)
	}
	// The request ends here: its goroutine and buffers are free while the connection lives.
	go c.read()
	return nil
}

// catchUp tells what was missed, then goes on as the writer.
func (c *socket) catchUp(from cursor) {
	ctx, cancel := context.WithTimeout(c.service.ending, time.Minute)
	defer cancel()
	err := c.service.hub.catchUp(ctx, c.box, from, func(f *frame) error {
		return c.ws.Write(context.Background(), websocket.MessageText, f.body)
	})
	if err != nil {
		c.service.log.Debug("a connection could not catch up", "error", err)
		c.close(closeTryAgain, "what you missed cannot be read now; connect again")
		return
	}
	c.write()
}

// write sends what waits until nothing does.
func (c *socket) write() {
	var spare []*frame // the one who comes next has its own
	for {
		frames := c.box.take(spare)
		if frames == nil {
			return
		}
		c.wire.cork(len(frames) > 1)
		var err error
		for _, f := range frames {
			if err = c.ws.Write(context.Background(), websocket.MessageText, f.body); err != nil {
				break
			}
		}
		if err = errors.Join(err, c.wire.uncork()); err != nil {
			c.close(closeGoingAway, "")
			return
		}
		if spare = frames; cap(frames) > 256 {
			spare = nil
		}
	}
}

// read handles what the client sends, one frame after the other, until the connection ends.
func (c *socket) read() {
	defer c.gone()
	for {
		typ, r, err := c.ws.Reader(context.Background())
		if err != nil {
			return
		}
		if typ != websocket.MessageText {
			if _, err := io.Copy(io.Discard, r); err != nil {
				return
			}
			c.problem(fault.New(fault.Invalid, "frames are text, in JSON; this one was binary"), "")
			continue
		}
		buf := buffers.Get().(*bytes.Buffer) //nolint:forcetypeassert // only these are put there
		buf.Reset()
		n, err := buf.ReadFrom(io.LimitReader(r, maxFrame+1))
		if err == nil && n > maxFrame {
			_, err = io.Copy(io.Discard, r)
			buf.Reset()
			if err == nil {
				c.problem(fault.New(fault.TooLarge, "a frame has at most %d KiB", maxFrame>>10), "")
			}
		} else if err == nil {
			c.handle(buf.Bytes())
		}
		if buf.Cap() <= 64<<10 {
			buffers.Put(buf)
		}
		if err != nil {
			return
		}
	}
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// inbound is a frame of a client. What a client says of id and sender is passed over: the server knows.
type inbound struct {
	Type           string          `json:"type"`
	LocalID        string          `json:"local_id"`
	ConversationID integer         `json:"conversation_id"`
	TargetID       integer         `json:"target_id"`
	Payload        json.RawMessage `json:"payload"`
	Language       string          `json:"language"`
	verdictJSON                    // AUTH_RESPONSE
}

// decodeInbound reads a frame, and gives the text of a CHAT.
func decodeInbound(data []byte) (inbound, string, error) {
	var in inbound
	if err := json.Unmarshal(data, &in); err != nil {
		return in, "", fault.Wrap(err, fault.Invalid, "the frame is not a JSON object as the protocol has it")
	}
	switch in.Type {
	case "CHAT":
		text, err := payloadText(in.Payload)
		return in, text, err
	case "STOP", "AUTH_RESPONSE":
		return in, "", nil
	case "":
		return in, "", fault.New(fault.Invalid, "the frame has no type; CHAT, STOP and AUTH_RESPONSE are known")
	}
	return in, "", fault.New(fault.Invalid, "frames of this type are not for clients to send; CHAT, STOP and AUTH_RESPONSE are known")
}

// payloadText gives a message's text: a string, or, as old clients may send, another JSON value as it stands.
func payloadText(payload json.RawMessage) (string, error) {
	if len(payload) == 0 || string(payload) == "null" {
		return "", fault.New(fault.Invalid, "the message is empty")
	}
	if payload[0] != '"' {
		return string(payload), nil
	}
	var text string
	if err := json.Unmarshal(payload, &text); err != nil {
		return "", fault.Wrap(err, fault.Invalid, "the payload is not a string")
	}
	return text, nil
}

func (c *socket) handle(data []byte) {
	in, text, err := decodeInbound(data)
	if err == nil {
		err = checkTarget(int64(in.TargetID))
	}
	if err != nil {
		c.problem(err, in.LocalID)
		return
	}
	// What was begun is ended, also when the client goes away meanwhile.
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout+5*time.Second)
	defer cancel()
	who := c.guest.principal()
	if in.Type == "STOP" {
		if wait := c.service.senders.take(who.id()); wait > 0 {
			c.problem(rateLimited(wait, "you are sending too fast; wait a moment"), in.LocalID)
			return
		}
		if _, err := c.service.stopIn(ctx, who, int64(in.ConversationID), in.LocalID); err != nil {
			c.problem(err, in.LocalID)
		}
		return
	}
	language := knownLanguage(in.Language)
	if language == "" {
		language = c.language
	}
	if in.Type == "AUTH_RESPONSE" {
		c.authResponse(ctx, in, language)
		return
	}
	a, err := c.service.send(ctx, who, outgoing{
		conversation: int64(in.ConversationID), localID: in.LocalID, text: text, channel: "websocket", language: language,
	}, nil)
	if err != nil {
		c.problem(err, in.LocalID)
		return
	}
	// The echo of a new message comes from the log. One that was there before is told again, here alone.
	if a.asked != nil {
		c.tellAgain(a)
	}
}

// tellAgain gives this connection the frames of a message that it sent again.
func (c *socket) tellAgain(a accepted) {
	h := c.service.hub
	at := h.standing(c.box.person)
	// Their events are old: no cursor moves, and no filter holds them back.
	again := func(f *frame) { g := *f; g.chat = 0; c.box.push(&g) }
	again(h.writer.frame(a.asked, at))
	if a.answer != nil {
		again(h.writer.frame(a.answer, at))
		if a.answer.streamID != "" {
			again(h.writer.end(a.answer, a.answer.streamID, at))
		}
	}
}

func (c *socket) problem(err error, localID string) { c.problemWith(err, localID, "") }

// problemWith tells of a refused frame; action is the request that it was about, if any.
func (c *socket) problemWith(err error, localID, action string) {
	if len(localID) > chat.MaxLocalID {
		localID = ""
	}
	retry := fault.RetryAfter(err)
	if retry == 0 && fault.CodeOf(err) == fault.Unavailable {
		retry = time.Second
	}
	if fault.CodeOf(err) == fault.Internal {
		c.service.log.Error("a frame could not be handled", "error", err)
	}
	f := c.service.hub.writer.problem(c.service.now(), string(fault.CodeOf(err)), sentenceIn(c.language, err), localID, retry)
	if action != "" {
		f.body = append(stringField(f.body[:len(f.body)-1], "action_id", action), '}')
	}
	c.box.push(f)
}

// close ends the connection with a code and a reason for the client. It waits for the client's own close, a few seconds.
func (c *socket) close(code websocket.StatusCode, reason string) {
	c.box.close()
	_ = c.ws.Close(code, reason) // it is closed either way
}

// gone takes the connection off all lists. The reader calls it when the connection has ended.
func (c *socket) gone() {
	c.once.Do(func() {
		_ = c.ws.CloseNow()
		c.service.hub.leave(c.box)
		c.service.access.leave(c.guest)
		c.service.sockets.remove(c)
	})
}

// sockets is all open WebSockets.
type sockets struct {
	mu     sync.Mutex
	open   map[*socket]struct{}
	closed bool
	empty  chan struct{} // made when closed; closed when the last one is gone
}

// add says whether the connection may stay: not when all are being closed.
func (l *sockets) add(c *socket) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[*socket]struct{}{}
	}
	c.nextPing = time.Now().Add(pingEvery)
	l.open[c] = struct{}{}
	return !l.closed
}

func (l *sockets) remove(c *socket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
	l.signal()
}

func (l *sockets) signal() {
	if l.empty != nil && len(l.open) == 0 {
		close(l.empty)
		l.empty = nil
	}
}

// ping asks the connections that are due whether they are still there, and ends those that do not answer.
func (l *sockets) ping(now time.Time) {
	l.mu.Lock()
	var due []*socket
	for c := range l.open {
		if !now.Before(c.nextPing) {
			c.nextPing = now.Add(pingEvery)
			due = append(due, c)
		}
	}
	l.mu.Unlock()
	for _, c := range due {
		go func() {
			ctx, cancel := context.WithTimeout(c.service.ending, pongWithin)
			defer cancel()
			if err := c.ws.Ping(ctx); err != nil && c.service.ending.Err() == nil {
				_ = c.ws.CloseNow()
			}
		}()
	}
}

// closeAll ends all connections, at most until ctx ends.
func (l *sockets) closeAll(ctx context.Context, code websocket.StatusCode, reason string) {
	l.mu.Lock()
	l.closed = true
	empty := make(chan struct{})
	l.empty = empty
	for c := range l.open {
		go c.close(code, reason)
	}
	l.signal()
	l.mu.Unlock()
	select {
	case <-empty:
	case <-ctx.Done():
		l.mu.Lock()
		for c := range l.open {
			go func() { _ = c.ws.CloseNow() }()
		}
		l.mu.Unlock()
	}
}
