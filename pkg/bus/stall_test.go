package bus_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/bus/bustest"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
)

// stalling is a network that can stop passing bytes without breaking a connection.
type stalling struct {
	l     net.Listener
	gate  sync.RWMutex // held for writing while stalled
	conns sync.WaitGroup
}

func newStalling(t *testing.T, target string) *stalling {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &stalling{l: l}
	s.conns.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				s.conns.Go(func() {
					defer pair[0].Close()
					defer pair[1].Close()
					buf := make([]byte, 32<<10)
					for {
						n, err := pair[0].Read(buf)
						s.gate.RLock()
						if n > 0 {
							_, _ = pair[1].Write(buf[:n])
						}
						s.gate.RUnlock()
						if err != nil {
							return
						}
					}
				})
			}
		}
	})
	return s
}

func TestALoadThatBreaksOffIsNoEmptyLog(t *testing.T) {
	t.Parallel()
	srv, err := bus.StartServer(bus.ServerOptions{Dir: t.TempDir(), Addr: "127.0.0.1:0", Operator: "operator-password", Sync: time.Minute})
	require.NoError(t, err)
	defer srv.Close()
	network := newStalling(t, strings.TrimPrefix(srv.URL(), "nats://"))
	b, err := bus.Connect(within(t), bus.Options{URL: "nats://operator:operator-password@" + network.l.Addr().String(), Service: "test"})
	require.NoError(t, err)
	defer func() { b.Close(); _ = network.l.Close(); network.conns.Wait() }()
	ctx := within(t)
	require.NoError(t, b.Ensure(ctx, bustest.All...))
	_, err = b.Append(ctx, asked(turn, "x"), bus.Expect{Filter: turn.Filter()})
	require.NoError(t, err)

	network.gate.Lock()
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	_, err = b.Load(short, bus.ChatStream, turn.Filter(), 0, 0)
	cancel()
	network.gate.Unlock()
	require.Equal(t, fault.Unavailable, fault.CodeOf(err), "silence is not the end")
	require.Eventually(t, func() bool {
		events, err := b.Load(ctx, bus.ChatStream, turn.Filter(), 0, 0)
		return err == nil && len(events) == 1
	}, 20*time.Second, 50*time.Millisecond)
}

func TestLargeEventsAreLoadedWhole(t *testing.T) {
	t.Parallel()
	b, ctx := bustest.Start(t), within(t)
	const n = 60
	text := strings.Repeat("x", 300<<10) // several times what one answer of the server may have
	for i := range n {
		turn := chat.Turn{Session: turn.Session, ID: fmt.Sprintf("m%d", i)}
		_, err := b.Append(ctx, asked(turn, text), bus.Expect{Filter: turn.Filter()})
		require.NoError(t, err)
	}
	events, err := b.Load(ctx, bus.ChatStream, turn.Session.Filter(), 0, 0)
	require.NoError(t, err)
	require.Len(t, events, n)
}

func TestAnAppendToAnErasedTurnIsFenced(t *testing.T) {
	t.Parallel()
	b, ctx := bustest.Start(t), within(t)
	seq, err := b.Append(ctx, asked(turn, "x"), bus.Expect{Filter: turn.Filter()})
	require.NoError(t, err)
	_, err = b.Erase(ctx, bus.ChatStream, turn.Session.Filter())
	require.NoError(t, err)
	began := time.Now()
	_, err = b.Append(ctx, bus.NewEvent(chat.TypeAnswer, "", turn.Subject(chat.Answer), []byte(`{}`)), bus.Expect{Filter: turn.Filter(), Seq: seq})
	require.ErrorIs(t, err, bus.ErrFenced)
	require.Less(t, time.Since(began), 5*time.Second)
}
