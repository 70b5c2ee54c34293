package shell

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
	"github.com/stretchr/testify/require"
)

// pieces gives what the log has of a command's output.
func (r *rig) pieces(req *butlerv1.ExecuteRequest) (text string, pieces []*butlerv1.ShellOutput) {
	events, err := r.bus.Load(r.ctx(), bus.ShellStream, outputSubject("web", req), 0, 0)
	require.NoError(r.t, err)
	var b strings.Builder
	for i, ev := range events {
		e := &butlerv1.ShellOutput{}
		require.NoError(r.t, chat.Decode(ev.Data, e))
		require.EqualValues(r.t, i+1, e.GetNumber())
		require.Equal(r.t, req.GetApprovalId(), e.GetApprovalId())
		require.LessOrEqual(r.t, len(e.GetText()), maxPiece)
		pieces = append(pieces, e)
		b.WriteString(e.GetText())
	}
	return b.String(), pieces
}

// entryOf waits for a command's entry in the log.
func (r *rig) entryOf(req *butlerv1.ExecuteRequest) *butlerv1.ShellLogged {
	var found *butlerv1.ShellLogged
	require.Eventually(r.t, func() bool {
		events, err := r.bus.Load(r.ctx(), bus.ShellStream, approval.ShellSubject("web", req.GetEffect().GetSession()), 0, 0)
		if err != nil {
			return false
		}
		for _, ev := range events {
			e := &butlerv1.ShellLogged{}
			require.NoError(r.t, chat.Decode(ev.Data, e))
			if e.GetApprovalId() == req.GetApprovalId() {
				require.Nil(r.t, found, "it is logged once")
				found = e
			}
		}
		return found != nil
	}, time.Minute, 5*time.Millisecond)
	return found
}

