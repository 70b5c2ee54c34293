package tmux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/fault"
)

func TestRunGivesOutputStatusAndDirectory(t *testing.T) {
	t.Parallel()
	s := open(t, Config{}).session("17")
	out, o := run(t, s, "echo hi; cd /usr; false")
	require.Equal(t, "hi\n", out)
	require.Equal(t, 1, o.Status)
	require.Equal(t, "/usr", o.Dir)
	require.Equal(t, "/usr", s.Dir())
	require.True(t, o.Started && o.StatusKnown && o.Finished)
	require.EqualValues(t, 4, o.Bytes)
	out, _ = run(t, s, "echo $?")
	require.Equal(t, "1\n", out, "the marks leave $? alone")
}

// The commands of which the reference measured the status, and more of the same kinds, one after the other in one shell.
func TestEveryStatus(t *testing.T) {
	t.Parallel()
	s := open(t, Config{}).session("17")
	gen := s.Generation()
	for _, c := range []struct {
		text, out string
		status    int
		notRun    bool
	}{
		{text: "true"},
		{text: "false", status: 1},
		{text: "(exit 42)", status: 42},
		{text: "bash -c 'exit 7'", status: 7},
		{text: "nosuchcommand_x", status: 127, out: "bash: nosuchcommand_x: command not found\n"},
		{text: "/etc/passwd", status: 126, out: "bash: /etc/passwd: Permission denied\n"},
		{text: "echo )", status: 2, notRun: true, out: "bash: syntax error near unexpected token `)'\n"},
		{text: "# only a comment", status: 2, notRun: true}, // as it was
		{text: "cat <<X\na\n b\nX", out: "a\n b\n"},
		{text: "for i in 1 2 3\ndo echo $i\ndone", out: "1\n2\n3\n"},
		{text: "set -o pipefail; false | true", status: 1},
		{text: "set +o pipefail; false | true"},
		{text: "true | false", status: 1},
		{text: "echo '你好 🐢 é'", out: "你好 🐢 é\n"},
		{text: `printf '\033]133;D;0\007\033]133;C\007'; false`, status: 1, out: "\x1b]133;D;0\a\x1b]133;C\a"},
		{text: `printf '\033]133;00112233445566778899aabbccddeeff;D;0;x\007'; false`, status: 1,
			out: "\x1b]133;00112233445566778899aabbccddeeff;D;0;x\a"},
		{text: "sh -c 'kill -9 $$'", status: 137, out: "Killed\n"},
		{text: "sh -c 'kill -TERM $$'", status: 143, out: "Terminated\n"},
		{text: "echo one\nfalse", status: 1, out: "one\n"},
		{text: "echo a;", out: "a\n"},
		{text: "echo a ; # '\"#{pane_id} ~", out: "a\n"},
		{text: "echo !! !rm ^a^b", out: "!! !rm ^a^b\n"},
		{text: "echo -l -- Enter", out: "-l -- Enter\n"},
		{text: "echo '#{pane_id}' \"$((1+2))\" `echo x` ~root", out: "#{pane_id} 3 x /root\n"},
		{text: "printf x", out: "x"},
		{text: "printf '\\r'; printf 'a\\tb'", out: "\ra\tb"},
		{text: "echo a >&2; (exit 3)", out: "a\n", status: 3},
		{text: "sleep 0.05 & wait $!; (exit 5)", status: 5, out: "*"},
		{text: "eval 'exit_status=9; (exit $exit_status)'", status: 9},
		{text: "trap 'echo bye' RETURN; f() { return 8; }; f", status: 8, out: "*"},
		{text: "[[ 1 == 2 ]]", status: 1},
		{text: "echo " + strings.Repeat("x", 20_000), out: strings.Repeat("x", 20_000) + "\n"},
	} {
		out, o := run(t, s, c.text)
		require.True(t, o.StatusKnown, c.text)
		require.Equal(t, c.status, o.Status, c.text)
		require.Equal(t, !c.notRun, o.Started, c.text)
		if c.out != "*" {
			require.Equal(t, c.out, out, "%q", cut(c.text, 60))
		}
		require.False(t, o.Lost || o.ShellEnded || o.Incomplete || o.Truncated, c.text)
	}
	require.Equal(t, gen, s.Generation())
}

