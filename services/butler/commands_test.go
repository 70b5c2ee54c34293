package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/bus"

	"github.com/butlerhub/butler/services/butler/client"
)

func TestExitCodesAndSentences(t *testing.T) {
	t.Parallel()
	h := newHome(t, "BUTLER_SERVER=http://127.0.0.1:1")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"nonsense"}, exitUsage, `unknown command "nonsense"`},
		{[]string{"--nonsense"}, exitUsage, "--help"},
		{[]string{"sessions", "show"}, exitUsage, "ID is missing: butler sessions show ID"},
		{[]string{"sessions", "show", "abc"}, exitUsage, "is not an id"},
		{[]string{"sessions", "list"}, exitUnauthorized, "butler login"},
		{[]string{"login", "alice"}, exitUnreachable, "butler up"},
		{[]string{"chat", "hello"}, exitUnauthorized, "butler login"},
		{[]string{"chat"}, exitUsage, "nothing to ask"},
		{[]string{"chat", "--new", "--thread", "3", "hello"}, exitUsage, "do not go together"},
		{[]string{"users", "role", "alice", "boss"}, exitUsage, "ADMIN or MEMBER"},
		{[]string{"nats-config"}, exitUsage, "--dir"},
		{[]string{"replay"}, exitFailed, "BUTLER_DATA_DIR"},
		{[]string{"gateway"}, exitFailed, "BUTLER_NATS_URL"},
		{[]string{"--server", "ftp://x", "sessions", "list"}, exitUsage, "http://127.0.0.1:8080"},
	} {
		r := h.run("", c.args...)
		assert.Equal(t, c.code, r.code, "%v: %s", c.args, r.err)
		assert.Contains(t, r.err, c.says, "%v", c.args)
		assert.Equal(t, 1, strings.Count(r.err, "\n"), "%v: one line: %s", c.args, r.err)
		assert.True(t, strings.HasPrefix(r.err, "butler: "), r.err)

		r = h.run("", append(c.args, "--json")...)
		var e struct{ Error, Code string }
		if assert.NoError(t, json.Unmarshal([]byte(r.err), &e), "%v: %s", c.args, r.err) {
			assert.NotEmpty(t, e.Error)
			assert.NotEmpty(t, e.Code)
		}
	}
	h.more = append(h.more, "BUTLER_TOKEN=btl_x")
	assert.Equal(t, exitUnreachable, h.run("", "sessions", "list").code)
}

func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	a := newApp(nil, nil, nil, h.environ())
	var visit func(c *cobra.Command, path []string)
	visit = func(c *cobra.Command, path []string) {
		if c.Name() == "help" || c.Name() == "completion" {
			return
		}
		assert.NotEmpty(t, c.Short, c.CommandPath())
		out := h.ok("", append(path, "--help")...)
		assert.Contains(t, out, "Usage:", c.CommandPath())
		if c.HasSubCommands() {
			assert.NotEmpty(t, c.Example+c.Long, c.CommandPath())
		}
		for _, sub := range c.Commands() {
			visit(sub, append(append([]string{}, path...), sub.Name()))
		}
	}
	visit(a.command(), nil)
	assert.Contains(t, h.ok("", "--help"), "Exit codes")
	assert.Contains(t, h.ok("", "completion", "bash"), "butler")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	assert.True(t, strings.HasPrefix(h.ok("", "version"), "butler "))
	var b build
	h.json(&b, "", "version")
	assert.NotEmpty(t, b.Go)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	h := newHome(t, "INTERNAL_SERVICE_TOKEN=0123456789abcdef0123456789abcdef", "BUTLER_SERVER=x", "BUTLER_TOKEN=y")
	file := filepath.Join(h.dir, "butler.yaml")
	require.NoError(t, os.WriteFile(file, []byte("turn:\n  max_steps: 7\n"), 0o600))
	r := h.run("", "config", "--config", file)
	require.Zero(t, r.code)
	assert.Empty(t, r.err, "the command line's own variables are known")
	assert.Contains(t, r.out, "butler.yaml:2")
	assert.NotContains(t, r.out, "0123456789abcdef")
	var values []settingJSON
	h.json(&values, "", "config", "--config", file)
	found := map[string]settingJSON{}
	for _, v := range values {
		found[v.Key] = v
	}
	assert.Equal(t, "7", found["turn.max_steps"].Value)
	assert.Equal(t, "file "+file+":2", found["turn.max_steps"].Origin)
	assert.Equal(t, "env BUTLER_HTTP_ADDR", found["http.addr"].Origin)
	assert.True(t, found["rpc.token"].Secret)
	assert.NotContains(t, found["rpc.token"].Value, "0123")

	assert.Contains(t, h.ok("", "config", "check", file), "is valid")
	require.NoError(t, os.WriteFile(file, []byte("turn:\n  max_stops: 7\n"), 0o600))
	r = h.run("", "config", "check", file)
	assert.Equal(t, exitUsage, r.code)
	assert.Contains(t, r.err, "max_steps", "the nearest known one")
}

