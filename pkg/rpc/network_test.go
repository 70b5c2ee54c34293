package rpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func TestTraceContextCrosses(t *testing.T) {
	t.Parallel()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	l := NewLocal()
	there := make(chan trace.SpanContext, 2)
	serve(t, l, &service{
		list: func(ctx context.Context) (*butlerv1.ListAgentsResponse, error) {
			there <- trace.SpanContextFromContext(ctx)
			return empty(ctx)
		},
		complete: func(_ *butlerv1.CompleteRequest, s grpc.ServerStreamingServer[butlerv1.CompleteResponse]) error {
			there <- trace.SpanContextFromContext(s.Context())
			return nil
		},
	}, ServerOptions{Tracer: provider})
	conn := dial(t, ClientOptions{Local: l, Tracer: provider})
	ctx, span := provider.Tracer("test").Start(t.Context(), "turn")
	defer span.End()
	require.NoError(t, listAgents(ctx, conn))
	stream, err := butlerv1.NewBrainServiceClient(conn).Complete(ctx, &butlerv1.CompleteRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Error(t, err)
	for range 2 {
		got := <-there
		require.Equal(t, span.SpanContext().TraceID(), got.TraceID())
		require.NotEqual(t, span.SpanContext().SpanID(), got.SpanID())
	}
}

func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	l := NewLocal()
	serve(t, l, &service{list: func(context.Context) (*butlerv1.ListAgentsResponse, error) {
		return &butlerv1.ListAgentsResponse{Agents: []*butlerv1.Agent{{Description: strings.Repeat("x", MaxMessage)}}}, nil
	}}, ServerOptions{})
	conn := dial(t, ClientOptions{Local: l})
	err := listAgents(t.Context(), conn)
	require.Equal(t, fault.TooLarge, fault.CodeOf(err))
	_, err = butlerv1.NewRegistryServiceClient(conn).RegisterAgent(t.Context(),
		&butlerv1.RegisterAgentRequest{Description: strings.Repeat("x", MaxMessage)})
	require.Equal(t, fault.TooLarge, fault.CodeOf(err))
}

func TestAClientNeedsNoServerToBeMade(t *testing.T) {
	t.Parallel()
	l := listen(t)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	reg := prometheus.NewRegistry()
	conn := dial(t, ClientOptions{Target: addr, ReadyWait: 20 * time.Millisecond, Registerer: reg})
	err := listAgents(t.Context(), conn)
	require.Equal(t, fault.Unavailable, fault.CodeOf(err))
	require.Equal(t, "agent-registry does not answer now; try again", fault.MessageOf(err))
	require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller had time left")
	_, err = butlerv1.NewBrainServiceClient(conn).Complete(t.Context(), &butlerv1.CompleteRequest{})
	require.Equal(t, fault.Unavailable, fault.CodeOf(err))
	require.Equal(t, 1.0, counters(t, reg)["butler_rpc_client_calls_total "+
		"butler.v1.RegistryService/ListAgents Unavailable"])

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, listAgents(gone, conn), context.Canceled)

	// It starts later, stops, and starts again: the same client reaches it each time.
	patient := dial(t, ClientOptions{Target: addr, ReadyWait: 20 * time.Second})
	for range 2 {
		result := make(chan error, 1)
		go func() { result <- listAgents(context.Background(), patient) }()
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err)
		stop := serve(t, l, &service{list: empty}, ServerOptions{})
		require.NoError(t, <-result)
		stop()
	}
	require.NoError(t, patient.Close())
	err = listAgents(t.Context(), patient)
	require.Equal(t, fault.Unavailable, fault.CodeOf(err))
}

func TestABadTargetIsRefused(t *testing.T) {
	t.Parallel()
	_, err := NewClient(ClientOptions{Security: Security{Token: token}, Service: "butler-brain", Target: "dns://%"})
	require.ErrorContains(t, err, "the address of butler-brain is not valid")
}

func TestStoppingLetsCallsFinish(t *testing.T) {
	t.Parallel()
	l := listen(t)
	entered, release := make(chan struct{}), make(chan struct{})
	stop := serve(t, l, &service{list: func(ctx context.Context) (*butlerv1.ListAgentsResponse, error) {
		close(entered)
		<-release
		return empty(ctx)
	}}, ServerOptions{StopTimeout: time.Minute})
	result := make(chan error, 1)
	conn := dial(t, ClientOptions{Target: l.Addr().String()})
	go func() { result <- listAgents(context.Background(), conn) }()
	<-entered
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	close(release)
	require.NoError(t, <-result)
	<-stopped
}