// counted is what `seq n` prints.
func counted(n int) string {
	var b bytes.Buffer
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// patient waits for commands that print much, on a machine that has much to do.
func patient(r *rig) {
	r.settings.CommandTimeout, r.settings.FreeAfter = 110*time.Second, 110*time.Second
}

func TestLongOutputIsWholeInTheLog(t *testing.T) {
	t.Parallel()
	// Under the race detector, redaction is slower than the terminal.
	r := newRig(t, patient, func(r *rig) { r.backlog = 16 << 20 })
	const n = 731_000 // 5 MB
	req := r.granted(fmt.Sprint("seq ", n))
	resp, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	require.Contains(t, resp.GetOutcome().GetOutput(), "; all of it: butler shell log "+req.GetApprovalId()+" …]")
	streamed, _ := r.streamed(req.GetApprovalId())
	require.Contains(t, streamed, "butler shell log "+req.GetApprovalId())

	e := r.entryOf(req)
	want := counted(n)
	require.Greater(t, len(want), 5_000_000)
	text, pieces := r.pieces(req)
	require.True(t, want == text, "%d bytes, not %d", len(text), len(want))
	require.Greater(t, len(pieces), 5_000_000/maxPiece)
	var at int64
	for _, p := range pieces {
		require.Equal(t, at, p.GetOffset())
		require.False(t, p.GetResumed())
		at += int64(len(p.GetText()))
	}
	sum := e.GetOutputLog()
	require.EqualValues(t, len(pieces), sum.GetPieces())
	require.Equal(t, at, sum.GetBytes())
	require.Empty(t, sum.GetMissing())
	require.Zero(t, sum.GetBeyond()+sum.GetUnread())
	require.False(t, sum.GetInterrupted())
	require.Zero(t, r.outputQueued.Load())

	// What fits into the outcome costs nothing more, and the table has commands alone.
	short := r.granted("seq 10000")
	resp, err = r.Execute(r.ctx(), short)
	require.NoError(t, err)
	require.False(t, resp.GetOutcome().GetTruncated())
	require.Nil(t, r.entryOf(short).GetOutputLog())
	_, pieces = r.pieces(short)
	require.Empty(t, pieces)
	var listed *butlerv1.ListCommandsResponse
	require.Eventually(t, func() bool {
		listed, err = r.ListCommands(r.ctx(), &butlerv1.ListCommandsRequest{Person: 7})
		return err == nil && len(listed.GetCommands()) == 2
	}, time.Minute, 5*time.Millisecond)
	require.Equal(t, "seq 10000", listed.GetCommands()[0].GetLogged().GetCommand())
	require.Equal(t, short.GetApprovalId(), listed.GetCommands()[0].GetLogged().GetApprovalId())
	require.True(t, listed.GetCommands()[1].GetLogged().GetOutcome().GetTruncated())
	require.Empty(t, listed.GetCommands()[1].GetLogged().GetOutcome().GetOutput())
	first, err := r.ListCommands(r.ctx(), &butlerv1.ListCommandsRequest{Person: 7, Limit: 1})
	require.NoError(t, err)
	require.True(t, first.GetMore())
	rest, err := r.ListCommands(r.ctx(), &butlerv1.ListCommandsRequest{Person: 7, Limit: 1, Before: first.GetCommands()[0].GetId()})
	require.NoError(t, err)
	require.False(t, rest.GetMore())
	require.Equal(t, req.GetApprovalId(), rest.GetCommands()[0].GetLogged().GetApprovalId())
	other, err := r.ListCommands(r.ctx(), &butlerv1.ListCommandsRequest{Person: 8})
	require.NoError(t, err)
	require.Empty(t, other.GetCommands())
}

func TestWhatIsBeyondTheBoundIsTold(t *testing.T) {
	t.Parallel()
	const limit = 300 << 10
	r := newRig(t, patient, func(r *rig) { r.settings.LogOutput = limit })
	// Three bytes a character: the bound is inside one.
	req := r.granted("for i in $(seq 20000); do echo 你好，世界你好，世界; done")
	resp, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	sum := r.entryOf(req).GetOutputLog()
	text, _ := r.pieces(req)
	want := strings.Repeat("你好，世界你好，世界\n", 20000)
	same := 0
	for same < min(len(want), len(text)) && want[same] == text[same] {
		same++
	}
	require.Equal(t, len(text), same, "from %q on", text[max(0, same-20):min(len(text), same+60)])
	require.Greater(t, len(text), limit-4)
	require.LessOrEqual(t, len(text), limit)
	require.EqualValues(t, len(want)-len(text), sum.GetBeyond())
	require.EqualValues(t, limit, sum.GetLimit())
	require.Empty(t, sum.GetMissing())
	require.Contains(t, resp.GetOutcome().GetOutput(), fmt.Sprintf("the first %d bytes: butler shell log %s; %d bytes more are not in the log", limit,
		req.GetApprovalId(), sum.GetBeyond()))

	require.NoError(t, r.SetSettings(Settings{AllowedUsers: r.settings.AllowedUsers, LogOutput: -1}))
	req = r.granted("seq 20000")
	resp, err = r.Execute(r.ctx(), req)
	require.NoError(t, err)
	require.True(t, resp.GetOutcome().GetTruncated())
	require.NotContains(t, resp.GetOutcome().GetOutput(), "butler shell log", "there is none")
	require.Nil(t, r.entryOf(req).GetOutputLog())
}

// A secret of which one part stands in one piece and the rest in the next, wherever the border is.
func TestASecretBetweenTwoPieces(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	secret := "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
	line := strings.Repeat("x", 99) + "\n"
	for _, at := range []int{0, 1, 20, 39} { // how much of the secret stands before the border
		var b strings.Builder
		before := maxPiece - at - len("token ")
		b.WriteString(strings.Repeat(line, before/len(line)))
		b.WriteString(strings.Repeat("y", before%len(line)-1) + "\ntoken " + secret + "\n")
		b.WriteString(strings.Repeat(line, 10))
		require.Equal(t, maxPiece-at, strings.Index(b.String(), secret))
		name := filepath.Join(r.dir, "home", "secret")
		require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o600))
		req := r.granted("cat secret")
		_, err := r.Execute(r.ctx(), req)
		require.NoError(t, err)
		r.entryOf(req)
		text, pieces := r.pieces(req)
		require.Greater(t, len(pieces), 1)
		for n := 8; n <= len(secret); n++ {
			require.NotContains(t, text, secret[len(secret)-n:])
			require.NotContains(t, text, secret[:n])
		}
		require.Contains(t, text, "token [REDACTED")
		require.True(t, strings.HasSuffix(text, line))
	}
}

