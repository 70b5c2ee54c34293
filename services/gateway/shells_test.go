package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// fakeShells is the shell-runner of one host without a network.
type fakeShells struct {
	butlerv1.ShellServiceClient // what is not here is not called
	host                        string

	mu     sync.Mutex
	down   bool
	shells []*butlerv1.ShellState
	log    []*butlerv1.LoggedCommand // newest first
	closed []*butlerv1.CloseShellRequest
}

// withShells gives a gateway the shell-runners of some hosts.
func withShells(all ...*fakeShells) option {
	return func(d *Deps) {
		d.Shells = map[string]butlerv1.ShellServiceClient{}
		for _, f := range all {
			d.Shells[f.host] = f
		}
	}
}

func (f *fakeShells) ListShells(_ context.Context, in *butlerv1.ListShellsRequest, _ ...grpc.CallOption) (*butlerv1.ListShellsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, errors.New("connection refused")
	}
	out := &butlerv1.ListShellsResponse{}
	for _, st := range f.shells {
		if in.GetPerson() == 0 || in.GetPerson() == st.GetPerson() {
			out.Shells = append(out.Shells, st)
		}
	}
	return out, nil
}

func (f *fakeShells) CloseShell(_ context.Context, in *butlerv1.CloseShellRequest, _ ...grpc.CallOption) (*butlerv1.CloseShellResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, errors.New("connection refused")
	}
	f.closed = append(f.closed, in)
	var left []*butlerv1.ShellState
	for _, st := range f.shells {
		if st.GetPerson() != in.GetPerson() {
			left = append(left, st)
		}
	}
	f.shells = left
	return &butlerv1.CloseShellResponse{}, nil
}

func (f *fakeShells) ListCommands(_ context.Context, in *butlerv1.ListCommandsRequest, _ ...grpc.CallOption) (*butlerv1.ListCommandsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, errors.New("connection refused")
	}
	out := &butlerv1.ListCommandsResponse{}
	for _, c := range f.log {
		switch {
		case c.GetLogged().GetPerson().GetId() != in.GetPerson() || in.GetBefore() > 0 && c.GetId() >= in.GetBefore():
		case len(out.Commands) == int(in.GetLimit()):
			out.More = true
		default:
			out.Commands = append(out.Commands, c)
		}
	}
	return out, nil
}

func (f *fakeShells) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func shellOf(host string, person int64) *butlerv1.ShellState {
	return &butlerv1.ShellState{
		Name: fmt.Sprint("butler_", person), Session: "s-1", Host: host, Person: person, Mode: "nl", State: "running", Dir: "/srv",
		Program: "sleep", ActiveAt: timestamppb.Now(),
		Commands: []*butlerv1.RunningCommand{{ApprovalId: "6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f57", Command: "sleep 100", BeganAt: timestamppb.Now()}},
	}
}

type shellList struct {
	Shells []shellJSON
	Silent []string `json:"unreachable"`
}

