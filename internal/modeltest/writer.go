package modeltest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// writer makes one response. Chunks gather in a buffer that is sent when a step waits, and at the end: an answer without
// pauses costs one write.
type writer struct {
	http http.ResponseWriter
	r    *http.Request
	req  *Request
	done <-chan struct{}

	buf     *[]byte
	prefix  string
	started bool
	flusher http.Flusher

	whole              strings.Builder // for answers that are not streamed
	calls              []*Call
	prompt, completion int
	noUsage            bool
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 8<<10); return &b }}

func newWriter(w http.ResponseWriter, r *http.Request, req *Request, done <-chan struct{}) *writer {
	buf, _ := buffers.Get().(*[]byte)
	flusher, _ := w.(http.Flusher)
	return &writer{
		http: w, r: r, req: req, done: done, buf: buf, flusher: flusher, prompt: 10, completion: 20,
		prefix: `data: {"id":"chatcmpl-` + strconv.Itoa(req.N) + `","object":"chat.completion.chunk","created":1,"model":` +
			quote(req.Model) + `,`,
	}
}

func (w *writer) release() {
	*w.buf = (*w.buf)[:0]
	buffers.Put(w.buf)
}

// raw adds to the stream as it is.
func (w *writer) raw(s string) { *w.buf = append(*w.buf, s...) }

// chunk adds an event with a delta, which is JSON.
func (w *writer) chunk(delta string) {
	if !w.req.Stream {
		return
	}
	w.raw(w.prefix)
	w.raw(`"choices":[{"index":0,"delta":`)
	w.raw(delta)
	w.raw(`,"finish_reason":null}]}` + "\n\n")
}

func (w *writer) text(s string) {
	if !w.req.Stream {
		w.whole.WriteString(s)
		return
	}
	w.chunk(`{"content":` + quote(s) + `}`)
}

func (w *writer) call(c Call, first bool, arguments string) {
	if first {
		c := c
		w.calls = append(w.calls, &c)
	}
	var b strings.Builder
	b.WriteString(`{"tool_calls":[{`)
	if !c.NoIndex {
		fmt.Fprintf(&b, `"index":%d,`, c.Index)
	}
	b.WriteString(`"function":{`)
	if first {
		fmt.Fprintf(&b, `"name":%s,`, quote(c.Name))
	}
	fmt.Fprintf(&b, `"arguments":%s}`, quote(arguments))
	if first {
		if c.ID != "" {
			fmt.Fprintf(&b, `,"id":%s`, quote(c.ID))
		}
		b.WriteString(`,"type":"function"`)
	}
	b.WriteString(`}]}`)
	w.chunk(b.String())
}

// end adds the event with the finish_reason.
func (w *writer) end(reason string) {
	if reason == "" {
		reason = "stop"
		if len(w.calls) > 0 {
			reason = "tool_calls"
		}
	}
	w.raw(w.prefix)
	w.raw(`"choices":[{"index":0,"delta":{},"finish_reason":` + quote(reason) + `}]}` + "\n\n")
}

func (w *writer) usage() string {
	return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`,
		w.prompt, w.completion, w.prompt+w.completion)
}

// finish ends a whole answer.
func (w *writer) finish(reason string) {
	if !w.req.Stream {
		w.finishWhole(reason)
		return
	}
	w.end(reason)
	if !w.noUsage {
		w.raw(w.prefix)
		w.raw(`"choices":[],"usage":` + w.usage() + "}\n\n")
	}
	w.raw("data: [DONE]\n\n")
	w.send()
}

func (w *writer) finishWhole(reason string) {
	message := map[string]any{"role": "assistant", "content": w.whole.String()}
	if len(w.calls) > 0 {
		var calls []any
		for _, c := range w.calls {
			calls = append(calls, map[string]any{
				"id": c.ID, "type": "function", "function": map[string]string{"name": c.Name, "arguments": c.Arguments},
			})
		}
		message["tool_calls"] = calls
	}
	if reason == "" {
		reason = "stop"
		if len(w.calls) > 0 {
			reason = "tool_calls"
		}
	}
	body := map[string]any{
		"id": "chatcmpl-" + strconv.Itoa(w.req.N), "object": "chat.completion", "created": 1, "model": w.req.Model,
		"choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": reason}},
	}
	if !w.noUsage {
		body["usage"] = json.RawMessage(w.usage())
	}
	w.http.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w.http).Encode(body)
}

// send writes what is buffered; the server flushes it at the end of the response.
func (w *writer) send() {
	if !w.started {
		w.started = true
		w.http.Header().Set("Content-Type", "text/event-stream")
		w.http.Header().Set("Cache-Control", "no-store")
	}
	if len(*w.buf) > 0 {
		_, _ = w.http.Write(*w.buf)
		*w.buf = (*w.buf)[:0]
	}
}

// flush puts everything on the wire now.
func (w *writer) flush() {
	w.send()
	if w.flusher != nil {
		w.flusher.Flush()
	}
}

// pause flushes and waits; it returns true when the client or the server has gone.
func (w *writer) pause(d time.Duration) bool {
	w.flush()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false
	case <-w.r.Context().Done():
		return true
	case <-w.done:
		return true
	}
}

// wait blocks until open is closed (nil: never); it returns true when the client or the server has gone first.
func (w *writer) wait(open <-chan struct{}) bool {
	select {
	case <-open:
		return false
	case <-w.r.Context().Done():
		return true
	case <-w.done:
		return true
	}
}

// quote gives s as a JSON string.
func quote(s string) string {
	plain := true
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x80 {
			plain = false
			break
		}
	}
	if plain {
		return `"` + s + `"`
	}
	out, _ := json.Marshal(s) // strings always marshal
	return string(out)
}
