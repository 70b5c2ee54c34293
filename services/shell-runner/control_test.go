package shell

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/sealed"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// route routes a message of an attached conversation.
func (r *rig) route(text string) *butlerv1.RouteResponse {
	r.t.Helper()
	out, err := r.Route(r.ctx(), &butlerv1.RouteRequest{Person: alice, Text: text, Attached: true, Language: "en"})
	require.NoError(r.t, err, text)
	return out
}

func (r *rig) controlIn(language, text string) (*butlerv1.ControlResponse, error) {
	return r.Control(r.ctx(), &butlerv1.ControlRequest{Person: alice, Text: text, Language: language, Attached: true, Key: fmt.Sprint(r.n.Add(1))})
}

// control does a control that must succeed and gives its text.
func (r *rig) control(text string) string {
	r.t.Helper()
	out, err := r.controlIn("en", text)
	require.NoError(r.t, err, text)
	return out.GetText()
}

// says writes what a person would: it is routed, granted where that is needed, and done.
func (r *rig) says(text string) string {
	r.t.Helper()
	out := r.route(text)
	switch {
	case out.GetKind() == kindCommand, out.GetKind() == kindInput && out.GetEffect() != nil:
		req := r.grant(out.GetEffect(), out.GetRisk())
		if out.GetKind() == kindInput {
			req.Input = text
		}
		done, err := r.Execute(r.ctx(), req)
		require.NoError(r.t, err, text)
		return done.GetOutcome().GetOutput() + done.GetReason()
	case out.GetKind() == kindChat:
		r.t.Fatalf("%q is talk", text)
	}
	return r.control(text)
}

// impatient has calls return while a command runs.
func impatient(r *rig) { r.settings.FreeAfter = 500 * time.Millisecond }

func (r *rig) eventually(what string, f func() bool) {
	r.t.Helper()
	require.Eventually(r.t, f, 30*time.Second, 20*time.Millisecond, what)
}

// state gives the session as it stands.
func (r *rig) state() *butlerv1.ShellState {
	r.t.Helper()
	list, err := r.ListShells(r.ctx(), &butlerv1.ListShellsRequest{Person: alice.GetId()})
	require.NoError(r.t, err)
	if len(list.GetShells()) == 0 {
		return nil
	}
	return list.GetShells()[0]
}

func TestWhatAMessageIs(t *testing.T) {
	t.Parallel()
	r := newRig(t, impatient)
	ctx := r.ctx()
	unattached := func(text string) string {
		out, err := r.Route(ctx, &butlerv1.RouteRequest{Person: alice, Text: text})
		require.NoError(t, err)
		return out.GetKind()
	}
	for text, want := range map[string]string{
		"ls": kindChat, "!ls": kindChat, "/unknown": kindChat, "/etc/passwd": kindChat, "//shell": kindChat, "": kindChat,
		"/shell": kindControl, " /HELP ": kindControl, "/sys": kindControl, "/log x": kindControl,
	} {
		require.Equal(t, want, unattached(text), text)
	}
	require.Nil(t, r.state(), "no session was made for talk and controls")

	for text, want := range map[string]string{
		"echo hi": kindCommand, "!echo hi": kindCommand, "$ echo hi": kindCommand, "！echo hi": kindCommand, "make me a sandwich": kindChat,
		"帮我看看磁盘": kindChat, "!make me": kindCommand, "//echo": kindChat, "/interactiv": kindControl, "/bin/echo hi": kindCommand,
		"what is up?": kindChat, "$HOME": kindChat, "nosuchprogram -x": kindChat, "/nosuchthing": kindChat,
	} {
		out := r.route(text)
		require.Equal(t, want, out.GetKind(), text)
		require.Equal(t, want == kindCommand, out.GetEffect() != nil, text)
		require.NotNil(t, out.GetShell(), text)
	}
	out := r.route("! rm -rf build ")
	require.Equal(t, "rm -rf build", out.GetEffect().GetCommand())
	require.Equal(t, "ask", out.GetRisk().GetVerdict())
	_, err := r.Route(ctx, &butlerv1.RouteRequest{Person: alice, Text: "!", Attached: true})
	require.Equal(t, fault.Invalid, fault.CodeOf(err))

	// Names are those of this very shell.
	require.Equal(t, kindChat, r.route("greet -x").GetKind())
	r.do("greet() { echo hello; }")
	require.Equal(t, kindCommand, r.route("greet -x").GetKind())

	// A busy shell: talk goes on, commands wait, and the sentence is in the person's language.
	require.Equal(t, approvalRunning, r.do("sleep 60").GetStatus())
	require.Equal(t, kindChat, r.route("how long will it take?").GetKind())
	for _, text := range []string{"!ls", "ls -la"} {
		_, err = r.Route(ctx, &butlerv1.RouteRequest{Person: alice, Text: text, Attached: true, Language: "zh"})
		require.Equal(t, fault.Conflict, fault.CodeOf(err))
		require.Contains(t, fault.MessageOf(err), "正忙于 sleep")
	}
	require.Contains(t, r.control("/cancel"), "it ended")

	stranger := &butlerv1.Actor{Id: 99, Name: "eve", Role: "MEMBER"}
	for _, text := range []string{"/shell", "ls"} {
		_, err = r.Route(ctx, &butlerv1.RouteRequest{Person: stranger, Text: text, Attached: true, Language: "zh"})
		require.Equal(t, fault.Forbidden, fault.CodeOf(err))
		require.Contains(t, fault.MessageOf(err), "请联系管理员")
		_, err = r.Control(ctx, &butlerv1.ControlRequest{Person: stranger, Text: text})
		require.Equal(t, fault.Forbidden, fault.CodeOf(err))
	}
}

