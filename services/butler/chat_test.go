package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/services/butler/client"
	"github.com/butlerhub/butler/services/butler/terminal"
	"github.com/butlerhub/butler/services/butler/terminal/terminaltest"
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
	mu     sync.Mutex
	b      strings.Builder
	screen *terminaltest.Screen // or nil: what a person sees is looked at, not what was written
	seen   chan string
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.screen != nil {
		_, _ = w.screen.Write(p)
	}
	w.b.Write(p)
	w.seen <- w.text()
	return len(p), nil
}

func (w *watched) text() string {
	if w.screen != nil {
		return w.screen.String()
	}
	return w.b.String()
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text()
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

// sitting is a person at a terminal, in a conversation: the keys that they press and the screen that they see.
type sitting struct {
	t       *testing.T
	keys    *io.PipeWriter
	screen  *watched
	history string // file
	ended   chan error
}

func (h *home) sit() *sitting {
	h.t.Helper()
	a := newApp(nil, nil, nil, h.environ())
	c, err := a.client()
	require.NoError(h.t, err)
	h.t.Cleanup(c.Close)
	keys, typist := io.Pipe()
	s := &sitting{
		t: h.t, keys: typist, history: filepath.Join(h.dir, "history"), ended: make(chan error, 1),
		screen: &watched{seen: make(chan string, 100_000), screen: terminaltest.New(100, terminal.Columns)},
	}
	tk := &talk{app: a, client: c}
	history := terminal.OpenHistory(s.history)
	editor := terminal.New(keys, s.screen, func() int { return 100 }, history)
	go func() {
		defer tk.close()
		s.ended <- tk.loop(context.Background(), editor, history)
	}()
	return s
}

func (s *sitting) press(keys string) {
	s.t.Helper()
	_, err := s.keys.Write([]byte(keys))
	require.NoError(s.t, err)
}

// until waits until the screen shows a text.
func (s *sitting) until(text string) {
	s.t.Helper()
	s.screen.until(s.t, text)
}

// approve says yes to a request that the screen tells of, but not to the one that was approved before, and gives its code.
func (s *sitting) approve(before string) string {
	s.t.Helper()
	code := ""
	eventually(s.t, "a request is shown", func() bool {
		for _, m := range writeApprove.FindAllStringSubmatch(strings.ReplaceAll(s.screen.String(), "\n", ""), -1) {
			if m[1] != before {
				code = m[1]
			}
		}
		return code != ""
	})
	s.press("approve " + code + "\r")
	return code
}

var writeApprove = regexp.MustCompile("write ?`approve ?(\\w{4})`")

// leave presses Ctrl-D.
func (s *sitting) leave() {
	s.t.Helper()
	s.press("\x04")
	require.NoError(s.t, <-s.ended)
	require.NoError(s.t, s.keys.Close())
}

// TestTerminal talks as a person does.
func TestTerminal(t *testing.T) {
	t.Parallel()
	model := modeltest.Start(t)
	gate := modeltest.NewGate()
	t.Cleanup(gate.Open)
	h := newHome(t, "BUTLER_BASE_URL="+model.URL(), "BUTLER_MODEL=scripted")
	h.up()
	s := h.sit()
	s.until("/chat what this terminal can")
	s.press("你好\r")
	s.until("answer to: 你好\n")
	s.press("\x1b[A!\r") // what was said before, and more
	s.until("answer to: 你好!\n")

	model.On("slow", modeltest.Text("it begins "), modeltest.At(gate))
	s.press("slow\r")
	s.until("it begins")
	s.press("half a line")
	s.until("it begins\n› half a line")
	s.press("\x03") // takes the line away
	s.press("\x03next\r")
	s.until("answer to: next")
	s.press("/new\r")
	s.until("New conversation")
	s.press("//not a command\r")
	s.until("answer to: //not a command")
	s.press("/bogus word\r")
	s.until("answer to: /bogus word")
	s.press("/open 1\r")
	s.until("Conversation 1.")
	s.press("/list\r")
	s.until("* is the one that chat opens with")
	s.press("/chat\r")
	s.until("Alt-Enter is a new line")
	s.press("/open 999\r")
	s.until("[there is no such conversation]")
	s.leave()
	assert.NotContains(t, s.screen.String(), "answer to: half a line")
	var messages []client.Message
	h.json(&messages, "", "sessions", "show", "1")
	status := []string{}
	for _, m := range messages {
		if m.ReplyToLocalID != "" {
			status = append(status, m.Status)
		}
	}
	assert.Equal(t, []string{"answered", "answered", "stopped", "answered"}, status)

	zh := newHome(t, append(h.more, "HOME="+h.dir, "BUTLER_DATA_DIR="+h.data(), "LC_ALL=zh_CN.UTF-8")...)
	s = zh.sit()
	s.until("查看此终端的用法")
	s.press("/open there\r")
	s.until("/open 需要会话编号")
	s.press("/chat\r")
	s.until("开始新会话")
	s.leave()
}

// TestTerminalDrivesAShell approves, answers prompts and interrupts while commands run.
func TestTerminalDrivesAShell(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.endShells()
	h.up()
	s := h.sit()
	s.press("/shell\r")
	s.until("`butler_1`")

	old := filepath.Join(h.dir, "old")
	require.NoError(t, os.Mkdir(old, 0o755))
	s.press("rm -rf " + old + "\r")
	s.until("[waiting for approval")
	first := s.approve("")
	s.until("exit 0")
	assert.NoDirExists(t, old)

	s.press("read -p 'Name: ' x; echo got-$x\r")
	s.until("waits for a line")
	s.press("bob\r") // bash could take it for a command
	s.until("type into bash")
	s.approve(first)
	s.until("got-bob")
	s.press("read -s -p 'Password: ' p; echo \"it has ${#p}\"\r")
	s.until("waits for a password")
	s.press("hunter2!\r")
	s.until("it has 8")
	s.until("The password was passed on")
	eventually(t, "the third command has ended", func() bool { return strings.Count(s.screen.String(), "exit 0 ·") == 3 })
	s.press("echo once$((40+2))\r")
	s.until("once42")

	never := filepath.Join(h.dir, "never")
	s.press("read -p 'Wait: ' y\r")
	s.until("`read -p 'Wait: ' y` waits for a line")
	s.press("!touch " + never)
	s.until("› !touch")
	s.press("\x03") // the line is gone,
	s.press("\x03") // and then the command
	s.until("was sent Ctrl-C")
	s.press("\recho fin$((1+1))\r")
	s.until("fin2")
	s.leave()
	assert.NoFileExists(t, never)
	assert.Equal(t, 1, strings.Count(s.screen.String(), "once42"), "output is shown once\n%s", s.screen)

	kept, err := os.ReadFile(s.history)
	require.NoError(t, err)
	assert.Contains(t, string(kept), "/shell\n")
	assert.Contains(t, string(kept), "approve "+first)
	assert.NotContains(t, string(kept), "bob")
	assert.NotContains(t, string(kept), "hunter2")
	assert.NotContains(t, h.ok("", "sessions", "show", "1", "--limit", "100"), "hunter2")
}

func TestWhatTheHistoryKeeps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, written string
		busy, want    bool
	}{
		{"hello", "hello", false, true},
		{"hello", "hello", true, false},
		{"secret", "••••••••", false, false},
		{"/cancel", "/cancel", true, true},
		{"/key C-c", "/key C-c", true, true},
		{"/Pa55word", "/Pa55word", true, false},
		{"approve K7QF", "approve K7QF", true, true},
		{"deny K7QF no", "deny K7QF no", true, true},
		{"approve", "approve", true, false},
		{"/cancel", "••••••••", true, false},
	} {
		assert.Equal(t, c.want, kept(c.text, c.written, c.busy), "%+v", c)
	}
}

