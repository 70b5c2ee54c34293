package tmux

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The table of the reference: what each kind of foreground program looks like.
func TestStates(t *testing.T) {
	t.Parallel()
	r := open(t, Config{})
	s := r.session("17")
	file := filepath.Join(t.TempDir(), "f")
	run(t, s, "seq 1000 >"+file)
	st := state(t, s, "idle", func(st State) bool { return st.State == Idle })
	require.True(t, st.ShellForeground && st.Integration)
	require.Equal(t, "bash", st.Foreground.Name)
	require.Equal(t, "/tmp", st.Dir)
	for _, c := range []struct {
		name, text, program string
		state               PtyState
		mode                Mode
		password, alternate bool
		leave               []string // keys; "=" begins typed text
	}{
		{"sleep", "sleep 1000", "sleep", Running, NaturalLanguage, false, false, []string{"C-c"}},
		{"busy shell", "while :; do :; done", "bash", Running, NaturalLanguage, false, false, []string{"C-c"}},
		{"pipeline", "yes | cat >/dev/null", "yes", Running, NaturalLanguage, false, false, []string{"C-c"}},
		{"read", "read x", "bash", Blocked, NaturalLanguage, false, false, []string{"=x", "Enter"}},
		{"read -s", "read -s x", "bash", Blocked, NaturalLanguage, true, false, []string{"=x", "Enter"}},
		{"cat", "cat", "cat", Blocked, NaturalLanguage, false, false, []string{"C-d"}},
		{"rm -i", "touch /tmp/butler-rm-i; rm -i /tmp/butler-rm-i", "rm", Blocked, NaturalLanguage, false, false,
			[]string{"=y", "Enter"}},
		{"python input", "python3 -c 'import sys; sys.stdin.readline()'", "python3", Blocked, NaturalLanguage, false, false,
			[]string{"=x", "Enter"}},
		{"getpass", "python3 -c 'import getpass; getpass.getpass()'", "python3", Blocked, NaturalLanguage, true, false,
			[]string{"=secret", "Enter"}},
		{"python", "python3 -q", "python3", Running, Interactive, false, false, []string{"=exit()", "Enter"}},
		{"node", "node", "node", Running, Interactive, false, false, []string{"C-d"}},
		{"sqlite3", "sqlite3", "sqlite3", Running, Interactive, false, false, []string{"C-d"}},
		{"bash", "bash --norc", "bash", Running, Interactive, false, false, []string{"C-d"}},
		{"more", "more " + file, "more", Running, Interactive, false, false, []string{"=q"}},
		{"top", "top", "top", Running, Interactive, false, false, []string{"=q"}},
		{"less", "less " + file, "less", Running, Interactive, false, true, []string{"=q"}},
		{"vim", "vim -u NONE " + file, "vim", Running, Interactive, false, true, []string{"Esc", "=:q!", "Enter"}},
		{"man", "man bash", "man", Running, Interactive, false, true, []string{"=q"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			program, _, _ := strings.Cut(c.text, " ")
			if _, err := exec.LookPath(program); err != nil && !strings.HasPrefix(c.text, "read") && program != "while" {
				t.Skipf("%s is not installed", program)
			}
			if c.name == "man" && exec.Command("man", "-w", "bash").Run() != nil {
				t.Skip("there are no manual pages on this machine")
			}
			end := begin(t, s, c.text)
			st := state(t, s, string(c.state)+" in "+c.name, func(st State) bool {
				return st.State == c.state && st.Mode == c.mode && st.Password == c.password && st.AlternateScreen == c.alternate &&
					(st.Foreground.Name == c.program || c.name == "python" || strings.HasPrefix(c.program, "python"))
			})
			require.NotEmpty(t, st.Command)
			require.NotEmpty(t, st.Foreground.Args)
			for _, k := range c.leave {
				if text, ok := strings.CutPrefix(k, "="); ok {
					require.NoError(t, s.Type(within(t), text, false))
				} else {
					require.NoError(t, s.Keys(within(t), k))
				}
			}
			out, _ := end()
			require.NotContains(t, out, "secret")
			st = state(t, s, "idle again", func(st State) bool { return st.State == Idle })
			require.Equal(t, NaturalLanguage, st.Mode)
			require.False(t, st.AlternateScreen)
		})
	}
	run(t, s, "sleep 1000 & ")
	state(t, s, "idle with a job", func(st State) bool { return st.State == Idle })
	run(t, s, "kill %1")
}

