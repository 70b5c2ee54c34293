package terminal

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/services/butler/terminal/terminaltest"
)

func TestColumns(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"abc": 3, "你好": 4, "ｶﾅ": 2, "한글": 4, "é": 1, "e\u0301": 1, "🙂": 2, "—": 1, "Ａ": 2, "\x1b": 0, "\u200b": 0,
	} {
		n := 0
		for _, r := range text {
			n += Columns(r)
		}
		assert.Equal(t, want, n, "%q", text)
	}
}

func TestPlace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text   string
		screen int
		want   place
	}{
		{"", 10, place{0, 0}},
		{"abc", 10, place{0, 3}},
		{"abcdefghij", 10, place{1, 0}},
		{"abcdefghijk", 10, place{1, 1}},
		{"你好你好你", 10, place{1, 0}},
		{"a你好你好你", 10, place{1, 2}}, // the fifth does not fit into the last column
		{"ab\ncd", 10, place{1, 2}},
	} {
		assert.Equal(t, c.want, place{}.after([]rune(c.text), c.screen), "%q", c.text)
	}
}

func TestReadLine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		typed string
		want  string
		err   error
	}{
		"plain":                   {"hello\r", "hello", nil},
		"newline as enter":        {"hello\n", "hello", nil},
		"chinese":                 {"你好，世界\r", "你好，世界", nil},
		"backspace over chinese":  {"你好\x7f\x7f我\r", "我", nil},
		"left and insert":         {"你界\x1b[D世\r", "你世界", nil},
		"home, end":               {"b\x01a\x05c\r", "abc", nil},
		"cut word":                {"one two three\x17\x17x\r", "one x", nil},
		"cut to the end":          {"abcdef\x01\x1b[C\x0b\r", "a", nil},
		"cut to the start":        {"abc\x15d\r", "d", nil},
		"delete":                  {"abc\x01\x1b[3~\r", "bc", nil},
		"ctrl-d deletes":          {"abc\x01\x04\r", "bc", nil},
		"ctrl-d in an empty line": {"\x04", "", io.EOF},
		"ctrl-c":                  {"\x03", "", ErrInterrupted},
		"ctrl-c clears the line":  {"abc\x03d\r", "d", nil},
		"ctrl-c, twice":           {"abc\x03\x03", "", ErrInterrupted},
		"ctrl-c in the history":   {"\x1b[A\x03\x1b[A\r", "second", nil},
		"end of input":            {"abc", "", io.EOF},
		"alt-enter":               {"a\x1b\rb\r", "a\nb", nil},
		"paste":                   {"\x1b[200~one\rtwo\nthree\x1b[201~!\r", "one\ntwo\nthree!", nil},
		"control in a paste":      {"\x1b[200~a\x03b\x1b[31mc\x1b[201~\r", "abc", nil},
		"history":                 {"\x1b[A\x1b[A\r", "first", nil},
		"history and back":        {"new\x1b[A\x1b[B\r", "new", nil},
		"history, edited":         {"\x10!\r", "second!", nil},
		"words":                   {"one two\x1b[1;5D_\r", "one _two", nil},
		"combining":               {"ae\u0301\x7f\r", "a", nil},
		"unknown sequences":       {"a\x1b[99;99Xb\x1bOPc\r", "abc", nil},
		"lone bytes":              {"a\xff\xc3(\r", "a\ufffd\ufffd(", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := New(strings.NewReader(c.typed), io.Discard, func() int { return 20 },
				&History{lines: []string{"first", "second"}})
			got, err := e.ReadLine(context.Background(), "> ")
			require.ErrorIs(t, err, c.err)
			assert.Equal(t, c.want, got)
		})
	}
}

// slowReader gives one byte at a time, as a slow line does.
type slowReader struct{ r io.Reader }

func (s slowReader) Read(p []byte) (int, error) { return s.r.Read(p[:1]) }

func TestReadLineByteByByte(t *testing.T) {
	t.Parallel()
	e := New(slowReader{strings.NewReader("你好🙂\x7f\x1b[D\x1b[C世\r")}, io.Discard, func() int { return 20 }, &History{})
	got, err := e.ReadLine(context.Background(), "")
	require.NoError(t, err)
	assert.Equal(t, "你好世", got)
}

