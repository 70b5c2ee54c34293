package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startWithin is how long a process may take to become ready on a machine that is not busy.
const startWithin = 20 * time.Second

// process is a program that the test runs, kills and runs again. Its methods are called from the test's goroutine.
type process struct {
	t    testing.TB
	name string
	path string
	args []string
	env  []string // its whole environment
	ops  string   // host:port of /ready; without it, ready means that addr takes connections
	addr string
	log  string // file

	cmd    *exec.Cmd
	done   chan struct{} // closed when it has ended
	exit   error         // set before done is closed
	killed bool          // its end was wanted
}

// newProcess makes a process that ends with the test, and whose log is shown when the test fails.
func newProcess(t testing.TB, name, path string, args ...string) *process {
	t.Helper()
	dir := t.TempDir()
	if kept := os.Getenv("E2E_LOGS"); kept != "" {
		dir = filepath.Join(kept, strings.ReplaceAll(t.Name(), "/", "_"))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p := &process{t: t, name: name, path: path, args: args, log: filepath.Join(dir, name+".log")}
	t.Cleanup(func() {
		p.end()
		if t.Failed() {
			t.Logf("---- the end of the log of %s:\n%s", name, p.tail(6<<10))
		}
	})
	return p
}

// start runs the program and does not wait.
func (p *process) start() {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	_, _ = fmt.Fprintf(log, "---- start %s\n", time.Now().Format("15:04:05.000"))
	cmd := exec.Command(p.path, p.args...)
	cmd.Env = p.env
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = ownGroup()
	if err := cmd.Start(); err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done, p.exit, p.killed = cmd, done, nil, false
	go func() {
		p.exit = cmd.Wait()
		close(done)
	}()
}

// run starts the program and waits until it is ready. It gives when that was.
func (p *process) run() time.Time {
	p.t.Helper()
	p.start()
	return p.waitReady()
}

// waitReady waits until the process says that it is ready, and gives when that was.
func (p *process) waitReady() time.Time {
	p.t.Helper()
	deadline := time.Now().Add(time.Duration(float64(startWithin) * slack()))
	for {
		ready, missing := p.ready()
		if ready {
			return time.Now()
		}
		select {
		case <-p.done:
			p.t.Fatalf("%s ended while it started: %v\n%s", p.name, p.exit, p.tail(4<<10))
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s is not ready after %v: %s\n%s", p.name, startWithin, missing, p.tail(4<<10))
		}
	}
}

var probes = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// ready asks whether the process is ready, and what it says is missing.
func (p *process) ready() (ok bool, missing string) {
	if p.ops == "" {
		c, err := net.DialTimeout("tcp", p.addr, time.Second)
		if err != nil {
			return false, err.Error()
		}
		_ = c.Close()
		return true, ""
	}
	resp, err := probes.Get("http://" + p.ops + "/ready")
	if err != nil {
		return false, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return resp.StatusCode == http.StatusOK, string(body)
}

// kill is kill -9, of the process that the test started, and waits until it is gone.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.done
}

// stop is SIGTERM; the process must end by itself, properly and soon.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
		if p.exit != nil {
			p.t.Errorf("%s ended with %v after SIGTERM\n%s", p.name, p.exit, p.tail(4<<10))
		}
	case <-time.After(time.Duration(20*slack()) * time.Second):
		p.t.Errorf("%s did not end within 20 s after SIGTERM", p.name)
		p.kill()
	}
}

// pause is SIGSTOP: the process stands still and knows nothing of it. resume lets it go on.
func (p *process) pause()  { p.t.Helper(); p.signal(syscall.SIGSTOP) }
func (p *process) resume() { p.t.Helper(); p.signal(syscall.SIGCONT) }

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if s == syscall.SIGKILL || s == syscall.SIGTERM {
		p.killed = true
	}
	if err := syscall.Kill(-p.cmd.Process.Pid, s); err != nil {
		p.t.Errorf("%s: %v: %v", p.name, s, err)
	}
}

// running says whether the process lives.
func (p *process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// end kills the process at the end of the test, and tells when it had ended by itself.
func (p *process) end() {
	if p.cmd == nil {
		return
	}
	if p.running() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
		return
	}
	if !p.killed {
		p.t.Errorf("%s ended by itself: %v", p.name, p.exit)
	}
}

// memory gives the process's resident memory in bytes.
func (p *process) memory() int64 {
	p.t.Helper()
	out, err := exec.Command("ps", "-o", "rss=", "-p", strconv.Itoa(p.cmd.Process.Pid)).Output()
	if err != nil {
		p.t.Fatalf("ps: %v", err)
	}
	kib, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		p.t.Fatalf("ps: %v", err)
	}
	return kib << 10
}

// metric reads a number of /metrics, 0 when it is not there. name is the whole name with its labels, as it stands there.
func (p *process) metric(name string) float64 {
	p.t.Helper()
	resp, err := probes.Get("http://" + p.ops + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// text gives the whole log of the process.
func (p *process) text() string {
	data, _ := os.ReadFile(p.log)
	return string(data)
}

func (p *process) tail(n int) string {
	text := p.text()
	return text[max(0, len(text)-n):]
}

var ports struct {
	sync.Mutex
	given map[int]bool
}

// freeAddr gives an address that nobody listens on, and that no other test of this run gets. Its port is below the
// range from which the system gives ports to clients, so that it is still free when a killed process starts again.
func freeAddr(t testing.TB) string {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	if ports.given == nil {
		ports.given = map[int]bool{}
	}
	for range 1000 {
		port := 15000 + rand.IntN(17000)
		if ports.given[port] {
			continue
		}
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		_ = l.Close()
		ports.given[port] = true
		return addr
	}
	t.Fatal("no free port was found")
	return ""
}
