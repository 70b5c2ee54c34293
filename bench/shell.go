package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// shellCase is one Butler, a person at their shell, and what that gave.
type shellCase struct {
	name    string
	butler  *product
	person  *person
	log     *rawLog
	bare    *bareShell
	started time.Time // of what the log has of it
	dir     string    // of the file that the commands write

	typed, asked commands
	rawEcho      durations
	rawAppend    durations
	ratio        series // of the rounds' p50
	cpu          time.Duration
}

// commands is what became of commands of one kind.
type commands struct {
	done     []command
	appended map[string]uint64 // events of a stream, of all of them
	failed   int
	late     int // whose output came with the answer and not before it
	why      string
}

// command is one of them, as the person saw it.
type command struct {
	action string // its approval
	local  string
	sent   time.Time

	card, decided time.Time // where it was asked for: the request was seen, the answer sent
	output, final time.Time
}

func (c commands) times(of func(command) time.Duration) durations {
	out := make(durations, len(c.done))
	for i, one := range c.done {
		out[i] = of(one)
	}
	return out
}

func untilOutput(c command) time.Duration   { return c.output.Sub(c.sent) }
func untilFinal(c command) time.Duration    { return c.final.Sub(c.sent) }
func untilCard(c command) time.Duration     { return c.card.Sub(c.sent) }
func fromDecision(c command) time.Duration  { return c.output.Sub(c.decided) }
func decisionToEnd(c command) time.Duration { return c.final.Sub(c.decided) }

// shellFrame is what is looked at in a frame of the server.
type shellFrame struct {
	frame
	Payload  json.RawMessage `json:"payload"` // text, or the fields of a request
	ActionID string          `json:"action_id"`
	Command  string          `json:"command"`
}

func (f *shellFrame) text() string {
	var text string
	_ = json.Unmarshal(f.Payload, &text) // "": it is no text
	return text
}

// shellSpan bounds one command, so that a lost one ends the run.
const shellSpan = 60 * time.Second

// shells measures commands in a person's shell beside the same shell on a bare pseudo-terminal.
func shells(ctx context.Context, r *rig, out *report) error {
	if _, err := exec.LookPath("tmux"); err != nil {
		r.say("shell: left out, there is no tmux on this machine")
		return nil
	}
	if !canBeBare {
		r.say("shell: left out, shells are for Linux")
		return nil
	}
	var cases []*shellCase
	for _, s := range r.o.sync {
		c, err := r.newShellCase(ctx, s)
		if err != nil {
			return err
		}
		cases = append(cases, c)
	}
	for round := range r.o.rounds {
		for _, c := range inTurn(cases, round) {
			r.say("shell: round %d of %d, sync %s", round+1, r.o.rounds, c.name)
			if err := c.round(ctx, round, r.o.messages); err != nil {
				return errors.Join(err, errors.New(c.butler.tail()))
			}
		}
	}
	for _, c := range cases {
		if err := c.report(ctx, out); err != nil {
			return err
		}
	}
	out.table(table{
		group: "shell", rows: "sync, command",
		title: "Shell: a command typed in an attached conversation → its output, through `butler up`, tmux and bash",
		notes: []string{
			"echo: `!echo hi`, which runs by itself; asked: one that also writes a file, confirmed by the person at once",
			"p50, p99: frame sent → its output seen, for asked: answer to the request sent → output seen; final: → last frame",
			"card: frame sent → request seen; raw: `echo hi` of a bash on a bare pseudo-terminal; raw append: one of a turn's two",
			"appends: events of CHAT, APPROVAL, AUDIT and WORK that one command makes, before its output and after",
		},
	})
	out.table(table{
		group: "shell way", rows: "sync, command",
		title: "Shell: where the time goes: ms from the frame (asked: from the answer) until … , medians; times of the log are the server's",
	})
	return nil
}

// newShellCase runs a Butler whose only person may use the shell, and readies everything.
func (r *rig) newShellCase(ctx context.Context, s syncSetting) (*shellCase, error) {
	c := &shellCase{name: s.name, typed: commands{appended: map[string]uint64{}}, asked: commands{appended: map[string]uint64{}}}
	// Sockets of tmux lie in it, and their paths must be short.
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		return nil, err
	}
	r.onClose(func() { _ = os.RemoveAll(dir) })
	r.onClose(func() {
		if err := endShells(filepath.Join(dir, "shells")); err != nil {
			r.say("shells in %s could not be ended: %v", dir, err)
		}
	})
	if c.dir, err = r.folder(); err != nil {
		return nil, err
	}
	if c.log, err = r.newRawLog(ctx, s); err != nil {
		return nil, err
	}
	if c.bare, err = newBareShell(); err != nil {
		return nil, err
	}
	r.onClose(c.bare.close)
	if c.butler, err = r.newProduct(r.butler, dir, "BUTLER_NATS_SYNC="+s.name, "BUTLER_ALLOWED_USERS=person-1"); err != nil {
		return nil, err
	}
	if err := c.butler.start(ctx, "up"); err != nil {
		return nil, err
	}
	people, err := c.butler.people(ctx, 1)
	if err != nil {
		return nil, err
	}
	c.person = people[0]
	// The shell begins, and everything is touched once before it counts.
	warm := &commands{}
	if err := c.speak(ctx, "warm", 0, func(ctx context.Context, t *typist) error {
		for i := range 3 {
			if err := t.run(ctx, warm, fmt.Sprintf("w%d", i), ""); err != nil {
				return err
			}
		}
		return t.run(ctx, warm, "w3", filepath.Join(c.dir, "warm"))
	}); err != nil {
		return nil, errors.Join(err, errors.New(c.butler.tail()))
	}
	if warm.failed > 0 {
		return nil, fmt.Errorf("a command did not run: %s", warm.why)
	}
	for i := range 3 {
		if _, err := c.bare.echo(fmt.Sprintf("w%d", i)); err != nil {
			return nil, err
		}
	}
	c.started = time.Now()
	return c, nil
}

