package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/services/butler/client"
	"github.com/butlerhub/butler/services/butler/terminal"
)

func chatLines(t *testing.T, out string) []chatLine {
	t.Helper()
	var lines []chatLine
	for line := range strings.Lines(out) {
		var l chatLine
		require.NoError(t, json.Unmarshal([]byte(line), &l), line)
		lines = append(lines, l)
	}
	return lines
}

func TestChatOnce(t *testing.T) {
	t.Parallel()
	model := modeltest.Start(t)
	h := newHome(t, "BUTLER_BASE_URL="+model.URL(), "BUTLER_MODEL=scripted", "BUTLER_MODEL_IDLE_TIMEOUT=5s")
	h.up()
	assert.Equal(t, "answer to: hello\n", h.ok("", "chat", "hello"))
	assert.Equal(t, "answer to: from a pipe\n", h.ok("from a pipe\n", "chat"))
	assert.Equal(t, "answer to: both: \nof it\n", h.ok("of it\n", "chat", "both:", "-"))

	lines := chatLines(t, h.ok("", "chat", "--json", "--local-id", "m1", "again"))
	assert.Equal(t, "accepted", lines[0].Type)
	assert.Equal(t, "m1", lines[0].LocalID)
	last := lines[len(lines)-1]
	assert.Equal(t, "answer", last.Type)
	assert.Equal(t, "answered", last.Status)
	assert.Equal(t, "answer to: again", last.Text)
	text := ""
	for _, l := range lines {
		if l.Type == "text" {
			text += l.Text
		}
	}
	assert.Equal(t, last.Text, text)
	asked := model.Count()
	repeated := chatLines(t, h.ok("", "chat", "--json", "--local-id", "m1", "again"))
	assert.Equal(t, last.ID, repeated[len(repeated)-1].ID, "the same message has the same answer")
	assert.Equal(t, asked, model.Count(), "and costs no second call")

	fresh := chatLines(t, h.ok("", "chat", "--json", "--new", "in a new one"))
	other := fresh[0].ConversationID
	assert.NotEqual(t, last.ConversationID, other)
	h.ok("", "chat", "--thread", num(other), "go on")
	var threads []client.Thread
	h.json(&threads, "", "sessions", "list")
	assert.Len(t, threads, 2)
	var messages []client.Message
	h.json(&messages, "", "sessions", "show", num(other), "--limit", "3")
	require.Len(t, messages, 3)
	assert.Equal(t, "go on", messages[1].Text)
	h.ok("", "sessions", "rename", num(other), "Plans")
	assert.Contains(t, h.ok("", "sessions", "list", "-q", "plan"), "Plans")
	assert.Equal(t, exitUsage, h.run("", "sessions", "delete", num(other)).code, "not without --yes")
	h.ok("", "sessions", "delete", num(other), "--yes")
	assert.Equal(t, exitFailed, h.run("", "sessions", "show", num(other)).code)

	model.On("broken", modeltest.Refuse(400, "bad", "no"))
	r := h.run("", "chat", "broken")
	assert.Equal(t, exitFailed, r.code)
	assert.NotEmpty(t, strings.TrimSpace(r.out), "the reason is told")
	assert.Contains(t, r.err, "the answer failed")
	r = h.run("", "chat", "--json", "broken")
	assert.Equal(t, exitFailed, r.code)
	failed := chatLines(t, r.out)
	assert.Equal(t, "failed", failed[len(failed)-1].Status)
	assert.NotEmpty(t, failed[len(failed)-1].Reason)

	assert.Equal(t, exitFailed, h.run(strings.Repeat("x", chat.MaxText+1), "chat").code)
	assert.Equal(t, exitUsage, h.run("\xff\xfe", "chat").code)
}

