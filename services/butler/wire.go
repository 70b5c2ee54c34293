package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/config"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/memory"
	"github.com/butlerhub/butler/pkg/rpc"
	"github.com/butlerhub/butler/pkg/storage"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/butler-brain"
	"github.com/butlerhub/butler/services/butler-brain/model"
	"github.com/butlerhub/butler/services/gateway"
	"github.com/butlerhub/butler/services/gateway/store"
	"github.com/butlerhub/butler/web"
)

// This file has the steps that several processes share. Each opens one thing and registers how it is closed.

// connectBus connects a service to NATS: to the embedded server, when there is one, else to that of the settings, for
// which it waits.
func (p *process) connectBus(ctx context.Context, service string, server *bus.Server) (*bus.Bus, error) {
	n := p.settings.NATS
	p.check("nats", func(context.Context) error { return fault.New(fault.Unavailable, "waiting for NATS") })
	b, err := bus.Connect(ctx, bus.Options{
		URL: n.URL, Server: server, Credentials: n.Credentials, Service: service, Log: p.log, Replicas: n.Replicas,
	})
	if err != nil {
		return nil, err
	}
	p.check("nats", b.Check)
	p.onClose(b.Close)
	return b, nil
}

// databaseURL is the database of the settings, as package storage takes it.
func databaseURL(s config.Settings) string {
	if s.Database.URL != "" {
		return s.Database.URL
	}
	return "sqlite:" + s.Path("butler.db")
}

func (p *process) openDatabase(ctx context.Context) (*storage.DB, error) {
	if p.settings.Database.URL == "" {
		if err := os.MkdirAll(p.settings.DataDir, 0o700); err != nil {
			return nil, fault.Wrap(pathCause(err), fault.Invalid,
				"the data folder %s cannot be made; set BUTLER_DATA_DIR to one that can", p.settings.DataDir)
		}
	}
	db, err := storage.Open(ctx, databaseURL(p.settings), storage.Options{})
	if err != nil {
		return nil, err
	}
	p.onClose(func() { _ = db.Close() })
	return db, nil
}

// openStore gives the gateway's tables, up to date. It waits for the database.
func (p *process) openStore(ctx context.Context, db *storage.DB) (*store.Store, error) {
	st, err := newStore(db, p.settings)
	if err != nil {
		return nil, err
	}
	return st, p.waitFor(ctx, "sql", st.Migrate)
}

func newStore(db *storage.DB, s config.Settings) (*store.Store, error) {
	return store.New(db, store.Options{Password: store.Params{
		Time: s.Accounts.PasswordTime, MemoryKiB: s.Accounts.PasswordMemoryKiB,
	}})
}

// security is how this process's gRPC servers and clients know each other.
func (p *process) security() rpc.Security {
	r := p.settings.RPC
	return rpc.Security{Token: r.Token.Reveal(), CertFile: r.TLSCert, KeyFile: r.TLSKey, CAFile: r.TLSCA}
}

// dial gives a connection to a service: to the one in this process when local is set, else to target.
func (p *process) dial(service, target string, local *rpc.Local) (*grpc.ClientConn, error) {
	security := p.security()
	if local != nil {
		security = rpc.Security{Token: security.Token}
	}
	conn, err := rpc.NewClient(rpc.ClientOptions{
		Security: security, Service: service, Target: target, Local: local, Registerer: p.tel.Registry, Tracer: p.tel.Tracer,
	})
	if err != nil {
		return nil, err
	}
	p.onClose(func() { _ = conn.Close() })
	return conn, nil
}

// rpcServer makes a gRPC server; local says that it serves inside this process only.
func (p *process) rpcServer(local bool) (*rpc.Server, error) {
	security := p.security()
	if local {
		security = rpc.Security{Token: security.Token}
	}
	return rpc.NewServer(rpc.ServerOptions{
		Security: security, Log: p.log, Registerer: p.tel.Registry, Tracer: p.tel.Tracer, StopTimeout: callsTimeout,
	})
}

// newModel gives the language model of the settings.
func newModel(s config.Settings, deps model.Config) (*model.Client, error) {
	m := s.Model
	deps.BaseURL, deps.APIToken, deps.Model = m.BaseURL, m.APIToken.Reveal(), m.Name
	deps.IdleTimeout, deps.HeaderTimeout = m.IdleTimeout, m.IdleTimeout
	client, err := model.New(deps)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the model's settings are not valid")
	}
	return client, nil
}

