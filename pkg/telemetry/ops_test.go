package telemetry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/butlerhub/butler/pkg/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func TestChecksAreCachedForASecond(t *testing.T) {
	t.Parallel()
	ctx, k := t.Context(), &clock{t: time.Unix(1, 0)}
	c := NewChecks()
	c.now = k.now
	require.Equal(t, Report{Ready: true}, c.Report(ctx))
	var calls atomic.Int32
	var down atomic.Bool
	c.Add("nats", func(context.Context) error {
		calls.Add(1)
		if down.Load() {
			return errors.New("cannot reach nats://ann:hunter2@n:4222\nat all")
		}
		return nil
	})
	for range 10 {
		require.True(t, c.Report(ctx).Ready)
	}
	require.EqualValues(t, 1, calls.Load())
	down.Store(true)
	require.True(t, c.Report(ctx).Ready, "still fresh")
	k.add(time.Second)
	require.Equal(t, Report{Missing: []string{"nats: cannot reach nats://[REDACTED]@n:4222 at all"}}, c.Report(ctx))
	require.EqualValues(t, 2, calls.Load())

	c.Add("a", func(context.Context) error { panic("defect") })
	require.Equal(t, []string{"a: the check failed: defect",
		"nats: cannot reach nats://[REDACTED]@n:4222 at all"}, c.Report(ctx).Missing)
	c.Remove("a")
	c.Remove("nats")
	require.True(t, c.Report(ctx).Ready)
	c.Drain()
	require.Equal(t, []string{"process: is shutting down"}, c.Report(ctx).Missing)
}

func TestChecksRunOnceAtATime(t *testing.T) {
	t.Parallel()
	c := NewChecks()
	var calls atomic.Int32
	entered, release := make(chan struct{}), make(chan struct{})
	c.Add("slow", func(context.Context) error {
		if calls.Add(1) == 1 {
			close(entered)
		}
		<-release
		return nil
	})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if !c.Report(t.Context()).Ready {
				t.Error("not ready")
			}
		})
	}
	<-entered
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, c.Report(gone).Ready, "one caller goes away")
	close(release)
	wg.Wait()
	require.EqualValues(t, 1, calls.Load())
}

func TestACheckThatNeverReturnsIsStartedOnce(t *testing.T) {
	t.Parallel()
	k := &clock{t: time.Unix(1, 0)}
	c := NewChecks()
	c.now, c.timeout = k.now, time.Millisecond
	var calls atomic.Int32
	release, done := make(chan struct{}), make(chan struct{})
	c.Add("stuck", func(context.Context) error {
		calls.Add(1)
		defer close(done)
		<-release
		return nil
	})
	require.Equal(t, []string{"stuck: no answer in time"}, c.Report(t.Context()).Missing)
	for range 5 {
		k.add(2 * time.Second)
		require.Equal(t, []string{"stuck: the last check has not returned yet"}, c.Report(t.Context()).Missing)
	}
	require.EqualValues(t, 1, calls.Load())
	close(release)
	<-done
}

func TestOpsAddress(t *testing.T) {
	var out bytes.Buffer
	tel := New(Options{Service: "brain", Version: "1.2.3", Output: &out})
	defer func() { require.NoError(t, tel.Close(context.Background())) }()
	tel.Checks.Add("sql", func(context.Context) error { return errors.New("connection refused") })

	l, err := Listen("BUTLER_OPS_ADDR", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tel.ServeOps(ctx, l) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		resp, err := client.Get("http://" + l.Addr().String() + path)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}
	status, body := get("/health")
	require.Equal(t, 200, status)
	require.JSONEq(t, `{"status":"ok"}`, body)
	status, body = get("/ready")
	require.Equal(t, 503, status)
	require.JSONEq(t, `{"ready":false,"missing":["sql: connection refused"]}`, body)
	tel.Checks.Remove("sql")
	status, body = get("/ready")
	require.Equal(t, 200, status)
	require.JSONEq(t, `{"ready":true}`, body)
	status, body = get("/metrics")
	require.Equal(t, 200, status)
	require.Contains(t, body, `service="brain",version="1.2.3"`)
	require.Contains(t, body, "go_goroutines")
	status, _ = get("/")
	require.Equal(t, 404, status)

	w := httptest.NewRecorder()
	tel.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/ready", nil))
	require.Equal(t, 405, w.Code)

	req, err := http.NewRequest(http.MethodGet, "http://"+l.Addr().String()+"/health", nil)
	require.NoError(t, err)
	req.Header.Set("X-Big", strings.Repeat("x", 64<<10))
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 431, resp.StatusCode)

	cancel()
	require.NoError(t, <-ended)
	_, err = net.DialTimeout("tcp", l.Addr().String(), time.Second)
	require.Error(t, err, "closed")
}

func TestATakenAddressNamesItsSetting(t *testing.T) {
	t.Parallel()
	l, err := Listen("BUTLER_HTTP_ADDR", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, err = Listen("BUTLER_HTTP_ADDR", l.Addr().String())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.Equal(t, "BUTLER_HTTP_ADDR: the address "+l.Addr().String()+" is taken by another program, or by a Butler "+
		"that already runs; stop that one, or set BUTLER_HTTP_ADDR to another address", fault.MessageOf(err))
	_, err = Listen("BUTLER_HTTP_ADDR", "203.0.113.7:80")
	require.ErrorContains(t, err, "BUTLER_HTTP_ADDR: cannot listen on 203.0.113.7:80")
}

func TestEachProcessHasItsOwnRegistry(t *testing.T) {
	t.Parallel()
	for _, service := range []string{"a", "b"} {
		families, err := newRegistry(service, "1").Gather()
		require.NoError(t, err)
		names := map[string]bool{}
		for _, f := range families {
			names[f.GetName()] = true
		}
		require.True(t, names["butler_build_info"])
	}
}
