package bus_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/bus/bustest"
	"github.com/butlerhub/butler/pkg/chat"
)

func errIs(err, target error) bool { return errors.Is(err, target) }

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

type replica struct {
	b    *bus.Bus
	stop context.CancelFunc
	done chan struct{}
}

// startReplica works for its share and passes what it is given to got, under its own name.
func startReplica(t *testing.T, b *bus.Bus, name string, handle func(name string, d *bus.Delivery)) *replica {
	ctx, cancel := context.WithCancel(context.Background())
	r := &replica{b: b, stop: cancel, done: make(chan struct{})}
	ready := make(chan struct{})
	go func() {
		defer close(r.done)
		_ = b.Work(ctx, bus.Partitioned{
			Replica: name,
			Handle:  func(d *bus.Delivery) { handle(name, d) },
			Ready:   func() { close(ready) },
		})
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	<-ready
	return r
}

func TestReplicasShareAndTakeOver(t *testing.T) {
	t.Parallel()
	srv := bustest.Server(t, "")
	b1 := bustest.Connect(t, srv, "brain")
	b2, err := bus.Connect(within(t), bus.Options{Server: srv, Service: "brain2"})
	require.NoError(t, err)
	defer b2.Close()
	ctx := within(t)

	var mu sync.Mutex
	by := map[string]int{}
	got := make(chan *bus.Delivery, 1000)
	keep := func(name string, d *bus.Delivery) {
		mu.Lock()
		by[name]++
		mu.Unlock()
		got <- d
	}
	r1 := startReplica(t, b1, "one", keep)
	ask := func(person int) {
		turn := chat.Turn{Session: chat.Session{Person: int64(person), Thread: 1}, ID: fmt.Sprintf("m%d", time.Now().UnixNano())}
		_, err := b1.Append(ctx, asked(turn, "x"), bus.Expect{Filter: turn.Filter()})
		require.NoError(t, err)
	}
	take := func() *bus.Delivery {
		select {
		case d := <-got:
			return d
		case <-ctx.Done():
			t.Fatal("a message was not delivered")
			return nil
		}
	}
	for i := range 20 {
		ask(i + 1)
		take().Done()
	}
	require.Equal(t, 20, by["one"])

	joined := time.Now()
	r2 := startReplica(t, b2, "two", keep)
	require.Eventually(t, func() bool {
		for i := range 64 {
			ask(i + 1)
			take().Done()
		}
		mu.Lock()
		defer mu.Unlock()
		return by["two"] > 0
	}, 15*time.Second, 100*time.Millisecond)
	t.Logf("a new replica had its share after %s", time.Since(joined))
	require.Less(t, time.Since(joined), 10*time.Second)

	// A replica that dies holding a message: the other gets it. Its end is abrupt: the connection goes, nothing is given back.
	mu.Lock()
	by = map[string]int{}
	mu.Unlock()
	var held *bus.Delivery
	for i := 0; held == nil; i++ {
		ask(i + 1)
		d := take()
		mu.Lock()
		two := by["two"] > 0
		mu.Unlock()
		if two {
			held = d
		} else {
			d.Done()
		}
	}
	died := time.Now()
	b2.Close()
	r2.stop()
	again := take()
	require.Equal(t, held.Seq, again.Seq)
	require.False(t, again.First)
	again.Done()
	t.Logf("taken over after %s", time.Since(died))
	require.Less(t, time.Since(died), 30*time.Second)
	_ = r1
}

func TestAnEventStaysWithWhoHoldsIt(t *testing.T) {
	t.Parallel()
	b, ctx := bustest.Start(t), within(t)
	got := make(chan *bus.Delivery, 10)
	startReplica(t, b, "one", func(_ string, d *bus.Delivery) { got <- d })
	_, err := b.Append(ctx, asked(turn, "x"), bus.Expect{Filter: turn.Filter()})
	require.NoError(t, err)
	d := <-got
	require.True(t, d.First)
	select {
	case <-got:
		t.Fatal("delivered again while held")
	case <-time.After(8 * time.Second): // longer than the ack wait: there is no signal for what must not happen
	}
	d.Release(0)
	again := <-got
	require.Equal(t, d.Seq, again.Seq)
	require.False(t, again.First)
	again.Done()
}

func TestInterruptedWorkIsFoundAfterARestart(t *testing.T) {
	t.Parallel()
	dir, ctx := t.TempDir(), within(t)
	srv, err := bus.StartServer(bus.ServerOptions{Dir: dir, Sync: time.Minute})
	require.NoError(t, err)
	b, err := bus.Connect(ctx, bus.Options{Server: srv, Service: "brain"})
	require.NoError(t, err)
	require.NoError(t, b.Ensure(ctx, bustest.All...))
	got := make(chan *bus.Delivery, 10)
	work, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.Work(work, bus.Partitioned{Replica: "one", Handle: func(d *bus.Delivery) { got <- d }})
	}()
	_, err = b.Append(ctx, asked(turn, "x"), bus.Expect{Filter: turn.Filter()})
	require.NoError(t, err)
	first := <-got
	b.Close() // before anything is given back
	stop()
	<-done
	srv.Close()

	b = bustest.Connect(t, bustest.Server(t, dir), "brain")
	began := time.Now()
	startReplica(t, b, "two", func(_ string, d *bus.Delivery) { got <- d })
	again := <-got
	require.Equal(t, first.Seq, again.Seq)
	require.Less(t, time.Since(began), time.Second)
	again.Done()
}
