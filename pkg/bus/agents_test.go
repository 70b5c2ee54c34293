package bus_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/bus"
)

// agents is a server with the registry's side of letting agents in, without the registry.
type agents struct {
	url      string
	registry *bus.Bus // with the rights of agent-registry, where the server knows services apart
	issuer   string

	mu    sync.Mutex
	known map[string]bus.ServiceUser // by public key
}

func (a *agents) judge(_ context.Context, k bus.Knock) (bus.ServiceUser, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for public, u := range a.known {
		if k.Holds(public) {
			return u, nil
		}
	}
	return bus.ServiceUser{}, bus.ErrStranger
}

// add makes an agent with its consumer, and gives its credentials file and their public key.
func (a *agents) add(t *testing.T, id int64) (file, public string) {
	t.Helper()
	require.NoError(t, a.registry.EnsureAgentConsumer(t.Context(), id, 10))
	c, err := bus.NewCredentials(a.issuer, fmt.Sprintf("agent-%d", id))
	require.NoError(t, err)
	a.mu.Lock()
	a.known[c.Public] = bus.AgentUser(id)
	a.mu.Unlock()
	file = filepath.Join(t.TempDir(), "agent.creds")
	require.NoError(t, os.WriteFile(file, []byte(c.File), 0o600))
	return file, c.Public
}

// connect signs an agent in; what the server refuses comes to refused.
func (a *agents) connect(t *testing.T, id int64, file string, o ...nats.Option) (nc *nats.Conn, refused chan error) {
	t.Helper()
	refused = make(chan error, 1000)
	nc, err := nats.Connect(a.url, append([]nats.Option{
		nats.UserCredentials(file), nats.CustomInboxPrefix(bus.AgentInbox(id)),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }),
	}, o...)...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc, refused
}

// eachForm runs a test on the embedded server and on one with the configuration that operators get.
func eachForm(t *testing.T, test func(t *testing.T, a *agents)) {
	t.Helper()
	t.Parallel()
	streams := []string{bus.TaskStream, bus.ReportStream, bus.WorkStream, bus.ParkedStream, bus.PresenceBucket}
	run := func(t *testing.T, a *agents) {
		a.known = map[string]bus.ServiceUser{}
		require.NoError(t, a.registry.Ensure(within(t), streams...))
		stop, err := a.registry.Admit(a.issuer, a.judge)
		require.NoError(t, err)
		t.Cleanup(stop)
		test(t, a)
	}
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		srv, err := bus.StartServer(bus.ServerOptions{Dir: t.TempDir(), Addr: "127.0.0.1:0", Sync: time.Minute})
		require.NoError(t, err)
		t.Cleanup(srv.Close)
		b, err := bus.Connect(within(t), bus.Options{Server: srv, Service: "registry"})
		require.NoError(t, err)
		t.Cleanup(b.Close)
		run(t, &agents{url: srv.URL(), registry: b, issuer: srv.Issuer()})
	})
	t.Run("distributed", func(t *testing.T) {
		t.Parallel()
		url, seeds := startDistributed(t)
		b, err := bus.Connect(within(t), bus.Options{URL: url, Service: "registry", Credentials: seeds["registry"]})
		require.NoError(t, err)
		t.Cleanup(b.Close)
		run(t, &agents{url: url, registry: b, issuer: seeds["issuer"]})
	})
}

func (a *agents) give(t *testing.T, id int64, task string) {
	t.Helper()
	_, err := a.registry.Publish(t.Context(), bus.TaskStream,
		bus.NewEvent("butler.task.changed", "/butler/registry", fmt.Sprintf("butler.task.%d.%s", id, task), []byte(`{"id":"`+task+`"}`)))
	require.NoError(t, err)
}

func agentJetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.NewWithAPIPrefix(nc, bus.AgentAPI)
	require.NoError(t, err)
	return js
}

func fetch(t *testing.T, nc *nats.Conn, id int64) jetstream.Msg {
	t.Helper()
	c, err := agentJetStream(t, nc).Consumer(t.Context(), bus.TaskStream, bus.AgentName(id))
	require.NoError(t, err)
	m, err := c.Next(jetstream.FetchMaxWait(5 * time.Second))
	require.NoError(t, err)
	return m
}

