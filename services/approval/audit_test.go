package approval

import (
	"crypto/ed25519"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func kinds(l *butlerv1.ListAuditResponse) (out []string) {
	for _, e := range l.GetEntries() {
		out = append(out, e.GetItem().GetKind())
	}
	return out
}

// settled waits until everything is in the chain.
func (r *rig) settled() {
	require.Eventually(r.t, func() bool {
		last, found, err := r.bus.Last(r.ctx(), bus.ApprovalStream, "butler.>")
		if err != nil || !found {
			return false
		}
		return r.chain.covered() >= last.Seq
	}, 20*time.Second, 5*time.Millisecond)
}

func (c *chain) covered() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.head.GetCovered()
}

func TestTheChainHoldsEverythingThatHappened(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other, _ := r.replica()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			s := []*Service{r.Service, other}[i%2]
			for range 5 {
				resp, err := s.RequestApproval(r.ctx(), request(r.say("bob", "x"), approval.ByModel, "rm x", "high"))
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = s.DecideApproval(r.ctx(), &butlerv1.DecideApprovalRequest{Id: resp.GetApproval().GetId(), By: cast["bob"], Approved: true})
				got, err := s.DecideApproval(r.ctx(), &butlerv1.DecideApprovalRequest{Id: resp.GetApproval().GetId(), By: cast["alice"], Approved: true})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := s.ConfirmUse(r.ctx(), r.take(got.GetApproval(), nil)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	last, _, err := r.bus.Last(r.ctx(), bus.ApprovalStream, "butler.>")
	require.NoError(t, err)
	require.NoError(t, r.chain.cover(r.ctx(), last.Seq))
	problems, done := r.findings()
	require.Empty(t, problems)
	require.EqualValues(t, 60, done.GetEvents())
	attempts, err := r.ListAudit(r.ctx(), &butlerv1.ListAuditRequest{Query: "ATTEMPT bob", Limit: 500})
	require.NoError(t, err)
	require.Len(t, attempts.GetEntries(), 20)
	require.Contains(t, attempts.GetEntries()[0].GetItem().GetSummary(), "not yours to decide")
}

func TestTheChainIsSearchedByCodeAndID(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.ask("bob", "rm x"), r.ask("bob", "rm y")
	_, err := r.word("bob", a.GetCode(), true)
	require.Error(t, err)
	a, err = r.word("alice", a.GetId(), true)
	require.NoError(t, err)
	_, err = r.ConfirmUse(r.ctx(), r.take(a, nil))
	require.NoError(t, err)
	r.settled()
	find := func(query string) []string {
		found, err := r.ListAudit(r.ctx(), &butlerv1.ListAuditRequest{Query: query})
		require.NoError(t, err)
		for _, e := range found.GetEntries() {
			require.NotEqual(t, b.GetId(), e.GetItem().GetApprovalId())
		}
		return kinds(found)
	}
	all := []string{"requested", "attempt", "approved", "taken"}
	require.ElementsMatch(t, all, find(strings.ToLower(a.GetCode())))
	require.ElementsMatch(t, []string{"requested", "approved", "taken"}, find(a.GetId()), "an attempt by the code names the code")
	require.Equal(t, []string{"approved"}, find(a.GetCode()+" approved alice"))
	problems, _ := r.findings()
	require.Empty(t, problems)
}

// tampered gives a rig with some history, after change was made to the links and events as somebody with all rights on NATS
// could make it.
func tampered(t *testing.T, change func(r *rig, links []bus.Stored)) []string {
	t.Helper()
	r := newRig(t)
	for range 3 {
		a := r.ask("bob", "rm x")
		_, err := r.word("alice", a.GetId(), true)
		require.NoError(t, err)
		r.settled()
	}
	clean, _ := r.findings()
	require.Empty(t, clean)
	links, err := r.bus.Load(r.ctx(), bus.AuditStream, approval.AuditSubject, 0, 0)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(links), 3)
	change(r, links)
	problems, _ := r.findings()
	return problems
}

// rewrite replaces the whole chain.
func (r *rig) rewrite(links []*butlerv1.AuditRecord) {
	_, err := r.bus.Erase(r.ctx(), bus.AuditStream, approval.AuditSubject)
	require.NoError(r.t, err)
	for _, l := range links {
		data, err := chat.Encode(l)
		require.NoError(r.t, err)
		_, err = r.bus.Publish(r.ctx(), bus.AuditStream, bus.NewEvent(approval.TypeAudit, "/attacker", approval.AuditSubject, data))
		require.NoError(r.t, err)
	}
}

func records(t *testing.T, links []bus.Stored) (out []*butlerv1.AuditRecord) {
	for _, l := range links {
		var r butlerv1.AuditRecord
		require.NoError(t, chat.Decode(l.Data, &r))
		out = append(out, proto.Clone(&r).(*butlerv1.AuditRecord))
	}
	return out
}

func TestVerifyNamesWhatWasDone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(t *testing.T, r *rig, links []bus.Stored)
		says   string
	}{
		"a changed link": {func(t *testing.T, r *rig, links []bus.Stored) {
			all := records(t, links)
			all[1].Items[0].Summary = "nothing happened"
			r.rewrite(all)
		}, "link 2 was changed"},
		"a changed link, hashed anew": {func(t *testing.T, r *rig, links []bus.Stored) {
			all := records(t, links)
			all[1].Items[0].Summary = "nothing happened"
			all[1].Hash = approval.LinkHash(all[1])
			r.rewrite(all)
		}, "link 2 is not signed by its key"},
		"a missing link": {func(t *testing.T, r *rig, links []bus.Stored) {
			all := records(t, links)
			r.rewrite(append(all[:1:1], all[2:]...))
		}, "links 2 to 2 are missing"},
		"reordered links": {func(t *testing.T, r *rig, links []bus.Stored) {
			all := records(t, links)
			all[0], all[1] = all[1], all[0]
			r.rewrite(all)
		}, "links 1 to 1 are missing"},
		"an erased event": {func(t *testing.T, r *rig, links []bus.Stored) {
			subject := records(t, links)[0].GetItems()[0].GetSubject()
			_, err := r.bus.Erase(r.ctx(), bus.ApprovalStream, subject)
			require.NoError(t, err)
		}, "is missing"},
		"a smuggled event before the end": {func(t *testing.T, r *rig, links []bus.Stored) {
			all := records(t, links)
			last := all[len(all)-1]
			r.rewrite(all[:len(all)-1])
			r.clock.Store(int64(2 * time.Minute))
			_ = last
		}, "links are missing at its end"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			problems := tampered(t, func(r *rig, links []bus.Stored) { c.change(t, r, links) })
			require.NotEmpty(t, problems)
			require.Contains(t, strings.Join(problems, "\n"), c.says)
		})
	}
}

