package brain

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func TestATypedCommandRunsInAnAttachedConversation(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	a.begin("one")
	require.Equal(t, "answer to: !ls", a.outcome(a.ask("!ls")).Reply.Text, "not attached: it is chat")
	require.Zero(t, a.shell.routes)
	out := a.outcome(a.ask("/shell"))
	require.Equal(t, "did /shell", out.Reply.Text)
	require.Equal(t, "on", out.Reply.Attach)
	require.Equal(t, "web1", out.Reply.Shell.Host)
	require.Equal(t, "/shell", a.shell.controls["1.1.m2"], "the key is the turn")

	out = a.outcome(a.ask("!ls -la"))
	require.Equal(t, chat.Answered, out.Status)
	require.Len(t, out.Records, 2, "what the policy runs at once costs no append of its own")
	require.Equal(t, "```console\n$ ls -la\noutput of ls -la\n```\nexit 0 · `/home/alice` · 12ms", out.Reply.Text)
	req := a.app.requests[0]
	require.Equal(t, req.Id, out.Reply.StreamId)
	require.Equal(t, approval.ByPerson, req.Proposer)
	require.Equal(t, "idle", out.Reply.Shell.State)
	require.Equal(t, "cmd-end-1", a.shell.executes[0].Waiter.Key)
	require.Equal(t, 1, a.model.Count(), "the model was not asked")

	require.Equal(t, "answer to: what is this?", a.outcome(a.ask("what is this?")).Reply.Text)
	msgs := a.model.Requests()[1].Messages
	require.Equal(t, "!ls -la", msgs[len(msgs)-3].Text, "what was done by hand is visible to the model")
	require.True(t, strings.HasPrefix(msgs[len(msgs)-2].Text, "[Done by the person in their own shell, not by you."), msgs[len(msgs)-2].Text)
	require.Contains(t, msgs[len(msgs)-2].Text, "output of ls -la")

	require.Equal(t, "off", a.outcome(a.ask("/shell off")).Reply.Attach)
	require.Equal(t, "answer to: !ls", a.outcome(a.ask("!ls")).Reply.Text)
	require.Equal(t, "answer to: /unknown word", a.outcome(a.ask("/unknown word")).Reply.Text, "unknown slash words are for the model")
}

func TestAttachmentSurvivesARestartAndForgetting(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	one := a.begin("one")
	a.attach()
	one.stop()
	a.begin("two", func(d *Deps) { d.Settings.ContextWindow = 1500 }) // 12,000 bytes of text are kept
	for range 4 {
		a.outcome(a.ask("and what about " + strings.Repeat("this ", 1200)))
	}
	require.Contains(t, a.outcome(a.ask("ls")).Reply.Text, "output of ls", "the turn that attached it is not kept any more")
	a.channel = "shell"
	out := a.outcome(a.askIn(chat.Session{Person: 1, Thread: 2}, "x1", "ls"))
	require.Contains(t, out.Reply.Text, "output of ls", "conversations of a channel for shells are attached")
	a.outcome(a.askIn(chat.Session{Person: 1, Thread: 2}, "x2", "/shell off"))
	out = a.outcome(a.askIn(chat.Session{Person: 1, Thread: 2}, "x3", "ls"))
	require.Equal(t, "answer to: ls", out.Reply.Text)
}

func TestATypedCommandWaitsForItsConfirmation(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	one := a.begin("one")
	a.attach()
	turn := a.ask("rm -r build")
	pending := a.app.pending(1)[0]
	a.suspended(turn)
	require.Contains(t, a.notices(alice, pending.Id), "Waiting for approval **K7QA**")
	one.stop()
	a.begin("two")
	a.app.mu.Lock()
	a.app.answer = &butlerv1.DecideInChatResponse{Handled: true, Text: "Approved."}
	a.app.mu.Unlock()
	said := a.outcome(a.ask("approve K7QA"))
	require.Equal(t, "Approved.", said.Reply.Text)
	require.Equal(t, "m3", a.app.chats[0].Turn.Turn)
	a.app.decide("rm -r build", a.app.yes)
	out := a.outcome(turn)
	require.Contains(t, out.Reply.Text, "$ rm -r build\noutput of rm -r build")
	require.Equal(t, pending.Id, out.Reply.StreamId, "the stream of the output")
	commands, most := a.shell.ran()
	require.Equal(t, []string{"rm -r build"}, commands)
	require.Equal(t, 1, most)
	require.Zero(t, a.model.Count())
}

func TestTypedCommandsThatDoNotRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text, language string
		decide         func(*butlerv1.Approval)
		reason, want   string
	}{
		"denied":     {"rm a", "en", no("not on a Friday"), "denied", "Not run: carol denied it: “not on a Friday”"},
		"denied, zh": {"rm a", "zh", no("周五不行"), "denied", "未运行：carol 已拒绝：“周五不行”"},
		"expired":    {"rm a", "en", func(a *butlerv1.Approval) { a.Status = approval.Expired }, "expired", "Not run: nobody approved it in time. Send it again to ask anew."},
		"policy":     {"mkfs x", "en", nil, "refused", "Not run: the policy refuses it: it deletes files"},
		"policy, zh": {"mkfs x", "zh", nil, "refused", "未运行：策略拒绝：会删除文件"},
		"guard":      {"!echo 'x", "en", nil, "guard", "Not run: a quote is not closed"},
		"guard, zh":  {"!echo 'x", "zh", nil, "guard", "未运行：引号没有闭合"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newActing(newRig(t))
			a.begin("one")
			a.attach()
			a.language = c.language
			turn := a.ask(c.text)
			if c.decide != nil {
				pending := a.app.pending(1)[0]
				a.suspended(turn)
				if c.language == "zh" {
					for _, want := range []string{"等待批准 **K7QA**", "会删除文件", "ADMIN可以决定", "`确认 K7QA`", "截止"} {
						require.Contains(t, a.notices(alice, pending.Id), want)
					}
				}
				a.app.decide(c.text, c.decide)
			}
			out := a.outcome(turn)
			require.Equal(t, chat.Answered, out.Status)
			require.Equal(t, c.reason, out.Reason)
			require.Equal(t, c.want, out.Reply.Text)
			commands, _ := a.shell.ran()
			require.Empty(t, commands)
			require.Zero(t, a.model.Count())
		})
	}
}

func TestACommandThatOutlivesTheWaitIsAnsweredWhenItEnds(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	one := a.begin("one")
	a.attach()
	job := func(string) *butlerv1.ExecuteResponse {
		return &butlerv1.ExecuteResponse{Status: running, Outcome: &butlerv1.CommandOutcome{Running: true, Output: "so far\n"}}
	}
	a.shell.mu.Lock()
	a.shell.output = job
	a.shell.mu.Unlock()
	turn := a.ask("sleep 100")
	a.suspended(turn)
	require.Contains(t, a.notices(alice, a.app.requests[0].Id), "`sleep 100` still runs after 30s and goes on")
	require.Equal(t, chat.Answered, a.outcome(a.ask("hello?")).Status)
	one.stop()
	a.begin("two")
	a.shell.finish("sleep 100", &butlerv1.ExecuteResponse{Status: approval.Ended, Shell: a.shell.state(), Outcome: &butlerv1.CommandOutcome{
		StatusKnown: true, ExitStatus: 2, Output: "so far\nand the rest\n", DurationMs: 100_000, Dir: "/tmp", Truncated: true, OutputBytes: 99, Redacted: 1,
	}})
	out := a.outcome(turn)
	require.Equal(t, "```console\n$ sleep 100\nso far\nand the rest\n```\nexit 2 · `/tmp` · 1m40s · cut: 99 bytes in all · 1 secrets taken out", out.Reply.Text)
	_, most := a.shell.ran()
	require.Equal(t, 1, most)

	// Stopped while it runs.
	a.shell.mu.Lock()
	a.shell.output = job
	a.shell.mu.Unlock()
	turn = a.ask("sleep 200")
	a.suspended(turn)
	a.stop(turn)
	out = a.outcome(turn)
	require.Equal(t, chat.Stopped, out.Status)
	require.Contains(t, out.Reply.Text, "`sleep 200` was running on web1; it was sent Ctrl-C")
	require.Contains(t, a.shell.pressed(), "/key C-c")

	// Stopped, and the shell does not answer.
	turn = a.ask("sleep 300")
	a.suspended(turn)
	a.shell.setFail(func(string) error { return fault.New(fault.Unavailable, "gone") })
	a.stop(turn)
	require.Contains(t, a.outcome(turn).Reply.Text, "`sleep 300` may still be running on web1")
}

func TestAStopWhileACommandIsExecuted(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	a.begin("one")
	a.attach()
	began := make(chan struct{})
	a.shell.mu.Lock()
	a.shell.before = func(ctx context.Context, req *butlerv1.ExecuteRequest) error {
		a.shell.use(req, approval.Taken)
		close(began)
		<-ctx.Done()
		return fault.Wrap(ctx.Err(), fault.Unavailable, "the caller is gone")
	}
	a.shell.mu.Unlock()
	turn := a.ask("sleep 20")
	<-began
	a.stop(turn)
	out := a.outcome(turn)
	require.Equal(t, chat.Stopped, out.Status)
	require.Contains(t, out.Reply.Text, "it was sent Ctrl-C")
	require.Contains(t, a.shell.pressed(), "/key C-c")
}

