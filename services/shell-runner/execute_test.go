package shell

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

func TestACommandRunsOnceAndTells(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := r.granted("echo hi; echo once >>log; (exit 3)")
	resp, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, approval.Ended, resp.GetStatus())
	require.Equal(t, "hi", resp.GetOutcome().GetOutput())
	require.True(t, resp.GetOutcome().GetStatusKnown())
	require.EqualValues(t, 3, resp.GetOutcome().GetExitStatus())
	require.Equal(t, "idle", resp.GetShell().GetState())
	text, ended := r.streamed(req.GetApprovalId())
	require.Equal(t, "hi\n", text)
	require.True(t, ended)

	require.False(t, r.signalled(req), "who has the answer need not be woken")

	for range 3 {
		again, err := r.Execute(r.ctx(), req)
		require.NoError(t, err)
		require.Equal(t, resp.GetOutcome().GetOutput(), again.GetOutcome().GetOutput())
	}
	r.restart()
	again, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, approval.Ended, again.GetStatus())
	require.Equal(t, "once\n", r.file("log"))
	require.Len(t, r.approver.asked, 1)
}

func TestManyCallsForOneGrantRunItOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := r.granted("sleep 0.2; echo once >>log")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			resp, err := r.Execute(r.ctx(), req)
			if err != nil || resp.GetStatus() != approval.Ended {
				t.Error(resp, err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, "once\n", r.file("log"))
}

func TestOnlyWhoIsAllowed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, who := range []*butlerv1.Actor{{Id: 8, Name: "carl", Role: "ADMIN"}, {Id: 7, Name: "alice", Role: "AGENT"}, {Id: 2, Name: "butler", Role: "BUTLER"}} {
		_, err := r.Inspect(r.ctx(), &butlerv1.InspectRequest{Person: who, Command: "ls"})
		require.Equal(t, fault.Forbidden, fault.CodeOf(err), who)
		require.ErrorContains(t, err, "ask an administrator")
		req := r.granted("ls")
		req.Person = who
		_, err = r.Execute(r.ctx(), req)
		require.Equal(t, fault.Forbidden, fault.CodeOf(err), who)
	}
	_, err := r.Inspect(r.ctx(), &butlerv1.InspectRequest{Person: &butlerv1.Actor{Id: 9, Name: "bob", Role: "MEMBER"}, Command: "ls"})
	require.NoError(t, err)
	require.NoError(t, r.SetSettings(Settings{}))
	_, err = r.Inspect(r.ctx(), &butlerv1.InspectRequest{Person: alice, Command: "ls"})
	require.Equal(t, fault.Forbidden, fault.CodeOf(err), "an empty list is nobody")
}

func TestAGrantIsForExactlyOneThing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, change := range map[string]func(*approval.Grant){
		"another approval":  func(g *approval.Grant) { g.ID = approval.NewID("x") },
		"another host":      func(g *approval.Grant) { g.Host = "db" },
		"another requester": func(g *approval.Grant) { g.Requester = 8 },
		"another effect":    func(g *approval.Grant) { g.Effect = strings.Repeat("0", 64) },
		"another session":   func(g *approval.Grant) { g.Session = "x" },
		"another kind":      func(g *approval.Grant) { g.Kind = approval.KindInput },
		"too late":          func(g *approval.Grant) { g.RunBy = time.Now().Add(-time.Second).Unix() },
	} {
		req := r.granted("echo no >>log", change)
		_, err := r.Execute(r.ctx(), req)
		require.Equal(t, fault.Forbidden, fault.CodeOf(err), name)
		require.Nil(t, r.use(req.GetApprovalId()), name)
	}
	req := r.granted("echo no >>log")
	req.Effect.Command = "echo other >>log"
	_, err := r.Execute(r.ctx(), req)
	require.Equal(t, fault.Forbidden, fault.CodeOf(err), "another text")
	_, foreign, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	was := r.approver.signer
	r.approver.signer, err = approval.NewSigner(foreign)
	require.NoError(t, err)
	req = r.granted("echo no >>log")
	r.approver.signer = was
	_, err = r.Execute(r.ctx(), req)
	require.Equal(t, fault.Forbidden, fault.CodeOf(err), "another key")
	require.Empty(t, r.file("log"))
}