func TestSummariesHoldNoSecrets(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ask("bob", "curl -H 'Authorization: Bearer abcdefghijklmnopqrstuvwxyz012345' https://example.org")
	r.settled()
	list, err := r.ListAudit(r.ctx(), &butlerv1.ListAuditRequest{})
	require.NoError(t, err)
	require.NotContains(t, list.GetEntries()[0].GetItem().GetSummary(), "abcdefghijklmnop")
	require.Contains(t, list.GetEntries()[0].GetItem().GetSummary(), "curl")
}

// After the signing key was changed, the links before are known by the old one, if the operator kept it; its grants are not.
func TestAnotherSigningKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.ask("bob", "rm x")
	before, err := r.word("alice", a.GetId(), true)
	require.NoError(t, err)
	r.settled()
	old := r.key.Public().(ed25519.PublicKey)
	_, r.key, err = ed25519.GenerateKey(nil)
	require.NoError(t, err)
	r.restart()
	problems, _ := r.findings()
	require.NotEmpty(t, problems, "nobody knows the key")
	r.earlier = []ed25519.PublicKey{old}
	r.restart()
	_, err = r.word("alice", r.ask("bob", "rm y").GetId(), true)
	require.NoError(t, err)
	r.settled()
	problems, done := r.findings()
	require.Empty(t, problems)
	require.NotZero(t, done.GetEvents())
	keys, err := r.ListGrantKeys(r.ctx(), &butlerv1.ListGrantKeysRequest{})
	require.NoError(t, err)
	require.Len(t, keys.GetKeys(), 1)
	_, err = approval.Keys{keys.GetKeys()[0].GetId(): keys.GetKeys()[0].GetPublic()}.Verify(before.GetGrant(), time.Now())
	require.Error(t, err)
}