func TestShellsAreListedAndClosed(t *testing.T) {
	t.Parallel()
	web1, web2 := &fakeShells{host: "web1"}, &fakeShells{host: "web2"}
	r := newRig(t, withShells(web1, web2))
	zh, bob := r.member("王小明"), r.member("bob")
	list := func(u *user, query string) (out shellList) {
		res := r.call(u, "GET", "/api/shells"+query, nil)
		require.Equal(t, 200, res.status, res.text())
		res.into(&out)
		return out
	}
	require.Empty(t, list(zh, "").Shells)
	require.Contains(t, r.call(zh, "GET", "/api/shells", nil).text(), `"shells":[]`)
	web1.shells = []*butlerv1.ShellState{shellOf("web1", bob.id), shellOf("web1", zh.id)}
	web2.shells = []*butlerv1.ShellState{shellOf("web2", zh.id)}

	mine := list(zh, "")
	require.Len(t, mine.Shells, 2)
	require.Equal(t, "王小明", mine.Shells[0].Person.Name)
	require.Equal(t, "web1", mine.Shells[0].Host)
	require.Equal(t, "sleep 100", mine.Shells[0].Commands[0].Command)
	require.Empty(t, mine.Silent)
	require.Len(t, list(zh, fmt.Sprint("?person=", zh.id)).Shells, 2)
	require.Len(t, list(r.admin, "?all=true").Shells, 3)
	require.Len(t, list(r.admin, fmt.Sprint("?person=", bob.id)).Shells, 1)
	require.Empty(t, list(r.admin, "").Shells, "an administrator's own")
	for _, query := range []string{"?all=true", fmt.Sprint("?person=", bob.id)} {
		require.Equal(t, 403, r.call(zh, "GET", "/api/shells"+query, nil).status)
	}
	for _, query := range []string{"?all=yes", "?person=bob", "?person=-1"} {
		require.Equal(t, 400, r.call(r.admin, "GET", "/api/shells"+query, nil).status)
	}

	// One host does not answer: what is known is shown, and said to be not all.
	web2.setDown(true)
	part := list(zh, "")
	require.Len(t, part.Shells, 1)
	require.Equal(t, []string{"web2"}, part.Silent)
	require.Equal(t, 503, r.call(zh, "DELETE", fmt.Sprint("/api/shells/web2/", zh.id), nil).status)
	web1.setDown(true)
	require.Equal(t, 503, r.call(zh, "GET", "/api/shells", nil).status)
	web1.setDown(false)
	web2.setDown(false)

	path := fmt.Sprint("/api/shells/web1/", zh.id)
	require.Equal(t, 404, r.call(bob, "DELETE", path, nil).status)
	require.Equal(t, 404, r.call(zh, "DELETE", fmt.Sprint("/api/shells/elsewhere/", zh.id), nil).status)
	require.Equal(t, 404, r.call(zh, "DELETE", "/api/shells/web1/x", nil).status)
	require.Contains(t, r.call(r.admin, "DELETE", "/api/shells/elsewhere/1", nil).text(), "web1")
	require.Empty(t, web1.closed)
	for range 2 { // the second click
		require.Equal(t, http.StatusNoContent, r.call(zh, "DELETE", path, nil).status)
	}
	require.Equal(t, http.StatusNoContent, r.call(r.admin, "DELETE", fmt.Sprint("/api/shells/web1/", bob.id), nil).status)
	require.Len(t, web1.closed, 3)
	require.Equal(t, zh.id, web1.closed[0].GetBy().GetId())
	require.Equal(t, adminName, web1.closed[2].GetBy().GetName())
	require.Empty(t, web1.shells)
	require.Len(t, list(zh, "").Shells, 1, "that of the other host lives")

	none := newRig(t) // a gateway without shell-runners
	require.Contains(t, none.call(none.admin, "GET", "/api/shells", nil).text(), `"shells":[]`)
	require.Equal(t, "[]", none.call(none.admin, "GET", "/api/shell/commands", nil).text())
	require.Equal(t, 404, none.call(none.admin, "DELETE", "/api/shells/web1/1", nil).status)
}

func logged(id, person int64, host, command string) *butlerv1.LoggedCommand {
	return &butlerv1.LoggedCommand{Id: id, Host: host, Logged: &butlerv1.ShellLogged{
		Person: &butlerv1.Actor{Id: person}, Command: command, Status: approval.Ended, Dir: "/srv", ExecutedAt: timestamppb.Now(),
		ApprovalId: "6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f57", Outcome: &butlerv1.CommandOutcome{StatusKnown: true, ExitStatus: 3, Truncated: true},
	}}
}

