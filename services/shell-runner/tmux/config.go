package tmux

import (
	"log/slog"
	"regexp"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// Config says where sessions live and what they may use. Only Dir is needed.
type Config struct {
	// Dir is an absolute path, made when missing. It holds a folder a session: socket, output not yet read, the shell's
	// start files, what is needed to find the session again. Best on a file system of limited size (tmpfs): output that
	// was read is freed at once, so some megabytes a session are enough. With accounts its parents must be open to
	// other users (x).
	Dir string

	// Tmux and Shell are the programs; "tmux" and "bash", looked up on PATH, when empty.
	Tmux, Shell string

	// Home is where sessions start in single-user mode; this process's home when empty.
	Home string

	// Path is the sessions' PATH; the usual system folders when empty.
	Path string

	// Account gives the operating system user of a chat user's sessions. Nil is single-user mode: sessions run as this
	// process's own user, which Host.Warnings says. It takes effect only as root; a user without an account is refused.
	Account func(user string) (Account, bool)

	// Limits bind each session.
	Limits Limits

	// Cgroup is a folder of a control group (version 2) that this process may write to; each session gets a group below
	// it. Empty or unusable: no groups, which Host.Warnings says when one was named.
	Cgroup string

	// Launch is put before the command that starts a tmux server, for example
	// {"systemd-run", "--scope", "--quiet", "--collect"}: under systemd a server must be outside of this process's own
	// unit (or that unit have KillMode=process), or a restart ends all shells.
	Launch []string

	// MaxPerUser and MaxTotal bound the sessions: 1 and 100 when 0.
	MaxPerUser, MaxTotal int

	// CreateBurst new shells a user may have at once, and one more every CreateEvery: 6 and 10 s when 0. A shell that
	// its user ends and that is started again counts.
	CreateBurst int
	CreateEvery time.Duration

	// Width and Height of a session's terminal, in cells: 200 and 50 when 0.
	Width, Height int

	// IncompleteAfter is how long a command may want more text (an open quote) before it is interrupted: 2 s when 0.
	IncompleteAfter time.Duration

	// ReplyTimeout bounds the wait for tmux's answer, StartTimeout that for a new shell's first prompt: 5 s and 15 s
	// when 0.
	ReplyTimeout, StartTimeout time.Duration

	// MaxText is the longest command in bytes: 32 KiB when 0.
	MaxText int

	// MaxBacklog is how many bytes of one command's output wait for a slow OnOutput or OnEvent; past it the first
	// MaxBacklog and the last KeepTail bytes are kept. 4 MiB and 1 MiB when 0.
	MaxBacklog, KeepTail int

	// OnEvent is called with what happens outside of Run, for each session in order, from one goroutine a session. It
	// may block; what comes meanwhile is kept within MaxBacklog. Nil drops the events.
	OnEvent func(Event)

	// Now is the clock; time.Now when nil.
	Now func() time.Time

	// Log takes what an operator should know; nothing when nil. No text of commands or output is logged.
	Log *slog.Logger
}

// Account is an operating system user. It needs no entry in the password file.
type Account struct {
	UID, GID uint32
	Name     string // USER and LOGNAME of the session; "u<uid>" when empty
	Home     string // an existing folder; one inside the session's when empty
	// Exclusive says that this uid has no other use than this user's sessions: closing one ends every process of it.
	Exclusive bool
}

// Limits bind one session. A zero is no limit.
type Limits struct {
	Processes int   // of the account (RLIMIT_NPROC; only under an account), and of the control group
	OpenFiles int   // a process
	FileSize  int64 // bytes, one file
	Memory    int64 // bytes: address space of one process, and all of the control group
}

// DefaultLimits suit a person's shell: 512 processes, 4,096 files, 16 GiB a file, 8 GiB of address space.
var DefaultLimits = Limits{Processes: 512, OpenFiles: 4096, FileSize: 16 << 30, Memory: 8 << 30}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (c Config) withDefaults() Config {
	set := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	wait := func(p *time.Duration, v time.Duration) {
		if *p <= 0 {
			*p = v
		}
	}
	text := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	set(&c.MaxPerUser, 1)
	set(&c.MaxTotal, 100)
	set(&c.CreateBurst, 6)
	set(&c.Width, 200)
	set(&c.Height, 50)
	set(&c.MaxText, 32<<10)
	set(&c.MaxBacklog, 4<<20)
	set(&c.KeepTail, 1<<20)
	wait(&c.CreateEvery, 10*time.Second)
	wait(&c.IncompleteAfter, 2*time.Second)
	wait(&c.ReplyTimeout, 5*time.Second)
	wait(&c.StartTimeout, 15*time.Second)
	text(&c.Tmux, "tmux")
	text(&c.Shell, "bash")
	text(&c.Path, defaultPath)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

var userPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,48}$`)

func checkUser(user string) error {
	if !userPattern.MatchString(user) {
		return fault.New(fault.Invalid, "a shell user's id has 1 to 48 letters, digits, _ or -, not %q", cut(user, 60))
	}
	return nil
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}
