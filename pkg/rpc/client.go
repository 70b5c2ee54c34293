package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"

	"github.com/butlerhub/butler/pkg/fault"
)

// ClientOptions describe a client of one service.
type ClientOptions struct {
	Security
	// Service is the name that errors tell people, such as "butler-brain".
	Service string
	// Target is what to dial: host:port, or dns:///name:port to spread calls over all addresses of a name. Ignored with
	// Local.
	Target string
	// Local is the listener of a server in this process.
	Local      *Local
	Registerer prometheus.Registerer // nil for no metrics
	Tracer     trace.TracerProvider  // nil for the global one
	// ReadyWait is how long a call waits for a connection before it fails as unavailable; 5 s when 0.
	ReadyWait time.Duration
}

// serviceConfig spreads calls over the replicas and tries again when a connection fails before an answer began.
const serviceConfig = `{
	"loadBalancingConfig": [{"round_robin": {}}],
	"methodConfig": [{
		"name": [{}],
		"retryPolicy": {
			"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
			"retryableStatusCodes": ["UNAVAILABLE"]
		}
	}]
}`

// NewClient gives a connection that is opened by the first call and reopened when it breaks, until Close. It does not
// block, and the service need not run yet. Calls return faults. A unary call without a deadline gets one of 30 s; a
// stream has none of its own: give its context one, and always cancel it or read to the end.
func NewClient(o ClientOptions) (*grpc.ClientConn, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Service == "" {
		o.Service = "the service"
	}
	if o.ReadyWait == 0 {
		o.ReadyWait = 5 * time.Second
	}
	creds, err := o.clientCredentials()
	if err != nil {
		return nil, err
	}
	c := &client{service: o.Service, readyWait: o.ReadyWait, observer: newObserver("client", o.Tracer, o.Registerer)}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDisableServiceConfig(), // none from DNS
		grpc.WithNoProxy(),              // HTTPS_PROXY is for the world outside
		grpc.WithUserAgent("butler"),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepaliveTime, Timeout: keepaliveWait, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 3 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithUnaryInterceptor(c.unary),
		grpc.WithStreamInterceptor(c.stream),
	}
	if o.Token != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(tokenCredentials(o.Token)))
	}
	target := o.Target
	if o.Local != nil {
		target = "passthrough:///local"
		opts = append(opts, grpc.WithContextDialer(o.Local.dial))
	}
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the address of %s is not valid: write host:port", o.Service)
	}
	return conn, nil
}

type client struct {
	service   string
	readyWait time.Duration
	observer  *observer
}

// ready waits for a connection, at most readyWait. It is not gRPC's own wait for ready, which waits as long as the
// whole call may take.
func (c *client) ready(ctx context.Context, cc *grpc.ClientConn) error {
	if cc.GetState() == connectivity.Ready {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, c.readyWait)
	defer cancel()
	for {
		state := cc.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Shutdown:
			return fault.New(fault.Unavailable, "%s is no longer reachable: this process is stopping", c.service)
		}
		cc.Connect()
		if !cc.WaitForStateChange(wait, state) {
			cause := ctx.Err()
			if cause == nil { // the caller has time left: its deadline is not what failed
				cause = fmt.Errorf("no connection within %s", c.readyWait)
			}
			return fault.Wrap(cause, fault.Unavailable, "%s does not answer now; try again", c.service)
		}
	}
}

func (c *client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultTimeout)
		defer cancel()
	}
	ctx, end := c.observer.outgoing(ctx, method)
	err := c.ready(ctx, cc)
	if err == nil {
		err = invoke(ctx, method, req, reply, cc, opts...)
	}
	end(observed(err))
	return fromStatus(ctx, c.service, err)
}

func (c *client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, end := c.observer.outgoing(ctx, method)
	err := c.ready(ctx, cc)
	if err != nil {
		end(observed(err))
		return nil, err
	}
	cs := &clientStream{service: c.service, ctx: ctx}
	cs.end = func(err error) { cs.once.Do(func() { end(observed(err)) }) }
	// Called in every way that a stream can end, also when its context is cancelled and nobody reads on.
	opts = append(opts, grpc.OnFinish(cs.end))
	cs.ClientStream, err = open(ctx, desc, cc, method, opts...)
	if err != nil {
		cs.end(err)
		return nil, fromStatus(ctx, c.service, err)
	}
	return cs, nil
}

// observed gives an error of either kind as the status that is counted.
func observed(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return fault.GRPC(err)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// clientStream gives faults instead of statuses.
type clientStream struct {
	grpc.ClientStream
	service string
	ctx     context.Context
	once    sync.Once
	end     func(error)
}

func (s *clientStream) SendMsg(m any) error {
	return fromStatus(s.ctx, s.service, s.ClientStream.SendMsg(m))
}

func (s *clientStream) RecvMsg(m any) error {
	return fromStatus(s.ctx, s.service, s.ClientStream.RecvMsg(m))
}

func (s *clientStream) CloseSend() error {
	return fromStatus(s.ctx, s.service, s.ClientStream.CloseSend())
}
