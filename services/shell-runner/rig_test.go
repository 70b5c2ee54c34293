package shell

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/bus/bustest"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/sealed"
	"github.com/butlerhub/butler/pkg/storage"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// approver stands for approval: it signs what the test grants, and confirms unless told otherwise.
type approver struct {
	butlerv1.ApprovalServiceClient
	signer  *approval.Signer
	mu      sync.Mutex
	confirm func(*butlerv1.ConfirmUseRequest) error
	asked   []*butlerv1.ConfirmUseRequest
}

func (a *approver) ListGrantKeys(context.Context, *butlerv1.ListGrantKeysRequest, ...grpc.CallOption) (*butlerv1.ListGrantKeysResponse, error) {
	return &butlerv1.ListGrantKeysResponse{Keys: []*butlerv1.GrantKey{{Id: a.signer.KeyID(), Public: a.signer.Public()}}}, nil
}

func (a *approver) ConfirmUse(_ context.Context, in *butlerv1.ConfirmUseRequest, _ ...grpc.CallOption) (*butlerv1.ConfirmUseResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, in)
	if a.confirm != nil {
		return nil, a.confirm(in)
	}
	return &butlerv1.ConfirmUseResponse{}, nil
}

var alice = &butlerv1.Actor{Id: 7, Name: "alice", Role: "MEMBER"}

// rig is a shell-runner with a real NATS server, real tmux and a real database.
type rig struct {
	t        testing.TB
	srv      *bus.Server
	bus      *bus.Bus
	approver *approver
	db       *storage.DB
	dir      string
	settings Settings
	path     string // of the shells, when set
	url      string // of NATS; in this process when empty
	backlog  int    // how much output may wait to be redacted; the usual when 0
	n        atomic.Int64
	*Service
	stop func()
}

func newRig(t testing.TB, change ...func(*rig)) *rig {
	_, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	signer, err := approval.NewSigner(key)
	require.NoError(t, err)
	// Sockets have short paths.
	dir, err := os.MkdirTemp("", "bsr")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	srv := bustest.Server(t, "")
	db, err := storage.Open(context.Background(), "sqlite:"+filepath.Join(dir, "log.db"), storage.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	r := &rig{
		t: t, srv: srv, bus: bustest.Connect(t, srv, "test"), approver: &approver{signer: signer}, db: db, dir: dir,
		settings: Settings{AllowedUsers: []string{"7", "bob"}, CommandTimeout: 20 * time.Second, FreeAfter: time.Minute},
	}
	for _, c := range change {
		c(r)
	}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "home"), 0o755))
	r.start()
	t.Cleanup(func() {
		r.stop()
		r.endShells()
	})
	return r
}

// start runs a shell-runner over what an earlier one left.
func (r *rig) start() {
	s, err := New(Deps{
		Bus: r.connect("shell"), Approval: r.approver, Host: "web", State: filepath.Join(r.dir, "state"), DB: r.db,
		Tmux:     tmux.Config{Dir: filepath.Join(r.dir, "s"), Home: filepath.Join(r.dir, "home"), Path: r.path, StartTimeout: time.Minute, ReplyTimeout: 30 * time.Second, CreateBurst: 1000, MaxBacklog: r.backlog},
		Settings: r.settings, Replica: fmt.Sprintf("shell-%d", r.n.Add(1)),
	})
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	r.Service = s
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(r.t, <-done)
		s.bus.Close()
	})
	require.Eventually(r.t, func() bool { return s.Ready(ctx) == nil }, time.Minute, 5*time.Millisecond)
}

// connect connects a service to NATS.
func (r *rig) connect(service string) *bus.Bus {
	if r.url == "" {
		return bustest.Connect(r.t, r.srv, service)
	}
	b, err := bus.Connect(r.ctx(), bus.Options{URL: r.url, Service: service})
	require.NoError(r.t, err)
	r.t.Cleanup(b.Close)
	require.NoError(r.t, b.Ensure(r.ctx(), bustest.All...))
	return b
}

func (r *rig) restart() {
	r.stop()
	r.start()
}

