package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// serviceHelp ends the help of the commands that run one service.
const serviceHelp = `

It needs a NATS server (BUTLER_NATS_URL) and INTERNAL_SERVICE_TOKEN, the same in every service. Start order does
not matter: it waits for what it needs, and /ready on BUTLER_OPS_ADDR says for what. SIGTERM ends it in order,
SIGHUP or POST /config/reload reads the settings again. All settings: ` + "`butler config`" + `.`

func (a *app) serviceCommand(name, short, long, example string, run func(ctx context.Context, p *process) error) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Long: long + serviceHelp, Example: example, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			ctx, cancel := a.context()
			defer cancel()
			p, err := a.newProcess(name)
			if err != nil {
				return err
			}
			defer p.close()
			if err := p.needDistributed(); err != nil {
				return err
			}
			err = run(ctx, p)
			if ctx.Err() != nil && err != nil {
				return nil // it was told to stop while it waited
			}
			return err
		},
	}
}

// needDistributed checks what a single service cannot do without.
func (p *process) needDistributed() error {
	s := p.settings
	if s.NATS.Embedded() {
		return fault.New(fault.Invalid, "BUTLER_NATS_URL is not set: a single service needs a NATS server that all services "+
			"share; `butler up` brings one along")
	}
	return nil
}

func (a *app) gatewayCommand() *cobra.Command {
	return a.serviceCommand("gateway", "Run the gateway: page, API, WebSocket, accounts",
		"Runs the gateway alone: the page, the HTTP API, the WebSocket, the OpenAI API and the accounts.",
		`  BUTLER_NATS_URL=nats://nats:4222 BUTLER_DATABASE_URL=postgres://… INTERNAL_SERVICE_TOKEN=… \
    BUTLER_BRAIN_TARGET=brain:8092 BUTLER_REGISTRY_TARGET=registry:8093 BUTLER_APPROVAL_TARGET=approval:8094 \
    BUTLER_SHELL_TARGETS=web1=web1:8096 butler gateway`,
		func(ctx context.Context, p *process) error {
			s := p.settings
			if err := p.serveOps(); err != nil {
				return err
			}
			l, err := p.listen("BUTLER_HTTP_ADDR", s.HTTP.Addr)
			if err != nil {
				return err
			}
			brainConn, err := p.dial("butler-brain", s.RPC.BrainTarget, nil)
			if err != nil {
				return err
			}
			registryConn, err := p.dial("agent-registry", s.RPC.RegistryTarget, nil)
			if err != nil {
				return err
			}
			approvalConn, err := p.dial("approval", s.RPC.ApprovalTarget, nil)
			if err != nil {
				return err
			}
			shells, err := p.dialShells(nil, false)
			if err != nil {
				return err
			}
			peopleListener, err := p.listen("BUTLER_PEOPLE_ADDR", s.RPC.PeopleAddr)
			if err != nil {
				return err
			}
			server, err := p.rpcServer(false)
			if err != nil {
				return err
			}
			waiting := p.serveWhileWaiting(l)
			b, err := p.connectBus(ctx, "gateway", nil)
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
			if generated != "" {
				p.log.Info("the first administrator was made; the password is in a file of mode 0600",
					"user", s.Accounts.AdminUser, "file", initialPasswordFile(s))
			}
			if l, err = waiting.handOver(); err != nil {
				return err
			}
			svc, err := p.startGateway(l, b, st, gatewayConns{brainConn, registryConn, approvalConn, shells.Hosts})
			if err != nil {
				return err
			}
			svc.Register(server)
			p.start("rpc", func(ctx context.Context) error { return server.Serve(ctx, peopleListener) })
			p.log.Info("the gateway listens", "addr", l.Addr().String(), "rpc", peopleListener.Addr().String())
			return p.run(ctx)
		})
}

func (a *app) brainCommand() *cobra.Command {
	return a.serviceCommand("brain", "Run butler-brain: sessions, turns, model and tools",
		"Runs butler-brain alone. Any number of replicas share the conversations.",
		`  BUTLER_NATS_URL=nats://nats:4222 INTERNAL_SERVICE_TOKEN=… BUTLER_BRAIN_ADDR=0.0.0.0:8092 \
    BUTLER_REGISTRY_TARGET=registry:8093 BUTLER_APPROVAL_TARGET=approval:8094 BUTLER_SHELL_TARGETS=web1=web1:8096 \
    BUTLER_BASE_URL=https://… BUTLER_MODEL=… butler brain`,
		func(ctx context.Context, p *process) error {
			s := p.settings
			if err := p.serveOps(); err != nil {
				return err
			}
			l, err := p.listen("BUTLER_BRAIN_ADDR", s.RPC.BrainAddr)
			if err != nil {
				return err
			}
			server, err := p.rpcServer(false)
			if err != nil {
				return err
			}
			registryConn, err := p.dial("agent-registry", s.RPC.RegistryTarget, nil)
			if err != nil {
				return err
			}
			approvalConn, err := p.dial("approval", s.RPC.ApprovalTarget, nil)
			if err != nil {
				return err
			}
			compactorConn, err := p.dial("compactor", s.RPC.CompactorTarget, nil)
			if err != nil {
				return err
			}
			shells, err := p.dialShells(nil, false)
			if err != nil {
				return err
			}
			b, err := p.connectBus(ctx, "brain", nil)
			if err != nil {
				return err
			}
			svc, err := p.startBrain(b, butlerv1.NewRegistryServiceClient(registryConn),
				acting{butlerv1.NewApprovalServiceClient(approvalConn), shells, butlerv1.NewCompactorServiceClient(compactorConn)})
			if err != nil {
				return err
			}
			svc.Register(server)
			p.start("rpc", func(ctx context.Context) error { return server.Serve(ctx, l) })
			p.log.Info("butler-brain listens", "addr", l.Addr().String())
			return p.run(ctx)
		})
}

func (a *app) registryCommand() *cobra.Command {
	return a.serviceCommand("registry", "Run agent-registry: agents and who is online",
		"Runs agent-registry alone.",
		`  BUTLER_NATS_URL=nats://nats:4222 BUTLER_DATABASE_URL=postgres://… INTERNAL_SERVICE_TOKEN=… \
    BUTLER_REGISTRY_ADDR=0.0.0.0:8093 butler registry`,
		func(ctx context.Context, p *process) error {
			s := p.settings
			if err := p.serveOps(); err != nil {
				return err
			}
			l, err := p.listen("BUTLER_REGISTRY_ADDR", s.RPC.RegistryAddr)
			if err != nil {
				return err
			}
			server, err := p.rpcServer(false)
			if err != nil {
				return err
			}
			b, err := p.connectBus(ctx, "registry", nil)
			if err != nil {
				return err
			}
			db, err := p.openDatabase(ctx)
			if err != nil {
				return err
			}
			svc, err := p.startRegistry(ctx, b, db, nil)
			if err != nil {
				return err
			}
			svc.Register(server)
			p.start("rpc", func(ctx context.Context) error { return server.Serve(ctx, l) })
			p.log.Info("agent-registry listens", "addr", l.Addr().String())
			return p.run(ctx)
		})
}
