package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"syscall"
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
	"github.com/butlerhub/butler/services/butler/client"
)

// asker puts requests for approval into the log of a running Butler, as approval itself would.
type asker struct {
	t   *testing.T
	bus *bus.Bus
}

func (h *home) asker() *asker {
	h.t.Helper()
	op, err := newApp(nil, io.Discard, io.Discard, h.environ()).operation()
	require.NoError(h.t, err)
	h.t.Cleanup(op.close)
	b, err := op.openLog(h.t.Context())
	require.NoError(h.t, err)
	return &asker{h.t, b}
}

// ask asks, for the administrator, and gives the request.
func (k *asker) ask(code, command string, change ...func(*butlerv1.Approval)) *butlerv1.Approval {
	k.t.Helper()
	now := time.Now()
	a := &butlerv1.Approval{
		Id: uuid.NewString(), Version: 1, Status: approval.Pending, Code: code,
		Effect: &butlerv1.Effect{Version: 1, Kind: approval.KindCommand, Command: command, Dir: "/srv", Host: "web1", User: "ops", Session: "s"},
		Why:    &butlerv1.ApprovalReason{Reasoning: "The disk is full."}, Requester: &butlerv1.Actor{Id: 1, Name: "admin", Role: "ADMIN"},
		Proposer: approval.ByModel, Channel: "websocket", Language: "en",
		Risk: &butlerv1.Risk{Level: "high", Verdict: "ask", Reasons: []*butlerv1.RiskReason{
			{Code: "delete-tree", Text: "It deletes a whole folder.", TextZh: "它会删除整个目录。", End: 6},
		}},
		Policy:      &butlerv1.ApprovalPolicy{Rule: "model", Action: "ask", Quorum: 1, Roles: []string{"ADMIN"}, Requester: approval.RequesterSole},
		RequestedAt: timestamppb.New(now), DecideBy: timestamppb.New(now.Add(5 * time.Minute)),
	}
	for _, c := range change {
		c(a)
	}
	a.Digest = approval.Digest(a.GetEffect())
	data, err := chat.Encode(a)
	require.NoError(k.t, err)
	subject := approval.RequestSubject(a.GetId())
	_, err = k.bus.Append(k.t.Context(), bus.NewEvent(approval.TypeApproval, "/test", subject, data), bus.Expect{Filter: subject})
	require.NoError(k.t, err)
	return a
}

// now gives a request as it stands in the log.
func (k *asker) now(id string) *butlerv1.Approval {
	k.t.Helper()
	s, found, err := k.bus.Last(k.t.Context(), bus.ApprovalStream, approval.RequestSubject(id))
	require.NoError(k.t, err)
	require.True(k.t, found)
	var a butlerv1.Approval
	require.NoError(k.t, chat.Decode(s.Data, &a))
	return &a
}

// listed waits until a request is in the list of those that wait.
func (h *home) listed(code string) {
	h.t.Helper()
	eventually(h.t, code+" is listed", func() bool { return strings.Contains(h.run("", "approvals", "list").out, code) })
}

