package tmux

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// phase is where the shell stands, by its marks.
type phase string

const (
	phaseStarting phase = "starting" // no prompt yet
	phasePrompt   phase = "prompt"   // the last command ended; ready once readline reads
	phaseTyped    phase = "typed"    // keys were sent to the prompt, or were waiting for it: the line is not known
	phaseSent     phase = "sent"     // a command was put at the prompt
	phaseRunning  phase = "running"  // a command line runs
	phaseMore     phase = "more"     // the shell wants more text
)

const (
	pane = "%0" // a session has one, and respawn keeps it
	// watchEvery is how often a busy terminal is looked at; two looks in a row make interactive mode.
	watchEvery = 100 * time.Millisecond
	sustained  = 200 * time.Millisecond
	readSize   = 64 << 10
	// maxLag is how far reading may be behind before the middle is given up.
	maxLag = 8 << 20
	// maxUnsaved is how much output may be handled without having been taken by its reader, until that is given up too.
	maxUnsaved = 16 << 20
	maxRefused = 64 << 10
)

// running is a command from its sending to the delivery of its end. Guarded by Session.mu.
type running struct {
	id         string
	sent       time.Time
	from       string // generation
	hidden     bool   // Butler's own; its output and end are dropped
	attached   bool   // its Run takes output and end; otherwise they are events
	delivering bool
	out        backlog
	refused    []byte // what came before any mark: what bash says of a text it refuses
	invalid    int64  // bytes that are no text
	done       bool
	outcome    Outcome
}

// Session is one person's shell. All methods may be called at any time from any goroutine.
type Session struct {
	host         *Host
	key, user    string
	name, dir    string
	account      *Account
	log          *slog.Logger
	op           chan struct{} // held while something is typed at the prompt
	wake         chan struct{} // the output grew
	quit         chan struct{} // end the goroutines
	quitOnce     sync.Once
	writerClosed chan struct{} // nobody appends to the output any more
	wg           sync.WaitGroup

	// Only of the loop, once it runs.
	output   *os.File
	progress *os.File
	scan     *scanner
	buf      []byte
	unwatch  func()
	death    <-chan struct{}
	undeath  func()
	freed    int64

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced when anything below changes
	rec        record
	ctl        *control
	shellPID   int
	shellCmd   string // its argv, once the start file runs, to notice exec
	phase      phase
	phaseSince time.Time
	ready      bool // readline reads, with bracketed paste on
	background bool // after the prompt: what comes now is of background jobs
	full       bool // alternate screen
	offset     int64
	saved      int64
	cur        *running
	open       []*running // cur, and those whose end was not taken yet
	last       *Outcome
	loose      backlog // output of no command
	looseBusy  bool
	events     []Event
	mode       Mode
	rawSince   time.Time
	lastActive time.Time
	dir0       string // as the last mark had it
	garbled    bool   // binary output reached the terminal
	replies    map[string]chan string
	pressed    uint64 // how often keys were sent, and how many of these times readline is known to have taken in
	taken      uint64
	stirred    uint64    // grows when something may have changed in the shell: keys, a command that began or ended
	seen       *Snapshot // as the shell is since then
	lost       error
}

func newSession(h *Host, key, user string, account *Account) *Session {
	return &Session{
		host: h, key: key, user: user, name: "butler_" + key, dir: filepath.Join(h.cfg.Dir, key), account: account,
		log: h.cfg.Log.With("session", "butler_"+key),
		op:  make(chan struct{}, 1), wake: make(chan struct{}, 1), quit: make(chan struct{}),
		writerClosed: make(chan struct{}, 1), buf: make([]byte, readSize), changed: make(chan struct{}),
		phase: phaseStarting, mode: NaturalLanguage, lastActive: time.Now(), replies: map[string]chan string{},
		loose: backlog{limit: h.cfg.MaxBacklog, keep: h.cfg.KeepTail},
	}
}

// User gives the chat user's id, Name the tmux session's name.
func (s *Session) User() string { return s.user }

// Name gives the tmux session's name, "butler_" and the user's id.
func (s *Session) Name() string { return s.name }

// Generation gives the UUID of the shell that is there now.
func (s *Session) Generation() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Generation
}

// Socket gives the path of the session's tmux server, for an operator who wants to look.
func (s *Session) Socket() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Socket
}

