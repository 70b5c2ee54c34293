package tmux

import (
	"errors"
	"fmt"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// ErrUnsupported is what Open returns where shells cannot be kept.
var ErrUnsupported = fault.New(fault.Unavailable,
	"shells need Linux with tmux and bash: run the shell-runner on a Linux host, or start without it")

// ErrClosed is what calls on a closed Host, or on a session that its own Close ended, return.
var ErrClosed = fault.New(fault.Unavailable, "the shells of this host are being closed")

// SessionNotFoundError says that the session's tmux server is gone. It is transient: Host.Session makes a new one, with
// a new generation, but whatever ran in the old one is not run again.
type SessionNotFoundError struct {
	Session string
	cause   *fault.Error
}

func sessionNotFound(name string, err error) *SessionNotFoundError {
	return &SessionNotFoundError{name, fault.Wrap(err, fault.Unavailable,
		"the shell %s is gone; send the message again for a new one", name)}
}

func (e *SessionNotFoundError) Error() string { return e.cause.Error() }
func (e *SessionNotFoundError) Unwrap() error { return e.cause }

// TmuxTimeoutError says that tmux did not answer in time. Whether what was asked happened is unknown.
type TmuxTimeoutError struct { //nolint:revive // the published name
	Session string
	After   time.Duration
	cause   *fault.Error
}

func tmuxTimeout(name string, after time.Duration) *TmuxTimeoutError {
	return &TmuxTimeoutError{name, after, fault.New(fault.Unavailable,
		"the terminal of %s did not answer within %s; try again", name, after)}
}

func (e *TmuxTimeoutError) Error() string { return e.cause.Error() }
func (e *TmuxTimeoutError) Unwrap() error { return e.cause }

// TmuxCommandError says that tmux refused a command.
type TmuxCommandError struct { //nolint:revive // the published name
	Session string
	Reason  string // what tmux said, bounded
	cause   *fault.Error
}

func tmuxCommand(name, reason string) *TmuxCommandError {
	reason = cut(reason, 300)
	return &TmuxCommandError{name, reason, fault.Wrap(errors.New(reason), fault.Unavailable,
		"the terminal of %s refused a request", name)}
}

func (e *TmuxCommandError) Error() string { return e.cause.Error() }
func (e *TmuxCommandError) Unwrap() error { return e.cause }

// BusyError says that the shell is not at a prompt.
type BusyError struct {
	Session string
	Command string  // id of the command that runs, "" when it was typed by hand
	Process Process // what is in the foreground, when known
	cause   *fault.Error
}

func busy(name, command string, p Process) *BusyError {
	what := "something"
	if p.Name != "" {
		what = p.Name
	}
	return &BusyError{name, command, p, fault.New(fault.Conflict,
		"%s is still running in this shell: wait for it, answer it, or stop it with /key C-c", what)}
}

func (e *BusyError) Error() string { return e.cause.Error() }
func (e *BusyError) Unwrap() error { return e.cause }

// IntegrationLostError says that the program which should be the session's shell no longer tells what it does: it was
// replaced (exec), or its settings were changed. Restart starts a fresh one.
type IntegrationLostError struct {
	Session string
	cause   *fault.Error
}

func integrationLost(name string) *IntegrationLostError {
	return &IntegrationLostError{name, fault.New(fault.Conflict,
		"this shell was replaced or changed so that its commands can no longer be followed: use /kill for a fresh one")}
}

func (e *IntegrationLostError) Error() string { return e.cause.Error() }
func (e *IntegrationLostError) Unwrap() error { return e.cause }

// LimitError says that a limit on sessions was reached.
type LimitError struct {
	Limit int
	cause *fault.Error
}

func (e *LimitError) Error() string { return e.cause.Error() }
func (e *LimitError) Unwrap() error { return e.cause }

func limitf(limit int, wait time.Duration, format string, args ...any) *LimitError {
	return &LimitError{limit, &fault.Error{
		Code: fault.RateLimited, Message: fmt.Sprintf(format, args...), RetryAfter: wait}}
}