func TestTheLogOfCommands(t *testing.T) {
	t.Parallel()
	web1, web2 := &fakeShells{host: "web1"}, &fakeShells{host: "web2"}
	r := newRig(t, withShells(web1, web2))
	bob, eve := r.member("bob"), r.member("eve")
	// Both have the same table; one has read a little less of the log.
	for i := range int64(10) {
		c := logged(10-i, bob.id, "web1", fmt.Sprint("echo ", 10-i))
		web1.log = append(web1.log, c)
		if i > 2 {
			web2.log = append(web2.log, proto.CloneOf(c))
		}
	}
	var ids []int64
	for path := "/api/shell/commands?limit=4"; path != ""; {
		res := r.call(bob, "GET", path, nil)
		require.Equal(t, 200, res.status, res.text())
		var page []commandJSON
		res.into(&page)
		for _, c := range page {
			ids = append(ids, c.ID)
			require.EqualValues(t, 3, *c.ExitStatus)
			require.True(t, c.Truncated)
		}
		path = ""
		if next := res.header.Get("X-Next-Before"); next != "" {
			path = "/api/shell/commands?limit=4&before=" + next
		}
	}
	require.Equal(t, []int64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, ids)
	require.Equal(t, "[]", r.call(eve, "GET", "/api/shell/commands", nil).text())
	require.Equal(t, 403, r.call(eve, "GET", fmt.Sprint("/api/shell/commands?person=", bob.id), nil).status)
	require.Contains(t, r.call(r.admin, "GET", fmt.Sprint("/api/shell/commands?person=", bob.id), nil).text(), "echo 10")
	for _, query := range []string{"?limit=0", "?limit=201", "?before=x", "?person=x"} {
		require.Equal(t, 400, r.call(r.admin, "GET", "/api/shell/commands"+query, nil).status, query)
	}
	web2.setDown(true)
	res := r.call(bob, "GET", "/api/shell/commands", nil)
	require.Equal(t, 200, res.status)
	require.Equal(t, "true", res.header.Get("X-Butler-Stale"))
	web1.setDown(true)
	require.Equal(t, 503, r.call(bob, "GET", "/api/shell/commands", nil).status)
}

// ran is a command in the log, as approval and shell-runner write it.
type ran struct {
	tb  testing.TB
	bus *bus.Bus
	id  string
	who int64
	seq uint64 // of the last piece
	use uint64
	n   int64
	at  int64
}

func (r *rig) run(u *user, f *fakeApproval) *ran {
	a := f.request(u, fmt.Sprint("A", time.Now().UnixNano()%1000), func(a *butlerv1.Approval) { a.Status = approval.Approved })
	c := &ran{tb: r.tb, bus: r.bus, id: a.GetId(), who: u.id}
	c.used(approval.Taken, nil)
	return c
}

func (c *ran) used(status string, o *butlerv1.CommandOutcome) {
	c.tb.Helper()
	u := &butlerv1.ApprovalUse{
		Id: c.id, Status: status, Host: "host1", Session: "s-1", TakenAt: timestamppb.Now(), Requester: &butlerv1.Actor{Id: c.who}, Outcome: o,
		Reason: "the session was lost",
	}
	if status != approval.Taken {
		u.EndedAt = timestamppb.Now()
	}
	c.use = c.put(approval.TypeUse, approval.UseSubject("host1", c.id), u, c.use)
}

func (c *ran) put(typ, subject string, m proto.Message, after uint64) uint64 {
	c.tb.Helper()
	data, err := chat.Encode(m)
	require.NoError(c.tb, err)
	seq, err := c.bus.Append(c.tb.Context(), bus.NewEvent(typ, "/test/shell", subject, data), bus.Expect{Filter: subject, Seq: after})
	require.NoError(c.tb, err)
	return seq
}

// piece appends a piece after lost bytes that are missing.
func (c *ran) piece(lost int64, text string, change ...func(*butlerv1.ShellOutput)) {
	c.tb.Helper()
	c.n++
	c.at += lost
	p := &butlerv1.ShellOutput{ApprovalId: c.id, Number: c.n, Offset: c.at, Text: text}
	for _, f := range change {
		f(p)
	}
	c.at += int64(len(text))
	c.seq = c.put(approval.TypeOutput, approval.OutputSubject("host1", "s-1", c.id), p, c.seq)
}

// entry appends the entry of the log.
func (c *ran) entry(sum *butlerv1.OutputLog) {
	c.tb.Helper()
	data, err := chat.Encode(&butlerv1.ShellLogged{ApprovalId: c.id, OutputLog: sum})
	require.NoError(c.tb, err)
	_, err = c.bus.Publish(c.tb.Context(), bus.ShellStream, bus.NewEvent(approval.TypeShell, "/test/shell", approval.ShellSubject("host1", "s-1"), data))
	require.NoError(c.tb, err)
}

