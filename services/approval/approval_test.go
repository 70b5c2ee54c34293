package approval

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWhatTheModelProposesIsDecidedByAnAdmin(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.ask("bob", "rm -rf build")
	require.True(t, approval.ValidCode(a.GetCode()))
	require.Equal(t, approval.Digest(a.GetEffect()), a.GetDigest())
	require.Empty(t, a.GetGrant())

	_, err := r.word("bob", a.GetId(), true)
	require.Equal(t, fault.Forbidden, fault.CodeOf(err), "the requester is no admin")
	_, err = r.word("robot", a.GetId(), true)
	require.Equal(t, fault.Forbidden, fault.CodeOf(err), "agents decide nothing")
	_, err = r.word("alice", approval.NewID("another"), true)
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
	_, err = r.word("alice", "ZZZZ", true)
	require.Equal(t, fault.NotFound, fault.CodeOf(err))

	decided, err := r.word("alice", a.GetCode(), true)
	require.NoError(t, err)
	require.Equal(t, approval.Approved, decided.GetStatus())
	grant, err := approval.Keys{r.signer.KeyID(): r.signer.Public()}.Verify(decided.GetGrant(), time.Now())
	require.NoError(t, err)
	require.Equal(t, a.GetDigest(), grant.Effect)
	require.Equal(t, []int64{1}, grant.Approvers)
	require.Equal(t, "web", grant.Host)
	require.Equal(t, "high", grant.Risk)
	require.True(t, proto.Equal(decided, r.woken(a)))

	_, err = r.word("amy", a.GetId(), false)
	require.Equal(t, fault.Conflict, fault.CodeOf(err))
	require.ErrorContains(t, err, "approved already by alice")
}

func TestAskingAgainAsksForTheSame(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := request(r.say("bob", "please"), approval.ByModel, "rm x", "high")
	first, err := r.RequestApproval(r.ctx(), req)
	require.NoError(t, err)
	other, _ := r.replica()
	for _, s := range []*Service{r.Service, other} {
		again, err := s.RequestApproval(r.ctx(), req)
		require.NoError(t, err)
		require.True(t, proto.Equal(first.GetApproval(), again.GetApproval()))
	}
	_, err = r.word("alice", req.GetId(), true)
	require.NoError(t, err)
	again, err := r.RequestApproval(r.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, approval.Approved, again.GetApproval().GetStatus())
}

// Who asks, and whether they typed it, is read from the log; a caller cannot say otherwise.
func TestTheMessageSaysWhoTypedWhat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	typed, err := r.RequestApproval(r.ctx(), request(r.say("bob", "!rm x"), approval.ByPerson, "rm x", "medium"))
	require.NoError(t, err)
	require.Equal(t, approval.ByPerson, typed.GetApproval().GetProposer())
	require.Equal(t, "bob", typed.GetApproval().GetRequester().GetName())
	_, err = r.word("alice", typed.GetApproval().GetId(), true)
	require.Equal(t, fault.Forbidden, fault.CodeOf(err), "the person who typed it confirms it")
	_, err = r.word("bob", typed.GetApproval().GetId(), true)
	require.NoError(t, err)

	forged, err := r.RequestApproval(r.ctx(), request(r.say("bob", "!ls"), approval.ByPerson, "rm -rf /srv", "high"))
	require.NoError(t, err)
	require.Equal(t, approval.ByModel, forged.GetApproval().GetProposer())
	_, err = r.word("bob", forged.GetApproval().GetId(), true)
	require.Equal(t, fault.Forbidden, fault.CodeOf(err))

	nobody := request(&butlerv1.Waiter{Person: 3, Thread: 30, Turn: "never-said", Key: "wait"}, approval.ByPerson, "rm x", "medium")
	_, err = r.RequestApproval(r.ctx(), nobody)
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
}

func TestThePolicyDecidesAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	low, err := r.RequestApproval(r.ctx(), request(r.say("bob", "hi"), approval.ByModel, "ls", "low"))
	require.NoError(t, err)
	require.Equal(t, approval.Approved, low.GetApproval().GetStatus())
	require.NotEmpty(t, low.GetApproval().GetGrant())
	require.Equal(t, "policy", low.GetApproval().GetDecisions()[0].GetBy().GetName())

	hard := request(r.say("bob", "hi"), approval.ByModel, "rm -rf /", "critical")
	hard.Risk.Verdict, hard.Risk.Hardline = "refuse", true
	refused, err := r.RequestApproval(r.ctx(), hard)
	require.NoError(t, err)
	require.Equal(t, approval.Refused, refused.GetApproval().GetStatus())
	require.Empty(t, refused.GetApproval().GetGrant())
	// It is decided: that is no want of a right. Who may not see it is told nothing.
	for who, want := range map[string]fault.Code{"alice": fault.Conflict, "bob": fault.Conflict, "carl": fault.Forbidden, "robot": fault.Forbidden} {
		_, err = r.word(who, hard.GetId(), true)
		require.Equal(t, want, fault.CodeOf(err), "%s: %v", who, err)
		require.Equal(t, want == fault.Conflict, strings.Contains(err.Error(), "the policy refuses it"), who)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.say("bob", "please")
	for name, change := range map[string]func(*butlerv1.RequestApprovalRequest){
		"no id":          func(q *butlerv1.RequestApprovalRequest) { q.Id = "x" },
		"newer document": func(q *butlerv1.RequestApprovalRequest) { q.Effect.Version = 2 },
		"unknown kind":   func(q *butlerv1.RequestApprovalRequest) { q.Effect.Kind = "dance" },
		"no command":     func(q *butlerv1.RequestApprovalRequest) { q.Effect.Command = "" },
		"no session":     func(q *butlerv1.RequestApprovalRequest) { q.Effect.Session = "" },
		"host a subject": func(q *butlerv1.RequestApprovalRequest) { q.Effect.Host = "a.>" },
		"no proposer":    func(q *butlerv1.RequestApprovalRequest) { q.Proposer = "" },
		"key a subject":  func(q *butlerv1.RequestApprovalRequest) { q.Waiter = proto.CloneOf(w); q.Waiter.Key = "a.>" },
		"turn a filter": func(q *butlerv1.RequestApprovalRequest) {
			q.Waiter = &butlerv1.Waiter{Person: 3, Thread: 30, Turn: "*", Key: "k"}
		},
	} {
		q := request(w, approval.ByModel, "rm x", "high")
		change(q)
		_, err := r.RequestApproval(r.ctx(), q)
		require.Equal(t, fault.Invalid, fault.CodeOf(err), name)
	}
	huge := request(w, approval.ByModel, string(make([]byte, approval.MaxCommand+1)), "high")
	_, err := r.RequestApproval(r.ctx(), huge)
	require.Equal(t, fault.TooLarge, fault.CodeOf(err))
}

func TestTheOnlyAdminDecidesTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.ask("alice", "rm x")
	_, err := r.word("alice", a.GetId(), true)
	require.Equal(t, fault.Forbidden, fault.CodeOf(err), "amy is there")
	require.ErrorContains(t, err, "amy may")
	r.people.set(cast["alice"], cast["bob"])
	require.NoError(t, r.bus.Notify(accessSubject, []byte(`{"person_id":5}`)))
	require.Eventually(t, func() bool {
		_, err = r.word("alice", a.GetId(), true)
		return err == nil
	}, 10*time.Second, 5*time.Millisecond)
}