const approvalRunning = "running"

var han = regexp.MustCompile(`\p{Han}`)

func TestEveryControlInBothLanguages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.controlIn("en", "/pwd")
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
	require.ErrorContains(t, err, "/shell opens one")
	first, err := r.controlIn("en", "/shell")
	require.NoError(t, err)
	require.Equal(t, "on", first.GetAttach())
	require.Contains(t, first.GetText(), "Opened the shell `butler_7` on **web**")
	require.Contains(t, first.GetText(), "single-user mode")
	r.do("echo the last output")

	words := slices.Sorted(maps.Keys(controls))
	words = append(words, "/shell status", "/shell off", "/shell web", "/log", "/history echo", "/sys", "/system", "/load")
	for _, language := range []string{"en", "zh"} {
		for _, word := range words {
			text := word
			if word == "/key" {
				text = "/key C-c"
			}
			out, err := r.controlIn(language, text)
			require.NoError(t, err, text)
			require.NotEmpty(t, out.GetText(), text)
			require.NotNil(t, out.GetShell(), text)
			require.Contains(t, out.GetText(), "web · ", "the mode is always visible: "+text)
			require.Contains(t, []string{"nl", "interactive"}, out.GetShell().GetMode())
			switch word {
			case "/pwd", "/screen", "/key", "/compact", "/log", "/history echo": // what they show is no sentence
			default:
				require.Equal(t, language == "zh", han.MatchString(out.GetText()), "%s: %s", text, out.GetText())
			}
			switch word {
			case "/shell", "/shell web":
				require.Equal(t, "on", out.GetAttach())
			case "/shell off":
				require.Equal(t, "off", out.GetAttach())
			default:
				require.Empty(t, out.GetAttach(), text)
			}
		}
	}
	r.control("/nl")
	for _, text := range []string{"/shell nowhere", "/shell a b", "/key", "/key x", "/key foo", "/key " + strings.Repeat("Up ", 40), "/interactiv"} {
		for _, language := range []string{"en", "zh"} {
			_, err := r.controlIn(language, text)
			require.Equal(t, fault.Invalid, fault.CodeOf(err), text)
			require.Equal(t, language == "zh", han.MatchString(fault.MessageOf(err)), text)
		}
	}
	help := r.control("/help")
	for _, word := range words[:len(controls)] {
		require.Contains(t, help, word)
	}
	require.Contains(t, help, "/log")
	require.Contains(t, r.control("/screen"), "the last output")
	require.Contains(t, r.control("/pwd"), filepath.Join(r.dir, "home"))
	require.Contains(t, r.control("/shell status"), "idle")

	var snap published
	text := r.control("/compact")
	body := text[strings.Index(text, "{") : strings.LastIndex(text, "}")+1]
	require.NoError(t, json.Unmarshal([]byte(body), &snap))
	require.Equal(t, "butler_7", snap.SessionID)
	require.Equal(t, "7", snap.UserID)
	require.Equal(t, filepath.Join(r.dir, "home"), snap.Pwd)
	require.Contains(t, snap.Env, "PATH")
	require.Contains(t, snap.LastOutput, "the last output")
	require.Nil(t, snap.Interactive)
	require.NotContains(t, body, "/usr/bin:", "no value of a variable")
}

func TestACallIsDoneOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.says("/shell")
	require.Equal(t, approvalRunning, r.do("cat >lines").GetStatus())
	r.says("one") // with its grant
	req := &butlerv1.ControlRequest{Person: alice, Text: "two", Attached: true, Key: "the-key"}
	for range 3 {
		out, err := r.Control(r.ctx(), req)
		require.NoError(t, err)
		require.Contains(t, out.GetText(), "two")
	}
	r.control("/key C-d")
	r.eventually("it ended", func() bool { return r.state().GetState() == "idle" })
	require.Equal(t, "one\ntwo\n", r.file("lines"))
	// A refusal is repeated too.
	bad := &butlerv1.ControlRequest{Person: alice, Text: "/key nothing", Attached: true, Key: "bad"}
	_, err1 := r.Control(r.ctx(), bad)
	_, err2 := r.Control(r.ctx(), bad)
	require.Equal(t, err1, err2)
	require.Error(t, err1)
}

// Nothing that is typed as input can become a command of the shell.
func TestNothingTypedReachesThePrompt(t *testing.T) {
	t.Parallel()
	r := newRig(t, impatient)
	r.says("/shell")
	r.do("echo before")
	r.control("/interactive")
	require.Equal(t, kindCommand, r.route("touch typed").GetKind(), "a line is a command, and judged")
	for _, keys := range []string{"Enter", "Up", "Up Enter", "C-d", "C-r", "Esc", "Tab", "Space"} {
		_, err := r.controlIn("en", "/key "+keys)
		require.Equal(t, fault.Conflict, fault.CodeOf(err), keys)
	}
	_, err := r.controlIn("en", "touch typed")
	require.Equal(t, fault.Conflict, fault.CodeOf(err), "Control itself types nothing there")

	// A program that does not read: what is typed ahead would be the shell's.
	require.Equal(t, approvalRunning, r.do("sleep 100").GetStatus())
	out := r.route("touch typed")
	require.Equal(t, kindInput, out.GetKind())
	req := r.grant(out.GetEffect(), out.GetRisk())
	req.Input = "touch typed"
	done, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, approval.UseRefused, done.GetStatus())
	require.Contains(t, done.GetReason(), "sleep does not read")
	_, err = r.controlIn("en", "/key Up Enter")
	require.Equal(t, fault.Conflict, fault.CodeOf(err))
	r.control("/key C-c")
	r.eventually("the prompt is back", func() bool { return r.state().GetState() == "idle" })
	require.Empty(t, r.file("typed"))
	require.NoFileExists(t, filepath.Join(r.dir, "home", "typed"))

	// Keys that run what stands in a line need a grant, also where the text did not.
	require.Equal(t, approvalRunning, r.do("bash --norc").GetStatus())
	r.eventually("a shell in the shell", func() bool { return r.state().GetMode() == "interactive" })
	out = r.route("/key Up Enter")
	require.Equal(t, kindInput, out.GetKind())
	require.NotNil(t, out.GetEffect())
	_, err = r.controlIn("en", "/key Up Enter")
	require.Equal(t, fault.Forbidden, fault.CodeOf(err))
	require.Equal(t, kindControl, r.route("/key Up").GetKind())
	require.Contains(t, r.says("echo in$((1+1))"), "in2", "with a grant")
	require.Equal(t, kindControl, r.route("/key Enter").GetKind(), "which holds for a time")
	require.NotContains(t, r.control("/key C-d"), "error")
	r.eventually("the prompt is back", func() bool { return r.state().GetState() == "idle" && r.state().GetMode() == "interactive" })
}

