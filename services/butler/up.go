package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/config"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/rpc"
	"github.com/butlerhub/butler/pkg/telemetry"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func (a *app) upCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Run everything in one process on this machine",
		Long: `Runs the gateway, butler-brain, compactor, approval, shell-runner and agent-registry in one process, with a NATS server and SQLite
inside, and says where to go and how to sign in. Everything is kept in the data folder (BUTLER_DATA_DIR).

Shells need Linux, tmux and bash: elsewhere it runs without them and says so. Unless BUTLER_ALLOWED_USERS says
otherwise, only the first administrator may use them; they outlive this process.

With BUTLER_NATS_URL or BUTLER_DATABASE_URL it uses that NATS or PostgreSQL instead of its own. Without a model
(BUTLER_BASE_URL, BUTLER_MODEL) the built-in demo model answers.

SIGINT and SIGTERM end it in order, a second one at once; what was being answered goes on at the next start.
SIGHUP reads the settings again.`,
		Example: `  butler up
  butler up --config butler.yaml
  BUTLER_BASE_URL=http://127.0.0.1:11434/v1 BUTLER_MODEL=qwen3 butler up`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			ctx, cancel := a.context()
			defer cancel()
			err := a.up(ctx)
			if ctx.Err() != nil && err != nil {
				return nil // it was told to stop while it started
			}
			return err
		},
	}
}

func (a *app) up(ctx context.Context) error {
	p, err := a.newProcess("butler")
	if err != nil {
		return err
	}
	defer p.close()
	if p.settings.RPC.Token == "" { // nobody else needs to know it
		p.settings.RPC.Token = config.Secret(randomHex(32))
	}
	s := p.settings

	lock, err := lockDir(s.DataDir)
	if err != nil {
		return err
	}
	p.onClose(func() { _ = lock.Close() })
	if err := p.serveOps(); err != nil {
		return err
	}
	httpListener, err := p.listen("BUTLER_HTTP_ADDR", s.HTTP.Addr)
	if err != nil {
		return err
	}
	waiting := p.serveWhileWaiting(httpListener)
	server, err := p.startNATS()
	if err != nil {
		return err
	}
	registryBus, err := p.connectBus(ctx, "registry", server)
	if err != nil {
		return err
	}
	brainBus, err := p.connectBus(ctx, "brain", server)
	if err != nil {
		return err
	}
	approvalBus, err := p.connectBus(ctx, "approval", server)
	if err != nil {
		return err
	}
	compactorBus, err := p.connectBus(ctx, "compactor", server)
	if err != nil {
		return err
	}
	shellBus, err := p.connectBus(ctx, "shell", server)
	if err != nil {
		return err
	}
	gatewayBus, err := p.connectBus(ctx, "gateway", server)
	if err != nil {
		return err
	}
	db, err := p.openDatabase(ctx)
	if err != nil {
		return err
	}
	st, err := p.openStore(ctx, db)
	if err != nil {
		return err
	}
	generated, err := p.firstAdmin(ctx, st)
	if err != nil {
		return err
	}

	registryLocal, brainLocal, approvalLocal, peopleLocal := rpc.NewLocal(), rpc.NewLocal(), rpc.NewLocal(), rpc.NewLocal()
	compactorLocal := rpc.NewLocal()
	registryConn, err := p.dial("agent-registry", "", registryLocal)
	if err != nil {
		return err
	}
	brainConn, err := p.dial("butler-brain", "", brainLocal)
	if err != nil {
		return err
	}
	approvalConn, err := p.dial("approval", "", approvalLocal)
	if err != nil {
		return err
	}
	peopleConn, err := p.dial("gateway", "", peopleLocal)
	if err != nil {
		return err
	}
	compactorConn, err := p.dial("compactor", "", compactorLocal)
	if err != nil {
		return err
	}
	summaries, err := p.startCompactor(compactorBus)
	if err != nil {
		return err
	}
	if err := p.serveLocal("compactor-rpc", summaries, compactorLocal); err != nil {
		return err
	}
	approvalClient := butlerv1.NewApprovalServiceClient(approvalConn)
	runner, shellLocal, err := p.shellWherePossible(shellBus, db, approvalClient)
	if err != nil {
		return err
	}
	shells, err := p.dialShells(shellLocal, true)
	if err != nil {
		return err
	}
	approvals, err := p.startApproval(approvalBus, peopleConn, shells.Hosts)
	if err != nil {
		return err
	}
	if err := p.serveLocal("approval-rpc", approvals, approvalLocal); err != nil {
		return err
	}
	if runner != nil {
		p.startShell(runner)
		if err := p.serveLocal("shell-rpc", runner, shellLocal); err != nil {
			return err
		}
	}
	registry, err := p.startRegistry(ctx, registryBus, db, server)
	if err != nil {
		return err
	}
	if err := p.serveLocal("registry-rpc", registry, registryLocal); err != nil {
		return err
	}
	brain, err := p.startBrain(brainBus, butlerv1.NewRegistryServiceClient(registryConn), acting{approvalClient, shells, butlerv1.NewCompactorServiceClient(compactorConn)})
	if err != nil {
		return err
	}
	if err := p.serveLocal("brain-rpc", brain, brainLocal); err != nil {
		return err
	}
	if httpListener, err = waiting.handOver(); err != nil {
		return err
	}
	gate, err := p.startGateway(httpListener, gatewayBus, st, gatewayConns{brainConn, registryConn, approvalConn, shells.Hosts})
	if err != nil {
		return err
	}
	if err := p.serveLocal("people-rpc", gate, peopleLocal); err != nil {
		return err
	}
	url := pageURL(s, httpListener.Addr())
	if err := p.noteRunning(url, server); err != nil {
		return err
	}
	p.start("welcome", func(ctx context.Context) error { return p.welcome(ctx, s, url, generated) })
	return p.run(ctx)
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

// startNATS starts the embedded server, unless the settings name another.
func (p *process) startNATS() (*bus.Server, error) {
	s := p.settings
	if !s.NATS.Embedded() {
		return nil, nil
	}
	// The server itself does not say which setting is to be changed.
	probe, err := telemetry.Listen("BUTLER_NATS_ADDR", s.NATS.Addr)
	if err != nil {
		return nil, err
	}
	_ = probe.Close()
	password, _, err := bus.OperatorPassword(s.DataDir)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "the operator's NATS password cannot be kept in %s", s.DataDir)
	}
	server, err := bus.StartServer(bus.ServerOptions{
		Dir: natsDir(s), Addr: s.NATS.Addr, Sync: s.NATS.SyncInterval, Operator: password, Log: p.log,
	})
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "the embedded NATS server does not start")
	}
	p.onClose(server.Close)
	return server, nil
}