func TestTwoDistinctPeople(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	policy, err := ParsePolicy([]byte("version: 1\nrules: [{name: two, then: ask, quorum: 2, deciders: {roles: [ADMIN]}}]"))
	require.NoError(t, err)
	r.SetPolicy(policy)
	a := r.ask("bob", "rm x")
	first, err := r.word("alice", a.GetId(), true)
	require.NoError(t, err)
	require.Equal(t, approval.Pending, first.GetStatus())
	_, err = r.word("alice", a.GetCode(), true)
	require.Equal(t, fault.Conflict, fault.CodeOf(err))
	require.ErrorContains(t, err, "needs 1 more")
	second, err := r.word("amy", a.GetId(), true)
	require.NoError(t, err)
	require.Equal(t, approval.Approved, second.GetStatus())

	// An edit makes another effect: what was said of the first does not count for it.
	b := r.ask("bob", "rm y")
	_, err = r.word("alice", b.GetId(), true)
	require.NoError(t, err)
	edited, err := r.DecideApproval(r.ctx(), &butlerv1.DecideApprovalRequest{Id: b.GetId(), By: cast["amy"], Approved: true, EditedCommand: "rm y.bak"})
	require.NoError(t, err)
	require.Equal(t, approval.Pending, edited.GetApproval().GetStatus())
	require.NotEqual(t, b.GetDigest(), edited.GetApproval().GetDigest())
	_, err = r.word("alice", b.GetCode(), true)
	require.Equal(t, fault.NotFound, fault.CodeOf(err), "the code on the card that alice saw was of the text before the edit")
	_, err = r.DecideApproval(r.ctx(), &butlerv1.DecideApprovalRequest{Id: b.GetId(), By: cast["alice"], Approved: true, Digest: b.GetDigest()})
	require.Equal(t, fault.Conflict, fault.CodeOf(err), "alice saw the text before the edit")
	last, err := r.DecideApproval(r.ctx(), &butlerv1.DecideApprovalRequest{
		Id: b.GetId(), By: cast["alice"], Approved: true, Digest: edited.GetApproval().GetDigest(),
	})
	require.NoError(t, err)
	require.Equal(t, approval.Approved, last.GetApproval().GetStatus())
	require.Equal(t, "rm y.bak", last.GetApproval().GetEffect().GetCommand())
	require.Equal(t, "rm y", last.GetApproval().GetEdits()[0].GetCommand())
}

func TestEdits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.shell.risk = func(command string) *butlerv1.Risk {
		if command == "rm -rf /" {
			return &butlerv1.Risk{Level: "critical", Verdict: "refuse", Hardline: true, Reasons: []*butlerv1.RiskReason{{Text: "it removes everything"}}}
		}
		return &butlerv1.Risk{Level: "medium", Verdict: "ask"}
	}
	a := r.ask("bob", "rm -rf build")
	_, err := r.DecideApproval(r.ctx(), &butlerv1.DecideApprovalRequest{Id: a.GetId(), By: cast["alice"], Approved: true, EditedCommand: "rm -rf /"})
	require.Equal(t, fault.Invalid, fault.CodeOf(err))
	require.ErrorContains(t, err, "it removes everything")
	_, err = r.DecideApproval(r.ctx(), &butlerv1.DecideApprovalRequest{Id: a.GetId(), By: cast["alice"], EditedCommand: "ls"})
	require.Equal(t, fault.Invalid, fault.CodeOf(err), "a denial edits nothing")
	_, err = r.DecideApproval(r.ctx(), &butlerv1.DecideApprovalRequest{Id: a.GetId(), By: cast["bob"], Approved: true, EditedCommand: "ls"})
	require.Equal(t, fault.Forbidden, fault.CodeOf(err))
	got, err := r.DecideApproval(r.ctx(), &butlerv1.DecideApprovalRequest{Id: a.GetId(), By: cast["alice"], Approved: true, EditedCommand: "rm -rf build/tmp"})
	require.NoError(t, err)
	require.Equal(t, "rm -rf build/tmp", got.GetApproval().GetEffect().GetCommand())
	grant, err := approval.Keys{r.signer.KeyID(): r.signer.Public()}.Verify(got.GetApproval().GetGrant(), time.Now())
	require.NoError(t, err)
	require.Equal(t, approval.Digest(got.GetApproval().GetEffect()), grant.Effect)
}

// Two people decide at the same moment on two replicas: one wins, the other is told what was decided and by whom.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other, _ := r.replica()
	for range 30 {
		a := r.ask("bob", "rm x")
		var wg sync.WaitGroup
		errs := make([]error, 2)
		for i, who := range []string{"alice", "amy"} {
			wg.Go(func() {
				s := []*Service{r.Service, other}[i]
				_, errs[i] = s.DecideApproval(r.ctx(), &butlerv1.DecideApprovalRequest{Id: a.GetId(), By: cast[who], Approved: i == 0})
			})
		}
		wg.Wait()
		stands, _, err := r.load(r.ctx(), a.GetId())
		require.NoError(t, err)
		require.Len(t, stands.GetDecisions(), 1)
		winner := stands.GetDecisions()[0].GetBy().GetName()
		won, lost := errs[0], errs[1]
		if winner == "amy" {
			won, lost = lost, won
		}
		require.NoError(t, won)
		require.Equal(t, fault.Conflict, fault.CodeOf(lost))
		require.ErrorContains(t, lost, "already by "+winner)
	}
}