func TestTheShellsOwnSettingsDoNotBlindUs(t *testing.T) {
	t.Parallel()
	s := open(t, Config{}).session("17")
	for _, text := range []string{
		"unset PROMPT_COMMAND", "PROMPT_COMMAND=", "unset PS0", "PS1='> '", "PS1=", "PS2='@'", "IFS=x", "set -u",
		"exec 3>/dev/null", "exec >/tmp/x$$; rm /tmp/x$$", "exec >/dev/tty", "shopt -u promptvars", "set -o vi", "set -o emacs",
		"unset -f __butler_prompt", "printf() { :; }", "set -f", "set -C", "alias printf=false", "set -x", "set +x",
		"stty -echo", "stty sane", "trap 'true' DEBUG", "trap - DEBUG", "LC_ALL=C", "TMOUT=100", "command_not_found_handle() { :; }",
		"bind '\"a\": \"b\"'", "cd /", "\\cd /tmp",
	} {
		_, o := run(t, s, text)
		require.True(t, o.Finished && o.StatusKnown, text)
	}
	s = open(t, Config{}).session("18")
	_, o := run(t, s, "set -e; true")
	require.Zero(t, o.Status)
	_, err := s.Resolve(within(t), "nosuch_x")
	require.NoError(t, err, "a question under set -e does not end the shell")
	require.Nil(t, s.Lost())
}

func TestAtMostOneCommand(t *testing.T) {
	t.Parallel()
	s := open(t, Config{}).session("17")
	fifo := filepath.Join(t.TempDir(), "go")
	run(t, s, "mkfifo "+fifo)
	end := begin(t, s, "cat "+fifo)
	st := state(t, s, "running", func(st State) bool { return st.Command != "" && st.Foreground.Name == "cat" })
	require.Equal(t, Running, st.State, "it waits for a pipe, not for the terminal")
	_, err := s.Run(within(t), Command{ID: "other", Text: "echo no"})
	var busyErr *BusyError
	require.ErrorAs(t, err, &busyErr)
	require.Equal(t, st.Command, busyErr.Command)
	require.Equal(t, "cat", busyErr.Process.Name)
	require.Equal(t, []string{"cat", fifo}, busyErr.Process.Args)
	require.Equal(t, fault.Conflict, fault.CodeOf(err))
	_, err = s.Resolve(within(t), "ls")
	require.ErrorAs(t, err, &busyErr)
	_, working := s.Idle()
	require.True(t, working)
	require.NoError(t, os.WriteFile(fifo, []byte("done\n"), 0))
	out, o := end()
	require.Equal(t, "done\n", out)
	require.Zero(t, o.Status)
	out, _ = run(t, s, "echo yes")
	require.Equal(t, "yes\n", out)
}

func TestPastItsDeadlineACommandGoesOn(t *testing.T) {
	t.Parallel()
	r := open(t, Config{})
	s := r.session("17")
	fifo := filepath.Join(t.TempDir(), "go")
	run(t, s, "mkfifo "+fifo)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	var first bytes.Buffer
	o, err := s.Run(ctx, Command{ID: "late", Text: "echo first; cat " + fifo + "; false",
		OnOutput: func(p Output) { first.Write(p.Data) }})
	require.NoError(t, err)
	require.False(t, o.Finished)
	require.True(t, o.Started)
	require.Equal(t, "late", o.Command)
	require.Equal(t, "first\r\n", first.String())
	require.NoError(t, os.WriteFile(fifo, []byte("second\n"), 0))
	o, err = s.Wait(within(t))
	require.NoError(t, err)
	require.Equal(t, 1, o.Status)
	e := r.event("the end", kind(EventFinished))
	require.Equal(t, "late", e.Outcome.Command)
	require.Equal(t, 1, e.Outcome.Status)
	require.EqualValues(t, len("first\r\nsecond\r\n"), e.Outcome.Bytes)
	require.Equal(t, "second\r\n", r.told("late"))
	o, err = s.Wait(within(t))
	require.NoError(t, err)
	require.Equal(t, "late", o.Command)

	ctx, cancel = context.WithCancel(context.Background())
	cancel()
	_, err = s.Run(ctx, Command{ID: "never", Text: "echo never"})
	require.ErrorIs(t, err, context.Canceled)
	out, _ := run(t, s, "echo ok")
	require.Equal(t, "ok\n", out)
}

