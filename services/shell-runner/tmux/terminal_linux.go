package tmux

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

const (
	maxTyped = 16 << 10
	// The kernel cuts a line at 4,095 bytes when a program reads by lines.
	maxLine = 4095
)

// Keys presses keys in the foreground program, by the names that KeyName knows.
func (s *Session) Keys(ctx context.Context, keys ...string) error {
	line, err := keysLine(pane, keys)
	if err != nil {
		return err
	}
	return s.press(ctx, line)
}

// Type types text into the foreground program as a person would, newlines as Enter; enter adds one at the end. Text
// that is a password (State says so) is kept nowhere. At the shell's prompt it is not judged: that is for Run.
func (s *Session) Type(ctx context.Context, text string, enter bool) error {
	if err := checkText(text); err != nil {
		return err
	}
	if len(text) > maxTyped {
		return fault.New(fault.TooLarge, "%d bytes are too much to type, %d at most: put it into a file", len(text), maxTyped)
	}
	if text == "" && !enter {
		return fault.New(fault.Invalid, "there is nothing to type")
	}
	s.mu.Lock()
	pid := s.shellPID
	s.mu.Unlock()
	if l, err := lookAt(pid); err == nil && l.canonical {
		for line := range strings.SplitSeq(text, "\n") {
			if len(line) >= maxLine {
				return fault.New(fault.TooLarge, "the program reads by lines, and a terminal's line has at most %d bytes", maxLine)
			}
		}
	}
	data := strings.ReplaceAll(text, "\n", "\r")
	if enter {
		data += "\r"
	}
	return s.press(ctx, typeLines(pane, []byte(data))...)
}

func (s *Session) press(ctx context.Context, lines ...string) error {
	s.mu.Lock()
	if s.lost != nil {
		defer s.mu.Unlock()
		return s.lost
	}
	if s.phase == phasePrompt {
		s.background = false
		s.setPhase(phaseTyped)
	}
	s.pressed++
	s.lastActive = time.Now()
	ctl := s.ctl
	s.mu.Unlock()
	s.poke()
	_, err := ctl.do(ctx, lines...)
	return err
}

// Screen gives what the terminal shows, with colour escapes when ansi is true. It takes some milliseconds.
func (s *Session) Screen(ctx context.Context, ansi bool) (Screen, error) {
	if err := s.Lost(); err != nil {
		return Screen{}, err
	}
	// In a process of its own: what the screen shows could be taken for the control client's own lines.
	args := []string{"capture-pane", "-p", "-J", "-t", pane}
	if ansi {
		args = append(args, "-e")
	}
	text, err := s.tmux(ctx, append(args, ";", "display-message", "-p", "-t", pane, paneFormat)...)
	if err != nil {
		return Screen{}, err
	}
	text = strings.TrimSuffix(text, "\n")
	i := strings.LastIndexByte(text, '\n')
	f, err := parseFacts(text[i+1:])
	if err != nil {
		return Screen{}, tmuxCommand(s.name, err.Error())
	}
	lines := strings.Split(text[:max(i, 0)], "\n")
	for j, l := range lines {
		lines[j] = strings.TrimRight(l, " ")
	}
	return Screen{Text: strings.TrimRight(strings.Join(lines, "\n"), "\n"), Width: f.width, Height: f.height,
		CursorX: f.cursorX, CursorY: f.cursorY, Alternate: f.alternate}, nil
}

// Resize changes the terminal's size, 20 to 500 columns and 5 to 200 lines.
func (s *Session) Resize(ctx context.Context, width, height int) error {
	if width < 20 || width > 500 || height < 5 || height > 200 {
		return fault.New(fault.Invalid, "a terminal has 20 to 500 columns and 5 to 200 lines")
	}
	if err := s.Lost(); err != nil {
		return err
	}
	_, err := s.do(ctx, "resize-window -t "+pane+" -x "+strconv.Itoa(width)+" -y "+strconv.Itoa(height))
	return err
}

// Settle waits until the session has printed nothing for quiet, or ctx ends; the latter is no error. For a snapshot
// after keys.
func (s *Session) Settle(ctx context.Context, quiet time.Duration) {
	t := time.NewTimer(quiet)
	defer t.Stop()
	s.mu.Lock()
	at, changed := s.offset, s.changed
	s.mu.Unlock()
	for {
		select {
		case <-t.C:
			return
		case <-ctx.Done():
			return
		case <-changed:
			s.mu.Lock()
			if s.offset != at {
				at = s.offset
				t.Reset(quiet)
			}
			changed = s.changed
			s.mu.Unlock()
		}
	}
}

