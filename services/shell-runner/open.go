package shell

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// openSpan is how far back the log is searched for uses that a process left open without a note: a disk may have been lost.
const openSpan = 24 * time.Hour

// openFolder holds one file for each use that was or may have been taken and whose end is not recorded.
func (s *Service) openFolder() string { return filepath.Join(s.state, "open") }

func (s *Service) prepare() error {
	for _, dir := range []string{s.openFolder(), s.controlFolder()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fault.Wrap(err, fault.Invalid, "the folder %s cannot be made", dir)
		}
	}
	s.forgetNotes()
	return nil
}

// noted is what is kept of an open use.
type noted struct {
	Request json.RawMessage `json:"request"` // without grant and input
	Risk    json.RawMessage `json:"risk"`
}

// note writes down that a use is about to be taken. It survives the end of the process; what a power cut takes of it is
// found in the log (openSpan).
func (s *Service) note(j *job) error {
	req := proto.Clone(j.req).(*butlerv1.ExecuteRequest)
	req.Grant, req.Input = "", ""
	request, err1 := chat.Encode(req)
	risk, err2 := chat.Encode(j.risk)
	data, err3 := json.Marshal(noted{request, risk})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	file := filepath.Join(s.openFolder(), j.id)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.Write(data)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "the command was not begun: %s cannot be written", s.openFolder())
	}
	return nil
}

func (s *Service) unnote(id string) {
	if err := os.Remove(filepath.Join(s.openFolder(), id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("a note of an open command could not be removed", "approval", id, "error", err)
	}
}

// recover finds what an earlier process left open: commands that ended meanwhile get their end recorded, those that still
// run are looked after, and what nobody can tell is called unknown.
func (s *Service) recover(ctx context.Context) error {
	defer close(s.recovered)
	found, err := s.tmux.Recover(ctx)
	if err != nil {
		return err
	}
	by := map[string]tmux.Recovered{}
	for _, r := range found {
		if r.Err != nil {
			s.log.WarnContext(ctx, "a shell of an earlier process is gone", "user", r.User, "error", r.Err)
		}
		if r.Command != "" {
			by[r.Command] = r
		}
	}
	open, err := s.open(ctx)
	if err != nil {
		return err
	}
	for _, j := range open {
		r, known := by[j.id]
		j.out = s.newOutput(j.req)
		last, seq, err := s.lastOutput(ctx, j.req)
		if err != nil {
			return err
		}
		if last != nil {
			j.out.log = s.newOutputLog(j.req, last, seq)
			j.out.before = last.GetOffset() + int64(len(last.GetText()))
		}
		for _, o := range r.Output {
			j.out.take(o)
		}
		switch {
		case known && r.Running:
			s.mu.Lock()
			s.jobs[j.id] = j
			s.mu.Unlock()
			s.log.InfoContext(ctx, "a command of an earlier process goes on", "approval", j.id)
		case known && r.Outcome.Finished && !r.Outcome.Lost:
			s.finish(j, approval.Ended, s.outcomeOf(j, r.Outcome, s.now().Sub(j.use.GetTakenAt().AsTime())), "")
		default:
			s.finish(j, approval.Unknown, nil, "shell-runner was interrupted; the command may or may not have run")
		}
	}
	return nil
}

// open gives the uses of this host that were taken and have no end.
func (s *Service) open(ctx context.Context) ([]*job, error) {
	files, err := os.ReadDir(s.openFolder())
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "the folder %s cannot be read", s.openFolder())
	}
	var out []*job
	seen := map[string]bool{}
	for _, f := range files {
		if !approval.ValidID(f.Name()) {
			continue
		}
		j, err := s.reopen(ctx, f.Name())
		if err != nil {
			return nil, err
		}
		if j == nil { // never taken, or ended
			if err := s.logAnew(ctx, f.Name()); err != nil {
				return nil, err
			}
			s.unnote(f.Name())
			continue
		}
		seen[j.id] = true
		out = append(out, j)
	}
	first, found, err := s.bus.FirstSince(ctx, bus.ApprovalStream, s.now().Add(-openSpan))
	if err != nil || !found {
		return out, err
	}
	uses, err := s.bus.Load(ctx, bus.ApprovalStream, approval.UseSubject(s.host, "*"), first.Seq-1, 0)
	if err != nil {
		return nil, err
	}
	for _, ev := range uses {
		var use butlerv1.ApprovalUse
		if chat.Decode(ev.Data, &use) != nil || use.GetStatus() != approval.Taken || seen[use.GetId()] {
			continue
		}
		seen[use.GetId()] = true
		j, err := s.reopen(ctx, use.GetId())
		if err != nil {
			return nil, err
		}
		if j != nil {
			out = append(out, j)
		}
	}
	return out, nil
}

