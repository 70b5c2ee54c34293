package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// rig is what all groups need: the programs, built once, and a folder that goes when the run ends.
type rig struct {
	o        options
	dir      string
	root     string // of the product's tree
	butler   string // program
	model    *process
	modelURL string
	progress io.Writer
	closers  []func()
	dirs     int
}

func newRig(ctx context.Context, o options, progress io.Writer) (*rig, error) {
	r := &rig{o: o, progress: progress}
	if err := r.prepare(ctx); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *rig) prepare(ctx context.Context) (err error) {
	if r.dir, err = os.MkdirTemp("", "butler-bench-"); err != nil {
		return err
	}
	r.onClose(func() { _ = os.RemoveAll(r.dir) })
	if r.root, err = productRoot(); err != nil {
		return err
	}
	r.say("building")
	if r.butler = r.o.butler; r.butler == "" {
		if r.butler, err = r.build(ctx, "butler", "./services/butler"); err != nil {
			return err
		}
	}
	program, err := r.build(ctx, "modelserver", "./internal/modeltest/cmd/modelserver")
	if err != nil {
		return err
	}
	r.modelURL, err = r.startModel(program)
	return err
}

func (r *rig) onClose(f func()) { r.closers = append(r.closers, f) }

func (r *rig) close() {
	for i := len(r.closers) - 1; i >= 0; i-- {
		r.closers[i]()
	}
	r.closers = nil
}

func (r *rig) say(format string, args ...any) { fmt.Fprintf(r.progress, format+"\n", args...) }

// folder makes a new folder.
func (r *rig) folder() (string, error) {
	r.dirs++
	dir := filepath.Join(r.dir, strconv.Itoa(r.dirs))
	return dir, os.Mkdir(dir, 0o700)
}

// productRoot finds the folder of the product's module, above the one that bench runs in.
func productRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(data, []byte("module github.com/butlerhub/butler\n")) {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("the product's go.mod was not found: run this in the folder bench, as `make bench` does")
		}
		dir = up
	}
}

func (r *rig) build(ctx context.Context, name, pkg string) (string, error) {
	out := filepath.Join(r.dir, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, pkg) //nolint:gosec // constants of this program
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", pkg, err, text)
	}
	return out, nil
}

// startModel runs the scripted model: 20 chunks, at once.
func (r *rig) startModel(program string) (string, error) {
	cmd := exec.Command(program, "--mode", "plain", "--chunks", "20") //nolint:gosec,noctx // built just now; ended by close
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	r.model = &process{cmd: cmd, done: make(chan struct{})}
	line, readErr := bufio.NewReader(out).ReadString('\n')
	go func() {
		_ = cmd.Wait() // it is killed
		close(r.model.done)
	}()
	r.onClose(r.model.kill)
	if readErr != nil {
		return "", fmt.Errorf("the scripted model does not start: %w", readErr)
	}
	return strings.TrimSpace(line), nil
}

// process is a program that was started here.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	log  string        // file
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill is kill -9, and waits.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// stop is SIGTERM, and waits until the process has ended.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(30 * time.Second):
		p.kill()
		return errors.New("the process did not end within 30 s of SIGTERM")
	}
}

// rss gives the resident memory in bytes.
func (p *process) rss(ctx context.Context) (int64, error) {
	out, err := exec.CommandContext(ctx, "ps", "-o", "rss=", "-p", strconv.Itoa(p.pid())).Output() //nolint:gosec // a number
	if err != nil {
		return 0, fmt.Errorf("ps: %w", err)
	}
	kib, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	return kib << 10, err
}

