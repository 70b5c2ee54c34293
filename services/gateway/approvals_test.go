package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/gateway/store"
)

// approvalRig is a rig with an approval service, its admin and two members.
func approvalRig(t *testing.T, opts ...option) (*rig, *fakeApproval, *user, *user) {
	t.Helper()
	f := &fakeApproval{tb: t}
	r := newRig(t, append([]option{withApproval(f)}, opts...)...)
	r.follows()
	return r, f, r.member("bob"), r.member("mallory")
}

// follows waits until the gateways follow the log of approvals.
func (r *rig) follows() {
	r.tb.Helper()
	for _, g := range r.gates {
		require.Eventually(r.tb, func() bool {
			g.docket.mu.Lock()
			defer g.docket.mu.Unlock()
			return g.docket.current
		}, patience, time.Millisecond)
	}
}

// knows waits until the first gateway has told of a request.
func (r *rig) knows(id string) {
	d := r.gates[0].docket
	assert.Eventually(r.tb, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.cases[id] != nil
	}, patience, time.Millisecond, "the gateway learns of %s", id)
}

// card waits for the next frame, which must be about a request.
func (c *client) card(typ, status string) *cardJSON {
	c.tb.Helper()
	f := c.next()
	require.Equal(c.tb, typ, f.Type, "%+v", f)
	require.NotNil(c.tb, f.Card)
	require.Equal(c.tb, status, f.Card.Status, "%+v", f.Card)
	require.Zero(c.tb, f.Seq, "state has no place in the conversation's order")
	return f.Card
}

func TestARequestIsShownToWhomItConcerns(t *testing.T) {
	t.Parallel()
	r, f, bob, mallory := approvalRig(t)
	ada1, ada2, asker, other := r.admin.connect(""), r.admin.connect(""), bob.connect(""), mallory.connect("")
	a := f.request(bob, "K7QF")
	for _, c := range []*client{ada1, ada2} {
		card := c.card("AUTH_REQUEST", "PENDING")
		require.Equal(t, a.GetId(), card.ActionID)
		require.Equal(t, "rm -rf /tmp/x", card.Command)
		require.Equal(t, "The disk is full.", card.Reason)
		require.Equal(t, "K7QF", card.Code)
		require.Equal(t, "host1", card.Host)
		require.Equal(t, "/srv", card.Dir)
		require.Equal(t, "ops", card.User)
		require.Equal(t, "high", card.Risk)
		require.Equal(t, []reasonJSON{{"delete-tree", "Deletes a whole folder.", "删除整个目录。", 0, 6}}, card.Reasons)
		require.Equal(t, []untrustedJSON{{"web", "please run rm"}}, card.Untrusted)
		require.Equal(t, a.GetDigest(), card.Digest)
		require.Equal(t, "bob", card.Requester.Name)
		require.True(t, card.MayDecide)
		require.NotNil(t, card.DecideBy)
		require.Zero(t, card.ConversationID, "where it was asked is the requester's business")
	}
	mine := asker.card("AUTH_STATUS_UPDATE", "PENDING")
	require.False(t, mine.MayDecide)
	require.EqualValues(t, 77, mine.ConversationID)
	require.Equal(t, "m-77", mine.ReplyToLocalID)
	other.silent()

	// It is state: whoever connects sees it, also by Server-Sent Events.
	r.admin.connect("").card("AUTH_REQUEST", "PENDING")
	r.admin.connect("after=0").card("AUTH_REQUEST", "PENDING")
	bob.connect("").card("AUTH_STATUS_UPDATE", "PENDING")
	mallory.connect("").silent()
	require.Contains(t, r.firstEvent(r.admin), `"type":"AUTH_REQUEST"`)
	// Another gateway, begun later, knows it as well.
	later := r.gate(withApproval(f))
	r.follows()
	r.admin.connectAt(later.url, "").card("AUTH_REQUEST", "PENDING")

	ada1.send(map[string]any{"type": "AUTH_RESPONSE", "action_id": a.GetId(), "approved": true, "reason": "fine", "digest": a.GetDigest()})
	for _, c := range []*client{ada1, ada2, asker} {
		card := c.card("AUTH_STATUS_UPDATE", "APPROVED")
		require.Len(t, card.Decisions, 1)
		require.Equal(t, adminName, card.Decisions[0].By.Name)
		require.Equal(t, "websocket", card.Decisions[0].Channel)
		require.False(t, card.MayDecide)
	}
	f.used(a, approval.Taken, nil)
	f.used(a, approval.Ended, &butlerv1.CommandOutcome{StatusKnown: true, Output: strings.Repeat("é", maxTail) + "last", OutputBytes: 9})
	for _, c := range []*client{ada1, ada2, asker} {
		c.card("AUTH_STATUS_UPDATE", "EXECUTING")
		card := c.card("AUTH_STATUS_UPDATE", "EXECUTED")
		require.True(t, card.Outcome.Truncated)
		require.LessOrEqual(t, len(card.Outcome.Output), maxTail)
		require.True(t, strings.HasSuffix(card.Outcome.Output, "last"))
	}
	other.silent()
	// What is over is not shown again, but to whom may have missed it.
	r.admin.connect("").silent()
	r.admin.connect("after=0").card("AUTH_STATUS_UPDATE", "EXECUTED")
	require.NotContains(t, r.call(r.admin, "GET", "/api/approvals", nil).text(), "secret-grant")
}

