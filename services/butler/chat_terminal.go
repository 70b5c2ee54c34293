package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/term"

	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/sealed"
	"github.com/butlerhub/butler/services/butler/client"
	"github.com/butlerhub/butler/services/butler/terminal"
)

// converse talks in a terminal until the person leaves.
func (t *talk) converse() error {
	in, ok := terminalOf(t.app.in)
	if !ok {
		return usagef("there is nothing to ask: give a question, or write it to standard input")
	}
	out, ok := terminalOf(t.app.out)
	if !ok {
		return usagef("a conversation needs a terminal to write to as well: give a question as an argument")
	}
	ctx, cancel := t.app.context()
	defer cancel()
	if err := t.connect(ctx); err != nil { // before the prompt: nothing can be said without
		return err
	}
	state, err := term.MakeRaw(in)
	if err != nil {
		return fault.Wrap(err, fault.Internal, "the terminal cannot be used")
	}
	defer term.Restore(in, state) //nolint:errcheck // nothing else can be done
	history := &terminal.History{}
	if dir, err := t.app.configDir(); err == nil {
		history = terminal.OpenHistory(filepath.Join(dir, "history"))
	}
	columns := func() int {
		w, _, err := term.GetSize(out)
		if err != nil {
			return 80
		}
		return w
	}
	return t.loop(ctx, terminal.New(t.app.in, t.app.out, columns, history), history)
}

// loop reads lines and sends each at once, also while answers to others are awaited, until the person leaves or ctx ends.
// From then on the editor is the screen.
func (t *talk) loop(ctx context.Context, editor *terminal.Editor, history *terminal.History) error {
	t.screen = editor
	if err := t.connect(ctx); err != nil {
		return err
	}
	t.display(fmt.Sprintf(t.app.say(
		"Butler at %s. /help shows what Butler can do, /chat what this terminal can, Ctrl-D leaves.\n",
		"Butler 位于 %s。/help 查看 Butler 的功能，/chat 查看此终端的用法，Ctrl-D 离开。\n"), t.client.Server()))
	ctx, fail := context.WithCancelCause(ctx)
	c := &conversation{talk: t, history: history, fail: fail}
	defer c.pending.Wait()
	defer fail(nil)
	for {
		line, err := editor.ReadLine(ctx, "› ")
		switch {
		case ctx.Err() != nil:
			if cause := context.Cause(ctx); fault.CodeOf(cause) == fault.Unauthenticated {
				return cause
			}
			return nil
		case errors.Is(err, terminal.ErrInterrupted):
			if !c.interrupt() {
				return nil
			}
			continue
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		switch {
		case strings.TrimSpace(line) == "":
			if c.busy() { // a program may wait for it
				t.notice("%s", t.app.say("an empty line is not sent; /key Enter presses Enter", "空行不会发送；/key Enter 可按下回车"))
			}
			continue
		case len(line) > chat.MaxText:
			t.notice(t.app.say("the message is longer than %d KiB: make it shorter", "消息超过 %d KiB，请缩短"), chat.MaxText>>10)
			continue
		}
		known, err := t.command(ctx, line)
		if !known {
			c.submit(ctx, line)
			continue
		}
		history.Add(line)
		switch {
		case errors.Is(err, errLeave), ctx.Err() != nil:
			return nil //nolint:nilerr // to leave is no failure
		case fault.CodeOf(err) == fault.Unauthenticated:
			return err
		case err != nil:
			t.notice("%s", t.app.sentence(err))
		}
	}
}

// maxOpen bounds how many answers are awaited at once.
const maxOpen = 64

// conversation is what was entered in a terminal and is not answered yet.
type conversation struct {
	talk    *talk
	history *terminal.History
	fail    context.CancelCauseFunc // ends the loop
	pending sync.WaitGroup

	mu        sync.Mutex
	open      []*exchange // the oldest first
	abandoned bool        // an answer was not waited for: its command may run on
}

// exchange is a message whose answer is awaited.
type exchange struct {
	stop     chan struct{} // each value is a Ctrl-C
	drop     context.CancelFunc
	accepted bool          // it is in the log
	settled  chan struct{} // closed when it is, or will not be
}

func (c *conversation) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open) > 0 || c.abandoned
}

