package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/config"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/butler-brain"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

// thinker runs butler-brain, and puts a new one in its place when the settings of the model or of turns change. What
// the old one was answering goes on with the new one, as after a restart.
type thinker struct {
	butlerv1.UnimplementedBrainServiceServer

	p       *process
	bus     *bus.Bus
	agents  butlerv1.RegistryServiceClient
	acting  acting
	anew    chan struct{} // holds one token when the settings changed
	current atomic.Pointer[brain.Service]
}

// acting is what butler-brain needs to have commands run and conversations compacted: who decides, where they run, and who
// summarises.
type acting struct {
	approval  butlerv1.ApprovalServiceClient
	shells    brain.Shells
	compactor butlerv1.CompactorServiceClient
}

// generation is one butler-brain and what belongs to it alone.
type generation struct {
	service *brain.Service
	model   *model.Client
	metrics *revocable
}

// startBrain puts butler-brain together and starts it.
func (p *process) startBrain(b *bus.Bus, agents butlerv1.RegistryServiceClient, do acting) (*thinker, error) {
	t := &thinker{p: p, bus: b, agents: agents, acting: do, anew: make(chan struct{}, 1)}
	first, err := t.build(p.settings, p.replica)
	if err != nil {
		return nil, err
	}
	t.current.Store(first.service)
	p.check("brain", func(ctx context.Context) error { return t.current.Load().Ready(ctx) })
	p.onReload(func(next config.Settings, changed []string) error {
		if !slices.ContainsFunc(changed, func(key string) bool {
			return strings.HasPrefix(key, "model.") || strings.HasPrefix(key, "turn.") || key == "shell.command_timeout"
		}) {
			return nil
		}
		return t.replace(next)
	})
	p.start("brain", func(ctx context.Context) error { return t.run(ctx, first) })
	if first.model.Demo() {
		p.log.Info("the built-in demo model answers: set BUTLER_BASE_URL and BUTLER_MODEL for a real one")
	}
	return t, nil
}

func (t *thinker) build(s config.Settings, replica string) (*generation, error) {
	g := &generation{metrics: &revocable{to: t.p.tel.Registry}}
	limits, err := brainSettings(s)
	if err != nil {
		return nil, err
	}
	if g.model, err = newModel(s, model.Config{Log: t.p.log, Registerer: g.metrics}); err != nil {
		g.metrics.revoke()
		return nil, err
	}
	g.service, err = brain.New(brain.Deps{
		Bus: t.bus, Model: g.model, Agents: t.agents, Approval: t.acting.approval, Shells: t.acting.shells, Settings: limits, Compactor: t.acting.compactor,
		Replica: replica, Log: t.p.log, Metrics: g.metrics,
	})
	if err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *generation) close() {
	g.model.Close()
	g.metrics.revoke()
}

// replace has a new butler-brain made of other settings. Its metrics can only be registered once the old one's are gone,
// so it is made by run; what can be wrong with the settings is found here.
func (t *thinker) replace(next config.Settings) error {
	if _, err := brainSettings(next); err != nil {
		return err
	}
	trial, err := newModel(next, model.Config{})
	if err != nil {
		return err
	}
	trial.Close()
	select {
	case t.anew <- struct{}{}:
	default: // run will see the newest settings anyway
	}
	return nil
}

// run runs one butler-brain after the other until ctx ends.
func (t *thinker) run(ctx context.Context, g *generation) error {
	for n := 2; ; n++ {
		inner, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- g.service.Run(inner) }()
		var err error
		select {
		case err = <-ended:
			cancel()
			g.close()
			return err
		case <-t.anew:
		}
		t.p.log.Info("the model's settings changed: butler-brain begins anew")
		cancel()
		if err := <-ended; err != nil {
			t.p.log.Warn("the old butler-brain ended badly", "error", err)
		}
		g.close()
		t.p.mu.Lock()
		settings := t.p.settings
		t.p.mu.Unlock()
		if g, err = t.build(settings, fmt.Sprintf("%s-%d", t.p.replica, n)); err != nil {
			return err
		}
		t.current.Store(g.service)
	}
}

// Register adds the service's gRPC API to a server.
func (t *thinker) Register(r grpc.ServiceRegistrar) { butlerv1.RegisterBrainServiceServer(r, t) }

// Complete answers with the butler-brain of now.
func (t *thinker) Complete(req *butlerv1.CompleteRequest, stream grpc.ServerStreamingServer[butlerv1.CompleteResponse]) error {
	return t.current.Load().Complete(req, stream)
}

// ListModels answers with the butler-brain of now.
func (t *thinker) ListModels(ctx context.Context, req *butlerv1.ListModelsRequest) (*butlerv1.ListModelsResponse, error) {
	return t.current.Load().ListModels(ctx, req)
}

// revocable registers metrics that are taken back together.
type revocable struct {
	to prometheus.Registerer

	mu    sync.Mutex
	taken []prometheus.Collector
}

// Register registers a collector.
func (r *revocable) Register(c prometheus.Collector) error {
	if err := r.to.Register(c); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = append(r.taken, c)
	return nil
}

// MustRegister registers collectors and panics when one cannot be.
func (r *revocable) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// Unregister takes one back.
func (r *revocable) Unregister(c prometheus.Collector) bool { return r.to.Unregister(c) }

func (r *revocable) revoke() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.taken {
		r.to.Unregister(c)
	}
	r.taken = nil
}