func TestDrawPutsTheCursorBehindWideCharacters(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	e := New(strings.NewReader("你好\x1b[D\x04"), &out, func() int { return 20 }, &History{})
	_, err := e.ReadLine(context.Background(), "> ")
	require.ErrorIs(t, err, io.EOF)
	// Left of 好: two columns of prompt, two of 你.
	assert.Contains(t, out.String(), "> 你好\r\x1b[4C")
}

// steps is input that a test gives step by step; between them it looks at the screen.
type steps struct {
	t *testing.T
	w *io.PipeWriter
	e *Editor
	v *terminaltest.Screen
}

// press types keys and waits until the line is as they make it.
func (s steps) press(keys, line string) {
	s.t.Helper()
	_, err := s.w.Write([]byte(keys))
	require.NoError(s.t, err)
	require.Eventually(s.t, func() bool {
		s.e.mu.Lock()
		defer s.e.mu.Unlock()
		return string(s.e.line) == line
	}, 10*time.Second, time.Millisecond)
}

func (s steps) print(text string) { _, _ = s.e.Write([]byte(text)) }

func (s steps) screen(want ...string) {
	s.t.Helper()
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	assert.Equal(s.t, strings.Join(want, "\n"), s.v.String())
}

func TestPrintingGoesAboveTheLine(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	v := terminaltest.New(10, Columns)
	e := New(r, v, func() int { return 10 }, &History{})
	s := steps{t, w, e, v}
	s.print("before")
	entered := make(chan string, 1)
	read := func() {
		line, err := e.ReadLine(context.Background(), "> ")
		assert.NoError(t, err)
		entered <- line
	}
	go read()
	s.press("ab", "ab")
	s.screen("before", "> ab")
	s.print(", and") // it wraps
	s.screen("before, an", "d", "> ab")
	s.print("\n")
	s.screen("before, an", "d", "> ab")
	s.press("cdefghij你", "abcdefghij你") // two rows
	s.screen("before, an", "d", "> abcdefgh", "ij你")
	s.print("0123456789") // just full
	s.screen("before, an", "d", "0123456789", "> abcdefgh", "ij你")
	s.print("\n好\tx\n")
	s.screen("before, an", "d", "0123456789", "好      x", "> abcdefgh", "ij你")
	s.press("\x1b[D\x1b[D\x1b[D\x7f", "abcdefgij你") // the cursor is in the first row
	s.print("one\ntwo")
	s.screen("before, an", "d", "0123456789", "好      x", "one", "two", "> abcdefgi", "j你")
	e.EndLine()
	e.EndLine()
	s.screen("before, an", "d", "0123456789", "好      x", "one", "two", "> abcdefgi", "j你")
	_, err := w.Write([]byte("\r"))
	require.NoError(t, err)
	require.Equal(t, "abcdefgij你", <-entered)
	s.print("half")
	s.print(" a line")
	go read()
	s.press("x", "x")
	s.screen("before, an", "d", "0123456789", "好      x", "one", "two", "> abcdefgi", "j你", "half a lin", "e", "> x")
	_, err = w.Write([]byte("\r"))
	require.NoError(t, err)
	<-entered
	require.NoError(t, w.Close())
}

func TestReadLineEndsWithItsContext(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := New(r, io.Discard, func() int { return 80 }, &History{}).ReadLine(ctx, "")
	assert.True(t, errors.Is(err, context.Canceled))
}

func TestHistoryIsKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "butler", "history")
	h := OpenHistory(path)
	h.Add("one")
	h.Add("one")
	h.Add("  ")
	h.Add("two\nlines \\n and a backslash \\")
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	assert.Equal(t, []string{"one", "two\nlines \\n and a backslash \\"}, OpenHistory(path).lines)
	for range keepLines {
		h.Add("a")
		h.Add("b")
	}
	assert.Len(t, OpenHistory(path).lines, keepLines)
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("a\x1b[A\x1b[200~你\x03"))
	f.Fuzz(func(t *testing.T, input []byte) {
		for len(input) > 0 {
			_, rest, more := decode(input, true)
			if more || len(rest) >= len(input) {
				t.Fatalf("no progress at %q", input)
			}
			input = rest
		}
	})
}