func TestAStopWhileATypedCommandWaits(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	a.begin("one")
	a.attach()
	turn := a.ask("rm a")
	a.app.pending(1)
	a.suspended(turn)
	a.stop(turn)
	out := a.outcome(turn)
	require.Equal(t, chat.Stopped, out.Status)
	require.Equal(t, "Stopped at your request. The request for approval was withdrawn; nothing of it was run.", out.Reply.Text)
}

func TestInputToAProgram(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	a.begin("one")
	a.attach()
	require.Equal(t, "did :w", a.outcome(a.ask(":w")).Reply.Text, "input that needs no grant is passed on")
	turn := a.ask(":!sh")
	pending := a.app.pending(1)[0]
	require.Equal(t, approval.KindInput, pending.Effect.Kind)
	require.Equal(t, "vim", pending.Effect.Program)
	a.app.decide("input to vim", a.app.yes)
	out := a.outcome(turn)
	require.Contains(t, out.Reply.Text, "output of input to vim")
	require.NotContains(t, out.Reply.Text, "$ ")
	require.Equal(t, ":!sh", a.shell.executes[0].Input)
	require.Equal(t, "```console\noutput of input to vim\n```\n`/home/alice`", out.Reply.Text)

	a.shell.mu.Lock()
	a.shell.password = true
	a.shell.mu.Unlock()
	a.outcome(a.ask("hunter2"))
	a.shell.mu.Lock()
	a.shell.password = false
	a.shell.mu.Unlock()
	a.outcome(a.ask("what did I type?"))
	for _, m := range a.model.Requests()[0].Messages {
		require.NotContains(t, strings.ReplaceAll(m.Text, "did hunter2", ""), "hunter2", "a password is not shown to the model")
	}
}

func TestAShellThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	a.begin("one")
	a.attach()
	a.shell.setFail(func(string) error { return fault.New(fault.Unavailable, "shell-runner does not answer now") })
	for _, text := range []string{"!ls", "$ ls", "/jobs"} {
		out := a.outcome(a.ask(text))
		require.Equal(t, chat.Failed, out.Status)
		require.Equal(t, "shell_unavailable", out.Reason)
		require.Contains(t, out.Reply.Text, "the shell of web1 does not answer now")
	}
	require.Zero(t, a.model.Count(), "what is meant for the shell never becomes chat")
	require.Equal(t, "answer to: why not?", a.outcome(a.ask("why not?")).Reply.Text)
	a.language = "zh"
	require.Contains(t, a.outcome(a.ask("!ls")).Reply.Text, "web1 的终端暂时没有响应")
	require.Equal(t, "off", a.outcome(a.ask("/shell off")).Reply.Attach, "a person can get away from it")
	require.Equal(t, "answer to: !ls", a.outcome(a.ask("!ls")).Reply.Text)
	require.Equal(t, "shell_unavailable", a.outcome(a.ask("/shell")).Reason)
	require.Equal(t, "answer to: /etc/hosts is what?", a.outcome(a.ask("/etc/hosts is what?")).Reply.Text)
}

func TestAShellThatStopsAnsweringBetweenRouteAndControl(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	a.begin("one")
	tries := make(chan struct{}, 100)
	a.shell.setFail(func(method string) error {
		if method != "Control" {
			return nil
		}
		tries <- struct{}{}
		if len(tries) < 3 {
			return fault.New(fault.Unavailable, "restarting")
		}
		return nil
	})
	require.Equal(t, "did /pwd", a.outcome(a.ask("/pwd")).Reply.Text)
	require.Len(t, tries, 3)
}

func TestAPersonWithoutShells(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	a.begin("one")
	a.attach()
	a.shell.setFail(func(string) error { return fault.New(fault.Forbidden, "you may not use the shell; ask an ADMIN") })
	for _, text := range []string{"!ls", "ls", "/pwd"} {
		out := a.outcome(a.ask(text))
		require.Equal(t, chat.Answered, out.Status)
		require.Equal(t, "You may not use the shell; ask an ADMIN.", out.Reply.Text)
	}
	require.Equal(t, "off", a.outcome(a.ask("/shell off")).Reply.Attach)
	require.Equal(t, "answer to: hello", a.outcome(a.ask("hello")).Reply.Text)
	require.Equal(t, "You may not use the shell; ask an ADMIN.", a.outcome(a.ask("/shell")).Reply.Text)
}

