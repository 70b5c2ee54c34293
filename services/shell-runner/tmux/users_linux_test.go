package tmux

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/fault"
)

// accounts gives users of the operating system that nobody else has; they need no entry in the password file.
func accounts(t testing.TB) func(string) (Account, bool) {
	if os.Getuid() != 0 {
		t.Skip("only root can start shells of other users")
	}
	base := uint32(1_000_000 + os.Getpid()%100_000*10)
	return func(user string) (Account, bool) {
		if len(user) != 1 || user > "9" {
			return Account{}, false
		}
		id := base + uint32(user[0]-'0')
		return Account{UID: id, GID: id, Exclusive: true}, true
	}
}

// One test for all: the accounts of a process are the same.
func TestOwnUsers(t *testing.T) {
	of := accounts(t)
	r := open(t, Config{Account: of, Limits: Limits{Processes: 60, OpenFiles: 200, FileSize: 1 << 20, Memory: 4 << 30}})
	alice, bob := r.session("1"), r.session("2")
	require.NotContains(t, strings.Join(r.Warnings(), "\n"), "single-user")
	_, err := r.Session(within(t), "nobody")
	require.Equal(t, fault.Forbidden, fault.CodeOf(err))

	account, _ := of("1")
	out, o := run(t, alice, "id -u; id -g; id -G; echo $HOME; pwd; touch mine && echo made")
	home := filepath.Join(r.cfg.Dir, "1", "home")
	require.Equal(t, fmt.Sprintf("%d\n%d\n%d\n%s\n%s\nmade\n", account.UID, account.GID, account.GID, home, home), out)
	require.Zero(t, o.Status)

	t.Run("out of reach", func(t *testing.T) {
		bobs := filepath.Join(r.cfg.Dir, "2")
		for _, text := range []string{
			"tmux -S " + bob.Socket() + " send-keys -t " + bob.Name() + " 'touch /tmp/evil' Enter",
			"tmux -S " + bob.Socket() + " capture-pane -p", "ls " + bobs, "ls " + bobs + "/run", "cat " + bobs + "/output",
			"cat " + bobs + "/rc.bash", "cat " + bobs + "/session.json", "cat " + bobs + "/../1/session.json", "ls " + bobs + "/home",
			"ls " + r.cfg.Dir, "cat ../session.json ../progress", "echo x >../output2", "rm -f ../output", "mv ../run ../run2",
			"echo x >../rc.bash", "echo x >>../start.sh", "cat /proc/" + fmt.Sprint(bob.shellPID) + "/environ",
			"kill -9 " + fmt.Sprint(bob.shellPID), "kill -9 " + fmt.Sprint(os.Getpid()),
			"cat /proc/" + fmt.Sprint(os.Getpid()) + "/environ",
		} {
			_, o := run(t, alice, text)
			require.NotZero(t, o.Status, text)
		}
		run(t, bob, "echo alive")
	})

	t.Run("limits", func(t *testing.T) {
		out, _ := run(t, alice, "ulimit -u; ulimit -n; ulimit -f; ulimit -v; ulimit -Hu; ulimit -u 1000 2>/dev/null || echo no")
		require.Equal(t, fmt.Sprintf("60\n200\n1024\n%d\n60\nno\n", 4<<20), out)
		_, o := run(t, alice, "head -c 2000000 /dev/zero >big")
		require.NotZero(t, o.Status)
		_, o = run(t, alice, "python3 -c 'x = bytearray(8 << 30)'")
		require.NotZero(t, o.Status)
	})

	t.Run("state", func(t *testing.T) {
		end := begin(t, alice, "read -s x")
		state(t, alice, "password", func(st State) bool { return st.Password && st.State == Blocked })
		require.NoError(t, alice.Type(within(t), "x", true))
		end()
		end = begin(t, alice, "cat")
		state(t, alice, "line", func(st State) bool { return st.State == Blocked && !st.Password })
		require.NoError(t, alice.KillForeground(within(t)))
		_, o := end()
		require.Equal(t, 137, o.Status)
		got, err := alice.Resolve(within(t), "ls")
		require.NoError(t, err)
		require.Equal(t, "file", got.Kind)
		screen, err := alice.Screen(within(t), false)
		require.NoError(t, err)
		require.Contains(t, screen.Text, "cat")
	})

	t.Run("fork bomb", func(t *testing.T) {
		ctx := within3(t)
		done := make(chan error, 1)
		go func() {
			_, err := bob.Run(ctx, Command{ID: "bomb", Text: "b() { b | b & }; b 2>/dev/null; while :; do b; done 2>/dev/null"})
			done <- err
		}()
		account, _ := of("2")
		waitFor(t, func() bool { return processesOf(account.UID) >= 55 })
		out, o := run(t, alice, "echo alive; (exit 3)")
		require.Equal(t, "alive\n", out)
		require.Equal(t, 3, o.Status)
		other := r.session("3")
		run(t, other, "echo new")
		require.LessOrEqual(t, processesOf(account.UID), 60+4, "its own terminal server and writer are not under the limit")
		require.NoError(t, bob.Close(within(t)))
		<-done
		waitFor(t, func() bool { return processesOf(account.UID) == 0 })
		run(t, alice, "echo alive")
		bob = r.session("2")
		run(t, bob, "echo back")
	})

	t.Run("recovered", func(t *testing.T) {
		run(t, alice, "x=kept")
		dir := r.cfg.Dir
		r.abandon()
		again := open(t, Config{Account: of, Dir: dir})
		found, err := again.Recover(within(t))
		require.NoError(t, err)
		require.Len(t, found, 3)
		s, err := again.Find("1")
		require.NoError(t, err)
		out, _ := run(t, s, "echo $x")
		require.Equal(t, "kept\n", out)
	})

	t.Run("a hostile folder", func(t *testing.T) {
		again := open(t, Config{Account: of})
		s := again.session("4")
		secret := filepath.Join(t.TempDir(), "secret")
		require.NoError(t, os.WriteFile(secret, []byte("root's"), 0o600))
		_, o := run(t, s, "ln -sf "+secret+" ../query; ln -sf "+secret+" ../progress; rm -rf ../output; ln -s "+secret+" ../output")
		require.NotZero(t, o.Status)
		b, err := os.ReadFile(secret)
		require.NoError(t, err)
		require.Equal(t, "root's", string(b))
	})
}

func processesOf(uid uint32) (n int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == uid && e.Name()[0] <= '9' {
			n++
		}
	}
	return n
}

func TestRootIsNoAccount(t *testing.T) {
	accounts(t)
	r := open(t, Config{Account: func(string) (Account, bool) { return Account{}, true }})
	_, err := r.Session(within(t), "1")
	require.Equal(t, fault.Forbidden, fault.CodeOf(err))
	_, err = exec.LookPath("tmux")
	require.NoError(t, err)
}
