package approval

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/bus/bustest"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// directory is the gateway's list of people, as the test says.
type directory struct {
	mu   sync.Mutex
	list []*butlerv1.Actor
	err  error
}

func (d *directory) ListPeople(context.Context, *butlerv1.ListPeopleRequest, ...grpc.CallOption) (*butlerv1.ListPeopleResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &butlerv1.ListPeopleResponse{People: d.list}, d.err
}

func (d *directory) set(people ...*butlerv1.Actor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = people
}

// shell inspects what approvers edit.
type shell struct {
	butlerv1.ShellServiceClient
	risk func(command string) *butlerv1.Risk
}

func (s *shell) Inspect(_ context.Context, in *butlerv1.InspectRequest, _ ...grpc.CallOption) (*butlerv1.InspectResponse, error) {
	return &butlerv1.InspectResponse{Effect: commandEffect(in.GetCommand()), Risk: s.risk(in.GetCommand())}, nil
}

// rig is approval on a real NATS server.
type rig struct {
	t       testing.TB
	srv     *bus.Server
	bus     *bus.Bus
	people  *directory
	shell   *shell
	key     ed25519.PrivateKey
	earlier []ed25519.PublicKey
	policy  *Policy
	clock   atomic.Int64 // nanoseconds that the services' clock is ahead
	turns   atomic.Int64
	*Service
	stop func()
}

func newRig(t testing.TB) *rig {
	_, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	srv := bustest.Server(t, "")
	r := &rig{
		t: t, srv: srv, key: key, people: &directory{}, bus: bustest.Connect(t, srv, "test"),
		shell: &shell{risk: func(string) *butlerv1.Risk { return &butlerv1.Risk{Level: "medium", Verdict: "ask"} }},
	}
	r.people.set(actors()...)
	r.start()
	return r
}

func (r *rig) now() time.Time { return time.Now().Add(time.Duration(r.clock.Load())) }

// replica makes another one, and runs it until stop.
func (r *rig) replica() (*Service, func()) {
	signer, err := approval.NewSigner(r.key)
	require.NoError(r.t, err)
	s, err := New(Deps{
		Bus: bustest.Connect(r.t, r.srv, "approval"), People: r.people, Signer: signer, Earlier: r.earlier, Policy: r.policy, Clock: r.now,
		Shells: map[string]butlerv1.ShellServiceClient{"web": r.shell},
	})
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(r.t, <-done)
		s.bus.Close()
	})
	r.t.Cleanup(stop)
	require.Eventually(r.t, func() bool { return s.Ready(ctx) == nil }, 20*time.Second, 5*time.Millisecond)
	return s, stop
}

func (r *rig) start() { r.Service, r.stop = r.replica() }

func (r *rig) restart() {
	r.stop()
	r.start()
}

// say appends a person's message and gives its turn.
func (r *rig) say(who, text string) *butlerv1.Waiter {
	person := cast[who]
	turn := chat.Turn{Session: chat.Session{Person: person.GetId(), Thread: person.GetId() * 10}, ID: fmt.Sprintf("m%d", r.turns.Add(1))}
	data, err := chat.Encode(&butlerv1.ChatAsked{
		Sender: person, ConversationId: turn.Thread, LocalId: turn.ID, Text: text, Channel: "websocket", Language: "en",
	})
	require.NoError(r.t, err)
	_, err = r.bus.Append(r.ctx(), bus.NewEvent(chat.TypeAsked, "/test", turn.Subject(chat.Asked), data), bus.Expect{Filter: turn.Filter()})
	require.NoError(r.t, err)
	return &butlerv1.Waiter{Person: turn.Person, Thread: turn.Thread, Turn: turn.ID, Key: "wait"}
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	r.t.Cleanup(cancel)
	return ctx
}

func commandEffect(command string) *butlerv1.Effect {
	return &butlerv1.Effect{
		Version: 1, Kind: approval.KindCommand, Command: command, Dir: "/srv", Host: "web", User: "butler",
		Session: "0b5b1a3e-0000-4000-8000-000000000001", Argv: []*butlerv1.Argv{{Args: []string{command}}},
	}
}

