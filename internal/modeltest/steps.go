package modeltest

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Reply is what the endpoint does for one request, step by step. A reply that does not end itself ends like a whole
// answer: with a finish_reason ("tool_calls" after a tool call, else "stop"), usage, and [DONE].
type Reply []Step

// Step is one thing that the endpoint does; it returns true when it ended the response.
type Step func(w *writer) (ended bool)

// Text sends each piece as a chunk.
func Text(pieces ...string) Step {
	return func(w *writer) bool {
		for _, p := range pieces {
			w.text(p)
		}
		return false
	}
}

// EchoText is what Echo answers to a message.
func EchoText(message string) string { return "answer to: " + message }

// Echo answers EchoText of the last user message in n chunks (fewer when the text has fewer characters).
func Echo(n int) Step { return EchoSlow(n, 0) }

// EchoSlow is Echo with a pause before each chunk.
func EchoSlow(n int, delay time.Duration) Step {
	return func(w *writer) bool {
		for _, piece := range Split(EchoText(w.req.LastUser()), n) {
			if delay > 0 && w.pause(delay) {
				return true
			}
			w.text(piece)
		}
		return false
	}
}

// Split cuts text into n pieces of about the same number of characters, fewer when it has fewer.
func Split(text string, n int) []string {
	runes := []rune(text)
	n = max(1, min(n, len(runes)))
	out := make([]string, 0, n)
	for i := range n {
		out = append(out, string(runes[i*len(runes)/n:(i+1)*len(runes)/n]))
	}
	return out
}

// Call is a tool call that the endpoint makes.
type Call struct {
	ID, Name, Arguments string
	Index               int
	NoIndex             bool // send it without an index, as some endpoints do
	Chunks              int  // over how many chunks the arguments are spread; 0 is one
}

// Tool calls a tool, with the id call_1.
func Tool(name, arguments string) Step {
	return Calls(Call{ID: "call_1", Name: name, Arguments: arguments})
}

// Calls calls tools. The chunks of several calls are interleaved.
func Calls(calls ...Call) Step {
	return func(w *writer) bool {
		parts := make([][]string, len(calls))
		longest := 0
		for i, c := range calls {
			parts[i] = Split(c.Arguments, max(c.Chunks, 1))
			longest = max(longest, len(parts[i]))
		}
		for n := range longest {
			for i, c := range calls {
				if n < len(parts[i]) {
					w.call(c, n == 0, parts[i][n])
				}
			}
		}
		return false
	}
}

// Usage sets the token counts that the end of the answer reports; 10 and 20 without it.
func Usage(prompt, completion int) Step {
	return func(w *writer) bool {
		w.prompt, w.completion = prompt, completion
		return false
	}
}

// NoUsage leaves the token counts out.
func NoUsage() Step {
	return func(w *writer) bool {
		w.noUsage = true
		return false
	}
}

// Finish ends the answer with a finish_reason.
func Finish(reason string) Step {
	return func(w *writer) bool {
		w.finish(reason)
		return true
	}
}

// FinishOnly sends the finish_reason and ends the response properly, but without usage and [DONE].
func FinishOnly(reason string) Step {
	return func(w *writer) bool {
		w.end(reason)
		w.flush()
		return true
	}
}

// DoneOnly ends the answer with [DONE] and no finish_reason.
func DoneOnly() Step {
	return func(w *writer) bool {
		w.raw("data: [DONE]\n\n")
		w.flush()
		return true
	}
}

// End ends the response properly, but with neither finish_reason nor [DONE].
func End() Step {
	return func(w *writer) bool {
		w.flush()
		return true
	}
}

// Empty ends the answer at once: a whole stream with nothing in it.
func Empty() Step { return Finish("stop") }

// Cut breaks the connection.
func Cut() Step {
	return func(w *writer) bool {
		w.flush()
		panic(http.ErrAbortHandler)
	}
}

// FinishThenCut sends the finish_reason and breaks the connection.
func FinishThenCut(reason string) Step {
	return func(w *writer) bool {
		w.end(reason)
		w.flush()
		panic(http.ErrAbortHandler)
	}
}

// Hang sends what there is and then nothing more, until the client goes away or the server is closed.
func Hang() Step {
	return func(w *writer) bool {
		w.flush()
		w.wait(nil)
		return true
	}
}

// HangSilently is Hang without even a header.
func HangSilently() Step {
	return func(w *writer) bool {
		w.wait(nil)
		return true
	}
}

// Delay sends what there is and pauses.
func Delay(d time.Duration) Step { return func(w *writer) bool { return w.pause(d) } }

// Status refuses the request. header is "" or lines "Name: value"; body may be "".
func Status(code int, header, body string) Step {
	return func(w *writer) bool {
		for line := range strings.Lines(header) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				w.http.Header().Set(name, strings.TrimSpace(value))
			}
		}
		if w.http.Header().Get("Content-Type") == "" {
			w.http.Header().Set("Content-Type", "application/json")
		}
		w.http.WriteHeader(code)
		_, _ = w.http.Write([]byte(body))
		return true
	}
}

// Refuse refuses the request with a body in OpenAI's shape.
func Refuse(status int, code, message string) Step {
	return Status(status, "", fmt.Sprintf(`{"error":{"message":%s,"type":"error","code":%s}}`, quote(message), quote(code)))
}

// Body answers a whole body of a content type, as it is.
func Body(contentType, body string) Step {
	return func(w *writer) bool {
		w.http.Header().Set("Content-Type", contentType)
		_, _ = w.http.Write([]byte(body))
		return true
	}
}

// Raw sends text into the stream as it is; an event needs "data: …" and an empty line.
func Raw(text string) Step {
	return func(w *writer) bool {
		w.raw(text)
		return false
	}
}

// Garbage sends an event that is not JSON.
func Garbage() Step { return Raw("data: {\"choices\":[{\"delta\":{\"content\":\"ha\n\n") }

// Comments sends n keep-alive comments.
func Comments(n int) Step { return Raw(strings.Repeat(": keep-alive\n\n", n)) }

// Reasoning sends a piece of reasoning in the field that DeepSeek uses.
func Reasoning(text string) Step {
	return func(w *writer) bool {
		w.chunk(`{"reasoning_content":` + quote(text) + `}`)
		return false
	}
}

// Gate is a point at which the endpoint waits for the test.
type Gate struct {
	reached, open         chan struct{}
	reachedOnce, openOnce sync.Once
}

// NewGate makes a closed gate.
func NewGate() *Gate { return &Gate{reached: make(chan struct{}), open: make(chan struct{})} }

// Reached is closed when a request stands at the gate for the first time; what it sent before has been flushed.
func (g *Gate) Reached() <-chan struct{} { return g.reached }

// Open lets everything through, now and later. It may be called twice.
func (g *Gate) Open() { g.openOnce.Do(func() { close(g.open) }) }

// At sends what there is and waits until the gate is open.
func At(g *Gate) Step {
	return func(w *writer) bool {
		w.flush()
		g.reachedOnce.Do(func() { close(g.reached) })
		return w.wait(g.open)
	}
}
