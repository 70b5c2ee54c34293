package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/butlerhub/butler/pkg/config"
	"github.com/butlerhub/butler/pkg/fault"
)

// Exit codes, as the help tells them.
const (
	exitOK            = 0
	exitFailed        = 1
	exitUsage         = 2
	exitUnauthorized  = 3
	exitUnreachable   = 4
	exitInterrupted   = 130 // by convention 128 + SIGINT
	exitCodesHelpText = `Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 not signed in or not allowed,
4 Butler (or what it needs) cannot be reached, 130 interrupted.`
)

// usageError is about how a command was called.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errReported ends a command as failed when everything was said already.
var errReported = errors.New("failed")

// errInterrupted ends a command that a person broke off.
var errInterrupted = errors.New("interrupted")

func exitCode(err error) int {
	_, invalid := errors.AsType[*config.InvalidError](err)
	_, usage := errors.AsType[usageError](err)
	switch {
	case err == nil:
		return exitOK
	case usage, invalid:
		return exitUsage
	case errors.Is(err, errInterrupted), errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.Is(err, errReported):
		return exitFailed
	}
	switch fault.CodeOf(err) {
	case fault.Unauthenticated, fault.Forbidden:
		return exitUnauthorized
	case fault.Unavailable:
		return exitUnreachable
	default:
		return exitFailed
	}
}

// sentence is how an error is told: what is wrong and what to do, with its cause in brackets.
func sentence(err error) string {
	if errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled) {
		return "interrupted"
	}
	e, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return err.Error()
	}
	text := e.Message
	if e.RetryAfter > 0 {
		text += fmt.Sprintf(" (in %s)", e.RetryAfter)
	}
	if e.Err != nil {
		text += " (" + strings.TrimSpace(rootCause(e.Err)) + ")"
	}
	return text
}

// rootCause gives the text of a cause without the sentences that its own causes repeat.
func rootCause(err error) string {
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Err == nil {
		return e.Message
	}
	return err.Error()
}

// report writes an error to standard error.
func (a *app) report(err error) {
	if err == nil || errors.Is(err, errReported) {
		return
	}
	if a.json {
		code := fault.CodeOf(err)
		if exitCode(err) == exitUsage {
			code = fault.Invalid
		}
		line, _ := json.Marshal(map[string]any{"error": a.sentence(err), "code": code}) // strings only
		fmt.Fprintf(a.err, "%s\n", line)
		return
	}
	fmt.Fprintf(a.err, "butler: %s\n", a.sentence(err))
}