func TestPasswordsLeaveNoTrace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const secret = "open-sesame-4711"
	announced := r.prompts()
	for i, command := range []string{
		`read -rs -p "Password: " P; echo "length ${#P}"`,
		`python3 -c 'import getpass; print("length", len(getpass.getpass()))'`,
	} {
		req := r.granted(command)
		resp, err := r.Execute(r.ctx(), req)
		require.NoError(t, err)
		require.Equal(t, approvalRunning, resp.GetStatus(), "%d: it does not wait for the person", i)
		require.True(t, resp.GetShell().GetPassword())
		p := <-announced
		require.Equal(t, req.GetWaiter().GetThread(), p.GetConversationId())
		box, err := sealed.Seal(secret, p.GetKey())
		require.NoError(t, err)
		in := &butlerv1.SealedInput{Host: p.GetHost(), Box: box}
		out, err := r.Route(r.ctx(), &butlerv1.RouteRequest{Person: alice, Text: sealed.Text, Attached: true, Sealed: in})
		require.NoError(t, err)
		require.Equal(t, kindInput, out.GetKind())
		require.Nil(t, out.GetEffect(), "one line needs no approval, which would show it")
		reply, err := r.Control(r.ctx(), &butlerv1.ControlRequest{Person: alice, Text: sealed.Text, Attached: true, Sealed: in, Key: fmt.Sprint(i)})
		require.NoError(t, err)
		require.NotContains(t, reply.GetText(), secret)
		require.Contains(t, reply.GetText(), "kept nowhere")
		r.eventually("it ended", func() bool { u := r.use(req.GetApprovalId()); return u.GetStatus() == approval.Ended })
		require.Contains(t, r.use(req.GetApprovalId()).GetOutcome().GetOutput(), fmt.Sprint("length ", len(secret)))
		streamed, _ := r.streamed(req.GetApprovalId())
		require.NotContains(t, streamed, secret)
		require.NotContains(t, r.control("/screen"), secret)
		require.NotContains(t, r.control("/compact"), secret)
		require.Empty(t, (<-announced).GetKey(), "nothing asks any more")
		for _, f := range []func() error{
			func() error {
				_, err := r.Route(r.ctx(), &butlerv1.RouteRequest{Person: alice, Text: sealed.Text, Attached: true, Sealed: in})
				return err
			},
			func() error {
				_, err := r.Control(r.ctx(), &butlerv1.ControlRequest{Person: alice, Text: sealed.Text, Attached: true, Sealed: in, Key: fmt.Sprint(i, "late")})
				return err
			},
		} {
			require.ErrorContains(t, f(), "not there any more", "it must not become a command")
			require.Empty(t, (<-announced).GetKey())
		}
	}
	// Where no gateway heard of the prompt, the text comes as it is.
	req := r.granted(`read -rs -p "Password: " P; echo "length ${#P}"`)
	_, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	key := (<-announced).GetKey()
	require.NoError(t, r.bus.Notify(sealed.Asked, []byte("{}")))
	require.Equal(t, key, (<-announced).GetKey(), "who starts later is told")
	reply, err := r.controlIn("en", secret)
	require.NoError(t, err)
	require.NotContains(t, reply.GetText(), secret)
	for _, stream := range []string{bus.ShellStream, bus.ApprovalStream, bus.DeltaStream} {
		events, err := r.bus.Load(r.ctx(), stream, "butler.>", 0, 0)
		require.NoError(t, err)
		for _, ev := range events {
			require.NotContains(t, string(ev.Data), secret)
		}
	}
	_ = filepath.WalkDir(r.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			data, _ := os.ReadFile(path)
			require.NotContains(t, string(data), secret, path)
		}
		return nil
	})
}

func TestJobsAndEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, impatient)
	r.says("/shell")
	require.Contains(t, r.control("/jobs"), "There are no jobs")
	require.Contains(t, r.control("/kill"), "nothing was killed")
	require.Contains(t, r.control("/cancel"), "Nothing runs")
	r.do("sleep 300 &")
	require.Contains(t, r.control("/jobs"), "`sleep 300")
	req := r.granted("sleep 301")
	resp, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, approvalRunning, resp.GetStatus())
	require.Contains(t, r.control("/jobs"), "`sleep 301`")
	require.Contains(t, r.control("/compact"), "once the shell is at its prompt")
	require.Contains(t, r.control("/kill"), "Killed `sleep` (process ")
	r.eventually("it ended", func() bool { return r.use(req.GetApprovalId()).GetStatus() == approval.Ended })
	require.EqualValues(t, 137, r.use(req.GetApprovalId()).GetOutcome().GetExitStatus())
	r.do("kill %1")
	_, err = r.CloseShell(r.ctx(), &butlerv1.CloseShellRequest{Person: alice.GetId()})
	require.NoError(t, err)
	require.Contains(t, r.control("/shell status"), "You have no shell")
}

