package tmux

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A session's folder. What this process decides by (session.json, progress) is its own; the shell's user can read the
// start files, append to the output, and owns only run/, where the socket is.
const (
	fileConf     = "tmux.conf"
	fileStart    = "start.sh"
	fileRC       = "rc.bash"
	fileNonce    = "nonce"
	fileQuery    = "query"
	fileOutput   = "output"
	fileSession  = "session.json"
	fileProgress = "progress"
	dirRun       = "run"
	dirHome      = "home"
)

// record is what finds a session again. It is written when a shell starts.
type record struct {
	User       string    `json:"user"`
	Number     int       `json:"number"`
	Generation string    `json:"generation"`
	Nonce      string    `json:"nonce"`
	Socket     string    `json:"socket"`
	Server     int       `json:"server_pid"`
	ServerAge  uint64    `json:"server_start"` // of /proc/PID/stat
	Created    time.Time `json:"created"`
	Cgroup     string    `json:"cgroup,omitempty"`
}

// progress says up to where the output was given on, and what was going on there. It survives the death of this
// process, not that of the machine, which ends the shells as well: so it is not synced.
type progress struct {
	Offset  int64     `json:"offset"`
	Phase   phase     `json:"phase"`
	Full    bool      `json:"full_screen,omitempty"` // on the alternate screen
	Command string    `json:"command,omitempty"`
	Sent    time.Time `json:"sent,omitzero"`
	Started bool      `json:"started,omitempty"`
	Bytes   int64     `json:"bytes,omitempty"`
	Outcome *Outcome  `json:"outcome,omitempty"` // of Command, once it ended
}

func newGeneration() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80 // RFC 9562, version 4
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

func newNonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// quote makes one word of s for a POSIX shell, and for tmux's parser.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// makeFolder lays out an empty session folder.
func (s *Session) makeFolder() error {
	if err := os.RemoveAll(s.dir); err != nil {
		return err
	}
	mode := os.FileMode(0o700)
	if s.account != nil {
		mode = 0o710
	}
	if err := s.mkdir("", mode, false); err != nil {
		return err
	}
	if err := s.mkdir(dirRun, 0o700, true); err != nil {
		return err
	}
	if s.account != nil && s.account.Home == "" {
		if err := s.mkdir(dirHome, 0o700, true); err != nil {
			return err
		}
	}
	if err := s.writeFile(fileOutput, "", 0o600); err != nil {
		return err
	}
	if s.account != nil {
		if err := os.Lchown(s.path(fileOutput), int(s.account.UID), int(s.account.GID)); err != nil {
			return err
		}
	}
	return s.writeFile(fileConf, s.tmuxConf(), 0o640)
}

func (s *Session) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Session) mkdir(name string, mode os.FileMode, theirs bool) error {
	p := s.path(name)
	if err := os.Mkdir(p, 0o700); err != nil {
		return err
	}
	if s.account != nil {
		uid := os.Getuid()
		if theirs {
			uid = int(s.account.UID)
		}
		if err := os.Lchown(p, uid, int(s.account.GID)); err != nil {
			return err
		}
	}
	return os.Chmod(p, mode)
}

// writeFile replaces a file that this process owns and the session's user may read, when mode says so.
func (s *Session) writeFile(name, text string, mode os.FileMode) error {
	tmp := s.path("." + name)
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	if s.account != nil {
		if err := os.Lchown(tmp, os.Getuid(), int(s.account.GID)); err != nil {
			return err
		}
	}
	if err := os.Chmod(tmp, mode); err != nil {
		return err
	}
	return os.Rename(tmp, s.path(name))
}

func (s *Session) writeRecord() error {
	b, err := json.Marshal(s.rec)
	if err != nil {
		return err
	}
	return s.writeFile(fileSession, string(b), 0o600)
}

func readRecord(dir string) (record, error) {
	var r record
	b, err := os.ReadFile(filepath.Join(dir, fileSession))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(b, &r)
}