// While NATS is away a command goes on and is not held up. What the memory cannot hold of its output is missing in the
// log, and the entry says which bytes; what comes after is there again.
func TestOutputWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	listen := func(addr string) *bus.Server {
		srv, err := bus.StartServer(bus.ServerOptions{Dir: dir, Addr: addr, Sync: time.Minute, Operator: "operator-password"})
		require.NoError(t, err)
		t.Cleanup(srv.Close)
		return srv
	}
	var srv *bus.Server
	r := newRig(t, patient, func(r *rig) {
		srv = listen("127.0.0.1:0")
		r.url = strings.Replace(srv.URL(), "nats://", "nats://operator:operator-password@", 1)
		r.bus = r.connect("test")
	})
	r.maxQueued = 512 << 10
	step := filepath.Join(r.dir, "home", "step")
	req := r.granted("mkfifo step; seq 100000; read x <step; seq 300000; touch printed; read x <step; seq 100000")
	done := make(chan *butlerv1.ExecuteResponse, 1)
	go func() {
		resp, err := r.Execute(r.ctx(), req)
		if err != nil {
			t.Error(err)
		}
		done <- resp
	}()
	require.Eventually(t, func() bool {
		_, pieces := r.pieces(req)
		return len(pieces) >= 2
	}, time.Minute, 5*time.Millisecond)
	addr := strings.TrimPrefix(srv.URL(), "nats://")
	srv.Close()
	require.NoError(t, os.WriteFile(step, []byte("\n"), 0))
	out := r.job(req.GetApprovalId()).out
	first, more, last := counted(100_000), counted(300_000), counted(100_000)
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(r.dir, "home", "printed"))
		out.mu.Lock()
		defer out.mu.Unlock()
		return err == nil && out.total >= int64(len(first)+len(more))
	}, time.Minute, 5*time.Millisecond, "it is not held up")
	listen(addr)
	require.Eventually(t, func() bool { return r.outputQueued.Load() == 0 }, time.Minute, 5*time.Millisecond, "what waited is written")
	require.NoError(t, os.WriteFile(step, []byte("\n"), 0))
	resp := <-done
	require.Equal(t, approval.Ended, resp.GetStatus())

	sum := r.entryOf(req).GetOutputLog()
	_, pieces := r.pieces(req)
	whole := first + more + last
	var at int64
	gaps := sum.GetMissing()
	for _, p := range pieces {
		if len(gaps) > 0 && gaps[0].GetOffset() == at {
			at += gaps[0].GetBytes()
			gaps = gaps[1:]
		}
		require.Equal(t, at, p.GetOffset())
		require.True(t, whole[at:at+int64(len(p.GetText()))] == p.GetText())
		at += int64(len(p.GetText()))
	}
	require.Empty(t, gaps)
	require.EqualValues(t, len(whole), at, "all is there, or told to be missing")
	require.NotEmpty(t, sum.GetMissing())
	require.Positive(t, sum.GetMissing()[0].GetBytes())
	require.True(t, strings.HasSuffix(pieces[len(pieces)-1].GetText(), "\n100000\n"))
}

// A command goes on while shell-runner is restarted: the log of its output does too.
func TestTheOutputLogOutlivesTheService(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig) { r.settings.CommandTimeout = time.Second })
	step := filepath.Join(r.dir, "home", "step")
	req := r.granted("mkfifo step; seq 100000; read x <step; seq 100000")
	resp, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, "running", resp.GetStatus())
	first := counted(100_000)
	out := r.job(req.GetApprovalId()).out
	require.Eventually(t, func() bool {
		out.mu.Lock()
		defer out.mu.Unlock()
		return out.total == int64(len(first))
	}, time.Minute, 5*time.Millisecond)
	r.restart()
	text, _ := r.pieces(req)
	require.True(t, first == text, "what was printed before is there at once: %d bytes of %d", len(text), len(first))
	require.NoError(t, os.WriteFile(step, []byte("\n"), 0))
	use := r.woken(req)
	require.Equal(t, approval.Ended, use.GetStatus())
	require.Contains(t, use.GetOutcome().GetOutput(), fmt.Sprintf("[… %d bytes; all of it: butler shell log %s …]", len(first), req.GetApprovalId()))
	require.True(t, use.GetOutcome().GetTruncated())
	sum := r.entryOf(req).GetOutputLog()
	text, pieces := r.pieces(req)
	require.True(t, first+first == text)
	require.True(t, sum.GetInterrupted())
	require.EqualValues(t, len(text), sum.GetBytes())
	resumed := 0
	for _, p := range pieces {
		if p.GetResumed() {
			resumed++
			require.EqualValues(t, len(first), p.GetOffset())
		}
	}
	require.Equal(t, 1, resumed)
}

