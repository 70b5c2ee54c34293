package bus

import (
	"fmt"
	"strings"

	"github.com/nats-io/nkeys"
)

// ServiceUser is what one service may do on NATS: the least that its part of this package needs. Everything not listed is
// refused by the server.
type ServiceUser struct {
	Service   string
	Publish   []string
	Subscribe []string
}

// ServiceUsers lists the services that connect to NATS.
func ServiceUsers() []ServiceUser {
	return []ServiceUser{
		{
			Service: "gateway",
			Publish: join(
				// What people say, and that they want it to stop.
				"butler.chat.*.*.*.asked", "butler.chat.*.*.*.stop",
				"butler.access.changed",
				read(ChatStream), follow(ChatStream), durable(ChatStream, ProjectorConsumer),
				read(DeltaStream), follow(DeltaStream),
				read(ApprovalStream), follow(ApprovalStream),
				// Deleting a conversation.
				"$JS.API.STREAM.MSG.DELETE."+ChatStream, "$JS.API.STREAM.PURGE."+ChatStream,
				"$JS.API.STREAM.MSG.DELETE."+DeltaStream, "$JS.API.STREAM.PURGE."+DeltaStream,
			),
			Subscribe: []string{"_INBOX_gateway.>", "butler.access.changed"},
		},
		{
			Service: "brain",
			Publish: join(
				"butler.chat.*.*.*.step", "butler.chat.*.*.*.signal", "butler.chat.*.*.*.answer",
				"butler.chat.*.*.pins", "butler.work.compact.*.*", follow(ChatStream),
				"butler.delta.*.*", "butler.timer.turn.>", "butler.parked.work.turn.>", "butler.parked.turn.>",
				"$KV."+PresenceBucket+".replica.brain.*",
				declare(ChatStream), read(ChatStream), partitionRights(),
				declare(DeltaStream), read(DeltaStream), "$JS.API.STREAM.PURGE."+DeltaStream,
				declare(WorkStream), read(WorkStream), "$JS.API.STREAM.PURGE."+WorkStream, durable(WorkStream, SignalConsumer),
				// Whoever declares the stream declares its consumers.
				"$JS.API.CONSUMER.CREATE."+WorkStream+"."+ApprovalTimerConsumer, "$JS.API.CONSUMER.INFO."+WorkStream+"."+ApprovalTimerConsumer,
				"$JS.API.CONSUMER.CREATE."+WorkStream+"."+CompactConsumer, "$JS.API.CONSUMER.INFO."+WorkStream+"."+CompactConsumer,
				declare(ParkedStream), read(ParkedStream),
				declare("KV_"+PresenceBucket), read("KV_"+PresenceBucket), follow("KV_"+PresenceBucket),
			),
			Subscribe: []string{"_INBOX_brain.>"},
		},
		{
			Service: "registry",
			Publish: join(
				"$KV."+PresenceBucket+".agent.*",
				declare("KV_"+PresenceBucket), read("KV_"+PresenceBucket),
			),
			Subscribe: []string{"_INBOX_registry.>"},
		},
		{
			Service: "approval",
			Publish: join(
				"butler.approval.*", "butler.audit", "butler.work.turn.>", "butler.timer.approval.*", "butler.parked.work.approval.*",
				read(ChatStream), // who wrote a message, and what it says
				declare(ApprovalStream), read(ApprovalStream), follow(ApprovalStream), durable(ApprovalStream, ApprovalConsumer),
				declare(AuditStream), read(AuditStream),
				declare(WorkStream), read(WorkStream), "$JS.API.STREAM.PURGE."+WorkStream, durable(WorkStream, ApprovalTimerConsumer),
				"$JS.API.CONSUMER.CREATE."+WorkStream+"."+SignalConsumer, "$JS.API.CONSUMER.INFO."+WorkStream+"."+SignalConsumer,
				"$JS.API.CONSUMER.CREATE."+WorkStream+"."+CompactConsumer, "$JS.API.CONSUMER.INFO."+WorkStream+"."+CompactConsumer,
				declare(ParkedStream), read(ParkedStream),
			),
			Subscribe: []string{"_INBOX_approval.>", "butler.access.changed"},
		},
		{
			Service: "shell",
			Publish: join(
				"butler.approval-use.*.*", "butler.shell.*.*", "butler.delta.*.*", "butler.work.turn.>",
				read(ApprovalStream),
				declare(ShellStream), read(ShellStream), durable(ShellStream, ShellLogConsumer),
				read(DeltaStream), read(WorkStream),
			),
			Subscribe: []string{"_INBOX_shell.>"},
		},
		{
			Service: "compactor",
			Publish: join(
				"butler.chat.*.*.summary", read(ChatStream),
				read(WorkStream), durable(WorkStream, CompactConsumer),
			),
			Subscribe: []string{"_INBOX_compactor.>"},
		},
		// Not a service: whoever backs up, restores and looks at the log.
		{Service: "operator", Publish: []string{">"}, Subscribe: []string{">"}},
	}
}

