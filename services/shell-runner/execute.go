package shell

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/guard"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

const (
	// confirmTries bounds how often approval is asked to confirm a use while it does not answer; then nothing is run.
	confirmTries = 5
	confirmPause = 300 * time.Millisecond
	// recordWait bounds how long an outcome is tried to be written while NATS is away; what is open is noted on disk.
	recordWait = 2 * time.Minute
)

// job is a use of a grant that this process looks after, from the taking to the recorded end.
type job struct {
	id   string
	use  *butlerv1.ApprovalUse
	seq  uint64 // of the use's newest event
	req  *butlerv1.ExecuteRequest
	risk *butlerv1.Risk
	out  *output
	dir  string // where it began

	once  sync.Once
	ended chan struct{} // closed when the end is recorded
	last  *butlerv1.ApprovalUse

	mu   sync.Mutex
	left bool // somebody who asked went without the end, and is to be told of it
}

// leave says that a caller goes without the end. It is false when the end is there by now: then the caller has it.
func (j *job) leave() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case <-j.ended:
		return false
	default:
		j.left = true
		return true
	}
}

// untold says that the job is over here and only the log can say what became of the use: another call had taken it before,
// or its end could not be recorded.
func (j *job) untold() bool {
	select {
	case <-j.ended:
		return j.last == nil
	default:
		return false
	}
}

// conclude lets go who waits for the end, and says whether somebody went before.
func (j *job) conclude() (left bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	close(j.ended)
	return j.left
}

// Execute runs an approved effect once; see the service's definition.
func (s *Service) Execute(ctx context.Context, req *butlerv1.ExecuteRequest) (*butlerv1.ExecuteResponse, error) {
	if !s.ready.Load() {
		return nil, fault.New(fault.Unavailable, "the shell-runner of %s is starting", s.host)
	}
	if !approval.ValidID(req.GetApprovalId()) {
		return nil, fault.New(fault.Invalid, "an effect is executed for an approval")
	}
	person := req.GetPerson()
	if err := s.allow(person); err != nil {
		return nil, err
	}
	if resp, found, err := s.standing(ctx, req.GetApprovalId()); found || err != nil {
		return resp, err
	}
	grant, err := s.keys.verify(ctx, req.GetGrant(), s.now())
	if err != nil {
		return nil, err
	}
	effect := req.GetEffect()
	if grant.ID != req.GetApprovalId() || grant.Host != s.host || grant.Requester != person.GetId() || grant.Kind != effect.GetKind() ||
		grant.Effect != approval.Digest(effect) || grant.Session != effect.GetSession() {
		return nil, fault.New(fault.Forbidden, "the grant is for something else")
	}

	seat := s.seat(person.GetId())
	seat.Lock()
	locked := true
	unlock := func() {
		if locked {
			locked = false
			seat.Unlock()
		}
	}
	defer unlock()
	if s.job(req.GetApprovalId()) != nil { // another call was first
		unlock()
		resp, _, err := s.standing(ctx, req.GetApprovalId())
		return resp, err
	}
	seat.remember(req.GetWaiter().GetThread(), req.GetLanguage())
	sess, err := s.tmux.Session(ctx, sessionUser(person.GetId()))
	if err != nil {
		return nil, err
	}
	risk, err := s.unchanged(ctx, sess, effect, grant)
	if err != nil {
		return nil, err
	}
	j, err := s.take(ctx, req, sess, risk)
	if errors.Is(err, bus.ErrFenced) {
		resp, _, err := s.standing(ctx, req.GetApprovalId())
		return resp, err
	}
	if err != nil {
		return nil, err
	}
	if refused := s.confirm(ctx, j); refused != nil {
		s.finish(j, approval.UseRefused, nil, refused.Error())
		return s.atEnd(ctx, j, sess)
	}
	if effect.GetKind() == approval.KindInput {
		return s.passInput(ctx, j, seat, sess)
	}
	s.run(ctx, j, sess, unlock)
	return s.wait(ctx, j, sess)
}

