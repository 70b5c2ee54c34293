package client

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/butlerhub/butler/pkg/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseServer(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"http://127.0.0.1:8080":           "http://127.0.0.1:8080",
		"127.0.0.1:8080":                  "http://127.0.0.1:8080",
		"butler.local":                    "http://butler.local",
		"https://butler.example.org/":     "https://butler.example.org",
		"https://example.org/butler/?a=b": "https://example.org/butler",
		"ftp://example.org":               "",
		"http://":                         "",
		"http://user:secret@example.org":  "",
		"http://[::1":                     "",
	} {
		u, err := ParseServer(in)
		if want == "" {
			require.Error(t, err, in)
			assert.NotContains(t, err.Error(), "secret")
			continue
		}
		require.NoError(t, err, in)
		assert.Equal(t, want, u.String(), in)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status  int
		body    string
		header  string
		code    fault.Code
		message string
	}{
		"the server's own words": {409, `{"error":"this name is taken","code":"conflict"}`, "", fault.Conflict, "this name is taken"},
		"a proxy's page":         {502, `<html>bad gateway</html>`, "", fault.Unavailable, "502"},
		"token refused":          {401, `{"error":"sign in first","code":"unauthenticated"}`, "", fault.Unauthenticated, "butler login"},
		"busy":                   {429, `{"error":"too many","code":"rate_limited"}`, "7", fault.RateLimited, "too many"},
		"control characters":     {400, `{"error":"a\u001b[31mred","code":"invalid"}`, "", fault.Invalid, "a [31mred"},
		"redirect":               {302, ``, "", fault.Invalid, "--server"},
		"not Butler":             {200, `<html>`, "", fault.Internal, "is it the right address"},
		"teapot":                 {418, ``, "", fault.Invalid, "418"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, "Bearer secret-token", r.Header.Get("Authorization"))
				if c.header != "" {
					w.Header().Set("Retry-After", c.header)
				}
				if c.status == http.StatusFound {
					w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
				}
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			}))
			defer srv.Close()
			cl, err := New(srv.URL, "secret-token", "test")
			require.NoError(t, err)
			defer cl.Close()
			_, err = cl.Me(context.Background())
			assert.Equal(t, c.code, fault.CodeOf(err))
			assert.Contains(t, fault.MessageOf(err), c.message)
			assert.NotContains(t, err.Error(), "secret-token")
			if c.header != "" {
				assert.Equal(t, 7*time.Second, fault.RetryAfter(err))
			}
		})
	}
}

func TestUnreachableSaysWhatToDo(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.NotFoundHandler())
	addr := srv.URL
	srv.Close()
	cl, err := New(addr, "", "test")
	require.NoError(t, err)
	defer cl.Close()
	err = cl.Ping(context.Background())
	assert.Equal(t, fault.Unavailable, fault.CodeOf(err))
	assert.Contains(t, fault.MessageOf(err), "butler up")
}

func TestListsAreReadAlsoWhenNamed(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`[{"id":7,"title":"a"}]`, `{"threads":[{"id":7,"title":"a"}],"next":null}`} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, "trip", r.URL.Query().Get("q"))
			_, _ = w.Write([]byte(body))
		}))
		cl, err := New(srv.URL, "t", "test")
		require.NoError(t, err)
		page, err := cl.Threads(context.Background(), ThreadFilter{Query: "trip"})
		require.NoError(t, err)
		assert.Equal(t, []Thread{{ID: 7, Title: "a"}}, page.Items)
		assert.JSONEq(t, `[{"id":7,"title":"a"}]`, string(page.Raw))
		cl.Close()
		srv.Close()
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "config", "butler")
	c := CredentialsIn(dir)
	_, ok, err := c.Load("http://a")
	require.NoError(t, err)
	assert.False(t, ok)
	require.NoError(t, c.Save("http://a", SignIn{Token: "t1", Username: "alice"}))
	require.NoError(t, c.Save("http://b", SignIn{Token: "t2", Username: "bob"}))
	info, err := os.Stat(c.Path())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	s, ok, err := c.Load("http://a")
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, "t1", s.Token)
	gone, err := c.Delete("http://a")
	require.NoError(t, err)
	assert.True(t, gone)
	_, ok, err = c.Load("http://a")
	require.NoError(t, err)
	assert.False(t, ok)
	_, ok, err = c.Load("http://b")
	require.NoError(t, err)
	assert.True(t, ok)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 1, "no half-written file stays")

	require.NoError(t, os.Chmod(c.Path(), 0o644))
	_, _, err = c.Load("http://b")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "chmod 600")
	require.NoError(t, os.Chmod(c.Path(), 0o600))
	require.NoError(t, os.WriteFile(c.Path(), []byte("{"), 0o600))
	_, _, err = c.Load("http://b")
	assert.ErrorContains(t, err, "damaged")
}

func TestLocalIDsAreOfTheirOwn(t *testing.T) {
	t.Parallel()
	a, b := NewLocalID(), NewLocalID()
	assert.NotEqual(t, a, b)
	assert.True(t, strings.HasPrefix(a, "cli-"))
}