func TestNATSConfig(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	dir := filepath.Join(h.dir, "nats")
	var out struct{ Written []string }
	h.json(&out, "", "nats-config", "--dir", dir)
	assert.Len(t, out.Written, len(bus.ServiceUsers())+2, "the configuration, a key for each, and that of the agents' account")
	seeds := map[string]string{}
	for _, file := range out.Written {
		info, err := os.Stat(file)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		seeds[filepath.Base(file)] = string(data)
	}
	assert.Contains(t, seeds["nats-server.conf"], "sync_interval: always")
	h.json(&out, "", "nats-config", "--dir", dir)
	assert.Equal(t, []string{filepath.Join(dir, "nats-server.conf")}, out.Written, "seeds stay")
	again, err := os.ReadFile(filepath.Join(dir, "nats-server.conf"))
	require.NoError(t, err)
	assert.Equal(t, seeds["nats-server.conf"], string(again))

	require.NoError(t, os.WriteFile(filepath.Join(dir, "brain.nk"), []byte("nonsense"), 0o600))
	assert.Contains(t, h.run("", "nats-config", "--dir", dir).err, "brain.nk holds no nkey seed")
}

// TestPeople walks through accounts, tokens, sessions and passwords as an operator does.
func TestPeople(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	d := h.up()
	saved, err := os.Stat(filepath.Join(h.dir, ".config", "butler", "credentials.json"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), saved.Mode().Perm())

	var alice client.User
	h.json(&alice, "a long password\n", "users", "add", "alice")
	assert.Equal(t, "MEMBER", alice.Role)
	r := h.run("a long password\n", "users", "add", "ALICE")
	assert.Equal(t, exitFailed, r.code)
	assert.NotContains(t, r.err, "a long password")
	var users []client.User
	h.json(&users, "", "users", "list")
	assert.Len(t, users, 3)
	assert.Contains(t, h.ok("", "users", "list"), "Butler")

	// Alice on a machine of her own.
	her := newHome(t, "BUTLER_SERVER="+d.url)
	assert.Equal(t, exitUnauthorized, her.run("wrong password\n", "login", "alice").code)
	her.ok("a long password\n", "login", "alice")
	assert.Equal(t, exitUnauthorized, her.run("", "users", "list").code, "members do not manage people")
	var token client.Token
	her.json(&token, "", "tokens", "add", "laptop", "--days", "3")
	assert.NotEmpty(t, token.Secret)
	assert.NotNil(t, token.ExpiresAt)
	var tokens []client.Token
	her.json(&tokens, "", "tokens", "list")
	assert.Len(t, tokens, 2)
	assert.NotContains(t, her.ok("", "tokens", "list"), token.Secret, "shown once")
	program := newHome(t, "BUTLER_SERVER="+d.url, "BUTLER_TOKEN="+token.Secret)
	program.ok("", "sessions", "list")
	her.ok("", "tokens", "revoke", num(token.ID))
	r = program.run("", "sessions", "list")
	assert.Equal(t, exitUnauthorized, r.code)
	assert.Contains(t, r.err, "BUTLER_TOKEN is not valid")
	assert.NotContains(t, r.err, token.Secret)

	h.ok("", "users", "role", "alice", "admin")
	her.ok("", "users", "list")
	h.ok("", "users", "disable", "alice")
	assert.Equal(t, exitUnauthorized, her.run("", "sessions", "list").code)
	h.ok("", "users", "enable", num(alice.ID))
	h.ok("another password\n", "users", "passwd", "alice")
	her.ok("another password\n", "login", "alice")
	her.ok("another password\nher own password\n", "passwd")
	her.ok("", "sessions", "list")
	assert.Contains(t, her.ok("", "logout"), "Signed out")
	assert.Equal(t, exitUnauthorized, her.run("", "sessions", "list").code)
	assert.Equal(t, exitFailed, h.run("", "users", "disable", "nobody").code)

	// Nobody can sign in any more.
	var reset struct{ Username, Password string }
	h.json(&reset, "", "users", "reset-admin", "alice", "--generate")
	assert.Equal(t, "alice", reset.Username)
	her.ok(reset.Password+"\n", "login", "alice")
	h.ok("the new one of the first\n", "users", "reset-admin")
	assert.NoFileExists(t, filepath.Join(h.data(), "initial-admin-password"))
	h.ok("the new one of the first\n", "login", "admin")
}

