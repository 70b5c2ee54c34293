package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/telemetry"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "0123456789abcdef0123456789abcdef"

// service is a real service of the product whose answers a test decides.
type service struct {
	butlerv1.UnimplementedRegistryServiceServer
	butlerv1.UnimplementedBrainServiceServer
	list     func(context.Context) (*butlerv1.ListAgentsResponse, error)
	complete func(*butlerv1.CompleteRequest, grpc.ServerStreamingServer[butlerv1.CompleteResponse]) error
}

func (s *service) ListAgents(ctx context.Context, _ *butlerv1.ListAgentsRequest) (*butlerv1.ListAgentsResponse, error) {
	return s.list(ctx)
}

func (s *service) Complete(req *butlerv1.CompleteRequest,
	stream grpc.ServerStreamingServer[butlerv1.CompleteResponse]) error {
	return s.complete(req, stream)
}

func empty(context.Context) (*butlerv1.ListAgentsResponse, error) {
	return &butlerv1.ListAgentsResponse{}, nil
}

// serve runs a server until the test ends, or until stop is called, which waits for it.
func serve(t *testing.T, l net.Listener, impl *service, o ServerOptions) (stop func()) {
	t.Helper()
	if o.Token == "" && o.CertFile == "" {
		o.Token = token
	}
	s, err := NewServer(o)
	require.NoError(t, err)
	butlerv1.RegisterRegistryServiceServer(s, impl)
	butlerv1.RegisterBrainServiceServer(s, impl)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := telemetry.Listen("TEST", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

func dial(t *testing.T, o ClientOptions) *grpc.ClientConn {
	t.Helper()
	if o.Token == "" && o.CertFile == "" {
		o.Token = token
	}
	if o.Service == "" {
		o.Service = "agent-registry"
	}
	conn, err := NewClient(o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func listAgents(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := butlerv1.NewRegistryServiceClient(conn).ListAgents(ctx, &butlerv1.ListAgentsRequest{})
	return err
}

func TestFaultsCrossTheWire(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "local"} {
		impl := &service{}
		var conn *grpc.ClientConn
		if network == "tcp" {
			l := listen(t)
			serve(t, l, impl, ServerOptions{})
			conn = dial(t, ClientOptions{Target: l.Addr().String()})
		} else {
			l := NewLocal()
			serve(t, l, impl, ServerOptions{})
			conn = dial(t, ClientOptions{Local: l})
		}
		calls := 0
		for _, c := range []struct {
			err     error
			code    fault.Code
			message string
			after   time.Duration
		}{
			{nil, "", "internal error", 0},
			{fault.New(fault.Invalid, "the name is empty"), fault.Invalid, "the name is empty", 0},
			{fault.Wrap(errors.New("hunter2"), fault.TooLarge, "too big"), fault.TooLarge, "too big", 0},
			{fault.New(fault.Unauthenticated, "sign in"), fault.Unauthenticated, "sign in", 0},
			{fault.New(fault.Forbidden, "not yours"), fault.Forbidden, "not yours", 0},
			{fault.New(fault.NotFound, "no such agent"), fault.NotFound, "no such agent", 0},
			{fault.New(fault.Conflict, "exists"), fault.Conflict, "exists", 0},
			{&fault.Error{Code: fault.RateLimited, Message: "slow down", RetryAfter: 7 * time.Second}, fault.RateLimited,
				"slow down", 7 * time.Second},
			{fault.New(fault.Unavailable, "the model is down"), fault.Unavailable, "the model is down", 0},
			{&fault.Error{Message: "no code"}, fault.Internal, "no code", 0},
			{errors.New("hunter2"), fault.Internal, "internal error", 0},
			{fault.Wrap(status.Error(codes.NotFound, "hunter2"), fault.Conflict, "it changed"), fault.Conflict, "it changed", 0},
			{errors.Join(errors.New("hunter2"), status.Error(codes.NotFound, "x")), fault.Internal, "internal error", 0},
			{context.DeadlineExceeded, fault.Unavailable, "agent-registry took too long; try again", 0},
		} {
			calls = 0
			impl.list = func(context.Context) (*butlerv1.ListAgentsResponse, error) {
				calls++
				return &butlerv1.ListAgentsResponse{}, c.err
			}
			err := listAgents(t.Context(), conn)
			if c.err == nil {
				require.NoError(t, err)
				continue
			}
			require.Equal(t, c.code, fault.CodeOf(err), "%v", c.err)
			require.Equal(t, c.message, fault.MessageOf(err))
			require.Equal(t, c.after, fault.RetryAfter(err))
			require.NotContains(t, err.Error(), "hunter2")
			require.Equal(t, 1, calls, "what a handler says is not tried again: %v", c.err)
		}
	}
}

func TestOnlyTheInternalTokenOpens(t *testing.T) {
	t.Parallel()
	l := listen(t)
	called := false
	serve(t, l, &service{
		list: func(context.Context) (*butlerv1.ListAgentsResponse, error) { called = true; return nil, nil },
		complete: func(*butlerv1.CompleteRequest, grpc.ServerStreamingServer[butlerv1.CompleteResponse]) error {
			called = true
			return nil
		},
	}, ServerOptions{})
	raw, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer raw.Close()
	for _, auth := range [][]string{nil, {""}, {"Bearer"}, {"Bearer "}, {token}, {"Basic " + token},
		{"Bearer " + token + "x"}, {"Bearer " + token[1:]}, {"Bearer " + token, "Bearer " + token}} {
		ctx := t.Context()
		for _, v := range auth {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", v)
		}
		require.Equal(t, codes.Unauthenticated, status.Code(listAgents(ctx, raw)), "%q", auth)
		stream, err := butlerv1.NewBrainServiceClient(raw).Complete(ctx, &butlerv1.CompleteRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, codes.Unauthenticated, status.Code(err), "%q", auth)
	}
	require.False(t, called)

	h, err := healthpb.NewHealthClient(raw).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, h.GetStatus())

	wrong := dial(t, ClientOptions{Target: l.Addr().String(), Security: Security{Token: strings.Repeat("x", 32)}})
	err = listAgents(t.Context(), wrong)
	require.Equal(t, fault.Internal, fault.CodeOf(err), "people are not asked to sign in again")
	require.Contains(t, fault.MessageOf(err), "INTERNAL_SERVICE_TOKEN")
}

func TestSecurityIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		security Security
		want     string
	}{
		{Security{}, "INTERNAL_SERVICE_TOKEN is not set"},
		{Security{Token: "short"}, "at least 32"},
		{Security{Token: token, CertFile: "/a"}, "or none"},
		{Security{CertFile: "/nowhere/a", KeyFile: "/nowhere/b", CAFile: "/nowhere/c"}, "BUTLER_TLS_CA cannot be read"},
	} {
		_, err := NewServer(ServerOptions{Security: c.security})
		require.ErrorContains(t, err, c.want)
		_, err = NewClient(ClientOptions{Security: c.security, Target: "127.0.0.1:1"})
		require.ErrorContains(t, err, c.want)
	}
}