func TestOutputIsShownOnce(t *testing.T) {
	t.Parallel()
	const answer = "```console\n$ ls\na\nb\n```\nexit 0 · `/srv`"
	assert.Equal(t, "exit 0 · `/srv`", withoutOutput(answer, "a\nb\n"))
	assert.Equal(t, answer, withoutOutput(answer, "a\n"), "not all of it was shown")
	assert.Equal(t, answer, withoutOutput(answer, ""))
	const long = "```console\n$ ls\na\n\n[… 12 bytes; all of it is in the log …]\nz\n```\nexit 0"
	assert.Equal(t, "exit 0", withoutOutput(long, "a\nb\nc\nz\n"))
	assert.Equal(t, long, withoutOutput(long, "a\nb\n"), "its end was not shown")
	assert.Equal(t, "before\nafter", withoutOutput("before\n````console\n$ cat x\n```\n````\nafter", "```\n"))
	for _, text := range []string{"", "console\n", "```console\n", "```console\n$ ls\n", "```console\n$ ls\n```\nexit 0", "a console\nb"} {
		assert.Equal(t, text, withoutOutput(text, "x"))
	}
}

// TestNothingIsSentAfterAnInterruption enters lines while the gateway does not take them: once the command that they were for
// is stopped, they are not sent.
func TestNothingIsSentAfterAnInterruption(t *testing.T) {
	t.Parallel()
	type frame struct {
		LocalID string `json:"local_id"`
		Payload string `json:"payload"`
	}
	got := make(chan frame, 10)
	stopped := make(chan struct{})
	h := fakeGateway(t, map[string]http.HandlerFunc{
		"/api/ws": func(w http.ResponseWriter, r *http.Request) {
			ws, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			defer ws.CloseNow() //nolint:errcheck // the test is over
			send := func(format string, args ...any) {
				_ = ws.Write(r.Context(), websocket.MessageText, fmt.Appendf(nil, format, args...))
			}
			for {
				_, data, err := ws.Read(r.Context())
				if err != nil {
					return
				}
				var f frame
				assert.NoError(t, json.Unmarshal(data, &f))
				if f.Payload != "second" { // that one never comes into the log
					send(`{"type":"CHAT","local_id":%q,"conversation_id":1,"payload":%q}`, f.LocalID, f.Payload)
				}
				answer := func() {
					send(`{"type":"CHAT","local_id":"x","reply_to_local_id":%q,"conversation_id":1,"status":"answered","payload":"end of %s"}`, f.LocalID, f.Payload)
				}
				switch f.Payload {
				case "first":
					go func() { <-stopped; answer() }()
				case "fourth":
					answer()
				}
				got <- f
			}
		},
		"/api/chat/stop": func(http.ResponseWriter, *http.Request) { close(stopped) },
	})
	s := h.sit()
	s.press("first\r")
	assert.Equal(t, "first", (<-got).Payload)
	s.press("second\r")
	assert.Equal(t, "second", (<-got).Payload)
	s.press("third\r")
	s.until("› third\n")
	s.press("fou\x03\x03") // the first takes the line away
	s.until("end of first")
	s.until("what was entered after it was not sent")
	s.press("fourth\r")
	s.until("end of fourth")
	assert.Equal(t, "fourth", (<-got).Payload)
	s.leave()
	assert.Empty(t, got)
}

func TestCtrlCOnAQuestionIsAnInterruption(t *testing.T) {
	t.Parallel()
	model := modeltest.Start(t)
	gate := modeltest.NewGate()
	t.Cleanup(gate.Open)
	h := newHome(t, "BUTLER_BASE_URL="+model.URL(), "BUTLER_MODEL=scripted")
	h.up()
	model.On("slow", modeltest.Text("it begins "), modeltest.At(gate))
	d := h.start("chat", "--json", "slow")
	for line := range d.lines {
		if strings.Contains(line, "it begins") {
			break
		}
	}
	d.signal(syscall.SIGINT)
	assert.Equal(t, exitInterrupted, d.wait())
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
