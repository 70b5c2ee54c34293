package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/pkg/config"
)

func (h *home) settings() config.Settings {
	s, _, err := config.Load(config.Options{Environ: h.environ(), KnownEnv: cliEnv})
	require.NoError(h.t, err)
	return s
}

func TestUpSaysWhereToGoAndHowToSignIn(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	d := h.start("up").ready()

	user, password, err := readInitialPassword(h.settings())
	require.NoError(t, err)
	assert.Equal(t, "admin", user)
	assert.Contains(t, d.line, "sign in as admin with the password "+password)
	for _, file := range []string{"initial-admin-password", "nats-operator-password", "butler.lock", "running.json", "butler.db"} {
		info, err := os.Stat(filepath.Join(h.data(), file))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm(), file)
	}
	info, err := os.Stat(h.data())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	assert.NotContains(t, d.stderr(), password, "the log does not have it")

	status, _ := get(d.url + "/ready")
	assert.Equal(t, http.StatusOK, status)
	r, ok := readRunning(h.settings())
	require.True(t, ok)
	assert.Equal(t, d.cmd.Process.Pid, r.PID)
	assert.Equal(t, d.url, r.HTTP)
	for _, path := range []string{"/health", "/ready", "/metrics"} {
		status, body := get(r.Ops + path)
		assert.Equal(t, http.StatusOK, status, "%s: %s", path, body)
	}

	d.signal(syscall.SIGTERM)
	assert.Zero(t, d.wait())
	_, ok = readRunning(h.settings())
	assert.False(t, ok)

	d = h.start("up").ready()
	assert.Contains(t, d.line, "the password is in "+filepath.Join(h.data(), "initial-admin-password"))
	assert.NotContains(t, d.line, password, "it is printed once")
	d.signal(syscall.SIGINT)
	assert.Zero(t, d.wait())
}

func TestUpIsReadyWithinTwoSeconds(t *testing.T) {
	h := newHome(t) // not parallel: it measures
	h.start("up").ready().stop()
	best := time.Hour
	for range 5 {
		began := time.Now()
		d := h.start("up").ready()
		best = min(best, time.Since(began))
		d.stop()
		if best < 2*time.Second {
			break
		}
	}
	t.Logf("ready after %s", best)
	assert.Less(t, best, 2*time.Second, "the best of five starts")
}

func (d *daemon) stop() {
	d.t.Helper()
	d.signal(syscall.SIGTERM)
	require.Zero(d.t, d.wait(), d.stderr())
}

func TestUpUsesTheFirstAdministratorOfTheSettings(t *testing.T) {
	t.Parallel()
	h := newHome(t, "INITIAL_ADMIN_USER=root", "INITIAL_ADMIN_PASS=correct horse")
	d := h.start("up").ready()
	assert.Contains(t, d.line, "root")
	assert.NotContains(t, d.line, "horse")
	assert.NotContains(t, d.stderr(), "horse")
	h.more = append(h.more, "BUTLER_SERVER="+d.url)
	assert.Contains(t, h.ok("correct horse\n", "login", "root"), "as root (ADMIN)")
	assert.NoFileExists(t, filepath.Join(h.data(), "initial-admin-password"))
}

func TestUpRefusesWhatAnotherHas(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	d := h.start("up").ready()
	second := h.start("up")
	assert.Equal(t, exitFailed, second.wait())
	assert.Contains(t, second.stderr(), fmt.Sprintf("in use by another Butler (process %d)", d.cmd.Process.Pid))

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for _, setting := range []string{"BUTLER_HTTP_ADDR", "BUTLER_OPS_ADDR", "BUTLER_NATS_ADDR"} {
		other := newHome(t, setting+"="+l.Addr().String())
		d := other.start("up")
		assert.Equal(t, exitFailed, d.wait(), setting)
		assert.Contains(t, d.stderr(), "set "+setting+" to another address")
	}
}