func request(w *butlerv1.Waiter, proposer, command, level string) *butlerv1.RequestApprovalRequest {
	verdict := "ask"
	if level == "low" {
		verdict = "run"
	}
	return &butlerv1.RequestApprovalRequest{
		Id: approval.NewID(fmt.Sprint(w.GetPerson()), w.GetTurn(), w.GetKey(), command), Effect: commandEffect(command),
		Risk: &butlerv1.Risk{Level: level, Verdict: verdict, Visible: command}, Waiter: w, Proposer: proposer,
		Why: &butlerv1.ApprovalReason{Reasoning: "because"},
	}
}

// ask makes the model propose a dangerous command for who.
func (r *rig) ask(who, command string) *butlerv1.Approval {
	resp, err := r.RequestApproval(r.ctx(), request(r.say(who, "please"), approval.ByModel, command, "high"))
	require.NoError(r.t, err)
	require.Equal(r.t, approval.Pending, resp.GetApproval().GetStatus())
	return resp.GetApproval()
}

func (r *rig) word(who, id string, yes bool) (*butlerv1.Approval, error) {
	resp, err := r.DecideApproval(r.ctx(), &butlerv1.DecideApprovalRequest{Id: id, By: cast[who], Approved: yes, Channel: "http"})
	return resp.GetApproval(), err
}

// woken waits for the work item of a turn and gives the document in it.
func (r *rig) woken(a *butlerv1.Approval) *butlerv1.Approval {
	w := a.GetWaiter()
	turn := chat.Turn{Session: chat.Session{Person: w.GetPerson(), Thread: w.GetThread()}, ID: w.GetTurn()}
	var got butlerv1.Approval
	require.Eventually(r.t, func() bool {
		ev, found, err := r.bus.Last(r.ctx(), bus.WorkStream, turn.Signal(w.GetKey()))
		if err != nil || !found {
			return false
		}
		var signal struct{ Value json.RawMessage }
		require.NoError(r.t, json.Unmarshal(ev.Data, &signal))
		return chat.Decode(signal.Value, &got) == nil
	}, 20*time.Second, 2*time.Millisecond)
	return &got
}

// take appends the use of a grant as an executor does.
func (r *rig) take(a *butlerv1.Approval, change func(*butlerv1.ApprovalUse)) *butlerv1.ConfirmUseRequest {
	use := &butlerv1.ApprovalUse{
		Id: a.GetId(), Status: approval.Taken, Worker: "w", Grant: a.GetGrant(), Digest: a.GetDigest(), Host: a.GetEffect().GetHost(),
		Session: a.GetEffect().GetSession(), Requester: a.GetRequester(),
	}
	if change != nil {
		change(use)
	}
	data, err := chat.Encode(use)
	require.NoError(r.t, err)
	subject := approval.UseSubject("web", a.GetId())
	seq, err := r.bus.Append(r.ctx(), bus.NewEvent(approval.TypeUse, "/test", subject, data), bus.Expect{Filter: subject})
	require.NoError(r.t, err)
	return &butlerv1.ConfirmUseRequest{Id: a.GetId(), Host: "web", Seq: seq}
}

// findings runs the verification.
func (r *rig) findings() (problems []string, done *butlerv1.VerifyAuditResponse) {
	out := &collect{ctx: r.ctx()}
	require.NoError(r.t, r.VerifyAudit(&butlerv1.VerifyAuditRequest{}, out))
	for _, m := range out.got {
		if m.GetProblem() != "" {
			problems = append(problems, m.GetProblem())
		}
	}
	return problems, out.got[len(out.got)-1]
}

type collect struct {
	grpc.ServerStreamingServer[butlerv1.VerifyAuditResponse]
	ctx context.Context
	got []*butlerv1.VerifyAuditResponse
}

func (c *collect) Context() context.Context { return c.ctx }
func (c *collect) Send(m *butlerv1.VerifyAuditResponse) error {
	c.got = append(c.got, proto.Clone(m).(*butlerv1.VerifyAuditResponse))
	return nil
}
