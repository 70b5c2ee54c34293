package contracts

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/bus"
)

// natsUsers names the NATS user of each service.
var natsUsers = map[string]string{"gateway": "gateway", "butler-brain": "brain", "agent-registry": "registry",
	"approval": "approval", "shell-runner": "shell", "agent": "agent-3", "compactor": "compactor"}

// A service may publish and read on NATS what the document says it sends and receives, and nothing else of Butler's.
func TestPermissionsAreThoseOfTheDocument(t *testing.T) {
	t.Parallel()
	d := load(t)
	users := map[string]bus.ServiceUser{}
	for _, u := range bus.ServiceUsers() {
		if u.Service != "operator" { // may do everything
			users[u.Service] = u
		}
	}
	agent := bus.AgentUser(3) // as in sample
	users[agent.Service] = agent
	require.Len(t, users, len(natsUsers))

	sends := map[string]map[string]bool{} // user to channels
	for id, o := range d.Operations {
		user, ok := users[natsUsers[o.Service]]
		require.True(t, ok, "%s: no NATS user for %s", id, o.Service)
		ch := o.Channel.id(t, "#/channels/")
		c := d.Channels[ch]
		if o.Service == "agent" {
			agentRights(t, id, o, c, agent)
			continue
		}
		if o.Action == "send" {
			if o.Through != "" {
				ch, c = o.Through, d.Channels[o.Through]
			}
			if sends[user.Service] == nil {
				sends[user.Service] = map[string]bool{}
			}
			sends[user.Service][ch] = true
			subject := pattern(strings.ReplaceAll(c.Address, "{service}", user.Service))
			require.True(t, allows(user.Publish, subject), "%s: %s may not publish %s", id, user.Service, subject)
			continue
		}
		switch {
		case c.Stream == "":
			require.True(t, allows(user.Subscribe, pattern(c.Address)), "%s: %s may not subscribe to %s", id, user.Service, c.Address)
		case o.Consumer != "":
			for _, name := range consumerNames(t, o.Consumer) {
				for _, need := range []string{
					"$JS.API.CONSUMER.MSG.NEXT." + c.Stream + "." + name, "$JS.ACK." + c.Stream + "." + name + ".1.1.1.1.0",
				} {
					require.True(t, allows(user.Publish, need), "%s: %s may not publish %s", id, user.Service, need)
				}
			}
		default:
			need := "$JS.API.DIRECT.GET." + c.Stream
			require.True(t, allows(user.Publish, need), "%s: %s may not publish %s", id, user.Service, need)
		}
	}

	delete(users, agent.Service) // its rights are compared in agentRights, and tried in package bus
	for name, user := range users {
		for _, filter := range user.Publish {
			if strings.HasPrefix(filter, "$JS.") || strings.HasPrefix(filter, "AGENT.SYS.") { // the server's own
				continue
			}
			found := false
			for id, c := range d.Channels {
				if meet(filter, pattern(c.Address)) {
					found = true
					require.True(t, sends[name][id], "%s may publish %s, but asyncapi.yaml does not say that it sends %s", name, filter, id)
				}
			}
			require.True(t, found, "%s may publish %s, which asyncapi.yaml does not have", name, filter)
		}
		for _, filter := range user.Subscribe {
			if strings.HasPrefix(filter, "_INBOX_") || strings.HasPrefix(filter, "$SYS.") {
				continue
			}
			found := slices.ContainsFunc(d.order, func(id string) bool { return meet(filter, pattern(d.Channels[id].Address)) })
			require.True(t, found, "%s may subscribe to %s, which asyncapi.yaml does not have", name, filter)
		}
	}
}

// agentRights says whether an agent may do, for itself, what the document says.
func agentRights(t *testing.T, id string, o operation, c channel, agent bus.ServiceUser) {
	t.Helper()
	subject := pattern(strings.ReplaceAll(c.Address, "{agent}", "3"))
	switch {
	case o.Action == "send":
		require.True(t, allows(agent.Publish, subject), "%s: an agent may not publish %s", id, subject)
	case c.Stream == "":
		require.True(t, allows(agent.Subscribe, subject), "%s: an agent may not subscribe to %s", id, subject)
	default:
		need := bus.AgentAPI + ".CONSUMER.MSG.NEXT." + c.Stream + "." + bus.AgentName(3)
		require.True(t, allows(agent.Publish, need), "%s: an agent may not publish %s", id, need)
	}
}

func allows(filters []string, subject string) bool {
	return slices.ContainsFunc(filters, func(f string) bool { return covers(f, subject) })
}
