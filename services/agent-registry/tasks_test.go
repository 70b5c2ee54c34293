package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/storage"
	"github.com/butlerhub/butler/pkg/storage/storagetest"
	"github.com/butlerhub/butler/pkg/task"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// rig is a registry that dispatches, on a server that agents connect to.
type rig struct {
	*Service
	url, issuer string // of the server
	bus         *bus.Bus
	db          *storage.DB
	clock       *clock
	stop        func() // ends the registry
}

func newRig(t *testing.T) *rig {
	t.Helper()
	srv, err := bus.StartServer(bus.ServerOptions{Dir: t.TempDir(), Addr: "127.0.0.1:0", Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Close)
	b, err := bus.Connect(t.Context(), bus.Options{Server: srv, Service: "registry"})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	return rigOn(t, b, srv.URL(), srv.Issuer())
}

func rigOn(t *testing.T, b *bus.Bus, url, issuer string) *rig {
	t.Helper()
	require.NoError(t, b.Ensure(t.Context(), bus.TaskStream, bus.ReportStream, bus.WorkStream, bus.ParkedStream, bus.PresenceBucket))
	r := &rig{url: url, issuer: issuer, bus: b, db: storagetest.Open(t, storagetest.SQLiteURL(t)), clock: &clock{}}
	r.run(t)
	return r
}

// distributedRig is one on a server with the configuration that operators get, and with the rights of agent-registry.
func distributedRig(t *testing.T) *rig {
	t.Helper()
	dir, keys, seed := t.TempDir(), map[string]string{}, ""
	for _, u := range bus.ServiceUsers() {
		made, public, err := bus.NewServiceKey()
		require.NoError(t, err)
		keys[u.Service] = public
		if u.Service == "registry" {
			seed = made
		}
	}
	issuer, public, err := bus.NewIssuerKey()
	require.NoError(t, err)
	conf, err := bus.ServerConfig("127.0.0.1:-1", filepath.Join(dir, "store"), keys, public)
	require.NoError(t, err)
	opts := &server.Options{}
	require.NoError(t, opts.ProcessConfigString(conf))
	opts.NoSigs, opts.NoLog = true, true
	srv, err := server.NewServer(opts)
	require.NoError(t, err)
	srv.Start()
	require.True(t, srv.ReadyForConnections(30*time.Second))
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	file := filepath.Join(dir, "registry.nk")
	require.NoError(t, os.WriteFile(file, []byte(seed), 0o600))
	b, err := bus.Connect(t.Context(), bus.Options{URL: srv.ClientURL(), Service: "registry", Credentials: file})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	return rigOn(t, b, srv.ClientURL(), issuer)
}

// run starts a registry on what is there.
func (r *rig) run(t *testing.T) {
	t.Helper()
	s, err := New(Deps{DB: r.db, Presence: r.bus, Bus: r.bus, Issuer: r.issuer, Clock: r.clock.Now})
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	r.Service, r.stop = s, sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(r.stop)
	require.Eventually(t, func() bool { return s.Ready(ctx) == nil }, 10*time.Second, time.Millisecond)
}

// hand is an agent that does only what the test says.
type hand struct {
	t    *testing.T
	id   int64
	nc   *nats.Conn
	cons jetstream.Consumer
}

func (r *rig) add(t *testing.T, req *butlerv1.AddAgentRequest) (*butlerv1.AddAgentResponse, string) {
	t.Helper()
	out, err := r.AddAgent(t.Context(), req)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "agent.creds")
	require.NoError(t, os.WriteFile(file, []byte(out.GetCredentials()), 0o600))
	return out, file
}

func (r *rig) dial(id int64, file string, o ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(r.url, append([]nats.Option{nats.UserCredentials(file), nats.CustomInboxPrefix(bus.AgentInbox(id)),
		nats.MaxReconnects(0)}, o...)...)
}