// The commands work on the real services; only who asks is scripted.
func TestApprovalsOnTheCommandLine(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	k := h.asker()
	first := k.ask("K7QF", "rm -rf /srv/cache\u202e")
	h.listed("K7QF")
	list := h.ok("", "approvals", "list")
	assert.Contains(t, list, "PENDING *")
	assert.Contains(t, list, `rm -rf /srv/cache\u202e`, "what a terminal would hide is written out")
	assert.Contains(t, list, "ops@web1:/srv")
	var cards []client.Approval
	h.json(&cards, "", "approvals", "list", "--status", "all")
	require.Len(t, cards, 1)
	assert.Equal(t, first.GetId(), cards[0].ID)

	shown := h.ok("", "approvals", "show", "k7qf")
	for _, words := range []string{"K7QF  pending", "The disk is full.", "It deletes a whole folder.", "proposed by the model", first.GetId()} {
		assert.Contains(t, shown, words)
	}
	zh := newHome(t, append(h.more, "HOME="+h.dir, "BUTLER_DATA_DIR="+h.data(), "LANG=zh_CN.UTF-8")...)
	for _, words := range []string{"它会删除整个目录。", "K7QF  等待中", "  命令       rm -rf", "由模型提出"} {
		assert.Contains(t, zh.ok("", "approvals", "show", "K7QF"), words)
	}

	said := h.ok("", "approvals", "approve", "K7QF", "--reason", "go on")
	assert.Contains(t, said, "K7QF approved: rm -rf")
	a := k.now(first.GetId())
	assert.Equal(t, approval.Approved, a.GetStatus())
	assert.Equal(t, "cli", a.GetDecisions()[0].GetChannel())
	assert.Equal(t, "go on", a.GetDecisions()[0].GetReason())
	assert.NotEmpty(t, a.GetGrant())
	assert.NotContains(t, h.ok("", "approvals", "show", first.GetId(), "--json"), a.GetGrant(), "the grant is for the executor alone")

	again := h.run("", "approvals", "deny", first.GetId())
	assert.Equal(t, exitFailed, again.code)
	assert.Contains(t, again.err, "admin approved it already")
	assert.Regexp(t, `\p{Han}`, zh.run("", "approvals", "deny", first.GetId()).err)
	assert.Equal(t, exitFailed, h.run("", "approvals", "approve", "ZZZZ").code)
	assert.Equal(t, exitFailed, h.run("", "approvals", "show", uuid.NewString()).code)
	assert.Equal(t, exitUsage, h.run("", "approvals", "approve", "K7QF", "--edit", " ").code)
	assert.Equal(t, exitUsage, h.run("", "approvals", "list", "--limit", "0").code)
	nonsense := h.run("", "approvals", "list", "--status", "nonsense")
	assert.Equal(t, exitUsage, nonsense.code)
	assert.Contains(t, nonsense.err, "pending, approved, denied, expired, withdrawn, refused or all")

	second := k.ask("M2PX", "reboot")
	h.listed("M2PX")
	var denied client.Approval
	h.json(&denied, "", "approvals", "deny", "M2PX", "-r", "not on a Friday")
	assert.Equal(t, "REJECTED", denied.Status)
	assert.Equal(t, "not on a Friday", k.now(second.GetId()).GetDecisions()[0].GetReason())

	// Somebody whom it does not concern.
	third := k.ask("R4TN", "reboot")
	h.listed("R4TN")
	h.ok("password of bob\n", "users", "add", "bob")
	bob := newHome(t, h.more[len(h.more)-1])
	bob.ok("password of bob\n", "login", "bob")
	assert.Equal(t, "No request waits for a decision.\n", bob.ok("", "approvals", "list"))
	assert.Equal(t, exitFailed, bob.run("", "approvals", "show", third.GetId()).code)
	assert.Equal(t, exitUnauthorized, bob.run("", "approvals", "approve", third.GetId()).code)
	assert.Equal(t, exitUnauthorized, bob.run("", "audit", "list").code)
	assert.Equal(t, exitUnauthorized, bob.run("", "audit", "verify").code)

	// All of it is in the chain.
	eventually(t, "the decision is audited", func() bool { return strings.Contains(h.ok("", "audit", "list", "go", "on"), "approved") })
	var entries []client.AuditEntry
	h.json(&entries, "", "audit", "list", "--approval", first.GetId())
	require.NotEmpty(t, entries)
	var checked client.AuditCheck
	out := h.ok("", "audit", "verify", "--json")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &checked))
	assert.True(t, checked.Done)
	assert.Contains(t, h.ok("", "audit", "verify"), "everything fits")
}

func TestWatchingApprovals(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	k := h.asker()
	k.ask("K7QF", "reboot")
	h.listed("K7QF")
	program, err := built()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program, "approvals", "watch", "--json")
	cmd.Env = h.environ()
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	news := make(chan client.Approval, 16)
	go func() {
		defer close(news)
		for dec := json.NewDecoder(pipe); ; {
			var a client.Approval
			if dec.Decode(&a) != nil {
				return
			}
			news <- a
		}
	}()
	next := func() client.Approval {
		select {
		case a := <-news:
			return a
		case <-time.After(patience):
			t.Fatal("no news came")
			return client.Approval{}
		}
	}
	assert.True(t, next().MayDecide, "what is pending comes first")
	k.ask("M2PX", "ls")
	assert.Equal(t, "M2PX", next().Code)
	h.ok("", "approvals", "deny", "K7QF")
	a := next()
	assert.Equal(t, "K7QF", a.Code)
	assert.Equal(t, "REJECTED", a.Status)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	for range news { //nolint:revive // until its end
	}
	require.NoError(t, cmd.Wait(), "to leave is no failure")
}

