package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/services/butler/client"
)

// The commands work on a real shell: an administrator's, and that of a person with a Chinese name.
func TestShellsOnTheCommandLine(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.more = append(h.more, "BUTLER_ALLOWED_USERS=1,王小明")
	h.endShells()
	h.up()
	assert.Contains(t, h.ok("", "shell", "list"), "You have no shell open")
	assert.Contains(t, h.ok("", "shell", "list", "--all"), "Nobody has a shell open")
	assert.Contains(t, h.ok("", "shell", "show"), "admin has no shell open")
	assert.Contains(t, h.ok("", "shell", "log"), "Nothing was run")
	assert.Contains(t, h.ok("", "shell", "close", "admin", "--yes"), "has no shell open")

	h.ok("", "chat", "/shell")
	said := h.ok("", "chat", "!cd /usr; seq 100000")
	var commands []client.Command
	eventually(t, "it is in the log", func() bool {
		h.json(&commands, "", "shell", "log")
		return len(commands) == 1
	})
	id := commands[0].ActionID
	assert.Contains(t, said, "butler shell log "+id)
	assert.Contains(t, h.ok("", "shell", "log", "-n", "1"), "exit 0")
	var want strings.Builder
	for i := 1; i <= 100_000; i++ {
		fmt.Fprintln(&want, i)
	}
	require.True(t, want.String() == h.ok("", "shell", "log", id), "all of it, byte for byte")
	var output struct{ Output string }
	h.json(&output, "", "shell", "log", id)
	require.True(t, want.String() == output.Output)

	list := h.ok("", "shell", "list")
	assert.Contains(t, list, "admin")
	assert.Contains(t, list, "idle")
	assert.Contains(t, list, "/usr")
	shown := h.ok("", "shell", "show", "1")
	for _, words := range []string{"admin on ", "(butler_1)", "state      idle", "mode       nl", "directory  /usr"} {
		assert.Contains(t, shown, words)
	}

	h.ok("a long password\n", "users", "add", "王小明")
	zh := newHome(t, h.more...)
	zh.ok("a long password\n", "login", "王小明")
	assert.Contains(t, zh.ok("", "shell", "list"), "You have no shell open")
	assert.Contains(t, zh.ok("", "shell", "log"), "Nothing was run")
	zh.ok("", "chat", "/shell")
	zh.ok("", "chat", "!echo 你好")
	assert.Contains(t, zh.ok("", "shell", "list"), "王小明")
	assert.Contains(t, zh.ok("", "shell", "show", "王小明"), "王小明 on ")
	for _, args := range [][]string{{"list", "--all"}, {"show", "admin"}, {"close", "admin", "--yes"}, {"log", "--person", "admin"}} {
		assert.Equal(t, exitUnauthorized, zh.run("", append([]string{"shell"}, args...)...).code, args)
	}
	other := zh.run("", "shell", "log", id)
	assert.Equal(t, exitFailed, other.code)
	assert.Contains(t, other.err, "there is no such command")
	assert.NotContains(t, other.out, "100000")

	var all client.ShellList
	h.json(&all, "", "shell", "list", "--all")
	require.Len(t, all.Shells, 2)
	assert.Equal(t, "王小明", all.Shells[1].Person.Name)
	assert.Contains(t, h.ok("", "shell", "show", "王小明"), "王小明 on ")
	eventually(t, "what they ran is listed", func() bool {
		return strings.Contains(h.ok("", "shell", "log", "--person", "王小明"), "echo 你好")
	})
	refused := h.run("", "shell", "close", "王小明")
	assert.Equal(t, exitUsage, refused.code, "not without --yes")
	assert.Contains(t, h.ok("", "shell", "close", "王小明", "--yes"), "The shell of 王小明 on ")
	assert.Contains(t, h.ok("", "shell", "close", "王小明", "--yes"), "王小明 has no shell open", "it is closed already")
	host := all.Shells[0].Host
	assert.Contains(t, h.ok("", "shell", "close", "王小明", "--yes", "--host", host), "has no shell open")
	assert.Equal(t, exitFailed, h.run("", "shell", "close", "admin", "--yes", "--host", "elsewhere").code)
	assert.Contains(t, h.ok("", "shell", "list", "--all"), "admin", "the others live")
	eventually(t, "who closed it is in the log", func() bool {
		return strings.Contains(zh.ok("", "shell", "log"), "(closed by admin)")
	})

	for _, args := range [][]string{{"log", "12"}, {"log", "-n", "0"}, {"log", id, "-n", "5"}, {"close"}, {"show", "a", "b"}} {
		assert.Equal(t, exitUsage, h.run("", append([]string{"shell"}, args...)...).code, args)
	}
	assert.Equal(t, exitFailed, h.run("", "shell", "show", "nobody").code)
}

// What a terminal would obey does not reach it.
func TestOutputForATerminalIsHarmless(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() { done <- harmless(r, &out) }()
	_, err := io.WriteString(w, "你好\t\x1b[31m\u009b2J\xff\nend")
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, <-done)
	require.Equal(t, "你好\t\uFFFD[31m\uFFFD2J\uFFFD\nend\n", out.String())
}