// hand connects the agent of a credentials file.
func (r *rig) hand(t *testing.T, id int64, file string) *hand {
	t.Helper()
	var nc *nats.Conn
	require.Eventually(t, func() (ok bool) { // the door opens in the background
		var err error
		nc, err = r.dial(id, file)
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	t.Cleanup(nc.Close)
	js, err := jetstream.NewWithAPIPrefix(nc, bus.AgentAPI)
	require.NoError(t, err)
	cons, err := js.Consumer(t.Context(), bus.TaskStream, bus.AgentName(id))
	require.NoError(t, err)
	return &hand{t, id, nc, cons}
}

// newHand adds an agent and connects it.
func (r *rig) newHand(t *testing.T, name string) *hand {
	t.Helper()
	out, file := r.add(t, &butlerv1.AddAgentRequest{Name: name})
	return r.hand(t, out.GetAgent().GetId(), file)
}

// take gives the next open task with its attempt.
func (h *hand) take() (jetstream.Msg, *butlerv1.Task, int) {
	h.t.Helper()
	for {
		m, err := h.cons.Next(jetstream.FetchMaxWait(20 * time.Second))
		require.NoError(h.t, err)
		task1 := &butlerv1.Task{}
		require.NoError(h.t, chat.Decode(m.Data(), task1))
		if task1.GetStatus() != task.Open {
			require.NoError(h.t, m.Ack())
			continue
		}
		meta, err := m.Metadata()
		require.NoError(h.t, err)
		return m, task1, int(meta.NumDelivered)
	}
}

func (h *hand) say(id string, attempt int, r *butlerv1.TaskReport) {
	h.t.Helper()
	data, err := chat.Encode(r)
	require.NoError(h.t, err)
	h.raw(task.Ref{Agent: h.id, ID: id}.Report(attempt), task.TypeReport, data)
}

func (h *hand) raw(subject, typ string, data []byte) {
	h.t.Helper()
	m := nats.NewMsg(subject)
	m.Header.Set("ce-specversion", "1.0")
	m.Header.Set("ce-type", typ)
	m.Header.Set("ce-id", "x")
	m.Data = data
	_, err := h.nc.RequestMsg(m, 5*time.Second)
	require.NoError(h.t, err)
}

func (h *hand) beat(tasks ...string) *butlerv1.AgentBeatAnswer {
	h.t.Helper()
	data, err := chat.Encode(&butlerv1.AgentBeat{Worker: "w", Tasks: tasks})
	require.NoError(h.t, err)
	m := nats.NewMsg(task.Beat(h.id))
	m.Header.Set("ce-type", task.TypeBeat)
	m.Data = data
	out, err := h.nc.RequestMsg(m, 5*time.Second)
	require.NoError(h.t, err)
	answer := &butlerv1.AgentBeatAnswer{}
	require.NoError(h.t, chat.Decode(out.Data, answer))
	return answer
}

func (r *rig) create(t *testing.T, agent int64, id string, o ...func(*butlerv1.CreateTaskRequest)) *butlerv1.TaskView {
	t.Helper()
	req := &butlerv1.CreateTaskRequest{Id: id, AgentId: agent, Input: structpb.NewStringValue("look")}
	for _, f := range o {
		f(req)
	}
	out, err := r.CreateTask(t.Context(), req)
	require.NoError(t, err)
	return out.GetTask()
}

// until waits until the task is as wished, and gives it.
func (r *rig) until(t *testing.T, agent int64, id string, wish func(*butlerv1.TaskView) bool) *butlerv1.TaskView {
	t.Helper()
	var v *butlerv1.TaskView
	require.Eventually(t, func() bool {
		out, err := r.GetTask(t.Context(), &butlerv1.GetTaskRequest{AgentId: agent, Id: id})
		require.NoError(t, err)
		v = out.GetTask()
		return wish(v)
	}, 30*time.Second, 5*time.Millisecond)
	return v
}

func over(v *butlerv1.TaskView) bool { return v.GetState() == task.Over }

// dropped waits for reports that were not believed, and gives the reasons.
func (r *rig) dropped(t *testing.T, n int) string {
	t.Helper()
	var reasons []string
	require.Eventually(t, func() bool {
		events, err := r.bus.Load(t.Context(), bus.ParkedStream, "butler.parked.report.>", 0, 0)
		require.NoError(t, err)
		reasons = nil
		for _, ev := range events {
			reasons = append(reasons, ev.Header.Get("butler-reason"))
		}
		return len(reasons) >= n
	}, 10*time.Second, 5*time.Millisecond, "reports are dropped and kept")
	require.Len(t, reasons, n)
	return strings.Join(reasons, "\n")
}

func TestATaskIsDone(t *testing.T) {
	t.Parallel()
	for name, rig := range map[string]func(*testing.T) *rig{"embedded": newRig, "distributed": distributedRig} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aTaskIsDone(t, rig(t))
		})
	}
}

