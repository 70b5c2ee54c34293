package tmux

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Recovered is what became of a session while no process of ours looked after it.
type Recovered struct {
	User    string
	Session *Session // nil when it is gone
	Err     error    // why it is gone

	// Command is the last command that was sent, "" for none. Running says that it goes on: its end will be an event.
	// Otherwise Outcome is its end, which may have been told before; Lost when nobody knows.
	Command string
	Running bool
	Outcome Outcome

	// Output is what was printed and not given on before: of Command, or of background jobs after its end.
	Output []Output
}

// Recover finds the sessions that an earlier process left, attaches to those that live, and removes what is left of the
// others. Call it once, before Session.
func (h *Host) Recover(ctx context.Context) ([]Recovered, error) {
	entries, err := os.ReadDir(h.cfg.Dir)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var all []Recovered
	var wg sync.WaitGroup
	for _, e := range entries {
		dir := filepath.Join(h.cfg.Dir, e.Name())
		rec, err := readRecord(dir)
		if err != nil || e.Name() != sessionKey(rec.User, max(rec.Number, 1)) || checkUser(rec.User) != nil {
			continue
		}
		h.mu.Lock()
		if h.closed || h.slots[e.Name()] != nil {
			h.mu.Unlock()
			continue
		}
		sl := &slot{user: rec.User, ready: make(chan struct{})}
		h.slots[e.Name()] = sl
		h.mu.Unlock()
		wg.Go(func() {
			r := h.recoverOne(ctx, e.Name(), rec, sl)
			mu.Lock()
			all = append(all, r)
			mu.Unlock()
		})
	}
	wg.Wait()
	return all, ctx.Err()
}

func (h *Host) recoverOne(ctx context.Context, key string, rec record, sl *slot) Recovered {
	h.creating <- struct{}{}
	defer func() { <-h.creating }()
	defer close(sl.ready)
	ctx, cancel := context.WithTimeout(ctx, h.cfg.StartTimeout)
	defer cancel()
	gone := func(s *Session, err error) Recovered {
		r := Recovered{User: rec.User, Err: err}
		if s != nil {
			if p := s.readProgress(); p.Command != "" {
				r.Command = p.Command
				r.Outcome = Outcome{Command: p.Command, Finished: true, Lost: true}
				if p.Outcome != nil {
					r.Outcome = *p.Outcome
				}
			}
			s.clear()
		}
		sl.err = err
		h.drop(key, sl)
		return r
	}
	if dir := filepath.Join(h.cfg.Dir, key); copied(dir, rec) {
		err := sessionNotFound("butler_"+key, errors.New("the folder is a copy of one that lives elsewhere"))
		_ = os.RemoveAll(dir)
		sl.err = err
		h.drop(key, sl)
		return Recovered{User: rec.User, Err: err}
	}
	account, err := h.account(rec.User)
	if err != nil { // nobody may use it any more: it ends
		s := newSession(h, key, rec.User, nil)
		s.rec = rec
		return gone(s, err)
	}
	s := newSession(h, key, rec.User, account)
	r, err := s.reattach(ctx)
	if err != nil {
		return gone(s, err)
	}
	sl.s = s
	return *r
}

// copied says whether a session's folder is a copy, as a backup that was restored beside the original is: its shell is the
// original's, and not to be touched.
func copied(dir string, rec record) bool {
	was, err := os.Stat(filepath.Dir(filepath.Dir(rec.Socket)))
	if err != nil {
		return false // moved, or gone
	}
	is, err := os.Stat(dir)
	return err == nil && !os.SameFile(was, is)
}

func (s *Session) readProgress() progress {
	f, err := os.Open(s.path(fileProgress))
	if err != nil {
		return progress{}
	}
	defer func() { _ = f.Close() }()
	p, _ := loadProgress(f)
	return p
}