func TestAnAgentDoesItsWork(t *testing.T) {
	eachForm(t, func(t *testing.T, a *agents) {
		ctx := within(t)
		file, _ := a.add(t, 7)
		nc, refused := a.connect(t, 7, file)
		notices, err := nc.SubscribeSync("butler.notice.7")
		require.NoError(t, err)
		beats := make(chan string, 1)
		stop, err := a.registry.Serve("butler.beat.*", func(_ context.Context, ev bus.Event) []byte {
			beats <- ev.Subject
			return []byte("ok")
		})
		require.NoError(t, err)
		t.Cleanup(stop)
		a.give(t, 7, "t1")
		m := fetch(t, nc, 7)
		require.Equal(t, "butler.task.7.t1", m.Subject())
		require.NoError(t, m.InProgress())
		ack, err := agentJetStream(t, nc).PublishMsg(ctx, nats.NewMsg("butler.report.7.t1.1"))
		require.NoError(t, err)
		require.Equal(t, bus.ReportStream, ack.Stream)
		require.NoError(t, m.DoubleAck(ctx))
		answer, err := nc.RequestWithContext(ctx, "butler.beat.7", nil)
		require.NoError(t, err)
		require.Equal(t, "ok", string(answer.Data))
		require.Equal(t, "butler.beat.7", <-beats)
		require.NoError(t, a.registry.Notify("butler.notice.7", []byte("{}")))
		_, err = notices.NextMsg(5 * time.Second)
		require.NoError(t, err)
		consumes, err := a.registry.AgentConsumes(ctx, 7)
		require.NoError(t, err)
		require.False(t, consumes, "nothing is asked for now")
		require.Empty(t, refused)
	})
}

func TestWhoHasNoValidCredentialsIsNotLetIn(t *testing.T) {
	eachForm(t, func(t *testing.T, a *agents) {
		file, public := a.add(t, 7)
		stranger, err := bus.NewCredentials(a.issuer, "agent-7") // signed by the right key, and not known
		require.NoError(t, err)
		strange := filepath.Join(t.TempDir(), "x.creds")
		require.NoError(t, os.WriteFile(strange, []byte(stranger.File), 0o600))
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		token, _, _ := strings.Cut(string(data)[strings.Index(string(data), "eyJ"):], "\n")
		for name, o := range map[string]nats.Option{
			"nothing": nats.Name("x"), "password": nats.UserInfo("operator", "wrong"), "token": nats.Token("x"),
			"unknown": nats.UserCredentials(strange),
			// The public half of what agent 7 has: its token, and a signature of another key.
			"another's token": nats.UserJWT(func() (string, error) { return token, nil }, func(nonce []byte) ([]byte, error) { return make([]byte, 64), nil }),
			"another's key":   nats.Nkey(public, func([]byte) ([]byte, error) { return make([]byte, 64), nil }),
		} {
			_, err := nats.Connect(a.url, o, nats.MaxReconnects(0))
			require.ErrorIs(t, err, nats.ErrAuthorization, name)
		}
	})
}

func TestRevokingDisconnectsAtOnce(t *testing.T) {
	eachForm(t, func(t *testing.T, a *agents) {
		file, public := a.add(t, 7)
		other, _ := a.add(t, 8)
		gone := make(chan struct{})
		nc, _ := a.connect(t, 7, file, nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(gone) }))
		stays, _ := a.connect(t, 8, other, nats.NoReconnect())
		require.NoError(t, nc.Flush())
		a.mu.Lock()
		delete(a.known, public)
		a.mu.Unlock()
		began := time.Now()
		n, err := a.registry.Kick(within(t), "agent-7")
		require.NoError(t, err)
		require.Equal(t, 1, n)
		select {
		case <-gone:
		case <-within(t).Done():
			t.Fatal("the connection of a revoked agent lives on")
		}
		require.Less(t, time.Since(began), 2*time.Second)
		_, err = nats.Connect(a.url, nats.UserCredentials(file), nats.MaxReconnects(0))
		require.ErrorIs(t, err, nats.ErrAuthorization)
		require.NoError(t, stays.Flush(), "the others stay")
	})
}

