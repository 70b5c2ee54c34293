package bus

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nats-io/nkeys"
)

// Accounts of the server. Agents live apart: what BUTLER does not export and AGENTS does not import is out of their reach,
// whatever a message's subject, reply or headers say.
const (
	ServicesAccount = "BUTLER"
	AgentsAccount   = "AGENTS"
	systemAccount   = "SYS"
)

// AgentAPI begins JetStream's API as agents see it: a client is told it as the API prefix.
const AgentAPI = "AGENT.API"

// How the registry reaches the server's own API, for the connections of agents.
const (
	connectionsSubject = "AGENT.SYS.CONNZ"
	kickSubject        = "AGENT.SYS.KICK."
	authSubject        = "$SYS.REQ.USER.AUTH"
)

// AgentName is what an agent is called on NATS: its user and its durable consumer.
func AgentName(id int64) string { return "agent-" + strconv.FormatInt(id, 10) }

// AgentInbox begins the inboxes of an agent.
func AgentInbox(id int64) string { return "_INBOX_" + AgentName(id) }

// AgentUser is what an agent may do on NATS, in its own account: take what its consumer gives, acknowledge it, report on
// its own tasks, say that it is alive and hear that there is news.
func AgentUser(id int64) ServiceUser {
	n, consumer := strconv.FormatInt(id, 10), AgentName(id)
	return ServiceUser{
		Service: AgentName(id),
		Publish: []string{
			AgentAPI + ".CONSUMER.INFO." + TaskStream + "." + consumer,
			AgentAPI + ".CONSUMER.MSG.NEXT." + TaskStream + "." + consumer,
			"$JS.ACK." + TaskStream + "." + consumer + ".>",
			"butler.report." + n + ".*.*",
			"butler.beat." + n,
		},
		Subscribe: []string{AgentInbox(id) + ".>", "butler.notice." + n},
	}
}

// accountsConfig gives the part of a server's configuration that says who may do what. users are those of the services, in
// the server's syntax, and names what they sign in as: everybody else is decided by agent-registry, whose answers are signed
// with the key issuer.
func accountsConfig(users string, names []string, issuer string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `accounts {
  %[1]s {
    jetstream: enabled
    users: [
%[4]s    ]
    exports: [
      # All that agents reach.
      { service: "$JS.API.CONSUMER.INFO.%[5]s.*", accounts: [%[2]s] }
      { service: "$JS.API.CONSUMER.MSG.NEXT.%[5]s.*", response_type: stream, accounts: [%[2]s] }
      { service: "$JS.ACK.%[5]s.>", accounts: [%[2]s] }
      { service: "butler.report.*.*.*", accounts: [%[2]s] }
      { service: "butler.beat.*", accounts: [%[2]s] }
      { stream: "butler.notice.*", accounts: [%[2]s] }
    ]
    imports: [
      # For agent-registry, which ends the connections of agents that lost their rights.
      { service: { account: %[3]s, subject: "$SYS.REQ.ACCOUNT.%[2]s.CONNZ" }, to: "%[7]s" }
      { service: { account: %[3]s, subject: "$SYS.REQ.SERVER.*.KICK" }, to: "%[8]s*" }
    ]
  }
  %[2]s {
    imports: [
      { service: { account: %[1]s, subject: "$JS.API.CONSUMER.INFO.%[5]s.*" }, to: "%[6]s.CONSUMER.INFO.%[5]s.*" }
      { service: { account: %[1]s, subject: "$JS.API.CONSUMER.MSG.NEXT.%[5]s.*" }, to: "%[6]s.CONSUMER.MSG.NEXT.%[5]s.*" }
      { service: { account: %[1]s, subject: "$JS.ACK.%[5]s.>" } }
      { service: { account: %[1]s, subject: "butler.report.*.*.*" } }
      { service: { account: %[1]s, subject: "butler.beat.*" } }
      { stream: { account: %[1]s, subject: "butler.notice.*" } }
    ]
  }
  %[3]s {
    exports: [
      { service: "$SYS.REQ.ACCOUNT.%[2]s.CONNZ", response_type: stream, accounts: [%[1]s] }
      { service: "$SYS.REQ.SERVER.*.KICK", accounts: [%[1]s] }
    ]
  }
}
system_account: %[3]s
authorization {
  # Whoever is not listed here is an agent, and agent-registry says whether it is let in and what it may do.
  auth_callout {
    issuer: %[9]s
    account: %[1]s
    auth_users: [%[10]s]
  }
}
`, ServicesAccount, AgentsAccount, systemAccount, users, TaskStream, AgentAPI, connectionsSubject, kickSubject, issuer,
		strings.Join(names, ", "))
	return b.String()
}

// NewIssuerKey makes the key with which agent-registry signs who is let in. The seed is a secret of the registry's, the
// public key goes into the server's configuration.
func NewIssuerKey() (seed, public string, err error) {
	pair, err := nkeys.CreateAccount()
	if err != nil {
		return "", "", fmt.Errorf("bus: %w", err)
	}
	return seedAndPublic(pair)
}

func seedAndPublic(pair nkeys.KeyPair) (seed, public string, err error) {
	defer pair.Wipe()
	raw, err := pair.Seed()
	if err != nil {
		return "", "", fmt.Errorf("bus: %w", err)
	}
	if public, err = pair.PublicKey(); err != nil {
		return "", "", fmt.Errorf("bus: %w", err)
	}
	return string(raw), public, nil
}

// adoptGlobal gives the streams that were kept before there were accounts to the account of the services.
func adoptGlobal(dir string) error {
	before, now := filepath.Join(dir, "jetstream", "$G"), filepath.Join(dir, "jetstream", ServicesAccount)
	if _, err := os.Stat(before); err != nil {
		return nil //nolint:nilerr // there were none
	}
	if _, err := os.Stat(now); err == nil {
		return nil
	}
	if err := os.Rename(before, now); err != nil {
		return fmt.Errorf("bus: the streams of the version before cannot be taken over: %w", err)
	}
	return nil
}
