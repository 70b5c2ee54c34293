package bus_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/bus/bustest"
	"github.com/butlerhub/butler/pkg/chat"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleakOptions...) }

// The server's own goroutines end a little after it says so; its scheduler for NUID and logging never does.
var goleakOptions = []goleak.Option{
	goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*Server).startGoRoutine.func1"),
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

var turn = chat.Turn{Session: chat.Session{Person: 7, Thread: 12}, ID: "m1"}

func asked(turn chat.Turn, text string) bus.Event {
	return bus.NewEvent(chat.TypeAsked, "/butler/test", turn.Subject(chat.Asked), []byte(`{"text":"`+text+`"}`))
}

func TestAppendIsConditionalAndSafeToRepeat(t *testing.T) {
	t.Parallel()
	b, ctx := bustest.Start(t), within(t)
	first := asked(turn, "one")
	seq, err := b.Append(ctx, first, bus.Expect{Filter: turn.Filter()})
	require.NoError(t, err)

	again, err := b.Append(ctx, first, bus.Expect{Filter: turn.Filter()})
	require.NoError(t, err, "the same event again is success")
	require.Equal(t, seq, again)

	_, err = b.Append(ctx, asked(turn, "two"), bus.Expect{Filter: turn.Filter()})
	require.ErrorIs(t, err, bus.ErrFenced, "another event of the same turn expects that there is none")

	step := bus.NewEvent(chat.TypeStep, "/butler/test", turn.Subject(chat.Step), []byte(`{}`))
	next, err := b.Append(ctx, step, bus.Expect{Filter: turn.Filter(), Seq: seq})
	require.NoError(t, err)
	_, err = b.Append(ctx, bus.NewEvent(chat.TypeAnswer, "", turn.Subject(chat.Answer), []byte(`{}`)), bus.Expect{Filter: turn.Filter(), Seq: seq})
	require.ErrorIs(t, err, bus.ErrFenced, "a stale writer is refused")

	again, err = b.Append(ctx, step, bus.Expect{Filter: turn.Filter(), Seq: seq})
	require.NoError(t, err)
	require.Equal(t, next, again)

	events, err := b.Load(ctx, bus.ChatStream, turn.Filter(), 0, 0)
	require.NoError(t, err)
	require.Len(t, events, 2)
	require.Equal(t, first.ID, events[0].ID)
	require.Equal(t, chat.TypeAsked, events[0].Type)
	require.JSONEq(t, `{"text":"one"}`, string(events[0].Data))
	require.Equal(t, turn.Stored(chat.Asked), events[0].Subject, "stored with its partition")
}

// The server puts sessions where the filters of pkg/chat look for them, whatever their numbers, and nobody can say where.
func TestPartitionsAreTheServers(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	b := bustest.Start(t)
	used := map[int]bool{}
	numbers := []int64{1, 2, 9, 10, 11, 99, 100, 101, 110, 111, 1234, 99_999, 1_000_000, 1 << 31, 1<<53 - 1, math.MaxInt64}
	for _, person := range numbers {
		for _, thread := range numbers {
			turn := chat.Turn{Session: chat.Session{Person: person, Thread: thread}, ID: "m"}
			used[turn.Partition()] = true
			require.NoError(t, b.Send(ctx, asked(turn, "x")))
		}
	}
	require.Len(t, used, bus.Partitions)
	for _, person := range numbers {
		for _, thread := range numbers {
			turn := chat.Turn{Session: chat.Session{Person: person, Thread: thread}, ID: "m"}
			last, found, err := b.Last(ctx, bus.ChatStream, turn.Stored(chat.Asked))
			require.NoError(t, err)
			require.True(t, found, "%s is not stored as %s", turn.Subject(chat.Asked), turn.Stored(chat.Asked))
			got, kind, err := chat.ParseSubject(last.Subject)
			require.NoError(t, err)
			require.Equal(t, turn, got)
			require.Equal(t, chat.Asked, kind)
		}
	}
	// What is published in the stored form is of a session of its own, and no turn's event.
	direct := asked(chat.Turn{Session: chat.Session{Person: 7, Thread: 12}, ID: "direct"}, "x")
	direct.Subject = chat.Turn{Session: chat.Session{Person: 7, Thread: 12}, ID: "direct"}.Stored(chat.Asked)
	seq, err := b.Publish(ctx, bus.ChatStream, direct)
	require.NoError(t, err)
	events, err := b.Load(ctx, bus.ChatStream, "butler.chat.>", seq-1, 0)
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.Equal(t, 8, len(strings.Split(events[0].Subject, ".")), events[0].Subject)
	_, _, err = chat.ParseSubject(events[0].Subject)
	require.Error(t, err)
}

