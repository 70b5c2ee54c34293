package shell

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/sealed"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// A prompt that comes when nobody waits for its command any more is announced, its end too, and what was sealed for it
// then leaves no trace. After /nl there is none for the gateways.
func TestPromptsAreNoticedWheneverTheyCome(t *testing.T) {
	t.Parallel()
	const secret = "sesame-4711"
	r := newRig(t, impatient)
	announced := r.prompts()
	req := r.granted(`sleep 1; timeout --foreground 3 python3 -c 'import getpass; getpass.getpass()'; true`)
	resp, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, approvalRunning, resp.GetStatus())
	require.False(t, resp.GetShell().GetPassword())
	p := <-announced
	require.NotEmpty(t, p.GetKey())
	require.Empty(t, (<-announced).GetKey(), "nobody asks the shell, and it ends")
	box, err := sealed.Seal(secret, p.GetKey())
	require.NoError(t, err)
	in := &butlerv1.SealedInput{Host: p.GetHost(), Box: box}
	r.eventually("it ended", func() bool { return r.use(req.GetApprovalId()).GetStatus() == approval.Ended })
	_, err = r.Route(r.ctx(), &butlerv1.RouteRequest{Person: alice, Text: sealed.Text, Attached: true, Sealed: in})
	require.ErrorContains(t, err, "not there any more")
	require.NoError(t, filepath.WalkDir(r.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			data, _ := os.ReadFile(path)
			require.NotContains(t, string(data), secret, path)
		}
		return nil
	}))

	_, err = r.Execute(r.ctx(), r.granted(`read -rs P`))
	require.NoError(t, err)
	for p = <-announced; len(p.GetKey()) == 0; p = <-announced { // the late answer's
	}
	r.control("/nl")
	for len(p.GetKey()) > 0 {
		p = <-announced
	}
	r.control("/cancel")
}

// Who leaves the shell talks to Butler again, also while a program in it asks for a password.
func TestAConversationThatLeftAnswersNoPrompt(t *testing.T) {
	t.Parallel()
	r := newRig(t, impatient)
	announced := r.prompts()
	req := r.granted(`read -rs P`)
	_, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	thread := req.GetWaiter().GetThread()
	require.Equal(t, thread, (<-announced).GetConversationId())
	off := func(conversation int64) {
		_, err := r.Control(r.ctx(), &butlerv1.ControlRequest{Person: alice, Text: "/shell off", Attached: true, ConversationId: conversation})
		require.NoError(t, err)
	}
	off(thread + 1) // another one
	off(thread)
	require.Zero(t, (<-announced).GetConversationId())
	r.control("/cancel")
}
