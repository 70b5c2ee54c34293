package fault

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestCodesSurviveWrappingAndGRPC(t *testing.T) {
	for code := range grpcCodes {
		err := fmt.Errorf("while testing: %w", New(code, "a sentence"))
		require.Equal(t, code, CodeOf(err))
		require.Equal(t, "a sentence", MessageOf(err))
		require.Equal(t, code, CodeOf(GRPC(err)), "through gRPC")
		require.GreaterOrEqual(t, HTTPStatus(err), 400)
	}
}

func TestForeignErrorsGiveNothingAway(t *testing.T) {
	err := errors.New("password is hunter2")
	require.Equal(t, Internal, CodeOf(err))
	require.Equal(t, "internal error", MessageOf(err))
	require.NotContains(t, GRPC(err).Error(), "hunter2")
	wrapped := Wrap(status.Error(codes.Unknown, "password is hunter2"), Unavailable, "it does not answer")
	require.NotContains(t, GRPC(wrapped).Error(), "hunter2")
	require.Equal(t, Unavailable, CodeOf(GRPC(wrapped)))
	require.Equal(t, http.StatusInternalServerError, HTTPStatus(err))
	require.Equal(t, Transient, ClassOf(context.DeadlineExceeded))
	require.Equal(t, http.StatusOK, HTTPStatus(nil))
	require.NoError(t, GRPC(nil))
}