func TestVimByKeysAndScreen(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("vim"); err != nil {
		t.Skip("vim is not installed: tools/test-deps.sh installs it")
	}
	r := open(t, Config{})
	s := r.session("17")
	require.NoError(t, s.Resize(within(t), 80, 24))
	file := filepath.Join(t.TempDir(), "note")
	end := begin(t, s, "vim -u NONE -c 'set noswapfile' "+file)
	e := r.event("interactive", func(e Event) bool { return e.Mode == Interactive })
	require.Equal(t, "vim", e.Process.Name)
	require.NoError(t, s.Type(within(t), "ihello 世界", false))
	s.Settle(within(t), 50*time.Millisecond)
	screen, err := s.Screen(within(t), false)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(screen.Text, "hello 世界\n~"), "%q", screen.Text)
	require.True(t, screen.Alternate)
	require.Equal(t, 80, screen.Width)
	require.Equal(t, 24, screen.Height)
	require.NoError(t, s.Keys(within(t), "Escape"))
	require.NoError(t, s.Type(within(t), ":wq", true))
	out, o := end()
	require.Zero(t, o.Status)
	require.True(t, o.FullScreen)
	require.NotContains(t, out, "hello")
	r.event("line mode", func(e Event) bool { return e.Kind == EventMode && e.Mode == NaturalLanguage })
	out, _ = run(t, s, "cat "+file)
	require.Equal(t, "hello 世界\n", out)
	screen, err = s.Screen(within(t), true)
	require.NoError(t, err)
	require.Contains(t, screen.Text, "hello 世界")
	require.Error(t, s.Resize(within(t), 1, 1))
	run(t, s, `printf '\033]0;$(touch /tmp/evil)#{pane_pid}\007\033[31mred\033[m\n%%end 1 1 1\n%%exit\n'`)
	screen, err = s.Screen(within(t), true)
	require.NoError(t, err)
	require.Contains(t, screen.Text, "\x1b[31mred")
	require.Contains(t, screen.Text, "%exit")
}

func TestLinesLongerThanATerminals(t *testing.T) {
	t.Parallel()
	s := open(t, Config{}).session("17")
	end := begin(t, s, "wc -c")
	state(t, s, "waits", func(st State) bool { return st.State == Blocked })
	require.Error(t, s.Type(within(t), strings.Repeat("x", 4096), true))
	require.NoError(t, s.Type(within(t), strings.Repeat("x", 4000), true))
	require.NoError(t, s.Keys(within(t), "C-d"))
	out, _ := end()
	require.True(t, strings.HasSuffix(out, "\n4001\n"), "%q", out[max(0, len(out)-30):])
}

func TestWhatAWordMeans(t *testing.T) {
	t.Parallel()
	r := open(t, Config{})
	s := r.session("17")
	run(t, s, "alias ll='ls -l'; alias multi=$'a\\nb\\'c'; f() { echo \"it's\"; }; export ZED=1; exported() { :; }")
	s.Settle(within(t), 50*time.Millisecond)
	before, err := s.Screen(within(t), false)
	require.NoError(t, err)
	for _, c := range []struct{ word, kind, definition string }{
		{"ll", "alias", "ls -l"}, {"multi", "alias", "a\nb'c"}, {"cd", "builtin", ""}, {"if", "keyword", ""},
		{"f", "function", "f () \n{ \n    echo \"it's\"\n}"}, {"nosuch_x", "", ""}, {"/bin/sh", "file", "/bin/sh"}, {"-x", "", ""},
		{"$(touch /tmp/evil)", "", ""},
	} {
		got, err := s.Resolve(within(t), c.word)
		require.NoError(t, err, c.word)
		require.Equal(t, Resolution{c.kind, c.definition}, got, c.word)
	}
	got, err := s.Resolve(within(t), "env")
	require.NoError(t, err)
	require.Equal(t, "file", got.Kind)
	require.True(t, strings.HasSuffix(got.Definition, "/env"))
	_, err = s.Resolve(within(t), "a\nb")
	require.Error(t, err)
	s.Settle(within(t), 50*time.Millisecond) // readline draws its prompt once more
	after, err := s.Screen(within(t), false)
	require.NoError(t, err)
	require.Equal(t, before, after, "questions show nothing")
	run(t, s, "test 1 = word")
	_, err = s.Resolve(within(t), "ls")
	require.NoError(t, err)
	out, _ := run(t, s, "echo $? $_")
	require.Equal(t, "1 word\n", out, "and leave $? and $_ alone")

	snap, err := s.Snapshot(within(t))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"ll": "ls -l", "multi": "a\nb'c"}, snap.Aliases)
	require.Equal(t, []string{"exported", "f"}, snap.Functions)
	require.False(t, snap.Truncated)
	require.Contains(t, snap.Definitions["f"], "f ()")
	require.Subset(t, snap.Options, []string{"braceexpand", "emacs", "expand_aliases", "interactive_comments"})
	require.NotContains(t, snap.Options, "keyword")
	names, err := s.Environment(within(t))
	require.NoError(t, err)
	require.Contains(t, names, "ZED")
	run(t, s, "cd /; x=1; ls >/dev/null")
	same, err := s.Snapshot(within(t))
	require.NoError(t, err)
	require.Equal(t, snap.Digest, same.Digest)
	for _, change := range []string{"alias ls='rm -rf ~'", "unalias ls", "f() { rm -rf ~; }", "trap 'rm x' EXIT", "set -o vi",
		"shopt -s extglob", `bind '"\C-t": "x"'`, "umask 0", "enable -n kill", "set -k", "shopt -s lastpipe"} {
		run(t, s, change)
		next, err := s.Snapshot(within(t))
		require.NoError(t, err)
		require.NotEqual(t, same.Digest, next.Digest, change)
		same = next
	}
	require.Subset(t, same.Options, []string{"extglob", "keyword", "lastpipe", "vi"})
	for range 2 {
		run(t, s, `for i in {1..3000}; do printf -v v '%060d' $i; alias a$i=$v; done`)
		next, err := s.Snapshot(within(t))
		require.NoError(t, err)
		require.True(t, next.Truncated)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		require.NotEqual(t, EventOutput, e.Kind, "%q", e.Output.Data)
	}
}

