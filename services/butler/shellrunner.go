package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/config"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/redact"
	"github.com/butlerhub/butler/pkg/rpc"
	"github.com/butlerhub/butler/pkg/storage"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/butler-brain"
	"github.com/butlerhub/butler/services/shell-runner"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

func (a *app) shellRunnerCommand() *cobra.Command {
	return a.serviceCommand("shell-runner", "Run shell-runner: shells on this host, command guard, shell log",
		`Runs shell-runner alone: the shells of this host. One runs on each host that commands shall run on, under a name of its
own (BUTLER_SHELL_HOST), which BUTLER_SHELL_TARGETS of butler-brain and approval names too. It needs Linux, tmux 3.2 and
bash 5.1. Nobody may use it but those in BUTLER_ALLOWED_USERS. The shells outlive it: the next one finds them.

As root with BUTLER_SHELL_OS_USERS each person's shell runs as a user of the system; otherwise all run as its own user,
which it warns about.`,
		`  BUTLER_NATS_URL=nats://nats:4222 BUTLER_DATABASE_URL=postgres://… INTERNAL_SERVICE_TOKEN=… BUTLER_SHELL_HOST=web1 \
    BUTLER_SHELL_ADDR=0.0.0.0:8096 BUTLER_APPROVAL_TARGET=approval:8094 BUTLER_ALLOWED_USERS=1,alice butler shell-runner`,
		func(ctx context.Context, p *process) error {
			s := p.settings
			if err := p.serveOps(); err != nil {
				return err
			}
			// Two that look after the same shells would each take the other's for lost.
			lock, err := lockDir(shellState(s))
			if err != nil {
				return err
			}
			p.onClose(func() { _ = lock.Close() })
			l, err := p.listen("BUTLER_SHELL_ADDR", s.RPC.ShellAddr)
			if err != nil {
				return err
			}
			server, err := p.rpcServer(false)
			if err != nil {
				return err
			}
			approvalConn, err := p.dial("approval", s.RPC.ApprovalTarget, nil)
			if err != nil {
				return err
			}
			b, err := p.connectBus(ctx, "shell", nil)
			if err != nil {
				return err
			}
			db, err := p.openDatabase(ctx)
			if err != nil {
				return err
			}
			svc, err := p.newShell(b, db, butlerv1.NewApprovalServiceClient(approvalConn), p.shellSettings(s))
			if err != nil {
				return err
			}
			p.onReload(func(next config.Settings, _ []string) error { return svc.SetSettings(p.shellSettings(next)) })
			p.startShell(svc)
			svc.Register(server)
			p.start("rpc", func(ctx context.Context) error { return server.Serve(ctx, l) })
			p.log.Info("shell-runner listens", "addr", l.Addr().String(), "host", s.Shell.Host)
			return p.run(ctx)
		})
}