// State looks at the session: some tens of microseconds. It does not fail: what cannot be told is Unknown, and then the
// mode is NaturalLanguage.
func (s *Session) State(ctx context.Context) (State, error) {
	s.mu.Lock()
	if s.lost != nil {
		defer s.mu.Unlock()
		return State{State: Unknown, Mode: NaturalLanguage}, s.lost
	}
	pid, known := s.shellPID, s.shellCmd
	st := State{State: Unknown, Mode: NaturalLanguage, AlternateScreen: s.full}
	atPrompt := s.phase == phasePrompt || s.phase == phaseTyped
	if s.cur != nil {
		st.Command = s.cur.id
	}
	s.mu.Unlock()
	st.Dir, _ = os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
	l, err := lookAt(pid)
	if err != nil {
		return st, ctx.Err()
	}
	state, password, raw, front := l.judge(atPrompt)
	st.State, st.Password, st.ShellForeground = state, password, l.shellForeground
	st.Integration = commandLine(pid) == known
	if !st.Integration && l.shellForeground && !l.canonical && !l.echo {
		st.State = Idle
	}
	if len(front) > 0 {
		st.Foreground = process(front[0])
	}
	s.mu.Lock()
	s.observe(raw, front)
	st.Mode = s.mode
	s.mu.Unlock()
	return st, ctx.Err()
}

// Foreground gives the program in the foreground: the shell itself at its prompt.
func (s *Session) Foreground(context.Context) (Process, error) {
	if err := s.Lost(); err != nil {
		return Process{}, err
	}
	return s.foreground()
}

func (s *Session) foreground() (Process, error) {
	s.mu.Lock()
	pid := s.shellPID
	s.mu.Unlock()
	l, err := lookAt(pid)
	if err != nil {
		return Process{}, fault.Wrap(err, fault.Unavailable, "it cannot be told what runs in this shell")
	}
	if l.shellForeground {
		return process(l.shell), nil
	}
	if group := l.foregroundGroup(); len(group) > 0 {
		return process(group[0]), nil
	}
	return Process{PID: l.shell.tpgid}, nil
}

// Dir gives the shell's directory as the system sees it, links resolved; "" when it cannot be told.
func (s *Session) Dir() string {
	s.mu.Lock()
	pid := s.shellPID
	s.mu.Unlock()
	dir, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
	return dir
}

// Idle gives how long nothing was printed or typed, and whether a job is still at work: then the session is in use
// whatever the time.
func (s *Session) Idle() (quiet time.Duration, working bool) {
	s.mu.Lock()
	quiet, working = time.Since(s.lastActive), s.cur != nil || s.phase == phaseRunning
	pid := s.shellPID
	s.mu.Unlock()
	if working {
		return quiet, true
	}
	for _, child := range children(pid) {
		if st, err := readStat(child); err == nil && st.state != 'Z' && st.state != 'T' {
			return quiet, true
		}
	}
	return quiet, false
}

// KillForeground kills the foreground program and its group at once (SIGKILL). At the shell's prompt there is nothing to
// kill: a NotFound fault.
func (s *Session) KillForeground(context.Context) error {
	s.mu.Lock()
	pid, lost := s.shellPID, s.lost
	s.mu.Unlock()
	if lost != nil {
		return lost
	}
	l, err := lookAt(pid)
	if err != nil && l.shell.pid == 0 {
		return sessionNotFound(s.name, err)
	}
	if l.shellForeground || l.shell.tpgid <= 1 {
		return fault.New(fault.NotFound, "nothing runs in this shell")
	}
	group := l.foregroundGroup()
	if len(group) == 0 || group[0].session != l.shell.session {
		return fault.New(fault.NotFound, "nothing runs in this shell")
	}
	if err := syscall.Kill(-l.shell.tpgid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fault.Wrap(err, fault.Unavailable, "the program cannot be killed")
	}
	return nil
}

// Restart kills the shell with all that runs in it; the session gets a fresh one with a new generation.
func (s *Session) Restart(ctx context.Context) error {
	s.mu.Lock()
	pid, gen, lost := s.shellPID, s.rec.Generation, s.lost
	s.mu.Unlock()
	if lost != nil {
		return lost
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fault.Wrap(err, fault.Unavailable, "the shell cannot be ended")
	}
	err := s.until(ctx, func() bool { return s.rec.Generation != gen && s.phase == phasePrompt && s.ready })
	if err == nil {
		s.killMarked(gen)
	}
	return err
}
