package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

const (
	// maxReading bounds how many outputs are read at the same time, readPieces how many pieces of one are in memory.
	maxReading = 16
	readPieces = 8
	// entryWithin is how long the entry of a command that has ended is waited for: it is written after its output.
	entryWithin = 10 * time.Second
	entryAgain  = 100 * time.Millisecond
	// entryLate is how long after its end a command's entry may still come.
	entryLate = 5 * time.Minute
	// clockSkew is how far the clocks of a shell-runner and of NATS may be apart.
	clockSkew = time.Minute
)

// commandOutput serves GET /api/shell/commands/{approval_id}/output: all that a command printed, as text. Where some of it
// is missing, the text says so; a connection that is broken off says that it could not be read to its end.
func (s *Service) commandOutput(w http.ResponseWriter, r *http.Request, who *principal) error {
	language := s.language(r, "")
	use, err := s.useFor(r.Context(), r.PathValue("approval_id"), who, language)
	if err != nil {
		return err
	}
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	default:
		return rateLimited(time.Second, say(language, "too many outputs are being read; try again in a moment", "正在读取的输出过多，请稍后再试"))
	}
	if use.GetRequester().GetId() != who.id() {
		s.log.InfoContext(r.Context(), "the output of another's command was read", "by", who.id(), "person", use.GetRequester().GetId(), "approval", use.GetId())
	}
	o := outputReader{bus: s.bus, use: use, language: language, out: eventWriter{w: w, control: http.NewResponseController(w)}}
	err = o.copy(r.Context())
	if err == nil || !o.begun {
		return err
	}
	s.log.WarnContext(r.Context(), "the output of a command could not be read to its end", "approval", use.GetId(), "error", err)
	panic(http.ErrAbortHandler) // half an output must not look whole
}

// useFor gives how a command went whose output somebody may read: their own, and administrators anybody's.
func (s *Service) useFor(ctx context.Context, id string, who *principal, language string) (*butlerv1.ApprovalUse, error) {
	none := fault.New(fault.NotFound, "%s", say(language, "there is no such command", "没有这个命令"))
	if id = strings.ToLower(id); !approval.ValidID(id) {
		return nil, none
	}
	ev, found, err := s.bus.Last(ctx, bus.ApprovalStream, approval.RequestSubject(id))
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, none
	}
	a, _, err := decodeApproval(ev)
	if err != nil || a == nil || a.GetRequester().GetId() != who.id() && !who.admin() || a.GetEffect().GetHost() == "" {
		return nil, none
	}
	ev, found, err = s.bus.Last(ctx, bus.ApprovalStream, approval.UseSubject(a.GetEffect().GetHost(), id))
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fault.New(fault.NotFound, "%s", say(language, "it has not run", "该命令没有执行"))
	}
	_, use, err := decodeApproval(ev)
	if err != nil || use == nil || use.GetRequester().GetId() != a.GetRequester().GetId() {
		return nil, none
	}
	return use, nil
}

// outputReader writes the output of one command.
type outputReader struct {
	bus      *bus.Bus
	use      *butlerv1.ApprovalUse
	language string
	out      eventWriter
	begun    bool

	at    int64  // bytes of text so far, what is missing included
	seq   uint64 // of the last piece
	last  byte   // that was written
	entry *butlerv1.ShellLogged
	look  uint64 // where the entry is looked for
}

// copy reads the pieces until the entry of the command says that there are no more, or, while it runs, as far as there are
// any.
func (o *outputReader) copy(ctx context.Context) error {
	first, found, err := o.bus.FirstSince(ctx, bus.ShellStream, o.use.GetTakenAt().AsTime().Add(-clockSkew))
	if err != nil {
		return err
	}
	if found {
		o.seq = first.Seq - 1
	}
	o.look = o.seq
	pieces := 0
	outcome := o.use.GetOutcome()
	running := o.use.GetStatus() == approval.Taken
	for began := time.Now(); found; {
		events, err := o.bus.Load(ctx, bus.ShellStream, approval.OutputSubject(o.use.GetHost(), o.use.GetSession(), o.use.GetId()), o.seq, readPieces)
		if err != nil {
			return err
		}
		for _, ev := range events {
			if err := o.piece(ev); err != nil {
				return err
			}
		}
		pieces += len(events)
		switch {
		case len(events) > 0:
			continue
		case pieces == 0 && !outcome.GetTruncated():
			return o.short()
		case o.entry != nil, running:
			return o.end(pieces > 0)
		}
		if err := o.find(ctx); err != nil {
			return err
		}
		if o.entry != nil {
			continue // what was written since comes before it
		}
		if time.Since(began) > entryWithin || time.Since(o.use.GetEndedAt().AsTime()) > entryLate {
			return o.end(pieces > 0)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(entryAgain):
		}
	}
	return o.short()
}