// Decisions arrive 0–20 ms after the request, while it is still being written, looked up and scheduled. None is missed.
func TestEarlyDecisions(t *testing.T) {
	t.Parallel()
	n := 400
	if os.Getenv("BUTLER_SOAK") != "" {
		n = 10_000
	}
	r := newRig(t)
	work := make(chan int)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range work {
				w := r.say("bob", "please")
				req := request(w, approval.ByModel, "rm x", "high")
				decided := make(chan error, 1)
				delay := time.Duration(rand.Int64N(int64(20 * time.Millisecond)))
				time.AfterFunc(delay, func() {
					for {
						_, err := r.word("alice", req.GetId(), true)
						if fault.CodeOf(err) != fault.NotFound { // decided before it was asked for: the person sees no card yet
							decided <- err
							return
						}
					}
				})
				resp, err := r.RequestApproval(r.ctx(), req)
				if err == nil {
					err = <-decided
				}
				if err != nil {
					t.Error(err)
					continue
				}
				if got := r.woken(resp.GetApproval()); got.GetStatus() != approval.Approved || got.GetId() != req.GetId() {
					t.Errorf("woken with %v", got)
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
}

func TestUndecidedExpires(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.SetSettings(Settings{Timeout: 1500 * time.Millisecond})
	a := r.ask("bob", "rm x")
	got := r.woken(a)
	require.Equal(t, approval.Expired, got.GetStatus())
	require.False(t, r.now().Before(a.GetDecideBy().AsTime()), "not early")
	_, err := r.word("alice", a.GetId(), true)
	require.Equal(t, fault.Conflict, fault.CodeOf(err))
	require.ErrorContains(t, err, "expired")
}

// The clock decides also when the timer is late.
func TestADecisionAfterTheTimeIsTooLate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.ask("bob", "rm x")
	r.clock.Store(int64(6 * time.Minute))
	_, err := r.word("alice", a.GetId(), true)
	require.Equal(t, fault.Conflict, fault.CodeOf(err))
	require.Equal(t, approval.Expired, r.woken(a).GetStatus())
}

// A pending request survives any restart: the same id and code decide it, and it still expires.
func TestPendingSurvivesRestarts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.ask("bob", "rm x")
	r.SetSettings(Settings{Timeout: 3 * time.Second})
	b := r.ask("bob", "rm y")
	r.restart()
	list, err := r.ListApprovals(r.ctx(), &butlerv1.ListApprovalsRequest{Viewer: cast["alice"], Status: approval.Pending})
	require.NoError(t, err)
	require.Len(t, list.GetApprovals(), 2)
	_, err = r.word("alice", a.GetCode(), true)
	require.NoError(t, err)
	require.Equal(t, approval.Approved, r.woken(a).GetStatus())
	require.Equal(t, approval.Expired, r.woken(b).GetStatus())
}

func TestWithdraw(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.ask("bob", "rm x")
	for range 2 {
		got, err := r.WithdrawApproval(r.ctx(), &butlerv1.WithdrawApprovalRequest{Id: a.GetId(), By: cast["bob"], Reason: "stopped"})
		require.NoError(t, err)
		require.Equal(t, approval.Withdrawn, got.GetApproval().GetStatus())
	}
	_, err := r.word("alice", a.GetId(), true)
	require.Equal(t, fault.Conflict, fault.CodeOf(err))
}

