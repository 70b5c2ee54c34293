package main

import (
	"context"
	"encoding/json"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/config"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// endShells ends the shells that a test's Butler left, which outlive it.
func (h *home) endShells() {
	h.t.Cleanup(func() {
		dir, err := shellDir(h.settings(), false)
		require.NoError(h.t, err)
		host, err := tmux.Open(tmux.Config{Dir: dir})
		require.NoError(h.t, err)
		defer host.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err = host.Recover(ctx)
		require.NoError(h.t, err)
		for _, s := range host.Sessions() {
			require.NoError(h.t, s.Close(ctx))
		}
		require.NoError(h.t, os.RemoveAll(dir))
	})
}

// The whole way: a conversation is attached, a command is typed and runs, one that is dangerous waits for its person, and the
// shell outlives Butler.
func TestUpRunsCommands(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.endShells()
	d := h.up()
	assert.Contains(t, h.ok("", "chat", "/shell"), "`butler_1`")
	assert.Contains(t, h.ok("", "chat", "echo hi | tr a-z A-Z"), "HI\n")
	assert.Contains(t, h.ok("", "chat", "!cd /usr && export X=5 && pwd"), "/usr")
	assert.Contains(t, h.ok("", "chat", "what is in this folder?"), "demo model", "talk is talk")
	assert.Contains(t, h.ok("", "chat", "/log"), "echo hi")

	asked := make(chan string, 1)
	go func() { asked <- h.run("", "chat", "rm -rf "+filepath.Join(h.dir, "old")).out }()
	require.NoError(t, os.MkdirAll(filepath.Join(h.dir, "old"), 0o755))
	var code string
	eventually(t, "it asks", func() bool {
		var list []struct{ Code string }
		_ = json.Unmarshal([]byte(h.run("", "approvals", "list", "--json").out), &list)
		if len(list) == 1 {
			code = list[0].Code
		}
		return code != ""
	})
	assert.DirExists(t, filepath.Join(h.dir, "old"))
	h.ok("", "approvals", "approve", code)
	assert.Contains(t, <-asked, "exit 0")
	assert.NoDirExists(t, filepath.Join(h.dir, "old"))

	d.stop()
	h.start("up").ready().stop()
	h.up()
	assert.Contains(t, h.ok("", "chat", "echo $X; pwd"), "5\n/usr", "the shell is the same")
	assert.Contains(t, h.ok("", "chat", "!echo [$BUTLER_DATA_DIR]"), "\n[]\n", "nothing of Butler's is in its environment")
	assert.Contains(t, h.ok("", "chat", "/shell off"), "not attached")
}

func TestUpGoesOnWithoutShells(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	bin := filepath.Join(h.dir, "bin")
	require.NoError(t, os.MkdirAll(bin, 0o755))
	h.more = append(h.more, "PATH="+bin)
	d := h.up()
	assert.Contains(t, d.stderr(), "there are no shells here, everything else works: tmux was not found")
	assert.Contains(t, h.ok("", "chat", "hello"), "demo model")
	assert.Contains(t, h.ok("", "chat", "/shell"), "demo model", "it is nobody's word")
	d.stop()
}

func TestWhereShellsAre(t *testing.T) {
	t.Parallel()
	s := config.Defaults("/var/lib/butler")
	dir, err := shellDir(s, false)
	require.NoError(t, err)
	assert.Equal(t, "/var/lib/butler/shells", dir)

	s = config.Defaults("/home/somebody/with a blank/" + strings.Repeat("long/", 20))
	dir, err = shellDir(s, false)
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.Remove(dir) })
	assert.LessOrEqual(t, len(dir), maxShellDir)
	again, err := shellDir(s, false)
	require.NoError(t, err)
	assert.Equal(t, dir, again, "it is found again")
	other, err := shellDir(config.Defaults("/home/other/"+strings.Repeat("long/", 20)), false)
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.Remove(other) })
	assert.NotEqual(t, dir, other)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	assert.Error(t, ownFolder(link), "a link is nobody's folder")
	if os.Getuid() == 0 {
		foreign := filepath.Join(t.TempDir(), "foreign")
		require.NoError(t, os.Mkdir(foreign, 0o700))
		require.NoError(t, os.Chown(foreign, 65534, 65534))
		assert.ErrorContains(t, ownFolder(foreign), "belongs to somebody else")
	}
}

func TestAccountsOfShells(t *testing.T) {
	t.Parallel()
	s := config.Defaults(t.TempDir())
	account, err := shellAccounts(s)
	require.NoError(t, err)
	assert.Nil(t, account, "single-user mode")
	me, err := user.Current()
	require.NoError(t, err)
	s.Shell.OSUsers = []string{"7=nobody", "*=" + me.Username}
	account, err = shellAccounts(s)
	require.NoError(t, err)
	seven, ok := account("7")
	assert.True(t, ok)
	assert.Equal(t, "nobody", seven.Name)
	assert.True(t, seven.Exclusive)
	rest, ok := account("8")
	assert.True(t, ok)
	assert.Equal(t, me.Username, rest.Name)
	assert.False(t, rest.Exclusive, "it is several people's, and this process's")
	s.Shell.OSUsers = []string{"7=nobody"}
	account, err = shellAccounts(s)
	require.NoError(t, err)
	_, ok = account("8")
	assert.False(t, ok)
	s.Shell.OSUsers = []string{"7=nobody", "8=nobody"}
	account, err = shellAccounts(s)
	require.NoError(t, err)
	seven, _ = account("7")
	assert.False(t, seven.Exclusive, "two share it")
	for _, users := range [][]string{{"7=nobody-of-that-name"}, {"7=nobody", "7=nobody"}} {
		s.Shell.OSUsers = users
		_, err = shellAccounts(s)
		assert.ErrorContains(t, err, "BUTLER_SHELL_OS_USERS")
	}
}

func TestGuardCheckUsesTheSettings(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	assert.Contains(t, h.ok("", "guard", "check", "ls secrets"), `"verdict":"run"`)
	file := filepath.Join(h.dir, "b.yaml")
	require.NoError(t, os.WriteFile(file, []byte("guardrail:\n  danger_patterns: [secrets]\n"), 0o600))
	assert.Contains(t, h.ok("", "guard", "check", "ls secrets", "--config", file), `"verdict":"ask"`)
	h.more = append(h.more, "BUTLER_DANGER_PATTERNS=other")
	assert.Contains(t, h.ok("", "guard", "check", "ls other"), `"verdict":"ask"`)
}
