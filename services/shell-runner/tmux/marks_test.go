package tmux

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type found struct {
	out   bytes.Buffer
	marks []string
	modes []string
}

func (r *found) data(p []byte)                 { r.out.Write(p) }
func (r *found) mark(kind byte, fields string) { r.marks = append(r.marks, string(kind)+":"+fields) }
func (r *found) private(mode int, on bool)     { r.modes = append(r.modes, fmt.Sprint(mode, on)) }

func TestScannerTakesOutMarksHoweverTheyAreCut(t *testing.T) {
	t.Parallel()
	in := "before\x1b]133;n0;C\aout\x1b]133;xx;D;0\afake\x1b]133;D;0\a\x1b[?1049hfull\x1b[?1;2004l\x1b[1mbold\x1b" +
		"\x1b]133;n0;D;42;'/tmp/a b'\aend\x1b[?99999999999999999999h!"
	wantOut := strings.ReplaceAll(strings.ReplaceAll(in, "\x1b]133;n0;C\a", ""), "\x1b]133;n0;D;42;'/tmp/a b'\a", "")
	for step := 1; step <= len(in); step++ {
		s, r := newScanner("n0"), &found{}
		for i := 0; i < len(in); i += step {
			s.feed([]byte(in[i:min(len(in), i+step)]), r)
		}
		require.Zero(t, s.pending())
		require.Equal(t, wantOut, r.out.String(), "step %d", step)
		require.Equal(t, []string{"C:", "D:42;'/tmp/a b'"}, r.marks)
		require.Equal(t, []string{"1049 true", "1 false", "2004 false"}, r.modes)
	}
}

func TestScannerHoldsBackNoMoreThanAMark(t *testing.T) {
	t.Parallel()
	s, r := newScanner("n0"), &found{}
	s.feed([]byte("\x1b]133;n0;R;"), r)
	for range 3 * maxMark / 50_000 {
		s.feed(bytes.Repeat([]byte("x"), 50_000), r)
		require.LessOrEqual(t, s.pending(), maxMark+50_000)
	}
	s.feed([]byte("\aafter"), r)
	require.Equal(t, "after", r.out.String())
	require.Empty(t, r.marks)
}

func FuzzScanner(f *testing.F) {
	f.Add([]byte("a\x1b]133;n0;D;0;'x'\ab\x1b[?2004h"), 3)
	f.Add([]byte("\x1b\x1b\x1b]133;n0"), 1)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		if step <= 0 {
			step = 1
		}
		whole, cut := &found{}, &found{}
		newScanner("n0").feed(in, whole)
		s := newScanner("n0")
		for i := 0; i < len(in); i += step {
			s.feed(in[i:min(len(in), i+step)], cut)
		}
		require.Equal(t, whole.out.Bytes(), cut.out.Bytes())
		require.Equal(t, whole.marks, cut.marks)
	})
}

func TestUnquoteAsBashQuotes(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash on this machine")
	}
	for _, s := range []string{"", "/tmp", "a b", "it's", "new\nline", "\x1b]133;\a", "名 🐢", `back\slash`, "'", "a'b\n'c",
		"\x01\xff\xfe", "$x `y` \"z\"", "tab\t$'x'", "\u202e", "a\U0001f422\u00a0\n"} {
		cmd := exec.Command(bash, "-c", `printf %s "${1@Q}"`, "bash", s)
		cmd.Env = []string{"LC_ALL=C.UTF-8"}
		quoted, err := cmd.Output()
		require.NoError(t, err)
		got, ok := unquote(string(quoted))
		require.True(t, ok, "%q", quoted)
		require.Equal(t, s, got, "%q", quoted)
	}
	for _, bad := range []string{"'open", `$'open`, `$'\x`, `$'\xzz'`} {
		_, ok := unquote(bad)
		require.False(t, ok, bad)
	}
}

func FuzzUnquote(f *testing.F) {
	f.Add(`$'a\x41\u00e9\n'\''b'`)
	f.Fuzz(func(t *testing.T, s string) { unquote(s) })
}

func TestBacklogKeepsBothEnds(t *testing.T) {
	t.Parallel()
	b := backlog{limit: 100, keep: 20}
	for i := range 1000 {
		b.add([]byte{byte(i)})
	}
	pieces, lost := b.take()
	require.Len(t, pieces, 2)
	require.Len(t, pieces[0].Data, 100)
	require.EqualValues(t, 880, pieces[1].Skipped)
	require.EqualValues(t, 880, lost)
	require.Equal(t, byte(999%256), pieces[1].Data[19])
	require.True(t, b.empty())
	b.skip(7)
	b.add([]byte("x"))
	pieces, lost = b.take()
	require.Equal(t, []Output{{Data: []byte("x"), Skipped: 7}}, pieces)
	require.EqualValues(t, 7, lost)
}

func TestKeysAndText(t *testing.T) {
	t.Parallel()
	line, err := keysLine("%0", []string{"c-C", "Esc", "pgup", "F12", `C-\`})
	require.NoError(t, err)
	require.Equal(t, `send-keys -t %0 'C-c' 'Escape' 'PPage' 'F12' 'C-\'`, line)
	for _, bad := range []string{"x", "C-1", "'; kill-server", "", "F13", "Any"} {
		_, err := keysLine("%0", []string{bad})
		require.Error(t, err, bad)
	}
	require.Equal(t, []string{`set-buffer -b butler "a\042\044\134\015\344"`, "paste-buffer -r -d -b butler -t %0"},
		typeLines("%0", []byte("a\"$\\\r\xe4")))
	for _, bad := range []string{"a\x1b[201~b", "a\x03", "a\x15b", "a\rb", "a\x00", "\x7f", "a\u009b", "\xff"} {
		require.Error(t, Command{ID: "1", Text: bad}.check(1000), "%q", bad)
	}
	require.Error(t, Command{ID: "1", Text: " \n"}.check(1000))
	require.Error(t, Command{ID: "1", Text: strings.Repeat("x", 1001)}.check(1000))
	require.NoError(t, Command{ID: "1", Text: "echo '你好' 🐢\n\tb; #{x} ~ ; "}.check(1000))
}