func TestModes(t *testing.T) {
	t.Parallel()
	idle := tmux.State{State: tmux.Idle, Mode: tmux.NaturalLanguage, ShellForeground: true, Foreground: tmux.Process{PID: 1}}
	vim := tmux.State{State: tmux.Running, Mode: tmux.Interactive, Foreground: tmux.Process{PID: 2, Name: "vim"}}
	top := tmux.State{State: tmux.Running, Mode: tmux.Interactive, Foreground: tmux.Process{PID: 3, Name: "top"}}
	st := &seat{}
	is := func(state tmux.State, want tmux.Mode, talk bool) {
		t.Helper()
		mode, talks := st.mode(state)
		require.Equal(t, want, mode)
		require.Equal(t, talk, talks)
	}
	is(idle, tmux.NaturalLanguage, false)
	is(vim, tmux.Interactive, false)
	st.choose(modeTalk, vim)
	is(vim, tmux.NaturalLanguage, true)
	is(top, tmux.Interactive, false) // another program: what runs decides again
	is(vim, tmux.Interactive, false)
	st.choose(modeTalk, vim)
	is(idle, tmux.NaturalLanguage, false)
	is(vim, tmux.Interactive, false)
	st.choose(modeAlwaysTalk, vim)
	is(vim, tmux.NaturalLanguage, true)
	is(top, tmux.NaturalLanguage, true)
	st.choose(modeInteractive, idle)
	is(idle, tmux.Interactive, false)
	is(vim, tmux.Interactive, false)
	st.choose(modeTalk, idle)
	is(idle, tmux.NaturalLanguage, false)
	is(vim, tmux.Interactive, false)
}

func TestSkillsAreTold(t *testing.T) {
	t.Parallel()
	s := &Service{}
	for _, k := range []Skill{fakeSkill{"no-slash"}, fakeSkill{"/help"}, fakeSkill{"/two words"}, fakeSkill{"/Upper"}, fakeSkill{"/a/b"}, fakeSkill{}} {
		require.Error(t, s.learn([]Skill{k}), "%v", k)
	}
	require.ErrorContains(t, s.learn([]Skill{fakeSkill{"/x"}, fakeSkill{"/x"}}), "taken")
	require.NoError(t, s.learn([]Skill{fakeSkill{"/x", "/y"}}))
}

type fakeSkill []string

func (fakeSkill) Name() string              { return "fake" }
func (f fakeSkill) Triggers() []string      { return f }
func (fakeSkill) Description(string) string { return "a fake" }
func (fakeSkill) Execute(_ context.Context, in SkillContext) (SkillResult, error) {
	if len(in.Args) > 0 {
		panic("of the skill")
	}
	return SkillResult{Text: in.Trigger + " password=hunter2hunter2"}, nil
}

// What does something to the terminal is done once, also when shell-runner was started anew in between.
func TestAControlIsNotRepeatedAfterARestart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.session()
	req := &butlerv1.ControlRequest{Person: alice, Text: "/cancel", Key: "k1", Language: "en"}
	first, err := r.Control(r.ctx(), req)
	require.NoError(t, err)
	again, err := r.Control(r.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, first.GetText(), again.GetText())
	r.restart()
	_, err = r.Control(r.ctx(), req)
	require.Equal(t, fault.Conflict, fault.CodeOf(err))
	require.ErrorContains(t, err, "not known whether")
	_, err = r.Control(r.ctx(), &butlerv1.ControlRequest{Person: alice, Text: "/pwd", Key: "k2", Language: "en"})
	require.NoError(t, err)
}

// Several lines under a grant go to the program as long as it reads, and never to the shell behind it.
func TestLinesAfterTheProgramsEndAreNotPassed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.Execute(r.ctx(), r.granted("head -1 >first"))
	}()
	defer func() { <-done }()
	require.Eventually(t, func() bool {
		st := stateOf(r.ctx(), r.session())
		return st.State == tmux.Blocked
	}, time.Minute, 5*time.Millisecond)
	seen, err := r.Inspect(r.ctx(), &butlerv1.InspectRequest{Person: alice, Program: "head"})
	require.NoError(t, err)
	req := r.grant(seen.GetEffect(), seen.GetRisk())
	req.Input = "one\ntouch evil\ntouch evil"
	resp, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	<-done
	r.do("true")
	require.Equal(t, "one\n", r.file("first"), resp)
	require.NoFileExists(t, filepath.Join(r.dir, "home", "evil"))
	var logged []entry
	require.Eventually(t, func() bool {
		logged, err = r.logbook.search(r.ctx(), logQuery{Person: alice.GetId(), Words: []string{"head <"}, Limit: 5})
		return err == nil && len(logged) == 1
	}, time.Minute, 10*time.Millisecond)
	require.Contains(t, logged[0].Command, "touch evil", "what was to be passed is in the log")
	require.True(t, logged[0].Approved)
}