func aTaskIsDone(t *testing.T, r *rig) {
	t.Helper()
	h := r.newHand(t, "seven")
	waiter := func(q *butlerv1.CreateTaskRequest) {
		q.Waiter = &butlerv1.Waiter{Person: 1, Thread: 2, Turn: "m1", Key: "k1"}
	}
	require.Equal(t, task.Waiting, r.create(t, h.id, "t1", waiter).GetState())
	m, got, attempt := h.take()
	require.Equal(t, 1, attempt)
	require.Equal(t, "t1", got.GetIdempotencyKey())
	h.say("t1", 1, &butlerv1.TaskReport{Kind: task.Claim, Worker: "w1"})
	h.say("t1", 1, &butlerv1.TaskReport{Kind: task.Progress, Text: "half"})
	v := r.until(t, h.id, "t1", func(v *butlerv1.TaskView) bool { return v.GetProgress() == "half" })
	require.Equal(t, task.Running, v.GetState())
	require.Equal(t, "w1", v.GetWorker())
	h.say("t1", 1, &butlerv1.TaskReport{Kind: task.Result, Worker: "w1", Output: structpb.NewStringValue("all is well")})
	require.NoError(t, m.DoubleAck(t.Context()))
	v = r.until(t, h.id, "t1", over)
	require.Equal(t, task.Done, v.GetTask().GetStatus())
	require.Equal(t, "all is well", v.GetTask().GetOutcome().GetOutput().GetStringValue())

	// The turn that waited is woken with the whole task.
	require.Eventually(t, func() bool {
		ev, found, err := r.bus.Last(t.Context(), bus.WorkStream, "butler.work.turn.1.2.m1.k1")
		require.NoError(t, err)
		if !found {
			return false
		}
		var signal struct{ Value json.RawMessage }
		require.NoError(t, json.Unmarshal(ev.Data, &signal))
		woken := &butlerv1.Task{}
		require.NoError(t, chat.Decode(signal.Value, woken))
		return woken.GetOutcome().GetOutput().GetStringValue() == "all is well"
	}, 10*time.Second, 5*time.Millisecond)
	// Its timer is called off.
	require.Eventually(t, func() bool {
		_, found, err := r.bus.Last(t.Context(), bus.WorkStream, "butler.timer.task.>")
		return err == nil && !found
	}, 10*time.Second, 5*time.Millisecond)
	// The same again changes nothing.
	require.Equal(t, task.Done, r.create(t, h.id, "t1", waiter).GetTask().GetStatus())
	// What is late is dropped and kept, questions are answered, deadlines pass, and what is deleted is gone.
	h.say("t1", 1, &butlerv1.TaskReport{Kind: task.Progress})
	require.Contains(t, r.dropped(t, 1), "is over")
	r.create(t, h.id, "t2", func(q *butlerv1.CreateTaskRequest) { q.Deadline = timestamppb.New(r.clock.Now().Add(time.Second)) })
	_, err := r.AnswerTask(t.Context(), &butlerv1.AnswerTaskRequest{AgentId: h.id, Id: "t2", Question: "q"})
	require.NoError(t, err)
	h.beat("t2")
	require.Equal(t, task.Expired, r.until(t, h.id, "t2", over).GetTask().GetStatus())
	_, err = r.DeleteAgent(t.Context(), &butlerv1.DeleteAgentRequest{AgentId: h.id})
	require.NoError(t, err)
	require.Eventually(t, h.nc.IsClosed, 5*time.Second, time.Millisecond)
	consumes, err := r.bus.AgentConsumes(t.Context(), h.id)
	require.NoError(t, err)
	require.False(t, consumes)
}

