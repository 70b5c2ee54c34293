package tmux

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// promptWait is how long a prompt may take to be ready for input after a command ended.
const promptWait = 2 * time.Second

// Run puts a command at the shell's prompt and waits for its end, giving its output as it comes. At most one runs at a
// time: otherwise it returns a BusyError and sends nothing, as for any error that comes with an empty Outcome.
//
// When ctx's deadline passes, Run returns what is known with Finished false and no error, and the command goes on: its
// further output and its end are events, and Wait waits for it. When ctx is canceled it is the same, with ctx's error.
// An error with an Outcome that names the command means that it may or may not have been sent; it is never sent again.
func (s *Session) Run(ctx context.Context, cmd Command) (Outcome, error) {
	if err := cmd.check(s.host.cfg.MaxText); err != nil {
		return Outcome{}, err
	}
	if err := ctx.Err(); err != nil {
		return Outcome{}, err
	}
	release, err := s.atPrompt(ctx)
	if err != nil {
		return Outcome{}, err
	}
	if cmd.Generation != "" && cmd.Generation != s.Generation() {
		release()
		return Outcome{}, fault.New(fault.Drift, "the shell session was replaced")
	}
	if err := s.tidy(ctx); err != nil {
		release()
		return Outcome{}, err
	}
	c, err := s.send(ctx, cmd.ID, cmd.Text, false)
	release()
	if err != nil {
		if c == nil {
			return Outcome{}, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		c.attached = false
		s.notify()
		o := c.outcome
		o.Command = c.id
		return o, err
	}
	if cmd.OnSent != nil {
		cmd.OnSent()
	}
	return s.collect(ctx, c, cmd.OnOutput)
}

// atPrompt takes the right to type, and makes sure that the shell waits at its prompt. release gives it back.
func (s *Session) atPrompt(ctx context.Context) (release func(), err error) {
	select {
	case s.op <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	release = func() { <-s.op }
	if err := s.settlePrompt(ctx); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

func (s *Session) settlePrompt(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, promptWait)
	defer cancel()
	var ph phase
	var id string
	var unsure bool
	err := s.until(wait, func() bool {
		ph, id, unsure = s.phase, "", s.pressed != s.taken
		if s.cur != nil {
			id = s.cur.id
		}
		return ph != phasePrompt && ph != phaseStarting || s.ready || unsure
	})
	switch {
	case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		// A prompt by its mark, but no sign of readline: its output may have been lost on the way.
		if s.repair(ctx) == nil && s.ping(ctx) == nil {
			return nil
		}
		return integrationLost(s.name)
	case err != nil:
		return err
	case ph == phaseRunning && id == "":
		// Something that was typed runs: what ends at once is not in the way.
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		if s.until(short, func() bool { return s.phase != phaseRunning }) == nil {
			return s.settlePrompt(ctx)
		}
		return s.busy()
	case id != "" || ph != phasePrompt && ph != phaseTyped:
		return s.busy()
	}
	// The marks can be ahead of the terminal, for an instant, and keys that were sent before ahead of both.
	t := time.NewTicker(2 * time.Millisecond)
	defer t.Stop()
	for {
		s.mu.Lock()
		pid := s.shellPID
		s.mu.Unlock()
		l, err := lookAt(pid)
		waits := err != nil || l.shellForeground && !l.canonical
		switch {
		case waits && !unsure && ph == phasePrompt:
			return nil
		case waits:
			if err := s.ping(ctx); err == nil || ctx.Err() != nil || s.Lost() != nil {
				return err
			}
			return s.busy()
		}
		select {
		case <-t.C:
		case <-wait.Done():
			return s.busy()
		}
	}
}

// ping makes sure that readline is at the prompt, with bracketed paste on. What is on the line, and whether it was
// entered, shows then as well: readline takes keys in order.
func (s *Session) ping(ctx context.Context) error {
	s.mu.Lock()
	pressed := s.pressed
	s.mu.Unlock()
	var text string
	var err error
	// A question that comes while something still runs is thrown away with other typeahead: it is asked again.
	for range 3 {
		if text, err = s.ask(ctx, "ping", "", 500*time.Millisecond); err == nil || ctx.Err() != nil || s.Lost() != nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if !strings.Contains(text, "set enable-bracketed-paste on") {
		return integrationLost(s.name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == phaseTyped || s.phase == phasePrompt {
		s.setPhase(phasePrompt)
		s.ready = true
	}
	s.taken = pressed
	return nil
}

// busy says why nothing can be sent now.
func (s *Session) busy() error {
	p, _ := s.foreground()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur == nil && p.PID == s.shellPID && strings.Join(p.Args, "\x00") != s.shellCmd {
		return integrationLost(s.name)
	}
	id := ""
	if s.cur != nil {
		id = s.cur.id
	}
	return busy(s.name, id, p)
}

// tidy resets the terminal after binary output, by a command of Butler's own.
func (s *Session) tidy(ctx context.Context) error {
	s.mu.Lock()
	garbled := s.garbled
	s.garbled = false
	s.mu.Unlock()
	if !garbled {
		return nil
	}
	if _, err := s.do(ctx, "send-keys -R -t "+pane, "clear-history -t "+pane); err != nil {
		return err
	}
	c, err := s.send(ctx, "reset", " command stty sane", true)
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, promptWait)
	defer cancel()
	if err := s.until(wait, func() bool { return c.done }); err != nil {
		return err
	}
	return s.settlePrompt(ctx)
}

// send types the text. The command exists (is not nil) from the moment at which it may have been sent.
func (s *Session) send(ctx context.Context, id, text string, hidden bool) (*running, error) {
	c, refused, err := s.sendOnce(ctx, id, text, hidden)
	if !refused {
		return c, err
	}
	// Nothing was typed: the pane is not as it should be.
	if err := s.repair(ctx); err != nil {
		return nil, err
	}
	c, refused, err = s.sendOnce(ctx, id, text, hidden)
	if refused {
		return nil, tmuxCommand(s.name, "the pane cannot be typed into")
	}
	return c, err
}

// repair brings the pane back to where a command can be typed.
func (s *Session) repair(ctx context.Context) error {
	facts, err := s.facts(ctx)
	if err != nil {
		return err
	}
	if facts.generation != s.Generation() || facts.dead {
		return sessionNotFound(s.name, errors.New("the terminal has another shell"))
	}
	if facts.inMode { // copy mode would take the keys
		if _, err := s.do(ctx, "send-keys -t "+pane+" -X cancel"); err != nil {
			return err
		}
	}
	if !facts.piped { // somebody ended the program that writes the output
		_, err = s.do(ctx, s.pipeCommand())
	}
	return err
}

const refusal = "refused"

// sendOnce types the text if the pane is that of our shell, with its output written and no mode; tmux itself decides, so
// that it costs no round trip. refused says that nothing was typed.
func (s *Session) sendOnce(ctx context.Context, id, text string, hidden bool) (c *running, refused bool, err error) {
	s.mu.Lock()
	if s.lost != nil {
		defer s.mu.Unlock()
		return nil, false, s.lost
	}
	if s.phase != phasePrompt { // a key that came late
		s.mu.Unlock()
		return nil, false, s.busy()
	}
	lines := typeLines(pane, pasteBytes(text))
	lines[1] = "if-shell -F -t " + pane + " '#{&&:#{==:#{@butler_generation}," + s.rec.Generation +
		"},#{==:#{pane_pipe}#{pane_in_mode}#{pane_dead},100}}' '" + lines[1] + "' 'display-message -p " + refusal + "'"
	c = &running{id: id, sent: time.Now(), from: s.rec.Generation, hidden: hidden, attached: true,
		out: backlog{limit: s.host.cfg.MaxBacklog, keep: s.host.cfg.KeepTail}}
	s.cur = c
	s.open = append(s.open, c)
	s.background, s.ready = false, false
	s.setPhase(phaseSent)
	s.lastActive = c.sent
	s.save(true) // the intent, before it
	ctl := s.ctl
	s.mu.Unlock()
	s.poke()
	// From here on the caller's ctx ends only the waiting: half a command must not stay on the line. Either branch is one
	// command more, and has an answer of its own.
	answer, err := ctl.exchange(context.WithoutCancel(ctx), 3, lines...)
	if err == nil && answer == refusal {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.cur == c {
			s.cur = nil
			s.setPhase(phasePrompt)
			s.ready = true
		}
		s.closeCommand(c)
		return nil, true, nil
	}
	return c, false, err
}

// collect gives a command's output on until it ends or ctx does.
func (s *Session) collect(ctx context.Context, c *running, give func(Output)) (Outcome, error) {
	for {
		s.mu.Lock()
		pieces, lost := c.out.take()
		c.outcome.Truncated = c.outcome.Truncated || lost > 0
		c.delivering = len(pieces) > 0
		done, changed := c.done, s.changed
		if done && !c.delivering {
			o := c.outcome
			s.closeCommand(c)
			s.mu.Unlock()
			return o, nil
		}
		s.mu.Unlock()
		for _, p := range pieces {
			if give != nil {
				give(p)
			}
		}
		if len(pieces) > 0 {
			s.mu.Lock()
			c.delivering = false
			s.save(false)
			s.mu.Unlock()
		}
		if ctx.Err() == nil && len(pieces) > 0 {
			continue
		}
		select {
		case <-changed:
			if ctx.Err() == nil {
				continue
			}
		case <-ctx.Done():
		}
		s.mu.Lock()
		if c.done && c.out.empty() {
			o := c.outcome
			s.closeCommand(c)
			s.mu.Unlock()
			return o, nil
		}
		c.attached = false
		o := c.outcome
		o.Command, o.Duration, o.Finished = c.id, time.Since(c.sent), false
		s.notify()
		s.mu.Unlock()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return o, nil
		}
		return o, ctx.Err()
	}
}

// pump gives events on, and the output and ends of what has no Run.
func (s *Session) pump() {
	give := s.host.cfg.OnEvent
	for {
		s.mu.Lock()
		events := s.events
		s.events = nil
		gen := s.rec.Generation
		event := func(e Event) Event {
			e.User, e.Session, e.Generation = s.user, s.name, gen
			return e
		}
		loose, _ := s.loose.take()
		for _, p := range loose {
			events = append(events, event(Event{Kind: EventOutput, Output: p}))
		}
		s.looseBusy = len(loose) > 0
		var ended []*running
		var busy []*running
		for _, c := range s.open {
			if c.attached {
				continue
			}
			pieces, lost := c.out.take()
			c.outcome.Truncated = c.outcome.Truncated || lost > 0
			c.delivering = true
			busy = append(busy, c)
			e := Event{Command: c.id}
			for _, p := range pieces {
				e.Kind, e.Output = EventOutput, p
				e = event(e)
				e.Generation = c.from
				events = append(events, e)
			}
			if c.done {
				ended = append(ended, c)
				e := event(Event{Kind: EventFinished, Command: c.id, Outcome: c.outcome})
				e.Generation = c.from
				events = append(events, e)
			}
		}
		changed, over := s.changed, s.lost != nil
		s.mu.Unlock()
		for _, e := range events {
			if give != nil {
				give(e)
			}
		}
		s.mu.Lock()
		s.looseBusy = false
		for _, c := range busy {
			c.delivering = false
		}
		for _, c := range ended {
			s.closeCommand(c)
		}
		if len(events) > 0 && len(ended) == 0 {
			s.save(false)
		}
		s.mu.Unlock()
		if len(events) > 0 {
			continue
		}
		if over {
			return
		}
		select {
		case <-changed:
		case <-s.quit:
			return
		}
	}
}

// Wait waits for the command that runs, whoever sent it, and gives its end; when none runs, that of the last one. A
// NotFound fault when there was none.
func (s *Session) Wait(ctx context.Context) (Outcome, error) {
	s.mu.Lock()
	c, last := s.cur, s.last
	s.mu.Unlock()
	if c == nil {
		if last == nil {
			return Outcome{}, fault.New(fault.NotFound, "no command was run in this shell yet")
		}
		return *last, nil
	}
	for {
		s.mu.Lock()
		done, o, changed, lost := c.done, c.outcome, s.changed, s.lost
		s.mu.Unlock()
		if done {
			return o, nil
		}
		if lost != nil {
			return Outcome{Command: c.id, Lost: true}, lost
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Outcome{Command: c.id}, ctx.Err()
		}
	}
}