func TestDecidingInChat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	chat := func(who, text string) *butlerv1.DecideInChatResponse {
		resp, err := r.DecideInChat(r.ctx(), &butlerv1.DecideInChatRequest{Turn: r.say(who, text)})
		require.NoError(t, err)
		return resp
	}
	require.False(t, chat("alice", "确认").GetHandled(), "nothing is pending: an ordinary word")
	require.False(t, chat("alice", "deny that").GetHandled())
	a := r.ask("bob", "rm x")
	require.False(t, chat("bob", "确认").GetHandled(), "bob may not decide")
	got := chat("bob", "确认 "+a.GetCode())
	require.True(t, got.GetHandled())
	require.Contains(t, got.GetText(), "not yours to decide")
	b := r.ask("bob", "rm y")
	got = chat("alice", "approve")
	require.True(t, got.GetHandled())
	require.Contains(t, got.GetText(), a.GetCode())
	require.Contains(t, got.GetText(), b.GetCode())
	got = chat("alice", "deny "+b.GetCode()+" not today")
	require.Equal(t, approval.Denied, got.GetApproval().GetStatus())
	require.Equal(t, "not today", r.woken(b).GetDecisions()[0].GetReason())
	said := r.say("alice", "确认")
	var other *butlerv1.Approval
	for n := range 2 { // the second is the same message again, after a crash
		got, err := r.DecideInChat(r.ctx(), &butlerv1.DecideInChatRequest{Turn: said})
		require.NoError(t, err)
		require.Equal(t, approval.Approved, got.GetApproval().GetStatus())
		if n == 0 {
			other = r.ask("bob", "rm z")
		}
	}
	stands, _, err := r.load(r.ctx(), other.GetId())
	require.NoError(t, err)
	require.Equal(t, approval.Pending, stands.GetStatus(), "the repeated word does not decide another request")
	require.Equal(t, approval.Approved, r.woken(a).GetStatus())
	got = chat("amy", "approve "+a.GetCode())
	require.Contains(t, got.GetText(), "approved already by alice")
	got = chat("amy", "approve K7QF")
	require.True(t, got.GetHandled())
	require.Contains(t, got.GetText(), "no pending approval")
}

func TestTheLastLook(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	approved := func() *butlerv1.Approval {
		a := r.ask("bob", "rm x")
		got, err := r.word("amy", a.GetId(), true)
		require.NoError(t, err)
		return got
	}
	ok := r.take(approved(), nil)
	_, err := r.ConfirmUse(r.ctx(), ok)
	require.NoError(t, err)
	audit, err := r.ListAudit(r.ctx(), &butlerv1.ListAuditRequest{ApprovalId: ok.GetId()})
	require.NoError(t, err)
	require.Equal(t, []string{"taken", "approved", "requested"}, kinds(audit), "the use was in the chain before it was confirmed")

	for name, change := range map[string]func(*butlerv1.ApprovalUse){
		"another digest": func(u *butlerv1.ApprovalUse) { u.Digest = "00" },
		"another grant":  func(u *butlerv1.ApprovalUse) { u.Grant = "x.y.z" },
		"ended":          func(u *butlerv1.ApprovalUse) { u.Status = approval.Ended },
		"another id":     func(u *butlerv1.ApprovalUse) { u.Id = approval.NewID("x") },
	} {
		_, err := r.ConfirmUse(r.ctx(), r.take(approved(), change))
		require.Equal(t, fault.Forbidden, fault.CodeOf(err), name)
	}
	pending := r.ask("bob", "rm z")
	_, err = r.ConfirmUse(r.ctx(), r.take(pending, nil))
	require.Equal(t, fault.Forbidden, fault.CodeOf(err), "not approved")

	late := r.take(approved(), nil)
	r.clock.Store(int64(10 * time.Minute))
	_, err = r.ConfirmUse(r.ctx(), late)
	require.Equal(t, fault.Forbidden, fault.CodeOf(err), "too late")
	r.clock.Store(0)

	revoked := r.take(approved(), nil)
	was := actors()
	r.people.set(cast["alice"], cast["bob"])
	require.NoError(t, r.bus.Notify(accessSubject, []byte(`{"person_id":5}`)))
	require.Eventually(t, func() bool {
		_, err = r.ConfirmUse(r.ctx(), revoked)
		return fault.CodeOf(err) == fault.Forbidden
	}, 10*time.Second, 5*time.Millisecond)
	require.ErrorContains(t, err, "amy approved it and may not do so any more")
	r.people.set(was...)
}

