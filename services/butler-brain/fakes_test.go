package brain

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// The fakes behave as the comments in approval.proto and shell.proto say; only what they decide is scripted: a command
// with "rm" in it is asked for, one with "mkfs" is hard-line, one with an odd quote does not parse, everything else runs.

// fakeApproval is approval without a log of its own: it outlives the brains of a test.
type fakeApproval struct {
	butlerv1.ApprovalServiceClient

	r       *rig
	timeout time.Duration

	mu        sync.Mutex
	all       map[string]*butlerv1.Approval
	uses      map[string]*butlerv1.ApprovalUse
	order     []string
	requests  []*butlerv1.RequestApprovalRequest
	withdrawn []*butlerv1.WithdrawApprovalRequest
	chats     []*butlerv1.DecideInChatRequest
	answer    *butlerv1.DecideInChatResponse
	fail      func(method string) error
	changed   chan struct{} // told at each request
}

func newFakeApproval(r *rig) *fakeApproval {
	return &fakeApproval{
		r: r, timeout: time.Hour, all: map[string]*butlerv1.Approval{}, uses: map[string]*butlerv1.ApprovalUse{},
		changed: make(chan struct{}, 1000),
	}
}

func (f *fakeApproval) failing(method string) error {
	f.mu.Lock()
	fail := f.fail
	f.mu.Unlock()
	if fail != nil {
		return fail(method)
	}
	return nil
}