func TestAnsweringWhileWatching(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.up()
	k := h.asker()
	foreign := k.ask("Q3HD", "mount /dev/sdb1", func(a *butlerv1.Approval) {
		a.Policy = &butlerv1.ApprovalPolicy{Rule: "disks", Action: "ask", Quorum: 1, People: []int64{99}, Requester: approval.RequesterNever}
	})
	h.listed("Q3HD")
	var mu sync.Mutex
	var screen bytes.Buffer
	in, typed := io.Pipe()
	app := newApp(in, &lockedWriter{&mu, &screen}, &lockedWriter{&mu, &screen}, h.environ())
	c, err := app.client()
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watched := make(chan error, 1)
	go func() { watched <- app.watch(ctx, c, true, 0) }()
	asked := func(words string) {
		t.Helper()
		eventually(t, words, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.HasSuffix(screen.String(), words)
		})
	}
	const others = "Q3HD: not yours to decide; those decide whom the policy's rule “disks” names\n"
	asked(others)
	_, _ = typed.Write([]byte("y\n"))
	asked("Nothing here waits for your word, so nothing was decided.\n" + others)
	first := k.ask("K7QF", "reboot")
	asked("Allow K7QF? [y/n, a reason may follow: n not today; Enter for later] ")
	second := k.ask("M2PX", "halt")
	h.listed("M2PX")
	_, _ = typed.Write([]byte("y\n"))
	asked("Allow M2PX? [y/n, a reason may follow: n not today; Enter for later] ")
	_, _ = typed.Write([]byte("n too late\n"))
	eventually(t, "the end is shown", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(screen.String(), "M2PX denied: halt")
	})
	_ = typed.Close() // Ctrl-D
	require.NoError(t, <-watched)
	eventually(t, "both are decided", func() bool {
		return k.now(first.GetId()).GetStatus() != approval.Pending && k.now(second.GetId()).GetStatus() != approval.Pending
	})
	assert.Equal(t, approval.Approved, k.now(first.GetId()).GetStatus())
	assert.Equal(t, approval.Pending, k.now(foreign.GetId()).GetStatus())
	denied := k.now(second.GetId())
	assert.Equal(t, approval.Denied, denied.GetStatus())
	assert.Equal(t, "too late", denied.GetDecisions()[0].GetReason())
}

// fakeGateway answers with what a gateway would, in a state that a test cannot bring about.
func fakeGateway(t *testing.T, answers map[string]http.HandlerFunc) *home {
	t.Helper()
	mux := http.NewServeMux()
	for path, answer := range answers {
		mux.HandleFunc(path, answer)
	}
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return newHome(t, "BUTLER_SERVER="+srv.URL, "BUTLER_TOKEN=token")
}

func TestAListThatMayBeOutOfDateSaysSo(t *testing.T) {
	t.Parallel()
	h := fakeGateway(t, map[string]http.HandlerFunc{"/api/approvals": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Butler-Stale", "true")
		_, _ = w.Write([]byte("[]"))
	}})
	for _, args := range [][]string{{"approvals", "list"}, {"approvals", "list", "--json"}} {
		r := h.run("", args...)
		assert.Equal(t, exitOK, r.code)
		assert.Contains(t, r.err, "may be out of date")
	}
	h.more = append(h.more, "LANG=zh.UTF-8")
	assert.Contains(t, h.run("", "approvals", "list").err, "可能不是最新的")
}

func TestWhatIsSaidOfARequest(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	a := newApp(nil, &out, &errs, nil)
	tell := func(r client.Approval) string {
		errs.Reset()
		p := &printer{talk: &talk{app: a, screen: &out}}
		p.Approval(r)
		return errs.String()
	}
	pending := client.Approval{Code: "K7QF", Status: "PENDING", Command: "reboot", Host: "web1", Quorum: 2, Agreed: 1, Rule: "servers"}
	assert.Equal(t, "butler: waiting for approval K7QF: reboot (web1); not yours to decide; those decide whom the policy's rule “servers” names "+
		"(1 of 2 agreed)\n", tell(pending))
	pending.MayDecide = true
	assert.Contains(t, tell(pending), "decide with `butler approvals approve K7QF`")
	assert.Equal(t, "butler: rm -rf / (web1): refused by the policy\n", tell(client.Approval{Status: "REFUSED", Command: "rm -rf /", Host: "web1"}))
	a.environ = []string{"LC_ALL=zh_CN.UTF-8"}
	assert.Contains(t, tell(pending), "等待审批 K7QF")
}