// firstEvent gives the first server-sent event with data.
func (r *rig) firstEvent(u *user) string {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(r.tb.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", r.url()+"/api/events", nil)
	require.NoError(r.tb, err)
	req.Header.Set("Authorization", "Bearer "+u.token)
	res, err := testClient.Do(req)
	require.NoError(r.tb, err)
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			return data
		}
	}
	r.tb.Fatalf("no event came: %v", lines.Err())
	return ""
}

func TestEveryEndReachesTheCards(t *testing.T) {
	t.Parallel()
	r, f, bob, _ := approvalRig(t)
	ada, asker := r.admin.connect(""), bob.connect("")
	for _, c := range []struct{ status, card string }{
		{approval.Denied, "REJECTED"}, {approval.Expired, "EXPIRED"}, {approval.Withdrawn, "WITHDRAWN"},
	} {
		a := f.request(bob, "CODE")
		ada.card("AUTH_REQUEST", "PENDING")
		asker.card("AUTH_STATUS_UPDATE", "PENDING")
		f.change(a.GetId(), func(a *butlerv1.Approval) { a.Status = c.status })
		ada.card("AUTH_STATUS_UPDATE", c.card)
		asker.card("AUTH_STATUS_UPDATE", c.card)
	}
	for status, card := range map[string]string{approval.UseRefused: "FAILED", approval.Unknown: "UNKNOWN"} {
		a := f.request(bob, "CODE", func(a *butlerv1.Approval) { a.Status = approval.Approved })
		asker.card("AUTH_STATUS_UPDATE", "APPROVED")
		ada.card("AUTH_STATUS_UPDATE", "APPROVED")
		f.used(a, approval.Taken, nil)
		f.used(a, status, nil)
		for _, c := range []*client{ada, asker} {
			c.card("AUTH_STATUS_UPDATE", "EXECUTING")
			require.Equal(t, "the script was edited", c.card("AUTH_STATUS_UPDATE", card).Failure)
		}
	}
	// The policy refused: the requester hears of it, and nobody else was asked.
	f.request(bob, "CODE", func(a *butlerv1.Approval) { a.Status, a.Policy.Action = approval.Refused, "refuse" })
	asker.card("AUTH_STATUS_UPDATE", "REFUSED")
	ada.silent()
	// What the policy lets run is nobody's concern.
	f.request(bob, "CODE", func(a *butlerv1.Approval) { a.Status, a.Policy.Action = approval.Approved, "run" })
	asker.silent()
	ada.silent()
}

