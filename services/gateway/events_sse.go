package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// heartbeatEvery is how often a quiet event stream shows that it lives.
const heartbeatEvery = 20 * time.Second

// serveEvents serves GET /api/events: the frames of the WebSocket as server-sent events. Each has the frame's seq as its
// id, so that a browser that connects again goes on where it was; ?after= does the same.
func (s *Service) serveEvents(w http.ResponseWriter, r *http.Request) error {
	who, err := s.identifyStream(r)
	if err != nil {
		return err
	}
	if err := s.hub.ready(); err != nil {
		return err
	}
	after := r.Header.Get("Last-Event-ID")
	if after == "" {
		after = r.URL.Query().Get("after")
	}
	var from cursor
	if after != "" {
		if from, err = parseCursor(after); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	stop := context.AfterFunc(s.ending, func() { cancel(errGoingAway) })
	defer stop()
	guest := s.access.enter(who, func() { cancel(errSignedOut) })
	defer s.access.leave(guest)
	wt := newWaiter(who.id())
	wt.owned = after != ""
	s.hub.join(wt.outbox)
	defer s.hub.leave(wt.outbox)
	s.docket.greet(wt.outbox, after != "")

	out := &eventWriter{w: w, control: http.NewResponseController(w)}
	if err := out.control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	if err := out.begin(s.hub.standing(who.id()), after == ""); err != nil {
		return nil
	}
	err = nil
	if after != "" {
		err = s.hub.catchUp(ctx, wt.outbox, from, func(f *frame) error { return out.frame(f, false) })
		if err == nil {
			err = out.control.Flush()
		}
	}
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	for err == nil {
		var f *frame
		f, err = wt.next(ctx, tick.C)
		switch {
		case err != nil:
		case f == nil:
			err = out.raw(": alive\n\n")
		default:
			err = out.frame(f, len(wt.rest) == 0)
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	switch {
	case errors.Is(err, errTooSlow):
		s.metrics.slow.Inc()
	case errors.Is(err, errSignedOut):
		_ = out.frame(s.hub.writer.problem(s.now(), string(fault.Unauthenticated), errSignedOut.Error(), "", 0), true)
	case fault.CodeOf(err) == fault.Unavailable && ctx.Err() == nil:
		_ = out.frame(s.hub.writer.problem(s.now(), string(fault.Unavailable), sentenceIn(s.language(r, ""), err), "", time.Second), true)
	}
	return nil
}

var (
	errSignedOut = errors.New("your sign-in has ended; sign in again")
	errGoingAway = errors.New("the gateway stops")
)

// eventWriter writes server-sent events.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buf     []byte
}

// begin starts the stream. With a position it says where the client stands, though nothing came yet.
func (e *eventWriter) begin(at cursor, tell bool) error {
	e.buf = append(e.buf[:0], "retry: 1000\n"...)
	if tell {
		e.buf = append(e.buf, "id: "...)
		e.buf = at.appendTo(e.buf)
		e.buf = append(e.buf, '\n')
	}
	return e.send(append(e.buf, '\n'), true)
}

func (e *eventWriter) frame(f *frame, flush bool) error {
	e.buf = e.buf[:0]
	if f.seqAt != 0 {
		e.buf = append(e.buf, "id: "...)
		e.buf = f.at.appendTo(e.buf)
		e.buf = append(e.buf, '\n')
	}
	e.buf = append(e.buf, "data: "...)
	e.buf = append(e.buf, f.body...) // JSON has no line breaks
	return e.send(append(e.buf, '\n', '\n'), flush)
}

func (e *eventWriter) raw(s string) error { return e.send(append(e.buf[:0], s...), true) }

func (e *eventWriter) send(b []byte, flush bool) error {
	e.buf = b
	if err := e.control.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := e.w.Write(b); err != nil {
		return err
	}
	if !flush {
		return nil
	}
	return e.control.Flush()
}
