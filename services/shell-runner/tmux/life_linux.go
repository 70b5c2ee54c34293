package tmux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// create starts a server, and in it a shell, and waits for its first prompt.
func (s *Session) create(ctx context.Context, number int) error {
	if err := s.makeFolder(); err != nil {
		return fault.Wrap(err, fault.Unavailable, "the folder of the shell cannot be made")
	}
	s.rec = record{User: s.user, Number: number, Created: s.host.cfg.Now()}
	s.newShell()
	// A socket of its own for every server: one that is going away never gets in the way of the next.
	s.rec.Socket = filepath.Join(s.dir, dirRun, s.rec.Generation[:8])
	if err := s.writeStart(); err != nil {
		return err
	}
	var err error
	if s.progress, err = os.OpenFile(s.path(fileProgress), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	cmd := s.startCommand(ctx)
	if s.host.cgroup != "" {
		path, dir, err := makeCgroup(s.host.cgroup, s.name, s.host.cfg.Limits)
		if err != nil {
			return fault.Wrap(err, fault.Unavailable, "the control group of the shell cannot be made")
		}
		defer func() { _ = dir.Close() }()
		s.rec.Cgroup = path
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	text, err := s.outputOf(ctx, cmd)
	if err != nil {
		return err
	}
	server, shell, _ := strings.Cut(strings.TrimSpace(text), " ")
	if s.rec.Server, err = strconv.Atoi(server); err != nil {
		return tmuxCommand(s.name, "odd answer to new-session: "+cut(text, 100))
	}
	if st, err := readStat(s.rec.Server); err == nil {
		s.rec.ServerAge = st.start
	}
	pid, err := strconv.Atoi(shell)
	if err != nil {
		return tmuxCommand(s.name, "odd answer to new-session: "+cut(text, 100))
	}
	if err := s.writeRecord(); err != nil {
		return err
	}
	if err := s.follow(); err != nil {
		return err
	}
	if err := s.adoptShell(pid); err != nil {
		return sessionNotFound(s.name, err)
	}
	if err := s.attach(); err != nil {
		return err
	}
	if _, err := s.facts(ctx); err != nil { // attached only when it answers
		return err
	}
	s.start()
	return s.firstPrompt(ctx)
}

// newShell draws a new generation and nonce. s.mu is held, or nobody else knows the session yet.
func (s *Session) newShell() {
	s.rec.Generation, s.rec.Nonce = newGeneration(), newNonce()
	s.scan = newScanner(s.rec.Nonce)
	s.ready, s.background, s.full, s.garbled = false, false, false, false
	s.setPhase(phaseStarting)
}

func (s *Session) writeStart() error {
	for _, f := range []struct {
		name, text string
	}{{fileStart, s.startScript()}, {fileRC, s.startFile()}, {fileNonce, s.rec.Nonce + "\n"}} {
		if err := s.writeFile(f.name, f.text, 0o640); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) shellCommand() string { return "exec /bin/sh " + s.path(fileStart) }

func (s *Session) startCommand(ctx context.Context) *exec.Cmd {
	args := []string{"-f", s.path(fileConf), "new-session", "-d", "-s", s.name,
		"-x", strconv.Itoa(s.host.cfg.Width), "-y", strconv.Itoa(s.host.cfg.Height), s.shellCommand(), ";",
		// In the file it ends tmux 3.3a at once.
		"set-option", "-g", "window-size", "manual", ";",
		"set-option", "-s", "@butler_generation", s.rec.Generation, ";",
		"pipe-pane", "exec cat >>" + quotePlain(s.path(fileOutput)), ";",
		"display-message", "-p", "#{pid} #{pane_pid}"}
	cmd := s.command(ctx, args...)
	if l := s.host.cfg.Launch; len(l) > 0 {
		cmd.Args = append(append([]string{}, l...), append([]string{cmd.Path}, cmd.Args[1:]...)...)
		if path, err := exec.LookPath(l[0]); err == nil {
			cmd.Path = path
		} else {
			cmd.Err = err
		}
	}
	return cmd
}

// firstPrompt waits until the shell reads.
func (s *Session) firstPrompt(ctx context.Context) error {
	if err := s.until(ctx, func() bool { return s.phase == phasePrompt && s.ready }); err != nil {
		return err
	}
	_ = os.Remove(s.path(fileNonce))
	return nil
}

func commandLine(pid int) string {
	return strings.Join(process(procStat{pid: pid}).Args, "\x00")
}

// start runs the session's goroutines.
func (s *Session) start() {
	s.wg.Go(s.loop)
	s.wg.Go(s.pump)
}

// loop follows the output, the shell's and the client's life, and the terminal while something runs.
func (s *Session) loop() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		if err := s.read(); err != nil {
			s.lose(fmt.Sprintf("its output cannot be read: %v", err))
			return
		}
		s.mu.Lock()
		idle := s.phase == phasePrompt
		ctl, lost := s.ctl, s.lost
		s.mu.Unlock()
		if lost != nil {
			return
		}
		var look <-chan time.Time
		if !idle {
			look = tick.C
		}
		select {
		case <-s.quit:
			return
		case <-s.wake:
		case <-look:
			s.look()
		case <-s.death:
			if !s.shellEnded() {
				return
			}
		case <-ctl.closed:
			if !s.reconnect() {
				return
			}
		}
	}
}

// look is the regular look at a busy terminal: mode, a shell that is no more, a command that wants more text.
func (s *Session) look() {
	s.mu.Lock()
	pid, known, ph, since, ctl := s.shellPID, s.shellCmd, s.phase, s.phaseSince, s.ctl
	s.mu.Unlock()
	if ph == phaseMore && time.Since(since) > s.host.cfg.IncompleteAfter {
		s.mu.Lock()
		s.phaseSince = time.Now()
		s.mu.Unlock()
		if _, err := ctl.do(s.host.ctx, "send-keys -t "+pane+" C-c"); err != nil {
			s.log.Warn("an incomplete command could not be interrupted", "error", err)
		}
		return
	}
	l, err := lookAt(pid)
	if err != nil {
		return
	}
	_, _, raw, front := l.judge(false)
	s.mu.Lock()
	s.observe(raw, front)
	quiet := s.cur != nil && time.Since(s.lastActive) > 300*time.Millisecond
	s.mu.Unlock()
	if !quiet || !l.shellForeground || l.canonical || l.echo {
		return
	}
	// The shell waits for a line, and the mark of the end did not come: it replaced itself (exec bash), or its output is
	// not written any more. What ran has ended, nobody knows how. (read -e looks the same, but for these two.)
	if commandLine(pid) == known {
		if f, err := s.facts(s.host.ctx); err != nil || f.piped {
			return
		}
		if err := s.repair(s.host.ctx); err != nil {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur == nil {
		return
	}
	s.cur.outcome.Lost, s.cur.outcome.Started = true, true
	s.finish()
	if commandLine(pid) == known {
		s.setPhase(phaseTyped)
	}
	s.save(false)
	s.notify()
}

// observe decides the mode. s.mu is held.
func (s *Session) observe(raw bool, front []procStat) {
	switch {
	case !raw:
		s.switchMode(NaturalLanguage, Process{})
	case s.rawSince.IsZero():
		s.rawSince = time.Now()
		if !s.full {
			return
		}
		fallthrough
	case s.full || time.Since(s.rawSince) >= sustained:
		var p Process
		if len(front) > 0 {
			p = process(front[0])
		}
		s.switchMode(Interactive, p)
	}
}

// shellEnded is what happens when the shell ends: the command gets its end, and the session a new shell. False when the
// session is lost.
func (s *Session) shellEnded() bool {
	ctx, cancel := context.WithTimeout(s.host.ctx, s.host.cfg.StartTimeout)
	defer cancel()
	facts, err := s.deadFacts(ctx)
	if err != nil {
		if s.host.ctx.Err() != nil {
			return false
		}
		s.lose("its terminal ended")
		return false
	}
	s.drain(ctx)
	s.mu.Lock()
	if s.cur != nil {
		s.cur.outcome.Started = true
		s.endWithShell(facts)
	}
	s.save(false)
	s.notify()
	s.mu.Unlock()
	if err := s.host.allow(s.user); err != nil {
		s.lose("its shell ended too often")
		return false
	}
	if err := s.restart(ctx, "the shell ended"); err != nil {
		s.lose("its shell ended and could not be started again")
		return false
	}
	return true
}

// endWithShell ends the current command with what is known of the shell's end. s.mu is held.
func (s *Session) endWithShell(f paneFacts) {
	o := &s.cur.outcome
	o.ShellEnded, o.Status, o.StatusKnown, o.Lost = true, f.status, f.statusKnown, !f.statusKnown
	s.finish()
}

// deadFacts waits until tmux has seen the shell's end and read all of its output.
func (s *Session) deadFacts(ctx context.Context) (paneFacts, error) {
	ctx, cancel := context.WithTimeout(ctx, s.host.cfg.ReplyTimeout)
	defer cancel()
	t := time.NewTicker(2 * time.Millisecond)
	defer t.Stop()
	for i := 1; ; i++ {
		f, err := s.facts(ctx)
		if err != nil || f.dead && f.statusKnown {
			return f, err
		}
		if i%10 == 0 { // tmux 3.3a misses the signal now and then, and the shell stays a zombie: it looks again when told
			s.signalServer(syscall.SIGCHLD)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return f, ctx.Err()
		}
	}
}

func (s *Session) signalServer(sig syscall.Signal) {
	pid := s.rec.Server // never changes
	// Only if the pid is still that server's.
	if st, err := readStat(pid); err == nil && pid > 1 && st.start == s.rec.ServerAge {
		_ = syscall.Kill(pid, sig)
	}
}

// drain closes the pipe and reads what is still on its way to the file.
func (s *Session) drain(ctx context.Context) {
	select {
	case <-s.writerClosed:
	default:
	}
	if _, err := s.do(ctx, "pipe-pane -t "+pane); err == nil {
		select {
		case <-s.writerClosed:
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	_ = s.read()
}

// restart puts a new shell into the pane.
func (s *Session) restart(ctx context.Context, reason string) error {
	s.mu.Lock()
	s.newShell()
	ctl := s.ctl
	s.mu.Unlock()
	if err := s.writeStart(); err != nil {
		return err
	}
	text, err := ctl.do(ctx, "set-option -s @butler_generation "+s.rec.Generation, "clear-history -t "+pane,
		"respawn-pane -k -t "+pane+" "+quote(s.shellCommand()), s.pipeCommand(),
		"display-message -p -t "+pane+" '#{pane_pid}'")
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(text)
	if err != nil {
		return tmuxCommand(s.name, "odd answer to respawn-pane")
	}
	if err := s.writeRecord(); err != nil {
		return err
	}
	if err := s.adoptShell(pid); err != nil {
		return err
	}
	for { // this is the loop's own goroutine: it must read by itself
		if err := s.read(); err != nil {
			return err
		}
		s.mu.Lock()
		ready := s.phase == phasePrompt && s.ready
		s.mu.Unlock()
		if ready {
			break
		}
		select {
		case <-s.wake:
		case <-s.death:
			return errors.New("the new shell ended at once")
		case <-s.quit:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	_ = os.Remove(s.path(fileNonce))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.save(true)
	s.emit(Event{Kind: EventRestarted, Reason: reason})
	return nil
}

// reconnect attaches another client when the server lives on. False when it does not.
func (s *Session) reconnect() bool {
	select {
	case <-s.quit:
		return false
	default:
	}
	if err := s.attach(); err == nil {
		ctx, cancel := context.WithTimeout(s.host.ctx, s.host.cfg.ReplyTimeout)
		defer cancel()
		if f, err := s.facts(ctx); err == nil && f.generation == s.Generation() {
			return true
		}
		s.control().close()
	}
	if s.host.ctx.Err() == nil {
		s.lose("its terminal ended")
	}
	return false
}

// lose ends a session that something else ended: whatever ran has an unknown end, and the place is given back.
func (s *Session) lose(reason string) {
	_ = s.read()
	s.mu.Lock()
	if s.lost != nil {
		s.mu.Unlock()
		return
	}
	if s.cur != nil {
		s.cur.outcome.Lost = true
		s.finish()
	}
	s.lost = sessionNotFound(s.name, errors.New(reason))
	s.emit(Event{Kind: EventLost, Reason: "the shell is gone: " + reason})
	s.notify()
	rec, ctl := s.rec, s.ctl
	s.mu.Unlock()
	s.log.Warn("a session was lost", "reason", reason)
	if ctl != nil {
		ctl.close()
	}
	s.kill(rec)
	_ = os.RemoveAll(s.dir)
	s.host.bury(s)
}

// Lost gives why the session is gone; nil while it is there.
func (s *Session) Lost() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// Close ends the session: the shell, all that it started, and its folder. Closing twice is fine.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	already := s.lost != nil
	if !already {
		if s.cur != nil {
			s.cur.outcome.Lost = true
			s.finish()
		}
		s.lost = ErrClosed
	}
	rec := s.rec
	s.notify()
	s.mu.Unlock()
	s.stop()
	if already {
		return nil //nolint:nilerr // what ended it before is no error of Close
	}
	_, _ = s.tmux(ctx, "kill-server") // the kind way; kill does not depend on it
	s.kill(rec)
	_ = os.RemoveAll(s.dir)
	s.host.bury(s)
	return nil
}

// stop ends the goroutines and closes what is open; the shell lives on.
func (s *Session) stop() {
	s.quitOnce.Do(func() { close(s.quit) })
	if ctl := s.control(); ctl != nil {
		ctl.end()
	}
	s.wg.Wait()
	if s.unwatch != nil {
		s.unwatch()
	}
	if s.undeath != nil {
		s.undeath()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.output != nil {
		_ = s.output.Close()
	}
	if s.progress != nil {
		_ = s.progress.Close()
		s.progress = nil
	}
}

// detach is stop for a process that ends; whoever waits is told.
func (s *Session) detach() {
	s.mu.Lock()
	if s.lost == nil {
		s.lost = ErrClosed
	}
	s.notify()
	s.mu.Unlock()
	s.stop()
}

// clear removes what a session that could not be made or found again left.
func (s *Session) clear() {
	rec := s.rec
	s.mu.Lock()
	if s.lost == nil {
		s.lost = ErrClosed
	}
	s.notify()
	s.mu.Unlock()
	s.stop()
	s.kill(rec)
	_ = os.RemoveAll(s.dir)
}

// kill ends every process of a session: its group where it has one, its user's where that is exclusive, and whatever
// carries its marker. kill-server alone leaves those that setsid or nohup detached.
func (s *Session) kill(rec record) {
	s.signalServer(syscall.SIGKILL)
	if rec.Cgroup != "" {
		killCgroup(rec.Cgroup)
	}
	if s.account != nil && s.account.Exclusive && s.host.alone(s) {
		// kill(-1) by that user reaches all of its processes at once, also while they multiply.
		ctx, cancel := context.WithTimeout(context.Background(), s.host.cfg.ReplyTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "kill -9 -1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential(), Setsid: true}
		cmd.Env = []string{"PATH=/bin"}
		_ = cmd.Run()
		return
	}
	if rec.Generation == "" {
		return
	}
	for range 10 { // again while new ones appear
		if s.killMarked(rec.Generation) == 0 {
			return
		}
	}
}

func (s *Session) killMarked(generation string) (killed int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	want := "\x00" + marker(generation) + "\x00"
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || !strings.Contains("\x00"+string(b)+"\x00", want) {
			continue
		}
		if st, err := readStat(pid); err != nil || st.state == 'Z' {
			continue
		}
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}