func TestTwoPeopleMustAgree(t *testing.T) {
	t.Parallel()
	r, f, bob, _ := approvalRig(t)
	_, err := r.store.CreatePerson(t.Context(), newAdmin("eve"))
	require.NoError(t, err)
	eve := r.signIn("eve", "password of eve")
	ada, second := r.admin.connect(""), eve.connect("")
	a := f.request(bob, "K7QF", func(a *butlerv1.Approval) { a.Policy.Quorum = 2 })
	ada.card("AUTH_REQUEST", "PENDING")
	require.EqualValues(t, 2, second.card("AUTH_REQUEST", "PENDING").Quorum)
	ada.send(map[string]any{"type": "AUTH_RESPONSE", "payload": map[string]any{"action_id": a.GetId(), "approved": true}})
	mine, theirs := ada.card("AUTH_STATUS_UPDATE", "PENDING"), second.card("AUTH_STATUS_UPDATE", "PENDING")
	require.Equal(t, 1, theirs.Agreed)
	require.True(t, theirs.MayDecide)
	require.False(t, mine.MayDecide, "once is enough")
	r.admin.connect("").card("AUTH_STATUS_UPDATE", "PENDING")
	eve.connect("").card("AUTH_REQUEST", "PENDING")
	second.send(map[string]any{"type": "AUTH_RESPONSE", "code": "k7qf", "approved": true})
	ada.card("AUTH_STATUS_UPDATE", "APPROVED")
	require.Equal(t, 2, second.card("AUTH_STATUS_UPDATE", "APPROVED").Agreed)
}

func newAdmin(name string) store.NewPerson {
	return store.NewPerson{Name: name, Role: store.Admin, Password: "password of " + name}
}

func TestWhoMayDecideChangesWithTheRights(t *testing.T) {
	t.Parallel()
	r, f, bob, _ := approvalRig(t)
	ada, c := r.admin.connect(""), bob.connect("")
	// The only administrator may decide their own request.
	a := f.request(r.admin, "AAAA")
	ada.card("AUTH_REQUEST", "PENDING")
	c.silent()
	// Bob becomes one: he is asked, and Ada is not any more.
	res := r.call(r.admin, "PATCH", fmt.Sprint("/api/users/", bob.id), map[string]any{"role": "ADMIN"})
	require.Equal(t, 200, res.status, res.text())
	c.card("AUTH_REQUEST", "PENDING")
	require.False(t, ada.card("AUTH_STATUS_UPDATE", "PENDING").MayDecide)
	res = r.call(r.admin, "POST", "/api/approvals/"+a.GetId()+"/decision", map[string]any{"approved": true})
	require.Equal(t, http.StatusForbidden, res.status, res.text())
	// And back.
	res = r.call(r.admin, "PATCH", fmt.Sprint("/api/users/", bob.id), map[string]any{"role": "MEMBER"})
	require.Equal(t, 200, res.status, res.text())
	require.True(t, ada.card("AUTH_REQUEST", "PENDING").MayDecide)
	gone := c.card("AUTH_STATUS_UPDATE", "WITHDRAWN")
	require.Empty(t, gone.Command, "it is none of his business any more")
}

