package registry

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
	"github.com/butlerhub/butler/pkg/storage/storagetest"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// pgx cancels a statement that ran out of time in the background, for a bounded time.
		goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgconn.(*PgConn).asyncClose.func1"))
}

// bucket is Presence on a real KV bucket.
type bucket struct{ kv jetstream.KeyValue }

func (b bucket) Beat(ctx context.Context, key string) error {
	_, err := b.kv.Put(ctx, key, nil)
	return err
}

func (b bucket) Alive(ctx context.Context, prefix string) (map[string]time.Time, error) {
	watch, err := b.kv.Watch(ctx, prefix+".>", jetstream.IgnoreDeletes())
	if err != nil {
		return nil, err
	}
	defer func() { _ = watch.Stop() }()
	alive := map[string]time.Time{}
	for {
		select {
		case entry := <-watch.Updates():
			if entry == nil {
				return alive, nil
			}
			alive[entry.Key()] = entry.Created()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// newBucket starts a NATS server; stop stops it.
func newBucket(t *testing.T) (b bucket, stop func()) {
	t.Helper()
	srv, err := server.NewServer(&server.Options{
		DontListen: true, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
	})
	require.NoError(t, err)
	srv.Start()
	require.True(t, srv.ReadyForConnections(30*time.Second))
	conn, err := nats.Connect("", nats.InProcessServer(srv), nats.MaxReconnects(0))
	require.NoError(t, err)
	stop = sync.OnceFunc(func() {
		conn.Close()
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	t.Cleanup(stop)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "PRESENCE", Storage: jetstream.MemoryStorage})
	require.NoError(t, err)
	return bucket{kv}, stop
}

// clock runs with the real one, which the bucket uses, plus what tests add.
type clock struct {
	mu    sync.Mutex
	added time.Duration
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.added)
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.added += d
}

type fixture struct {
	*Service
	clock    *clock
	presence Presence
}

func newService(t *testing.T, db *storage.DB, p Presence) fixture {
	t.Helper()
	c := &clock{}
	s, err := New(Deps{DB: db, Presence: p, Clock: c.Now})
	require.NoError(t, err)
	return fixture{s, c, p}
}

func each(t *testing.T, test func(t *testing.T, f fixture)) {
	t.Helper()
	t.Parallel()
	storagetest.Each(t, func(t *testing.T, db *storage.DB) {
		b, _ := newBucket(t)
		f := newService(t, db, b)
		require.NoError(t, f.refresh(t.Context()))
		test(t, f)
	})
}

func (f fixture) register(t *testing.T, name string) *butlerv1.Agent {
	t.Helper()
	out, err := f.RegisterAgent(t.Context(), &butlerv1.RegisterAgentRequest{Name: name})
	require.NoError(t, err)
	return out.GetAgent()
}

func (f fixture) beat(t *testing.T, id int64) {
	t.Helper()
	out, err := f.Heartbeat(t.Context(), &butlerv1.HeartbeatRequest{AgentId: id})
	require.NoError(t, err)
	require.EqualValues(t, 5, out.GetIntervalSeconds())
}

func (f fixture) names(t *testing.T, onlineOnly bool) []string {
	t.Helper()
	out, err := f.ListAgents(t.Context(), &butlerv1.ListAgentsRequest{OnlineOnly: onlineOnly})
	require.NoError(t, err)
	var names []string
	for _, a := range out.GetAgents() {
		names = append(names, a.GetName())
	}
	return names
}

func TestRegister(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		out, err := f.RegisterAgent(ctx, &butlerv1.RegisterAgentRequest{Name: " 仓库管理员 ", Description: "Knows disks\nand\x00more "})
		require.NoError(t, err)
		a := out.GetAgent()
		require.EqualValues(t, 3, a.GetId(), "1 and 2 are the first admin's and Butler's")
		require.Equal(t, "仓库管理员", a.GetName())
		require.Equal(t, "generic", a.GetKind())
		require.Equal(t, "Knows disks and more", a.GetDescription())
		require.False(t, a.GetOnline())
		require.Nil(t, a.GetLastSeen())
		require.WithinDuration(t, f.clock.Now(), a.GetCreatedAt().AsTime(), time.Minute)

		first := f.register(t, "Custodian")
		out, err = f.RegisterAgent(ctx, &butlerv1.RegisterAgentRequest{Name: "CUSTODIAN", Kind: "a2a", Description: "new"})
		require.NoError(t, err)
		require.Equal(t, first.GetId(), out.GetAgent().GetId())
		require.Equal(t, "a2a", out.GetAgent().GetKind())
		require.Equal(t, []string{"仓库管理员", "CUSTODIAN"}, f.names(t, false))

		for name, req := range map[string]*butlerv1.RegisterAgentRequest{
			"no name":          {},
			"long name":        {Name: strings.Repeat("x", 65)},
			"control":          {Name: "a\nb"},
			"long kind":        {Name: "x", Kind: strings.Repeat("x", 33)},
			"long description": {Name: "x", Description: strings.Repeat("长", 1001)},
		} {
			_, err := f.RegisterAgent(ctx, req)
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", name, err)
		}
		require.Len(t, f.names(t, false), 2)
	})
}