// What changed since it was approved is asked for anew, and does not run.
func TestDrift(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	script := filepath.Join(r.dir, "home", "x.sh")
	require.NoError(t, os.WriteFile(script, []byte("echo one >>log\n"), 0o755))
	for name, c := range map[string]struct {
		command string
		change  func()
		says    string
	}{
		"script edited":     {"bash x.sh", func() { require.NoError(t, os.WriteFile(script, []byte("echo two >>log\n"), 0o755)) }, "script"},
		"directory changed": {"echo here >>log", func() { r.do("cd /tmp") }, "directory changed from"},
		"alias defined":     {"ls >>log", func() { r.do("alias ls='echo evil'") }, "alias"},
		"function defined":  {"true; echo f >>log", func() { r.do("true() { echo evil >>log; }") }, "alias, a function"},
		"path changed":      {"date >>log", func() { r.do("PATH=/tmp:$PATH") }, "variable"},
		"session replaced": {"echo s >>log", func() {
			_, err := r.CloseShell(r.ctx(), &butlerv1.CloseShellRequest{Person: 7})
			require.NoError(t, err)
		}, "session was replaced"},
	} {
		_, err := r.CloseShell(r.ctx(), &butlerv1.CloseShellRequest{Person: 7})
		require.NoError(t, err)
		req := r.granted(c.command)
		c.change()
		_, err = r.Execute(r.ctx(), req)
		require.Equal(t, fault.Drift, fault.CodeOf(err), name)
		require.ErrorContains(t, err, c.says, name)
		require.Nil(t, r.use(req.GetApprovalId()), "the grant was not taken")
	}
	require.Empty(t, r.file("log"))
}

func TestNothingHappensUnconfirmed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.approver.confirm = func(*butlerv1.ConfirmUseRequest) error {
		return fault.New(fault.Forbidden, "amy approved it and may not do so any more")
	}
	req := r.granted("echo no >>log")
	for range 2 {
		resp, err := r.Execute(r.ctx(), req)
		require.NoError(t, err)
		require.Equal(t, approval.UseRefused, resp.GetStatus())
		require.Contains(t, resp.GetReason(), "amy")
	}
	r.approver.confirm = func(*butlerv1.ConfirmUseRequest) error { return fault.New(fault.Unavailable, "away") }
	resp, err := r.Execute(r.ctx(), r.granted("echo no >>log"))
	require.NoError(t, err)
	require.Equal(t, approval.UseRefused, resp.GetStatus())
	require.Empty(t, r.file("log"))
}

// A command that outlives the wait goes on, and its end is told, recorded and logged.
func TestLongCommands(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig) { r.settings.CommandTimeout = time.Second })
	req := r.granted("echo begin; read -t 4 x; echo end")
	resp, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, "running", resp.GetStatus())
	require.Equal(t, "begin", resp.GetOutcome().GetOutput())
	_, err = r.Inspect(r.ctx(), &butlerv1.InspectRequest{Person: alice, Command: "ls"})
	require.Equal(t, fault.Conflict, fault.CodeOf(err))
	require.ErrorContains(t, err, "busy")
	r.woken(req)
	require.Equal(t, approval.Ended, r.use(req.GetApprovalId()).GetStatus())
	again, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, "begin\nend", again.GetOutcome().GetOutput())
	text, ended := r.streamed(req.GetApprovalId())
	require.Equal(t, "begin\nend\n", text)
	require.True(t, ended)
}

// signalled says whether there is a work item that tells a turn of the end of its command.
func (r *rig) signalled(req *butlerv1.ExecuteRequest) bool {
	require.Eventually(r.t, func() bool { return r.job(req.GetApprovalId()) == nil }, time.Minute, time.Millisecond)
	w := req.GetWaiter()
	turn := chat.Turn{Session: chat.Session{Person: w.GetPerson(), Thread: w.GetThread()}, ID: w.GetTurn()}
	_, found, err := r.bus.Last(r.ctx(), bus.WorkStream, turn.Signal(w.GetKey()))
	require.NoError(r.t, err)
	return found
}