// unchanged compares the effect with what it would be now. Whatever differs is drift: it is asked for anew. The seat is
// held.
func (s *Service) unchanged(ctx context.Context, sess *tmux.Session, effect *butlerv1.Effect, grant approval.Grant) (*butlerv1.Risk, error) {
	var now *butlerv1.Effect
	var risk *butlerv1.Risk
	var err error
	if effect.GetKind() == approval.KindInput {
		now, risk, err = s.inspectInput(ctx, sess, effect.GetProgram())
	} else {
		now, risk, err = s.inspect(ctx, sess, effect.GetCommand())
	}
	if err != nil {
		return nil, err
	}
	if approval.Digest(now) != grant.Effect {
		return nil, fault.New(fault.Drift, "since it was asked for, %s", difference(effect, now))
	}
	if higher(risk.GetLevel(), grant.Risk) || risk.GetHardline() && !grant.Hardline ||
		risk.GetVerdict() == string(guard.Refuse) && !grant.Hardline {
		return nil, fault.New(fault.Drift, "the guard judges it more gravely now than when it was approved")
	}
	return risk, nil
}

// difference says what of an effect has changed, for people.
func difference(was, is *butlerv1.Effect) string {
	switch {
	case was.GetSession() != is.GetSession():
		return "the shell session was replaced"
	case was.GetDir() != is.GetDir():
		return fmt.Sprintf("the directory changed from %s to %s", was.GetDir(), is.GetDir())
	case was.GetUser() != is.GetUser():
		return "the user of the shell changed"
	case !equalAll(was.GetScripts(), is.GetScripts()):
		return "a script that it runs was changed"
	case !sameMap(was.GetEnvironment(), is.GetEnvironment()):
		return "a variable that changes what commands mean was changed"
	case !equalAll(was.GetDefinitions(), is.GetDefinitions()):
		return "an alias, a function or another setting of the shell changed"
	default:
		return "what it would do changed"
	}
}

func equalAll[M proto.Message](a, b []M) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !proto.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func sameMap(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if other, ok := b[k]; !ok || other != v {
			return false
		}
	}
	return true
}

// take appends the first event of the use: from here on nobody else can do it. It is noted on disk before, so that a
// process that starts later finds what this one left open. The seat is held.
func (s *Service) take(ctx context.Context, req *butlerv1.ExecuteRequest, sess *tmux.Session, risk *butlerv1.Risk) (*job, error) {
	id := req.GetApprovalId()
	j := &job{id: id, req: req, risk: risk, dir: req.GetEffect().GetDir(), ended: make(chan struct{})}
	j.out = s.newOutput(req)
	j.use = &butlerv1.ApprovalUse{
		Id: id, Status: approval.Taken, Worker: s.replica, Grant: req.GetGrant(), Digest: approval.Digest(req.GetEffect()), Host: s.host,
		Session: sess.Generation(), TakenAt: timestamppb.New(s.now()), Requester: req.GetPerson(), Waiter: req.GetWaiter(),
	}
	s.mu.Lock()
	s.jobs[id] = j
	s.mu.Unlock()
	err := s.note(j)
	if err == nil {
		j.seq, err = s.appendUse(ctx, j.use, 0)
	}
	if err != nil {
		s.forget(j)
		close(j.ended) // nothing was begun here
		if fault.ClassOf(err) == fault.Transient {
			s.mu.Lock()
			s.unsure[id] = true // it may be stored
			s.mu.Unlock()
		} else {
			s.unnote(id)
		}
		return nil, err
	}
	return j, nil
}

// notBegun says whether a use that may have been taken was given up before anything was done.
func (s *Service) notBegun(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unsure[id]
}

// job gives the use that this process looks after.
func (s *Service) job(id string) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.jobs[id]
}

func (s *Service) forget(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[j.id] == j {
		delete(s.jobs, j.id)
	}
}

