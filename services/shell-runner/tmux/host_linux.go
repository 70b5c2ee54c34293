package tmux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/butlerhub/butler/pkg/fault"
)

// Host keeps the shells of one machine.
type Host struct {
	cfg         Config
	tmux, shell string
	version     string
	term        string
	warnings    []string
	cgroup      string // "" without
	watch       *watcher
	ctx         context.Context
	cancel      context.CancelFunc
	wg          sync.WaitGroup
	creating    chan struct{} // bounds how many shells start at once

	mu       sync.Mutex
	closed   bool
	slots    map[string]*slot
	limiters map[string]*rate.Limiter
}

// slot is a place in the count of sessions: taken before a session is made, given back when it ended.
type slot struct {
	user  string
	ready chan struct{} // closed when s or err is there
	s     *Session
	err   error
}

var (
	tmuxVersion = regexp.MustCompile(`^tmux (?:next-)?(\d+)\.(\d+)`)
	plainPath   = regexp.MustCompile(`^/[A-Za-z0-9/._+@:,=-]*$`)
)

// maxSocket is the longest path of a Unix socket, less the part below Dir.
const maxSocket = 107 - len("/") - 48 - len("+9") - len("/run/12345678")

// Open checks what is needed and prepares the folder. It starts no shell: call Recover to find those of an earlier
// process. It returns ErrUnsupported, or what is missing, as a sentence.
func Open(cfg Config) (*Host, error) {
	cfg = cfg.withDefaults()
	h := &Host{
		cfg: cfg, slots: map[string]*slot{}, limiters: map[string]*rate.Limiter{}, creating: make(chan struct{}, 4),
	}
	if !plainPath.MatchString(cfg.Dir) || len(cfg.Dir) > maxSocket {
		return nil, fault.New(fault.Invalid, "the folder for shells must be an absolute path of at most %d plain characters "+
			"(letters, digits, / . _ + @ : , = -), not %q", maxSocket, cut(cfg.Dir, 120))
	}
	var err error
	if h.tmux, err = exec.LookPath(cfg.Tmux); err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "tmux was not found: install the package tmux (3.2 or newer)")
	}
	if h.shell, err = exec.LookPath(cfg.Shell); err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "bash was not found: install the package bash (5.1 or newer)")
	}
	if err := h.checkVersions(); err != nil {
		return nil, err
	}
	if h.cfg.Home == "" {
		if h.cfg.Home, err = os.UserHomeDir(); err != nil {
			h.cfg.Home = "/"
		}
	}
	mode := os.FileMode(0o700)
	if h.ownUsers() {
		mode = 0o711
	}
	if err := os.MkdirAll(cfg.Dir, mode); err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "the folder for shells cannot be made")
	}
	if err := os.Chmod(cfg.Dir, mode); err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "the folder for shells belongs to somebody else")
	}
	h.term = terminal()
	var polling bool
	h.watch, polling = newWatcher(false)
	if polling {
		h.warnings = append(h.warnings, "inotify is not to be had (fs.inotify.max_user_instances): output is polled")
	}
	h.warn()
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.wg.Add(1) // until Close: others may be added all the time
	return h, nil
}

func (h *Host) ownUsers() bool { return h.cfg.Account != nil && os.Getuid() == 0 }