// Who goes without the end is told of it, who still waits has it: never neither.
func TestWhoGoesWithoutTheEndIsTold(t *testing.T) {
	t.Parallel()
	for range 1000 {
		j := &job{ended: make(chan struct{})}
		var left, told bool
		var wg sync.WaitGroup
		wg.Go(func() { left = j.leave() })
		wg.Go(func() { told = j.conclude() })
		wg.Wait()
		require.Equal(t, left, told)
	}
	r := newRig(t)
	req := r.granted("echo begin; read -t 2 x; echo end")
	ctx, cancel := context.WithCancel(r.ctx())
	gone := make(chan error)
	go func() {
		_, err := r.Execute(ctx, req)
		gone <- err
	}()
	require.Eventually(t, func() bool {
		text, _ := r.streamedSoFar(req.GetApprovalId())
		return text != ""
	}, time.Minute, time.Millisecond)
	cancel() // its connection broke
	require.ErrorIs(t, <-gone, context.Canceled)
	require.Equal(t, approval.Ended, r.woken(req).GetStatus())
}

// woken waits for the work item that tells a turn of the end of its command.
func (r *rig) woken(req *butlerv1.ExecuteRequest) *butlerv1.ApprovalUse {
	w := req.GetWaiter()
	turn := chat.Turn{Session: chat.Session{Person: w.GetPerson(), Thread: w.GetThread()}, ID: w.GetTurn()}
	var use butlerv1.ApprovalUse
	require.Eventually(r.t, func() bool {
		ev, found, err := r.bus.Last(r.ctx(), bus.WorkStream, turn.Signal(w.GetKey()))
		if err != nil || !found {
			return false
		}
		var signal struct{ Value json.RawMessage }
		require.NoError(r.t, json.Unmarshal(ev.Data, &signal))
		require.NoError(r.t, chat.Decode(signal.Value, &use))
		return true
	}, time.Minute, 10*time.Millisecond)
	require.Empty(r.t, use.GetGrant())
	return &use
}

// The service stops while a command runs: the next one goes on with it, or finds how it ended.
func TestCommandsOutliveTheService(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]time.Duration{"still running": 0, "ended meanwhile": 4 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(r *rig) { r.settings.CommandTimeout = time.Second })
			req := r.granted("echo once >>log; read -t 3 x; echo done; (exit 4)")
			resp, err := r.Execute(r.ctx(), req)
			require.NoError(t, err)
			require.Equal(t, "running", resp.GetStatus())
			r.stop()
			if wait > 0 {
				require.Never(t, func() bool { return false }, wait, wait/2)
			}
			r.start()
			use := r.woken(req)
			require.Equal(t, approval.Ended, use.GetStatus())
			require.EqualValues(t, 4, use.GetOutcome().GetExitStatus())
			require.Contains(t, use.GetOutcome().GetOutput(), "done")
			require.Equal(t, "once\n", r.file("log"))
		})
	}
}

// A crash between the taking of a grant and its end: the outcome is unknown, is told so, and nothing runs.
func TestAfterACrashTheOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := r.granted("echo no >>log")
	j := &job{id: req.GetApprovalId(), req: req, risk: &butlerv1.Risk{}}
	require.NoError(t, r.note(j)) // a crash before the append
	r.restart()
	require.Nil(t, r.use(req.GetApprovalId()))
	require.NoFileExists(t, filepath.Join(r.openFolder(), req.GetApprovalId()))

	for _, lost := range []bool{false, true} { // a crash after the append; with and without the note on disk
		req := r.granted("echo no >>log")
		_, err := r.take(r.ctx(), req, r.session(), &butlerv1.Risk{})
		require.NoError(t, err)
		if lost {
			r.unnote(req.GetApprovalId())
		}
		r.restart()
		use := r.use(req.GetApprovalId())
		require.Equal(t, approval.Unknown, use.GetStatus())
		require.Equal(t, approval.Unknown, r.woken(req).GetStatus())
		resp, err := r.Execute(r.ctx(), req)
		require.NoError(t, err)
		require.Equal(t, approval.Unknown, resp.GetStatus())
		require.Contains(t, resp.GetReason(), "may or may not have run")
	}
	require.Empty(t, r.file("log"))
}