func TestDecisionsByMessage(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	a.begin("one")
	a.outcome(a.ask("please approve my plan"))
	require.Empty(t, a.app.chats, "ordinary text asks nobody")

	require.Equal(t, "answer to: 确认", a.outcome(a.ask("确认")).Reply.Text, "nothing waits: an ordinary word")
	require.Len(t, a.app.chats, 1)

	a.app.mu.Lock()
	a.app.answer = &butlerv1.DecideInChatResponse{Handled: true, Text: "It is decided."}
	a.app.mu.Unlock()
	count := a.model.Count()
	for _, text := range []string{"确认", "取消 k7qf 太危险", "approve K7QF", "deny K7QF because"} {
		out := a.outcome(a.ask(text))
		require.Equal(t, "It is decided.", out.Reply.Text)
		require.Equal(t, chat.Answered, out.Status)
	}
	require.Equal(t, count, a.model.Count())

	a.app.setFail(func(string) error { return fault.New(fault.Unavailable, "approval does not answer now") })
	out := a.outcome(a.ask("approve K7QF"))
	require.Equal(t, chat.Failed, out.Status)
	require.Equal(t, "approval_unavailable", out.Reason)
	require.Contains(t, out.Reply.Text, "Your decision was not passed on")
	a.app.setFail(func(string) error { return fault.New(fault.Forbidden, "you can no longer sign in") })
	require.Equal(t, "You can no longer sign in.", a.outcome(a.ask("approve K7QF")).Reply.Text)
}

func TestABareDecisionIsPassedOnOnce(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	one := a.begin("one")
	reached, release := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(release) })
	a.app.setFail(func(string) error { close(reached); <-release; return nil })
	turn := a.ask("approve")
	<-reached
	one.bus.Close() // whether it arrived is not known
	a.app.setFail(nil)
	a.begin("two")
	out := a.outcome(turn)
	require.Equal(t, "decision_unknown", out.Reason)
	require.Contains(t, out.Reply.Text, "decide it with its code")
	_, _, chats := a.app.counts()
	require.Equal(t, 1, chats, "said twice, it could decide another request")
}

func TestSeveralHosts(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	other := newFakeShell(a.rig, "db1", a.app)
	hosts := Shells{Default: "web1", Hosts: map[string]butlerv1.ShellServiceClient{"web1": a.shell, "db1": other}}
	one := a.begin("one", func(d *Deps) { d.Shells = hosts })
	require.Equal(t, "db1", a.outcome(a.ask("/shell db1")).Reply.Shell.Host)
	require.Contains(t, a.outcome(a.ask("ls")).Reply.Text, "output of ls")
	commands, _ := other.ran()
	require.Equal(t, []string{"ls"}, commands)
	a.model.Next(modeltest.Tool(runCommand, `{"command":"echo x","host":"db1","reasoning":"r"}`))
	a.outcome(a.ask("hello there"))
	commands, _ = other.ran()
	require.Equal(t, []string{"ls", "echo x"}, commands)

	// The host is gone from the settings.
	one.stop()
	a.begin("two")
	require.Contains(t, a.outcome(a.ask("!ls")).Reply.Text, "the shell of db1 does not answer now")
	require.Equal(t, "off", a.outcome(a.ask("/shell off")).Reply.Attach)

	_, err := New(Deps{Bus: a.bus, Model: one.model, Replica: "x", Approval: a.app, Shells: Shells{Default: "moon", Hosts: hosts.Hosts}})
	require.Error(t, err)
}

// TestAnOpenTurnBeforeDoesNotChangeAMessagesMeaning: what a message was taken for stands, though the turn before it
// attaches the conversation only later.
func TestAnOpenTurnBeforeDoesNotChangeAMessagesMeaning(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	one := a.begin("one")
	a.shell.setFail(func(method string) error {
		if method == "Control" {
			return fault.New(fault.Unavailable, "restarting")
		}
		return nil
	})
	first := a.ask("/shell")
	a.suspended(first)
	a.model.Next(proposes("rm a"))
	second := a.ask("ls is a word")
	a.app.pending(1)
	a.suspended(second)
	one.stop()
	a.shell.setFail(nil)
	a.begin("two")
	require.Equal(t, "on", a.outcome(first).Reply.Attach)
	a.model.Next(modeltest.Text("Done."))
	a.app.decide("rm a", a.app.yes)
	require.Equal(t, "Done.", a.outcome(second).Reply.Text, "it is still what it was taken for at first")
	require.Contains(t, a.outcome(a.ask("ls")).Reply.Text, "output of ls")
}

func TestACrashWhileATypedCommandRuns(t *testing.T) {
	t.Parallel()
	a := newActing(newRig(t))
	one := a.begin("one")
	a.attach()
	reached, release := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(release) })
	a.shell.mu.Lock()
	a.shell.after = func(*butlerv1.ExecuteRequest) error {
		select {
		case <-reached:
		default:
			close(reached)
			<-release
		}
		return nil
	}
	a.shell.mu.Unlock()
	turn := a.ask("ls")
	<-reached
	one.bus.Close()
	a.begin("two")
	out := a.outcome(turn)
	require.Contains(t, out.Reply.Text, "output of ls")
	commands, most := a.shell.ran()
	require.Equal(t, []string{"ls"}, commands)
	require.Equal(t, 1, most)
	require.Less(t, time.Since(out.Records[0].At), time.Minute)
}
