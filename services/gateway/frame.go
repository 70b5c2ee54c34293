package gateway

import (
	"strconv"
	"time"
	"unicode/utf8"
)

// frame is one message to clients, written once and shared by all connections that it goes to: it is never changed.
type frame struct {
	body  []byte // JSON object
	seqAt int    // where the digits of seq begin in body; they and "}" end it. 0 when the frame has no seq.
	at    cursor // what seq says

	// Sequence of the event that the frame was made of, in the stream of its kind; 0 for none. A connection that has seen
	// the event passes over the frame.
	chat, delta uint64
	event       *event        // for clients that do not speak frames; nil for all that is not of CHAT or DELTA
	ends        bool          // the frame is a CHAT_STREAM_END
	approval    *pendingFrame // of AUTH_REQUEST and AUTH_STATUS_UPDATE
}

// withCursor gives the same frame with another seq.
func (f *frame) withCursor(c cursor) *frame {
	if f.seqAt == 0 || f.at == c {
		return f
	}
	g := *f
	g.at = c
	g.body = append(make([]byte, 0, f.seqAt+20), f.body[:f.seqAt]...)
	g.body = append(c.appendTo(g.body), '}')
	return &g
}

// writer makes frames; butler is how Butler appears in them.
type writer struct{ butler actor }

// frame makes the frame of an event: CHAT of a question or an answer, CHAT_STREAM of a delta.
func (w writer) frame(ev *event, at cursor) *frame {
	f := &frame{event: ev}
	b := make([]byte, 0, len(ev.text)+len(ev.text)/8+384)
	switch ev.kind {
	case eventAsked:
		f.chat = ev.seq
		b = w.head(b, "CHAT", ev)
		b = field(b, "id")
		b = strconv.AppendUint(b, ev.seq, 10)
		b = stringField(b, "local_id", ev.localID)
		b = appendSender(b, ev.sender, w.butler.id)
	case eventAnswer:
		f.chat = ev.seq
		b = w.head(b, "CHAT", ev)
		b = field(b, "id")
		b = strconv.AppendUint(b, ev.seq, 10)
		b = stringField(b, "local_id", ev.localID+":answer")
		b = appendSender(b, w.butler, ev.turn.Person)
		b = stringField(b, "stream_id", ev.streamID)
		if ev.replyTo != 0 {
			b = field(b, "reply_to")
			b = strconv.AppendUint(b, ev.replyTo, 10)
		}
		b = stringField(b, "reply_to_local_id", ev.localID)
		b = stringField(b, "status", ev.status)
		if ev.reason != "" {
			b = stringField(b, "reason", ev.reason)
		}
		b = ev.usage.appendTo(field(b, "usage"))
		if ev.shell != nil {
			b = append(field(b, "shell"), ev.shell...)
		}
		if ev.attach != "" {
			b = stringField(b, "attach", ev.attach)
		}
	case eventDelta:
		f.delta = ev.seq
		b = w.head(b, "CHAT_STREAM", ev)
		b = appendSender(b, w.butler, ev.turn.Person)
		b = stringField(b, "stream_id", ev.streamID)
		b = stringField(b, "reply_to_local_id", ev.localID)
		if ev.notice {
			b = append(field(b, "notice"), "true"...)
		}
	}
	b = stringField(b, "payload", ev.text)
	return f.finish(b, ev.at, at)
}

// end makes the CHAT_STREAM_END of a stream. ev is what ended it: its answer, or the delta that says that it was
// abandoned.
func (w writer) end(ev *event, stream string, at cursor) *frame {
	f := &frame{event: ev, ends: true}
	if ev.kind == eventDelta {
		f.delta = ev.seq
	} else {
		f.chat = ev.seq
	}
	b := w.head(make([]byte, 0, 384), "CHAT_STREAM_END", ev)
	b = appendSender(b, w.butler, ev.turn.Person)
	b = stringField(b, "stream_id", stream)
	b = stringField(b, "reply_to_local_id", ev.localID)
	b = stringField(b, "payload", "")
	return f.finish(b, ev.at, at)
}

// gap makes the frame that says: more was missed than is told again; read the history.
func (w writer) gap(now time.Time, at cursor) *frame {
	f := &frame{}
	return f.finish(append(make([]byte, 0, 96), `{"type":"GAP"`...), now, at)
}

// ready makes the frame that says where a connection stands that begins with what comes from now on.
func (w writer) ready(now time.Time, at cursor) *frame {
	f := &frame{}
	return f.finish(append(make([]byte, 0, 96), `{"type":"READY"`...), now, at)
}

// problem makes an ERROR frame. sentence is for people; retry, when not 0, is how long to wait before another try.
func (w writer) problem(now time.Time, code, sentence, localID string, retry time.Duration) *frame {
	b := append(make([]byte, 0, 256), `{"type":"ERROR"`...)
	b = stringField(b, "code", code)
	if localID != "" {
		b = stringField(b, "local_id", localID)
	}
	if retry > 0 {
		b = field(b, "retry_after")
		b = strconv.AppendInt(b, int64((retry+time.Second-1)/time.Second), 10)
	}
	b = stringField(b, "payload", sentence)
	b = appendTime(field(b, "timestamp"), now)
	return &frame{body: append(b, '}')}
}

func (w writer) head(b []byte, typ string, ev *event) []byte {
	b = append(b, `{"type":"`...)
	b = append(b, typ...)
	b = append(b, `","conversation_id":`...)
	return strconv.AppendInt(b, ev.turn.Thread, 10)
}

func (f *frame) finish(b []byte, when time.Time, at cursor) *frame {
	b = appendTime(field(b, "timestamp"), when)
	b = field(b, "seq")
	f.seqAt, f.at = len(b), at
	f.body = append(at.appendTo(b), '}')
	return f
}

func (u usage) appendTo(b []byte) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, u.prompt, 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, u.completion, 10)
	b = append(b, `,"model_calls":`...)
	b = strconv.AppendInt(b, int64(u.modelCalls), 10)
	b = append(b, `,"tool_calls":`...)
	b = strconv.AppendInt(b, int64(u.toolCalls), 10)
	return append(b, '}')
}

func appendSender(b []byte, sender actor, target int64) []byte {
	b = field(b, "sender_id")
	b = strconv.AppendInt(b, sender.id, 10)
	b = stringField(b, "sender_name", sender.name)
	b = stringField(b, "sender_role", sender.role)
	b = field(b, "target_id")
	return strconv.AppendInt(b, target, 10)
}

func field(b []byte, name string) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	return append(b, '"', ':')
}

func stringField(b []byte, name, value string) []byte { return appendString(field(b, name), value) }

func appendTime(b []byte, t time.Time) []byte {
	b = append(b, '"')
	b = t.UTC().AppendFormat(b, time.RFC3339Nano)
	return append(b, '"')
}

const hexDigits = "0123456789abcdef"

// appendString writes s as a JSON string. Bytes that are not UTF-8 become U+FFFD; "<" and the two line separators are
// escaped, so that the text can stand in a script or an event stream.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' && c != '<' && c != 0x7f {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, '\\', 'n')
			case '\r':
				b = append(b, '\\', 'r')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(b, s[start:i]...)
			b = append(b, "\ufffd"...)
			start = i + 1
		case r == '\u2028' || r == '\u2029':
			b = append(b, s[start:i]...)
			b = append(b, '\\', 'u', '2', '0', '2', hexDigits[r&15])
			start = i + size
		}
		i += size
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}
