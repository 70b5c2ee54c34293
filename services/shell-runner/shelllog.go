package shell

import (
	"context"
	"embed"
	"io/fs"
	"log/slog"
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

// logCommand appends what was executed to the stream SHELL, redacted.
func (s *Service) logCommand(ctx context.Context, j *job, end *butlerv1.ApprovalUse) {
	e := &butlerv1.ShellLogged{
		SessionId: end.GetSession(), Person: end.GetRequester(), Outcome: proto.Clone(end.GetOutcome()).(*butlerv1.CommandOutcome),
		ExecutedAt: timestamppb.New(end.GetTakenAt().AsTime()), ApprovalId: end.GetId(), Mode: "nl", Status: end.GetStatus(), Dir: j.dir,
		Dangerous: j.risk.GetVerdict() != "run",
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
