package tmux

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// procStat is the part of /proc/PID/stat that is used. It is readable for every process.
type procStat struct {
	pid, ppid, pgrp, session, tty, tpgid int
	state                                byte
	name                                 string
	start                                uint64 // clock ticks after boot; with the pid it names a process for good
}

func readStat(pid int) (procStat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, err
	}
	// The name may contain anything, also blanks and brackets.
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return procStat{}, errors.New("odd stat line")
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 20 {
		return procStat{}, errors.New("short stat line")
	}
	num := func(i int) int { v, _ := strconv.Atoi(f[i]); return v }
	start, _ := strconv.ParseUint(f[19], 10, 64)
	return procStat{pid: pid, state: f[0][0], name: string(b[open+1 : end]), ppid: num(1), pgrp: num(2), session: num(3),
		tty: num(4), tpgid: num(5), start: start}, nil
}

// processOwner gives the user a process runs as.
func processOwner(pid int) (uint32, error) {
	info, err := os.Stat("/proc/" + strconv.Itoa(pid))
	if err != nil {
		return 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	return st.Uid, nil
}

// ttyPath gives the device of a terminal number, for pseudo-terminals only: the number comes from a process that its
// user controls.
func ttyPath(dev int) (string, bool) {
	major := (dev >> 8) & 0xfff
	minor := (dev & 0xff) | ((dev >> 12) & 0xfff00)
	if major < 136 || major > 143 {
		return "", false
	}
	return fmt.Sprintf("/dev/pts/%d", (major-136)<<20+minor), true
}

// look is what one look at a session's terminal shows.
type look struct {
	shell           procStat
	shellForeground bool
	canonical, echo bool
	tty             string
}

// lookAt examines the terminal of a shell.
func lookAt(shellPID int) (look, error) {
	st, err := readStat(shellPID)
	if err != nil {
		return look{}, err
	}
	l := look{shell: st, shellForeground: st.tpgid == st.pgrp}
	path, ok := ttyPath(st.tty)
	if !ok {
		return l, errors.New("the shell has no pseudo-terminal")
	}
	l.tty = path
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return l, err
	}
	defer func() { _ = unix.Close(fd) }()
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return l, err
	}
	l.canonical = t.Lflag&unix.ICANON != 0
	l.echo = t.Lflag&unix.ECHO != 0
	return l, nil
}

const maxGroup = 512

// foregroundGroup lists the processes of the terminal's foreground group, its leader first, among the shell and what
// descends from it.
func (l look) foregroundGroup() []procStat {
	var group []procStat
	if st, err := readStat(l.shell.tpgid); err == nil && st.pgrp == l.shell.tpgid && st.tty == l.shell.tty {
		group = append(group, st)
	}
	seen := map[int]bool{l.shell.tpgid: true}
	queue := []int{l.shell.pid}
	for i := 0; i < len(queue) && i < maxGroup; i++ {
		pid := queue[i]
		if st, err := readStat(pid); err == nil && st.pgrp == l.shell.tpgid && !seen[pid] {
			seen[pid] = true
			group = append(group, st)
		}
		queue = append(queue, children(pid)...)
	}
	return group
}

func children(pid int) (pids []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range files[:min(len(files), 64)] {
		b, _ := os.ReadFile(f)
		for _, s := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(s); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// readsTerminal says whether a process sleeps in a read of the terminal. The exact answer, /proc/PID/syscall, is refused
// for processes of others and under Yama; the place where it sleeps is a good hint then.
func readsTerminal(pid int, tty string) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks[:min(len(tasks), 16)] {
		b, err := os.ReadFile(task + "/syscall")
		if err == nil {
			f := strings.Fields(string(b))
			if len(f) < 2 || f[0] != strconv.Itoa(unix.SYS_READ) {
				continue
			}
			fd, err := strconv.ParseUint(strings.TrimPrefix(f[1], "0x"), 16, 64)
			if err != nil {
				continue
			}
			if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); err == nil && (to == tty || to == "/dev/tty") {
				return true
			}
			continue
		}
		if b, err := os.ReadFile(task + "/wchan"); err == nil {
			if w := string(b); w == "wait_woken" || w == "n_tty_read" {
				return true
			}
		}
	}
	return false
}

// foreign says whether a process belongs to another user, so that it cannot be seen what it does.
func foreign(pid int) bool {
	owner, err := processOwner(pid)
	return err == nil && os.Geteuid() != 0 && owner != uint32(os.Geteuid())
}

// process describes a program for people.
func process(st procStat) Process {
	p := Process{PID: st.pid, Name: st.name}
	f, err := os.Open("/proc/" + strconv.Itoa(st.pid) + "/cmdline")
	if err != nil {
		return p
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, 4096)
	n, _ := f.Read(buf)
	for i, arg := range strings.Split(strings.TrimRight(string(buf[:n]), "\x00"), "\x00") {
		if i == 64 {
			break
		}
		p.Args = append(p.Args, strings.ToValidUTF8(arg, "\ufffd"))
	}
	return p
}

// judge makes the published state of what was seen. raw says that the foreground takes keys.
func (l look) judge(atPrompt bool) (state PtyState, password, raw bool, front []procStat) {
	if l.shellForeground {
		front = []procStat{l.shell}
		switch {
		case !l.canonical:
			if atPrompt {
				return Idle, false, false, front
			}
			return Running, false, false, front
		case readsTerminal(l.shell.pid, l.tty): // read, read -s
			return Blocked, !l.echo, false, front
		case atPrompt: // between the mark and readline's own settings
			return Idle, false, false, front
		default:
			return Running, false, false, front
		}
	}
	front = l.foregroundGroup()
	if !l.canonical {
		return Running, false, true, front
	}
	for _, st := range front {
		if st.state != 'S' {
			continue
		}
		// Who only sleeps with the echo off asks for nothing: what is typed then would be the shell's next command. A program
		// of another user (sudo, su) cannot be looked into.
		if readsTerminal(st.pid, l.tty) || !l.echo && foreign(st.pid) {
			return Blocked, !l.echo, false, front
		}
	}
	return Running, false, false, front
}

// deathOf gives a channel that is closed when the process ends, and a function that gives up waiting.
func deathOf(pid int) (<-chan struct{}, func(), error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	dead := make(chan struct{})
	go func() {
		err := raw.Read(func(fd uintptr) bool {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(p, 0)
			return err != nil && !errors.Is(err, unix.EINTR) || n > 0
		})
		if err == nil {
			close(dead)
		}
		_ = f.Close()
	}()
	return dead, func() { _ = f.Close() }, nil
}
