package tmux

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// marks is the Session as the scanner's sink; s.mu is held.
type marks Session

func (m *marks) data(p []byte) {
	s := (*Session)(m)
	switch s.phase {
	case phaseRunning:
		c := s.cur
		if c == nil {
			if !s.full {
				s.loose.add(p)
			}
			return
		}
		c.outcome.Bytes += int64(len(p))
		if s.full {
			return
		}
		c.invalid += notText(p)
		if !c.hidden {
			c.out.add(p)
		}
	case phaseSent, phaseMore:
		if c := s.cur; c != nil && len(c.refused)+len(p) <= maxRefused {
			c.refused = append(c.refused, p...)
		}
	case phasePrompt:
		if s.background && !s.full {
			s.loose.add(p)
		}
	}
}

func (m *marks) private(mode int, on bool) {
	s := (*Session)(m)
	switch {
	case alternateScreen(mode):
		s.full = on
		if on && s.cur != nil {
			s.cur.outcome.FullScreen = true
		}
	case mode == modePaste && on && s.phase == phasePrompt:
		s.ready = true
	case mode == modePaste && !on && s.phase == phaseSent && s.cur != nil:
		s.cur.refused = s.cur.refused[:0] // the echo ends here
	case mode == modePaste && !on && s.phase == phasePrompt:
		s.setPhase(phaseTyped) // something that was typed earlier is read now
	}
}

func (m *marks) mark(kind byte, fields string) {
	s := (*Session)(m)
	if kind == markStarted || kind == markMore || kind == markFinished {
		s.stir()
	}
	switch kind {
	case markStarted:
		s.background, s.ready = false, false
		s.setPhase(phaseRunning)
		if s.cur != nil {
			s.cur.outcome.Started = true
		}
	case markMore:
		s.setPhase(phaseMore)
	case markPrompt:
		// With a question open, readline is about to draw its prompt once more.
		s.background = s.phase == phasePrompt && len(s.replies) == 0
	case markFinished:
		status, dir, _ := strings.Cut(fields, ";")
		if d, ok := unquote(dir); ok && len(d) <= 4096 {
			s.dir0 = d
		}
		v, err := strconv.Atoi(status)
		s.background, s.ready, s.full = false, false, false
		if c := s.cur; c != nil {
			c.outcome.Incomplete = s.phase == phaseMore
			c.outcome.Status, c.outcome.StatusKnown = v, err == nil
			s.finish()
		}
		s.setPhase(phasePrompt)
		s.switchMode(NaturalLanguage, Process{})
	case markReply:
		id, text, _ := strings.Cut(fields, ";")
		if ch := s.replies[id]; ch != nil {
			delete(s.replies, id)
			text, _ = unquote(text)
			ch <- text
		}
	}
}

// finish ends the current command. s.mu is held.
func (s *Session) finish() {
	c := s.cur
	s.cur = nil
	if c == nil {
		return
	}
	o := &c.outcome
	o.Command, o.Finished, o.Dir, o.Duration = c.id, true, s.dir0, time.Since(c.sent)
	if !o.Started && !o.Incomplete && len(c.refused) > 0 {
		p := []byte(strings.TrimLeft(string(c.refused), "\r\n"))
		o.Bytes += int64(len(p))
		if len(p) > 0 {
			c.out.add(p)
		}
	}
	c.refused = nil
	if o.Bytes >= 64 && c.invalid*10 > o.Bytes {
		o.Binary, s.garbled = true, true
	}
	o.Truncated = o.Truncated || c.out.lost() > 0
	c.done = true
	if c.hidden {
		s.closeCommand(c)
		return
	}
	last := *o
	s.last = &last
}

// closeCommand forgets a command whose end was taken. s.mu is held.
func (s *Session) closeCommand(c *running) {
	s.open = slices.DeleteFunc(s.open, func(o *running) bool { return o == c })
	s.save(false)
	s.notify()
}

// emit queues an event. s.mu is held.
func (s *Session) emit(e Event) {
	if s.host.cfg.OnEvent == nil {
		return
	}
	e.User, e.Session, e.Generation = s.user, s.name, s.rec.Generation
	if len(s.events) < 256 {
		s.events = append(s.events, e)
	}
	s.notify()
}

func (s *Session) switchMode(m Mode, p Process) {
	if m == NaturalLanguage {
		s.rawSince = time.Time{}
	}
	if s.mode == m {
		return
	}
	s.mode = m
	s.emit(Event{Kind: EventMode, Mode: m, Process: p})
}