// openOutput opens the output file, which the session's user owns but cannot replace.
func (s *Session) openOutput() (*os.File, error) {
	f, err := os.OpenFile(s.path(fileOutput), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("the output file is not a regular file")
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func saveProgress(f *os.File, p progress) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(fmt.Appendf(nil, "%08x%s", len(b), b), 0)
	return err
}

func loadProgress(f *os.File) (progress, error) {
	var p progress
	head := make([]byte, 8)
	if _, err := f.ReadAt(head, 0); err != nil {
		return p, err
	}
	var n int
	if _, err := fmt.Sscanf(string(head), "%08x", &n); err != nil || n <= 0 || n > 64<<10 {
		return p, errors.New("odd progress file")
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 8); err != nil && !errors.Is(err, io.EOF) {
		return p, err
	}
	return p, json.Unmarshal(b, &p)
}

// freeOutput gives the blocks of output that was handled back to the file system. Cutting the file would race with what
// is appended at that moment; a hole does not, and offsets stay what they are.
func freeOutput(f *os.File, from, to int64) error {
	if to <= from {
		return nil
	}
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
}

func (s *Session) credential() *syscall.Credential {
	if s.account == nil {
		return nil
	}
	return &syscall.Credential{Uid: s.account.UID, Gid: s.account.GID, Groups: []uint32{}}
}

func (s *Session) home() string {
	switch {
	case s.account == nil:
		return s.host.cfg.Home
	case s.account.Home != "":
		return s.account.Home
	default:
		return s.path(dirHome)
	}
}

// environment is all that a session's programs are given.
func (s *Session) environment() []string {
	user := os.Getenv("USER")
	if s.account != nil {
		user = s.account.Name
		if user == "" {
			user = fmt.Sprintf("u%d", s.account.UID)
		}
	}
	env := []string{
		"HOME=" + s.home(), "SHELL=" + s.host.shell, "PATH=" + s.host.cfg.Path, "LANG=C.UTF-8",
		"TERM=" + s.host.term,
	}
	if user != "" {
		env = append(env, "USER="+user, "LOGNAME="+user)
	}
	if tz := os.Getenv("TZ"); tz != "" {
		env = append(env, "TZ="+tz)
	}
	return env
}

// marker is in the environment of all that a session starts: it finds what was left behind by setsid and nohup.
func marker(generation string) string { return "SHELL_SESSION_ID=" + generation }

func (s *Session) tmuxConf() string {
	return fmt.Sprintf(`set -s exit-empty off
set -s escape-time 0
set -s set-clipboard off
set -s message-limit 20
set -s buffer-limit 2
set -g default-terminal %s
set -g default-shell %s
set -g default-size %dx%d
set -g history-limit 2000
set -g remain-on-exit on
set -g update-environment ''
set -g prefix None
set -g prefix2 None
set -g status off
set -g mouse off
set -g bell-action none
set -g activity-action none
set -g silence-action none
set -g set-titles off
set -g allow-rename off
set -g automatic-rename off
set -g lock-after-time 0
set -g lock-command true
set -gq allow-passthrough off
set -gq remain-on-exit-format ''
unbind -a -T prefix
unbind -a -T root
unbind -a -T copy-mode
unbind -a -T copy-mode-vi
`, s.host.term, quote(s.host.shell), s.host.cfg.Width, s.host.cfg.Height)
}

// startScript sets the limits and replaces itself by the shell, with nothing in the environment but what is named.
func (s *Session) startScript() string {
	var b strings.Builder
	b.WriteString("#!/bin/sh\nunset TMUX TMUX_PANE\n")
	l := s.host.cfg.Limits
	limit := func(flag string, n int64) {
		if n > 0 {
			fmt.Fprintf(&b, "ulimit %s %d || exit 125\n", flag, n)
		}
	}
	if s.account != nil { // the count is of all processes of the user
		// dash has it as -p, bash as -u.
		if l.Processes > 0 {
			fmt.Fprintf(&b, "ulimit -u %d 2>/dev/null || ulimit -p %d || exit 125\n", l.Processes, l.Processes)
		}
	}
	limit("-n", int64(l.OpenFiles))
	limit("-f", l.FileSize/512)
	limit("-v", l.Memory/1024)
	fmt.Fprintf(&b, "cd %s 2>/dev/null || cd /\nexec env -i", quote(s.home()))
	for _, e := range append(s.environment(), marker(s.rec.Generation)) {
		b.WriteString(" " + quote(e))
	}
	fmt.Fprintf(&b, " %s --noprofile --rcfile %s -i\n", quote(s.host.shell), quote(s.path(fileRC)))
	return b.String()
}

// meaningful are the variables that change what commands mean: which programs are found, what is loaded into them, what
// they run in turn.
var meaningful = []string{
	"PATH", "IFS", "HOME", "USER", "CDPATH", "ENV", "BASH_ENV", "GLOBIGNORE", "TMPDIR",
	"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GCONV_PATH", "EDITOR", "VISUAL", "PAGER", "MANPAGER", "LESSOPEN", "LESSCLOSE", "BROWSER",
	"GIT_DIR", "GIT_WORK_TREE", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_PAGER", "GIT_EDITOR", "GIT_EXTERNAL_DIFF", "GIT_EXEC_PATH",
	"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_COUNT", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PERL5LIB", "PERL5OPT",
	"RUBYLIB", "RUBYOPT", "NODE_OPTIONS", "NODE_PATH", "RSYNC_RSH", "TAR_OPTIONS", "MAKEFLAGS", "DOCKER_HOST", "DOCKER_CONTEXT", "KUBECONFIG",
	"GIT_TRACE", "GIT_TRACE2", "GIT_TRACE2_EVENT", "GIT_ASKPASS", "SSH_ASKPASS", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0", "GIT_PROXY_COMMAND",
	"GIT_TEMPLATE_DIR", "GIT_SEQUENCE_EDITOR", "GH_PAGER", "SYSTEMD_PAGER", "SYSTEMD_EDITOR", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS",
	"MAILPATH", "OPENSSL_CONF", "CC", "CXX", "LD", "RUSTC_WRAPPER", "GOFLAGS", "NPM_CONFIG_SCRIPT_SHELL", "npm_config_script_shell",
	"SUDO_EDITOR", "SUDO_ASKPASS", "INPUTRC", "TERMINFO", "XDG_CONFIG_HOME",
}

// startFile is what bash reads. The nonce is a shell variable that is not exported: programs of the session do not get
// it. Marks go to the terminal itself, so that a redirected shell (exec >file) still shows them.
func (s *Session) startFile() string {
	r := strings.NewReplacer("@NONCE@", quote(s.path(fileNonce)), "@QUERY@", quote(s.path(fileQuery)),
		"@VARIABLES@", strings.Join(meaningful, " "))
	return r.Replace(`set +o histexpand
unset HISTFILE
IFS= read -r __butler_n <@NONCE@
__butler_x=$'\036' # between parts; a variable, since the functions' own text is in an answer too
# What was typed while a program ran and did not read it is no command: it is thrown away.
__butler_prompt() {
	local __butler_t __butler_c=64
	while ((__butler_c-- > 0)) && builtin read -t 0 __butler_t; do
		builtin read -r -s -d '' -n 4096 -t 0.01 __butler_t || :
	done </dev/tty
	builtin printf '\033]133;%s;D;%s;%s\007' "$__butler_n" "$1" "${PWD@Q}" >/dev/tty
}
# The last argument of both functions is there to leave $_ as it was.
# Answers questions about this shell; bound to a key sequence that nothing else uses, and shows nothing.
__butler_query() {
	local __butler_i __butler_k __butler_w __butler_r=
	{ IFS= builtin read -r __butler_i; IFS= builtin read -r __butler_k; IFS= builtin read -r __butler_w; } <@QUERY@
	case $__butler_k in
	resolve)
		__butler_r=$(builtin type -t -- "$__butler_w" || :)
		case $__butler_r in
		alias) __butler_r+=$__butler_x${BASH_ALIASES[$__butler_w]} ;;
		function) __butler_r+=$__butler_x$(builtin declare -f -- "$__butler_w" || :) ;;
		file) __butler_r+=$__butler_x$(builtin type -P -- "$__butler_w" || :) ;;
		esac
		;;
	snapshot)
		# Each line that a builtin prints is a system call that may wake the reader: so options are asked of variables.
		# $BASHOPTS is only made anew when an option is set: set -o posix changes some without.
		__butler_r=$(
			builtin shopt -s checkwinsize
			builtin printf '%s\n%s\n' "$SHELLOPTS" "$BASHOPTS"
			builtin trap -p || :; builtin bind -s || :; builtin bind -X || :; builtin umask || :; builtin enable -n || :
			builtin printf %s "$__butler_x"
			for __butler_w in @VARIABLES@; do
				[[ -z ${!__butler_w+x} ]] || builtin printf '%s\035%s\034' "$__butler_w" "${!__butler_w}"
			done
			builtin printf %s "$__butler_x"; builtin declare -F || :
			builtin printf %s "$__butler_x"; builtin alias -p || :
		)
		;;
	functions)
		__butler_r=$(
			builtin set -f
			IFS=$'\n'
			for __butler_w in $(builtin compgen -A function); do
				builtin printf '%s\035' "$__butler_w"; builtin declare -f -- "$__butler_w"; builtin printf '\034'
			done
		)
		;;
	environment) __butler_r=$(builtin compgen -e || :) ;;
	jobs) __butler_r=$(builtin jobs -l || :) ;;
	ping) __butler_r=$(builtin bind -v || :) ;;
	esac 2>/dev/null
	__butler_r=${__butler_r:0:100000}
	builtin printf '\033]133;%s;R;%s;%s\007' "$__butler_n" "$__butler_i" "${__butler_r@Q}" >/dev/tty
}
INPUTRC=/dev/null
set -o emacs
bind 'set enable-bracketed-paste on'
bind 'set bell-style none'
for __butler_k in emacs vi-insert vi-command; do
	bind -m $__butler_k -x '"\e[7731~": __butler_query "$_"'
done
unset __butler_k
unset INPUTRC
PROMPT_COMMAND='__butler_prompt "$?" "$_"'
PS0=$'\033]133;'$__butler_n$';C\007'
PS1='\[\033]133;'$__butler_n';A\007\]\w \$ \[\033]133;'$__butler_n';B\007\]'
PS2='\[\033]133;'$__butler_n';k\007\]> '
readonly PROMPT_COMMAND PS0 PS2 __butler_n __butler_x
readonly -f __butler_prompt __butler_query
`)
}