// piece writes a piece, and before it what has to be said.
func (o *outputReader) piece(ev bus.Stored) error {
	var p butlerv1.ShellOutput
	o.seq, o.look = ev.Seq, max(o.look, ev.Seq)
	if ev.Type != approval.TypeOutput || chat.Decode(ev.Data, &p) != nil || p.GetApprovalId() != o.use.GetId() || p.GetOffset() < o.at {
		return o.note("a piece of the log cannot be read and is left out", "日志中有一段无法读取，已略过")
	}
	if p.GetOffset() > o.at {
		if err := o.missing(p.GetOffset() - o.at); err != nil {
			return err
		}
	}
	if p.GetResumed() {
		if err := o.note("shell-runner was started anew here; what it had not logged by then may be missing",
			"shell-runner 在此处重新启动，当时尚未记录的输出可能缺失"); err != nil {
			return err
		}
	}
	o.at = p.GetOffset() + int64(len(p.GetText()))
	return o.text(p.GetText())
}

func (o *outputReader) missing(n int64) error {
	return o.note(fmt.Sprintf("%d bytes are missing: the log did not answer, or could not keep up", n), fmt.Sprintf("此处缺失 %d 字节：日志没有响应或来不及写入", n))
}

// find looks for the command's entry in the log.
func (o *outputReader) find(ctx context.Context) error {
	const page = 64
	for {
		events, err := o.bus.Load(ctx, bus.ShellStream, approval.ShellSubject(o.use.GetHost(), o.use.GetSession()), o.look, page)
		if err != nil {
			return err
		}
		for _, ev := range events {
			o.look = ev.Seq
			e := &butlerv1.ShellLogged{}
			if ev.Type == approval.TypeShell && chat.Decode(ev.Data, e) == nil && e.GetApprovalId() == o.use.GetId() {
				o.entry = e
				return nil
			}
		}
		if len(events) < page {
			return nil
		}
	}
}

// short writes an output of which the outcome has all, or all that there is.
func (o *outputReader) short() error {
	if text := o.use.GetOutcome().GetOutput(); text != "" {
		if err := o.text(text + "\n"); err != nil { // the outcome has no empty lines at its end
			return err
		}
	}
	switch {
	case o.use.GetStatus() == approval.Taken:
		return o.note("it runs, and printed little so far: that is told when it ends", "仍在运行，目前输出很少，结束后可查看")
	case o.use.GetStatus() == approval.UseRefused:
		return o.note("it was not run: "+o.use.GetReason(), "未执行："+o.use.GetReason())
	case o.use.GetStatus() == approval.Unknown:
		return o.note("what became of it is not known: "+o.use.GetReason(), "结果未知："+o.use.GetReason())
	}
	return o.flush()
}

// end says what has to be said after the last piece.
func (o *outputReader) end(pieces bool) error {
	if !pieces { // long, and not logged in pieces
		if err := o.short(); err != nil {
			return err
		}
		return o.note("the log has no more of it", "日志中没有更多内容")
	}
	long := o.entry.GetOutputLog()
	switch {
	case o.use.GetStatus() == approval.Taken:
		return o.note("it goes on; this is what it printed so far", "仍在运行，以上是目前的输出")
	case long == nil:
		return o.note("the log does not say that this is all", "日志没有说明输出到此为止")
	}
	for _, g := range long.GetMissing() {
		if g.GetOffset() >= o.at {
			o.at = g.GetOffset() + g.GetBytes()
			if err := o.missing(g.GetBytes()); err != nil {
				return err
			}
		}
	}
	if n := long.GetBeyond(); n > 0 {
		if err := o.note(fmt.Sprintf("%d bytes more are not in the log: it keeps %d of one command (BUTLER_SHELL_LOG_OUTPUT)", n, long.GetLimit()),
			fmt.Sprintf("另有 %d 字节不在日志中：每条命令最多记录 %d 字节（BUTLER_SHELL_LOG_OUTPUT）", n, long.GetLimit())); err != nil {
			return err
		}
	}
	if long.GetInterrupted() {
		if err := o.note("shell-runner was started anew while it ran; what it had not logged by then may be missing",
			"运行期间 shell-runner 曾重新启动，当时尚未记录的输出可能缺失"); err != nil {
			return err
		}
	}
	return o.flush()
}

// note writes a line about the output, as those in cut output are.
func (o *outputReader) note(en, zh string) error {
	line := "[… " + say(o.language, en, zh) + " …]\n"
	if o.last != 0 && o.last != '\n' {
		line = "\n" + line
	}
	return o.text(line)
}

func (o *outputReader) flush() error { return o.text("") }

func (o *outputReader) text(text string) error {
	if !o.begun {
		o.begun = true
		o.out.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		o.out.w.Header().Set("Cache-Control", "no-store")
		o.out.w.Header().Set("X-Accel-Buffering", "no")
	}
	if text != "" {
		o.last = text[len(text)-1]
	}
	return o.out.send([]byte(text), true)
}