func (s *Service) appendUse(ctx context.Context, use *butlerv1.ApprovalUse, expect uint64) (uint64, error) {
	data, err := chat.Encode(use)
	if err != nil {
		return 0, err
	}
	subject := approval.UseSubject(use.GetHost(), use.GetId())
	return s.bus.Append(ctx, bus.NewEvent(approval.TypeUse, s.bus.Source(), subject, data), bus.Expect{Filter: subject, Seq: expect})
}

// confirm asks approval whether the effect may happen now. Without its word nothing does.
func (s *Service) confirm(ctx context.Context, j *job) error {
	var err error
	for range confirmTries {
		_, err = s.approval.ConfirmUse(ctx, &butlerv1.ConfirmUseRequest{Id: j.id, Host: s.host, Seq: j.seq})
		if err == nil {
			return nil
		}
		if fault.ClassOf(err) != fault.Transient || ctx.Err() != nil {
			break
		}
		select {
		case <-time.After(confirmPause):
		case <-ctx.Done():
		}
	}
	s.log.WarnContext(ctx, "an approved command was not run: it was not confirmed", "approval", j.id, "error", err)
	return errors.New(fault.MessageOf(err))
}

// run sends the command and looks after it until its end is recorded, also when nobody waits any more. It returns at once;
// unlock is called when the command no longer needs the seat.
func (s *Service) run(ctx context.Context, j *job, sess *tmux.Session, unlock func()) {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.settings.Load().CommandTimeout)
	sent := make(chan struct{})
	go func() {
		defer cancel()
		began := s.now()
		first := sync.OnceFunc(func() { close(sent) })
		outcome, err := sess.Run(limit, tmux.Command{ID: j.id, Text: j.req.GetEffect().GetCommand(), Generation: j.use.GetSession(),
			OnSent: first, OnOutput: j.out.take})
		first()
		switch {
		case err != nil && outcome.Command == "":
			s.finish(j, approval.UseRefused, nil, fault.MessageOf(err)) // nothing was sent
		case err != nil || outcome.Lost:
			s.finish(j, approval.Unknown, s.outcomeOf(j, outcome, s.now().Sub(began)), "the session was lost while it ran")
		case outcome.Finished:
			s.finish(j, approval.Ended, s.outcomeOf(j, outcome, outcome.Duration), "")
			// What the next command is judged by, while nobody waits for it. It is asked again if this fails.
			_, _ = sess.Snapshot(limit)
		default:
			j.out.flush() // it goes on: its end is an event
		}
	}()
	<-sent
	unlock()
}

// outcomeOf gives the outcome with the output that was kept of it.
func (s *Service) outcomeOf(j *job, o tmux.Outcome, took time.Duration) *butlerv1.CommandOutcome {
	text, bytes, cut, redacted := j.out.close()
	if o.Duration > 0 {
		took = o.Duration
	}
	return &butlerv1.CommandOutcome{
		ExitStatus: int32(o.Status), StatusKnown: o.StatusKnown, Output: text, OutputBytes: max(bytes, o.Bytes), Truncated: cut || o.Truncated,
		Dir: o.Dir, DurationMs: took.Milliseconds(), Redacted: redacted, Deltas: j.out.deltas(),
	}
}

