package bus_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
)

// startDistributed runs a server with the configuration that operators get, and gives each service's seed file.
func startDistributed(t *testing.T) (url string, seeds map[string]string) {
	t.Helper()
	keys, seeds := map[string]string{}, map[string]string{}
	dir := t.TempDir()
	for _, u := range bus.ServiceUsers() {
		seed, public, err := bus.NewServiceKey()
		require.NoError(t, err)
		keys[u.Service] = public
		seeds[u.Service] = filepath.Join(dir, u.Service+".nk")
		require.NoError(t, os.WriteFile(seeds[u.Service], []byte(seed), 0o600))
	}
	issuer, public, err := bus.NewIssuerKey()
	require.NoError(t, err)
	seeds["issuer"] = issuer
	conf, err := bus.ServerConfig("127.0.0.1:-1", filepath.Join(dir, "store"), keys, public)
	require.NoError(t, err)
	path := filepath.Join(dir, "nats.conf")
	require.NoError(t, os.WriteFile(path, []byte(conf), 0o600))
	opts, err := server.ProcessConfigFile(path)
	require.NoError(t, err)
	require.True(t, opts.SyncAlways)
	opts.NoSigs, opts.NoLog = true, true
	srv, err := server.NewServer(opts)
	require.NoError(t, err)
	srv.Start()
	require.True(t, srv.ReadyForConnections(10*time.Second))
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	return srv.ClientURL(), seeds
}

func TestServicesReachOnlyWhatTheyNeed(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	url, seeds := startDistributed(t)
	connect := func(service string) *bus.Bus {
		b, err := bus.Connect(ctx, bus.Options{URL: url, Service: service, Credentials: seeds[service]})
		require.NoError(t, err)
		t.Cleanup(b.Close)
		return b
	}
	// What each does all day works.
	brain := connect("brain")
	require.NoError(t, brain.Ensure(ctx, bus.ChatStream, bus.DeltaStream, bus.WorkStream, bus.ParkedStream, bus.PresenceBucket))
	require.NoError(t, brain.Ensure(ctx, bus.ChatStream, bus.DeltaStream, bus.WorkStream, bus.ParkedStream, bus.PresenceBucket), "again")
	gateway := connect("gateway")
	require.NoError(t, gateway.Wait(ctx, bus.ChatStream, bus.DeltaStream))
	require.NoError(t, gateway.EnsureConsumers(ctx, bus.ChatStream, bus.ProjectorConsumer))
	got := make(chan *bus.Delivery, 1)
	startReplica(t, brain, "one", func(_ string, d *bus.Delivery) { got <- d })
	seq, err := gateway.Append(ctx, asked(turn, "x"), bus.Expect{Filter: turn.Filter()})
	require.NoError(t, err)
	_, err = gateway.Append(ctx, asked(turn, "y"), bus.Expect{Filter: turn.Filter()})
	require.ErrorIs(t, err, bus.ErrFenced, "reading back works")
	d := <-got
	answer := bus.NewEvent(chat.TypeAnswer, "", turn.Subject(chat.Answer), []byte(`{}`))
	_, err = brain.Append(ctx, answer, bus.Expect{Filter: turn.Filter(), Seq: seq})
	require.NoError(t, err)
	d.Done()
	require.NoError(t, brain.Schedule(ctx, turn.Timer("k"), time.Now().Add(time.Hour), bus.NewEvent("x", "", turn.Signal("k"), nil)))
	require.NoError(t, brain.Unschedule(ctx, turn.Timer("k")))
	registry := connect("registry")
	require.NoError(t, registry.Ensure(ctx, bus.PresenceBucket))
	require.NoError(t, registry.Beat(ctx, "agent.7"))
	alive, err := registry.Alive(ctx, "agent")
	require.NoError(t, err)
	require.Contains(t, alive, "agent.7")
	_, err = gateway.Erase(ctx, bus.ChatStream, turn.Session.Filter())
	require.NoError(t, err)

	// What the others do is refused: each service against each subject that is another's.
	forbidden := map[string][]string{
		"gateway": {turn.Subject(chat.Answer), turn.Subject(chat.Step), turn.Subject(chat.Signal), turn.Delta(), turn.Signal("k"),
			turn.Timer("k"), "butler.parked.x", "$KV.PRESENCE.agent.7", "$KV.PRESENCE.replica.brain.x", turn.Subject(chat.Asked) + ".3",
			"$JS.API.STREAM.DELETE.CHAT", "$JS.API.STREAM.CREATE.CHAT", "$JS.API.STREAM.UPDATE.CHAT", "$JS.API.STREAM.PURGE.WORK",
			"$JS.API.CONSUMER.DELETE.CHAT.brain-00", "$JS.ACK.CHAT.brain-00.1.1.1.1.1", "$SYS.REQ.SERVER.PING"},
		"brain": {turn.Subject(chat.Asked), turn.Subject(chat.Stop), "butler.access.changed", "$KV.PRESENCE.agent.7",
			"$JS.API.STREAM.DELETE.CHAT", "$JS.API.STREAM.PURGE.CHAT", "$JS.API.STREAM.MSG.DELETE.CHAT", "$JS.ACK.CHAT.gateway-projector.1.1.1.1.1",
			"$JS.API.CONSUMER.DELETE.CHAT.gateway-projector"},
		"registry": {turn.Subject(chat.Asked), turn.Subject(chat.Answer), turn.Delta(), "butler.access.changed",
			"$KV.PRESENCE.replica.brain.x", "$JS.API.STREAM.INFO.CHAT", "$JS.API.DIRECT.GET.CHAT", "$JS.API.STREAM.PURGE.KV_PRESENCE",
			"$JS.API.STREAM.DELETE.KV_PRESENCE"},
	}
	listen := []string{">", "butler.>", "butler.chat.>", "butler.delta.>", "_INBOX.>", "$JS.API.>"}
	for service, subjects := range forbidden {
		seed, err := os.ReadFile(seeds[service])
		require.NoError(t, err)
		pair, err := nkeys.FromSeed(seed)
		require.NoError(t, err)
		public, err := pair.PublicKey()
		require.NoError(t, err)
		refused := make(chan error, 100)
		nc, err := nats.Connect(url, nats.Nkey(public, pair.Sign), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
		require.NoError(t, err)
		defer nc.Close()
		for _, s := range subjects {
			require.NoError(t, nc.Publish(s, []byte(`{}`)))
		}
		others := append([]string{}, listen...)
		for _, u := range bus.ServiceUsers() {
			if u.Service != service {
				others = append(others, "_INBOX_"+u.Service+".>")
			}
		}
		for _, s := range others {
			_, err := nc.SubscribeSync(s)
			require.NoError(t, err)
		}
		require.NoError(t, nc.Flush())
		for range len(subjects) + len(others) {
			select {
			case err := <-refused:
				require.ErrorIs(t, err, nats.ErrPermissionViolation)
			case <-ctx.Done():
				t.Fatalf("%s reached something that it must not: fewer refusals than tries", service)
			}
		}
	}
}