func TestInterruptAndStop(t *testing.T) {
	t.Parallel()
	s := open(t, Config{}).session("17")
	end := begin(t, s, "sleep 100")
	state(t, s, "running", func(st State) bool { return st.Foreground.Name == "sleep" })
	require.NoError(t, s.Keys(within(t), "C-c"))
	out, o := end()
	require.Equal(t, 130, o.Status)
	require.Equal(t, "^C\n", out)
	end = begin(t, s, "sleep 101")
	state(t, s, "running", func(st State) bool { return st.Foreground.Name == "sleep" })
	require.NoError(t, s.Keys(within(t), "C-z"))
	_, o = end()
	require.Equal(t, 148, o.Status)
	jobs, err := s.Jobs(within(t))
	require.NoError(t, err)
	require.Len(t, jobs, 1)
	require.Equal(t, "Stopped", jobs[0].State)
	require.Equal(t, "sleep 101", jobs[0].Text)
	_, working := s.Idle()
	require.False(t, working, "a stopped job does no work")
	run(t, s, "bg")
	_, working = s.Idle()
	require.True(t, working)
	end = begin(t, s, "fg")
	state(t, s, "running", func(st State) bool { return st.Foreground.Name == "sleep" })
	require.NoError(t, s.KillForeground(within(t)))
	_, o = end()
	require.Equal(t, 137, o.Status)
	require.Equal(t, fault.NotFound, fault.CodeOf(s.KillForeground(within(t))))
}

func TestIncompleteTextIsInterrupted(t *testing.T) {
	t.Parallel()
	s := open(t, Config{IncompleteAfter: 50 * time.Millisecond}).session("17")
	for _, text := range []string{"echo 'open", "cat <<X\nno end", "if true; then", "echo a &&", "echo $("} {
		_, o := run(t, s, text)
		require.True(t, o.Incomplete, text)
		require.False(t, o.Started, text)
		require.Equal(t, 130, o.Status, text)
	}
	out, _ := run(t, s, "echo ok")
	require.Equal(t, "ok\n", out)
}

func TestWhatIsOnTheLineIsErased(t *testing.T) {
	t.Parallel()
	s := open(t, Config{}).session("17")
	// The terminal answers these, into the shell's input: junk before the next command.
	for _, text := range []string{`printf '\033[c\033[6n\033[5n\033[>c'`, `printf '\033[6n%.0s' 1 2 3 4 5 6 7 8 9`} {
		run(t, s, text)
		out, o := run(t, s, "echo clean")
		require.Equal(t, "clean\n", out)
		require.Zero(t, o.Status)
	}
	// Typed by hand, not entered.
	require.NoError(t, s.Type(within(t), "rm -rf /nowhere; ", false))
	require.NoError(t, s.Keys(within(t), "Home"))
	out, o := run(t, s, "echo clean")
	require.Equal(t, "clean\n", out)
	require.Zero(t, o.Status)
	// Entered by hand: its end is not taken for the next command's.
	require.NoError(t, s.Type(within(t), "false", true))
	out, o = run(t, s, "echo clean")
	require.Equal(t, "clean\n", out)
	require.Zero(t, o.Status)
	require.NoError(t, s.Type(within(t), "(exit 9)\n\n", false))
	require.Eventually(t, func() bool { // until then it may be busy
		_, err := s.Resolve(within(t), "true")
		return err == nil
	}, 20*time.Second, time.Millisecond)
	out, _ = run(t, s, "echo clean")
	require.Equal(t, "clean\n", out)
	// A program that types into its shell (TIOCSTI), where the kernel lets it.
	run(t, s, `python3 -c 'import fcntl,termios
for c in "echo INJ": fcntl.ioctl(0,termios.TIOCSTI,c.encode())' 2>/dev/null`)
	out, o = run(t, s, "echo clean")
	require.Equal(t, "clean\n", out)
	require.Zero(t, o.Status)
}

func TestTheShellEnds(t *testing.T) {
	t.Parallel()
	r := open(t, Config{})
	for i, c := range []struct {
		text   string
		status int
		out    string
	}{
		{"echo last; exit 3", 3, "last\nexit\n"},
		{"kill -9 $$", 137, ""},
		{"set -e; false", 1, ""},
		{"exec printf gone", 0, "gone"},
		{"seq 20000; exit 4", 4, "*"},
	} {
		s := r.session(fmt.Sprint(100 + i))
		gen := s.Generation()
		run(t, s, "cd /usr; x=1")
		out, o := run(t, s, c.text)
		require.True(t, o.ShellEnded, c.text)
		require.True(t, o.StatusKnown, c.text)
		require.Equal(t, c.status, o.Status, c.text)
		if c.out == "*" {
			require.True(t, strings.HasSuffix(out, "20000\nexit\n"), "%q", out[max(0, len(out)-100):])
		} else {
			require.Equal(t, c.out, out, c.text)
		}
		e := r.event("restart", func(e Event) bool { return e.Kind == EventRestarted && e.User == s.User() })
		require.NotEqual(t, gen, e.Generation)
		require.Equal(t, e.Generation, s.Generation())
		out, o = run(t, s, `echo "[$x]"`)
		require.Equal(t, "[]\n", out)
		require.Equal(t, "/tmp", o.Dir)
	}
	s := r.session("200")
	gen := s.Generation()
	end := begin(t, s, "sleep 100")
	state(t, s, "running", func(st State) bool { return st.Foreground.Name == "sleep" })
	require.NoError(t, s.Restart(within(t)))
	_, o := end()
	require.True(t, o.ShellEnded)
	require.NotEqual(t, gen, s.Generation())
}