// shellWherePossible gives the shell-runner of `butler up` and where it is reached; nil where shells cannot be had, which is
// logged. Without a list of people only the first administrator may use it.
func (p *process) shellWherePossible(b *bus.Bus, db *storage.DB, approval butlerv1.ApprovalServiceClient) (*shell.Service, *rpc.Local, error) {
	settings := func(s config.Settings) shell.Settings {
		out := p.shellSettings(s)
		if len(out.AllowedUsers) == 0 {
			out.AllowedUsers = []string{firstAdminID}
		}
		return out
	}
	svc, err := p.newShell(b, db, approval, settings(p.settings))
	if fault.CodeOf(err) == fault.Unavailable {
		p.log.Warn("there are no shells here, everything else works: " + sentence(err))
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	p.onReload(func(next config.Settings, _ []string) error { return svc.SetSettings(settings(next)) })
	return svc, rpc.NewLocal(), nil
}

// firstAdminID is the id of the administrator that a new installation is made with.
const firstAdminID = "1"

// newShell puts shell-runner together. An Unavailable fault says that shells cannot be had on this machine.
func (p *process) newShell(b *bus.Bus, db *storage.DB, approval butlerv1.ApprovalServiceClient, settings shell.Settings) (*shell.Service, error) {
	s := p.settings
	account, err := shellAccounts(s)
	if err != nil {
		return nil, err
	}
	dir, err := shellDir(s, account != nil)
	if err != nil {
		return nil, err
	}
	p.shellsFolder = dir
	settings.Protected = append(settings.Protected, dir)
	if filepath.Dir(dir) != s.DataDir {
		p.onClose(func() { _ = os.Remove(dir) }) // it stays while a shell is in it
	}
	return shell.New(shell.Deps{
		Bus: b, Approval: approval, Host: s.Shell.Host, State: shellState(s), DB: db, Redactor: ownSecrets(s, p.app.environ),
		Tmux:     tmux.Config{Dir: dir, Account: account, Limits: tmux.DefaultLimits, MaxPerUser: s.Shell.MaxPerUser, MaxTotal: s.Shell.MaxTotal},
		Settings: settings, Replica: p.replica, Log: p.log, Metrics: p.tel.Registry,
	})
}

func (p *process) startShell(svc *shell.Service) {
	p.check("shell", svc.Ready)
	p.start("shell", svc.Run)
}

// shellSettings are what shell-runner takes of the settings.
func (p *process) shellSettings(s config.Settings) shell.Settings {
	out := shell.Settings{
		LogOutput: int64(s.Shell.LogOutput) << 20, AllowedUsers: s.Shell.AllowedUsers, CommandTimeout: s.Shell.CommandTimeout, IdleTimeout: s.Shell.IdleTimeout,
		DangerPatterns: s.Shell.DangerPatterns, GuardDisabled: !s.Shell.GuardEnabled,
	}
	if out.LogOutput == 0 {
		out.LogOutput = -1
	}
	for _, path := range []string{
		s.DataDir, s.Approval.KeyFile, s.Approval.PolicyFile, s.NATS.Credentials, s.RPC.TLSKey, p.app.settingsFile(), p.shellsFolder,
	} {
		if path == "" {
			continue
		}
		if abs, err := filepath.Abs(path); err == nil {
			out.Protected = append(out.Protected, abs)
		}
	}
	return out
}

// settingsFile names the settings file, "" for none.
func (a *app) settingsFile() string {
	if a.configFile != "" {
		return a.configFile
	}
	return a.env("BUTLER_CONFIG")
}

// shellState is where shell-runner notes what is open.
func shellState(s config.Settings) string { return s.Path("shell-runner") }

// maxShellDir is the longest path of the folder for shells: a Unix socket's path has at most 107 bytes, and package tmux
// needs the rest. plainShellDir is what it takes for one.
const maxShellDir = 40

var plainShellDir = regexp.MustCompile(`^/[A-Za-z0-9/._+@:,=-]*$`)

// shellDir gives the folder for the shells' sockets: in the data folder, or, where its path is too long or other users of
// the system must get in, one of the same meaning elsewhere that only this user can have made.
func shellDir(s config.Settings, accounts bool) (string, error) {
	dir := s.Path("shells")
	if !accounts && len(dir) <= maxShellDir && plainShellDir.MatchString(dir) {
		return dir, nil
	}
	sum := sha256.Sum256([]byte(s.DataDir))
	name := fmt.Sprintf("butler-%d-%s", os.Getuid(), hex.EncodeToString(sum[:4]))
	parents := []string{os.TempDir(), "/tmp"}
	if os.Getuid() == 0 {
		parents = append([]string{"/run"}, parents...) // emptied at a restart of the machine only, as the shells are
	}
	var failure error
	for _, parent := range parents {
		dir := filepath.Join(parent, name)
		if len(dir) > maxShellDir || !plainShellDir.MatchString(dir) {
			continue
		}
		if failure = ownFolder(dir); failure == nil {
			return dir, nil
		}
	}
	return "", fault.Wrap(failure, fault.Invalid, "there is no folder with a short path for shells; set BUTLER_DATA_DIR to one of at most "+
		"%d characters", maxShellDir-len("/shells"))
}

// ownFolder makes a folder in a place where others write too, or makes sure that it is this user's.
func ownFolder(dir string) error {
	if err := os.Mkdir(dir, 0o700); err == nil {
		return nil
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || !ok || int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%s belongs to somebody else", dir)
	}
	return nil
}

// shellAccounts gives the users of the system that people's shells run as; nil for single-user mode.
func shellAccounts(s config.Settings) (func(string) (tmux.Account, bool), error) {
	if len(s.Shell.OSUsers) == 0 {
		return nil, nil
	}
	people, uses := map[string]tmux.Account{}, map[uint32]int{}
	for _, pair := range s.Shell.OSUsers {
		person, name, _ := strings.Cut(pair, "=")
		account, err := systemAccount(name)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "BUTLER_SHELL_OS_USERS: %s is no user of this system", name)
		}
		if _, twice := people[person]; twice {
			return nil, fault.New(fault.Invalid, "BUTLER_SHELL_OS_USERS names %s twice", person)
		}
		people[person] = account
		uses[account.UID]++
		if person == "*" {
			uses[account.UID]++ // several people's
		}
	}
	for person, account := range people {
		// Closing a shell then ends all that runs as its user, whatever left the session.
		account.Exclusive = uses[account.UID] == 1 && account.UID != 0 && int(account.UID) != os.Getuid()
		people[person] = account
	}
	return func(person string) (tmux.Account, bool) {
		account, ok := people[person]
		if !ok {
			account, ok = people["*"]
		}
		return account, ok
	}, nil
}

