// Package bus is Butler's way to NATS JetStream: connecting, the embedded server, the streams and consumers (declared in
// streams.go and reconciled, never deleted or shrunk), events framed as CloudEvents, appends that are conditional and safe
// to repeat, batched reads, following a stream, partitions of a stream over replicas, and timers.
//
// What was measured of JetStream and shaped this package is told where it matters, in the comments.
package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/butlerhub/butler/pkg/fault"
)

// Options says how to reach NATS.
type Options struct {
	// URL of the server or servers, comma separated. Ignored when Server is set.
	URL string
	// Server, when set, is an embedded server in this process: no network between.
	Server *Server
	// Credentials is the path of an nkey seed or of a .creds file; empty for none.
	Credentials string
	// TLS, when set, is used for the connection.
	TLS *tls.Config
	// Service is the service's name, for example gateway: the connection's name, the inbox prefix and the events' source.
	Service string
	// Log takes what happens to the connection; nil discards it.
	Log *slog.Logger
	// Replicas of each stream, 1 when zero. Streams that have more keep them.
	Replicas int
}

// Bus is a connection to NATS. It reconnects by itself for ever; calls made meanwhile wait or fail as each one says. It is
// safe for concurrent use.
type Bus struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	log      *slog.Logger
	server   *Server // embedded; nil when it is another process
	service  string
	inbox    string
	replicas int

	mu        sync.Mutex
	watchers  map[chan struct{}]struct{} // told at each reconnect
	onRestore func(context.Context)      // reconciles again after a reconnect
}

// Connect connects to NATS and returns at once when the server answers; while it does not, it goes on trying until ctx
// ends.
func Connect(ctx context.Context, o Options) (*Bus, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Service == "" {
		o.Service = "butler"
	}
	b := &Bus{
		log: o.Log, server: o.Server, service: o.Service, inbox: "_INBOX_" + o.Service,
		replicas: max(o.Replicas, 1), watchers: map[chan struct{}]struct{}{},
	}
	opts := []nats.Option{
		nats.Name("butler-" + o.Service),
		nats.CustomInboxPrefix(b.inbox),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.RetryOnFailedConnect(false),
		nats.IgnoreAuthErrorAbort(), // credentials that are being changed must not end the connection for ever
		nats.Timeout(3 * time.Second),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
		// Nothing is buffered while there is no connection: an append is tried again by its id, a delta is dropped.
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				b.log.Warn("NATS connection lost", "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { b.reconnected() }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			b.log.Warn("NATS", "error", err, "subject", subject)
		}),
	}
	if o.TLS != nil {
		opts = append(opts, nats.Secure(o.TLS))
	}
	url := o.URL
	if o.Server != nil {
		url = ""
		opts = append(opts, o.Server.connectOptions()...)
	} else if o.Credentials != "" {
		cred, err := SignIn(o.Credentials)
		if err != nil {
			return nil, err
		}
		opts = append(opts, cred)
	}
	wait := 100 * time.Millisecond
	for {
		nc, err := nats.Connect(url, opts...)
		if err == nil {
			b.nc = nc
			break
		}
		if errors.Is(err, nats.ErrAuthorization) || ctx.Err() != nil {
			return nil, fault.Wrap(err, fault.Unavailable, "NATS at %s does not let %s in", redactURL(o.URL), o.Service)
		}
		b.log.Warn("waiting for NATS", "url", redactURL(o.URL), "error", err)
		select {
		case <-ctx.Done():
			return nil, fault.Wrap(err, fault.Unavailable, "NATS at %s cannot be reached", redactURL(o.URL))
		case <-time.After(wait):
			wait = min(2*wait, 2*time.Second)
		}
	}
	js, err := jetstream.New(b.nc, jetstream.WithDefaultTimeout(5*time.Second))
	if err != nil {
		b.nc.Close()
		return nil, fmt.Errorf("bus: %w", err)
	}
	b.js = js
	return b, nil
}

