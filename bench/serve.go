package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/pprof"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/config"
	"github.com/butlerhub/butler/pkg/rpc"
	"github.com/butlerhub/butler/pkg/storage"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/agent-registry"
	"github.com/butlerhub/butler/services/butler-brain"
	"github.com/butlerhub/butler/services/butler-brain/model"
	"github.com/butlerhub/butler/services/gateway"
	"github.com/butlerhub/butler/services/gateway/store"
	"github.com/butlerhub/butler/web"
)

// serveVariable makes this program a Butler that can be profiled; its value is the file for the CPU profile. The product
// itself offers no profiles.
const serveVariable = "BUTLER_BENCH_SERVE"

// serve wires the services as `butler up` does, without its command line, until ctx ends. POST /profile/start and
// /profile/stop on the ops address say what part of its life the profile is of.
func serve(ctx context.Context) error {
	s, _, err := config.Load(config.Options{KnownEnv: []string{serveVariable}})
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: s.Log.Level}))
	server, err := bus.StartServer(bus.ServerOptions{
		Dir: s.Path("nats"), Addr: s.NATS.Addr, Sync: s.NATS.SyncInterval, Log: log, Operator: rand.Text(),
	})
	if err != nil {
		return err
	}
	defer server.Close()
	buses := map[string]*bus.Bus{}
	for _, name := range []string{"registry", "brain", "gateway"} {
		if buses[name], err = bus.Connect(ctx, bus.Options{Server: server, Service: name, Log: log}); err != nil {
			return err
		}
		defer buses[name].Close()
	}
	db, err := storage.Open(ctx, "sqlite:"+s.Path("butler.db"), storage.Options{})
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // nothing of it is needed again
	w := &wiring{token: rand.Text() + rand.Text(), log: log}
	registryConn, brainConn, err := w.dial()
	if err != nil {
		return err
	}
	defer w.close()

	if err := buses["registry"].Ensure(ctx, bus.PresenceBucket); err != nil {
		return err
	}
	agents, err := registry.New(registry.Deps{DB: db, Presence: buses["registry"], Log: log})
	if err != nil {
		return err
	}
	client, err := model.New(model.Config{
		BaseURL: s.Model.BaseURL, APIToken: s.Model.APIToken.Reveal(), Model: s.Model.Name, IdleTimeout: s.Model.IdleTimeout, Log: log,
	})
	if err != nil {
		return err
	}
	defer client.Close()
	thinker, err := brain.New(brain.Deps{
		Bus: buses["brain"], Model: client, Agents: butlerv1.NewRegistryServiceClient(registryConn), Replica: "bench", Log: log,
	})
	if err != nil {
		return err
	}
	st, err := store.New(db, store.Options{Password: store.Params{Time: s.Accounts.PasswordTime, MemoryKiB: s.Accounts.PasswordMemoryKiB}})
	if err != nil {
		return err
	}
	if err := st.Migrate(ctx); err != nil {
		return err
	}
	_, err = gateway.FirstAdmin(ctx, st, s.Accounts.AdminUser, s.Accounts.AdminPassword.Reveal(), s.Path("initial-admin-password"))
	if err != nil {
		return err
	}
	edge, err := gateway.New(gateway.Deps{
		Bus: buses["gateway"], Store: st, Page: web.Handler(), Log: log, Settings: gateway.Settings{Addr: s.HTTP.Addr},
		Brain: butlerv1.NewBrainServiceClient(brainConn), Registry: butlerv1.NewRegistryServiceClient(registryConn),
	})
	if err != nil {
		return err
	}
	checks := edge.Checks()
	checks["brain"] = thinker.Ready
	return w.run(ctx, map[string]func(context.Context) error{
		"agent-registry": agents.Run, "butler-brain": thinker.Run, "gateway": edge.Run,
		"agent-registry's gRPC": w.server(agents, w.registry), "butler-brain's gRPC": w.server(thinker, w.brain),
		"ops": func(ctx context.Context) error { return serveOps(ctx, s.Ops.Addr, checks) },
	})
}

// wiring is how the services reach each other inside the process.
type wiring struct {
	token           string
	log             *slog.Logger
	registry, brain *rpc.Local
	conns           []*grpc.ClientConn
}

func (w *wiring) security() rpc.Security { return rpc.Security{Token: w.token} }

func (w *wiring) dial() (registryConn, brainConn *grpc.ClientConn, err error) {
	w.registry, w.brain = rpc.NewLocal(), rpc.NewLocal()
	for _, l := range []*rpc.Local{w.registry, w.brain} {
		conn, err := rpc.NewClient(rpc.ClientOptions{Security: w.security(), Local: l})
		if err != nil {
			return nil, nil, err
		}
		w.conns = append(w.conns, conn)
	}
	return w.conns[0], w.conns[1], nil
}

func (w *wiring) close() {
	for _, c := range w.conns {
		_ = c.Close()
	}
}

func (w *wiring) server(svc interface {
	Register(grpc.ServiceRegistrar)
}, l net.Listener,
) func(context.Context) error {
	return func(ctx context.Context) error {
		server, err := rpc.NewServer(rpc.ServerOptions{Security: w.security(), Log: w.log, StopTimeout: time.Second})
		if err != nil {
			return err
		}
		svc.Register(server)
		return server.Serve(ctx, l)
	}
}

// run runs the parts until ctx ends or one fails.
func (w *wiring) run(ctx context.Context, parts map[string]func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for name, part := range parts {
		wg.Go(func() {
			if err := part(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// serveOps answers /ready, and begins and ends the profile.
func serveOps(ctx context.Context, addr string, checks map[string]func(context.Context) error) error {
	var file *os.File
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		for name, check := range checks {
			if err := check(ctx); err != nil {
				http.Error(w, name+": "+err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
	})
	mux.HandleFunc("POST /profile/start", func(w http.ResponseWriter, _ *http.Request) {
		var err error
		if file, err = os.Create(os.Getenv(serveVariable)); err == nil { //nolint:gosec // the caller's own file
			err = pprof.StartCPUProfile(file)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("POST /profile/stop", func(w http.ResponseWriter, _ *http.Request) {
		pprof.StopCPUProfile()
		if err := file.Close(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