// join flattens strings and lists of them.
func join(parts ...any) []string {
	var out []string
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			out = append(out, p)
		case []string:
			out = append(out, p...)
		}
	}
	return out
}

// declare is for Ensure; making a bucket asks what the account can do.
func declare(stream string) []string {
	return []string{"$JS.API.INFO", "$JS.API.STREAM.CREATE." + stream, "$JS.API.STREAM.UPDATE." + stream}
}

// read is for Load, Last, Bounds and the read-back of Append.
func read(stream string) []string {
	return []string{
		"$JS.API.STREAM.INFO." + stream, "$JS.API.STREAM.MSG.GET." + stream,
		"$JS.API.DIRECT.GET." + stream, "$JS.API.DIRECT.GET." + stream + ".>",
	}
}

// follow is for Follow, whose consumers have names of the moment.
func follow(stream string) []string {
	return []string{"$JS.API.CONSUMER.CREATE." + stream + ".>", "$JS.API.CONSUMER.INFO." + stream + ".*", "$JS.API.CONSUMER.MSG.NEXT." + stream + ".*"}
}

// durable is for Consume on one declared consumer.
func durable(stream, name string) []string {
	return []string{
		"$JS.API.CONSUMER.CREATE." + stream + "." + name, "$JS.API.CONSUMER.CREATE." + stream + "." + name + ".>",
		"$JS.API.CONSUMER.INFO." + stream + "." + name, "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + name,
		"$JS.ACK." + stream + "." + name + ".>",
	}
}

// partitionRights is for Work; the projector's consumer is made, but not read, by whoever makes the stream.
func partitionRights() []string {
	out := []string{
		"$JS.API.CONSUMER.CREATE." + ChatStream + "." + ProjectorConsumer,
		"$JS.API.CONSUMER.INFO." + ChatStream + "." + ProjectorConsumer,
	}
	for p := range Partitions {
		name := PartitionConsumer(p)
		out = append(out, durable(ChatStream, name)...)
		out = append(out, "$JS.API.CONSUMER.UNPIN."+ChatStream+"."+name)
	}
	return out
}

// NewServiceKey makes an nkey for a user: the seed is the secret that the service keeps, the public key goes into the
// server's configuration.
func NewServiceKey() (seed, public string, err error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return "", "", fmt.Errorf("bus: %w", err)
	}
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

// ServerConfig gives the configuration of a NATS server for the distributed form: JetStream in storeDir, synced before
// each acknowledgement, and one user a service with the public key given.
func ServerConfig(listen, storeDir string, keys map[string]string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, `# NATS server for Butler. Written by "butler nats-config"; the rights are those of pkg/bus.
listen: %q
server_name: butler
max_payload: 1MB
jetstream {
  store_dir: %q
  # Acknowledged means on disk. The default (2m) would lose up to two minutes of acknowledged events at a power cut.
  sync_interval: always
}
authorization {
  users: [
`, listen, storeDir)
	for _, u := range ServiceUsers() {
		key, ok := keys[u.Service]
		if !ok {
			return "", fmt.Errorf("bus: there is no key for %s", u.Service)
		}
		fmt.Fprintf(&b, "    {\n      # %s\n      nkey: %s\n      permissions: {\n        publish: { allow: [%s] }\n        subscribe: { allow: [%s] }\n      }\n    }\n",
			u.Service, key, quoteAll(u.Publish), quoteAll(u.Subscribe))
	}
	b.WriteString("  ]\n}\n")
	return b.String(), nil
}

func quoteAll(s []string) string {
	out := make([]string, len(s))
	for i, v := range s {
		out[i] = fmt.Sprintf("%q", v)
	}
	return "\n          " + strings.Join(out, "\n          ") + "\n        "
}