func TestRegisterAtTheSameTime(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		ids := map[string]map[int64]bool{}
		for i := range 40 {
			name := fmt.Sprintf("agent %d", i%10)
			wg.Go(func() {
				out, err := f.RegisterAgent(t.Context(), &butlerv1.RegisterAgentRequest{Name: name})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if ids[name] == nil {
					ids[name] = map[int64]bool{}
				}
				ids[name][out.GetAgent().GetId()] = true
			})
		}
		wg.Wait()
		require.Len(t, f.names(t, false), 10)
		for name, n := range ids {
			require.Len(t, n, 1, name)
		}
	})
}

func TestAgentsAreBounded(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		require.NoError(t, f.db.Write(t.Context(), func(tx *storage.Tx) error {
			for i := range MaxAgents {
				id, err := tx.NewPrincipal(storage.AgentKind)
				if err != nil {
					return err
				}
				if _, err := tx.Exec(`INSERT INTO agents (id, name, name_key, kind, description, created_at, updated_at)
					VALUES ($1, $2, $2, '', '', 0, 0)`, id, fmt.Sprint("agent ", i)); err != nil {
					return err
				}
			}
			return nil
		}))
		_, err := f.RegisterAgent(t.Context(), &butlerv1.RegisterAgentRequest{Name: "one more"})
		require.Equal(t, fault.Conflict, fault.CodeOf(err))
		f.register(t, "agent 7")
	})
}

func TestPresence(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		a, b := f.register(t, "a"), f.register(t, "b")
		require.Empty(t, f.names(t, true))
		f.beat(t, a.GetId())
		require.Equal(t, []string{"a"}, f.names(t, true))
		require.Equal(t, []string{"a", "b"}, f.names(t, false))

		// Another replica, which an agent beats: online here too.
		other := newService(t, f.db, f.presence)
		require.NoError(t, other.refresh(ctx))
		require.Equal(t, []string{"a"}, other.names(t, true))
		other.beat(t, b.GetId())
		require.Equal(t, []string{"a", "b"}, f.names(t, true))

		f.clock.Add(Silence - time.Second)
		f.beat(t, a.GetId())
		require.Equal(t, []string{"a", "b"}, f.names(t, true))
		f.clock.Add(2 * time.Second)
		require.Equal(t, []string{"a"}, f.names(t, true), "b was silent for three intervals")
		f.clock.Add(Silence)
		require.Empty(t, f.names(t, true))

		// When an agent was last seen is known after it is gone, by every replica and after a restart.
		require.NoError(t, f.refresh(ctx))
		require.NoError(t, other.refresh(ctx))
		fresh := newService(t, f.db, f.presence)
		fresh.clock.Add(time.Hour)
		require.NoError(t, fresh.refresh(ctx))
		list, err := fresh.ListAgents(ctx, &butlerv1.ListAgentsRequest{})
		require.NoError(t, err)
		for _, agent := range list.GetAgents() {
			require.False(t, agent.GetOnline(), agent.GetName())
			require.NotNil(t, agent.GetLastSeen(), agent.GetName())
		}

		_, err = f.Heartbeat(ctx, &butlerv1.HeartbeatRequest{AgentId: 99})
		require.Equal(t, fault.NotFound, fault.CodeOf(err))
	})
}