func TestTheOutputOfACommand(t *testing.T) {
	t.Parallel()
	f := &fakeApproval{tb: t}
	r := newRig(t, withApproval(f))
	require.NoError(t, r.bus.Ensure(t.Context(), bus.ShellStream))
	bob, eve := r.member("bob"), r.member("eve")
	output := func(u *user, c *ran, headers ...header) *response {
		return r.call(u, "GET", "/api/shell/commands/"+c.id+"/output", nil, headers...)
	}
	text := func(c *ran) string {
		t.Helper()
		res := output(bob, c)
		require.Equal(t, 200, res.status, res.text())
		require.Equal(t, "text/plain; charset=utf-8", res.header.Get("Content-Type"))
		return res.text()
	}
	cut := &butlerv1.CommandOutcome{Output: "a\n[… 5 bytes …]\nz", Truncated: true}

	// Whole: many pieces, each its text.
	whole := r.run(bob, f)
	var want strings.Builder
	for i := range 30 {
		piece := fmt.Sprintf("%d 你好\n", i) + strings.Repeat("x", 200<<10)
		whole.piece(0, piece)
		want.WriteString(piece)
	}
	running := text(whole)
	require.True(t, strings.HasPrefix(running, want.String()))
	require.Contains(t, running, "it goes on; this is what it printed so far")
	other := r.run(bob, f) // in the same session
	other.used(approval.Ended, &butlerv1.CommandOutcome{Output: "short"})
	other.entry(nil)
	whole.used(approval.Ended, cut)
	whole.entry(&butlerv1.OutputLog{Pieces: whole.n, Bytes: whole.at})
	require.True(t, want.String() == text(whole))
	require.Equal(t, "short\n", text(other))

	// Others: a member, an administrator, nobody.
	require.Equal(t, 404, output(eve, whole).status)
	require.NotContains(t, output(eve, whole).text(), "你好")
	require.True(t, want.String() == output(r.admin, whole).text())
	require.Equal(t, 401, output(nil, whole).status)
	for _, id := range []string{"x", "%2e%2e", "6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f57"} {
		require.Equal(t, 404, r.call(bob, "GET", "/api/shell/commands/"+id+"/output", nil).status)
	}
	pending := f.request(bob, "K7QF")
	require.Contains(t, r.call(bob, "GET", "/api/shell/commands/"+pending.GetId()+"/output", nil).text(), "has not run")

	// What is missing is told: between pieces, at the end, beyond the bound, by a restart.
	holes := r.run(bob, f)
	holes.piece(0, "one")
	holes.piece(7, "two\n")
	holes.piece(0, "three\n", func(p *butlerv1.ShellOutput) { p.Resumed = true })
	holes.used(approval.Ended, cut)
	holes.entry(&butlerv1.OutputLog{
		Pieces: 3, Beyond: 99, Limit: 100, Missing: []*butlerv1.OutputGap{{Offset: 3, Bytes: 7}, {Offset: holes.at, Bytes: 11}},
	})
	require.Equal(t, "one\n[… 7 bytes are missing: the log did not answer, or could not keep up …]\ntwo\n"+
		"[… shell-runner was started anew here; what it had not logged by then may be missing …]\nthree\n"+
		"[… 11 bytes are missing: the log did not answer, or could not keep up …]\n"+
		"[… 99 bytes more are not in the log: it keeps 100 of one command (BUTLER_SHELL_LOG_OUTPUT) …]\n", text(holes))
	require.Contains(t, output(bob, holes, header{"Accept-Language", "zh"}).text(), "缺失 7 字节")

	// The entry comes a little after the end.
	late := r.run(bob, f)
	late.piece(0, "first\n")
	late.used(approval.Ended, cut)
	answered := make(chan string, 1)
	go func() { answered <- output(bob, late).text() }()
	late.piece(0, "last\n")
	late.entry(&butlerv1.OutputLog{Pieces: 2, Bytes: late.at})
	require.Equal(t, "first\nlast\n", <-answered)

	// Long, and not logged in pieces.
	off := r.run(bob, f)
	off.used(approval.Ended, cut)
	off.entry(nil)
	require.Equal(t, cut.GetOutput()+"\n[… the log has no more of it …]\n", text(off))
	// No output, and no outcome.
	quiet := r.run(bob, f)
	require.Contains(t, text(quiet), "it runs, and printed little so far")
	quiet.used(approval.Ended, &butlerv1.CommandOutcome{})
	require.Empty(t, text(quiet))
	lost := r.run(bob, f)
	lost.used(approval.Unknown, nil)
	require.Contains(t, text(lost), "not known: the session was lost")
}
