// Package fault is the error that crosses Butler's packages and processes: a code that programs act on, a class that
// decides whether trying again can help, and a sentence for people. Only the edge (HTTP, WebSocket, gRPC, the command
// line) turns it into what its caller sees.
package fault

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Class says what can be done about an error.
type Class string

const (
	// Transient errors may go away: trying again is right.
	Transient Class = "transient"
	// Permanent errors stay until somebody changes something in Butler or its settings.
	Permanent Class = "permanent"
	// User errors are about what was asked; its sender can mend it.
	User Class = "user"
)

// Code names a kind of error for programs. The zero Code is Internal.
type Code string

const (
	// Invalid: the request is malformed or breaks a limit.
	Invalid Code = "invalid"
	// TooLarge: the request is bigger than allowed.
	TooLarge Code = "too_large"
	// Unauthenticated: nobody is signed in, or the token is not valid.
	Unauthenticated Code = "unauthenticated"
	// Forbidden: signed in, but not allowed.
	Forbidden Code = "forbidden"
	// NotFound: there is no such thing, or it is not the caller's.
	NotFound Code = "not_found"
	// Conflict: it exists already, or was decided already.
	Conflict Code = "conflict"
	// Drift: what would happen is not what was approved any more; ask again.
	Drift Code = "drift"
	// RateLimited: too many requests; RetryAfter says when to try again.
	RateLimited Code = "rate_limited"
	// Unavailable: something that is needed does not answer now.
	Unavailable Code = "unavailable"
	// Internal: a defect or an unexpected state.
	Internal Code = "internal"
)

// Error is an error with a code. Message is a sentence for people, without secrets; the cause stays for the log.
type Error struct {
	Code       Code
	Message    string
	RetryAfter time.Duration // how long to wait before another try, when known
	Err        error         // cause, may be nil
}

// New returns an error with a sentence for people.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Wrap returns an error with a sentence for people and the error that caused it.
func Wrap(err error, code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: err}
}

// Error gives the sentence and the cause.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf gives the code of the first Error in err's chain; gRPC statuses and context errors are understood too, and
// anything else is Internal. CodeOf(nil) is "".
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return Unavailable
	}
	if s, ok := status.FromError(err); ok {
		for code, g := range grpcCodes {
			if g == s.Code() {
				return code
			}
		}
		if s.Code() == codes.DeadlineExceeded || s.Code() == codes.Canceled {
			return Unavailable
		}
	}
	return Internal
}

// ClassOf says what can be done about err.
func ClassOf(err error) Class {
	switch CodeOf(err) {
	case Unavailable, RateLimited:
		return Transient
	case Internal:
		return Permanent
	default:
		return User
	}
}

// MessageOf gives the sentence for people: an Error's own, and for anything else a general one, so that no internal
// detail reaches a client by accident.
func MessageOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Message
	}
	if s, ok := status.FromError(err); ok && CodeOf(err) != Internal {
		return s.Message()
	}
	if CodeOf(err) == Unavailable {
		return "this takes too long now; try again"
	}
	return "internal error"
}

// RetryAfter gives how long to wait before another try, 0 when unknown.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// HTTPStatus gives the HTTP status for err.
func HTTPStatus(err error) int {
	switch CodeOf(err) {
	case "":
		return http.StatusOK
	case Invalid:
		return http.StatusBadRequest
	case TooLarge:
		return http.StatusRequestEntityTooLarge
	case Unauthenticated:
		return http.StatusUnauthorized
	case Forbidden:
		return http.StatusForbidden
	case NotFound:
		return http.StatusNotFound
	case Conflict, Drift:
		return http.StatusConflict
	case RateLimited:
		return http.StatusTooManyRequests
	case Unavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

var grpcCodes = map[Code]codes.Code{
	Invalid:         codes.InvalidArgument,
	TooLarge:        codes.OutOfRange,
	Unauthenticated: codes.Unauthenticated,
	Forbidden:       codes.PermissionDenied,
	NotFound:        codes.NotFound,
	Conflict:        codes.AlreadyExists,
	Drift:           codes.FailedPrecondition,
	RateLimited:     codes.ResourceExhausted,
	Unavailable:     codes.Unavailable,
	Internal:        codes.Internal,
}

// GRPC gives err as a gRPC status error, which CodeOf understands on the other side.
func GRPC(err error) error {
	if err == nil {
		return nil
	}
	if _, ours := errors.AsType[*Error](err); !ours {
		if _, ok := status.FromError(err); ok {
			return err
		}
	}
	return status.Error(grpcCodes[CodeOf(err)], MessageOf(err))
}