func TestDecidingOverHTTP(t *testing.T) {
	t.Parallel()
	r, f, bob, mallory := approvalRig(t)
	decide := func(u *user, id string, body any, headers ...header) *response {
		return r.call(u, "POST", "/api/approvals/"+id+"/decision", body, headers...)
	}
	zh := header{"Accept-Language", "zh-CN"}
	a := f.request(bob, "K7QF")
	for _, c := range []struct {
		name   string
		who    *user
		id     string
		body   any
		status int
	}{
		{"nobody", nil, a.GetId(), map[string]any{"approved": true}, 401},
		{"the requester", bob, a.GetId(), map[string]any{"approved": true}, 403},
		{"somebody else", mallory, a.GetId(), map[string]any{"approved": true}, 403},
		{"somebody else, who lies about it", mallory, a.GetId(), map[string]any{"approved": true, "sender_id": 1, "by": map[string]any{"id": 1, "role": "ADMIN"}}, 403},
		{"unknown", r.admin, uuid.NewString(), map[string]any{"approved": true}, 404},
		{"an unknown code", r.admin, "ZZZZ", map[string]any{"approved": true}, 404},
		{"no id", r.admin, "no-id-at-all", map[string]any{"approved": true}, 404},
		{"not said", r.admin, a.GetId(), map[string]any{}, 400},
		{"not a bool", r.admin, a.GetId(), map[string]any{"approved": "yes"}, 400},
		{"no JSON", r.admin, a.GetId(), "{", 400},
		{"NUL", r.admin, a.GetId(), map[string]any{"approved": true, "reason": "a\x00b"}, 400},
		{"an edit of a denial", r.admin, a.GetId(), map[string]any{"approved": false, "edited_command": "ls"}, 400},
		{"an empty edit", r.admin, a.GetId(), map[string]any{"approved": true, "edited_command": " "}, 400},
		{"an edit that cannot run", r.admin, a.GetId(), map[string]any{"approved": true, "edited_command": "if"}, 400},
		{"a long reason", r.admin, a.GetId(), map[string]any{"approved": true, "reason": strings.Repeat("x", approval.MaxReason+1)}, 413},
		{"a long edit", r.admin, a.GetId(), map[string]any{"approved": true, "edited_command": strings.Repeat("x", approval.MaxCommand+1)}, 413},
		{"a long body", r.admin, a.GetId(), map[string]any{"approved": true, "x": strings.Repeat("x", maxDecisionBody)}, 413},
		{"another digest", r.admin, a.GetId(), map[string]any{"approved": true, "digest": "old"}, 409},
	} {
		res := decide(c.who, c.id, c.body)
		require.Equal(t, c.status, res.status, "%s: %s", c.name, res.text())
		require.NotEmpty(t, res.code(), c.name)
		require.Regexp(t, `\p{Han}`, decide(c.who, c.id, c.body, zh).text(), c.name)
	}
	got, _, err := f.find(a.GetId())
	require.NoError(t, err)
	require.Equal(t, approval.Pending, got.GetStatus(), "nothing of it decided anything")

	res := decide(r.admin, "k7qf", map[string]any{"approved": true, "edited_command": "rm -r /tmp/x", "reason": "less", "digest": a.GetDigest(), "channel": "cli"})
	require.Equal(t, 200, res.status, res.text())
	var card cardJSON
	res.into(&card)
	require.Equal(t, "APPROVED", card.Status)
	require.Equal(t, "rm -r /tmp/x", card.Command)
	require.NotEqual(t, a.GetDigest(), card.Digest)
	require.Len(t, card.Edits, 1)
	require.Equal(t, "cli", card.Decisions[0].Channel)

	res = decide(r.admin, a.GetId(), map[string]any{"approved": false})
	require.Equal(t, 409, res.status, res.text())
	require.Contains(t, res.text(), adminName+" approved it already")
	require.Contains(t, decide(r.admin, a.GetId(), map[string]any{"approved": false}, zh).text(), "已经批准")

	// As EchoCenter has it, but honest.
	b := f.request(bob, "L8WX")
	old := func(u *user, body any) *response { return r.call(u, "POST", "/api/chat/auth/response", body) }
	require.Equal(t, 403, old(bob, map[string]any{"action_id": b.GetId(), "approved": true, "sender_id": 1}).status)
	require.Equal(t, 404, old(r.admin, map[string]any{"action_id": uuid.NewString(), "approved": true}).status)
	require.Equal(t, 400, old(r.admin, map[string]any{"approved": true}).status)
	require.Equal(t, 400, old(r.admin, map[string]any{"action_id": b.GetId()}).status)
	require.Equal(t, 400, old(r.admin, map[string]any{"action_id": b.GetId(), "approved": true, "payload": map[string]any{"approved": false}}).status)
	res = old(r.admin, map[string]any{"action_id": b.GetId(), "approved": false, "stream_id": "s", "sender_id": 9, "reason": "too much"})
	require.Equal(t, 200, res.status, res.text())
	require.Contains(t, res.text(), `{"status":"processed"`)
	require.Equal(t, 409, old(r.admin, map[string]any{"action_id": b.GetId(), "approved": true}).status)
	last := f.decided()[len(f.decided())-2]
	require.EqualValues(t, 1, last.GetBy().GetId())
	require.Equal(t, "http", last.GetChannel())
	require.Equal(t, "too much", last.GetReason())
}

func TestPersonalTokensDecideForTheirPerson(t *testing.T) {
	t.Parallel()
	r, f, bob, mallory := approvalRig(t)
	token := func(u *user) *user {
		res := r.call(u, "POST", "/api/tokens", map[string]any{"name": "script"})
		require.Equal(t, http.StatusCreated, res.status, res.text())
		var out struct{ Token string }
		res.into(&out)
		return &user{rig: r, id: u.id, name: u.name, token: out.Token}
	}
	a := f.request(bob, "K7QF")
	path := "/api/approvals/" + a.GetId() + "/decision"
	require.Equal(t, 403, r.call(token(mallory), "POST", path, map[string]any{"approved": true}).status)
	require.Equal(t, 200, r.call(token(r.admin), "POST", path, map[string]any{"approved": true}).status)
	last := f.decided()[len(f.decided())-1]
	require.EqualValues(t, r.admin.id, last.GetBy().GetId())
	require.Equal(t, "http", last.GetChannel())
}

