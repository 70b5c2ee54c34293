package tmux

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is typed while a program runs that does not read it is not the shell's next command, with echo or without, and such
// a program asks for no password.
func TestTypeaheadIsNoCommand(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{
		"echo": "sleep 1", "no echo": "stty -echo; sleep 1; stty echo", "part read": "head -1 >/dev/null; sleep 0.2",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := open(t, Config{})
			s := r.session("17")
			evil := filepath.Join(t.TempDir(), "evil")
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = s.Run(within(t), Command{ID: "c1", Text: command})
			}()
			require.Eventually(t, func() bool {
				st, err := s.State(within(t))
				return err == nil && !st.ShellForeground
			}, 30*time.Second, time.Millisecond)
			if name != "part read" {
				st, err := s.State(within(t))
				require.NoError(t, err)
				require.False(t, st.Password)
			}
			require.NoError(t, s.Type(within(t), "one\ntouch "+evil+"\ntouch "+evil, true))
			<-done
			run(t, s, "true")
			run(t, s, "true")
			_, err := os.Stat(evil)
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}
