package gateway

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Another gateway that has not heard of the deletion yet may still append a message: it goes as well, at the latest when
// the gateway that deleted stops.
func TestWhatComesLateToADeletedConversationIsErased(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bob := r.member("bob")
	var thread threadJSON
	r.call(bob, "POST", "/api/chat/threads", map[string]any{"title": "soon gone"}).into(&thread)
	require.Equal(t, http.StatusNoContent, r.call(bob, "DELETE", fmt.Sprint("/api/chat/threads/", thread.ID), nil).status)
	turn := chat.Turn{Session: chat.Session{Person: bob.id, Thread: thread.ID}, ID: "late"}
	data, err := chat.Encode(&butlerv1.ChatAsked{
		Sender: &butlerv1.Actor{Id: bob.id, Name: "bob", Role: "MEMBER"}, ConversationId: thread.ID, LocalId: "late", Text: "too late",
	})
	require.NoError(t, err)
	answered := make(chan struct{})
	r.brain.answerWith(func(tk *talk) { tk.stream("an answer"); close(answered) })
	_, err = r.bus.Append(t.Context(), bus.NewEvent(chat.TypeAsked, "/butler/gateway", turn.Subject(chat.Asked), data), bus.Expect{Filter: turn.Filter()})
	require.NoError(t, err)
	<-answered
	require.NoError(t, r.gates[0].stop())
	left, err := r.bus.Load(t.Context(), bus.ChatStream, turn.Session.Filter(), 0, 0)
	require.NoError(t, err)
	require.Empty(t, left)
}