// endShells ends the shells that a shell-runner left in its folder, as they are made to be left.
func endShells(dir string) error {
	h, err := tmux.Open(tmux.Config{Dir: dir})
	if err != nil {
		return err
	}
	defer h.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = h.Recover(ctx)
	for _, s := range h.Sessions() {
		err = errors.Join(err, s.Close(ctx))
	}
	return err
}

// round measures the bare shell, commands that run by themselves, and commands that are asked for, half as many.
func (c *shellCase) round(ctx context.Context, round, n int) error {
	asks := max(1, n/2)
	var rawP50, p50 float64
	raw := func() error {
		var times durations
		for i := range n {
			took, err := c.bare.echo(fmt.Sprintf("hi-%d-%d", round, i))
			if err != nil {
				return err
			}
			times = append(times, took)
		}
		rawP50 = times.ms(0.5)
		c.rawEcho = append(c.rawEcho, times...)
		asked, answer, err := c.butler.newest(ctx)
		if err != nil {
			return err
		}
		pairs, _, err := c.log.turns(ctx, 1, n, asked, answer)
		for _, p := range pairs {
			c.rawAppend = append(c.rawAppend, p/2)
		}
		return err
	}
	butler := func() error {
		return c.speak(ctx, fmt.Sprintf("r%d", round), n+2*asks, func(ctx context.Context, t *typist) error {
			before := len(c.typed.done)
			began := cpu(c.butler.pid())
			err := c.counted(ctx, &c.typed, func() error {
				for i := range n {
					if err := t.run(ctx, &c.typed, fmt.Sprintf("hi-%d-%d", round, i), ""); err != nil {
						return err
					}
				}
				return nil
			})
			c.cpu += cpu(c.butler.pid()) - began
			if err != nil {
				return err
			}
			p50 = commands{done: c.typed.done[before:]}.times(untilOutput).ms(0.5)
			return c.counted(ctx, &c.asked, func() error {
				for i := range asks {
					if err := t.run(ctx, &c.asked, fmt.Sprintf("yes-%d-%d", round, i), filepath.Join(c.dir, "written")); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	for _, f := range inTurn([]func() error{raw, butler}, round) {
		if err := f(); err != nil {
			return err
		}
	}
	c.ratio = append(c.ratio, p50/rawP50)
	return nil
}

// typist is a person with a connection and a conversation that is attached to their shell.
type typist struct {
	ws           *websocket.Conn
	prefix       string
	conversation int64
	n            int
}

// speak opens a connection, attaches a new conversation to the shell, and has f type there; n is how many messages and
// answers that will be.
func (c *shellCase) speak(ctx context.Context, prefix string, n int, f func(context.Context, *typist) error) error {
	conversation, err := c.butler.conversation(ctx, c.person)
	if err != nil {
		return err
	}
	ws, err := c.butler.connect(ctx, c.person)
	if err != nil {
		return err
	}
	defer ws.CloseNow() //nolint:errcheck // whatever is left of it
	if err := pause(ctx, c.person.spend(n+1, time.Now())); err != nil {
		return err
	}
	t := &typist{ws: ws, prefix: prefix, conversation: conversation}
	var attached commands
	if err := t.exchange(ctx, &attached, "/shell", "", ""); err != nil {
		return err
	}
	if attached.failed > 0 {
		return fmt.Errorf("the shell could not be attached: %s", attached.why)
	}
	return f(ctx, t)
}

// run has one command print word; with a file it also writes to it, which is asked for and confirmed.
func (t *typist) run(ctx context.Context, into *commands, word, file string) error {
	command := "echo " + word
	if file != "" {
		command += "; echo x >>" + file
	}
	return t.exchange(ctx, into, "!"+command, command, word+"\n")
}

// exchange sends a message and reads until its final frame. want is what the output must show, a line of its own, "" for
// nothing. What goes wrong with the one command is noted; an error is about the connection.
func (t *typist) exchange(ctx context.Context, into *commands, text, line, want string) error {
	ctx, cancel := context.WithTimeout(ctx, shellSpan)
	defer cancel()
	t.n++
	one := command{local: fmt.Sprintf("%s-%d", t.prefix, t.n)}
	message, err := json.Marshal(map[string]any{
		"type": "CHAT", "target_id": 2, "local_id": one.local, "conversation_id": t.conversation, "payload": text,
	})
	if err != nil {
		return err
	}
	one.sent = time.Now()
	if err := t.ws.Write(ctx, websocket.MessageText, message); err != nil {
		return err
	}
	var shown strings.Builder
	fail := func(why string) {
		into.failed++
		into.why = fmt.Sprintf("%s: %s", text, why)
	}
	for {
		_, data, err := t.ws.Read(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		now := time.Now()
		var f shellFrame
		if err := json.Unmarshal(data, &f); err != nil {
			return err
		}
		switch {
		case f.Type == "AUTH_REQUEST" && one.card.IsZero() && f.Command == line:
			one.card = now
			yes, err := json.Marshal(map[string]any{"type": "AUTH_RESPONSE", "action_id": f.ActionID, "approved": true})
			if err != nil {
				return err
			}
			one.decided = time.Now()
			if err := t.ws.Write(ctx, websocket.MessageText, yes); err != nil {
				return err
			}
		case f.Type == "CHAT_STREAM" && f.ReplyToLocalID == one.local && one.output.IsZero():
			shown.WriteString(f.text())
			if want != "" && strings.Contains(shown.String(), want) {
				one.output, one.action = now, f.StreamID
			}
		case f.Type == "CHAT" && f.ReplyToLocalID == one.local:
			one.final = now
			switch {
			case f.Status != "answered" || f.Reason != "":
				fail(f.Status + " " + f.Reason + ": " + f.text())
			case want != "" && one.output.IsZero() && strings.Contains(f.text(), want):
				into.late++ // the person has it, but only now
				one.output, one.action = now, f.StreamID
				into.done = append(into.done, one)
			case want != "" && one.output.IsZero():
				fail("it shows no output: " + f.text())
			case want != "" && (f.StreamID != one.action || one.action == ""):
				fail("the answer names another stream than its output had")
			default:
				into.done = append(into.done, one)
			}
			return nil
		case f.Type == "ERROR" && (f.LocalID == one.local || f.LocalID == ""):
			return fmt.Errorf("%s: %s: %s", text, f.Code, f.text())
		}
	}
}

// written counts the lines in a file of a case.
func (c *shellCase) written(name string) (int, error) {
	data, err := os.ReadFile(filepath.Join(c.dir, name))
	return bytes.Count(data, []byte("\n")), err
}

func (c *shellCase) report(ctx context.Context, out *report) error {
	const g = "shell"
	way, err := c.way(ctx)
	if err != nil {
		return err
	}
	lines, err := c.written("written")
	if err != nil {
		return err
	}
	echo, asked := c.name+", echo", c.name+", asked"
	once := lines - len(c.asked.done) - c.asked.failed

	t := c.typed.times(untilOutput)
	p50 := out.add(g, echo, "p50", t.ms(0.5), "ms")
	p50.below(3)
	out.add(g, echo, "p99", t.ms(0.99), "ms")
	out.add(g, echo, "final", c.typed.times(untilFinal).ms(0.5), "ms")
	out.add(g, echo, "raw p50", c.rawEcho.ms(0.5), "ms")
	out.add(g, echo, "raw p99", c.rawEcho.ms(0.99), "ms")
	out.addSeries(g, echo, "× raw", c.ratio, "")
	out.add(g, echo, "raw append", c.rawAppend.ms(0.5), "ms")
	out.add(g, echo, "cpu butler", milliseconds(c.cpu)/float64(max(1, len(c.typed.done))), "ms")
	out.add(g, echo, "failed", float64(c.typed.failed), "").below(1)
	out.add(g, echo, "late", float64(c.typed.late), "").below(1)
	out.add(g, echo, "appends", c.typed.perCommand(), "")

	t = c.asked.times(fromDecision)
	out.add(g, asked, "p50", t.ms(0.5), "ms")
	p99 := out.add(g, asked, "p99", t.ms(0.99), "ms")
	p99.below(20)
	out.add(g, asked, "card", c.asked.times(untilCard).ms(0.5), "ms")
	out.add(g, asked, "final", c.asked.times(decisionToEnd).ms(0.5), "ms")
	out.add(g, asked, "failed", float64(c.asked.failed), "").below(1)
	out.add(g, asked, "late", float64(c.asked.late), "").below(1)
	out.add(g, asked, "doubled", float64(max(0, once)), "").below(1)
	out.add(g, asked, "lost", float64(max(0, -once)), "").below(1)
	out.add(g, asked, "appends", c.asked.perCommand(), "")
	for kind, of := range map[string]*commands{echo: &c.typed, asked: &c.asked} {
		if of.why != "" {
			return fmt.Errorf("%s: %d commands failed, the last one: %s", kind, of.failed, of.why)
		}
	}
	way(out)
	return nil
}