func TestDecidingOverTheWebSocket(t *testing.T) {
	t.Parallel()
	r, f, bob, _ := approvalRig(t)
	ada, tab, asker := r.admin.connect("lang=zh"), r.admin.connect(""), bob.connect("")
	a := f.request(bob, "K7QF")
	for _, c := range []*client{ada, tab} {
		c.card("AUTH_REQUEST", "PENDING")
	}
	asker.card("AUTH_STATUS_UPDATE", "PENDING")
	refused := func(c *client, frame map[string]any, code string) seen {
		t.Helper()
		frame["type"] = "AUTH_RESPONSE"
		c.send(frame)
		e := c.next()
		require.Equal(t, "ERROR", e.Type, "%+v", e)
		require.Equal(t, code, e.Code, "%+v", e)
		return e
	}
	require.Equal(t, a.GetId(), refused(asker, map[string]any{"action_id": a.GetId(), "approved": true}, "forbidden").ActionID)
	require.Regexp(t, `\p{Han}`, refused(ada, map[string]any{"action_id": uuid.NewString(), "approved": true}, "not_found").Payload)
	refused(ada, map[string]any{"action_id": a.GetId()}, "invalid")
	refused(ada, map[string]any{"approved": true}, "invalid")
	refused(ada, map[string]any{"action_id": a.GetId(), "approved": true, "payload": map[string]any{"action_id": uuid.NewString()}}, "invalid")
	refused(ada, map[string]any{"action_id": a.GetId(), "approved": true, "target_id": 3}, "invalid")
	refused(ada, map[string]any{"action_id": a.GetId(), "payload": map[string]any{"approved": "yes"}}, "invalid")

	// Two tabs at once: one counts, the other hears what was decided.
	yes := map[string]any{"type": "AUTH_RESPONSE", "target_id": 2, "sender_id": 99, "payload": map[string]any{"action_id": a.GetId(), "approved": true}}
	ada.send(yes)
	tab.send(yes)
	errs := 0
	for _, c := range []*client{ada, tab} {
		for _, seen := range c.until(func(s seen) bool { return s.Card != nil && s.Card.Status == "APPROVED" }) {
			if seen.Type == "ERROR" {
				errs++
				require.Equal(t, "conflict", seen.Code)
			}
		}
	}
	require.LessOrEqual(t, errs, 1)
	got, _, err := f.find(a.GetId())
	require.NoError(t, err)
	require.Len(t, got.GetDecisions(), 1)

	// A client that missed the end is told it with the refusal.
	c := r.admin.connect("")
	c.card("AUTH_STATUS_UPDATE", "APPROVED") // it has not begun
	c.send(yes)
	require.Equal(t, "conflict", c.next().Code)
	c.card("AUTH_STATUS_UPDATE", "APPROVED")
}

func TestWhileApprovalIsAway(t *testing.T) {
	t.Parallel()
	r, f, bob, mallory := approvalRig(t)
	a := f.request(bob, "K7QF")
	c := r.admin.connect("")
	c.card("AUTH_REQUEST", "PENDING")
	f.setDown(true)
	res := r.call(r.admin, "POST", "/api/approvals/"+a.GetId()+"/decision", map[string]any{"approved": true})
	require.Equal(t, 503, res.status)
	require.NotEmpty(t, res.header.Get("Retry-After"))
	require.Contains(t, res.text(), "nothing was decided")
	c.send(map[string]any{"type": "AUTH_RESPONSE", "action_id": a.GetId(), "approved": true})
	require.Equal(t, "unavailable", c.next().Code)
	require.Equal(t, 503, r.call(r.admin, "GET", "/api/approvals", nil).status)
	require.Equal(t, 503, r.call(r.admin, "GET", "/api/approvals/"+a.GetId(), nil).status)
	require.Equal(t, 503, r.call(r.admin, "GET", "/api/audit", nil).status)
	require.Equal(t, 503, r.call(r.admin, "GET", "/api/audit/verify", nil).status)
	// What is open is known all the same.
	var cards []cardJSON
	res = r.call(r.admin, "GET", "/api/approvals?status=pending", nil)
	require.Equal(t, "true", res.header.Get("X-Butler-Stale"))
	res.into(&cards)
	require.Len(t, cards, 1)
	require.True(t, cards[0].MayDecide)
	r.call(mallory, "GET", "/api/approvals?status=pending", nil).into(&cards)
	require.Empty(t, cards)
	f.setDown(false)
	require.Equal(t, 200, r.call(r.admin, "POST", "/api/approvals/"+a.GetId()+"/decision", map[string]any{"approved": true}).status)

	without := r.gate()
	require.Equal(t, 503, r.callAt(without.url, r.admin, "POST", "/api/approvals/"+a.GetId()+"/decision", map[string]any{"approved": true}).status)
}