func TestStoppingIsBounded(t *testing.T) {
	t.Parallel()
	l := listen(t)
	entered := make(chan struct{})
	stop := serve(t, l, &service{list: func(ctx context.Context) (*butlerv1.ListAgentsResponse, error) {
		close(entered)
		<-ctx.Done()
		return nil, ctx.Err()
	}}, ServerOptions{StopTimeout: time.Millisecond})
	result := make(chan error, 1)
	conn := dial(t, ClientOptions{Target: l.Addr().String(), ReadyWait: time.Millisecond * 500})
	go func() { result <- listAgents(context.Background(), conn) }()
	<-entered
	stop()
	require.Equal(t, fault.Unavailable, fault.CodeOf(<-result))
}

func TestListeningBeyondThisMachineWithoutTLSIsTold(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "0.0.0.0:0")
	require.NoError(t, err)
	var log lines
	stop := serve(t, l, &service{list: empty}, ServerOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, listAgents(t.Context(), dial(t, ClientOptions{Target: "127.0.0.1:" + port})))
	stop()
	require.Contains(t, log.String(), "BUTLER_TLS_CERT")
}

// authority issues certificates for 127.0.0.1 into a folder.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	a := &authority{t, t.TempDir(), cert, key}
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	require.NoError(a.t, os.WriteFile(filepath.Join(a.dir, name),
		pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

func (a *authority) issue(name string, serial int64) Security {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(serial),
		Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{{127, 0, 0, 1}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}},
		a.cert, &key.PublicKey, a.key)
	require.NoError(a.t, err)
	private, err := x509.MarshalECPrivateKey(key)
	require.NoError(a.t, err)
	a.write(name+".pem", "CERTIFICATE", der)
	a.write(name+"-key.pem", "EC PRIVATE KEY", private)
	return Security{CertFile: filepath.Join(a.dir, name+".pem"), KeyFile: filepath.Join(a.dir, name+"-key.pem"),
		CAFile: filepath.Join(a.dir, "ca.pem")}
}

func TestMutualTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t), newAuthority(t)
	l := listen(t)
	serve(t, l, &service{list: empty}, ServerOptions{Security: ours.issue("brain", 2)})
	at := l.Addr().String()
	_, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	wait := 300 * time.Millisecond
	require.NoError(t, listAgents(t.Context(), dial(t, ClientOptions{Target: at, Security: ours.issue("gateway", 3)})))

	foreign := theirs.issue("gateway", 3)
	foreign.CAFile = filepath.Join(ours.dir, "ca.pem")
	for name, c := range map[string]ClientOptions{
		"foreign client": {Target: at, Security: foreign, ReadyWait: wait},
		"foreign server": {Target: at, Security: theirs.issue("other", 4), ReadyWait: wait},
		"no certificate": {Target: at, Security: Security{Token: token}, ReadyWait: wait},
		"another name":   {Target: "localhost:" + port, Security: ours.issue("x", 5), ReadyWait: wait},
	} {
		err := listAgents(t.Context(), dial(t, c))
		require.Equal(t, fault.Unavailable, fault.CodeOf(err), "%s: %v", name, err)
	}

	both := ours.issue("registry", 6)
	both.Token = token
	second := listen(t)
	serve(t, second, &service{list: empty}, ServerOptions{Security: both})
	require.NoError(t, listAgents(t.Context(), dial(t, ClientOptions{Target: second.Addr().String(), Security: both})))
	certificateOnly := both
	certificateOnly.Token = ""
	err = listAgents(t.Context(), dial(t, ClientOptions{Target: second.Addr().String(), Security: certificateOnly}))
	require.Contains(t, fault.MessageOf(err), "INTERNAL_SERVICE_TOKEN", "certificate and token are both needed")
}

func TestARenewedCertificateIsTaken(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	s := ca.issue("brain", 2)
	own, _, err := s.load()
	require.NoError(t, err)
	serial := func() int64 {
		pair, err := own.get()
		require.NoError(t, err)
		return pair.Leaf.SerialNumber.Int64()
	}
	require.EqualValues(t, 2, serial())
	renewed := time.Now().Add(time.Minute)
	ca.issue("brain", 3)
	require.NoError(t, os.Chtimes(s.CertFile, renewed, renewed))
	require.EqualValues(t, 3, serial())
	require.NoError(t, os.WriteFile(s.KeyFile, []byte("half a file"), 0o600))
	require.NoError(t, os.Chtimes(s.KeyFile, renewed, renewed))
	require.EqualValues(t, 3, serial(), "the last good pair")
	require.NoError(t, os.Remove(s.KeyFile))
	require.EqualValues(t, 3, serial())
}
