package storagetest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// startTimeout bounds how long a cluster may take to start or stop; a busy machine is slow.
const startTimeout = 60 * time.Second

// Cluster is a throw-away PostgreSQL server. It listens on a Unix socket of its own, so that nothing else can take its
// place while it is stopped.
type Cluster struct {
	bin  string // folder of the server's programs
	dir  string // folder of the data and the socket
	cred *syscall.Credential

	mu      sync.Mutex
	running *server
}

// server is one run of the cluster's process, under a shell that ends it when this process is gone.
type server struct {
	cmd     *exec.Cmd
	control *os.File // see supervise
}

// missing is what the tests say on a machine without PostgreSQL.
const missing = "PostgreSQL is not installed, and this test needs it: run `make test`, which installs it"

// newCluster makes a cluster and starts it. remove must be called when it is not needed any more; when the process
// dies before, the shell around the server does it.
func newCluster() (*Cluster, error) {
	bin, err := findPostgres()
	if err != nil {
		return nil, err
	}
	c := &Cluster{bin: bin}
	if os.Getuid() == 0 {
		// PostgreSQL refuses to run as root.
		if c.cred, err = postgresUser(); err != nil {
			return nil, err
		}
	}
	// Not under TMPDIR: the path of a Unix socket has at most about 100 bytes.
	if c.dir, err = os.MkdirTemp("/tmp", "bpg"); err != nil {
		return nil, err
	}
	if c.cred != nil {
		if err := os.Chown(c.dir, int(c.cred.Uid), int(c.cred.Gid)); err != nil {
			return nil, err
		}
	}
	initdb := c.command("initdb", "-D", c.data(), "-U", "butler", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return c, c.start()
}

func findPostgres() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		// A link elsewhere would hide the programs beside it.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(real), nil
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin/initdb", "/opt/homebrew/opt/postgresql@*/bin/initdb", "/usr/local/opt/postgresql@*/bin/initdb",
	} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			slices.Sort(found)
			return filepath.Dir(found[len(found)-1]), nil
		}
	}
	return "", errors.New(missing)
}

func postgresUser() (*syscall.Credential, error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, errors.New("PostgreSQL cannot run as root, and there is no user postgres: run the tests as another user")
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(err1, err2)
}

func (c *Cluster) data() string { return filepath.Join(c.dir, "data") }

func (c *Cluster) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.bin, program), args...)
	cmd.Dir = c.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.cred}
	return cmd
}

// The shell around the server waits until its descriptor 3 ends, which also happens when the test process is killed.
// Then it stops the server (INT: at once, but cleanly), and removes everything unless it read "stop" before.
const supervise = `
"$1" -D "$2" -k "$3" -c listen_addresses= -c fsync=off -c synchronous_commit=off -c full_page_writes=off \
	-c max_connections=200 -c shared_buffers=32MB -c unix_socket_permissions=0777 3<&- &
server=$!
(
	read -r word
	kill -INT $server
	[ "$word" = stop ] && exit
	while kill -0 $server; do sleep 0.05; done
	rm -rf "$3"
) <&3 3<&- &
exec 3<&-
wait $server
`

func (c *Cluster) start() error {
	cmd := exec.Command("/bin/sh", "-c", supervise, "sh", filepath.Join(c.bin, "postgres"), c.data(), c.dir)
	cmd.Dir = "/"
	// A group of its own: an interrupt of the terminal reaches the tests, which then stop it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.cred, Setpgid: true}
	log, err := os.OpenFile(filepath.Join(c.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// Not the tests' own output, which `go test` would wait for.
	cmd.Stdout, cmd.Stderr = log, log
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	cmd.ExtraFiles = []*os.File{read}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, write.Close())
	}
	c.running = &server{cmd: cmd, control: write}
	return c.waitReady(c.running)
}

func (c *Cluster) waitReady(s *server) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		conn, err := pgx.Connect(ctx, c.url("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		last = err
		select {
		case <-tick.C:
			if s.ended() {
				return fmt.Errorf("PostgreSQL did not start: %w\n%s", last, c.log())
			}
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL did not start in time: %w\n%s", last, c.log())
		}
	}
}

// ended says whether the process is gone. There is no goroutine that waits for it, since tests look for leaked ones.
func (s *server) ended() bool {
	pid, err := syscall.Wait4(s.cmd.Process.Pid, nil, syscall.WNOHANG, nil)
	return pid == s.cmd.Process.Pid || errors.Is(err, syscall.ECHILD)
}

func (c *Cluster) log() string {
	text, _ := os.ReadFile(filepath.Join(c.dir, "log"))
	return string(text[max(0, len(text)-2000):])
}

func (c *Cluster) url(database string) string {
	return "postgres:///" + database + "?" + url.Values{"host": {c.dir}, "user": {"butler"}, "sslmode": {"disable"}}.Encode()
}

// Stop stops the server, as an outage: connections break, and new ones are refused.
func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	if err := c.stop("stop\n"); err != nil {
		t.Fatal(err)
	}
}

// Start starts the server again, on the same address and with its data, and returns when it answers.
func (c *Cluster) Start(t testing.TB) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil {
		t.Fatal("the cluster runs already")
	}
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
}

// stop tells the shell around the server word, and waits until the server is gone.
func (c *Cluster) stop(word string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.running
	if s == nil {
		return nil
	}
	c.running = nil
	_, err := s.control.WriteString(word)
	if err := errors.Join(err, s.control.Close()); err != nil {
		return err
	}
	deadline := time.Now().Add(startTimeout)
	for !s.ended() {
		if time.Now().After(deadline) {
			_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
			return errors.New("PostgreSQL did not stop in time")
		}
		time.Sleep(5 * time.Millisecond) // nothing signals the end of a process without a goroutine
	}
	return nil
}

// remove stops the server and removes its data.
func (c *Cluster) remove() error {
	return errors.Join(c.stop(""), os.RemoveAll(c.dir))
}