// endShells ends what the test left running.
func (r *rig) endShells() {
	h, err := tmux.Open(tmux.Config{Dir: filepath.Join(r.dir, "s")})
	if err != nil {
		return
	}
	defer h.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, _ = h.Recover(ctx)
	for _, s := range h.Sessions() {
		_ = s.Close(ctx)
	}
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	r.t.Cleanup(cancel)
	return ctx
}

// granted inspects a command and grants exactly that.
func (r *rig) granted(command string, change ...func(*approval.Grant)) *butlerv1.ExecuteRequest {
	seen, err := r.Inspect(r.ctx(), &butlerv1.InspectRequest{Person: alice, Command: command})
	require.NoError(r.t, err)
	return r.grant(seen.GetEffect(), seen.GetRisk(), change...)
}

func (r *rig) grant(e *butlerv1.Effect, risk *butlerv1.Risk, change ...func(*approval.Grant)) *butlerv1.ExecuteRequest {
	n := r.n.Add(1)
	id := approval.NewID(r.t.Name(), fmt.Sprint(n))
	g := approval.Grant{
		ID: id, Effect: approval.Digest(e), Kind: e.GetKind(), Risk: risk.GetLevel(), Host: e.GetHost(), Session: e.GetSession(),
		Requester: alice.GetId(), Approvers: []int64{1}, RunBy: time.Now().Add(time.Minute).Unix(), Issued: time.Now().Unix(),
	}
	for _, c := range change {
		c(&g)
	}
	token, err := r.approver.signer.Grant(g)
	require.NoError(r.t, err)
	return &butlerv1.ExecuteRequest{
		ApprovalId: id, Grant: token, Effect: e, Person: alice, LocalId: "m1", Language: "en",
		Waiter: &butlerv1.Waiter{Person: alice.GetId(), Thread: 70, Turn: fmt.Sprintf("m%d", n), Key: "end"},
	}
}

// do runs a command that is granted.
func (r *rig) do(command string) *butlerv1.ExecuteResponse {
	resp, err := r.Execute(r.ctx(), r.granted(command))
	require.NoError(r.t, err)
	return resp
}

// file gives the content of a file in the home folder.
func (r *rig) file(name string) string {
	data, err := os.ReadFile(filepath.Join(r.dir, "home", name))
	if os.IsNotExist(err) {
		return ""
	}
	require.NoError(r.t, err)
	return string(data)
}

// streamed gives the text of the deltas of a command that has ended; nobody waits for them to be stored.
func (r *rig) streamed(id string) (text string, ended bool) {
	require.Eventually(r.t, func() bool {
		text, ended = r.streamedSoFar(id)
		return ended
	}, time.Minute, time.Millisecond)
	return text, ended
}

// streamedSoFar gives the text of the deltas of a command, and whether the stream ended.
func (r *rig) streamedSoFar(id string) (text string, ended bool) {
	events, err := r.bus.Load(r.ctx(), bus.DeltaStream, "butler.delta.7.70", 0, 0)
	require.NoError(r.t, err)
	var b strings.Builder
	var last int32
	for _, ev := range events {
		var d butlerv1.ChatDelta
		require.NoError(r.t, chat.Decode(ev.Data, &d))
		if d.GetStreamId() != id {
			continue
		}
		last++
		require.Equal(r.t, last, d.GetIndex())
		b.WriteString(d.GetText())
		ended = d.GetEnd()
	}
	return b.String(), ended
}

// use gives what is recorded of a grant.
func (r *rig) use(id string) *butlerv1.ApprovalUse {
	ev, found, err := r.bus.Last(r.ctx(), bus.ApprovalStream, approval.UseSubject("web", id))
	require.NoError(r.t, err)
	if !found {
		return nil
	}
	var u butlerv1.ApprovalUse
	require.NoError(r.t, chat.Decode(ev.Data, &u))
	return &u
}

// prompts gives the password prompts that are announced from now on.
func (r *rig) prompts() <-chan *butlerv1.ShellPrompt {
	r.t.Helper()
	announced := make(chan *butlerv1.ShellPrompt, 16)
	stop, err := r.bus.Listen(sealed.Changed, func(data []byte) {
		m := &butlerv1.ShellPrompt{}
		if chat.Decode(data, m) == nil {
			announced <- m
		}
	})
	require.NoError(r.t, err)
	r.t.Cleanup(stop)
	return announced
}