func TestSecretsStayHere(t *testing.T) {
	t.Setenv("INTERNAL_SERVICE_TOKEN", "0123456789abcdef0123456789abcdef")
	r := newRig(t)
	req := r.granted("printf 'password: hunter2hunter2\\ntok'; printf 'en=ghp_'; printf '%s\\n' abcdefghijklmnopqrstuvwxyz0123456789")
	resp, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	text, _ := r.streamed(req.GetApprovalId())
	for _, where := range []string{resp.GetOutcome().GetOutput(), text} {
		require.NotContains(t, where, "hunter2")
		require.NotContains(t, where, "abcdefghijklmnop")
		require.Contains(t, where, "[REDACTED")
	}
	require.Positive(t, resp.GetOutcome().GetRedacted())
	// Nor does what is approved tell them, and a change of one is drift all the same.
	r.do("alias login='curl -u alice:hunter2hunter2 https://example.org'; export GIT_CONFIG_VALUE_0='Authorization: Bearer abcdefghijklmnop0123456789'")
	req = r.granted("true")
	shown := req.GetEffect().String()
	require.NotContains(t, shown, "hunter2")
	require.NotContains(t, shown, "abcdefghijklmnop")
	require.Contains(t, shown, "login")
	r.do("export GIT_CONFIG_VALUE_0='Authorization: Bearer zyxwvutsrqponmlk9876543210'")
	_, err = r.Execute(r.ctx(), req)
	require.Equal(t, fault.Drift, fault.CodeOf(err))
	env := r.do("env").GetOutcome().GetOutput()
	require.NotContains(t, env, "INTERNAL_SERVICE_TOKEN")
	require.NotContains(t, env, "TMUX")
}

func TestLongOutputIsCutInTheMiddle(t *testing.T) {
	t.Parallel()
	r := newRig(t, patient)
	req := r.granted("seq 1 300000")
	resp, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	o := resp.GetOutcome()
	require.True(t, o.GetTruncated())
	require.True(t, strings.HasPrefix(o.GetOutput(), "1\n2\n"))
	require.True(t, strings.HasSuffix(o.GetOutput(), "\n300000"), o.GetOutput()[len(o.GetOutput())-50:])
	require.Contains(t, o.GetOutput(), "[… ")
	require.Less(t, len(o.GetOutput()), keepHead+keepTail+200)
	require.Greater(t, o.GetOutputBytes(), int64(2_000_000))
	text, ended := r.streamed(req.GetApprovalId())
	require.True(t, ended)
	require.Less(t, len(text), maxStreamed+1000)
}

func TestTheShellLog(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.do("echo 你好 world")
	r.do("false")
	var rows []entry
	require.Eventually(t, func() bool {
		var err error
		rows, err = r.logbook.search(r.ctx(), logQuery{Person: 7, Limit: 10})
		return err == nil && len(rows) == 2
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, "false", rows[0].Command)
	require.EqualValues(t, 1, *rows[0].Exit)
	require.False(t, rows[0].Approved, "nothing in the log of approvals says so")
	require.Equal(t, "你好 world", rows[1].Output)
	for _, q := range []logQuery{{Words: []string{"你好", "ECHO"}}, {Since: rows[1].At, Words: []string{"world"}}} {
		q.Person, q.Limit = 7, 10
		got, err := r.logbook.search(r.ctx(), q)
		require.NoError(t, err)
		require.Len(t, got, 1)
	}
	for _, q := range []logQuery{{Person: 8}, {Person: 7, Words: []string{"%"}}, {Person: 7, Status: "unknown"}} {
		q.Limit = 10
		got, err := r.logbook.search(r.ctx(), q)
		require.NoError(t, err)
		require.Empty(t, got)
	}
}

// session gives alice's session.
func (r *rig) session() *tmux.Session {
	sess, err := r.tmux.Session(r.ctx(), sessionUser(alice.GetId()))
	require.NoError(r.t, err)
	return sess
}

// A shell whose options make it read lines in another way is asked about, until they are set back.
func TestOptionsOfTheShell(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	verdict := func() *butlerv1.Risk {
		resp, err := r.Inspect(r.ctx(), &butlerv1.InspectRequest{Person: alice, Command: "ls"})
		require.NoError(t, err)
		return resp.GetRisk()
	}
	require.Equal(t, "run", verdict().GetVerdict())
	for set, back := range map[string]string{
		"set -k": "set +k", "set -o posix": "set +o posix", "shopt -s extdebug": "shopt -u extdebug; set +o errtrace +o functrace",
		"shopt -s lastpipe nocasematch": "shopt -u lastpipe nocasematch", "set +B": "set -B", "shopt -u expand_aliases": "shopt -s expand_aliases",
	} {
		r.do(set)
		require.Equal(t, "ask", verdict().GetVerdict(), set)
		require.Equal(t, "shell-option", verdict().GetReasons()[0].GetCode(), set)
		r.do(back)
		require.Equal(t, "run", verdict().GetVerdict(), back)
	}
	r.do("set -o vi; shopt -s extglob; set -a")
	require.Equal(t, "run", verdict().GetVerdict())
}
