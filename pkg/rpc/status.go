package rpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/butlerhub/butler/pkg/fault"
)

// domain marks the statuses that a Butler handler meant, apart from those that gRPC and the network make.
const domain = "butlerhub.com/fault"

// toStatus gives a handler's error as a status: code and sentence of a fault, and when to try again. Of anything else
// only that it is internal, or out of time; the cause stays here.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, isFault := errors.AsType[*fault.Error](err); !isFault {
		if _, isStatus := err.(interface{ GRPCStatus() *status.Status }); isStatus { //nolint:errorlint // unwrapped only
			return err
		}
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return status.Error(codes.DeadlineExceeded, "the call took too long")
		case errors.Is(err, context.Canceled):
			return status.Error(codes.Canceled, "the call was cancelled")
		}
		err = fault.Wrap(err, fault.Internal, "internal error")
	}
	code := fault.CodeOf(err)
	if _, ok := known[string(code)]; !ok {
		code = fault.Internal
	}
	st := status.Convert(fault.GRPC(fault.New(code, "%s", fault.MessageOf(err))))
	info := &errdetails.ErrorInfo{Domain: domain, Reason: string(code)}
	if after := fault.RetryAfter(err); after > 0 {
		if with, e := st.WithDetails(info, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)}); e == nil {
			return with.Err()
		}
	}
	if with, e := st.WithDetails(info); e == nil {
		return with.Err()
	}
	return st.Err()
}

// fromStatus gives what a call returned as a fault. Service is the name that people know ("butler-brain"). A token that
// the other side refuses is a mistake of this installation, so it never looks as if the person were not signed in; and
// what the network says stays in the cause.
func fromStatus(ctx context.Context, service string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	st, ok := status.FromError(err)
	if !ok { // io.EOF at the end of a stream, and errors of this side
		return err
	}
	if code, after, ok := meant(st); ok {
		return &fault.Error{Code: code, Message: st.Message(), RetryAfter: after, Err: err}
	}
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	switch st.Code() {
	case codes.DeadlineExceeded:
		return fault.Wrap(err, fault.Unavailable, "%s took too long; try again", service)
	case codes.Canceled:
		return fault.Wrap(err, fault.Unavailable, "the call to %s was cancelled", service)
	case codes.Unavailable:
		return fault.Wrap(err, fault.Unavailable, "%s does not answer now; try again", service)
	case codes.ResourceExhausted:
		return fault.Wrap(err, fault.TooLarge, "this is too large for %s", service)
	case codes.Unauthenticated:
		return fault.Wrap(err, fault.Internal, "%s refuses this service: INTERNAL_SERVICE_TOKEN must be the same in both",
			service)
	case codes.Unimplemented:
		return fault.Wrap(err, fault.Internal, "%s does not know this call: it runs an older version", service)
	default:
		return fault.Wrap(err, fault.Internal, "internal error")
	}
}

var known = map[string]fault.Code{}

func init() {
	for _, c := range []fault.Code{fault.Invalid, fault.TooLarge, fault.Unauthenticated, fault.Forbidden, fault.NotFound,
		fault.Conflict, fault.RateLimited, fault.Unavailable, fault.Internal} {
		known[string(c)] = c
	}
}

// meant tells whether a handler made the status, and what it said. A code of a newer version is read as its gRPC code.
func meant(st *status.Status) (code fault.Code, after time.Duration, ok bool) {
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() != domain {
				continue
			}
			ok = true
			if code = known[d.GetReason()]; code == "" {
				code = fault.CodeOf(st.Err())
			}
		case *errdetails.RetryInfo:
			after = max(0, d.GetRetryDelay().AsDuration())
		}
	}
	return code, after, ok
}
