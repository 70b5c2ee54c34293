package tmux

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/fault"
)

// abandon leaves a host as a process that is killed does: nothing is written any more, nobody reads, the sessions live.
func (r *rig) abandon() {
	for _, s := range r.Sessions() {
		s.mu.Lock()
		_ = s.progress.Close()
		s.progress = nil
		s.mu.Unlock()
	}
	r.Host.Close()
}

func TestARestartLosesNothing(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	fifo := filepath.Join(t.TempDir(), "go")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	first := open(t, Config{Dir: dir})
	s := first.session("17")
	gen := s.Generation()
	run(t, s, "x=kept; cd /usr; cat "+fifo+" >/dev/null & ")
	ended := first.session("18")
	_, before := run(t, ended, "echo told; (exit 9)")
	quiet := first.session("19")
	background := first.session("20")
	fifo2 := fifo + "2"
	require.NoError(t, syscall.Mkfifo(fifo2, 0o600))
	run(t, background, "(cat "+fifo2+"; seq 3) &")
	require.NoError(t, background.until(within(t), func() bool { return background.background }))

	fifo3 := fifo + "3"
	require.NoError(t, syscall.Mkfifo(fifo3, 0o600))
	leave(t, s, "open", "echo early; cat "+fifo3+"; seq 100000 | tail -n 3; (exit 9)", "early\r\n")
	dies := first.session("21")
	leave(t, dies, "dies", "cat "+fifo3+"; exit 4", "")
	goes := first.session("22")
	leave(t, goes, "goes", "echo a; cat; (exit 2)", "a\r\n")
	gone := first.session("23")
	run(t, gone, "echo x")
	goneSocket := gone.Socket()
	shell := dies.shellPID
	first.abandon()

	require.NoError(t, exec.Command("tmux", "-S", goneSocket, "kill-server").Run())
	require.NoError(t, os.WriteFile(fifo3, nil, 0))
	require.NoError(t, os.WriteFile(fifo2, nil, 0))
	waitFor(t, func() bool { // both readers of fifo3 may have met different writers
		_ = unblock(fifo3)
		_, err := readStat(shell)
		return err != nil || stateOf(shell) == 'Z'
	})
	waitFor(t, func() bool { b, _ := os.ReadFile(s.path(fileOutput)); return bytes.Contains(b, []byte("D;9;")) })
	waitFor(t, func() bool {
		b, _ := os.ReadFile(background.path(fileOutput))
		return bytes.Contains(b, []byte("3\r\n"))
	})

	second := open(t, Config{Dir: dir})
	found, err := second.Recover(within(t))
	require.NoError(t, err)
	by := map[string]Recovered{}
	for _, f := range found {
		by[f.User] = f
	}
	require.Len(t, by, 7)
	text := func(user string) string {
		var b strings.Builder
		for _, p := range by[user].Output {
			b.Write(p.Data)
		}
		return b.String()
	}
	require.Equal(t, "99998\r\n99999\r\n100000\r\n", text("17"), "what was printed meanwhile, and not what was told before")
	require.Equal(t, "open", by["17"].Command)
	require.Equal(t, 9, by["17"].Outcome.Status)
	require.True(t, by["17"].Outcome.StatusKnown && by["17"].Outcome.Finished && !by["17"].Running)
	require.EqualValues(t, len("early\r\n99998\r\n99999\r\n100000\r\n"), by["17"].Outcome.Bytes)
	require.Equal(t, gen, by["17"].Session.Generation())
	out, o := run(t, by["17"].Session, `echo "$x"`)
	require.Equal(t, "kept\n", out)
	require.Equal(t, "/usr", o.Dir)

	require.Empty(t, text("18"))
	before.Duration = by["18"].Outcome.Duration
	require.Equal(t, before, by["18"].Outcome, "the last end can be asked for again")
	require.Equal(t, Recovered{User: "19", Session: by["19"].Session}, by["19"])
	require.NotNil(t, quiet)
	require.Equal(t, "1\r\n2\r\n3\r\n", text("20"))
	require.Equal(t, 4, by["21"].Outcome.Status)
	require.True(t, by["21"].Outcome.ShellEnded)
	require.NotEqual(t, dies.Generation(), by["21"].Session.Generation())
	run(t, by["21"].Session, "echo fresh")

	require.True(t, by["22"].Running)
	require.Equal(t, "goes", by["22"].Command)
	_, err = by["22"].Session.Run(within(t), Command{ID: "n", Text: "echo n"})
	require.Equal(t, fault.Conflict, fault.CodeOf(err))
	require.NoError(t, by["22"].Session.Keys(within(t), "C-d"))
	e := second.event("its end", func(e Event) bool { return e.Kind == EventFinished && e.Command == "goes" })
	require.Equal(t, 2, e.Outcome.Status)

	require.Nil(t, by["23"].Session)
	require.Error(t, by["23"].Err)
	require.NoDirExists(t, filepath.Join(dir, "23"))
	again := second.session("23")
	require.NotEqual(t, gone.Generation(), again.Generation())
}