// notify wakes who waits for a change. s.mu is held.
func (s *Session) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// until waits for ok, which is called with s.mu held. It gives the reason why the session is lost, if it is.
func (s *Session) until(ctx context.Context, ok func() bool) error {
	for {
		s.mu.Lock()
		if s.lost != nil {
			defer s.mu.Unlock()
			return s.lost
		}
		if ok() {
			s.mu.Unlock()
			return nil
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Session) setPhase(p phase) {
	if s.phase != p {
		s.phase, s.phaseSince = p, time.Now()
		s.stir()
	}
}

// poke makes the loop look at once.
func (s *Session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// command prepares a tmux command under the session's user, with a clean environment.
func (s *Session) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.host.tmux, append([]string{"-u", "-S", s.Socket()}, args...)...)
	cmd.Env = append(s.environment(), "LC_ALL=C.UTF-8")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential(), Setsid: true}
	return cmd
}

// tmux runs one tmux command in a process of its own. Its output is bounded.
func (s *Session) tmux(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.host.cfg.ReplyTimeout)
	defer cancel()
	cmd := s.command(ctx, args...)
	return s.outputOf(ctx, cmd)
}

const maxToolOutput = 4 << 20

func (s *Session) outputOf(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var out, errText limited
	out.max, errText.max = maxToolOutput, 1024
	cmd.Stdout, cmd.Stderr = &out, &errText
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return out.b.String(), nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "", tmuxTimeout(s.name, s.host.cfg.ReplyTimeout)
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	text := strings.TrimSpace(errText.b.String())
	if strings.HasPrefix(text, "no server") || strings.HasPrefix(text, "error connecting") ||
		strings.HasPrefix(text, "server exited") || strings.Contains(text, "can't find") {
		return "", sessionNotFound(s.name, errors.New(text))
	}
	if text == "" {
		text = err.Error()
	}
	return "", tmuxCommand(s.name, text)
}

type limited struct {
	b   strings.Builder
	max int
}