// A log whose subjects are stored in another form is refused with a sentence, and stays as it is.
func TestALogOfAnotherForm(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	const password = "operator-of-this-test"
	server, err := bus.StartServer(bus.ServerOptions{Dir: t.TempDir(), Addr: "127.0.0.1:0", Sync: time.Minute, Operator: password})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	nc, err := nats.Connect(server.URL(), nats.UserInfo("operator", password))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	other := bus.Streams(1)[0]
	require.Equal(t, bus.ChatStream, other.Name)
	other.SubjectTransform = &jetstream.SubjectTransformConfig{
		Source:      "butler.chat.*.*.*.*",
		Destination: "butler.chat.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}.{{wildcard(4)}}.{{partition(32,1,2)}}",
	}
	s, err := js.CreateStream(ctx, other)
	require.NoError(t, err)
	b, err := bus.Connect(ctx, bus.Options{Server: server, Service: "brain"})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	require.ErrorContains(t, b.Ensure(ctx, bus.ChatStream), "another data folder")
	info, err := s.Info(ctx)
	require.NoError(t, err)
	require.Equal(t, other.SubjectTransform, info.Config.SubjectTransform)
	require.Zero(t, info.State.Consumers)
}

func TestOneOfManyWritersWins(t *testing.T) {
	t.Parallel()
	b, ctx := bustest.Start(t), within(t)
	for round := range 20 {
		turn := chat.Turn{Session: turn.Session, ID: fmt.Sprintf("m%d", round)}
		var won atomic.Int32
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				_, err := b.Append(ctx, asked(turn, fmt.Sprint(i)), bus.Expect{Filter: turn.Filter()})
				if err == nil {
					won.Add(1)
				} else if !errIs(err, bus.ErrFenced) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, won.Load())
	}
}

func TestTooLargeIsSaid(t *testing.T) {
	t.Parallel()
	b, ctx := bustest.Start(t), within(t)
	_, err := b.Append(ctx, bus.NewEvent("x", "", turn.Subject(chat.Asked), make([]byte, bus.MaxPayload+1)), bus.Expect{Filter: turn.Filter()})
	require.ErrorContains(t, err, "too large")
}

func TestLoadPagesThroughEverything(t *testing.T) {
	t.Parallel()
	b, ctx := bustest.Start(t), within(t)
	const n = 700
	for i := range n {
		turn := chat.Turn{Session: chat.Session{Person: 7, Thread: int64(1 + i%2)}, ID: fmt.Sprintf("m%d", i)}
		_, err := b.Append(ctx, asked(turn, "x"), bus.Expect{Filter: turn.Filter()})
		require.NoError(t, err)
	}
	all, err := b.Load(ctx, bus.ChatStream, chat.PersonFilter(7), 0, 0)
	require.NoError(t, err)
	require.Len(t, all, n)
	some, err := b.Load(ctx, bus.ChatStream, chat.Session{Person: 7, Thread: 1}.Filter(), all[99].Seq, 10)
	require.NoError(t, err)
	require.Len(t, some, 10)
	require.Greater(t, some[0].Seq, all[99].Seq)
	none, err := b.Load(ctx, bus.ChatStream, chat.PersonFilter(8), 0, 0)
	require.NoError(t, err)
	require.Empty(t, none)

	erased, err := b.Erase(ctx, bus.ChatStream, chat.Session{Person: 7, Thread: 1}.Filter())
	require.NoError(t, err)
	require.Equal(t, n/2, erased)
	all, err = b.Load(ctx, bus.ChatStream, chat.PersonFilter(7), 0, 0)
	require.NoError(t, err)
	require.Len(t, all, n/2)
}

func TestEnsureNeverShrinks(t *testing.T) {
	t.Parallel()
	b, ctx := bustest.Start(t), within(t)
	require.NoError(t, b.Ensure(ctx, bustest.All...))
	require.NoError(t, b.Ensure(ctx, bustest.All...), "reconciling again changes nothing")
}