func (h *Host) checkVersions() error {
	ctx, cancel := context.WithTimeout(context.Background(), h.cfg.ReplyTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, h.tmux, "-V").Output()
	h.version = strings.TrimSpace(string(out))
	m := tmuxVersion.FindStringSubmatch(h.version)
	if err != nil || m == nil {
		return fault.New(fault.Unavailable, "tmux does not say its version: is %s really tmux?", h.tmux)
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	if major < 3 || major == 3 && minor < 2 {
		return fault.New(fault.Unavailable, "%s is too old: 3.2 or newer is needed", h.version)
	}
	out, err = exec.CommandContext(ctx, h.shell, "--norc", "--noprofile", "-c",
		"echo $((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1]))").Output()
	if v, _ := strconv.Atoi(strings.TrimSpace(string(out))); err != nil || v < 501 {
		return fault.New(fault.Unavailable, "%s is no bash of 5.1 or newer", h.shell)
	}
	return nil
}

// warn finds what an operator should know about this host.
func (h *Host) warn() {
	switch {
	case h.cfg.Account == nil:
		h.warnings = append(h.warnings, "single-user mode: shells run as this service's own user and can reach all that it "+
			"can; run as root with an account for each person to separate them")
	case os.Getuid() != 0:
		h.warnings = append(h.warnings, "accounts are named but this service is not root: shells run as its own user and can "+
			"reach all that it can")
	}
	if b, err := os.ReadFile("/proc/sys/dev/tty/legacy_tiocsti"); err != nil || strings.TrimSpace(string(b)) != "0" {
		h.warnings = append(h.warnings,
			"programs can type into the shell that started them: set the sysctl dev.tty.legacy_tiocsti to 0")
	}
	if h.cfg.Cgroup == "" {
		return
	}
	missing, err := checkCgroup(h.cfg.Cgroup)
	switch {
	case err != nil:
		h.warnings = append(h.warnings, fmt.Sprintf("the control group %s cannot be used (%v): sessions have no limits but "+
			"those of single processes", h.cfg.Cgroup, err))
	default:
		h.cgroup = h.cfg.Cgroup
		if len(missing) > 0 {
			h.warnings = append(h.warnings, fmt.Sprintf("the control group %s lacks the controllers %s: these limits do not "+
				"hold for a session as a whole", h.cfg.Cgroup, strings.Join(missing, ", ")))
		}
	}
}

// terminal picks the best of tmux's terminal types that is described here.
func terminal() string {
	for _, name := range []string{"tmux-256color", "screen-256color", "screen"} {
		for _, dir := range []string{"/etc/terminfo", "/lib/terminfo", "/usr/lib/terminfo", "/usr/share/terminfo"} {
			if _, err := os.Stat(filepath.Join(dir, name[:1], name)); err == nil {
				return name
			}
		}
	}
	return "screen"
}

// Warnings gives what an operator should know: no isolation, no limits, a kernel setting. Sentences; none means fine.
func (h *Host) Warnings() []string { return append([]string(nil), h.warnings...) }

// Version gives tmux's version, as "tmux 3.3a".
func (h *Host) Version() string { return h.version }

// Ready says whether tmux can be used now.
func (h *Host) Ready(ctx context.Context) error {
	if h.ctx.Err() != nil {
		return ErrClosed
	}
	if err := exec.CommandContext(ctx, h.tmux, "-V").Run(); err != nil {
		return fault.Wrap(err, fault.Unavailable, "tmux cannot be started")
	}
	return nil
}

// Session gives the user's session; it makes one when there is none. It blocks until the shell is at its prompt.
func (h *Host) Session(ctx context.Context, user string) (*Session, error) {
	return h.SessionNumber(ctx, user, 1)
}

// SessionNumber gives one of a user's several sessions, numbered from 1, where MaxPerUser allows more than one. All of
// them run under the same account.
func (h *Host) SessionNumber(ctx context.Context, user string, number int) (*Session, error) {
	if err := checkUser(user); err != nil {
		return nil, err
	}
	if number < 1 || number > h.cfg.MaxPerUser || number > 9 {
		return nil, limitf(h.cfg.MaxPerUser, 0, "a person can have %d shells at once: close one first", h.cfg.MaxPerUser)
	}
	key := sessionKey(user, number)
	for {
		h.mu.Lock()
		if h.closed {
			h.mu.Unlock()
			return nil, ErrClosed
		}
		sl := h.slots[key]
		if sl == nil {
			if len(h.slots) >= h.cfg.MaxTotal {
				h.mu.Unlock()
				return nil, limitf(h.cfg.MaxTotal, time.Minute,
					"all %d shells of this host are in use: try again later, or ask an admin to close one", h.cfg.MaxTotal)
			}
			sl = &slot{user: user, ready: make(chan struct{})}
			h.slots[key] = sl
			h.wg.Go(func() { h.fill(key, user, number, sl) })
		}
		h.mu.Unlock()
		select {
		case <-sl.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if sl.err != nil {
			return nil, sl.err
		}
		if sl.s.Lost() == nil {
			return sl.s, nil
		}
		h.drop(key, sl)
	}
}

func sessionKey(user string, number int) string {
	if number == 1 {
		return user
	}
	return fmt.Sprintf("%s+%d", user, number)
}

// fill attaches to or makes the session of a slot.
func (h *Host) fill(key, user string, number int, sl *slot) {
	ctx, cancel := context.WithTimeout(h.ctx, h.cfg.StartTimeout)
	defer cancel()
	s, _, err := h.attachOrCreate(ctx, key, user, number)
	sl.s, sl.err = s, err
	if err != nil {
		h.drop(key, sl)
	}
	close(sl.ready)
}

func (h *Host) attachOrCreate(ctx context.Context, key, user string, number int) (*Session, *Recovered, error) {
	select {
	case h.creating <- struct{}{}:
		defer func() { <-h.creating }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	account, err := h.account(user)
	if err != nil {
		return nil, nil, err
	}
	if _, err := os.Stat(filepath.Join(h.cfg.Dir, key, fileSession)); err == nil {
		s := newSession(h, key, user, account)
		rec, err := s.reattach(ctx)
		if err == nil {
			return s, rec, nil
		}
		h.cfg.Log.Info("an earlier shell is gone", "session", s.name, "error", err)
		s.clear()
	}
	if err := h.allow(user); err != nil {
		return nil, nil, err
	}
	s := newSession(h, key, user, account)
	if err := s.create(ctx, number); err != nil {
		s.clear()
		if ctx.Err() != nil && h.ctx.Err() == nil {
			err = tmuxTimeout(s.name, h.cfg.StartTimeout)
		}
		return nil, nil, err
	}
	return s, nil, nil
}

// account gives whom a user's sessions run as; nil in single-user mode.
func (h *Host) account(user string) (*Account, error) {
	if !h.ownUsers() {
		return nil, nil
	}
	a, ok := h.cfg.Account(user)
	if !ok {
		return nil, fault.New(fault.Forbidden, "there is no operating system account for user %s: ask an admin for one", user)
	}
	if a.UID == 0 || a.GID == 0 || int(a.UID) == os.Getuid() {
		return nil, fault.New(fault.Forbidden, "the account for user %s is root's or this service's own: that is refused", user)
	}
	return &a, nil
}

// allow takes one of the user's starts.
func (h *Host) allow(user string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.limiters[user]
	if l == nil {
		if len(h.limiters) > 10_000 {
			h.limiters = map[string]*rate.Limiter{}
		}
		l = rate.NewLimiter(rate.Every(h.cfg.CreateEvery), h.cfg.CreateBurst)
		h.limiters[user] = l
	}
	if !l.AllowN(h.cfg.Now(), 1) {
		return limitf(h.cfg.CreateBurst, h.cfg.CreateEvery, "too many new shells: wait %s", h.cfg.CreateEvery)
	}
	return nil
}

func (h *Host) drop(key string, sl *slot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.slots[key] == sl {
		delete(h.slots, key)
	}
}

// bury gives a lost session's place back, and ends its goroutines.
func (h *Host) bury(s *Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if sl := h.slots[s.key]; sl != nil && sl.s == s {
		delete(h.slots, s.key)
	}
	if !h.closed { // else Close ends it
		h.wg.Go(s.stop)
	}
}

// alone says whether the user has no other session.
func (h *Host) alone(s *Session) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, sl := range h.slots {
		if sl.user == s.user && key != s.key {
			return false
		}
	}
	return true
}

// Sessions lists the sessions that are there, in no order.
func (h *Host) Sessions() []*Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*Session
	for _, sl := range h.slots {
		select {
		case <-sl.ready:
			if sl.s != nil {
				all = append(all, sl.s)
			}
		default:
		}
	}
	return all
}

// Find gives the user's session without making one.
func (h *Host) Find(user string) (*Session, error) {
	for _, s := range h.Sessions() {
		if s.key == user && s.Lost() == nil {
			return s, nil
		}
	}
	return nil, sessionNotFound("butler_"+user, errors.New("no session"))
}

// Close lets all sessions go: they live on, and the next process finds them with Recover. It waits for the goroutines.
func (h *Host) Close() {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	h.closed = true
	h.mu.Unlock()
	h.cancel()
	h.detachAll()
	h.wg.Done() // Open's own
	h.wg.Wait()
	h.detachAll() // those that became ready meanwhile
	h.watch.close()
}

func (h *Host) detachAll() {
	var wg sync.WaitGroup
	for _, s := range h.Sessions() {
		wg.Go(s.detach)
	}
	wg.Wait()
}