// leave starts a command and stops waiting for it once it printed what is expected.
func leave(t testing.TB, s *Session, id, text, printed string) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	var got string
	go func() {
		if s.until(ctx, func() bool { return s.phase == phaseRunning }) == nil && printed == "" {
			cancel()
		}
	}()
	o, err := s.Run(ctx, Command{ID: id, Text: text, OnOutput: func(p Output) {
		if got += string(p.Data); printed != "" && got == printed {
			cancel()
		}
	}})
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, o.Finished)
	require.Equal(t, id, o.Command)
}

func unblock(fifo string) error {
	f, err := os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		err = f.Close()
	}
	return err
}

func stateOf(pid int) byte { st, _ := readStat(pid); return st.state }

func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			require.FailNow(t, "it never came")
		}
	}
}

// A data folder that was copied, to try a backup for instance, leaves the shells of the original alone.
func TestACopyTakesNoShells(t *testing.T) {
	t.Parallel()
	r := open(t, Config{})
	s := r.session("17")
	backup := folder(t)
	require.NoError(t, os.MkdirAll(backup, 0o700))
	name := filepath.Base(s.dir)
	require.NoError(t, os.Mkdir(filepath.Join(backup, name), 0o700))
	for _, file := range []string{fileSession, fileProgress, fileOutput} {
		data, err := os.ReadFile(s.path(file))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(backup, name, file), data, 0o600))
	}
	other := open(t, Config{Dir: backup})
	found, err := other.Recover(within(t))
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.ErrorContains(t, found[0].Err, "copy")
	require.NoDirExists(t, filepath.Join(backup, name))
	out, _ := run(t, s, "echo alive")
	require.Equal(t, "alive\n", out)
	// The same folder by another name is none.
	link := filepath.Join(filepath.Dir(backup), "l")
	require.NoError(t, os.Symlink(filepath.Dir(s.dir), link))
	require.False(t, copiedRecord(t, filepath.Join(link, name)))
}

func copiedRecord(t *testing.T, dir string) bool {
	rec, err := readRecord(dir)
	require.NoError(t, err)
	return copied(dir, rec)
}

// A process that ended between writing its intent and sending the command: nobody knows, and it is not sent.
func TestACommandThatWasNeverSentIsUnknown(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	first := open(t, Config{Dir: dir})
	s := first.session("17")
	run(t, s, "echo x")
	require.NoError(t, s.until(within(t), func() bool { return s.ready }))
	s.mu.Lock()
	s.cur = &running{id: "intent", sent: time.Now(), attached: true}
	s.open = append(s.open, s.cur)
	s.setPhase(phaseSent)
	s.save(true)
	s.mu.Unlock()
	first.abandon()
	second := open(t, Config{Dir: dir})
	found, err := second.Recover(within(t))
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "intent", found[0].Command)
	require.True(t, found[0].Outcome.Lost && found[0].Outcome.Finished)
	require.False(t, found[0].Outcome.Started || found[0].Outcome.StatusKnown)
	out, _ := run(t, found[0].Session, "echo next")
	require.Equal(t, "next\n", out)
}