func TestUpRefusesSettingsThatAreWrong(t *testing.T) {
	t.Parallel()
	h := newHome(t, "BUTLER_HTTP_ADDR=nonsense", "BUTLER_MAX_STEPS=-1")
	r := h.run("", "up")
	assert.Equal(t, exitUsage, r.code)
	assert.Contains(t, r.err, "BUTLER_HTTP_ADDR")
	assert.Contains(t, r.err, "BUTLER_MAX_STEPS")

	h = newHome(t, "BUTLER_SYSTEM_PROMPT_FILE=/does/not/exist")
	d := h.start("up")
	assert.Equal(t, exitFailed, d.wait())
	assert.Contains(t, d.stderr(), "BUTLER_SYSTEM_PROMPT_FILE")
}

func TestUpWarnsOfUnknownVariables(t *testing.T) {
	t.Parallel()
	d := newHome(t, "BUTLER_HTPP_ADDR=x").start("up").ready()
	assert.Contains(t, d.stderr(), "BUTLER_HTPP_ADDR is not a setting")
	assert.Contains(t, d.stderr(), "did you mean BUTLER_HTTP_ADDR")
}

func TestUpNeedsLittleMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the memory of another process is read from /proc, which is Linux's")
	}
	t.Parallel()
	h := newHome(t)
	d := h.up()
	h.ok("", "chat", "Hello")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			require.NoError(t, err)
			t.Logf("%d MB resident", kb>>10)
			assert.Less(t, kb, 80<<10)
		}
	}
}

func TestSettingsAreReloaded(t *testing.T) {
	t.Parallel()
	model := modeltest.Start(t)
	h := newHome(t)
	file := filepath.Join(h.dir, "butler.yaml")
	write := func(format string, args ...any) {
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, format, args...), 0o600))
	}
	policy := filepath.Join(h.dir, "policy.yaml")
	require.NoError(t, os.WriteFile(policy, []byte("version: 1\nrules: []\n"), 0o600))
	write("log:\n  level: info\napproval:\n  policy_file: %s\n", policy)
	d := h.up("--config", file)
	assert.Contains(t, h.ok("", "chat", "one"), "demo model")

	write("log:\n  level: debug\napproval:\n  policy_file: %s\nmodel:\n  base_url: %s\n  name: scripted\nnats:\n  replicas: 3\n",
		policy, model.URL())
	r, ok := readRunning(h.settings())
	require.True(t, ok)
	resp, err := http.Post(r.Ops+"/config/reload", "", nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	var report reloadReport
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&report))
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.ElementsMatch(t, []string{"log.level", "model.base_url", "model.name"}, report.Changed)
	assert.Equal(t, []string{"nats.replicas"}, report.NeedRestart)
	eventually(t, "the new model answers", func() bool {
		return strings.Contains(h.ok("", "chat", "two"), "answer to: two")
	})

	// A file that a setting names is read again although no setting has changed.
	require.NoError(t, os.WriteFile(policy, []byte("version: 2\nrules: []\n"), 0o600))
	d.signal(syscall.SIGHUP)
	eventually(t, "a policy that is wrong is refused", func() bool { return strings.Contains(d.stderr(), "must be 1, not 2") })

	write("log:\n  level: loud\n")
	d.signal(syscall.SIGHUP)
	eventually(t, "what is wrong is said", func() bool { return strings.Contains(d.stderr(), "loud") })
	assert.Contains(t, h.ok("", "chat", "three"), "answer to: three", "and nothing changed")

	req, err := http.NewRequest(http.MethodPost, r.Ops+"/config/reload", nil)
	require.NoError(t, err)
	req.Header.Set("Origin", "http://evil.example")
	resp, err = http.DefaultClient.Do(req)
	require.NoError(t, err)
	_ = resp.Body.Close()
	assert.Equal(t, http.StatusForbidden, resp.StatusCode)
}