// The shell is asked again only when something can have changed: what was noticed is noticed still.
func TestAShellThatIsStillIsAskedOnce(t *testing.T) {
	t.Parallel()
	s := open(t, Config{}).session("17")
	first, err := s.Snapshot(within(t))
	require.NoError(t, err)
	seen, _ := s.lookedAt()
	require.NotNil(t, seen)
	again, err := s.Snapshot(within(t))
	require.NoError(t, err)
	require.Equal(t, first, again)
	// A trap changes the shell while nothing is typed: such a shell is asked each time.
	run(t, s, "trap 'alias ls=evil' USR1")
	trapped, err := s.Snapshot(within(t))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(s.shellPID, syscall.SIGUSR1))
	require.Eventually(t, func() bool {
		next, err := s.Snapshot(within(t))
		return err == nil && next.Digest != trapped.Digest && next.Aliases["ls"] == "evil"
	}, 10*time.Second, 5*time.Millisecond)
	run(t, s, "trap - USR1; unalias ls")
	// Whoever else types is noticed.
	quiet, err := s.Snapshot(within(t))
	require.NoError(t, err)
	_, err = s.do(within(t), "send-keys -t "+pane+" \"alias ls=evil\" Enter")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		next, err := s.Snapshot(within(t))
		return err == nil && next.Digest != quiet.Digest && next.Aliases["ls"] == "evil"
	}, 10*time.Second, 5*time.Millisecond)
	// A question that keys were sent before is asked after them.
	require.NoError(t, s.Type(within(t), "alias ls=typed", true))
	require.Eventually(t, func() bool {
		next, err := s.Snapshot(within(t))
		return err == nil && next.Aliases["ls"] == "typed"
	}, 10*time.Second, 5*time.Millisecond)
}

// What is defined must be seen however a value, a name or an option hides it.
func TestNothingHidesWhatIsDefined(t *testing.T) {
	t.Parallel()
	r := open(t, Config{})
	for i, c := range []struct{ name, before, change string }{
		{"separators in a variable", `TMPDIR=$'/tmp\036b\036c'`, `alias ls='echo other'`},
		{"separators in a variable, and a function", `TMPDIR=$'/tmp\036b\036c'`, `ls() { echo other; }`},
		{"separators in a trap", `trap $': \036' USR1`, `alias ls='echo other'`},
		{"a variable that says what another is", `TMPDIR=$'/tmp\034PATH\035/usr/bin:/bin'`, ``},
		{"a function with a name like ours", `__butler_go() { echo one; }`, `__butler_go() { echo other; }`},
		{"options that are not told of", `alias ls='echo other'; shopt -u expand_aliases sourcepath; shopt -q extglob`, `set -o posix; set +o posix`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := r.session(strconv.Itoa(i + 1))
			run(t, s, c.before)
			before, err := s.Snapshot(within(t))
			require.NoError(t, err)
			if strings.Contains(c.before, `\03`) {
				require.True(t, before.Truncated, "it is not said that not all could be read")
			}
			if c.change == "" {
				return
			}
			run(t, s, c.change)
			after, err := s.Snapshot(within(t))
			require.NoError(t, err)
			require.NotEqual(t, before.Digest, after.Digest)
		})
	}
}