func TestTheServerIsKilled(t *testing.T) {
	t.Parallel()
	r := open(t, Config{})
	s := r.session("17")
	gen := s.Generation()
	end := begin(t, s, "sleep 1000")
	state(t, s, "running", func(st State) bool { return st.Foreground.Name == "sleep" })
	require.NoError(t, syscall.Kill(s.rec.Server, syscall.SIGKILL))
	_, o := end()
	require.True(t, o.Lost && !o.StatusKnown)
	r.event("lost", kind(EventLost))
	_, err := s.Run(within(t), Command{ID: "x", Text: "echo x"})
	var gone *SessionNotFoundError
	require.ErrorAs(t, err, &gone)
	require.Equal(t, fault.Transient, fault.ClassOf(err))
	_, err = s.Screen(within(t), false)
	require.ErrorAs(t, err, &gone)
	s = r.session("17")
	require.NotEqual(t, gen, s.Generation())
	out, _ := run(t, s, "echo back")
	require.Equal(t, "back\n", out)
	// By tmux's own command, from outside.
	require.NoError(t, exec.Command("tmux", "-S", s.Socket(), "kill-session").Run())
	r.event("lost again", func(e Event) bool { return e.Kind == EventLost && e.Generation == s.Generation() })
	run(t, r.session("17"), "echo back")
}

func TestOurClientIsKilled(t *testing.T) {
	t.Parallel()
	r := open(t, Config{})
	s := r.session("17")
	gen := s.Generation()
	run(t, s, "x=kept")
	old := s.control()
	waitFor(t, func() bool { // its commands are carried out before it is attached
		clients, err := exec.Command("tmux", "-S", s.Socket(), "list-clients", "-t", s.Name()).Output()
		return err == nil && len(clients) > 0
	})
	said, err := exec.Command("tmux", "-S", s.Socket(), "detach-client", "-s", s.Name()).CombinedOutput()
	require.NoError(t, err, "%s", said)
	select {
	case <-old.closed:
	case <-within(t).Done():
		t.Fatal("our client is still there")
	}
	require.NoError(t, s.until(within(t), func() bool { return s.ctl != old }))
	out, _ := run(t, s, "echo $x")
	require.Equal(t, "kept\n", out)
	require.Equal(t, gen, s.Generation())
	// And the program that writes the output.
	waitFor(t, func() bool {
		_ = exec.Command("tmux", "-S", s.Socket(), "pipe-pane", "-t", pane).Run()
		f, err := s.facts(within(t))
		return err == nil && !f.piped
	})
	out, _ = run(t, s, "echo again")
	require.Equal(t, "again\n", out)
	// The same while a command runs: its end is not seen.
	end := begin(t, s, "read -n 1 x")
	state(t, s, "reads", func(st State) bool { return st.Command != "" && !st.ShellForeground || st.State == Running })
	require.NoError(t, s.until(within(t), func() bool { return s.phase == phaseRunning }))
	require.NoError(t, exec.Command("tmux", "-S", s.Socket(), "pipe-pane", "-t", pane).Run())
	require.NoError(t, s.Keys(within(t), "Enter"))
	_, o := end()
	require.True(t, o.Lost && !o.StatusKnown)
	out, _ = run(t, s, "echo seen")
	require.Equal(t, "seen\n", out)
	// Copy mode takes the keys.
	said, err = exec.Command("tmux", "-S", s.Socket(), "copy-mode", "-t", pane).CombinedOutput()
	require.NoError(t, err, "%s", said)
	out, _ = run(t, s, "echo third")
	require.Equal(t, "third\n", out)
}

func TestAServerThatHangs(t *testing.T) {
	t.Parallel()
	r := open(t, Config{ReplyTimeout: 200 * time.Millisecond})
	s := r.session("17")
	require.NoError(t, syscall.Kill(s.rec.Server, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(s.rec.Server, syscall.SIGCONT) })
	o, err := s.Run(within(t), Command{ID: "x", Text: "echo x; (exit 3)"})
	var timeout *TmuxTimeoutError
	require.ErrorAs(t, err, &timeout)
	require.Equal(t, "x", o.Command, "it may have been sent")
	require.False(t, o.Finished)
	_, err = s.Screen(within(t), false)
	require.ErrorAs(t, err, &timeout)
	require.NoError(t, syscall.Kill(s.rec.Server, syscall.SIGCONT))
	e := r.event("its end, once the server goes on", kind(EventFinished))
	require.Equal(t, "x", e.Command)
	require.Equal(t, 3, e.Outcome.Status)
	require.Equal(t, "x\r\n", r.told("x"))
	out, _ := run(t, s, "echo y")
	require.Equal(t, "y\n", out)
}