func TestListingRequests(t *testing.T) {
	t.Parallel()
	r, f, bob, mallory := approvalRig(t)
	var made []*butlerv1.Approval
	for i := range 3 {
		made = append(made, f.request(bob, "AAA"+string("ACDEFGHJKM"[i])))
	}
	f.change(made[0].GetId(), func(a *butlerv1.Approval) { a.Status = approval.Approved })
	f.used(made[0], approval.Taken, nil)
	f.used(made[0], approval.Ended, &butlerv1.CommandOutcome{ExitStatus: 1, StatusKnown: true, Output: "no"})
	var cards []cardJSON
	r.call(r.admin, "GET", "/api/approvals", nil).into(&cards)
	require.Len(t, cards, 3)
	require.Equal(t, made[0].GetId(), cards[0].ActionID, "the newest change first")
	require.Equal(t, "EXECUTED", cards[0].Status)
	require.Equal(t, "no", cards[0].Outcome.Output)
	require.Zero(t, cards[0].ConversationID)
	res := r.call(bob, "GET", "/api/approvals?status=PENDING&limit=1", nil)
	res.into(&cards)
	require.Len(t, cards, 1)
	require.EqualValues(t, 77, cards[0].ConversationID)
	require.False(t, cards[0].MayDecide)
	require.NotEmpty(t, res.header.Get("X-Next-Before"))
	r.call(bob, "GET", "/api/approvals?status=PENDING&limit=1&before="+res.header.Get("X-Next-Before"), nil).into(&cards)
	require.Equal(t, made[1].GetId(), cards[0].ActionID)
	for _, q := range []string{"status=x", "limit=0", "limit=201", "before=x", "conversation=x", "conversation=-1"} {
		require.Equal(t, 400, r.call(bob, "GET", "/api/approvals?"+q, nil).status, q)
	}
	var one cardJSON
	r.call(r.admin, "GET", "/api/approvals/"+made[1].GetId(), nil).into(&one)
	require.True(t, one.MayDecide)
	r.call(bob, "GET", "/api/approvals/aaad", nil).into(&one)
	require.Equal(t, made[2].GetId(), one.ActionID)

	// Every way in × somebody whom it does not concern.
	for _, id := range []string{made[0].GetId(), made[1].GetId(), "AAAC"} {
		require.Equal(t, 404, r.call(mallory, "GET", "/api/approvals/"+id, nil).status)
		require.Equal(t, 401, r.call(nil, "GET", "/api/approvals/"+id, nil).status)
		require.Equal(t, 403, r.call(mallory, "POST", "/api/approvals/"+id+"/decision", map[string]any{"approved": true}).status)
		require.Equal(t, 403, r.call(mallory, "POST", "/api/chat/auth/response", map[string]any{"action_id": id, "approved": true}).status)
	}
	r.call(mallory, "GET", "/api/approvals", nil).into(&cards)
	require.Empty(t, cards)
	for _, path := range []string{"/api/audit", "/api/audit/verify"} {
		require.Equal(t, 403, r.call(mallory, "GET", path, nil).status)
		require.Equal(t, 401, r.call(nil, "GET", path, nil).status)
	}
}

