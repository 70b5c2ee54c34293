package rpc

import (
	"context"
	"net"

	"google.golang.org/grpc/test/bufconn"
)

// Local is a listener inside the process: a server serves on it, and clients made with it reach that server without a
// network. Give both a Security without certificates. A client may call before the server serves; it waits.
type Local struct{ l *bufconn.Listener }

// NewLocal gives a listener that nobody serves on yet.
func NewLocal() *Local { return &Local{bufconn.Listen(256 << 10)} }

// Accept waits for a client.
func (l *Local) Accept() (net.Conn, error) { return l.l.Accept() }

// Close ends Accept and refuses further clients. It is safe to call twice.
func (l *Local) Close() error { return l.l.Close() }

// Addr names no address.
func (l *Local) Addr() net.Addr { return l.l.Addr() }

func (l *Local) dial(ctx context.Context, _ string) (net.Conn, error) { return l.l.DialContext(ctx) }