func TestAShellThatEndsTooOftenIsGivenUp(t *testing.T) {
	t.Parallel()
	r := open(t, Config{CreateBurst: 3, CreateEvery: time.Hour})
	s := r.session("17")
	for range 2 {
		_, o := run(t, s, "exit 0")
		require.True(t, o.ShellEnded)
		require.NoError(t, s.until(within(t), func() bool { return s.phase == phasePrompt && s.ready }))
	}
	_, err := s.Run(within(t), Command{ID: "last", Text: "exit 0"})
	require.NoError(t, err)
	r.event("lost", kind(EventLost))
	_, err = r.Session(within(t), "17")
	var limit *LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, time.Hour, fault.RetryAfter(err))
	_, err = r.Session(within(t), "18")
	require.NoError(t, err, "another person is not held up")
}

func TestAnotherProgramInPlaceOfTheShell(t *testing.T) {
	t.Parallel()
	r := open(t, Config{})
	s := r.session("17")
	_, o := run(t, s, "exec bash --norc --noprofile")
	require.True(t, o.Lost)
	require.False(t, o.StatusKnown)
	_, err := s.Run(within(t), Command{ID: "x", Text: "echo x"})
	var lost *IntegrationLostError
	require.ErrorAs(t, err, &lost)
	st, err := s.State(within(t))
	require.NoError(t, err)
	require.False(t, st.Integration)
	require.NoError(t, s.Restart(within(t)))
	out, _ := run(t, s, "echo back")
	require.Equal(t, "back\n", out)

	end := begin(t, s, "exec dash")
	state(t, s, "dash", func(st State) bool { return st.Foreground.Name == "dash" && st.State == Blocked })
	require.NoError(t, s.Type(within(t), "exit 5", true))
	_, o = end()
	require.True(t, o.ShellEnded)
	require.Equal(t, 5, o.Status)

	s = r.session("18")
	end = begin(t, s, "bash --norc --noprofile")
	r.event("interactive", func(e Event) bool { return e.User == "18" && e.Mode == Interactive && e.Process.Name == "bash" })
	require.NoError(t, s.Type(within(t), "exit 6", true))
	_, o = end()
	require.Equal(t, 6, o.Status)
	require.False(t, o.ShellEnded)
	r.event("line mode", func(e Event) bool { return e.User == "18" && e.Mode == NaturalLanguage })
}

func TestPasteCannotBeLeft(t *testing.T) {
	t.Parallel()
	s := open(t, Config{}).session("17")
	for _, text := range []string{"echo a\x1b[201~\nid", "echo a\x03id", "echo a\x15id", "a\u009b201~", "a\rid", "\x00"} {
		_, err := s.Run(within(t), Command{ID: "bad", Text: text})
		require.Equal(t, fault.Invalid, fault.CodeOf(err), "%q", text)
		require.Error(t, s.Type(within(t), text, true))
	}
	_, err := s.Run(within(t), Command{ID: "big", Text: strings.Repeat("x", 33<<10)})
	require.Equal(t, fault.TooLarge, fault.CodeOf(err))
	_, err = s.Wait(within(t))
	require.Equal(t, fault.NotFound, fault.CodeOf(err), "nothing was sent")
}

func TestBinaryOutput(t *testing.T) {
	t.Parallel()
	s := open(t, Config{}).session("17")
	file := filepath.Join(t.TempDir(), "random")
	// The same bytes each time: among others there may be a question that the terminal answers, into the output.
	want := make([]byte, 1_000_000)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(want)
	require.NoError(t, os.WriteFile(file, want, 0o600))
	run(t, s, "stty -opost")
	var got bytes.Buffer
	o, err := s.Run(within(t), Command{ID: "b", Text: "cat " + file, OnOutput: func(p Output) { got.Write(p.Data) }})
	require.NoError(t, err)
	require.True(t, o.Binary)
	require.False(t, o.FullScreen)
	at := 0
	for at < min(len(want), got.Len()) && want[at] == got.Bytes()[at] {
		at++
	}
	require.True(t, bytes.Equal(want, got.Bytes()), "byte for byte: %d of %d bytes, different from %d: %q, not %q", got.Len(), len(want), at,
		got.Bytes()[at:min(got.Len(), at+80)], want[at:min(len(want), at+80)])
	out, o := run(t, s, "echo clean; stty | grep -c -e -opost")
	require.Equal(t, "clean\n0\n", out)
	require.Equal(t, 1, o.Status)
	screen, err := s.Screen(within(t), false)
	require.NoError(t, err)
	require.Contains(t, screen.Text, "clean")
	require.False(t, screen.Alternate)
}