func systemAccount(name string) (tmux.Account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return tmux.Account{}, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return tmux.Account{}, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return tmux.Account{}, err
	}
	account := tmux.Account{UID: uint32(uid), GID: uint32(gid), Name: u.Username}
	if info, err := os.Stat(u.HomeDir); err == nil && info.IsDir() {
		account.Home = u.HomeDir
	}
	return account, nil
}

// ownSecrets knows Butler's own secrets, so that no shell can show them to anybody.
func ownSecrets(s config.Settings, environ []string) *redact.Redactor {
	r := &redact.Redactor{}
	r.Add("butler-secret", redact.Environment(environ)...)
	r.Add("butler-secret", s.RPC.Token.Reveal(), s.Model.APIToken.Reveal(), s.Model.AnthropicKey.Reveal(), s.Accounts.AdminPassword.Reveal())
	for part := range strings.SplitSeq(s.NATS.URL+","+s.Database.URL, ",") {
		if u, err := url.Parse(part); err == nil && u.User != nil {
			if password, ok := u.User.Password(); ok {
				r.Add("butler-secret", password)
			}
		}
	}
	if _, password, err := readInitialPassword(s); err == nil {
		r.Add("butler-secret", password)
	}
	if password, _, err := bus.OperatorPassword(s.DataDir); s.NATS.Embedded() && err == nil {
		r.Add("butler-secret", password)
	}
	return r
}

// dialShells gives clients of the shell-runners of the settings; local, when set, is the one in this process. Without one,
// inside says that this host has none, so that only what the settings name counts.
func (p *process) dialShells(local *rpc.Local, inside bool) (brain.Shells, error) {
	s := p.settings
	out := brain.Shells{Hosts: map[string]butlerv1.ShellServiceClient{}}
	add := func(host, target string, local *rpc.Local) error {
		if out.Hosts[host] != nil {
			return fault.New(fault.Invalid, "BUTLER_SHELL_TARGETS names the host %s twice", host)
		}
		conn, err := p.dial("shell-runner on "+host, target, local)
		if err != nil {
			return err
		}
		if out.Default == "" {
			out.Default = host
		}
		out.Hosts[host] = butlerv1.NewShellServiceClient(conn)
		return nil
	}
	if inside && local == nil && s.Origin("rpc.shell_targets").Source == config.FromOther {
		return out, nil
	}
	for _, pair := range s.RPC.ShellTargets {
		host, target, _ := strings.Cut(pair, "=")
		here := local
		if host != s.Shell.Host {
			here = nil
		}
		if err := add(host, target, here); err != nil {
			return out, err
		}
	}
	if local != nil && out.Hosts[s.Shell.Host] == nil {
		return out, add(s.Shell.Host, "", local)
	}
	return out, nil
}

// checkShell looks whether shells can be kept on this machine, and what protects from them.
func (d *patient) checkShell(context.Context) []finding {
	s := d.settings
	account, err := shellAccounts(s)
	if err != nil {
		return []finding{fail("shell", "name users that this system has, or leave BUTLER_SHELL_OS_USERS empty", "%s", sentence(err))}
	}
	parent := os.TempDir()
	if len(parent) > maxShellDir/2 {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "b")
	if err != nil {
		return []finding{warn("shell", "", "it is not known whether shells can be kept: %v", pathCause(err))}
	}
	defer func() { _ = os.RemoveAll(dir) }()
	host, err := tmux.Open(tmux.Config{Dir: dir, Account: account})
	if err != nil {
		return []finding{warn("shell", "only where commands shall run on this machine: `butler up` goes on without", "%s", sentence(err))}
	}
	defer host.Close()
	out := []finding{ok("shell", "%s, shells can be kept here as the host %s", host.Version(), s.Shell.Host)}
	for _, w := range host.Warnings() {
		out = append(out, warn("shell", "", "%s", w))
	}
	if !s.Shell.GuardEnabled {
		out = append(out, warn("guard", "unset BUTLER_GUARDRAIL_ENABLED (guardrail.enabled)",
			"the command guard is off: what it would ask about runs by itself, only the hard-line set is refused"))
	}
	if len(s.Shell.AllowedUsers) == 0 {
		out = append(out, ok("shell users", "nobody, but the first administrator under `butler up` (BUTLER_ALLOWED_USERS)"))
	} else {
		out = append(out, ok("shell users", "%s", strings.Join(s.Shell.AllowedUsers, ", ")))
	}
	return out
}
