package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/term"

	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/butler/terminal"
)

// rawScreen writes to a terminal in raw mode, where a newline does not return to the first column.
type rawScreen struct {
	mu sync.Mutex
	w  io.Writer
}

func (r *rawScreen) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.w.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))); err != nil {
		return 0, err
	}
	return len(p), nil
}

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
	t.screen = &rawScreen{w: t.app.out}
	fmt.Fprintf(t.screen, "Butler at %s. /help shows what can be done, Ctrl-D leaves.\n", t.client.Server())
	return t.loop(ctx, terminal.New(t.app.in, t.app.out, columns, history), history)
}

// loop reads lines and answers them until the person leaves or ctx ends. It writes to t.screen.
func (t *talk) loop(ctx context.Context, editor *terminal.Editor, history *terminal.History) error {
	for {
		line, err := editor.ReadLine(ctx, "› ")
		switch {
		case ctx.Err() != nil, errors.Is(err, io.EOF), errors.Is(err, terminal.ErrInterrupted):
			return nil //nolint:nilerr // to leave is no failure
		case err != nil:
			return err
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		history.Add(line)
		text, command := message(line)
		switch {
		case command:
			err = t.command(ctx, line)
		case len(text) > chat.MaxText:
			err = usagef("the message is longer than %d KiB: make it shorter", chat.MaxText>>10)
		default:
			err = t.exchange(ctx, editor, text)
		}
		switch {
		case errors.Is(err, errLeave), ctx.Err() != nil:
			return nil //nolint:nilerr // to leave is no failure
		case fault.CodeOf(err) == fault.Unauthenticated:
			return err
		case errors.Is(err, errInterrupted):
			t.notice("not waiting any longer")
		case err != nil:
			t.notice("%s", sentence(err))
		}
	}
}

// exchange asks one question of a conversation; Ctrl-C stops its answer.
func (t *talk) exchange(ctx context.Context, editor *terminal.Editor, text string) error {
	stop := make(chan struct{}, 2)
	unwatch := editor.Watch(func() {
		select {
		case stop <- struct{}{}:
		default:
		}
	})
	defer unwatch()
	answer, err := t.ask(ctx, text, "", stop)
	if err != nil {
		return err
	}
	if answer.Failed() && answer.Status != "stopped" { // of which the answer itself speaks
		t.notice("%s", notWhole(answer))
	}
	fmt.Fprintln(t.screen)
	return nil
}