func num(id int64) string { return strconv.FormatInt(id, 10) }

func TestDoctorAndReplay(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	var findings []finding
	h.json(&findings, "", "doctor")
	assert.Equal(t, checkWarn, statusOf(findings, "gateway"), "nothing runs yet")

	d := h.up()
	h.ok("", "chat", "one")
	h.ok("", "chat", "two")
	h.json(&findings, "", "doctor", "--model-call")
	for _, f := range findings {
		if f.Check != "shell" { // which warns where a shell is not kept apart
			assert.Equal(t, checkOK, f.Status, "%+v", f)
		}
	}
	for _, check := range []string{"settings", "data", "disk", "clock", "gateway", "nats", "stream CHAT", "stream APPROVAL", "stream WORK", "durability", "sql", "model", "approval", "shell"} {
		assert.Equal(t, checkOK, statusOf(findings, check), check)
	}

	var replayed struct{ Events, Messages, Ignored int }
	h.json(&replayed, "", "replay")
	assert.Equal(t, 4, replayed.Events)
	assert.Equal(t, 4, replayed.Messages)
	before := h.ok("", "sessions", "show", "1", "--json")
	d.stop()
	h.json(&replayed, "", "replay")
	assert.Equal(t, 4, replayed.Events)
	h.more = append(h.more, "BUTLER_NATS_SYNC=2m")
	h.json(&findings, "", "doctor")
	assert.Equal(t, checkWarn, statusOf(findings, "durability"))
	h.more = append(h.more, "BUTLER_NATS_SYNC=always")

	d = h.start("up").ready()
	h.more = append(h.more, "BUTLER_SERVER="+d.url)
	h.ok("", "login", "--initial")
	assert.JSONEq(t, before, h.ok("", "sessions", "show", "1", "--json"))

	h.more = append(h.more, "BUTLER_DATABASE_URL=postgres://u:hidden@127.0.0.1:1/x", "BUTLER_BASE_URL=http://127.0.0.1:1/v1", "BUTLER_MODEL=m")
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(policy, []byte("rules: [{when: {risk: [purple]}, action: run}]\n"), 0o600))
	h.more = append(h.more, "BUTLER_APPROVAL_POLICY="+policy)
	r := h.run("", "doctor")
	assert.Equal(t, exitFailed, r.code)
	assert.Contains(t, r.out, "fail  approval")
	assert.Contains(t, r.out, policy)
	assert.Contains(t, r.out, "fail  sql")
	assert.Contains(t, r.out, "fail  model")
	assert.NotContains(t, r.out+r.err, "hidden")
	h.more = append(h.more, "BUTLER_LANGUAGE=klingon")
	assert.Equal(t, exitFailed, h.run("", "doctor").code)
}

func statusOf(findings []finding, check string) string {
	for _, f := range findings {
		if f.Check == check {
			return f.Status
		}
	}
	return "missing"
}