func TestFollowSurvivesARestartWithoutGapOrRepetition(t *testing.T) {
	t.Parallel()
	ctx, dir := within(t), t.TempDir()
	port := freePort(t)
	start := func() *bus.Server {
		srv, err := bus.StartServer(bus.ServerOptions{Dir: dir, Addr: port, Operator: "operator-password"})
		require.NoError(t, err)
		return srv
	}
	srv := start()
	b, err := bus.Connect(ctx, bus.Options{URL: "nats://operator:operator-password@" + port, Service: "test"})
	require.NoError(t, err)
	defer b.Close()
	require.NoError(t, b.Ensure(ctx, bustest.All...))

	follow, stop := context.WithCancel(ctx)
	got, deltas := make(chan bus.Stored, 100), make(chan bus.Stored, 100)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = b.Follow(follow, bus.Follow{Stream: bus.ChatStream, Filters: []string{chat.AllAsked}}, func(s bus.Stored) { got <- s })
	})
	wg.Go(func() {
		_ = b.Follow(follow, bus.Follow{Stream: bus.DeltaStream, Filters: []string{chat.AllDeltas}}, func(s bus.Stored) { deltas <- s })
	})
	for i := range 10 {
		if i == 5 {
			srv.Close()
			srv = start()
		}
		turn := chat.Turn{Session: turn.Session, ID: fmt.Sprintf("m%d", i)}
		_, err := b.Append(ctx, asked(turn, "x"), bus.Expect{Filter: turn.Filter()})
		require.NoError(t, err, "an append waits until the server is back")
		select {
		case s := <-got:
			_, _, err := chat.ParseSubject(s.Subject)
			require.NoError(t, err)
			require.Contains(t, s.Subject, fmt.Sprintf(".m%d.", i))
		case <-ctx.Done():
			t.Fatal("an event was lost")
		}
	}
	// The memory stream lost what it had; what comes now is followed all the same.
	require.Eventually(t, func() bool {
		_ = b.Send(ctx, bus.NewEvent(chat.TypeDelta, "", turn.Delta(), []byte(`{}`)))
		select {
		case <-deltas:
			return true
		default:
			return false
		}
	}, 20*time.Second, 50*time.Millisecond)
	stop()
	wg.Wait()
	b.Close()
	srv.Close()
	require.Empty(t, got, "nothing came twice")
}

func TestTimersFireAndCanBeCalledOff(t *testing.T) {
	t.Parallel()
	b, ctx := bustest.Start(t), within(t)
	fired := make(chan bus.Stored, 10)
	work, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = b.Consume(work, bus.Consume{Stream: bus.WorkStream, Durable: bus.SignalConsumer}, func(_ context.Context, evs []bus.Stored) error {
			for _, e := range evs {
				fired <- e
			}
			return nil
		})
	})
	at := time.Now().Add(1500 * time.Millisecond)
	ev := func(key string) bus.Event {
		return bus.NewEvent("butler.work.signal", "", turn.Signal(key), []byte(`{"timer":true}`))
	}
	require.NoError(t, b.Schedule(ctx, turn.Timer("off"), at, ev("off")))
	require.NoError(t, b.Schedule(ctx, turn.Timer("moved"), at.Add(time.Hour), ev("moved")))
	require.NoError(t, b.Schedule(ctx, turn.Timer("moved"), at, ev("moved")))
	require.NoError(t, b.Unschedule(ctx, turn.Timer("off")))
	require.NoError(t, b.Schedule(ctx, turn.Timer("past"), time.Now().Add(-time.Hour), ev("past")))
	seen := map[string]int{}
	for len(seen) < 2 {
		select {
		case e := <-fired:
			_, key, err := chat.ParseWork(e.Subject)
			require.NoError(t, err)
			seen[key]++
			require.JSONEq(t, `{"timer":true}`, string(e.Data))
		case <-ctx.Done():
			t.Fatalf("only %v fired", seen)
		}
	}
	require.Equal(t, map[string]int{"past": 1, "moved": 1}, seen)
	stop()
	wg.Wait()
	require.Empty(t, fired)
}

func TestAnItemThatFailsIsParked(t *testing.T) {
	t.Parallel()
	b, ctx := bustest.Start(t), within(t)
	work, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var tries atomic.Int32
	wg.Go(func() {
		_ = b.Consume(work, bus.Consume{Stream: bus.WorkStream, Durable: bus.SignalConsumer, MaxTries: 3}, func(context.Context, []bus.Stored) error {
			tries.Add(1)
			return fmt.Errorf("poison")
		})
	})
	_, err := b.Publish(ctx, bus.WorkStream, bus.NewEvent("butler.work.signal", "", turn.Signal("k"), []byte(`{}`)))
	require.NoError(t, err)
	var parked []bus.Stored
	require.Eventually(t, func() bool {
		parked, err = b.Load(ctx, bus.ParkedStream, "butler.parked.>", 0, 0)
		return err == nil && len(parked) == 1
	}, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, "butler.parked.work.turn.7.12.m1.k", parked[0].Subject)
	require.Equal(t, "poison", parked[0].Header.Get("butler-reason"))
	stop()
	wg.Wait()
	require.EqualValues(t, 3, tries.Load())
}

func TestCheck(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	require.NoError(t, b.Check(context.Background()), "also without a deadline")
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	require.Error(t, b.Check(ended))
	b.Close()
	require.Error(t, b.Check(context.Background()))
}