// systemPrompt reads the file that is added to the built-in prompt, if one is set.
func systemPrompt(s config.Settings) (string, error) {
	file := s.Turn.SystemPromptFile
	if file == "" {
		return "", nil
	}
	const most = 256 << 10
	data, err := os.ReadFile(file)
	switch {
	case err != nil:
		return "", fault.Wrap(pathCause(err), fault.Invalid, "BUTLER_SYSTEM_PROMPT_FILE: %s cannot be read", file)
	case len(data) > most:
		return "", fault.New(fault.Invalid, "BUTLER_SYSTEM_PROMPT_FILE: %s is larger than %d KiB", file, most>>10)
	}
	return string(data), nil
}

// brainSettings are the limits of a turn.
func brainSettings(s config.Settings) (brain.Settings, error) {
	prompt, err := systemPrompt(s)
	var compaction memory.Policy
	// Asked for automatically only where there is a model that can write summaries.
	if s.Compaction.Enabled && !summaryModel(s).Model.Demo() {
		compaction = compactionPolicy(s)
	}
	return brain.Settings{
		MaxSteps: s.Turn.MaxSteps, TurnTimeout: s.Turn.Timeout, ContextWindow: s.Model.ContextWindow,
		Concurrency: s.Turn.MaxConcurrent, SystemPrompt: prompt, ModelTries: s.Model.Retries + 1,
		CommandTimeout: s.Shell.CommandTimeout, Compaction: compaction,
	}, err
}

// gatewaySettings are what the gateway takes of the settings.
func gatewaySettings(s config.Settings) gateway.Settings {
	return gateway.Settings{
		Addr: s.HTTP.Addr, PublicURL: s.HTTP.PublicURL, TrustedProxies: s.HTTP.TrustedProxies,
		AllowedOrigins: s.HTTP.AllowedOrigins, CookieSecure: string(s.HTTP.CookieSecure), Language: s.Language,
		SignInLifetime: s.Accounts.SignInLifetime, DrainTimeout: drainTimeout,
		MessageRate: float64(orNoLimit(s.Messages.Rate)), MessageBurst: s.Messages.Burst,
		MaxWaiting: orNoLimit(s.Messages.MaxWaiting),
	}
}

// orNoLimit turns 0, the setting's "no limit", into the gateway's, whose 0 is its default.
func orNoLimit(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// initialPasswordFile is where the first administrator's generated password is kept.
func initialPasswordFile(s config.Settings) string { return s.Path("initial-admin-password") }

// gatewayConns lead from the gateway to the other services.
type gatewayConns struct {
	brain, registry, approval grpc.ClientConnInterface
	shells                    map[string]butlerv1.ShellServiceClient // by host
}

// startGateway puts the gateway together and starts it.
func (p *process) startGateway(l net.Listener, b *bus.Bus, st *store.Store, conns gatewayConns) (*gateway.Service, error) {
	svc, err := gateway.New(gateway.Deps{
		Bus: b, Store: st,
		Brain: butlerv1.NewBrainServiceClient(conns.brain), Registry: butlerv1.NewRegistryServiceClient(conns.registry),
		Approval: butlerv1.NewApprovalServiceClient(conns.approval), Shells: conns.shells,
		Settings: gatewaySettings(p.settings), Listener: l, Page: web.Handler(), Ops: p.tel.Handler(),
		Log: p.log, Metrics: p.tel.Registry,
	})
	if err != nil {
		return nil, err
	}
	for name, check := range svc.Checks() {
		p.check("gateway-"+name, check)
	}
	p.tel.Checks.AddOptional("gateway-database", svc.Database)
	p.start("gateway", svc.Run)
	return svc, nil
}

// firstAdmin makes the first administrator where there is none, and tells how to sign in when a password was generated.
func (p *process) firstAdmin(ctx context.Context, st *store.Store) (generated string, err error) {
	accounts := p.settings.Accounts
	err = p.waitFor(ctx, "sql", func(ctx context.Context) error {
		generated, err = gateway.FirstAdmin(ctx, st, accounts.AdminUser, accounts.AdminPassword.Reveal(), initialPasswordFile(p.settings))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("making the first administrator: %w", err)
	}
	return generated, nil
}
