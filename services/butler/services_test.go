package main

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

// natsServer runs a NATS server with a configuration that `butler nats-config` wrote.
func natsServer(t *testing.T, conf string) {
	t.Helper()
	opts, err := server.ProcessConfigFile(conf)
	require.NoError(t, err)
	opts.NoLog, opts.NoSigs = true, true
	srv, err := server.NewServer(opts)
	require.NoError(t, err)
	srv.Start()
	require.True(t, srv.ReadyForConnections(patience))
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
}

// TestServicesStartInAnyOrder runs the distributed form: each service a process with NATS credentials of its own. The
// gateway comes first, when nothing that it needs is there.
func TestServicesStartInAnyOrder(t *testing.T) {
	t.Parallel()
	shared := newHome(t)
	natsAddr := freeAddr(t)
	dir := filepath.Join(shared.dir, "nats")
	shared.ok("", "nats-config", "--dir", dir, "--listen", natsAddr)
	database := storagetest.Shared(t).NewDatabase(t)
	brainAddr, registryAddr := freeAddr(t), freeAddr(t)
	common := []string{
		"BUTLER_NATS_URL=nats://" + natsAddr, "BUTLER_DATABASE_URL=" + database,
		"INTERNAL_SERVICE_TOKEN=" + strings.Repeat("t", 32), "BUTLER_BRAIN_ADDR=" + brainAddr, "BUTLER_REGISTRY_ADDR=" + registryAddr,
		"BUTLER_PEOPLE_ADDR=" + freeAddr(t), "INITIAL_ADMIN_PASS=the first password",
		"BUTLER_APPROVAL_ADDR=" + freeAddr(t), "BUTLER_SHELL_ADDR=" + freeAddr(t), "BUTLER_SHELL_HOST=host", "BUTLER_ALLOWED_USERS=1",
	}
	service := func(name string, more ...string) (*home, string, *daemon) {
		ops, user := freeAddr(t), strings.TrimSuffix(name, "-runner")
		h := newHome(t, append(append(common, "BUTLER_NATS_CREDENTIALS="+filepath.Join(dir, user+".nk"), "BUTLER_OPS_ADDR="+ops), more...)...)
		return h, "http://" + ops, h.start(name)
	}
	httpAddr := freeAddr(t)
	url := "http://" + httpAddr
	h, gatewayOps, gateway := service("gateway", "BUTLER_HTTP_ADDR="+httpAddr)
	missing := func(ops string) string {
		status, body := get(ops + "/ready")
		if status != http.StatusServiceUnavailable {
			return ""
		}
		var report struct{ Missing []string }
		_ = json.Unmarshal([]byte(body), &report)
		return strings.Join(report.Missing, "\n")
	}
	eventually(t, "it says what it waits for", func() bool { return strings.Contains(missing(gatewayOps), "NATS") })
	assert.Contains(t, missing(url), "NATS", "on its own address too")
	status, body := get(url + "/api/ping")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Contains(t, body, "Butler is starting")

	_, brainOps, brain := service("brain")
	natsServer(t, filepath.Join(dir, "nats-server.conf"))
	shells, shellOps, runner := service("shell-runner")
	shells.endShells()
	_, registryOps, registry := service("registry")
	_, approvalOps, approvals := service("approval")
	for _, ops := range []string{registryOps, brainOps, gatewayOps, approvalOps, shellOps} {
		eventually(t, "all are ready", func() bool { status, _ := get(ops + "/ready"); return status == http.StatusOK })
	}
	h.more = append(h.more, "BUTLER_SERVER="+url)
	h.ok("the first password\n", "login", "admin")
	assert.Contains(t, h.ok("", "chat", "Hello"), "demo model")
	assert.Contains(t, h.ok("", "chat", "/shell"), "on **host**")
	assert.Contains(t, h.ok("", "chat", "echo hi"), "\nhi\n")
	var replayed struct{ Events int }
	h.json(&replayed, "", "replay")
	assert.Equal(t, 6, replayed.Events)
	r := h.run("", "doctor", "--json")
	var findings []finding
	require.NoError(t, json.Unmarshal([]byte(r.out), &findings), r.out)
	for _, f := range findings {
		assert.NotEqual(t, checkFail, f.Status, "%+v", f)
	}
	assert.Equal(t, checkOK, statusOf(findings, "stream CHAT"))
	assert.Equal(t, checkOK, statusOf(findings, "stream APPROVAL"))
	approvals.stop()
	findings = nil
	require.NoError(t, json.Unmarshal([]byte(h.run("", "doctor", "--json").out), &findings))
	assert.Equal(t, checkWarn, statusOf(findings, "stream APPROVAL"), "nobody works on it")

	for _, d := range []*daemon{gateway, brain, registry, approvals, runner} {
		if d != approvals {
			d.stop()
		}
		assert.NotContains(t, d.stderr(), "Permissions Violation")
	}
}

func TestServicesStopWhileTheyWait(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"gateway", "brain", "registry", "approval", "shell-runner"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ops := freeAddr(t)
			d := newHome(t, "BUTLER_NATS_URL=nats://127.0.0.1:1", "INTERNAL_SERVICE_TOKEN="+strings.Repeat("t", 32),
				"BUTLER_OPS_ADDR="+ops, "BUTLER_BRAIN_ADDR=127.0.0.1:0", "BUTLER_REGISTRY_ADDR=127.0.0.1:0",
				"BUTLER_PEOPLE_ADDR=127.0.0.1:0", "BUTLER_APPROVAL_ADDR=127.0.0.1:0", "BUTLER_SHELL_ADDR=127.0.0.1:0").start(name)
			eventually(t, "it waits", func() bool {
				status, _ := get("http://" + ops + "/ready")
				return status == http.StatusServiceUnavailable
			})
			d.stop()
		})
	}
}

func TestTheListenerIsHandedOver(t *testing.T) {
	t.Parallel()
	a := newApp(nil, nil, &strings.Builder{}, newHome(t).environ())
	p, err := a.newProcess("test")
	require.NoError(t, err)
	defer p.close()
	l, err := p.listen("BUTLER_HTTP_ADDR", "127.0.0.1:0")
	require.NoError(t, err)
	url := "http://" + l.Addr().String()
	room := p.serveWhileWaiting(l)
	status, _ := get(url)
	assert.Equal(t, http.StatusServiceUnavailable, status)
	status, _ = get(url + "/health")
	assert.Equal(t, http.StatusOK, status)
	l, err = room.handOver()
	require.NoError(t, err)
	accepted := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_ = c.Close()
		}
		accepted <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, <-accepted)
}
