package shell

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/redact"
	"github.com/butlerhub/butler/pkg/storage"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

//go:embed migrations/*.sql
var migrations embed.FS

const logRetry = 2 * time.Second

// logbook is the shell log in SQL: a read model of the stream SHELL, filled by any shell-runner.
type logbook struct {
	db    *storage.DB
	log   *slog.Logger
	ready atomic.Bool
}

func newLogbook(db *storage.DB, log *slog.Logger) (*logbook, error) {
	return &logbook{db: db, log: log}, nil
}

// run fills the table until ctx ends. While SQL is away the events wait in the stream.
func (l *logbook) run(ctx context.Context, b *bus.Bus) error {
	if l.db == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	own, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	for {
		if err = l.db.Migrate(ctx, "shell", own); err == nil {
			break
		}
		l.log.WarnContext(ctx, "the shell log waits for SQL", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(logRetry):
		}
	}
	l.ready.Store(true)
	return b.Consume(ctx, bus.Consume{Stream: bus.ShellStream, Durable: bus.ShellLogConsumer, Batch: 100, Linger: 20 * time.Millisecond}, l.project)
}

func (l *logbook) project(ctx context.Context, events []bus.Stored) error {
	return l.db.Write(ctx, func(tx *storage.Tx) error {
		for _, ev := range events {
			var e butlerv1.ShellLogged
			if ev.Type != approval.TypeShell || chat.Decode(ev.Data, &e) != nil {
				l.log.WarnContext(ctx, "an event that cannot be read", "stream", ev.Stream, "seq", ev.Seq)
				continue
			}
			host := ""
			if parts := strings.Split(ev.Subject, "."); len(parts) == 4 {
				host = parts[2]
			}
			o := e.GetOutcome()
			var status any
			if o.GetStatusKnown() {
				status = int64(o.GetExitStatus())
			}
			_, err := tx.Exec(`INSERT INTO shell_logs (id, session_id, user_id, command, output, executed_at, approved, approval_id, mode,
				dangerous, host, status, exit_status, cwd, duration_ms, approver, channel, truncated)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18) ON CONFLICT (id) DO NOTHING`,
				int64(ev.Seq), e.GetSessionId(), strconv.FormatInt(e.GetPerson().GetId(), 10), e.GetCommand(), o.GetOutput(),
				e.GetExecutedAt().AsTime().UnixMilli(), e.GetApproved(), e.GetApprovalId(), e.GetMode(), e.GetDangerous(), host,
				e.GetStatus(), status, e.GetDir(), o.GetDurationMs(), e.GetApprover(), e.GetChannel(), o.GetTruncated())
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// entry is a row of the log, for people.
type entry struct {
	ID       int64
	Session  string
	Command  string
	Output   string
	At       time.Time
	Host     string
	Status   string
	Exit     *int64
	Dir      string
	Duration time.Duration
	Approver string
	Approved bool
}

// logQuery selects rows of one person.
type logQuery struct {
	Person int64
	Words  []string // all must occur in command or output
	Status string   // ended, refused, unknown; ok and failed: ended with status 0, with another
	Since  time.Time
	Limit  int
}

// search gives the newest rows that fit, newest first.
func (l *logbook) search(ctx context.Context, q logQuery) ([]entry, error) {
	where, args := "user_id = $1 AND executed_at >= $2", []any{strconv.FormatInt(q.Person, 10), q.Since.UnixMilli()}
	add := func(condition string, v any) {
		args = append(args, v)
		where += " AND " + strings.ReplaceAll(condition, "?", "$"+strconv.Itoa(len(args)))
	}
	switch q.Status {
	case "":
	case "ok":
		where += " AND status = 'ended' AND exit_status = 0"
	case "failed":
		where += " AND status = 'ended' AND exit_status <> 0"
	default:
		add("status = ?", q.Status)
	}
	escape := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)
	for _, w := range q.Words {
		add(`(LOWER(command) LIKE ? ESCAPE '\' OR LOWER(output) LIKE ? ESCAPE '\')`, "%"+escape.Replace(strings.ToLower(w))+"%")
	}
	args = append(args, q.Limit)
	return l.read(ctx, where+` ORDER BY id DESC LIMIT $`+strconv.Itoa(len(args)), args...)
}

// entry gives one row of a person.
func (l *logbook) entry(ctx context.Context, person, id int64) (e entry, found bool, err error) {
	rows, err := l.read(ctx, "user_id = $1 AND id = $2", strconv.FormatInt(person, 10), id)
	if err != nil || len(rows) == 0 {
		return entry{}, false, err
	}
	return rows[0], true, nil
}

func (l *logbook) read(ctx context.Context, where string, args ...any) (out []entry, err error) {
	if l.db == nil || !l.ready.Load() {
		return nil, fault.New(fault.Unavailable, "the shell log cannot be searched now: SQL does not answer")
	}
	err = l.db.Read(ctx, func(tx *storage.Tx) (err error) {
		out, err = storage.Collect(tx, func(row storage.Row) (e entry, err error) {
			var at, ms int64
			err = row.Scan(&e.ID, &e.Session, &e.Command, &e.Output, &at, &e.Host, &e.Status, &e.Exit, &e.Dir, &ms, &e.Approver, &e.Approved)
			e.At, e.Duration = time.UnixMilli(at), time.Duration(ms)*time.Millisecond
			return e, err
		}, `SELECT id, session_id, command, output, executed_at, host, status, exit_status, cwd, duration_ms, approver, approved
			FROM shell_logs WHERE `+where, args...)
		return err
	})
	return out, err
}

// logCommand appends what was executed to the stream SHELL, redacted, and says whether it stands there. long is of a long
// output.
func (s *Service) logCommand(ctx context.Context, j *job, end *butlerv1.ApprovalUse, long *butlerv1.OutputLog) bool {
	e := &butlerv1.ShellLogged{
		SessionId: end.GetSession(), Person: end.GetRequester(), Outcome: proto.Clone(end.GetOutcome()).(*butlerv1.CommandOutcome),
		ExecutedAt: timestamppb.New(end.GetTakenAt().AsTime()), ApprovalId: end.GetId(), Mode: "nl", Status: end.GetStatus(), Dir: j.dir,
		Dangerous: j.risk.GetVerdict() != "run", OutputLog: long,
	}
	e.Command, _ = s.redactor.String(j.req.GetEffect().GetCommand())
	if j.req.GetEffect().GetKind() == approval.KindInput {
		e.Mode = "interactive"
	}
	// Who approved it stands in the approval; without it the row says nothing of that.
	if ev, found, err := s.bus.Last(ctx, bus.ApprovalStream, approval.RequestSubject(end.GetId())); err == nil && found {
		var a butlerv1.Approval
		if chat.Decode(ev.Data, &a) == nil && a.GetStatus() == approval.Approved {
			e.Approved, e.Channel = true, a.GetChannel()
			var names []string
			for _, d := range a.GetDecisions() {
				if d.GetApproved() {
					names = append(names, d.GetBy().GetName())
				}
			}
			e.Approver = strings.Join(names, ", ")
		}
	}
	data, err := chat.Encode(e)
	if err == nil {
		ev := bus.NewEvent(approval.TypeShell, s.bus.Source(), approval.ShellSubject(s.host, end.GetSession()), data)
		ev.ID = "shell-" + end.GetId()
		_, err = s.bus.Publish(ctx, bus.ShellStream, ev)
	}
	if err != nil {
		s.log.ErrorContext(ctx, "a command could not be logged", "approval", end.GetId(), "error", err)
	}
	return err == nil
}

// clockSkew is how far the clock of NATS may be behind ours.
const clockSkew = time.Minute

// logAnew logs a use that an earlier process ended without having logged it, when there is a note of it.
func (s *Service) logAnew(ctx context.Context, id string) error {
	ev, found, err := s.bus.Last(ctx, bus.ApprovalStream, approval.UseSubject(s.host, id))
	if err != nil || !found {
		return err
	}
	var use butlerv1.ApprovalUse
	if err := chat.Decode(ev.Data, &use); err != nil {
		return fault.Wrap(err, fault.Internal, "the use of the approval %s cannot be read", id)
	}
	if use.GetStatus() == approval.Taken {
		return nil
	}
	first, found, err := s.bus.FirstSince(ctx, bus.ShellStream, use.GetTakenAt().AsTime().Add(-clockSkew))
	if err != nil {
		return err
	}
	if found {
		entries, err := s.bus.Load(ctx, bus.ShellStream, approval.ShellSubject(s.host, use.GetSession()), first.Seq-1, 0)
		if err != nil {
			return err
		}
		for _, ev := range entries {
			var e butlerv1.ShellLogged
			if chat.Decode(ev.Data, &e) == nil && e.GetApprovalId() == id {
				return nil
			}
		}
	}
	req, risk := s.notedRequest(id)
	if req == nil {
		return nil
	}
	last, _, err := s.lastOutput(ctx, req)
	if err != nil {
		return err
	}
	var long *butlerv1.OutputLog
	if last != nil {
		long = &butlerv1.OutputLog{
			Pieces: last.GetNumber(), Bytes: last.GetOffset() + int64(len(last.GetText())), Limit: s.settings.Load().LogOutput, Interrupted: true,
		}
	}
	s.logCommand(ctx, &job{id: id, req: req, risk: risk, dir: req.GetEffect().GetDir()}, &use, long)
	return nil
}

// lastOutput gives the last piece of a command's output that stands in the log; nil when there is none.
func (s *Service) lastOutput(ctx context.Context, req *butlerv1.ExecuteRequest) (last *butlerv1.ShellOutput, seq uint64, err error) {
	ev, found, err := s.bus.Last(ctx, bus.ShellStream, outputSubject(s.host, req))
	if err != nil || !found {
		return nil, 0, err
	}
	last = &butlerv1.ShellOutput{}
	if err := chat.Decode(ev.Data, last); err != nil || ev.Type != approval.TypeOutput {
		return nil, 0, fault.New(fault.Internal, "the logged output of %s cannot be read", req.GetApprovalId())
	}
	return last, ev.Seq, nil
}

// page gives a person's newest entries before the one with the id given (0: the newest of all), newest first and without
// output, and whether there are older ones.
func (l *logbook) page(ctx context.Context, person, before int64, limit int) (out []*butlerv1.LoggedCommand, more bool, err error) {
	if l.db == nil || !l.ready.Load() {
		return nil, false, fault.New(fault.Unavailable, "the log of commands cannot be read now: SQL does not answer")
	}
	if before <= 0 {
		before = math.MaxInt64
	}
	err = l.db.Read(ctx, func(tx *storage.Tx) (err error) {
		out, err = storage.Collect(tx, func(row storage.Row) (*butlerv1.LoggedCommand, error) {
			e := &butlerv1.ShellLogged{Person: &butlerv1.Actor{Id: person}, Outcome: &butlerv1.CommandOutcome{}}
			c := &butlerv1.LoggedCommand{Logged: e}
			var at int64
			var exit *int64
			err := row.Scan(&c.Id, &e.SessionId, &e.Command, &at, &c.Host, &e.Status, &exit, &e.Dir, &e.Outcome.DurationMs, &e.Approver,
				&e.Approved, &e.ApprovalId, &e.Mode, &e.Dangerous, &e.Channel, &e.Outcome.Truncated)
			e.ExecutedAt = timestamppb.New(time.UnixMilli(at))
			if exit != nil {
				e.Outcome.StatusKnown, e.Outcome.ExitStatus = true, int32(*exit) //nolint:gosec // it was one
			}
			return c, err
		}, `SELECT id, session_id, command, executed_at, host, status, exit_status, cwd, duration_ms, approver, approved, approval_id,
			mode, dangerous, channel, truncated FROM shell_logs WHERE user_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3`,
			strconv.FormatInt(person, 10), before, limit+1)
		return err
	})
	if more = len(out) > limit; more {
		out = out[:limit]
	}
	return out, more, err
}

const (
	listedCommands    = 50
	maxListedCommands = 200
)

// ListCommands gives a page of a person's log.
func (s *Service) ListCommands(ctx context.Context, req *butlerv1.ListCommandsRequest) (*butlerv1.ListCommandsResponse, error) {
	limit := int(req.GetLimit())
	if limit <= 0 {
		limit = listedCommands
	}
	commands, more, err := s.logbook.page(ctx, req.GetPerson(), req.GetBefore(), min(limit, maxListedCommands))
	if err != nil {
		return nil, err
	}
	return &butlerv1.ListCommandsResponse{Commands: commands, More: more}, nil
}

// logClosed notes in the log that somebody closed a session.
func (s *Service) logClosed(ctx context.Context, person int64, session string, by *butlerv1.Actor) {
	data, err := chat.Encode(&butlerv1.ShellLogged{
		SessionId: session, Person: &butlerv1.Actor{Id: person}, Command: fmt.Sprintf("(closed by %s)", cmp.Or(by.GetName(), "an operator")),
		ExecutedAt: timestamppb.New(s.now()), Mode: "closed", Status: approval.Ended,
	})
	if err == nil {
		_, err = s.bus.Publish(ctx, bus.ShellStream,
			bus.NewEvent(approval.TypeShell, s.bus.Source(), approval.ShellSubject(s.host, session), data))
	}
	if err != nil {
		s.log.WarnContext(ctx, "the closing of a shell could not be logged", "person", person, "error", err)
	}
}

// logInput appends what is about to be passed to a program to the stream SHELL, redacted; a password is not told. What
// cannot be logged is not passed.
func (s *Service) logInput(ctx context.Context, seat *seat, sess *tmux.Session, st tmux.State, text string) error {
	if st.Password {
		text = redact.Marker("password")
	} else {
		text, _ = s.redactor.String(text)
	}
	data, err := chat.Encode(&butlerv1.ShellLogged{
		SessionId: sess.Generation(), Person: &butlerv1.Actor{Id: seat.person}, Command: st.Foreground.Name + " < " + text,
		ExecutedAt: timestamppb.New(s.now()), Approved: s.hasGrant(seat, sess, st), Mode: string(tmux.Interactive), Status: approval.Ended, Dir: st.Dir,
	})
	if err != nil {
		return err
	}
	_, err = s.bus.Publish(ctx, bus.ShellStream,
		bus.NewEvent(approval.TypeShell, s.bus.Source(), approval.ShellSubject(s.host, sess.Generation()), data))
	return err
}