func TestClocksThatDiffer(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"behind": -time.Minute, "ahead": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _ := newBucket(t)
			c := &clock{added: ahead}
			p := newPresence(b, c.Now)
			require.NoError(t, p.look(t.Context()))
			require.NoError(t, b.Beat(t.Context(), "agent.7"))
			require.NoError(t, p.look(t.Context()))
			_, online := p.lastHeard(7)
			require.True(t, online)
			for range 3 {
				c.Add(Interval)
				require.NoError(t, p.look(t.Context()))
			}
			_, online = p.lastHeard(7)
			require.False(t, online)
			require.NoError(t, b.Beat(t.Context(), "agent.7"))
			require.NoError(t, b.Beat(t.Context(), "agent.not-a-number"))
			require.NoError(t, p.look(t.Context()))
			_, online = p.lastHeard(7)
			require.True(t, online)
		})
	}
}

func TestSQLIsDown(t *testing.T) {
	t.Parallel()
	cluster := storagetest.New(t)
	url := cluster.NewDatabase(t)
	db := storagetest.OpenWith(t, url, storage.Options{})
	b, _ := newBucket(t)
	f := newService(t, db, b)
	ctx := t.Context()
	require.NoError(t, f.refresh(ctx))
	a, c := f.register(t, "a"), f.register(t, "c")
	f.beat(t, a.GetId())

	cluster.Stop(t)
	require.Error(t, f.refresh(ctx))
	start := time.Now()
	require.Equal(t, []string{"a", "c"}, f.names(t, false))
	require.Less(t, time.Since(start), 2*time.Second)
	f.beat(t, c.GetId())
	require.Equal(t, []string{"a", "c"}, f.names(t, true))
	require.NoError(t, f.Ready(ctx), "it serves what it knows")
	_, err := f.RegisterAgent(ctx, &butlerv1.RegisterAgentRequest{Name: "new"})
	require.Equal(t, codes.Unavailable, status.Code(err))

	// A replica that starts now has nothing to serve, and says so.
	late := newService(t, storagetest.OpenWith(t, url, storage.Options{}), b)
	require.Error(t, late.refresh(ctx))
	require.Error(t, late.Ready(ctx))
	_, err = late.ListAgents(ctx, &butlerv1.ListAgentsRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err))
	_, err = late.Heartbeat(ctx, &butlerv1.HeartbeatRequest{AgentId: a.GetId()})
	require.Equal(t, codes.Unavailable, status.Code(err))

	cluster.Start(t)
	require.NoError(t, f.refresh(ctx))
	f.register(t, "new")
	require.Equal(t, []string{"a", "c", "new"}, f.names(t, false))
	require.NoError(t, late.refresh(ctx))
	require.NoError(t, late.Ready(ctx))
}

func TestNATSIsDown(t *testing.T) {
	t.Parallel()
	b, stop := newBucket(t)
	f := newService(t, storagetest.Open(t, storagetest.SQLiteURL(t)), b)
	require.NoError(t, f.refresh(t.Context()))
	a := f.register(t, "a")
	f.beat(t, a.GetId())
	stop()
	require.Equal(t, []string{"a"}, f.names(t, true), "what was heard holds for three intervals")
	f.clock.Add(Silence)
	require.Empty(t, f.names(t, true))
	require.Equal(t, []string{"a"}, f.names(t, false))
	_, err := f.Heartbeat(t.Context(), &butlerv1.HeartbeatRequest{AgentId: a.GetId()})
	require.Equal(t, codes.Unavailable, status.Code(err))
}

// watched tells when the service looked.
type watched struct {
	Presence
	looked chan struct{}
}

func (w watched) Alive(ctx context.Context, prefix string) (map[string]time.Time, error) {
	select {
	case w.looked <- struct{}{}:
	default:
	}
	return w.Presence.Alive(ctx, prefix)
}

func TestRunWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	cluster := storagetest.New(t)
	db := storagetest.OpenWith(t, cluster.NewDatabase(t), storage.Options{})
	b, _ := newBucket(t)
	cluster.Stop(t)
	w := watched{b, make(chan struct{}, 1)}
	f := newService(t, db, w)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	<-w.looked
	<-w.looked // it goes on
	require.Error(t, f.Ready(ctx))
	cluster.Start(t)
	for f.Ready(ctx) != nil {
		<-w.looked
	}
	a := f.register(t, "a")
	f.beat(t, a.GetId())
	cancel()
	require.NoError(t, <-done)
	again := newService(t, db, b)
	agents, err := again.load(t.Context())
	require.NoError(t, err)
	require.False(t, agents[0].lastSeen.IsZero(), "the last beats are saved at the end")
}

func TestNewNeedsItsParts(t *testing.T) {
	t.Parallel()
	_, err := New(Deps{})
	require.Equal(t, fault.Invalid, fault.CodeOf(err))
}
