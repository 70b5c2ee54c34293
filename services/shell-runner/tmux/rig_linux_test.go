package tmux

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests; nothing is expected to take that long.
const patience = 30 * time.Second

func needTmux(t testing.TB) {
	t.Helper()
	for _, p := range []string{"tmux", "bash"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed: tools/test-deps.sh installs it", p)
		}
	}
}

// folder is a short path (sockets have at most 107 bytes) that other users may enter.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "bsh")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// rig is a host and what it told.
type rig struct {
	*Host
	t      testing.TB
	mu     sync.Mutex
	events []Event
	more   chan struct{}
}

func open(t testing.TB, cfg Config) *rig {
	t.Helper()
	needTmux(t)
	r := &rig{t: t, more: make(chan struct{})}
	if cfg.Dir == "" {
		cfg.Dir = folder(t)
	}
	if cfg.Home == "" {
		cfg.Home = "/tmp"
	}
	if cfg.CreateBurst == 0 {
		cfg.CreateBurst = 100
	}
	cfg.OnEvent = func(e Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, e)
		close(r.more)
		r.more = make(chan struct{})
	}
	h, err := Open(cfg)
	require.NoError(t, err)
	r.Host = h
	t.Cleanup(func() {
		for _, s := range h.Sessions() {
			_ = s.Close(context.Background())
		}
		h.Close()
	})
	return r
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func (r *rig) session(user string) *Session {
	r.t.Helper()
	s, err := r.Session(within(r.t), user)
	require.NoError(r.t, err)
	return s
}

// event waits for one that fits, among all since the start.
func (r *rig) event(what string, fits func(Event) bool) Event {
	r.t.Helper()
	limit := time.After(patience)
	for i := 0; ; {
		r.mu.Lock()
		more := r.more
		for ; i < len(r.events); i++ {
			if fits(r.events[i]) {
				defer r.mu.Unlock()
				return r.events[i]
			}
		}
		r.mu.Unlock()
		select {
		case <-more:
		case <-limit:
			require.FailNow(r.t, "no event: "+what)
		}
	}
}

func kind(k EventKind) func(Event) bool { return func(e Event) bool { return e.Kind == k } }

// told joins the output that came as events for a command.
func (r *rig) told(command string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b bytes.Buffer
	for _, e := range r.events {
		if e.Kind == EventOutput && e.Command == command {
			b.Write(e.Output.Data)
		}
	}
	return b.String()
}

var ids struct {
	sync.Mutex
	n int
}

func newID() string {
	ids.Lock()
	defer ids.Unlock()
	ids.n++
	return fmt.Sprintf("c%d", ids.n)
}

// run runs a command to its end; the output has plain line ends.
func run(t testing.TB, s *Session, text string) (string, Outcome) {
	t.Helper()
	var b bytes.Buffer
	o, err := s.Run(within(t), Command{ID: newID(), Text: text, OnOutput: func(p Output) { b.Write(p.Data) }})
	require.NoError(t, err, text)
	require.True(t, o.Finished, "%q did not end: %q", text, b.String())
	return strings.ReplaceAll(b.String(), "\r\n", "\n"), o
}

// begin runs a command in the background of the test, for input while it runs.
func begin(t testing.TB, s *Session, text string) (end func() (string, Outcome)) {
	t.Helper()
	var b bytes.Buffer
	var o Outcome
	var err error
	done := make(chan struct{})
	ctx := within(t)
	go func() {
		defer close(done)
		o, err = s.Run(ctx, Command{ID: newID(), Text: text, OnOutput: func(p Output) { b.Write(p.Data) }})
	}()
	return func() (string, Outcome) {
		t.Helper()
		<-done
		require.NoError(t, err)
		return strings.ReplaceAll(b.String(), "\r\n", "\n"), o
	}
}

// state waits until the session's state fits.
func state(t testing.TB, s *Session, what string, fits func(State) bool) State {
	t.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		st, err := s.State(context.Background())
		require.NoError(t, err)
		if fits(st) {
			return st
		}
		select {
		case <-tick.C:
		case <-limit:
			require.FailNow(t, "never "+what, "%+v", st)
		}
	}
}

// within3 is for what moves a lot of data on a busy machine.
func within3(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	t.Cleanup(cancel)
	return ctx
}

type sysStat struct{ onDisk int64 }

func (s *sysStat) of(path string) error {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return err
	}
	s.onDisk = st.Blocks * 512
	return nil
}