func (f *fakeApproval) setFail(fail func(method string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

func (f *fakeApproval) RequestApproval(ctx context.Context, req *butlerv1.RequestApprovalRequest, _ ...grpc.CallOption) (*butlerv1.RequestApprovalResponse, error) {
	if err := f.failing("RequestApproval"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, req)
	a := f.all[req.Id]
	if a == nil {
		a = &butlerv1.Approval{
			Id: req.Id, Version: 1, Status: approval.Pending, Effect: req.Effect, Digest: approval.Digest(req.Effect), Why: req.Why,
			Requester: &butlerv1.Actor{Id: req.Waiter.Person, Name: "admin", Role: "ADMIN"}, Proposer: req.Proposer, Risk: req.Risk,
			Waiter: req.Waiter, Policy: &butlerv1.ApprovalPolicy{Action: "ask", Roles: []string{"ADMIN"}, Requester: "sole", Quorum: 1},
		}
		switch {
		case req.Risk.GetHardline():
			a.Status = approval.Refused
		case req.Risk.GetVerdict() == "run":
			f.approve(a)
		default:
			a.Code = fmt.Sprintf("K7Q%c", "ACDEFGHJ"[len(f.order)%8])
			a.DecideBy = timestamppb.New(time.Now().Add(f.timeout))
		}
		f.all[req.Id] = a
		f.order = append(f.order, req.Id)
		f.changed <- struct{}{}
	}
	return &butlerv1.RequestApprovalResponse{Approval: proto.CloneOf(a)}, nil
}

func (f *fakeApproval) approve(a *butlerv1.Approval) {
	a.Status, a.Grant = approval.Approved, "grant of "+a.Id
	a.RunBy = timestamppb.New(time.Now().Add(time.Hour))
}

// decide decides the request for a command and wakes its turn, as approval does.
func (f *fakeApproval) decide(command string, change func(a *butlerv1.Approval)) {
	f.r.t.Helper()
	f.mu.Lock()
	var a *butlerv1.Approval
	for _, id := range f.order {
		if b := f.all[id]; b.Effect.Command == command && b.Status == approval.Pending {
			a = b
		}
	}
	require.NotNil(f.r.t, a, "a request for %q is pending", command)
	change(a)
	a.Version++
	a = proto.CloneOf(a)
	f.mu.Unlock()
	f.wake(a)
}

func (f *fakeApproval) wake(a *butlerv1.Approval) {
	f.r.t.Helper()
	value, err := chat.Encode(a)
	require.NoError(f.r.t, err)
	f.r.signal(a.Waiter, string(value))
}

func (f *fakeApproval) yes(a *butlerv1.Approval) {
	f.approve(a)
	a.Decisions = append(a.Decisions, &butlerv1.ApprovalDecision{By: &butlerv1.Actor{Id: 9, Name: "carol"}, Approved: true})
}

func no(reason string) func(a *butlerv1.Approval) {
	return func(a *butlerv1.Approval) {
		a.Status = approval.Denied
		a.Decisions = append(a.Decisions, &butlerv1.ApprovalDecision{By: &butlerv1.Actor{Id: 9, Name: "carol"}, Reason: reason})
	}
}

func (f *fakeApproval) WithdrawApproval(_ context.Context, req *butlerv1.WithdrawApprovalRequest, _ ...grpc.CallOption) (*butlerv1.WithdrawApprovalResponse, error) {
	if err := f.failing("WithdrawApproval"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.all[req.Id]
	if a == nil {
		return nil, fault.New(fault.NotFound, "there is no such approval")
	}
	f.withdrawn = append(f.withdrawn, req)
	if a.Status == approval.Pending {
		a.Status = approval.Withdrawn
	}
	return &butlerv1.WithdrawApprovalResponse{Approval: proto.CloneOf(a)}, nil
}

func (f *fakeApproval) GetApproval(_ context.Context, req *butlerv1.GetApprovalRequest, _ ...grpc.CallOption) (*butlerv1.GetApprovalResponse, error) {
	if err := f.failing("GetApproval"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.all[req.Id]
	if a == nil {
		return nil, fault.New(fault.NotFound, "there is no such approval")
	}
	return &butlerv1.GetApprovalResponse{Approval: proto.CloneOf(a), Use: f.uses[req.Id]}, nil
}

func (f *fakeApproval) DecideInChat(_ context.Context, req *butlerv1.DecideInChatRequest, _ ...grpc.CallOption) (*butlerv1.DecideInChatResponse, error) {
	f.mu.Lock()
	f.chats = append(f.chats, req)
	answer := f.answer
	f.mu.Unlock()
	if err := f.failing("DecideInChat"); err != nil {
		return nil, err
	}
	if answer == nil {
		answer = &butlerv1.DecideInChatResponse{}
	}
	return answer, nil
}

// pending waits until n requests have been made in all and gives those that are pending.
func (f *fakeApproval) pending(n int) []*butlerv1.Approval {
	f.r.t.Helper()
	for {
		f.mu.Lock()
		var out []*butlerv1.Approval
		for _, id := range f.order {
			if a := f.all[id]; a.Status == approval.Pending {
				out = append(out, proto.CloneOf(a))
			}
		}
		made := len(f.order)
		f.mu.Unlock()
		if made >= n {
			return out
		}
		select {
		case <-f.changed:
		case <-f.r.ctx.Done():
			f.r.t.Fatalf("only %d requests were made, not %d", made, n)
		}
	}
}

func (f *fakeApproval) counts() (requests, withdrawn, chats int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.order), len(f.withdrawn), len(f.chats)
}

// fakeShell is a shell-runner that runs nothing.
type fakeShell struct {
	butlerv1.ShellServiceClient

	r    *rig
	host string
	app  *fakeApproval

	mu       sync.Mutex
	session  string // of new effects
	runs     map[string]int
	commands []string // as they ran
	outcomes map[string]*butlerv1.ExecuteResponse
	controls map[string]string // text by key
	routes   int
	executes []*butlerv1.ExecuteRequest
	fail     func(method string) error
	before   func(ctx context.Context, req *butlerv1.ExecuteRequest) error // of Execute, not under mu
	after    func(req *butlerv1.ExecuteRequest) error
	output   func(command string) *butlerv1.ExecuteResponse
	password bool // the terminal asks for one
	busy     int  // commands that run now
}

func newFakeShell(r *rig, host string, app *fakeApproval) *fakeShell {
	return &fakeShell{
		r: r, host: host, app: app, session: "session-1", runs: map[string]int{}, controls: map[string]string{},
		outcomes: map[string]*butlerv1.ExecuteResponse{},
		output: func(command string) *butlerv1.ExecuteResponse {
			return &butlerv1.ExecuteResponse{Status: approval.Ended, Outcome: &butlerv1.CommandOutcome{
				StatusKnown: true, Output: "output of " + command + "\n", Dir: "/home/alice", DurationMs: 12,
			}}
		},
	}
}

func (s *fakeShell) failing(method string) error {
	s.mu.Lock()
	fail := s.fail
	s.mu.Unlock()
	if fail != nil {
		return fail(method)
	}
	return nil
}

func (s *fakeShell) setFail(fail func(method string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func (s *fakeShell) state() *butlerv1.ShellState {
	return &butlerv1.ShellState{Name: "butler_1", Session: s.session, Host: s.host, Person: 1, Mode: "nl", State: "idle", Dir: "/home/alice"}
}

func (s *fakeShell) effect(command string) (*butlerv1.Effect, *butlerv1.Risk) {
	e := &butlerv1.Effect{
		Version: 1, Kind: approval.KindCommand, Command: command, Dir: "/home/alice", Host: s.host, User: "alice", Session: s.session,
		Argv: []*butlerv1.Argv{{Args: strings.Fields(command)}},
	}
	reason := []*butlerv1.RiskReason{{Code: "deletes", Text: "it deletes files", TextZh: "会删除文件"}}
	switch {
	case strings.Contains(command, "mkfs"):
		return e, &butlerv1.Risk{Level: "critical", Verdict: "refuse", Hardline: true, Reasons: reason}
	case strings.Count(command, "'")%2 == 1:
		return e, &butlerv1.Risk{Level: "high", Verdict: "refuse", Reasons: []*butlerv1.RiskReason{{Code: "parse", Text: "a quote is not closed", TextZh: "引号没有闭合"}}}
	case strings.Contains(command, "rm"):
		return e, &butlerv1.Risk{Level: "high", Verdict: "ask", Reasons: reason}
	}
	return e, &butlerv1.Risk{Level: "low", Verdict: "run"}
}

func (s *fakeShell) Inspect(_ context.Context, req *butlerv1.InspectRequest, _ ...grpc.CallOption) (*butlerv1.InspectResponse, error) {
	if err := s.failing("Inspect"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy > 0 {
		return nil, fault.New(fault.Conflict, "the shell is busy")
	}
	res := &butlerv1.InspectResponse{Shell: s.state()}
	res.Effect, res.Risk = s.effect(req.Command)
	if req.Program != "" {
		res.Effect, res.Risk = s.input(req.Program)
	}
	return res, nil
}

func (s *fakeShell) input(program string) (*butlerv1.Effect, *butlerv1.Risk) {
	e, _ := s.effect("input to " + program)
	e.Kind, e.Program = approval.KindInput, program
	return e, &butlerv1.Risk{Level: "medium", Verdict: "ask"}
}

// Route takes "!…" and first words that it knows for commands, known slash words for controls, and the rest for chat.
func (s *fakeShell) Route(_ context.Context, req *butlerv1.RouteRequest, _ ...grpc.CallOption) (*butlerv1.RouteResponse, error) {
	if err := s.failing("Route"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes++
	text := strings.TrimSpace(req.Text)
	res := &butlerv1.RouteResponse{Kind: routeChat, Shell: s.state()}
	command := strings.TrimPrefix(text, "!")
	switch {
	case shellWords[firstWord(text)]:
		res.Kind = routeControl
	case !req.Attached:
	case s.password:
		res.Kind, res.Shell.Password = routeInput, true
	case strings.HasPrefix(text, ":"):
		res.Kind = routeInput
		if strings.HasPrefix(text, ":!") {
			res.Effect, res.Risk = s.input("vim")
		}
	case text != command, slices.Contains([]string{"ls", "rm", "sleep", "mkfs", "echo"}, firstWord(text)):
		res.Kind = routeCommand
		res.Effect, res.Risk = s.effect(command)
	}
	return res, nil
}

func (s *fakeShell) Execute(ctx context.Context, req *butlerv1.ExecuteRequest, _ ...grpc.CallOption) (*butlerv1.ExecuteResponse, error) {
	if err := s.failing("Execute"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	before, after := s.before, s.after
	s.executes = append(s.executes, req)
	known := s.outcomes[req.ApprovalId]
	s.mu.Unlock()
	if known != nil {
		return known, nil
	}
	s.mu.Lock()
	s.busy++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.busy--
	}()
	if before != nil {
		if err := before(ctx, req); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	if req.Grant != "grant of "+req.ApprovalId {
		s.mu.Unlock()
		return nil, fault.New(fault.Forbidden, "the grant is not valid")
	}
	if req.Effect.Session != s.session {
		s.mu.Unlock()
		return nil, fault.New(fault.Drift, "the session is another one")
	}
	s.runs[req.ApprovalId]++
	s.commands = append(s.commands, req.Effect.Command+req.Input)
	res := s.output(req.Effect.Command)
	res.Shell = s.state()
	s.outcomes[req.ApprovalId] = res
	s.mu.Unlock()
	s.use(req, approval.Taken)
	if res.Status != running {
		s.use(req, res.Status)
	}
	if after != nil {
		if err := after(req); err != nil {
			return nil, err
		}
	}
	return res, nil
}

func (s *fakeShell) use(req *butlerv1.ExecuteRequest, status string) {
	s.app.mu.Lock()
	defer s.app.mu.Unlock()
	s.app.uses[req.ApprovalId] = &butlerv1.ApprovalUse{Id: req.ApprovalId, Status: status, Waiter: req.Waiter}
}

// finish ends a command that goes on as a job, and wakes the turn that waits for it.
func (s *fakeShell) finish(command string, res *butlerv1.ExecuteResponse) {
	s.r.t.Helper()
	s.mu.Lock()
	var req *butlerv1.ExecuteRequest
	for _, e := range s.executes {
		if e.Effect.Command == command {
			req = e
		}
	}
	require.NotNil(s.r.t, req)
	s.outcomes[req.ApprovalId] = res
	s.mu.Unlock()
	s.use(req, approval.Ended)
	if req.Waiter.Key != "" {
		s.r.signal(req.Waiter, `{"status":"ended"}`)
	}
}

func (s *fakeShell) Control(_ context.Context, req *butlerv1.ControlRequest, _ ...grpc.CallOption) (*butlerv1.ControlResponse, error) {
	if err := s.failing("Control"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.controls[req.Key] = req.Text
	res := &butlerv1.ControlResponse{Text: "did " + req.Text, Shell: s.state()}
	switch {
	case detaches(req.Text):
		res.Attach = "off"
	case firstWord(req.Text) == "/shell":
		res.Attach = "on"
	}
	return res, nil
}

func (s *fakeShell) ran() (commands []string, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range maps.Values(s.runs) {
		most = max(most, n)
	}
	return slices.Clone(s.commands), most
}

func (s *fakeShell) pressed() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Values(s.controls))
}

// signal wakes a turn that waits.
func (r *rig) signal(w *butlerv1.Waiter, value string) {
	r.t.Helper()
	turn := chat.Turn{Session: chat.Session{Person: w.Person, Thread: w.Thread}, ID: w.Turn}
	ev := bus.NewEvent(typeSignal, "", turn.Signal(w.Key), []byte(`{"value":`+value+`}`))
	_, err := r.bus.Publish(r.ctx, bus.WorkStream, ev)
	require.NoError(r.t, err)
}

// notices gives the text of all notices on a stream.
func (r *rig) notices(s chat.Session, stream string) string {
	r.t.Helper()
	var b strings.Builder
	require.Eventually(r.t, func() bool { // they are sent without waiting
		events, err := r.bus.Load(r.ctx, bus.DeltaStream, s.Delta(), 0, 0)
		require.NoError(r.t, err)
		b.Reset()
		for _, ev := range events {
			var d butlerv1.ChatDelta
			require.NoError(r.t, chat.Decode(ev.Data, &d))
			if d.StreamId == stream && d.Index == 0 {
				b.WriteString(d.Text)
			}
		}
		return b.Len() > 0
	}, 20*time.Second, 2*time.Millisecond, "a notice")
	return b.String()
}

// acting is a rig whose brains can run commands.
type acting struct {
	*rig
	app   *fakeApproval
	shell *fakeShell
}

func newActing(r *rig) *acting {
	a := &acting{rig: r, app: newFakeApproval(r)}
	a.shell = newFakeShell(r, "web1", a.app)
	return a
}

func (a *acting) begin(name string, change ...func(*Deps)) *replica {
	a.t.Helper()
	return a.start(name, append([]func(*Deps){func(d *Deps) {
		d.Approval = a.app
		d.Shells = Shells{Default: "web1", Hosts: map[string]butlerv1.ShellServiceClient{"web1": a.shell}}
	}}, change...)...)
}

// attach attaches alice's conversation.
func (a *acting) attach() {
	a.t.Helper()
	out := a.outcome(a.ask("/shell"))
	require.Equal(a.t, "on", out.Reply.Attach)
}
