package shell

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// standIn is a program that takes keys, under another's name.
const standIn = `#!/bin/bash
stty raw -echo
printf '%s is here\r\n' "${0##*/}"
while IFS= read -rN1 key; do
	[ "$key" = q ] && break
	printf 'key<%s>\r\n' "$key"
done
stty sane
`

// Every program that the published design lists: it is seen to be in the foreground, takes input with a grant or without,
// and the mode is back when it ends. One that is not installed is stood in for.
func TestEveryInteractiveProgram(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	require.NoError(t, os.Chmod(bin, 0o755))
	real := map[string]string{"vim": "vim -u NONE", "vi": "", "top": "top", "less": "less /etc/passwd", "more": "more /etc/services", "python": "", "node": "node"}
	usual := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	r := newRig(t, func(r *rig) { r.path = bin + ":" + usual })
	for _, name := range []string{"vim", "nvim", "vi", "top", "htop", "btop", "less", "more", "man", "claude", "aider", "python", "node", "irb", "ipython"} {
		command := real[name]
		_, err := os.Stat(filepath.Join("/usr/bin", name))
		if command == "" || err != nil {
			t.Logf("%s is stood in for", name)
			require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(standIn), 0o755))
			command = name
		}
		req := r.granted(command)
		resp, err := r.Execute(r.ctx(), req)
		require.NoError(t, err, name)
		require.Equal(t, approvalRunning, resp.GetStatus(), name)
		require.Equal(t, "interactive", resp.GetShell().GetMode(), name)
		program := resp.GetShell().GetProgram()
		require.NotEmpty(t, program, name)
		var shown string
		r.eventually(name+": its screen is shown", func() bool { shown, _ = r.streamedSoFar(req.GetApprovalId()); return shown != "" })

		one, line := r.route("x"), r.route("some text")
		require.Equal(t, kindInput, one.GetKind(), name)
		require.Equal(t, kindInput, line.GetKind(), name)
		require.NotNil(t, line.GetEffect(), "%s: a line needs a grant", name)
		require.Equal(t, program, line.GetEffect().GetProgram())
		require.Equal(t, viewers[program], one.GetEffect() == nil, "%s: a key", name)
		require.Contains(t, r.control("/screen"), "interactive · "+program, name)
		r.control("/nl")
		require.Equal(t, kindChat, r.route("some text").GetKind(), "%s: talk beside it", name)
		r.control("/interactive")
		require.Equal(t, kindInput, r.route("some text").GetKind(), name)
		r.control("/nl")

		if real[name] == "" {
			r.control("/interactive")
			r.says("x")
			// On a busy machine the program may answer after the screen was given.
			r.eventually(name+" took the key", func() bool { return strings.Contains(r.control("/screen"), "key<x>") })
			r.says("q")
			r.control("/nl")
		} else {
			require.Contains(t, r.control("/kill"), "Killed `"+program)
		}
		r.eventually(name+" is gone", func() bool { s := r.state(); return s.GetState() == "idle" && s.GetMode() == "nl" })
		r.do("stty sane; clear")
	}
}

// The published scenarios, as far as they are this service's.
func TestThePublishedScenarios(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	scenario := func(name string, f func(t *testing.T)) {
		if !t.Run(name, f) {
			t.FailNow()
		}
	}
	scenario("新用户首次交互", func(t *testing.T) {
		require.Nil(t, r.state())
		require.Contains(t, r.says("/shell"), "butler_7")
		require.Equal(t, "butler_7", r.state().GetName())
		require.Len(t, r.state().GetSession(), 36)
	})
	scenario("正常命令执行", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(r.dir, "home", "a-file"), nil, 0o600))
		out := r.route("ls -la")
		require.Equal(t, "run", out.GetRisk().GetVerdict())
		require.Contains(t, r.says("ls -la"), "a-file")
	})
	old := filepath.Join(r.dir, "home", "test")
	require.NoError(t, os.MkdirAll(old, 0o755))
	scenario("危险命令审批", func(t *testing.T) {
		out := r.route("rm -rf " + old)
		require.Equal(t, kindCommand, out.GetKind())
		require.Equal(t, "ask", out.GetRisk().GetVerdict())
		require.NotEmpty(t, out.GetRisk().GetReasons())
	})
	scenario("审批超时", func(t *testing.T) {
		_, err := r.Execute(r.ctx(), r.granted("rm -rf "+old, func(g *approval.Grant) { g.RunBy = time.Now().Add(-time.Second).Unix() }))
		require.Equal(t, fault.Forbidden, fault.CodeOf(err))
		require.DirExists(t, old)
	})
	scenario("审批拒绝", func(t *testing.T) {
		req := r.granted("rm -rf " + old)
		req.Grant = ""
		_, err := r.Execute(r.ctx(), req)
		require.Equal(t, fault.Forbidden, fault.CodeOf(err))
		require.DirExists(t, old)
	})
	scenario("审批确认", func(t *testing.T) {
		r.says("rm -rf " + old)
		require.NoDirExists(t, old)
	})
	scenario("交互模式切换", func(t *testing.T) {
		require.Equal(t, approvalRunning, r.do("vim -u NONE -N note.txt").GetStatus())
		require.Equal(t, "interactive", r.state().GetMode())
		require.Contains(t, r.says("ihello"), "hello")
		require.Contains(t, r.control("/key Esc"), "hello")
	})
	scenario("模式自动恢复", func(t *testing.T) {
		r.says(":wq")
		r.eventually("vim ended", func() bool { s := r.state(); return s.GetState() == "idle" && s.GetMode() == "nl" })
		require.Equal(t, "hello\n", r.file("note.txt"))
	})
	scenario("手动模式切换", func(t *testing.T) {
		r.control("/interactive")
		require.Equal(t, "interactive", r.state().GetMode())
		r.control("/force-nl")
		require.Equal(t, "nl", r.state().GetMode())
	})
	scenario("未授权用户", func(t *testing.T) {
		_, err := r.Route(r.ctx(), &butlerv1.RouteRequest{Person: &butlerv1.Actor{Id: 5, Name: "eve", Role: "ADMIN"}, Text: "ls", Attached: true})
		require.Equal(t, fault.Forbidden, fault.CodeOf(err))
	})
	scenario("会话超时清理", func(t *testing.T) {
		next := r.settings
		next.IdleTimeout = 2 * time.Second
		require.NoError(t, r.SetSettings(next))
		r.eventually("the session is closed", func() bool { return r.state() == nil })
	})
}