func TestReportsThatAreNotBelieved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h, other := r.newHand(t, "seven"), r.newHand(t, "eight")
	r.create(t, h.id, "t1")
	result := func(text string) *butlerv1.TaskReport {
		return &butlerv1.TaskReport{Kind: task.Result, Output: structpb.NewStringValue(text)}
	}
	other.say("t1", 1, result("foreign")) // the other has no such task
	h.say("t1", 2, &butlerv1.TaskReport{Kind: task.Claim})
	h.say("t1", 1, result("late"))
	require.Contains(t, r.dropped(t, 2), "attempt 1 was lost", "also while it is the newest")
	h.raw(task.Ref{Agent: h.id, ID: "t1"}.Report(2), "butler.task.changed", []byte(`{"kind":"result"}`)) // another type
	h.raw(task.Ref{Agent: h.id, ID: "t1"}.Report(2), task.TypeReport, []byte(`{"kind":`))                // cut off
	h.raw(fmt.Sprintf("butler.report.%d.t1.007", h.id), task.TypeReport, []byte(`{"kind":"result"}`))    // no attempt
	h.say("t1", 2, &butlerv1.TaskReport{Kind: "conquer"})
	h.say("t1", 2, result("right"))
	h.say("t1", 2, result("again"))
	v := r.until(t, h.id, "t1", over)
	require.Equal(t, "right", v.GetTask().GetOutcome().GetOutput().GetStringValue())
	require.EqualValues(t, 2, v.GetTask().GetOutcome().GetAttempt())
	reasons := r.dropped(t, 7)
	for _, part := range []string{"no such task", "attempt 1 was lost", "no report: its type", "cannot be read", "names no attempt", "unknown kind", "is over"} {
		require.Contains(t, reasons, part)
	}
	events, err := r.bus.Load(t.Context(), bus.TaskStream, "butler.task.>", 0, 0)
	require.NoError(t, err)
	require.Len(t, events, 1, "one outcome, which replaced the open task")
}

func TestTooLargeAResultFailsTheTask(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := r.newHand(t, "seven")
	r.create(t, h.id, "t1")
	h.say("t1", 1, &butlerv1.TaskReport{Kind: task.Result, Output: structpb.NewStringValue(strings.Repeat("x", task.MaxValue))})
	v := r.until(t, h.id, "t1", over)
	require.Equal(t, task.OutputTooMuch, v.GetTask().GetOutcome().GetCode())
}

func TestADeadReplicasTaskGoesToAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	out, file := r.add(t, &butlerv1.AddAgentRequest{Name: "seven"})
	id := out.GetAgent().GetId()
	dead, alive := r.hand(t, id, file), r.hand(t, id, file)
	r.create(t, id, "t1")
	_, _, attempt := dead.take()
	dead.say("t1", attempt, &butlerv1.TaskReport{Kind: task.Claim, Worker: "dead"})
	dead.nc.Close()
	began := time.Now()
	m, _, attempt := alive.take()
	require.Less(t, time.Since(began), 30*time.Second)
	require.Equal(t, 2, attempt)
	alive.say("t1", 2, &butlerv1.TaskReport{Kind: task.Result, Worker: "alive"})
	require.NoError(t, m.Ack())
	require.Equal(t, "alive", r.until(t, id, "t1", over).GetTask().GetOutcome().GetWorker())
}

