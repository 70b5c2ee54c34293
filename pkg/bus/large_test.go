package bus_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
)

// BenchmarkLargeLog measures what reading and writing one conversation costs beside many others: BUTLER_BENCH_TURNS of
// them, 100,000 when unset.
func BenchmarkLargeLog(b *testing.B) {
	turns := 100_000
	if v := os.Getenv("BUTLER_BENCH_TURNS"); v != "" {
		n, err := strconv.Atoi(v)
		require.NoError(b, err)
		turns = n
	}
	server, err := bus.StartServer(bus.ServerOptions{Dir: b.TempDir(), Sync: time.Minute})
	require.NoError(b, err)
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	c, err := bus.Connect(ctx, bus.Options{Server: server, Service: "brain"})
	require.NoError(b, err)
	defer c.Close()
	require.NoError(b, c.Ensure(ctx, bus.ChatStream))
	of := func(n int) chat.Turn {
		return chat.Turn{Session: chat.Session{Person: int64(1 + n/100), Thread: int64(1 + n/10)}, ID: fmt.Sprintf("filled-%d", n)}
	}
	data := make([]byte, 300)
	for i := range data {
		data[i] = 'x'
	}
	for n := range turns {
		for _, k := range []chat.Kind{chat.Asked, chat.Answer} {
			ev := bus.NewEvent(k.Type(), "/butler/test", of(n).Subject(k), data)
			require.NoError(b, c.Send(ctx, ev))
		}
		if n%500 == 499 {
			for {
				_, last, err := c.Bounds(ctx, bus.ChatStream)
				require.NoError(b, err)
				if last >= uint64(2*(n+1)) {
					break
				}
			}
		}
	}
	round := 0
	b.Run("asked and answer", func(b *testing.B) {
		round++
		for i := range b.N {
			turn := of(i * 7919 % turns)
			turn.ID = fmt.Sprintf("new-%d-%d", round*1000+b.N, i)
			seq, err := c.Append(ctx, bus.NewEvent(chat.TypeAsked, "/t", turn.Subject(chat.Asked), data), bus.Expect{Filter: turn.Filter()})
			require.NoError(b, err)
			_, err = c.Append(ctx, bus.NewEvent(chat.TypeAnswer, "/t", turn.Subject(chat.Answer), data), bus.Expect{Filter: turn.Filter(), Seq: seq})
			require.NoError(b, err)
		}
	})
	load := func(name, filter string, after uint64) {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				_, err := c.Load(ctx, bus.ChatStream, filter, after, 0)
				require.NoError(b, err)
			}
		})
	}
	mid := of(turns / 2)
	load("load a turn", mid.Filter(), 0)
	load("load a turn from its start", mid.Filter(), uint64(turns))
	load("load a session", mid.Session.Filter(), 0)
	load("load what is new in a session", mid.Session.Filter(), uint64(2*turns))
	load("load a person", chat.PersonFilter(mid.Person), 0)
	b.Run("last of a turn", func(b *testing.B) {
		for range b.N {
			_, _, err := c.Last(ctx, bus.ChatStream, mid.Filter())
			require.NoError(b, err)
		}
	})
}