func TestRequestsOfAConversation(t *testing.T) {
	t.Parallel()
	r, f, bob, mallory := approvalRig(t)
	in := func(thread int64) func(*butlerv1.Approval) {
		return waitsFor(chat.Turn{Session: chat.Session{Person: bob.id, Thread: thread}, ID: "m"})
	}
	var here []string
	for i := range 6 {
		thread := int64(5 + i%2)
		a := f.request(bob, "AAA"+string("ACDEFGHJKM"[i]), in(thread))
		if thread == 5 {
			here = append([]string{a.GetId()}, here...)
		}
	}
	list := func(who *user, query string) (ids []string, next string) {
		t.Helper()
		res := r.call(who, "GET", "/api/approvals?conversation=5"+query, nil)
		require.Equal(t, 200, res.status, res.text())
		var cards []cardJSON
		res.into(&cards)
		for _, c := range cards {
			require.EqualValues(t, 5, c.ConversationID)
			ids = append(ids, c.ActionID)
		}
		return ids, res.header.Get("X-Next-Before")
	}
	got, next := list(bob, "")
	require.Equal(t, here, got)
	require.Empty(t, next)
	got, next = list(bob, "&limit=2")
	require.Equal(t, here[:2], got)
	got, next = list(bob, "&limit=2&before="+next)
	require.Equal(t, here[2:], got)
	require.Empty(t, next)
	for _, who := range []*user{mallory, r.admin} { // whoever may decide is not told in which conversation it was asked for
		got, _ = list(who, "")
		require.Empty(t, got)
	}
	f.setDown(true)
	got, _ = list(bob, "&status=PENDING")
	require.Equal(t, here, got, "what this gateway knows")
}

func TestTheAuditChainIsForAdministrators(t *testing.T) {
	t.Parallel()
	r, f, _, _ := approvalRig(t)
	res := r.call(r.admin, "GET", "/api/audit?q=rm&actor=1&limit=7&before=9&approval="+uuid.NewString(), nil)
	require.Equal(t, 200, res.status, res.text())
	require.Equal(t, "4", res.header.Get("X-Next-Before"))
	var list []auditJSON
	res.into(&list)
	require.Equal(t, "decided", list[0].Kind)
	require.EqualValues(t, 5, list[0].N)
	require.Equal(t, adminName, list[0].Actor.Name)
	require.Equal(t, "rm", f.audits[0].GetQuery())
	require.EqualValues(t, 7, f.audits[0].GetLimit())
	for _, q := range []string{"limit=501", "actor=x", "before=0", "approval=x", "q=" + strings.Repeat("x", 501)} {
		require.Equal(t, 400, r.call(r.admin, "GET", "/api/audit?"+q, nil).status, q)
	}
	f.verify = []*butlerv1.VerifyAuditResponse{{Links: 1}, {Links: 2, Problem: "the link was changed", N: 2}, {Links: 2, Events: 5, Done: true}}
	res = r.call(r.admin, "GET", "/api/audit/verify", nil)
	require.Equal(t, "application/x-ndjson", res.header.Get("Content-Type"))
	lines := strings.Split(strings.TrimSpace(res.text()), "\n")
	require.Len(t, lines, 3)
	var last verifyJSON
	require.NoError(t, json.Unmarshal([]byte(lines[2]), &last))
	require.Equal(t, verifyJSON{Links: 2, Events: 5, Done: true}, last)
	require.Contains(t, lines[1], "the link was changed")
	f.verify = []*butlerv1.VerifyAuditResponse{{Links: 1}}
	require.Contains(t, r.call(r.admin, "GET", "/api/audit/verify", nil).text(), `"error"`)
}

func TestDecisionsAreLimited(t *testing.T) {
	t.Parallel()
	r, f, bob, _ := approvalRig(t, func(d *Deps) { d.Settings.MessageRate, d.Settings.MessageBurst = 0.001, 2 })
	a := f.request(bob, "K7QF")
	path := "/api/approvals/" + a.GetId() + "/decision"
	for range 2 {
		require.Equal(t, 403, r.call(bob, "POST", path, map[string]any{"approved": true}).status)
	}
	res := r.call(bob, "POST", path, map[string]any{"approved": true})
	require.Equal(t, 429, res.status)
	require.NotEmpty(t, res.header.Get("Retry-After"))
	require.Len(t, f.decided(), 2)
	require.Equal(t, 200, r.call(r.admin, "POST", path, map[string]any{"approved": true}).status, "others are not held up")
}

