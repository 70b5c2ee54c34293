package main

import (
	"context"

	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/storage"
	"github.com/butlerhub/butler/services/agent-registry"
)

// registrar is a service with a gRPC API.
type registrar interface {
	Register(r grpc.ServiceRegistrar)
}

// startRegistry puts agent-registry together and starts it. It waits for JetStream; for the database the service itself
// waits.
func (p *process) startRegistry(ctx context.Context, b *bus.Bus, db *storage.DB) (*registry.Service, error) {
	if err := b.Ensure(ctx, bus.PresenceBucket); err != nil {
		return nil, err
	}
	svc, err := registry.New(registry.Deps{DB: db, Presence: b, Log: p.log})
	if err != nil {
		return nil, err
	}
	p.check("registry", svc.Ready)
	p.start("registry", svc.Run)
	return svc, nil
}