func TestATaskThatItsAgentDoesNotSurviveFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := r.newHand(t, "seven")
	r.create(t, h.id, "t1", func(q *butlerv1.CreateTaskRequest) { q.MaxAttempts = 2 })
	for want := 1; want <= 3; want++ {
		m, _, attempt := h.take()
		require.Equal(t, want, attempt)
		h.say("t1", attempt, &butlerv1.TaskReport{Kind: task.Claim})
		require.NoError(t, m.Nak()) // as after the ack wait
	}
	v := r.until(t, h.id, "t1", over)
	require.Equal(t, task.Lost, v.GetTask().GetOutcome().GetCode())
	require.Contains(t, v.GetTask().GetOutcome().GetReason(), "2 times")
	_, err := h.cons.Next(jetstream.FetchMaxWait(100 * time.Millisecond))
	if err == nil { // the notice that it is over
		_, err = h.cons.Next(jetstream.FetchMaxWait(100 * time.Millisecond))
	}
	require.Error(t, err, "it is handed out no more")
}

func TestDeadlineCancelAndNobodyThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	out, file := r.add(t, &butlerv1.AddAgentRequest{Name: "seven"})
	id := out.GetAgent().GetId()
	soon := func(q *butlerv1.CreateTaskRequest) {
		q.Deadline = timestamppb.New(r.clock.Now().Add(1500 * time.Millisecond))
	}
	r.create(t, id, "none", soon)
	v := r.until(t, id, "none", over)
	require.Equal(t, task.NoAgent, v.GetTask().GetOutcome().GetCode())
	require.False(t, v.GetTask().GetOutcome().GetEndedAt().AsTime().Before(v.GetTask().GetDeadline().AsTime()))

	require.Equal(t, task.Waiting, r.create(t, id, "later").GetState())
	r.clock.Add(noAgentAfter)
	r.until(t, id, "later", func(v *butlerv1.TaskView) bool { return v.GetState() == task.Nobody })
	h := r.hand(t, id, file) // within its deadline it is taken
	m, got, attempt := h.take()
	require.Equal(t, "later", got.GetId())
	h.say("later", attempt, &butlerv1.TaskReport{Kind: task.Claim})
	r.until(t, id, "later", func(v *butlerv1.TaskView) bool { return v.GetState() == task.Running })
	notices, err := h.nc.SubscribeSync(task.Notice(id))
	require.NoError(t, err)
	require.NoError(t, h.nc.Flush())
	require.Empty(t, h.beat("later").GetStop())
	cancelled, err := r.CancelTask(t.Context(), &butlerv1.CancelTaskRequest{AgentId: id, Id: "later", Reason: "not needed", By: &butlerv1.Actor{Id: 1}})
	require.NoError(t, err)
	require.Equal(t, task.Cancelled, cancelled.GetTask().GetTask().GetStatus())
	_, err = notices.NextMsg(5 * time.Second)
	require.NoError(t, err, "who works on it hears of it at once")
	require.Equal(t, []string{"later"}, h.beat("later").GetStop())
	require.NoError(t, m.Ack())
	again, err := r.CancelTask(t.Context(), &butlerv1.CancelTaskRequest{AgentId: id, Id: "later"})
	require.NoError(t, err)
	require.Equal(t, "not needed", again.GetTask().GetTask().GetOutcome().GetReason())
}

func TestQuestions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := r.newHand(t, "seven")
	r.create(t, h.id, "t1")
	_, _, attempt := h.take()
	h.say("t1", attempt, &butlerv1.TaskReport{Kind: task.Question, Question: "restart", Text: "May I restart it?"})
	v := r.until(t, h.id, "t1", func(v *butlerv1.TaskView) bool { return len(v.GetQuestions()) == 1 })
	require.Equal(t, "May I restart it?", v.GetQuestions()[0].GetText())
	answer := func(approved bool) *butlerv1.TaskAnswer {
		out, err := r.AnswerTask(t.Context(), &butlerv1.AnswerTaskRequest{AgentId: h.id, Id: "t1", Question: "restart", Approved: approved})
		require.NoError(t, err)
		return out.GetAnswer()
	}
	require.True(t, answer(true).GetApproved())
	require.True(t, answer(false).GetApproved(), "the first answer counts")
	require.Eventually(t, func() bool { return len(h.beat("t1").GetAnswers()) == 1 }, 10*time.Second, 5*time.Millisecond)
	require.True(t, h.beat("t1").GetAnswers()[0].GetAnswer().GetApproved())
	require.Empty(t, r.until(t, h.id, "t1", func(*butlerv1.TaskView) bool { return true }).GetQuestions())
}