// reopen makes a job of a use that was taken and has no end; nil when that is not so.
func (s *Service) reopen(ctx context.Context, id string) (*job, error) {
	ev, found, err := s.bus.Last(ctx, bus.ApprovalStream, approval.UseSubject(s.host, id))
	if err != nil || !found {
		return nil, err
	}
	// Whoever asked for it, asked another process.
	j := &job{id: id, seq: ev.Seq, use: &butlerv1.ApprovalUse{}, ended: make(chan struct{}), left: true}
	if chat.Decode(ev.Data, j.use) != nil || j.use.GetStatus() != approval.Taken {
		return nil, nil //nolint:nilerr // nothing is open of it
	}
	j.req, j.risk = s.notedRequest(id)
	if j.req == nil { // the note is lost: what the use itself says
		j.req = &butlerv1.ExecuteRequest{
			ApprovalId: id, Waiter: j.use.GetWaiter(), Person: j.use.GetRequester(),
			Effect: &butlerv1.Effect{Version: 1, Kind: approval.KindCommand, Host: s.host, Session: j.use.GetSession()},
		}
	}
	j.dir = j.req.GetEffect().GetDir()
	return j, nil
}

func (s *Service) notedRequest(id string) (*butlerv1.ExecuteRequest, *butlerv1.Risk) {
	data, err := os.ReadFile(filepath.Join(s.openFolder(), id))
	var n noted
	req, risk := &butlerv1.ExecuteRequest{}, &butlerv1.Risk{}
	if err != nil || json.Unmarshal(data, &n) != nil || chat.Decode(n.Request, req) != nil || chat.Decode(n.Risk, risk) != nil {
		return nil, nil
	}
	return req, risk
}

// event takes what happens in a session outside of Run.
func (s *Service) event(e tmux.Event) {
	<-s.recovered // what a found session tells meanwhile belongs to uses that are still being looked up
	j := s.job(e.Command)
	switch e.Kind {
	case tmux.EventOutput:
		if j != nil {
			j.out.take(e.Output)
		}
	case tmux.EventFinished:
		switch {
		case j == nil:
		case e.Outcome.Lost:
			s.finish(j, approval.Unknown, s.outcomeOf(j, e.Outcome, e.Outcome.Duration), "the session was lost while it ran")
		default:
			s.finish(j, approval.Ended, s.outcomeOf(j, e.Outcome, e.Outcome.Duration), "")
		}
	case tmux.EventLost:
		s.log.Warn("a shell was lost", "user", e.User, "reason", e.Reason)
		for _, j := range s.jobsIn(e.Generation) {
			s.finish(j, approval.Unknown, s.outcomeOf(j, tmux.Outcome{}, 0), "the session was lost while it ran")
		}
	case tmux.EventMode:
		s.metrics.switched(e.Mode)
	case tmux.EventRestarted:
		s.log.Info("a shell was started anew", "user", e.User, "reason", e.Reason)
	}
}

// jobsIn gives the jobs of one generation of a session.
func (s *Service) jobsIn(generation string) []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*job
	for _, j := range s.jobs {
		if j.use.GetSession() == generation {
			out = append(out, j)
		}
	}
	return out
}

// signal is the payload of a work item whose value is m.
func signal(m proto.Message) ([]byte, error) {
	value, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]json.RawMessage{"value": value})
}