// A process that ended between the end of a command and its entry: the next one writes the entry.
func TestTheNextProcessLogsWhatWasNotLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := r.granted("true")
	j, err := r.take(r.ctx(), req, r.session(), &butlerv1.Risk{Verdict: "run"})
	require.NoError(t, err)
	end := r.use(req.GetApprovalId())
	end.Status, end.Outcome = approval.Ended, &butlerv1.CommandOutcome{StatusKnown: true, Output: "x"}
	_, err = r.appendUse(r.ctx(), end, j.seq)
	require.NoError(t, err)
	r.restart()
	require.Equal(t, "true", r.entryOf(req).GetCommand())
	require.NoFileExists(t, filepath.Join(r.openFolder(), req.GetApprovalId()))
	require.NoError(t, r.note(j)) // it ended after the entry, too
	r.restart()
	r.entryOf(req)
	require.NoFileExists(t, filepath.Join(r.openFolder(), req.GetApprovalId()))
}

// Whatever the text is: a piece fits into an event.
func TestAPieceOfAnything(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, text := range []string{"<", "\"", "\\", "&", "\u2028", "\n", "\xff", "\u0085"} {
		req := r.granted("true")
		o := r.newOutput(req)
		all := strings.Repeat(text, (2*maxPiece)/len(text))
		o.take(tmux.Output{Data: []byte(all)})
		o.close()
		<-o.logged().done
		require.Empty(t, o.summary().GetMissing(), "%q", text)
		got, pieces := r.pieces(req)
		require.NotEmpty(t, pieces)
		require.NotEmpty(t, got)
	}
}

// What the terminal printed faster than it could be read is told where it is missing, and in the entry.
func TestUnreadOutputIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := r.granted("true")
	o := r.newOutput(req)
	o.take(tmux.Output{Data: []byte(counted(20_000))})
	o.take(tmux.Output{Data: []byte("end\r\n"), Skipped: 1234})
	_, _, cut, _ := o.close()
	require.True(t, cut)
	<-o.logged().done
	require.EqualValues(t, 1234, o.summary().GetUnread())
	text, _ := r.pieces(req)
	require.Equal(t, counted(20_000)+"\n[… 1234 bytes …]\nend\n", text)
}

// A log that takes nothing drops what does not fit, names at most maxGaps places, and is never in the way.
func TestGapsOfTheOutputLog(t *testing.T) {
	t.Parallel()
	var l outputLog
	for i := range int64(3) {
		l.miss(10*i, 10)
	}
	require.Len(t, l.sum.GetMissing(), 1)
	require.EqualValues(t, 30, l.sum.GetMissing()[0].GetBytes())
	for i := range int64(200) {
		l.miss(100+10*i, 5)
	}
	require.Len(t, l.sum.GetMissing(), maxGaps)
	last := l.sum.GetMissing()[maxGaps-1]
	require.EqualValues(t, 100+10*199+5, last.GetOffset()+last.GetBytes())

	l = outputLog{s: &Service{}, queue: []piece{{5, "12345"}, {20, "12345"}}, queued: 10, buf: []byte("123"), total: 43}
	l.s.outputQueued.Add(10)
	l.miss(10, 10)
	l.miss(25, 15)
	l.giveUp()
	require.Len(t, l.sum.GetMissing(), 1, "all of it, in one place")
	require.EqualValues(t, 5, l.sum.GetMissing()[0].GetOffset())
	require.EqualValues(t, 38, l.sum.GetMissing()[0].GetBytes())
	require.Zero(t, l.s.outputQueued.Load())

	require.Equal(t, 3, wholeRunes([]byte("你好"), 5))
	require.Equal(t, 6, wholeRunes([]byte("你好"), 6))
	require.Equal(t, 0, wholeRunes([]byte("你好"), 2))
}