// Online is who beats and takes tasks.
func TestOnlineMeansOnline(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := r.newHand(t, "seven")
	online := func() bool {
		out, err := r.ListAgents(t.Context(), &butlerv1.ListAgentsRequest{OnlineOnly: true})
		require.NoError(t, err)
		return len(out.GetAgents()) == 1
	}
	require.False(t, h.beat().GetConsuming(), "it beats, and takes nothing")
	require.False(t, online())
	cc, err := h.cons.Consume(func(m jetstream.Msg) { _ = m.Ack() })
	require.NoError(t, err)
	require.False(t, online(), "it takes tasks, and does not beat")
	require.Eventually(t, func() bool { return h.beat().GetConsuming() }, 10*time.Second, 5*time.Millisecond)
	require.True(t, online())
	cc.Stop()
	r.clock.Add(Silence)
	require.False(t, online())
	// A beat that is another's message led here counts for nothing.
	m := nats.NewMsg(task.Beat(h.id))
	_, err = h.nc.RequestMsg(m, 200*time.Millisecond)
	require.Error(t, err)
}

func TestSecretsOfAgents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	out, file := r.add(t, &butlerv1.AddAgentRequest{Name: "seven"})
	id := out.GetAgent().GetId()
	h := r.hand(t, id, file)
	authenticate := func(token string) error {
		_, err := r.AuthenticateAgent(t.Context(), &butlerv1.AuthenticateAgentRequest{Token: token})
		return err
	}
	require.NoError(t, authenticate(out.GetToken()))
	require.Equal(t, codes.Unauthenticated, status.Code(authenticate("bta_x")))
	_, err := r.AddAgent(t.Context(), &butlerv1.AddAgentRequest{Name: "SEVEN"})
	require.Equal(t, codes.AlreadyExists, status.Code(err))

	// Neither secret is kept.
	dump := ""
	require.NoError(t, r.db.Read(t.Context(), func(tx *storage.Tx) error {
		a, err := scanAgent(tx.QueryRow("SELECT "+agentColumns+" FROM agents WHERE id = $1", id))
		dump = fmt.Sprintf("%+v", a)
		return err
	}))
	require.NotContains(t, dump, out.GetToken())
	_, seed, _ := strings.Cut(out.GetCredentials(), "USER NKEY SEED")
	require.NotContains(t, dump, strings.Fields(seed)[1])

	gone := func(nc *nats.Conn) {
		require.Eventually(t, nc.IsClosed, 5*time.Second, time.Millisecond, "disconnected at once")
	}
	again, err := r.RotateAgent(t.Context(), &butlerv1.RotateAgentRequest{AgentId: id})
	require.NoError(t, err)
	gone(h.nc)
	_, err = r.dial(id, file)
	require.ErrorIs(t, err, nats.ErrAuthorization)
	require.Equal(t, codes.Unauthenticated, status.Code(authenticate(out.GetToken())))
	require.NoError(t, authenticate(again.GetToken()))
	require.NoError(t, os.WriteFile(file, []byte(again.GetCredentials()), 0o600))
	h = r.hand(t, id, file)

	disable := func(yes bool) {
		_, err := r.SetAgentDisabled(t.Context(), &butlerv1.SetAgentDisabledRequest{AgentId: id, Disabled: yes})
		require.NoError(t, err)
	}
	disable(true)
	gone(h.nc)
	_, err = r.dial(id, file)
	require.ErrorIs(t, err, nats.ErrAuthorization)
	require.Equal(t, codes.Unauthenticated, status.Code(authenticate(again.GetToken())))
	_, err = r.CreateTask(t.Context(), &butlerv1.CreateTaskRequest{Id: "t", AgentId: id})
	require.Error(t, err)
	disable(false)
	h = r.hand(t, id, file)
	r.create(t, id, "open")
	h.take()
	require.Eventually(t, func() bool { return len(r.book.of(id)) == 1 }, 10*time.Second, time.Millisecond)
	_, err = r.DeleteAgent(t.Context(), &butlerv1.DeleteAgentRequest{AgentId: id})
	require.NoError(t, err)
	gone(h.nc)
	require.Equal(t, task.Deleted, r.until(t, id, "open", over).GetTask().GetOutcome().GetCode())
	_, err = r.DeleteAgent(t.Context(), &butlerv1.DeleteAgentRequest{AgentId: id})
	require.Equal(t, codes.NotFound, status.Code(err))
}