// everySubject gives what there is to reach beside what an agent may: subjects of every stream, the API of JetStream under
// both prefixes, the presence bucket, direct get, the server's API, and inboxes.
func everySubject() []string {
	out := []string{
		"butler.chat.1.1.m.asked", "butler.chat.1.1.m.answer", "butler.chat.3.1.1.m.answer", "butler.chat.1.1.m.stop", "butler.delta.1.1",
		"butler.work.turn.1.1.m.k", "butler.timer.turn.1.1.m.k", "butler.work.approval.x", "butler.timer.approval.x",
		"butler.work.task.7.t", "butler.timer.task.7.t", "butler.parked.x", "butler.approval.x", "butler.approval-use.h.x", "butler.audit",
		"butler.shell.h.x", "butler.access.changed", "butler.task.7.t", "butler.task.8.t", "butler.task-answer.7.t.k",
		"butler.report.8.t.1", "butler.report.7", "butler.report.7.t", "butler.report.7.t.1.x", "butler.beat.8", "butler.beat", "butler.notice.7",
		"butler.notice.8", "$KV.PRESENCE.agent.7", "$KV.PRESENCE.agent.8", "$KV.PRESENCE.replica.brain.x", "$O.x", "$JSC.R.x",
		"$JS.ACK.TASK." + bus.AgentName(8) + ".1.1.1.1.0", "$JS.ACK.TASK.registry-tasks.1.1.1.1.0", "$JS.ACK.REPORT.registry-reports.1.1.1.1.0",
		"$JS.ACK.WORK.brain-signals.1.1.1.1.0", "$JS.FC.TASK.x", "$SYS.REQ.USER.AUTH", "$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ",
		"$SYS.REQ.ACCOUNT.AGENTS.CONNZ", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.USER.INFO", "AGENT.SYS.CONNZ", "AGENT.SYS.KICK.x", "_R_.x", "_GR_.x",
		"_INBOX.x", "_INBOX_agent-7.x", "_INBOX_agent-8.x",
	}
	for _, u := range bus.ServiceUsers() {
		out = append(out, "_INBOX_"+u.Service+".x")
	}
	streams := []string{"KV_" + bus.PresenceBucket}
	for _, s := range bus.Streams(1) {
		streams = append(streams, s.Name)
	}
	for _, prefix := range []string{"$JS.API.", bus.AgentAPI + "."} {
		out = append(out, prefix+"INFO", prefix+"STREAM.NAMES", prefix+"STREAM.LIST")
		for _, s := range streams {
			for _, call := range []string{"STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.INFO", "STREAM.PURGE", "STREAM.MSG.GET",
				"STREAM.MSG.DELETE", "STREAM.SNAPSHOT", "STREAM.RESTORE", "DIRECT.GET", "CONSUMER.CREATE", "CONSUMER.NAMES", "CONSUMER.LIST"} {
				out = append(out, prefix+call+"."+s)
			}
			out = append(out, prefix+"DIRECT.GET."+s+".butler.task.8.t", prefix+"CONSUMER.CREATE."+s+".x", prefix+"CONSUMER.CREATE."+s+".x.butler.>",
				prefix+"CONSUMER.DURABLE.CREATE."+s+".x")
			for _, call := range []string{"INFO", "MSG.NEXT", "DELETE", "PAUSE", "UNPIN"} {
				for _, c := range []string{bus.AgentName(8), "registry-tasks", "registry-reports", "brain-signals", "x"} {
					out = append(out, prefix+"CONSUMER."+call+"."+s+"."+c)
				}
			}
		}
		out = append(out, prefix+"CONSUMER.DELETE.TASK."+bus.AgentName(7), prefix+"CONSUMER.CREATE.TASK."+bus.AgentName(7))
	}
	return append(out, "$JS.API.CONSUMER.MSG.NEXT.TASK."+bus.AgentName(7), "$JS.API.CONSUMER.INFO.TASK."+bus.AgentName(7))
}

// The whole matrix: everything that is not the agent's own is refused, one by one.
func TestAnAgentReachesNothingElse(t *testing.T) {
	eachForm(t, func(t *testing.T, a *agents) {
		ctx := within(t)
		file, _ := a.add(t, 7)
		a.add(t, 8)
		nc, refused := a.connect(t, 7, file)
		expect := func(what string) {
			t.Helper()
			require.NoError(t, nc.FlushWithContext(ctx))
			select {
			case err := <-refused:
				require.ErrorIs(t, err, nats.ErrPermissionViolation)
			case <-time.After(2 * time.Second):
				t.Fatalf("an agent may %s", what)
			}
		}
		for _, s := range everySubject() {
			require.NoError(t, nc.Publish(s, []byte(`{}`)))
			expect("publish " + s)
		}
		listen := append(everySubject(), ">", "*", "*.>", "butler.>", "butler.task.>", "butler.task.7.*", "butler.report.>", "butler.report.7.>", "butler.notice.*",
			"butler.notice.>", "butler.beat.*", "butler.beat.7", "_INBOX.>", "_INBOX_agent-8.>", "_INBOX_*.>", "$JS.>", "$JS.ACK.>", "$KV.>", "$SYS.>",
			"_R_.>", bus.AgentAPI+".>", "$JS.EVENT.>")
		for _, s := range listen {
			if strings.HasPrefix(s, "_INBOX_agent-7.") || s == "butler.notice.7" {
				continue // its own
			}
			_, err := nc.SubscribeSync(s)
			require.NoError(t, err)
			expect("subscribe to " + s)
			_, err = nc.QueueSubscribeSync(s, "registry")
			require.NoError(t, err)
			expect("subscribe in a queue to " + s)
		}
	})
}

