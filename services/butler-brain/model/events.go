package model

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// eventStream passes on the data lines of a server-sent event stream and keeps what Eino drops on the way: the end
// mark, the model's name, errors in mid-stream. Comments, which busy endpoints send by the hundred to keep a connection
// open, and events without content are left out. Text events that have arrived together are passed on as one: decoding
// an event is the dearest part of a call.
type eventStream struct {
	src      *idleReader
	lines    *bufio.Reader
	exchange *exchange
	ready    []byte // filtered lines not yet passed on
	off      int
	line     []byte
	text     []byte // text not yet among ready, as the body of a JSON string
	named    bool   // the model's name is known
	finished bool
	done     bool
	err      error

	// What stands before and after the text in this stream's text events, once one was seen: most endpoints send the
	// same around every piece.
	before, after []byte
}

func (s *eventStream) Read(p []byte) (int, error) {
	for s.off == len(s.ready) {
		if s.err != nil {
			return 0, s.err
		}
		s.ready, s.off = s.ready[:0], 0
		s.err = s.fill()
		s.flushText()
	}
	n := copy(p, s.ready[s.off:])
	s.off += n
	return n, nil
}

func (s *eventStream) Close() error {
	if s.done || s.finished {
		s.src.drain()
	}
	return s.src.Close()
}

// fill takes one line, waiting for it, and those that have arrived with it.
func (s *eventStream) fill() error {
	for {
		line, err := s.readLine()
		if err != nil {
			if s.finished || s.done {
				return io.EOF // the answer is whole; how the connection ended does not matter
			}
			return err
		}
		if err := s.take(line); err != nil {
			return err
		}
		if s.done {
			return io.EOF
		}
		buffered, _ := s.lines.Peek(s.lines.Buffered())
		if bytes.IndexByte(buffered, '\n') < 0 {
			return nil
		}
	}
}

func (s *eventStream) readLine() ([]byte, error) {
	s.line = s.line[:0]
	for {
		part, err := s.lines.ReadSlice('\n')
		if len(s.line)+len(part) > maxLine {
			return nil, errTooLong
		}
		if err == nil && len(s.line) == 0 {
			return part, nil
		}
		s.line = append(s.line, part...)
		if err == nil {
			return s.line, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if errors.Is(err, io.EOF) && len(bytes.TrimSpace(s.line)) > 0 {
				return s.line, nil // a last line without its line feed
			}
			return nil, err
		}
	}
}

var (
	dataPrefix   = []byte("data:")
	doneMark     = []byte("[DONE]")
	openingBrace = []byte("{")
	errorKey     = []byte(`"error"`)
	errorFirst   = []byte(`{"error":`)
	contentKey   = []byte(`"content"`)
	contentStart = []byte(`"content":"`)
)

func (s *eventStream) take(line []byte) error {
	data, ok := bytes.CutPrefix(bytes.TrimSpace(line), dataPrefix)
	if !ok {
		if bytes.HasPrefix(data, openingBrace) && bytes.Contains(data, errorKey) {
			var e event // a bare error object within the stream
			if json.Unmarshal(data, &e) == nil && e.failed() {
				return s.fail(data)
			}
		}
		return nil
	}
	data = bytes.TrimSpace(data)
	if bytes.Equal(data, doneMark) {
		s.done = true
		s.exchange.update(func(x *exchangeState) { x.done = true })
		s.pass(data)
		return nil //nolint:nilerr // whoever reads the stream says what is wrong with it
	}
	if text, ok := s.likeBefore(data); ok {
		s.text = append(s.text, text...)
		return nil
	}
	return s.inspect(data)
}

// likeBefore gives the text of an event that differs from an earlier text event in nothing else, as the body of a JSON
// string.
func (s *eventStream) likeBefore(data []byte) ([]byte, bool) {
	if s.before == nil || len(data) < len(s.before)+len(s.after) ||
		!bytes.HasPrefix(data, s.before) || !bytes.HasSuffix(data, s.after) {
		return nil, false
	}
	body := data[len(s.before) : len(data)-len(s.after)]
	escaped := false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '\\':
			escaped = true
			i++
		case c == '"', c < ' ':
			return nil, false
		}
	}
	return body, !escaped || json.Valid(append(append([]byte{'"'}, body...), '"'))
}