func TestUnaryCallsHaveADeadline(t *testing.T) {
	t.Parallel()
	l := listen(t)
	left := make(chan time.Duration, 1)
	serve(t, l, &service{list: func(ctx context.Context) (*butlerv1.ListAgentsResponse, error) {
		deadline, ok := ctx.Deadline()
		if !ok {
			return nil, errors.New("no deadline")
		}
		left <- time.Until(deadline)
		return &butlerv1.ListAgentsResponse{}, nil
	}}, ServerOptions{})
	raw, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(tokenCredentials(token)))
	require.NoError(t, err)
	defer raw.Close()
	for _, conn := range []*grpc.ClientConn{raw, dial(t, ClientOptions{Target: l.Addr().String()})} {
		require.NoError(t, listAgents(context.Background(), conn))
		require.InDelta(t, DefaultTimeout.Seconds(), (<-left).Seconds(), 5)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		require.NoError(t, listAgents(ctx, conn))
		cancel()
		require.Greater(t, <-left, 50*time.Minute)
	}
}

func TestPanicsEndTheirCallOnly(t *testing.T) {
	t.Parallel()
	l := NewLocal()
	impl := &service{
		list: func(context.Context) (*butlerv1.ListAgentsResponse, error) { panic("hunter2") },
		complete: func(*butlerv1.CompleteRequest, grpc.ServerStreamingServer[butlerv1.CompleteResponse]) error {
			panic("hunter2")
		},
	}
	var log lines
	serve(t, l, impl, ServerOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
	conn := dial(t, ClientOptions{Local: l})
	err := listAgents(t.Context(), conn)
	require.Equal(t, fault.Internal, fault.CodeOf(err))
	require.NotContains(t, err.Error(), "hunter2")
	stream, err := butlerv1.NewBrainServiceClient(conn).Complete(t.Context(), &butlerv1.CompleteRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, fault.Internal, fault.CodeOf(err))
	require.Contains(t, log.String(), "panicked")
	impl.list = empty
	require.NoError(t, listAgents(t.Context(), conn))
}

type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestStreams(t *testing.T) {
	t.Parallel()
	l := NewLocal()
	cancelled := make(chan struct{})
	impl := &service{complete: func(req *butlerv1.CompleteRequest,
		stream grpc.ServerStreamingServer[butlerv1.CompleteResponse]) error {
		for _, m := range req.GetMessages() {
			if err := stream.Send(&butlerv1.CompleteResponse{Text: m.GetText()}); err != nil {
				return err
			}
		}
		switch req.GetLanguage() {
		case "wait":
			<-stream.Context().Done()
			close(cancelled)
			return stream.Context().Err()
		case "fail":
			return fault.New(fault.Unavailable, "the model is down")
		}
		return nil
	}}
	reg := prometheus.NewRegistry()
	stop := serve(t, l, impl, ServerOptions{Registerer: reg})
	ended := make(spansEnd, 3)
	brain := butlerv1.NewBrainServiceClient(dial(t, ClientOptions{Local: l, Service: "butler-brain", Registerer: reg,
		Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(ended))}))
	two := []*butlerv1.CompleteMessage{{Text: "a"}, {Text: "b"}}
	for language, want := range map[string]error{"": io.EOF, "fail": fault.New(fault.Unavailable, "")} {
		stream, err := brain.Complete(t.Context(), &butlerv1.CompleteRequest{Messages: two, Language: language})
		require.NoError(t, err)
		for _, m := range two {
			got, err := stream.Recv()
			require.NoError(t, err)
			require.Equal(t, m.GetText(), got.GetText())
		}
		_, err = stream.Recv()
		if want == io.EOF {
			require.Equal(t, io.EOF, err, "the end is not wrapped")
		} else {
			require.Equal(t, "the model is down", fault.MessageOf(err))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := brain.Complete(ctx, &butlerv1.CompleteRequest{Messages: two[:1], Language: "wait"})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	cancel()
	<-cancelled
	_, err = stream.Recv()
	require.ErrorIs(t, err, context.Canceled)

	stop()
	for range 3 { // a cancelled stream ends on a goroutine of gRPC's
		<-ended
	}
	counts := counters(t, reg)
	method := "butler.v1.BrainService/Complete"
	for _, side := range []string{"server", "client"} {
		require.Equal(t, 1.0, counts["butler_rpc_"+side+"_calls_total "+method+" OK"], side)
		require.Equal(t, 1.0, counts["butler_rpc_"+side+"_calls_total "+method+" Unavailable"], side)
		require.Equal(t, 1.0, counts["butler_rpc_"+side+"_calls_total "+method+" Canceled"], side)
		require.Equal(t, 0.0, counts["butler_rpc_"+side+"_calls_in_flight "+method], side)
	}
}

// spansEnd tells of each span that ends, which is the last thing that is noted of a call.
type spansEnd chan string

func (spansEnd) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (e spansEnd) OnEnd(s sdktrace.ReadOnlySpan)                 { e <- s.Name() }
func (spansEnd) Shutdown(context.Context) error                  { return nil }
func (spansEnd) ForceFlush(context.Context) error                { return nil }

// counters gives counters and gauges by "name method code".
func counters(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			key := strings.TrimSpace(f.GetName() + " " + labels["method"] + " " + labels["code"])
			out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}