// What worked in one account with permissions alone.
func TestAttacksThroughWhatAnAgentMayDo(t *testing.T) {
	eachForm(t, func(t *testing.T, a *agents) {
		ctx := within(t)
		file, _ := a.add(t, 7)
		otherFile, _ := a.add(t, 8)
		nc, _ := a.connect(t, 7, file)
		other, _ := a.connect(t, 8, otherFile)
		js := agentJetStream(t, nc)
		pull := bus.AgentAPI + ".CONSUMER.MSG.NEXT.TASK." + bus.AgentName(7)
		info := bus.AgentAPI + ".CONSUMER.INFO.TASK." + bus.AgentName(7)
		count := func(stream string) uint64 {
			first, last, err := a.registry.Bounds(ctx, stream)
			require.NoError(t, err)
			return last - first
		}
		// settled waits until the server has done what was sent.
		settled := func() {
			require.NoError(t, nc.FlushWithContext(ctx))
			_, err := js.PublishMsg(ctx, nats.NewMsg("butler.report.7.settled."+strconv.FormatInt(time.Now().UnixNano(), 10)))
			require.NoError(t, err)
		}

		t.Run("a reply subject that is another's", func(t *testing.T) {
			a.give(t, 8, "held")
			held := fetch(t, other, 8) // taken and not acknowledged
			meta, err := held.Metadata()
			require.NoError(t, err)
			guess := fmt.Sprintf("$JS.ACK.TASK.agent-8.%d.%d.%d.%d.%d", meta.NumDelivered, meta.Sequence.Stream, meta.Sequence.Consumer,
				meta.Timestamp.UnixNano(), meta.NumPending)
			work, tasks := count(bus.WorkStream), count(bus.TaskStream)
			for _, reply := range []string{"butler.approval.x", "butler.work.turn.1.1.m.k", "butler.task.8.forged", "butler.parked.x", guess} {
				for _, target := range []string{pull, info, "butler.report.7.a.1", "butler.beat.7"} {
					require.NoError(t, nc.PublishRequest(target, reply, []byte(`{"no_wait":true,"batch":1}`)))
				}
			}
			settled()
			require.Equal(t, work, count(bus.WorkStream))
			require.Equal(t, tasks, count(bus.TaskStream))
			consumes, err := a.registry.AgentConsumes(ctx, 8)
			require.NoError(t, err)
			require.True(t, consumes, "another's task was acknowledged")
			require.NoError(t, held.Ack())
		})
		t.Run("a reply subject that is another's report", func(t *testing.T) {
			// What the server answers with may come to stand among another's reports. It is no report: it has no type.
			a.give(t, 7, "bait")
			require.NoError(t, nc.PublishRequest(pull, "butler.report.8.victim.1", []byte(`{"batch":1,"expires":1000000000}`)))
			require.NoError(t, nc.PublishRequest(info, "butler.report.8.victim.1", nil))
			settled()
			events, err := a.registry.Load(ctx, bus.ReportStream, "butler.report.8.>", 0, 0)
			require.NoError(t, err)
			for _, ev := range events {
				require.NotEqual(t, "butler.agent.report", ev.Type)
			}
		})
		t.Run("an id that is a future event's", func(t *testing.T) {
			m := nats.NewMsg("butler.report.7.a.1")
			m.Header.Set("Nats-Msg-Id", "future")
			_, err := js.PublishMsg(ctx, m)
			require.NoError(t, err)
			ev := bus.NewEvent("butler.task.changed", "", "butler.task.8.future", []byte(`{}`))
			ev.ID = "future"
			_, err = a.registry.Publish(ctx, bus.TaskStream, ev)
			require.NoError(t, err)
			_, found, err := a.registry.Last(ctx, bus.TaskStream, "butler.task.8.future")
			require.NoError(t, err)
			require.True(t, found, "another's task vanished")
		})
		t.Run("headers that make the server do something", func(t *testing.T) {
			_, before, err := a.registry.Bounds(ctx, bus.ReportStream)
			require.NoError(t, err)
			for _, h := range []map[string]string{
				{"Nats-Schedule": "@at " + time.Now().UTC().Format(time.RFC3339), "Nats-Schedule-Target": "butler.report.8.x.1"},
				{"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "butler.task.8.x"},
				{"Nats-Rollup": "all"}, {"Nats-Rollup": "sub"}, {"Nats-TTL": "1s"}, {"Nats-Marker-Reason": "Purge"}, {"KV-Operation": "PURGE"},
				{"Nats-Incr": "1"}, {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
			} {
				m := nats.NewMsg("butler.report.7.headers.1")
				for k, v := range h {
					m.Header.Set(k, v)
				}
				_, _ = js.PublishMsg(ctx, m) // refused, or without effect
			}
			settled()
			first, last, err := a.registry.Bounds(ctx, bus.ReportStream)
			require.NoError(t, err)
			require.EqualValues(t, 1, first, "nothing was wiped")
			require.GreaterOrEqual(t, last, before)
			_, found, err := a.registry.Last(ctx, bus.ReportStream, "butler.report.8.x.1")
			require.NoError(t, err)
			require.False(t, found, "a schedule fired")
		})
	})
}