func TestHugeOutput(t *testing.T) {
	t.Parallel()
	r := open(t, Config{})
	s := r.session("17")
	lines := 8_500_000 // 12 bytes each: 102 MB
	if testing.Short() || raceEnabled {
		lines = 1_000_000
	}
	var got int64
	var last []byte
	o, err := s.Run(within3(t), Command{ID: "huge", Text: fmt.Sprintf("yes '0123456789' | head -n %d", lines),
		OnOutput: func(p Output) {
			got += int64(len(p.Data)) + p.Skipped
			last = append(last[:0], p.Data...)
		}})
	require.NoError(t, err)
	require.True(t, o.Finished)
	require.EqualValues(t, 12*lines, o.Bytes)
	require.Equal(t, o.Bytes, got, "all given, or told how much is missing")
	require.True(t, bytes.HasSuffix(last, []byte("0123456789\r\n")))
	var st sysStat
	require.NoError(t, st.of(s.path(fileOutput)))
	require.Less(t, st.onDisk, int64(2<<20), "what was read is freed")
	out, _ := run(t, s, "echo ok")
	require.Equal(t, "ok\n", out)
}

func TestAReaderThatStalls(t *testing.T) {
	t.Parallel()
	s := open(t, Config{MaxBacklog: 1 << 20, KeepTail: 256 << 10}).session("17")
	lines := 3_000_000
	if testing.Short() || raceEnabled {
		lines = 500_000
	}
	hold := make(chan struct{})
	var got, skipped, pieces int64
	var last []byte
	done := make(chan Outcome, 1)
	ctx := within3(t)
	go func() {
		o, _ := s.Run(ctx, Command{ID: "stalled", Text: fmt.Sprint("seq ", lines), OnOutput: func(p Output) {
			if pieces == 0 {
				<-hold
			}
			pieces++
			got += int64(len(p.Data))
			skipped += p.Skipped
			last = append(last[:0], p.Data...)
		}})
		done <- o
	}()
	require.NoError(t, s.until(ctx, func() bool { return s.last != nil }), "the command is not held up")
	var st sysStat
	require.NoError(t, st.of(s.path(fileOutput)))
	require.Less(t, st.onDisk, int64(maxUnsaved+4<<20))
	close(hold)
	o := <-done
	require.True(t, o.Truncated)
	require.Equal(t, o.Bytes, got+skipped)
	require.Positive(t, skipped)
	require.Less(t, got, int64(3<<20))
	require.True(t, bytes.HasSuffix(last, fmt.Appendf(nil, "%d\r\n", lines)))
}

func TestBackgroundOutput(t *testing.T) {
	t.Parallel()
	r := open(t, Config{})
	s := r.session("17")
	fifo := filepath.Join(t.TempDir(), "go")
	run(t, s, "mkfifo "+fifo)
	run(t, s, "cat "+fifo+" &")
	require.NoError(t, s.until(within(t), func() bool { return s.background }))
	f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, _ = io.WriteString(f, "from behind\n")
	require.NoError(t, f.Close())
	r.event("output", func(e Event) bool { return e.Kind == EventOutput && e.Command == "" })
	require.Equal(t, "from behind\r\n", r.told(""))
}

func TestErrorsHaveTheirClasses(t *testing.T) {
	for _, c := range []struct {
		err   error
		class fault.Class
	}{
		{sessionNotFound("butler_1", errors.New("x")), fault.Transient},
		{tmuxTimeout("butler_1", time.Second), fault.Transient},
		{tmuxCommand("butler_1", "x"), fault.Transient},
		{busy("butler_1", "c", Process{}), fault.User},
		{integrationLost("butler_1"), fault.User},
		{limitf(1, time.Second, "x"), fault.Transient},
	} {
		require.Equal(t, c.class, fault.ClassOf(c.err), "%T", c.err)
		require.NotEqual(t, "internal error", fault.MessageOf(c.err))
	}
}