// interrupt stops the oldest answer that is awaited; the second time it gives up waiting for it. What was entered after it and
// is not in the log is given up at once: nobody expects it to be sent once the command that it was for is gone. It is false
// when nothing is awaited.
func (c *conversation) interrupt() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) == 0 {
		return false
	}
	for _, x := range c.open[1:] {
		if !x.accepted {
			x.drop()
		}
	}
	select {
	case c.open[0].stop <- struct{}{}:
	default:
	}
	return true
}

// submit sends a message and shows its answer when it comes; it does not wait for that.
func (c *conversation) submit(ctx context.Context, text string) {
	busy := c.busy()
	own, drop := context.WithCancel(ctx)
	x := &exchange{stop: make(chan struct{}, 2), drop: drop, settled: make(chan struct{})}
	c.mu.Lock()
	if len(c.open) >= maxOpen {
		c.mu.Unlock()
		drop()
		c.talk.notice(c.talk.app.say("%d answers are awaited already; this was not sent", "已有 %d 个回答在等待，此消息没有发送"), maxOpen)
		return
	}
	// Programs read lines in the order in which they were entered, so each waits until the one before it is in the log.
	before := closed
	if n := len(c.open); n > 0 {
		before = c.open[n-1].settled
	}
	c.open = append(c.open, x)
	c.mu.Unlock()
	settle := sync.OnceFunc(func() { close(x.settled) })
	q := asked{
		text: text, stop: x.stop,
		accepted: func() {
			c.mu.Lock()
			x.accepted = true
			c.mu.Unlock()
			settle()
		},
		echoed: func(written string) {
			if kept(text, written, busy) {
				c.history.Add(text)
			}
		},
	}
	thread := c.talk.thread()
	c.pending.Go(func() {
		defer func() {
			c.mu.Lock()
			c.open = slices.DeleteFunc(c.open, func(o *exchange) bool { return o == x })
			c.mu.Unlock()
			drop()
			settle()
		}()
		select {
		case <-before:
		case <-own.Done():
		}
		if own.Err() != nil {
			if ctx.Err() == nil {
				c.talk.notice("%s", c.talk.app.say("what was entered after it was not sent", "其后输入的内容没有发送"))
			}
			return
		}
		answer, err := c.talk.ask(own, thread, q)
		if ctx.Err() == nil {
			c.ended(answer, err)
		}
	})
}

// closed is a channel that is closed.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// ended says what else there is to say of an answer, or why there is none.
func (c *conversation) ended(answer client.Answer, err error) {
	t := c.talk
	switch {
	case fault.CodeOf(err) == fault.Unauthenticated:
		c.fail(err)
	case errors.Is(err, errInterrupted):
		c.mu.Lock()
		c.abandoned = true
		c.mu.Unlock()
		t.notice("%s", t.app.say("not waiting any longer", "不再等待"))
	case err != nil:
		t.notice("%s", t.app.sentence(err))
	case answer.Failed() && answer.Status != "stopped": // of which the answer itself speaks
		t.notice("%s", t.app.notWhole(answer))
	default:
		t.display("\n")
	}
}

// kept says whether a message belongs in the history. What answers a prompt does not, and which program asks for what is not
// known here. So while any answer is awaited only what is for Butler itself is kept: a slash word or a decision. And never
// what the log has in another form than it was entered, which is how the gateway writes an answer to a password prompt, also
// to that of a command that was run elsewhere.
func kept(text, written string, busy bool) bool {
	if strings.TrimSpace(text) != strings.TrimSpace(written) {
		return false
	}
	return !busy || sealed.ForButler(text)
}