func TestWhatAnAgentDeclares(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	schema := `{"type":"object","required":["host"],"properties":{"host":{"type":"string"}},"additionalProperties":false}`
	out, _ := r.add(t, &butlerv1.AddAgentRequest{Name: "seven", Labels: map[string]string{"zone": "eu"}, Concurrency: 3,
		Capabilities: []*butlerv1.AgentCapability{{Name: "check", Description: "looks at a host", InputSchema: schema}}})
	list, err := r.ListAgents(t.Context(), &butlerv1.ListAgentsRequest{})
	require.NoError(t, err)
	a := list.GetAgents()[0]
	require.Equal(t, schema, a.GetCapabilities()[0].GetInputSchema())
	require.Equal(t, "eu", a.GetLabels()["zone"])
	require.EqualValues(t, 3, a.GetConcurrency())
	ask := func(capability, input string) error {
		v := &structpb.Value{}
		require.NoError(t, v.UnmarshalJSON([]byte(input)))
		_, err := r.CreateTask(t.Context(), &butlerv1.CreateTaskRequest{Id: "t" + capability + fmt.Sprint(len(input)), AgentId: out.GetAgent().GetId(),
			Capability: capability, Input: v})
		return err
	}
	require.NoError(t, ask("check", `{"host":"web1"}`))
	require.Equal(t, codes.InvalidArgument, status.Code(ask("check", `{"host":1}`)))
	require.Equal(t, codes.InvalidArgument, status.Code(ask("check", `{}`)))
	require.Equal(t, codes.InvalidArgument, status.Code(ask("other", `{}`)))
	for name, bad := range map[string]*butlerv1.AddAgentRequest{
		"schema":   {Name: "x", Capabilities: []*butlerv1.AgentCapability{{Name: "a", InputSchema: `{"type":"nothing"}`}}},
		"fetches":  {Name: "x", Capabilities: []*butlerv1.AgentCapability{{Name: "a", InputSchema: `{"$ref":"file:///etc/passwd"}`}}},
		"no JSON":  {Name: "x", Capabilities: []*butlerv1.AgentCapability{{Name: "a", InputSchema: `{`}}},
		"twice":    {Name: "x", Capabilities: []*butlerv1.AgentCapability{{Name: "a"}, {Name: "a"}}},
		"word":     {Name: "x", Capabilities: []*butlerv1.AgentCapability{{Name: "a b"}}},
		"label":    {Name: "x", Labels: map[string]string{"a b": ""}},
		"too many": {Name: "x", Concurrency: MaxConcurrency + 1},
	} {
		_, err := r.AddAgent(t.Context(), bad)
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
	}
}

// Whatever the registry has begun goes on when it is started again.
func TestARestartLosesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := r.newHand(t, "seven")
	r.create(t, h.id, "t1")
	m, _, attempt := h.take()
	h.say("t1", attempt, &butlerv1.TaskReport{Kind: task.Progress, Text: "half"})
	r.stop()
	h.say("t1", attempt, &butlerv1.TaskReport{Kind: task.Result, Output: structpb.NewNumberValue(1)})
	require.NoError(t, m.Ack())
	r.run(t)
	require.Equal(t, task.Done, r.until(t, h.id, "t1", over).GetTask().GetStatus())
}
