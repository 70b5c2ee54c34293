// Package bustest starts a real NATS server inside a test.
package bustest

import (
	"context"
	"testing"
	"time"

	"github.com/butlerhub/butler/pkg/bus"
)

// All names every stream, in the order in which they are made.
var All = []string{bus.ChatStream, bus.DeltaStream, bus.WorkStream, bus.ParkedStream, bus.PresenceBucket,
	bus.ApprovalStream, bus.AuditStream, bus.ShellStream, bus.TaskStream, bus.ReportStream}

// Start gives a bus on an embedded server of its own, with every stream; both end with the test. Acknowledged events are
// not synced to disk: a test that needs that starts its own server.
func Start(tb testing.TB) *bus.Bus {
	tb.Helper()
	return Connect(tb, Server(tb, ""), "butler")
}

// Server starts an embedded server in dir (a temporary one when empty); it ends with the test.
func Server(tb testing.TB, dir string) *bus.Server {
	tb.Helper()
	if dir == "" {
		dir = tb.TempDir()
	}
	srv, err := bus.StartServer(bus.ServerOptions{Dir: dir, Sync: time.Minute})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(srv.Close)
	return srv
}

// Connect connects a service to srv and makes every stream.
func Connect(tb testing.TB, srv *bus.Server, service string) *bus.Bus {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	b, err := bus.Connect(ctx, bus.Options{Server: srv, Service: service})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(b.Close)
	if err := b.Ensure(ctx, All...); err != nil {
		tb.Fatal(err)
	}
	return b
}
