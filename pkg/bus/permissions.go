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
	// Answers lets it answer requests that it receives.
	Answers bool
}

// ServiceUsers lists the services that connect to NATS.
func ServiceUsers() []ServiceUser {
	return []ServiceUser{
		{
			Service: "gateway",
			Publish: join(
				// What people say, and that they want it to stop.
				"butler.chat.*.*.*.asked", "butler.chat.*.*.*.stop",
				"butler.access.changed", "butler.prompt.asked",
				read(ChatStream), follow(ChatStream), durable(ChatStream, ProjectorConsumer),
				read(DeltaStream), follow(DeltaStream),
				read(ApprovalStream), follow(ApprovalStream),
				"$JS.API.DIRECT.GET."+ShellStream, // the output of commands; no more than Load needs
				// Deleting a conversation.
				"$JS.API.STREAM.MSG.DELETE."+ChatStream, "$JS.API.STREAM.PURGE."+ChatStream,
				"$JS.API.STREAM.MSG.DELETE."+DeltaStream, "$JS.API.STREAM.PURGE."+DeltaStream,
			),
			Subscribe: []string{"_INBOX_gateway.>", "butler.access.changed", "butler.prompt.changed"},
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
				declareConsumers(WorkStream, ApprovalTimerConsumer, TaskTimerConsumer, CompactConsumer),
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
				"butler.task.*.*", "butler.task-answer.*.*.*", "butler.notice.*", "butler.work.turn.>", "butler.timer.task.*.*",
				"butler.parked.work.task.*.*", "butler.parked.report.*.*.*",
				declare(TaskStream), read(TaskStream), every(TaskStream), durable(TaskStream, TaskConsumer),
				declare(ReportStream), read(ReportStream), follow(ReportStream), durable(ReportStream, ReportConsumer),
				declare(WorkStream), read(WorkStream), "$JS.API.STREAM.PURGE."+WorkStream, durable(WorkStream, TaskTimerConsumer),
				declareConsumers(WorkStream, SignalConsumer, ApprovalTimerConsumer, CompactConsumer),
				declare(ParkedStream), read(ParkedStream),
				connectionsSubject, kickSubject+"*",
			),
			Subscribe: []string{"_INBOX_registry.>", "butler.beat.*", authSubject},
			Answers:   true,
		},
		{
			Service: "approval",
			Publish: join(
				"butler.approval.*", "butler.audit", "butler.work.turn.>", "butler.timer.approval.*", "butler.parked.work.approval.*",
				read(ChatStream), // who wrote a message, and what it says
				declare(ApprovalStream), read(ApprovalStream), follow(ApprovalStream), durable(ApprovalStream, ApprovalConsumer),
				declare(AuditStream), read(AuditStream),
				declare(WorkStream), read(WorkStream), "$JS.API.STREAM.PURGE."+WorkStream, durable(WorkStream, ApprovalTimerConsumer),
				declareConsumers(WorkStream, SignalConsumer, TaskTimerConsumer, CompactConsumer),
				declare(ParkedStream), read(ParkedStream),
			),
			Subscribe: []string{"_INBOX_approval.>", "butler.access.changed"},
		},
		{
			Service: "shell",
			Publish: join(
				"butler.approval-use.*.*", "butler.shell.*.*", "butler.shell.*.*.*", "butler.delta.*.*", "butler.work.turn.>",
				"butler.prompt.changed",
				read(ApprovalStream),
				declare(ShellStream), read(ShellStream), durable(ShellStream, ShellLogConsumer),
				read(DeltaStream), read(WorkStream),
			),
			Subscribe: []string{"_INBOX_shell.>", "butler.prompt.asked"},
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

// declareConsumers is for Ensure of a stream whose consumers are others'.
func declareConsumers(stream string, names ...string) []string {
	var out []string
	for _, name := range names {
		out = append(out, "$JS.API.CONSUMER.CREATE."+stream+"."+name, "$JS.API.CONSUMER.CREATE."+stream+"."+name+".>",
			"$JS.API.CONSUMER.INFO."+stream+"."+name)
	}
	return out
}

// every is for consumers with names that are not known beforehand: made, looked at, followed and deleted.
func every(stream string) []string {
	return append(follow(stream), "$JS.API.CONSUMER.DELETE."+stream+".*")
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
	return seedAndPublic(pair)
}

// ServerConfig gives the configuration of a NATS server for the distributed form: JetStream in storeDir, synced before
// each acknowledgement, one user a service with the public key given, and the account of agents, whom agent-registry lets in
// with answers signed by issuer.
func ServerConfig(listen, storeDir string, keys map[string]string, issuer string) (string, error) {
	var users strings.Builder
	var names []string
	for _, u := range ServiceUsers() {
		key, ok := keys[u.Service]
		if !ok {
			return "", fmt.Errorf("bus: there is no key for %s", u.Service)
		}
		names = append(names, key)
		answers := ""
		if u.Answers {
			answers = "        allow_responses: { max: 1, expires: \"10s\" }\n"
		}
		fmt.Fprintf(&users, "    {\n      # %s\n      nkey: %s\n      permissions: {\n        publish: { allow: [%s] }\n        subscribe: { allow: [%s] }\n%s      }\n    }\n",
			u.Service, key, quoteAll(u.Publish), quoteAll(u.Subscribe), answers)
	}
	return fmt.Sprintf(`# NATS server for Butler. Written by "butler nats-config"; the rights are those of pkg/bus.
listen: %q
server_name: butler
max_payload: 1MB
jetstream {
  store_dir: %q
  # Acknowledged means on disk. The default (2m) would lose up to two minutes of acknowledged events at a power cut.
  sync_interval: always
}
`, listen, storeDir) + accountsConfig(users.String(), names, issuer), nil
}

func quoteAll(s []string) string {
	out := make([]string, len(s))
	for i, v := range s {
		out[i] = fmt.Sprintf("%q", v)
	}
	return "\n          " + strings.Join(out, "\n          ") + "\n        "
}