// cpu gives the processor time that a process used so far; 0 where the system does not tell it in /proc.
func cpu(pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in brackets, may hold anything; utime and stime are the 12th and 13th fields behind it, in 1/100 s.
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

func (p *process) tail() string {
	data, _ := os.ReadFile(p.log)
	return string(data[max(0, len(data)-4<<10):])
}

const (
	adminName     = "admin"
	adminPassword = "correct-horse-battery"
)

// product is a running Butler.
type product struct {
	*process
	dir      string
	http     string // host:port
	ops      string
	nats     string
	readyIn  time.Duration
	program  string
	settings []string
}

// newProduct prepares a Butler with a data folder of its own, or in dir when that is given; start starts it.
func (r *rig) newProduct(program, dir string, settings ...string) (*product, error) {
	b := &product{program: program, dir: dir, settings: settings}
	if dir == "" {
		var err error
		if b.dir, err = r.folder(); err != nil {
			return nil, err
		}
	}
	for _, addr := range []*string{&b.http, &b.ops, &b.nats} {
		var err error
		if *addr, err = freeAddr(); err != nil {
			return nil, err
		}
	}
	b.settings = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "TMPDIR=" + os.TempDir(),
		"BUTLER_DATA_DIR=" + b.dir, "LOG_LEVEL=warn", "BUTLER_LOG_FORMAT=text",
		"BUTLER_HTTP_ADDR=" + b.http, "BUTLER_OPS_ADDR=" + b.ops, "BUTLER_NATS_ADDR=" + b.nats,
		"BUTLER_BASE_URL=" + r.modelURL, "BUTLER_MODEL=test-model", "BUTLER_API_TOKEN=none-needed",
		"INITIAL_ADMIN_USER=" + adminName, "INITIAL_ADMIN_PASS=" + adminPassword,
		// The least that is allowed: many people sign in before the measuring begins.
		"BUTLER_PASSWORD_MEMORY_KIB=8192", "BUTLER_PASSWORD_TIME=1",
	}, settings...)
	r.onClose(func() {
		if b.process != nil {
			b.kill()
		}
	})
	return b, nil
}

// start runs it and returns when it is ready; readyIn is how long that took.
func (b *product) start(ctx context.Context, args ...string) error {
	logFile := filepath.Join(b.dir, "bench.log")
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()                                      //nolint:errcheck // the process has its own
	cmd := exec.Command(b.program, args...)                //nolint:gosec,noctx // the product; ended by close
	cmd.Env, cmd.Stdout, cmd.Stderr = b.settings, out, out //nolint:gosec // settings of this program
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &process{cmd: cmd, done: make(chan struct{}), log: logFile}
	b.process = p
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(p.done)
	}()
	for {
		// Ready is what people would call so: the gateway serves them, and nothing is missing.
		missing := problem(ctx, b.http+"/api/ping")
		if missing == nil {
			missing = problem(ctx, b.ops+"/ready")
		}
		if missing == nil {
			b.readyIn = time.Since(began)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
			return fmt.Errorf("%s ended while it started:\n%s", filepath.Base(b.program), p.tail())
		case <-time.After(2 * time.Millisecond):
		}
		if time.Since(began) > startWithin {
			return fmt.Errorf("%s is not ready after %v: %w\n%s", filepath.Base(b.program), startWithin, missing, p.tail())
		}
	}
}

var probes = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// startWithin is how long a start may take, on a machine that is busy with other things.
const startWithin = 2 * time.Minute

// problem asks an address and says why it is not well; nil when it is.
func problem(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address, nil)
	if err != nil {
		return err
	}
	resp, err := probes.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s: %s", address, resp.Status, bytes.TrimSpace(body))
	}
	return nil
}

// freeAddr gives an address that nobody listens on, with a port below those that the system gives to clients.
func freeAddr() (string, error) {
	for range 1000 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(15000+rand.IntN(17000)))
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
		if err != nil {
			continue
		}
		_ = l.Close()
		return addr, nil
	}
	return "", errors.New("no free port was found")
}

// pause waits, at most until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// loadAverage gives the machine's load over the last minute; -1 where the system does not tell it in /proc.
func loadAverage() float64 {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return -1
	}
	one, _, _ := strings.Cut(string(data), " ")
	v, err := strconv.ParseFloat(one, 64)
	if err != nil {
		return -1
	}
	return v
}

// processorName names the processor, as far as the system tells it in /proc.
func processorName() string {
	data, _ := os.ReadFile("/proc/cpuinfo") // "" then
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