func TestWhoIsThere(t *testing.T) {
	t.Parallel()
	r, _, bob, _ := approvalRig(t)
	people := peopleServer{roster: r.gates[0].roster}
	names := func() (out []string) {
		res, err := people.ListPeople(t.Context(), nil)
		require.NoError(t, err)
		for _, p := range res.GetPeople() {
			out = append(out, fmt.Sprint(p.GetId(), p.GetName(), p.GetRole()))
		}
		return out
	}
	require.Equal(t, []string{"1adaADMIN", fmt.Sprint(bob.id, "bobMEMBER"), fmt.Sprint(bob.id+1, "malloryMEMBER")}, names(), "Butler is not among them")
	require.Equal(t, 200, r.call(r.admin, "PATCH", fmt.Sprint("/api/users/", bob.id), map[string]any{"disabled": true}).status)
	require.NotContains(t, strings.Join(names(), " "), "bob")
	before := names()
	require.NoError(t, r.db.Close())
	require.Equal(t, before, names(), "while the database is away it is what was true when it went")

	fresh := newRoster(r.store, time.Now, r.gates[0].log)
	_, err := (peopleServer{roster: fresh}).ListPeople(t.Context(), nil)
	require.Error(t, err)
}

func TestEventsThatDoNotFitAreNoRequests(t *testing.T) {
	t.Parallel()
	r, f, bob, _ := approvalRig(t)
	ada := r.admin.connect("")
	send := func(subject, typ string, data string) {
		_, err := r.bus.Publish(t.Context(), bus.ApprovalStream, bus.NewEvent(typ, "/test", subject, []byte(data)))
		require.NoError(t, err)
	}
	id := uuid.NewString()
	send("butler.approval."+id, approval.TypeApproval, `{"id":"`+uuid.NewString()+`","status":"pending"}`)
	send("butler.approval."+id, approval.TypeApproval, `{`)
	send("butler.approval."+id, "butler.other", `{"id":"`+id+`","status":"pending"}`)
	send("butler.approval-use.host1."+id, approval.TypeUse, `{"id":"`+id+`","status":"taken"}`)
	send("butler.approval.x", approval.TypeApproval, `{"id":"x","status":"pending"}`)
	f.request(bob, "K7QF")
	ada.card("AUTH_REQUEST", "PENDING")
}

func TestTheDocketIsBounded(t *testing.T) {
	t.Parallel()
	d := &docket{cases: map[string]*docketCase{}, now: time.Now, log: newRig(t).gates[0].log}
	now := time.Now()
	add := func(id string, seq uint64, c docketCase) { c.seq = seq; d.cases[id] = &c }
	add("pending", 1, docketCase{approval: &butlerv1.Approval{Status: approval.Pending, DecideBy: timestamppb.New(now)}})
	add("closed", 5, docketCase{approval: &butlerv1.Approval{Status: approval.Denied}, closed: now})
	add("old", 2, docketCase{approval: &butlerv1.Approval{Status: approval.Denied}, closed: now.Add(-time.Hour)})
	add("unused", 3, docketCase{approval: &butlerv1.Approval{Status: approval.Approved, RunBy: timestamppb.New(now.Add(-2 * time.Hour))}})
	d.dropOldest()
	require.NotContains(t, d.cases, "old", "what is over goes first")
	d.dropOldest()
	require.NotContains(t, d.cases, "closed")
	d.pruneAt(now)
	require.NotContains(t, d.cases, "unused")
	require.Contains(t, d.cases, "pending")
	d.dropOldest()
	require.Empty(t, d.cases)
}

// A gateway that begins behind what was erased, or behind what it cannot read, must not wait for it.
func TestAGatewayBeginsBehindWhatIsNotThereAnyMore(t *testing.T) {
	t.Parallel()
	r, f, bob, _ := approvalRig(t)
	f.request(bob, "K7QF")
	gone := f.request(bob, "GONE")
	_, err := r.bus.Erase(t.Context(), bus.ApprovalStream, approval.RequestSubject(gone.GetId()))
	require.NoError(t, err)
	second := r.gate(withApproval(f))
	r.follows()
	require.Equal(t, "K7QF", r.admin.connectAt(second.url, "").card("AUTH_REQUEST", "PENDING").Code)

	_, err = r.bus.Publish(t.Context(), bus.ApprovalStream, bus.NewEvent(approval.TypeUse, "/test",
		approval.UseSubject("host1", gone.GetId()), []byte(`{"id":"`+gone.GetId()+`","status":"taken"}`)))
	require.NoError(t, err)
	third := r.gate(withApproval(f))
	r.follows()
	require.Equal(t, "K7QF", r.admin.connectAt(third.url, "").card("AUTH_REQUEST", "PENDING").Code)
}
