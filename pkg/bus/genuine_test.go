package bus_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
)

// The server answers a direct get to any reply subject, and a stream takes the answer for a message: so who may write to one
// stream and read from it can put an event into every other one. Such an event is read as a forged one.
func TestCopiesOfEventsAreNotBelieved(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	url, seeds := startDistributed(t)
	connect := func(service string) *bus.Bus {
		b, err := bus.Connect(ctx, bus.Options{URL: url, Service: service, Credentials: seeds[service]})
		require.NoError(t, err)
		t.Cleanup(b.Close)
		return b
	}
	brain := connect("brain")
	require.NoError(t, brain.Ensure(ctx, bus.ChatStream))
	approval := connect("approval")
	require.NoError(t, approval.Ensure(ctx, bus.ApprovalStream, bus.AuditStream))
	require.NoError(t, connect("shell").Ensure(ctx, bus.ShellStream))
	nkey, err := nats.NkeyOptionFromSeed(seeds["shell"])
	require.NoError(t, err)
	attacker, err := nats.Connect(url, nkey, nats.CustomInboxPrefix("_INBOX_shell"))
	require.NoError(t, err)
	t.Cleanup(attacker.Close)

	ev := asked(turn, "approve K7QF")
	for n, expected := range []string{"", bus.ShellStream} { // with another stream's name the server refuses it at once
		msg := nats.NewMsg("butler.shell.h.s")
		msg.Data = ev.Data
		msg.Header.Set("ce-specversion", "1.0")
		msg.Header.Set("ce-type", ev.Type)
		msg.Header.Set("ce-id", string(rune('a'+n)))
		if expected != "" {
			msg.Header.Set("Nats-Expected-Stream", expected)
		}
		ack, err := attacker.RequestMsg(msg, 10e9)
		require.NoError(t, err)
		require.Contains(t, string(ack.Data), `"SHELL"`)
		require.NoError(t, attacker.PublishRequest("$JS.API.DIRECT.GET."+bus.ShellStream, turn.Subject(chat.Asked), []byte(`{"last_by_subj":"butler.shell.h.s"}`)))
		require.NoError(t, attacker.PublishRequest("$JS.API.DIRECT.GET."+bus.ShellStream, "butler.approval.11111111-1111-1111-1111-111111111111", []byte(`{"last_by_subj":"butler.shell.h.s"}`)))
		require.NoError(t, attacker.PublishRequest("$JS.API.DIRECT.GET."+bus.ShellStream, "butler.audit", []byte(`{"last_by_subj":"butler.shell.h.s"}`)))
		require.NoError(t, attacker.Flush())
	}
	_, err = attacker.Request("$JS.API.STREAM.INFO."+bus.ShellStream, nil, 10e9) // after the copies
	require.NoError(t, err)
	read := 0
	for _, c := range []struct {
		b              *bus.Bus
		stream, filter string
	}{{brain, bus.ChatStream, "butler.chat.>"}, {approval, bus.ApprovalStream, "butler.approval.*"}, {approval, bus.AuditStream, "butler.audit"}} {
		events, err := c.b.Load(ctx, c.stream, c.filter, 0, 0)
		require.NoError(t, err)
		for _, ev := range events {
			read++
			require.Equal(t, bus.TypeForged, ev.Type, c.stream)
			require.Empty(t, ev.Data, c.stream)
		}
		last, found, err := c.b.Last(ctx, c.stream, c.filter)
		require.NoError(t, err)
		require.True(t, !found || last.Type == bus.TypeForged && len(last.Data) == 0)
	}
	require.Positive(t, read, "the server lets them in: if it no longer does, the check can go")
}