func TestWhoSeesWhat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.ask("bob", "rm x")
	for who, want := range map[string]fault.Code{"alice": "", "bob": "", "carl": fault.NotFound, "robot": fault.NotFound} {
		got, err := r.GetApproval(r.ctx(), &butlerv1.GetApprovalRequest{Id: a.GetId(), Viewer: cast[who]})
		require.Equal(t, want, fault.CodeOf(err), who)
		if err == nil {
			require.Equal(t, who == "alice", got.GetMayDecide(), who)
		}
		list, err := r.ListApprovals(r.ctx(), &butlerv1.ListApprovalsRequest{Viewer: cast[who]})
		require.NoError(t, err)
		require.Len(t, list.GetApprovals(), map[bool]int{true: 1, false: 0}[want == ""], who)
	}
	_, err := r.GetApproval(r.ctx(), &butlerv1.GetApprovalRequest{Id: a.GetId(), Viewer: &butlerv1.Actor{Id: 77, Role: "ADMIN"}})
	require.Equal(t, fault.NotFound, fault.CodeOf(err), "a role that the caller only claims counts for nothing")
}

func TestListingGoesBackThroughTheLog(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const n = 25
	for range n {
		_, err := r.RequestApproval(r.ctx(), request(r.say("bob", "hi"), approval.ByModel, "ls", "low"))
		require.NoError(t, err)
	}
	seen := map[string]bool{}
	var before uint64
	for {
		page, err := r.ListApprovals(r.ctx(), &butlerv1.ListApprovalsRequest{Viewer: cast["bob"], Limit: 10, Before: before})
		require.NoError(t, err)
		for _, a := range page.GetApprovals() {
			require.False(t, seen[a.GetApproval().GetId()])
			seen[a.GetApproval().GetId()] = true
		}
		if before = page.GetNext(); before == 0 {
			break
		}
	}
	require.Len(t, seen, n)
}

// While the gateway does not answer nobody's rights are known, so nothing is decided; what was known a moment ago counts.
func TestNothingIsDecidedWhenNobodyKnowsWhoMay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.ask("bob", "rm x")
	r.people.mu.Lock()
	r.people.err = errors.New("away")
	r.people.mu.Unlock()
	r.Service.people.distrust()
	_, err := r.word("alice", a.GetId(), true)
	require.Equal(t, fault.Unavailable, fault.CodeOf(err))
	r.people.mu.Lock()
	r.people.err = nil
	r.people.mu.Unlock()
	_, err = r.word("alice", a.GetId(), true)
	require.NoError(t, err)
}

// Events that cannot be read, and ones of a later version, hold nothing up: lists, decisions and the audit go on, and
// nothing is granted by them.
func TestWhatCannotBeReadHoldsNothingUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	good := r.ask("bob", "rm x")
	bad, odd := approval.NewID("bad"), approval.NewID("odd")
	for id, data := range map[string]string{
		bad: `{"id":`, odd: `{"id":"` + odd + `","status":"approved-later","code":"K7QF","of_a_later_version":1}`,
	} {
		ev := bus.NewEvent(approval.TypeApproval, "/test", approval.RequestSubject(id), []byte(data))
		_, err := r.bus.Append(r.ctx(), ev, bus.Expect{Filter: ev.Subject})
		require.NoError(t, err)
	}
	r.restart()
	list, err := r.ListApprovals(r.ctx(), &butlerv1.ListApprovalsRequest{Viewer: cast["alice"]})
	require.NoError(t, err)
	require.NotEmpty(t, list.GetApprovals())
	for _, id := range []string{bad, odd} {
		_, err = r.word("alice", id, true)
		require.Error(t, err)
		_, err = r.ConfirmUse(r.ctx(), r.take(&butlerv1.Approval{Id: id, Effect: commandEffect("rm x")}, nil))
		require.Error(t, err)
	}
	_, err = r.word("alice", good.GetCode(), true)
	require.NoError(t, err)
	r.settled()
	problems, _ := r.findings()
	require.Empty(t, problems)
}