// SignIn is the option by which a connection signs in with the nkey seed or the NATS credentials in a file.
func SignIn(path string) (nats.Option, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the NATS credentials cannot be read: %v", err)
	}
	if strings.Contains(string(data), "BEGIN NATS USER JWT") {
		return nats.UserCredentials(path), nil
	}
	pair, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(data))))
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "%s holds neither an nkey seed nor NATS credentials", path)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "%s holds no usable nkey", path)
	}
	return nats.Nkey(public, pair.Sign), nil
}

// redactURL leaves scheme and host.
func redactURL(u string) string {
	var out []string
	for part := range strings.SplitSeq(u, ",") {
		if i := strings.LastIndex(part, "@"); i >= 0 {
			scheme, _, found := strings.Cut(part, "://")
			if !found {
				scheme = "nats"
			}
			part = scheme + "://" + part[i+1:]
		}
		out = append(out, part)
	}
	return strings.Join(out, ",")
}

// Close sends what is buffered and closes the connection.
func (b *Bus) Close() {
	if b.nc.IsConnected() {
		_ = b.nc.FlushTimeout(time.Second) // best effort: deltas that nobody waits for
	}
	b.nc.Close()
}

// Connected says whether there is a connection now.
func (b *Bus) Connected() bool { return b.nc.IsConnected() }

// Source is the events' ce-source of this service.
func (b *Bus) Source() string { return "/butler/" + b.service }

// checkTimeout is how long NATS may take to answer a Check.
const checkTimeout = 5 * time.Second

// Check returns nil when NATS answers, within ctx and at most 5 s; for readiness.
func (b *Bus) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout) // flushing refuses a context without a deadline
	defer cancel()
	if !b.nc.IsConnected() {
		return fault.New(fault.Unavailable, "no connection to NATS")
	}
	if err := b.nc.FlushWithContext(ctx); err != nil {
		return fault.Wrap(err, fault.Unavailable, "NATS does not answer")
	}
	return nil
}

// reconnected wakes those who watch and reconciles what a restarted server may have lost (streams in memory).
func (b *Bus) reconnected() {
	b.log.Info("NATS connection is back")
	b.mu.Lock()
	restore := b.onRestore
	b.mu.Unlock()
	go func() {
		if restore != nil {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			restore(ctx)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		for ch := range b.watchers {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}()
}

// watchReconnects returns a channel that gets a value after each reconnect.
func (b *Bus) watchReconnects() (ch chan struct{}, stop func()) {
	ch = make(chan struct{}, 1)
	b.mu.Lock()
	b.watchers[ch] = struct{}{}
	b.mu.Unlock()
	return ch, func() {
		b.mu.Lock()
		delete(b.watchers, ch)
		b.mu.Unlock()
	}
}

// OnReconnect calls f after each reconnect, from a goroutine of the bus, until stop is called.
func (b *Bus) OnReconnect(f func()) (stop func()) {
	ch, unwatch := b.watchReconnects()
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-ch:
				f()
			case <-done:
				return
			}
		}
	}()
	return sync.OnceFunc(func() { unwatch(); close(done) })
}

// Notify publishes to plain NATS: whoever listens now hears it, nobody else ever does.
func (b *Bus) Notify(subject string, data []byte) error {
	if err := b.nc.Publish(subject, data); err != nil {
		return fault.Wrap(err, fault.Unavailable, "NATS does not take messages now")
	}
	return nil
}

// Listen calls f for each plain message on subject, one at a time, until stop is called.
func (b *Bus) Listen(subject string, f func(data []byte)) (stop func(), err error) {
	sub, err := b.nc.Subscribe(subject, func(m *nats.Msg) { f(m.Data) })
	if err != nil {
		return nil, fmt.Errorf("bus: listening on %s: %w", subject, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

// sleep waits for d or until ctx ends, and says whether it waited.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