func (l *limited) Write(p []byte) (int, error) {
	if room := l.max - l.b.Len(); room > 0 {
		l.b.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// attach starts the control client.
func (s *Session) attach() error {
	cmd := s.command(context.Background(), "-C", "attach-session", "-f", "no-output,ignore-size", "-t", "="+s.name)
	ctl, err := startControl(cmd, s.name, s.host.cfg.ReplyTimeout)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.ctl = ctl
	s.notify()
	s.mu.Unlock()
	return nil
}

func (s *Session) control() *control {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctl
}

func (s *Session) do(ctx context.Context, lines ...string) (string, error) {
	return s.control().do(ctx, lines...)
}

func (s *Session) pipeCommand() string {
	return "pipe-pane -t " + pane + " " + quote("exec cat >>"+quotePlain(s.path(fileOutput)))
}

// quotePlain quotes inside of single quotes of tmux's parser: paths with a quote are refused by Open.
func quotePlain(path string) string { return `"` + path + `"` }

type paneFacts struct {
	generation       string
	piped, dead      bool
	inMode           bool
	pid              int
	status           int
	statusKnown      bool
	alternate        bool
	cursorX, cursorY int
	width, height    int
}

const paneFormat = "#{@butler_generation} #{pane_pipe} #{pane_dead} #{pane_in_mode} #{pane_pid} " +
	"s#{pane_dead_status} g#{pane_dead_signal} #{alternate_on} #{cursor_x} #{cursor_y} #{pane_width} #{pane_height}"

// facts asks tmux about the pane. What it answers is of the session's own user: used with care.
func (s *Session) facts(ctx context.Context) (paneFacts, error) {
	text, err := s.do(ctx, "display-message -p -t "+pane+" "+quote(paneFormat))
	if err != nil {
		return paneFacts{}, err
	}
	return parseFacts(text)
}

func parseFacts(text string) (paneFacts, error) {
	f := strings.Split(text, " ")
	if len(f) != 12 {
		return paneFacts{}, errors.New("odd answer of tmux")
	}
	num := func(i int) int { v, _ := strconv.Atoi(f[i]); return v }
	p := paneFacts{generation: f[0], piped: f[1] == "1", dead: f[2] == "1", inMode: num(3) > 0, pid: num(4),
		alternate: f[7] == "1", cursorX: num(8), cursorY: num(9), width: num(10), height: num(11)}
	if v, err := strconv.Atoi(f[5][1:]); err == nil {
		p.status, p.statusKnown = v, true
	}
	if name := strings.TrimPrefix(f[6][1:], "SIG"); name != "" { // a name or a number, as tmux was built
		v, err := strconv.Atoi(name)
		if err != nil {
			v = int(unix.SignalNum("SIG" + name))
		}
		if v > 0 {
			p.status, p.statusKnown = 128+v, true
		}
	}
	return p, nil
}

// adoptShell takes the pane's process as the shell, if it belongs to the session's user, and watches for its end.
func (s *Session) adoptShell(pid int) error {
	owner, err := processOwner(pid)
	if err != nil {
		return err
	}
	want := uint32(os.Getuid())
	if s.account != nil {
		want = s.account.UID
	}
	if owner != want {
		return errors.New("the shell belongs to another user")
	}
	dead, undo, err := deathOf(pid)
	if err != nil {
		return err
	}
	if s.undeath != nil {
		s.undeath()
	}
	s.death, s.undeath = dead, undo
	s.mu.Lock()
	s.shellPID, s.shellCmd = pid, s.expectedCommandLine()
	s.mu.Unlock()
	return nil
}

// follow begins to watch the output file.
func (s *Session) follow() error {
	var err error
	if s.output, err = s.openOutput(); err != nil {
		return err
	}
	s.unwatch, err = s.host.watch.add(s.path(fileOutput), func(closed bool) {
		if closed {
			select {
			case s.writerClosed <- struct{}{}:
			default:
			}
		}
		s.poke()
	})
	return err
}

// read handles all output that is there.
func (s *Session) read() error {
	for {
		s.mu.Lock()
		at := s.offset
		s.mu.Unlock()
		n, err := s.output.ReadAt(s.buf, at)
		if n > 0 {
			s.mu.Lock()
			s.offset = at + int64(n)
			s.lastActive = time.Now()
			s.scan.feed(s.buf[:n], (*marks)(s))
			s.save(false)
			s.notify()
			free := s.saved
			s.mu.Unlock()
			if free-s.freed > 256<<10 {
				s.free(free)
			}
		}
		if n < len(s.buf) {
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		}
		if info, err := s.output.Stat(); err == nil && info.Size()-at > maxLag {
			s.jump(info.Size() - int64(s.host.cfg.KeepTail))
		}
	}
}

// jump gives up what is between here and to: the writer is faster than we are.
func (s *Session) jump(to int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := to - s.offset
	if n <= 0 {
		return
	}
	s.offset = to
	s.scan = newScanner(s.rec.Nonce)
	if s.cur != nil {
		s.cur.outcome.Bytes += n
		s.cur.outcome.Truncated = true
		s.cur.out.skip(n)
	} else {
		s.loose.skip(n)
	}
}

func (s *Session) free(to int64) {
	if err := freeOutput(s.output, s.freed, to); err != nil {
		if s.freed == 0 {
			s.log.Warn("the file system cannot free output that was read: keep the folder on tmpfs, ext4, xfs or btrfs",
				"error", err)
		}
	}
	s.freed = to
}

// save writes down how far the output was given on, when all of it was. s.mu is held.
func (s *Session) save(force bool) {
	if s.progress == nil {
		return
	}
	at := s.offset - int64(s.scan.pending())
	if !force && at-s.saved < maxUnsaved {
		if !s.loose.empty() || s.looseBusy {
			return
		}
		for _, c := range s.open {
			if c.delivering || !c.out.empty() || c.done {
				return
			}
		}
	}
	p := progress{Offset: at, Phase: s.phase, Full: s.full}
	if c := s.cur; c != nil && !c.hidden {
		p.Command, p.Sent, p.Started, p.Bytes = c.id, c.sent, c.outcome.Started, c.outcome.Bytes
	} else if s.last != nil {
		p.Command, p.Outcome = s.last.Command, s.last
	}
	if err := saveProgress(s.progress, p); err != nil {
		s.log.Error("cannot write a session's progress: after a restart its output may be shown twice", "error", err)
	}
	s.saved = at
}
