package tmux

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// BenchmarkEcho measures "echo hi": from the call until its output and its end are known. raw is the same shell with the
// same marks on a pseudo-terminal of this process, without tmux: the floor on this machine at this moment.
func BenchmarkEcho(b *testing.B) {
	b.Run("tmux", func(b *testing.B) {
		s := open(b, Config{}).session("17")
		percentiles(b, func() {
			var out []byte
			o, err := s.Run(b.Context(), Command{ID: "b", Text: "echo hi", OnOutput: func(p Output) { out = append(out, p.Data...) }})
			if err != nil || !o.Finished || string(out) != "hi\r\n" {
				b.Fatalf("%v %+v %q", err, o, out)
			}
		})
	})
	b.Run("raw", func(b *testing.B) {
		host := open(b, Config{}).Host
		s := newSession(host, "raw", "raw", nil)
		if err := s.makeFolder(); err != nil {
			b.Fatal(err)
		}
		s.newShell()
		if err := s.writeStart(); err != nil {
			b.Fatal(err)
		}
		master := rawShell(b, s.path(fileStart))
		buf := make([]byte, 64<<10)
		var got []byte
		until := func(mark string) {
			for !bytes.Contains(got, []byte(mark)) {
				n, err := master.Read(buf)
				if err != nil {
					b.Fatal(err)
				}
				got = append(got, buf[:n]...)
			}
		}
		until("\x1b[?2004h")
		percentiles(b, func() {
			got = got[:0]
			if _, err := master.Write(pasteBytes("echo hi")); err != nil {
				b.Fatal(err)
			}
			until(";D;0;")
			// As the next Run does: readline must be ready.
			until("\x1b[?2004h")
		})
	})
}

func percentiles(b *testing.B, one func()) {
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		one()
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	ms := func(p int) float64 { return float64(took[min(len(took)-1, len(took)*p/100)].Microseconds()) / 1000 }
	b.ReportMetric(ms(50), "p50-ms")
	b.ReportMetric(ms(99), "p99-ms")
}

func rawShell(b *testing.B, script string) *os.File {
	b.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		b.Fatal(err)
	}
	var n, unlock int32
	for _, c := range []struct {
		req uintptr
		arg *int32
	}{{syscall.TIOCSPTLCK, &unlock}, {syscall.TIOCGPTN, &n}} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, master.Fd(), c.req, uintptr(unsafe.Pointer(c.arg))); errno != 0 {
			b.Fatal(errno)
		}
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", script)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	_ = slave.Close()
	b.Cleanup(func() {
		_ = master.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return master
}

// BenchmarkStart measures a new session, from nothing to its prompt.
func BenchmarkStart(b *testing.B) {
	r := open(b, Config{CreateBurst: 1 << 30})
	percentiles(b, func() {
		s, err := r.Session(b.Context(), "17")
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	})
}

// BenchmarkSnapshot measures a look at what changes the meaning of commands: there are two for each command.
func BenchmarkSnapshot(b *testing.B) {
	s := open(b, Config{}).session("17")
	for _, again := range []bool{false, true} {
		b.Run(map[bool]string{false: "asked", true: "unchanged"}[again], func(b *testing.B) {
			for b.Loop() {
				if !again {
					s.mu.Lock()
					s.stir()
					s.mu.Unlock()
				}
				if _, err := s.Snapshot(within(b)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
