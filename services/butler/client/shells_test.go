package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/fault"
)

// Half an output is an error, and so is one that cannot be written; the output itself comes as it is.
func TestTheOutputOfACommand(t *testing.T) {
	t.Parallel()
	const whole, broken = "6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f57", "6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f58"
	text := strings.Repeat("你好\n", 100_000)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			t.Error("without the token")
		}
		switch r.URL.Path {
		case "/butler/api/shell/commands/" + whole + "/output":
			_, _ = io.WriteString(w, text)
		case "/butler/api/shell/commands/" + broken + "/output":
			_, _ = io.WriteString(w, text)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":"there is no such command","code":"not_found"}`)
		}
	}))
	defer srv.Close()
	c, err := New(srv.URL+"/butler", "secret", "test")
	require.NoError(t, err)
	defer c.Close()
	var out bytes.Buffer
	require.NoError(t, c.CommandOutput(t.Context(), whole, &out))
	require.True(t, text == out.String())

	err = c.CommandOutput(t.Context(), broken, io.Discard)
	require.Equal(t, fault.Unavailable, fault.CodeOf(err))
	require.Contains(t, err.Error(), "not all of the output")

	err = c.CommandOutput(t.Context(), "other", io.Discard)
	require.Equal(t, fault.NotFound, fault.CodeOf(err))

	full := errors.New("the disk is full")
	require.ErrorIs(t, c.CommandOutput(t.Context(), whole, failing{full}), full)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.CommandOutput(ctx, whole, io.Discard), context.Canceled)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
