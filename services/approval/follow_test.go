package approval

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// An executor may die between recording how a command ended and waking the turn that waits for that.
func TestTheEndOfAUseWakesWhoWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.ask("bob", "make all")
	a, err := r.word("alice", a.GetId(), true)
	require.NoError(t, err)
	waiter := &butlerv1.Waiter{Person: a.GetWaiter().GetPerson(), Thread: a.GetWaiter().GetThread(), Turn: a.GetWaiter().GetTurn(), Key: "end"}
	taken := r.take(a, func(u *butlerv1.ApprovalUse) { u.Waiter = waiter })

	data, err := chat.Encode(&butlerv1.ApprovalUse{
		Id: a.GetId(), Status: approval.Ended, Grant: a.GetGrant(), Host: "web", Waiter: waiter, Requester: a.GetRequester(),
	})
	require.NoError(t, err)
	subject := approval.UseSubject("web", a.GetId())
	_, err = r.bus.Append(r.ctx(), bus.NewEvent(approval.TypeUse, "/test", subject, data), bus.Expect{Filter: subject, Seq: taken.GetSeq()})
	require.NoError(t, err)

	turn := chat.Turn{Session: chat.Session{Person: waiter.GetPerson(), Thread: waiter.GetThread()}, ID: waiter.GetTurn()}
	var got butlerv1.ApprovalUse
	require.Eventually(t, func() bool {
		ev, found, err := r.bus.Last(r.ctx(), bus.WorkStream, turn.Signal("end"))
		if err != nil || !found {
			return false
		}
		var signal struct{ Value json.RawMessage }
		require.NoError(t, json.Unmarshal(ev.Data, &signal))
		return chat.Decode(signal.Value, &got) == nil
	}, 20*time.Second, 2*time.Millisecond)
	require.Equal(t, approval.Ended, got.GetStatus())
	require.Empty(t, got.GetGrant(), "a work item is no place for one")
}