func TestLimitsOnSessions(t *testing.T) {
	t.Parallel()
	r := open(t, Config{MaxTotal: 3, MaxPerUser: 2})
	var wg sync.WaitGroup
	results := make([]error, 12)
	for i := range results {
		wg.Go(func() { _, results[i] = r.Session(within(t), fmt.Sprint(i%6)) })
	}
	wg.Wait()
	require.Len(t, r.Sessions(), 3)
	var refused int
	for _, err := range results {
		if err != nil {
			refused++
			require.Equal(t, fault.RateLimited, fault.CodeOf(err))
		}
	}
	require.Equal(t, 6, refused, "both askers of three users got the same session, those of the others none")
	all := r.Sessions()
	s := all[0]
	_, err := r.SessionNumber(within(t), s.User(), 2)
	require.Equal(t, fault.RateLimited, fault.CodeOf(err), "the host is full")
	require.NoError(t, all[1].Close(within(t)))
	s2, err := r.SessionNumber(within(t), s.User(), 2)
	require.NoError(t, err)
	require.NotEqual(t, s.Generation(), s2.Generation())
	require.Equal(t, "butler_"+s.User()+"+2", s2.Name())
	run(t, s2, "echo two")
	_, err = r.SessionNumber(within(t), s.User(), 3)
	require.Error(t, err)
	for _, bad := range []string{"", "../x", "a b", "a.b", strings.Repeat("x", 49), "x;y"} {
		_, err := r.Session(within(t), bad)
		require.Equal(t, fault.Invalid, fault.CodeOf(err), bad)
	}
	_, err = r.Find("nobody")
	require.Error(t, err)
	found, err := r.Find(s.User())
	require.NoError(t, err)
	require.Same(t, s, found)
}

func TestClosingEndsWhatWasLeftBehind(t *testing.T) {
	t.Parallel()
	r := open(t, Config{})
	s := r.session("17")
	out, _ := run(t, s, `setsid sleep 1000 >/dev/null 2>&1 & nohup sleep 1001 >/dev/null 2>&1 & (trap '' HUP TERM; sleep 1002) &
sleep 0.01; pgrep -f 'sleep 100[012]' | while read p; do grep -qz "$SHELL_SESSION_ID" /proc/$p/environ && echo $p; done`)
	pids := strings.Fields(out)
	require.GreaterOrEqual(t, len(pids), 3, out)
	dir := s.dir
	require.NoError(t, s.Close(within(t)))
	require.NoError(t, s.Close(within(t)))
	for _, p := range pids {
		pid, err := strconv.Atoi(p)
		if err != nil {
			continue // the shell's word on a job
		}
		waitFor(t, func() bool { st, err := readStat(pid); return err != nil || st.state == 'Z' })
	}
	require.NoDirExists(t, dir)
	_, err := s.Run(within(t), Command{ID: "x", Text: "echo x"})
	require.ErrorIs(t, err, ErrClosed)
	require.Empty(t, r.Sessions())
	r.session("17")
}

func TestNothingOfOursIsInTheEnvironment(t *testing.T) {
	for k, v := range map[string]string{"BUTLER_API_TOKEN": "s3cret", "INTERNAL_TOKEN": "s3cret", "NATS_URL": "s3cret",
		"DATABASE_URL": "s3cret", "ANTHROPIC_API_KEY": "s3cret", "TZ": "Asia/Shanghai"} {
		t.Setenv(k, v)
	}
	s := open(t, Config{}).session("17")
	out, _ := run(t, s, "env")
	var names []string
	for line := range strings.Lines(out) {
		name, _, _ := strings.Cut(line, "=")
		names = append(names, name)
	}
	require.Subset(t, []string{"HOME", "USER", "LOGNAME", "PATH", "SHELL", "LANG", "TERM", "TZ", "PWD", "SHLVL", "_",
		"SHELL_SESSION_ID"}, names)
	require.Contains(t, out, "TZ=Asia/Shanghai\n")
	out, _ = run(t, s, "cat /proc/$$/environ /proc/$PPID/environ | tr '\\0' '\\n' | grep -c s3cret; tmux -S "+s.Socket()+
		" show-environment -g | grep -c s3cret")
	require.Equal(t, "0\n0\n", out)
	out, _ = run(t, s, "bash -c 'echo [$__butler_n]'; python3 -c 'import os; print(\"__butler_n\" in os.environ)'")
	require.Equal(t, "[]\nFalse\n", out, "programs do not get the nonce")
	require.NoFileExists(t, s.path(fileNonce))
	out, _ = run(t, s, "echo \"[$TMUX$TMUX_PANE]\"; ls /proc/self/fd | wc -l")
	require.Equal(t, "[]\n4\n", out, "no descriptor of ours either")
}