// TestChatSurvivesAKill kills the only process in the middle of an answer: the terminal that waits gets the whole of it.
func TestChatSurvivesAKill(t *testing.T) {
	t.Parallel()
	model := modeltest.Start(t)
	gate := modeltest.NewGate()
	h := newHome(t, "BUTLER_HTTP_ADDR="+freeAddr(t), "BUTLER_BASE_URL="+model.URL(), "BUTLER_MODEL=scripted")
	d := h.up()
	model.Next(modeltest.Text("half of "), modeltest.At(gate))

	type done struct{ result }
	ended := make(chan done, 1)
	out := &watched{seen: make(chan string, 1000)}
	var errs bytes.Buffer
	go func() {
		code := newApp(strings.NewReader(""), out, &errs, h.environ()).run([]string{"chat", "--json", "long"})
		ended <- done{result{code, out.String(), errs.String()}}
	}()
	out.until(t, "half of")
	d.signal(syscall.SIGKILL)
	d.wait()
	gate.Open()
	h.start("up").ready()
	r := <-ended
	assert.Zero(t, r.code, r.err)
	lines := chatLines(t, r.out)
	text := ""
	for _, l := range lines {
		switch l.Type {
		case "restart":
			text = ""
		case "text":
			text += l.Text
		}
	}
	assert.Equal(t, "answer to: long", text, "what is not void is the whole answer")
	assert.Equal(t, text, lines[len(lines)-1].Text)
	var messages []client.Message
	h.json(&messages, "", "sessions", "show", "1")
	assert.Len(t, messages, 2, "one question, one answer")
}

// watched is an output whose growth can be waited for.
type watched struct {
	mu   sync.Mutex
	b    strings.Builder
	seen chan string
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b.Write(p)
	w.seen <- w.b.String()
	return len(p), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

func (w *watched) until(t *testing.T, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		select {
		case s := <-w.seen:
			if strings.Contains(s, text) {
				return
			}
		case <-ctx.Done():
			t.Fatalf("%q was not written: %q", text, w.String())
		}
	}
}

// TestTerminal talks as a person does, with the keys that they press and the screen that they see.
func TestTerminal(t *testing.T) {
	t.Parallel()
	model := modeltest.Start(t)
	gate := modeltest.NewGate()
	t.Cleanup(gate.Open)
	h := newHome(t, "BUTLER_BASE_URL="+model.URL(), "BUTLER_MODEL=scripted")
	h.up()
	a := newApp(nil, nil, nil, h.environ())
	c, err := a.client()
	require.NoError(t, err)
	defer c.Close()
	keys, typist := io.Pipe()
	screen := &watched{seen: make(chan string, 10000)}
	history := terminal.OpenHistory(filepath.Join(h.dir, "history"))
	tk := &talk{app: a, client: c, screen: &rawScreen{w: screen}}
	defer tk.close()
	editor := terminal.New(keys, screen, func() int { return 40 }, history)
	ended := make(chan error, 1)
	go func() { ended <- tk.loop(context.Background(), editor, history) }()
	press := func(s string) {
		_, err := typist.Write([]byte(s))
		require.NoError(t, err)
	}

	press("你好\r")
	screen.until(t, "answer to: 你好\r\n")
	press("\x1b[A!\r") // what was said before, and more
	screen.until(t, "answer to: 你好!\r\n")

	model.On("slow", modeltest.Text("it begins "), modeltest.At(gate))
	press("slow\r")
	screen.until(t, "it begins ")
	press("\x03next \r") // stop, and type ahead
	screen.until(t, "answer to: next")
	press("/new\r")
	screen.until(t, "New conversation")
	press("//not a command\r")
	screen.until(t, "answer to: /not a command")
	press("/open 1\r")
	screen.until(t, "Conversation 1.")
	press("/list\r")
	screen.until(t, "not a command")
	press("/help\r")
	screen.until(t, "Alt-Enter")
	press("/open 999\r")
	screen.until(t, "[there is no such conversation]")
	press("\x04")
	require.NoError(t, <-ended)
	require.NoError(t, typist.Close())
	var messages []client.Message
	h.json(&messages, "", "sessions", "show", "1")
	status := []string{}
	for _, m := range messages {
		if m.ReplyToLocalID != "" {
			status = append(status, m.Status)
		}
	}
	assert.Equal(t, []string{"answered", "answered", "stopped", "answered"}, status)
}

func TestWhatComesFromOthersCannotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	model := modeltest.Start(t)
	h := newHome(t, "BUTLER_BASE_URL="+model.URL(), "BUTLER_MODEL=scripted")
	h.up()
	model.Next(modeltest.Text("a\x1b]0;owned\x07b", "\u202ec", "\r\nd"))
	assert.Equal(t, "a]0;ownedbc\nd\n", h.ok("", "chat", "hello"))
	assert.NotContains(t, h.ok("", "sessions", "show", "1"), "\x1b")
}