// natsDir is where the embedded server keeps the log.
func natsDir(s config.Settings) string { return s.Path("nats") }

// serveLocal serves a service's gRPC API inside this process.
func (p *process) serveLocal(name string, svc registrar, l *rpc.Local) error {
	server, err := p.rpcServer(true)
	if err != nil {
		return err
	}
	svc.Register(server)
	p.start(name, func(ctx context.Context) error { return server.Serve(ctx, l) })
	return nil
}

// pageURL is where people reach the gateway that listens on addr.
func pageURL(s config.Settings, addr net.Addr) string {
	if s.HTTP.PublicURL != "" {
		return s.HTTP.PublicURL
	}
	return "http://" + localAddr(addr.String())
}

// localAddr is how this machine reaches a listen address.
func localAddr(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// running is what `butler up` notes of itself in its data folder, for the commands that look after it. It counts only
// while the folder is locked.
type running struct {
	PID  int    `json:"pid"`
	HTTP string `json:"http"`           // URL of the gateway
	Ops  string `json:"ops"`            // URL of /ready and /config/reload
	NATS string `json:"nats,omitempty"` // URL of the embedded server, without user
}

const runningFile = "running.json"

func (p *process) noteRunning(url string, server *bus.Server) error {
	r := running{PID: os.Getpid(), HTTP: url, Ops: p.opsURL}
	if server != nil {
		r.NATS = server.URL()
	}
	data, _ := json.Marshal(r) // strings and a number
	file := p.settings.Path(runningFile)
	if err := os.WriteFile(file, append(data, '\n'), 0o600); err != nil {
		return fault.Wrap(pathCause(err), fault.Internal, "the data folder %s cannot be written", p.settings.DataDir)
	}
	p.onClose(func() { _ = os.Remove(file) })
	return nil
}

// readRunning gives what a `butler up` that works on the data folder noted; ok is false when none does.
func readRunning(s config.Settings) (r running, ok bool) {
	lock, err := lockDir(s.DataDir)
	if err == nil {
		_ = lock.Close()
		return running{}, false
	}
	data, err := os.ReadFile(s.Path(runningFile))
	if err != nil || json.Unmarshal(data, &r) != nil {
		return running{}, false
	}
	return r, true
}

// welcome says where to go, as soon as that is true.
func (p *process) welcome(ctx context.Context, s config.Settings, url, generated string) error {
	began := time.Now()
	slow := false
	for {
		missing := p.missing(ctx)
		if len(missing) == 0 {
			break
		}
		if !slow && time.Since(began) > 1500*time.Millisecond {
			slow = true
			fmt.Fprintf(p.app.out, "Butler is starting at %s, waiting for: %s\n", url, strings.Join(missing, "; "))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
	fmt.Fprintf(p.app.out, "Butler is ready: %s — %s\n", url, howToSignIn(s, generated))
	debug.FreeOSMemory() // what only starting needed
	<-ctx.Done()
	return nil
}

func howToSignIn(s config.Settings, generated string) string {
	file := initialPasswordFile(s)
	switch {
	case generated != "":
		return fmt.Sprintf("sign in as %s with the password %s, which is also in %s (mode 0600)", s.Accounts.AdminUser, generated, file)
	case s.Accounts.AdminPassword != "":
		return fmt.Sprintf("the first administrator is %s, with the password of INITIAL_ADMIN_PASS unless it was changed", s.Accounts.AdminUser)
	}
	if user, _, err := readInitialPassword(s); err == nil {
		return fmt.Sprintf("sign in as %s; the password is in %s (mode 0600) unless it was changed", user, file)
	}
	return "sign in as before"
}

// readInitialPassword reads what package gateway kept of the first administrator.
func readInitialPassword(s config.Settings) (user, password string, err error) {
	f, err := os.Open(initialPasswordFile(s))
	if err != nil {
		return "", "", pathCause(err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxPasswordLine {
		return "", "", fs.ErrInvalid
	}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), "name: "); ok {
			user = v
		}
		if v, ok := strings.CutPrefix(lines.Text(), "password: "); ok {
			password = v
		}
	}
	if user == "" || password == "" {
		return "", "", errors.New("it is empty")
	}
	return user, password, nil
}