func TestManySessionsAtOnce(t *testing.T) {
	t.Parallel()
	n := 100
	if testing.Short() || raceEnabled {
		n = 12
	}
	r := open(t, Config{MaxTotal: n, StartTimeout: 2 * time.Minute})
	var wg sync.WaitGroup
	ctx := within3(t)
	for i := range n {
		wg.Go(func() {
			s, err := r.Session(ctx, fmt.Sprint(i))
			if !assertNoError(t, err) {
				return
			}
			for k := range 5 {
				var b bytes.Buffer
				o, err := s.Run(ctx, Command{ID: newID(), Text: fmt.Sprintf("echo %d-%d; (exit %d)", i, k, k),
					OnOutput: func(p Output) { b.Write(p.Data) }})
				if !assertNoError(t, err) {
					return
				}
				if b.String() != fmt.Sprintf("%d-%d\r\n", i, k) || o.Status != k {
					t.Errorf("session %d: %q %+v", i, b.String(), o)
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, r.Sessions(), n)
	_, err := r.Session(ctx, "one-more")
	require.Equal(t, fault.RateLimited, fault.CodeOf(err))
}

func assertNoError(t *testing.T, err error) bool {
	if err != nil {
		t.Errorf("%v", err)
	}
	return err == nil
}

func TestWithoutInotify(t *testing.T) {
	t.Parallel()
	r := open(t, Config{})
	r.watch.close()
	var polling bool
	r.watch, polling = newWatcher(true)
	require.True(t, polling)
	s := r.session("17")
	out, o := run(t, s, "echo hi; (exit 3)")
	require.Equal(t, "hi\n", out)
	require.Equal(t, 3, o.Status)
	_, o = run(t, s, "exit 4")
	require.Equal(t, 4, o.Status)
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	needTmux(t)
	dir := folder(t)
	for _, c := range []Config{
		{Dir: "relative"}, {Dir: "/tmp/a b"}, {Dir: "/tmp/it's"}, {Dir: "/" + strings.Repeat("x", 60)},
		{Dir: dir, Tmux: "nosuch_tmux"}, {Dir: dir, Shell: "nosuch_bash"}, {Dir: dir, Tmux: "true"}, {Dir: dir, Shell: "dash"},
		{Dir: "/proc/nowhere"},
	} {
		_, err := Open(c)
		require.Error(t, err, "%+v", c)
		require.NotEqual(t, "internal error", fault.MessageOf(err))
	}
	r := open(t, Config{Dir: dir, Cgroup: "/tmp"})
	require.Contains(t, strings.Join(r.Warnings(), "\n"), "single-user mode")
	require.Contains(t, strings.Join(r.Warnings(), "\n"), "control group")
	require.NoError(t, r.Ready(within(t)))
	require.True(t, strings.HasPrefix(r.Version(), "tmux "))
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	r.Close()
	r.Close()
	require.Error(t, r.Ready(within(t)))
	_, err = r.Session(within(t), "17")
	require.ErrorIs(t, err, ErrClosed)
}

func TestControlGroup(t *testing.T) {
	t.Parallel()
	parent := ""
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		p := filepath.Join(root, fmt.Sprintf("butler-test-%d", os.Getpid()))
		if os.Mkdir(p, 0o755) == nil {
			if _, err := checkCgroup(p); err == nil {
				parent = p
				t.Cleanup(func() { _ = os.Remove(p) })
				break
			}
			_ = os.Remove(p)
		}
	}
	if parent == "" {
		t.Skip("no control group of version 2 can be written to on this machine")
	}
	r := open(t, Config{Cgroup: parent, Limits: Limits{Processes: 50}})
	s := r.session("17")
	out, _ := run(t, s, "env -i setsid sleep 1000 >/dev/null 2>&1 & cat /proc/self/cgroup")
	require.Contains(t, out, "/butler_17")
	b, err := os.ReadFile(filepath.Join(s.rec.Cgroup, "cgroup.procs"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(strings.Fields(string(b))), 3)
	require.NoError(t, s.Close(within(t)))
	waitFor(t, func() bool {
		b, err := os.ReadFile(filepath.Join(parent, "butler_17", "cgroup.procs"))
		_ = os.Remove(filepath.Join(parent, "butler_17"))
		return err != nil || len(b) == 0
	})
}