// finish records how a use ended, once: in the log of approvals, in the shell log, for who went without it. While NATS is
// away it goes on trying; what is not recorded when the process ends is found by the next one.
func (s *Service) finish(j *job, status string, outcome *butlerv1.CommandOutcome, reason string) {
	j.once.Do(func() {
		if outcome == nil {
			_, _, _, _ = j.out.close()
		}
		end := proto.Clone(j.use).(*butlerv1.ApprovalUse)
		end.Status, end.Outcome, end.Reason, end.EndedAt = status, outcome, reason, timestamppb.New(s.now())
		ctx, cancel := context.WithTimeout(context.Background(), recordWait)
		defer cancel()
		// Both are written at the same time: the person waits for them, and each waits for the disk. They do not wait until
		// a long output is logged.
		log, logged := j.out.logged(), false
		var logging sync.WaitGroup
		if log == nil {
			logging.Go(func() { logged = s.logCommand(ctx, j, end, nil) })
		}
		seq, err := s.appendUse(ctx, end, j.seq)
		logging.Wait()
		if errors.Is(err, bus.ErrFenced) {
			s.log.Error("the end of a command was recorded by somebody else", "approval", j.id)
		} else if err != nil {
			s.log.Error("the end of a command could not be recorded; the next start of shell-runner does", "approval", j.id, "error", err)
			s.forget(j)
			j.conclude()
			return
		}
		j.seq = seq
		if err == nil {
			j.last = end // not before it is recorded
		}
		if j.conclude() {
			s.wake(ctx, end) // who still waited has it, and nothing is written for them
		}
		if log != nil {
			s.afterwards(func() {
				<-log.done
				ctx, cancel := context.WithTimeout(s.life, recordWait)
				defer cancel()
				if s.logCommand(ctx, j, end, j.out.summary()) {
					s.unnote(j.id)
				} // else the next process logs it
			})
		} else if logged {
			s.unnote(j.id)
		}
		s.forget(j)
		s.metrics.ended(status, outcome)
	})
}

// wake tells the turn whose call went without the end.
func (s *Service) wake(ctx context.Context, use *butlerv1.ApprovalUse) {
	w := use.GetWaiter()
	if w.GetKey() == "" {
		return
	}
	quiet := proto.Clone(use).(*butlerv1.ApprovalUse)
	quiet.Grant = ""
	data, err := signal(quiet)
	if err == nil {
		turn := chat.Turn{Session: chat.Session{Person: w.GetPerson(), Thread: w.GetThread()}, ID: w.GetTurn()}
		ev := bus.NewEvent("butler.work.signal", s.bus.Source(), turn.Signal(w.GetKey()), data)
		ev.ID = "use-" + use.GetId()
		_, err = s.bus.Publish(ctx, bus.WorkStream, ev)
	}
	if err != nil {
		s.log.Error("who waits for a command could not be told of its end", "approval", use.GetId(), "error", err)
	}
}

// needsPerson is how often it is looked whether a command waits for a person; at the second look in a row it does.
const needsPerson = 120 * time.Millisecond

