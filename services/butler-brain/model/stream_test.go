package model

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/cloudwego/eino/schema"
)

func eventsOf(r io.Reader) (*eventStream, *exchange) {
	ctx, cancel := context.WithCancelCause(context.Background())
	x := &exchange{ctx: ctx, cancel: cancel}
	src := &idleReader{body: io.NopCloser(r), exchange: x, idle: time.Minute, left: maxStream}
	return &eventStream{src: src, lines: bufio.NewReaderSize(src, 64<<10), exchange: x}, x
}

// Whatever an endpoint sends, only whole data lines come out, the same however the bytes are cut into packets.
func FuzzEventStream(f *testing.F) {
	for _, seed := range []string{
		"data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
		"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\u00e9\"}}]}\n",
		": comment\r\n\r\ndata:{\"model\":\"m\"}\r\n", "event: error\ndata: {\"error\":{\"code\":429}}\n\n", "data: {\"error\":null}\n",
		"{\"error\":\"x\"}\n", "data: \xff\x00\n", "data: [DONE]\ndata: late\n", "data:", "\n\n\n", "data: {\"finish_reason\": \"",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		whole, x := eventsOf(bytes.NewReader(sent))
		out, err := io.ReadAll(whole)
		bytewise, y := eventsOf(iotest.OneByteReader(bytes.NewReader(sent)))
		again, err2 := io.ReadAll(bytewise)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("%v then %v", err, err2)
		}
		if len(sent) < 32<<10 { // in one packet, all text between two other events becomes one
			joined, _ := eventsOf(bytes.NewReader(again))
			if again, _ = io.ReadAll(joined); !bytes.Equal(out, again) {
				t.Fatalf("%q then %q", out, again)
			}
		}
		if a, b := x.state(), y.state(); a.done != b.done || a.finished != b.finished || a.model != b.model {
			t.Fatalf("%+v then %+v", a, b)
		}
		if len(out) > 0 && out[len(out)-1] != '\n' {
			t.Fatalf("no whole lines: %q", out)
		}
		for line := range bytes.Lines(out) {
			if !bytes.HasPrefix(line, []byte("data: ")) {
				t.Fatalf("%q", line)
			}
		}
		if s := x.state(); !utf8.ValidString(s.model) || len(s.model) > maxCallName {
			t.Fatalf("model %q", s.model)
		}
	})
}

// Whatever pieces arrive, the collected message is within its bounds and its calls have names and different ids.
func FuzzCollector(f *testing.F) {
	f.Add([]byte(`[{"content":"a"},{"tool_calls":[{"index":0,"id":"x","function":{"name":"f","arguments":"{"}}]}]`))
	f.Add([]byte(`[{"content":"<think>"},{"content":"\u0000</think>b"},{"tool_calls":[{"function":{"arguments":"{}"}},{"id":"x"}]}]`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		var pieces []*schema.Message
		if json.Unmarshal(doc, &pieces) != nil {
			return
		}
		c := newCollector(1)
		var streamed strings.Builder
		onText := func(s string) { streamed.WriteString(s) }
		for _, p := range pieces {
			if err := c.add(p, onText); err != nil {
				return
			}
		}
		if c.flush(onText) != nil {
			return
		}
		res, err := c.result(true, "m")
		if err != nil {
			if !errors.Is(err, errEmpty) && !errors.Is(err, errFilter) && !errors.Is(err, errCut) {
				t.Fatal(err)
			}
			return
		}
		text := res.Message.Content
		if text != streamed.String() || !utf8.ValidString(text) || strings.Contains(text, "\x00") || len(text) > maxText {
			t.Fatalf("%q", text)
		}
		ids := map[string]bool{}
		for _, call := range res.Message.ToolCalls {
			if call.Function.Name == "" || len(call.Function.Name) > maxCallName || call.ID == "" || ids[call.ID] ||
				len(call.ID) > maxCallID || len(call.Function.Arguments) > 3*maxArguments || call.Type != "function" {
				t.Fatalf("%+v", call)
			}
			ids[call.ID] = true
		}
		if len(res.Message.ToolCalls) > maxToolCalls {
			t.Fatal(len(res.Message.ToolCalls))
		}
	})
}
