package main

import (
	"context"
	"os"
	"strings"

	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
	"github.com/butlerhub/butler/services/agent-registry"
)

// registrar is a service with a gRPC API.
type registrar interface {
	Register(r grpc.ServiceRegistrar)
}

// startRegistry puts agent-registry together and starts it; server is the embedded NATS server, when there is one. It waits
// for JetStream; for the database the service itself waits.
func (p *process) startRegistry(ctx context.Context, b *bus.Bus, db *storage.DB, server *bus.Server) (*registry.Service, error) {
	issuer, err := agentsKey(p.settings.NATS.AgentsKey, server)
	if err != nil {
		return nil, err
	}
	if err := b.Ensure(ctx, bus.TaskStream, bus.ReportStream, bus.WorkStream, bus.ParkedStream, bus.PresenceBucket); err != nil {
		return nil, err
	}
	svc, err := registry.New(registry.Deps{DB: db, Presence: b, Bus: b, Issuer: issuer, Log: p.log})
	if err != nil {
		return nil, err
	}
	p.check("registry", svc.Ready)
	p.start("registry", svc.Run)
	return svc, nil
}

// agentsKey gives the seed with which agents are let in; empty when there is none.
func agentsKey(file string, server *bus.Server) (string, error) {
	if server != nil {
		return server.Issuer(), nil
	}
	if file == "" {
		return "", nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fault.Wrap(pathCause(err), fault.Invalid, "BUTLER_AGENTS_KEY: %s cannot be read", file)
	}
	return strings.TrimSpace(string(data)), nil
}