// wait waits for the end of a job, as long as a command is waited for. One that waits for somebody, because it takes keys or
// a line, is not waited for: what they write comes by other calls.
func (s *Service) wait(ctx context.Context, j *job, sess *tmux.Session) (*butlerv1.ExecuteResponse, error) {
	patience := s.settings.Load().CommandTimeout + 200*time.Millisecond
	if j.req.GetWaiter().GetKey() != "" {
		patience = min(patience, s.settings.Load().FreeAfter)
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	look := time.NewTicker(needsPerson)
	defer look.Stop()
	for seen := 0; seen < 2; {
		select {
		case <-j.ended:
			return s.atEnd(ctx, j, sess)
		case <-ctx.Done():
			if !j.leave() {
				return s.atEnd(ctx, j, sess)
			}
			return nil, ctx.Err()
		case <-limit.C:
			seen = 2
		case <-look.C:
			if sess == nil {
				continue
			}
			st := stateOf(ctx, sess)
			if st.Command != j.id || st.Mode != tmux.Interactive && st.State != tmux.Blocked {
				seen = 0
			} else if seen++; seen == 2 && st.Mode == tmux.Interactive {
				if screen, err := s.screen(ctx, sess); err == nil {
					j.out.show(screen)
				}
			}
		}
	}
	if !j.leave() {
		return s.atEnd(ctx, j, sess)
	}
	text, bytes, cut, redacted := j.out.soFar()
	return &butlerv1.ExecuteResponse{Status: "running", Shell: s.shellAfter(ctx, sess), Outcome: &butlerv1.CommandOutcome{
		Running: true, Output: text, OutputBytes: bytes, Truncated: cut, Redacted: redacted,
		DurationMs: s.now().Sub(j.use.GetTakenAt().AsTime()).Milliseconds(),
	}}, nil
}

// atEnd answers a call whose job has ended.
func (s *Service) atEnd(ctx context.Context, j *job, sess *tmux.Session) (*butlerv1.ExecuteResponse, error) {
	if j.untold() {
		return nil, fault.New(fault.Unavailable, "what became of %s is being looked at; ask again", j.id)
	}
	return s.response(ctx, j.last, sess), nil
}

// shellAfter gives the session, nil when there is none.
func (s *Service) shellAfter(ctx context.Context, sess *tmux.Session) *butlerv1.ShellState {
	if sess == nil {
		return nil
	}
	return s.shellState(ctx, sess)
}

func (s *Service) response(ctx context.Context, use *butlerv1.ApprovalUse, sess *tmux.Session) *butlerv1.ExecuteResponse {
	return &butlerv1.ExecuteResponse{Status: use.GetStatus(), Outcome: use.GetOutcome(), Reason: use.GetReason(), Shell: s.shellAfter(ctx, sess)}
}

// standing says what became of an approval whose grant was taken before; found is false when it was not.
func (s *Service) standing(ctx context.Context, id string) (resp *butlerv1.ExecuteResponse, found bool, err error) {
	if j := s.job(id); j != nil {
		sess, _ := s.tmux.Find(sessionUser(j.req.GetPerson().GetId()))
		if resp, err := s.wait(ctx, j, sess); !j.untold() {
			return resp, true, err
		}
	}
	ev, found, err := s.bus.Last(ctx, bus.ApprovalStream, approval.UseSubject(s.host, id))
	if err != nil || !found {
		return nil, false, err
	}
	var use butlerv1.ApprovalUse
	if err := chat.Decode(ev.Data, &use); err != nil || ev.Type != approval.TypeUse {
		return nil, true, fault.New(fault.Internal, "the use of the approval %s cannot be read", id)
	}
	if use.GetStatus() == approval.Taken {
		if s.notBegun(id) && use.GetWorker() == s.replica {
			// This process took it without learning so, and did nothing.
			j, err := s.reopen(ctx, id)
			if err != nil || j == nil {
				return nil, true, fault.New(fault.Unavailable, "what became of %s is being looked at; ask again", id)
			}
			s.finish(j, approval.UseRefused, nil, "the log did not answer when it was to begin; ask anew")
			resp, err := s.atEnd(ctx, j, nil)
			return resp, true, err
		}
		if s.job(id) != nil {
			return s.standing(ctx, id) // taken by another call while this one read the log
		}
		// Taken and not looked after here: by another process of this host, or a call of this one that has not come back.
		return nil, true, fault.New(fault.Unavailable, "what became of %s is being looked at; ask again", id)
	}
	sess, _ := s.tmux.Find(sessionUser(use.GetRequester().GetId()))
	return s.response(ctx, &use, sess), true, nil
}

// grantKeys are the public keys of approval, asked for when a grant names one that is not known.
type grantKeys struct {
	client butlerv1.ApprovalServiceClient

	mu   sync.Mutex
	keys approval.Keys
	at   time.Time
}

const keysAgain = 10 * time.Second

func (k *grantKeys) verify(ctx context.Context, token string, now time.Time) (approval.Grant, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	grant, err := k.keys.Verify(token, now)
	if err == nil {
		return grant, nil
	}
	if k.keys == nil || strings.Contains(err.Error(), "unknown key") && now.Sub(k.at) > keysAgain {
		resp, listErr := k.client.ListGrantKeys(ctx, &butlerv1.ListGrantKeysRequest{})
		if listErr != nil {
			return approval.Grant{}, fault.Wrap(listErr, fault.Unavailable, "the grant cannot be verified now: approval does not answer")
		}
		keys := approval.Keys{}
		for _, key := range resp.GetKeys() {
			if len(key.GetPublic()) == 32 {
				keys[key.GetId()] = key.GetPublic()
			}
		}
		k.keys, k.at = keys, now
		grant, err = k.keys.Verify(token, now)
	}
	if err != nil {
		return approval.Grant{}, fault.Wrap(err, fault.Forbidden, "%v", err)
	}
	return grant, nil
}
