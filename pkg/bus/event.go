package bus

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
)

// Event is one CloudEvents 1.0 event in binary mode: the attributes travel in NATS headers, Data is the JSON payload.
type Event struct {
	ID      string    // unique; also the Nats-Msg-Id. Keep it when the same append is tried again.
	Type    string    // for example butler.chat.asked
	Source  string    // which service it comes from, for example /butler/gateway
	Subject string    // NATS subject as published; as stored in what is read
	Time    time.Time // when it happened
	Data    []byte    // JSON, at most MaxPayload
}

// MaxPayload is the largest payload that is published, in bytes; NATS takes 1 MiB with the headers.
const MaxPayload = 1<<20 - 4<<10

// NewEvent returns an event of now with an id of its own.
func NewEvent(typ, source, subject string, data []byte) Event {
	return Event{ID: nuid.Next(), Type: typ, Source: source, Subject: subject, Time: time.Now(), Data: data}
}

// Stored is an event as it stands in a stream.
type Stored struct {
	Event
	Stream string
	Seq    uint64      // sequence in the stream
	At     time.Time   // when the stream took it
	Header nats.Header // all headers, trace context among them
}

// Context gives ctx with the trace that the event belongs to.
func (s Stored) Context(ctx context.Context) context.Context {
	return propagator.Extract(ctx, propagation.HeaderCarrier(s.Header))
}

// Headers of CloudEvents' NATS binding (cloudevents/spec, nats-protocol-binding.md, "binary content mode").
const (
	headerSpecVersion = "ce-specversion"
	headerID          = "ce-id"
	headerType        = "ce-type"
	headerSource      = "ce-source"
	headerTime        = "ce-time"
	headerContentType = "content-type"
)

var propagator = propagation.TraceContext{}

func init() {
	// Callers that never set up telemetry still pass a trace on.
	otel.SetTextMapPropagator(propagator)
}

func (e Event) message(ctx context.Context) (*nats.Msg, error) {
	if len(e.Data) > MaxPayload {
		return nil, fmt.Errorf("bus: event of %d bytes on %s: at most %d", len(e.Data), e.Subject, MaxPayload)
	}
	h := nats.Header{
		headerSpecVersion: {"1.0"},
		headerID:          {e.ID},
		headerType:        {e.Type},
		headerSource:      {e.Source},
		headerTime:        {e.Time.UTC().Format(time.RFC3339Nano)},
		headerContentType: {"application/json"},
	}
	if e.ID != "" {
		h[jetstream.MsgIDHeader] = []string{e.ID}
	}
	propagator.Inject(ctx, propagation.HeaderCarrier(h))
	return &nats.Msg{Subject: e.Subject, Data: e.Data, Header: h}, nil
}

func stored(stream, subject string, seq uint64, at time.Time, h nats.Header, data []byte) Stored {
	s := Stored{
		Event:  Event{ID: h.Get(headerID), Type: h.Get(headerType), Source: h.Get(headerSource), Subject: subject, Data: data},
		Stream: stream, Seq: seq, At: at, Header: h,
	}
	if s.ID == "" {
		s.ID = h.Get(jetstream.MsgIDHeader)
	}
	if !genuine(stream, h) {
		s.Type, s.Data = TypeForged, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, h.Get(headerTime)); err == nil {
		s.Time = t
	} else {
		s.Time = at
	}
	return s
}

// TypeForged is the type under which an event is read that was not published to its stream; it has no data.
const TypeForged = "butler.forged"

// genuine says whether an event was published to the stream in which it stands. Whoever may write to one stream and read
// from it can have the server copy an event anywhere: a direct get answers to any reply subject, whatever the rights of
// who asks, and a stream takes that answer for a message. But an event says for which stream it was meant
// (Nats-Expected-Stream), and the server refuses one that says another: so a copy never says the right one. Not for
// streams whose events are hints that are looked up (WORK, where the server itself publishes what is scheduled) or pieces
// of text without effect (DELTA), and those that agents write.
func genuine(stream string, h nats.Header) bool {
	switch stream {
	case ChatStream, ApprovalStream, AuditStream, ShellStream:
		return h.Get(jetstream.ExpectedStreamHeader) == stream
	}
	return true
}

func fromMsg(m jetstream.Msg) (Stored, error) {
	meta, err := m.Metadata()
	if err != nil {
		return Stored{}, fmt.Errorf("bus: message without JetStream metadata on %s: %w", m.Subject(), err)
	}
	return stored(meta.Stream, m.Subject(), meta.Sequence.Stream, meta.Timestamp, m.Headers(), m.Data()), nil
}

func seqString(n uint64) string { return strconv.FormatUint(n, 10) }
