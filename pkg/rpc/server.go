package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/butlerhub/butler/pkg/fault"
)

// ServerOptions describe a server. Only Security is needed.
type ServerOptions struct {
	Security
	Log        *slog.Logger          // nil discards
	Registerer prometheus.Registerer // nil for no metrics
	Tracer     trace.TracerProvider  // nil for the global one
	// StopTimeout is how long calls may take to finish when Serve ends; 10 s when 0.
	StopTimeout time.Duration
}

// Server is a gRPC server. It is a grpc.ServiceRegistrar: register services before Serve. The health service is on,
// reflection is off. Handlers return faults (any other error becomes "internal error" and is logged); a panic ends its
// call only. A unary call without a deadline gets one of 30 s.
type Server struct {
	grpc        *grpc.Server
	health      *health.Server
	guard       *guard
	observer    *observer
	log         *slog.Logger
	stopTimeout time.Duration
	tls         bool
}

// NewServer gives a server that does not listen yet. It fails when Security is incomplete or its files cannot be read.
func NewServer(o ServerOptions) (*Server, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	creds, err := o.serverCredentials()
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = 10 * time.Second
	}
	s := &Server{
		health:      health.NewServer(),
		guard:       newGuard(o.Token, o.Log),
		observer:    newObserver("server", o.Tracer, o.Registerer),
		log:         o.Log,
		stopTimeout: o.StopTimeout,
		tls:         o.tls(),
	}
	s.grpc = grpc.NewServer(
		grpc.Creds(creds),
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxSendMsgSize(MaxMessage),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveTime, Timeout: keepaliveWait,
			MaxConnectionAge: connectionAge, MaxConnectionAgeGrace: connectionGrace,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 3, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	return s, nil
}

// RegisterService adds a service; call it before Serve.
func (s *Server) RegisterService(d *grpc.ServiceDesc, impl any) { s.grpc.RegisterService(d, impl) }

// Serve answers calls on l (a net.Listener, or a Local) until ctx ends; then it takes no new ones and waits for those
// that run, at most StopTimeout. It closes l. The error is nil when it ended because of ctx. A server serves once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if a, ok := l.Addr().(*net.TCPAddr); ok && !s.tls && !a.IP.IsLoopback() {
		s.log.Warn("gRPC listens beyond this machine without TLS: the internal token travels in the clear; "+
			"set BUTLER_TLS_CERT, BUTLER_TLS_KEY and BUTLER_TLS_CA", "addr", a.String())
	}
	failed := make(chan error, 1)
	go func() { failed <- s.grpc.Serve(l) }()
	select {
	case err := <-failed:
		s.grpc.Stop()
		return err
	case <-ctx.Done():
	}
	s.health.Shutdown()
	stopped := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(stopped)
	}()
	timer := time.NewTimer(s.stopTimeout)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		s.log.Warn("calls did not finish in time and are cut off", "waited", s.stopTimeout)
		s.grpc.Stop()
		<-stopped
	}
	if err := <-failed; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, end := s.observer.incoming(ctx, info.FullMethod)
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultTimeout)
		defer cancel()
	}
	var resp any
	err := s.call(ctx, info.FullMethod, func() (err error) {
		resp, err = next(ctx, req)
		return err
	})
	s.refuseRetry(err, func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) })
	end(err)
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, end := s.observer.incoming(ss.Context(), info.FullMethod)
	err := s.call(ctx, info.FullMethod, func() error { return next(srv, &tracedStream{ss, ctx}) })
	s.refuseRetry(err, ss.SetTrailer)
	end(err)
	return err
}

type tracedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (t *tracedStream) Context() context.Context { return t.ctx }

// call checks the token, runs a handler and turns what it returns, or its panic, into a status.
func (s *Server) call(ctx context.Context, method string, handler func() error) (err error) {
	if err := s.guard.check(ctx, method); err != nil {
		return err
	}
	defer func() {
		if p := recover(); p != nil {
			s.log.ErrorContext(ctx, "a gRPC handler panicked", "method", method, "panic", fmt.Sprint(p),
				"stack", string(debug.Stack()))
			err = toStatus(fault.New(fault.Internal, "internal error"))
		}
	}()
	err = handler()
	switch {
	case err == nil:
	case fault.CodeOf(err) == fault.Internal:
		s.log.ErrorContext(ctx, "a gRPC call failed", "method", method, "err", err)
	default:
		s.log.DebugContext(ctx, "a gRPC call was refused", "method", method, "err", err)
	}
	return toStatus(err)
}

// refuseRetry tells the client's retry policy that a handler which says "unavailable" means it: it has tried what can
// be tried. What remains for the policy are connections that fail.
func (s *Server) refuseRetry(err error, setTrailer func(metadata.MD)) {
	if status.Code(err) == codes.Unavailable {
		setTrailer(metadata.Pairs("grpc-retry-pushback-ms", "-1"))
	}
}