// reattach connects to the server that the folder's record names, and reads what was printed since. On an error nothing
// was changed but s itself.
func (s *Session) reattach(ctx context.Context) (*Recovered, error) {
	rec, err := readRecord(s.dir)
	if err != nil {
		return nil, err
	}
	s.rec = rec
	st, err := readStat(rec.Server)
	if err != nil || st.start != rec.ServerAge {
		return nil, sessionNotFound(s.name, errors.New("its terminal ended"))
	}
	if s.progress, err = os.OpenFile(s.path(fileProgress), os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	p, err := loadProgress(s.progress)
	if err != nil {
		return nil, err
	}
	if err := s.attach(); err != nil {
		return nil, err
	}
	facts, err := s.facts(ctx)
	if err != nil {
		return nil, err
	}
	if facts.generation != rec.Generation {
		return nil, sessionNotFound(s.name, errNotOurs)
	}
	if err := s.follow(); err != nil {
		return nil, err
	}
	if !facts.piped && !facts.dead {
		if _, err := s.do(ctx, s.pipeCommand()); err != nil {
			return nil, err
		}
	}
	s.resume(p)
	if err := s.read(); err != nil {
		return nil, err
	}
	if facts.dead {
		s.death = make(chan struct{})
		s.shellPID = facts.pid
	} else if err := s.adoptShell(facts.pid); err != nil {
		return nil, sessionNotFound(s.name, err)
	}
	c := s.settleRecovered()
	if facts.dead && !s.shellEnded() {
		return nil, s.Lost()
	}
	r := s.report(p, c)
	s.start()
	return r, nil
}

func (s *Session) expectedCommandLine() string {
	return strings.Join([]string{s.host.shell, "--noprofile", "--rcfile", s.path(fileRC), "-i"}, "\x00")
}

// resume takes up the state that the last process wrote down.
func (s *Session) resume(p progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scan = newScanner(s.rec.Nonce)
	s.offset, s.saved, s.freed = p.Offset, p.Offset, p.Offset
	s.setPhase(p.Phase)
	s.full = p.Full
	s.ready, s.background = p.Phase == phasePrompt, p.Phase == phasePrompt
	s.last = p.Outcome
	s.pressed = 1 // whatever was typed before
	if p.Command != "" && p.Outcome == nil {
		s.cur = &running{id: p.Command, sent: p.Sent, from: s.rec.Generation, attached: true,
			out:     backlog{limit: s.host.cfg.MaxBacklog, keep: s.host.cfg.KeepTail},
			outcome: Outcome{Started: p.Started, Bytes: p.Bytes}}
		s.open = append(s.open, s.cur)
	}
}

// settleRecovered decides about a command that was being sent when the last process ended: it gives the command that
// was open, ended or not.
func (s *Session) settleRecovered() *running {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) == 0 {
		return nil
	}
	c := s.open[0]
	if c.done || s.phase != phaseSent {
		return c
	}
	// No mark since it was sent. If the shell waits at its prompt now, the text never came, or was cut: nobody knows.
	if l, err := lookAt(s.shellPID); err == nil && l.shellForeground && !l.canonical {
		c.outcome.Lost = true
		s.finish()
		s.setPhase(phaseTyped)
	}
	return c
}

// report makes what Recover tells, and hands what goes on to the events.
func (s *Session) report(p progress, c *running) *Recovered {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &Recovered{User: s.user, Session: s, Command: p.Command}
	if p.Outcome != nil {
		r.Outcome = *p.Outcome
	}
	if c != nil {
		var lost int64
		r.Output, lost = c.out.take()
		c.outcome.Truncated = c.outcome.Truncated || lost > 0
		if c.done {
			r.Outcome = c.outcome
			s.closeCommand(c)
		} else {
			r.Running = true
			r.Outcome = c.outcome
			r.Outcome.Command, r.Outcome.Duration = c.id, time.Since(c.sent)
			c.attached = false
		}
	}
	pieces, _ := s.loose.take()
	r.Output = append(r.Output, pieces...)
	s.save(true)
	return r
}