// event is what is looked at in an event; the rest is for the client underneath.
type event struct {
	Model   string          `json:"model"`
	Object  string          `json:"object"`
	Error   json.RawMessage `json:"error"`
	Usage   json.RawMessage `json:"usage"`
	Choices []struct {
		Index int `json:"index"`
		Delta struct {
			Content   json.RawMessage `json:"content"`
			ToolCalls json.RawMessage `json:"tool_calls"`
		} `json:"delta"`
		FinishReason json.RawMessage `json:"finish_reason"`
	} `json:"choices"`
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

func (e *event) failed() bool { return !absent(e.Error) || e.Object == "error" }

// inspect takes an event apart: text is gathered, events with nothing in them are dropped, all others are passed on as
// they are, also those that cannot be read: the client underneath then ends the stream.
func (s *eventStream) inspect(data []byte) error {
	var e event
	if json.Unmarshal(data, &e) != nil {
		s.pass(data)
		return nil //nolint:nilerr // whoever reads the stream says what is wrong with it
	}
	if e.failed() {
		return s.fail(data)
	}
	if !s.named && e.Model != "" {
		s.named = true
		s.exchange.update(func(x *exchangeState) { x.model = cutBytes(cleanText(e.Model), maxCallName) })
	}
	for _, c := range e.Choices {
		if c.Index == 0 && !absent(c.FinishReason) && string(c.FinishReason) != `""` {
			s.finished = true
			s.exchange.update(func(x *exchangeState) { x.finished = true })
		}
	}
	if text, ok := s.textOf(&e, data); ok {
		s.text = append(s.text, text...)
		return nil
	}
	if bytes.HasPrefix(data, errorFirst) {
		data = withoutError(data)
	}
	s.pass(data)
	return nil
}

// textOf gives the text of an event that has nothing but text, as the body of a JSON string; it may be empty.
func (s *eventStream) textOf(e *event, data []byte) ([]byte, bool) {
	if !absent(e.Usage) || len(e.Choices) > 1 {
		return nil, false
	}
	if len(e.Choices) == 0 {
		return nil, true
	}
	c := &e.Choices[0]
	tools := !absent(c.Delta.ToolCalls) && string(c.Delta.ToolCalls) != "[]"
	if c.Index != 0 || tools || (!absent(c.FinishReason) && string(c.FinishReason) != `""`) {
		return nil, false
	}
	content := c.Delta.Content
	switch {
	case absent(content):
		return nil, true
	case content[0] == '"':
		body := content[1 : len(content)-1]
		s.remember(data, body)
		return body, true
	case content[0] == '[':
		return textParts(content)
	}
	return nil, false
}

// remember keeps what stands around the text of an event.
func (s *eventStream) remember(data, body []byte) {
	at := bytes.Index(data, contentStart)
	if at < 0 || bytes.Count(data, contentKey) != 1 {
		return
	}
	at += len(contentStart)
	if end := at + len(body); end < len(data) && bytes.Equal(data[at:end], body) && data[end] == '"' {
		s.before = append(s.before[:0], data[:at]...)
		s.after = append(s.after[:0], data[end:]...)
	}
}

// textParts gives the text of content that comes in parts, without the parts that are reasoning.
func textParts(content json.RawMessage) ([]byte, bool) {
	var parts []struct{ Type, Text string }
	if json.Unmarshal(content, &parts) != nil {
		return nil, false
	}
	var text strings.Builder
	for _, p := range parts {
		if p.Type == "text" {
			text.WriteString(p.Text)
		}
	}
	quoted, err := json.Marshal(text.String())
	if err != nil {
		return nil, false
	}
	return quoted[1 : len(quoted)-1], true
}

// fail ends the stream with the error that the endpoint reports in it.
func (s *eventStream) fail(data []byte) error {
	e := parseErrorBody(data)
	e.status = e.guessStatus()
	s.exchange.update(func(x *exchangeState) { x.failed = e })
	return e
}

// pass puts an event among those that are ready, after the text before it.
func (s *eventStream) pass(data []byte) {
	s.flushText()
	s.ready = append(s.ready, "data: "...)
	s.ready = append(s.ready, data...)
	s.ready = append(s.ready, '\n')
}

func (s *eventStream) flushText() {
	if len(s.text) == 0 {
		return
	}
	s.ready = append(s.ready, `data: {"choices":[{"index":0,"delta":{"content":"`...)
	s.ready = append(s.ready, s.text...)
	s.ready = append(s.ready, "\"}}]}\n"...)
	s.text = s.text[:0]
}

// withoutError takes a null error out of an event: where it stands first, the client underneath takes the event for a
// refusal.
func withoutError(data []byte) []byte {
	var doc map[string]json.RawMessage
	if json.Unmarshal(data, &doc) != nil {
		return data
	}
	delete(doc, "error")
	out, err := json.Marshal(doc)
	if err != nil {
		return data
	}
	return out
}
