package gateway

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/sealed"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func TestWhatAnswersAPasswordPromptIsSealed(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := newPrompts(func() time.Time { return now })
	key, err := sealed.NewKey()
	require.NoError(t, err)
	on := &butlerv1.ShellPrompt{PersonId: 7, ConversationId: 3, Host: "web1", Key: key.Public(), Until: timestamppb.New(now.Add(time.Minute))}
	of := func(person, conversation int64, text string) *butlerv1.SealedInput {
		in, err := p.seal(person, conversation, text)
		require.NoError(t, err)
		return in
	}
	require.Nil(t, of(7, 3, "hunter2"))
	p.heard(on)
	in := of(7, 3, "hunter2")
	require.Equal(t, "web1", in.GetHost())
	text, err := key.Open(in.GetBox())
	require.NoError(t, err)
	require.Equal(t, "hunter2", text)
	require.NotNil(t, of(7, 3, "again, since the first was wrong"))
	require.NotNil(t, of(7, 3, "/Etc/secret"))
	require.NotNil(t, of(7, 3, "/hunter"))
	require.NotNil(t, of(7, 3, "yes"), "a bare word may be a password")
	for _, plain := range []string{"/cancel", " /key C-c", "approve K7QF", "确认 K7QF"} {
		require.Nil(t, of(7, 3, plain), plain)
	}
	require.Nil(t, of(8, 3, "another person"))
	require.Nil(t, of(7, 4, "another conversation"))
	p.heard(&butlerv1.ShellPrompt{PersonId: 7, Host: "web2"})
	require.NotNil(t, of(7, 3, "x"), "another host has no prompt any more")
	// Of two hosts that ask in one conversation it is the one that began last, also when the other is told again.
	other := &butlerv1.ShellPrompt{PersonId: 7, ConversationId: 3, Host: "web2", Key: key.Public(), Until: on.GetUntil()}
	p.heard(other)
	p.heard(on)
	require.Equal(t, "web2", of(7, 3, "x").GetHost())
	other = &butlerv1.ShellPrompt{PersonId: 7, ConversationId: 9, Host: "web2", Key: []byte("another key"), Until: on.GetUntil()}
	p.heard(other)
	require.Equal(t, "web1", of(7, 3, "x").GetHost(), "each host in its conversation")
	p.heard(&butlerv1.ShellPrompt{PersonId: 7, Host: "web2"})
	p.heard(&butlerv1.ShellPrompt{PersonId: 7, Host: "web1"})
	require.Nil(t, of(7, 3, "x"))
	require.Empty(t, p.by)
	require.Zero(t, p.all)
	p.heard(on)
	now = now.Add(time.Minute)
	require.Nil(t, of(7, 3, "x"), "it was not announced for long")
	p.heard(&butlerv1.ShellPrompt{PersonId: 7, ConversationId: 3, Host: "web1", Key: []byte("short"), Until: timestamppb.New(now.Add(time.Minute))})
	_, err = p.seal(7, 3, "x")
	require.Error(t, err, "rather not written at all")
}

// Prompts of shell-runners that went without a word do not fill the place of others.
func TestOldPromptsMakeRoom(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := newPrompts(func() time.Time { return now })
	key, err := sealed.NewKey()
	require.NoError(t, err)
	hear := func(person int64) {
		p.heard(&butlerv1.ShellPrompt{PersonId: person, ConversationId: 1, Host: "web", Key: key.Public(), Until: timestamppb.New(now.Add(time.Minute))})
	}
	for person := range int64(maxPrompts + 1) {
		hear(person + 1)
	}
	require.Equal(t, maxPrompts, p.all)
	require.Nil(t, p.newest(maxPrompts+1, 1))
	now = now.Add(time.Hour)
	hear(maxPrompts + 1)
	require.NotNil(t, p.newest(maxPrompts+1, 1))
	require.Equal(t, 1, p.all)
	require.Len(t, p.by, 1)
}

// The log and the person's devices have dots; the same message sent again is the same message.
func TestSealedMessagesOnTheWebSocket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	asked := make(chan *butlerv1.ChatAsked, 2)
	r.brain.answerWith(func(tk *talk) { asked <- tk.asked; tk.stream("passed") })
	key, err := sealed.NewKey()
	require.NoError(t, err)
	c := r.admin.connect("")
	c.say("m1", "before")
	first := <-asked
	c.turn("m1")
	data, err := chat.Encode(&butlerv1.ShellPrompt{PersonId: first.GetSender().GetId(), ConversationId: first.GetConversationId(), Host: "web1",
		Key: key.Public(), Until: timestamppb.New(time.Now().Add(time.Minute))})
	require.NoError(t, err)
	require.NoError(t, r.bus.Notify(sealed.Changed, data))
	s := r.gates[0].Service
	require.Eventually(t, func() bool {
		in, err := s.prompts.seal(first.GetSender().GetId(), first.GetConversationId(), "x")
		return err == nil && in != nil
	}, 10*time.Second, 5*time.Millisecond)
	c.say("m2", "open-sesame-4711")
	second := <-asked
	require.Equal(t, sealed.Text, second.GetText())
	text, err := key.Open(second.GetSealed().GetBox())
	require.NoError(t, err)
	require.Equal(t, "open-sesame-4711", text)
	for _, f := range c.turn("m2") {
		require.NotContains(t, f.Payload, "sesame")
	}
	c.say("m2", "open-sesame-4711") // the connection was lost, for instance
	again := c.turn("m2")
	require.Equal(t, sealed.Text, again[0].Payload)
	require.Equal(t, "passed", again[1].Payload)
	c.say("m1", "before") // what was said before there was a prompt is the same message still
	require.Equal(t, "before", c.turn("m1")[0].Payload)
	events, err := r.bus.Load(t.Context(), bus.ChatStream, "butler.>", 0, 0)
	require.NoError(t, err)
	for _, ev := range events {
		require.NotContains(t, string(ev.Data), "sesame")
	}
}
