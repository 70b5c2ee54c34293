package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const canBeBare = true

// bareShell is a bash on a pseudo-terminal of this process: no prompt, no line editing, no echo of what is typed. It is
// the floor for a command that is typed into a shell and whose output is read from its terminal.
type bareShell struct {
	master *os.File
	cmd    *exec.Cmd
	buf    []byte
	got    []byte
}

func newBareShell() (*bareShell, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	b := &bareShell{master: master, buf: make([]byte, 64<<10)}
	if err := b.start(); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bareShell) start() error {
	fd := int(b.master.Fd()) // blocking from here on: nothing but reading and writing stands between bash and the clock
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err != nil {
		return err
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer slave.Close() //nolint:errcheck // bash has its own
	state, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		return err
	}
	state.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, state); err != nil {
		return err
	}
	b.cmd = exec.Command("bash", "--norc", "--noprofile", "--noediting", "-i") //nolint:noctx // ended by close
	b.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PS1=", "TERM=dumb", "HISTFILE="}
	b.cmd.Stdin, b.cmd.Stdout, b.cmd.Stderr = slave, slave, slave
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return b.cmd.Start()
}

// echo has the shell print word and gives the time from the typing of the line until the word was read.
func (b *bareShell) echo(word string) (time.Duration, error) {
	line, want := []byte("echo "+word+"\n"), []byte(word+"\r\n")
	b.got = b.got[:0]
	began := time.Now()
	if _, err := b.master.Write(line); err != nil {
		return 0, err
	}
	for !bytes.Contains(b.got, want) {
		n, err := b.master.Read(b.buf)
		if err != nil {
			return 0, err
		}
		b.got = append(b.got, b.buf[:n]...)
	}
	return time.Since(began), nil
}

func (b *bareShell) close() {
	_ = b.master.Close()
	if b.cmd != nil && b.cmd.Process != nil {
		_ = b.cmd.Process.Kill() // it ends with its terminal
		_ = b.cmd.Wait()
	}
}
