package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// patience bounds every wait of these tests; on a machine that is busy with other tests everything takes long.
const patience = 60 * time.Second

// built is the program, built once for all tests, as users have it: without the race detector.
var built = sync.OnceValues(func() (string, error) {
	file := filepath.Join(builtDir, "butler")
	cmd := exec.Command("go", "build", "-race=false", "-ldflags", "-X main.version=v0.0.0-test", "-o", file, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return file, err
})

var builtDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "butler-test-")
	if err != nil {
		panic(err)
	}
	builtDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// home is a person's account: a folder with data, settings and sign-ins, and an environment of its own.
type home struct {
	t    *testing.T
	dir  string
	more []string // environment, the later wins
}

func newHome(t *testing.T, more ...string) *home {
	return &home{t: t, dir: t.TempDir(), more: more}
}

func (h *home) data() string { return filepath.Join(h.dir, "data") }

func (h *home) environ() []string {
	return append([]string{
		"HOME=" + h.dir, "PATH=" + os.Getenv("PATH"), "BUTLER_DATA_DIR=" + h.data(), "BUTLER_HTTP_ADDR=127.0.0.1:0",
		"BUTLER_OPS_ADDR=127.0.0.1:0", "BUTLER_NATS_ADDR=127.0.0.1:0", "BUTLER_PASSWORD_MEMORY_KIB=8192",
		"BUTLER_PASSWORD_TIME=1",
	}, h.more...)
}

// result is what a command did.
type result struct {
	code     int
	out, err string
}

// run runs a command within this process.
func (h *home) run(stdin string, args ...string) result {
	h.t.Helper()
	var out, errs bytes.Buffer
	code := newApp(strings.NewReader(stdin), &out, &errs, h.environ()).run(args)
	return result{code, out.String(), errs.String()}
}

// ok runs a command that must succeed and gives its output.
func (h *home) ok(stdin string, args ...string) string {
	h.t.Helper()
	r := h.run(stdin, args...)
	require.Zero(h.t, r.code, "butler %s\n%s%s", strings.Join(args, " "), r.out, r.err)
	return r.out
}

// json runs a command that must succeed with --json and reads its output.
func (h *home) json(into any, stdin string, args ...string) {
	h.t.Helper()
	out := h.ok(stdin, append(args, "--json")...)
	require.NoError(h.t, json.Unmarshal([]byte(out), into), out)
}

// daemon is a running process of the built program.
type daemon struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string // of the gateway, once it is ready
	line string // that said so

	mu     sync.Mutex
	out    []string
	errs   bytes.Buffer
	lines  chan string
	exited chan struct{}
}

func (h *home) start(args ...string) *daemon {
	h.t.Helper()
	program, err := built()
	require.NoError(h.t, err)
	d := &daemon{t: h.t, cmd: exec.Command(program, args...), lines: make(chan string, 100), exited: make(chan struct{})}
	d.cmd.Env = h.environ()
	d.cmd.Dir = h.dir
	stdout, err := d.cmd.StdoutPipe()
	require.NoError(h.t, err)
	d.cmd.Stderr = &lockedWriter{mu: &d.mu, w: &d.errs}
	require.NoError(h.t, d.cmd.Start())
	go func() {
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			d.mu.Lock()
			d.out = append(d.out, lines.Text())
			d.mu.Unlock()
			select {
			case d.lines <- lines.Text():
			default:
			}
		}
		_ = d.cmd.Wait()
		close(d.exited)
	}()
	h.t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-d.exited
		if h.t.Failed() {
			h.t.Logf("%s: %s\n%s", strings.Join(args, " "), strings.Join(d.out, "\n"), d.stderr())
		}
	})
	return d
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func (d *daemon) stderr() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.errs.String()
}

var readyLine = regexp.MustCompile(`^Butler is ready: (http://\S+) — (.*)$`)

// ready waits until `butler up` says that it is.
func (d *daemon) ready() *daemon {
	d.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case line := <-d.lines:
			if m := readyLine.FindStringSubmatch(line); m != nil {
				d.url, d.line = m[1], m[2]
				return d
			}
		case <-d.exited:
			d.t.Fatalf("it ended instead: %s\n%s", d.cmd.ProcessState, d.stderr())
		case <-timeout:
			d.t.Fatalf("it is not ready after %s", patience)
		}
	}
}

// wait waits for the process to end and gives its exit code.
func (d *daemon) wait() int {
	d.t.Helper()
	select {
	case <-d.exited:
		return d.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		d.t.Fatalf("it has not ended after %s", patience)
		return -1
	}
}

func (d *daemon) signal(s syscall.Signal) {
	d.t.Helper()
	require.NoError(d.t, d.cmd.Process.Signal(s))
}

// up starts `butler up`, waits until it is ready, and lets the home's commands use it, signed in as its administrator.
func (h *home) up(args ...string) *daemon {
	h.t.Helper()
	d := h.start(append([]string{"up"}, args...)...).ready()
	h.more = append(h.more, "BUTLER_SERVER="+d.url)
	h.ok("", "login", "--initial")
	return d
}

// freeAddr gives an address that was free a moment ago, for what must come back under the same one.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// eventually waits for what has no signal of its own, such as an answer of another process.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	assert.Eventually(t, f, patience, 20*time.Millisecond, what)
}

// get asks a URL and gives status and body; 0 when it cannot be reached.
func get(url string) (int, string) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}
