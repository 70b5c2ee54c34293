package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
)

// Names of the streams and of the presence bucket.
const (
	ChatStream     = "CHAT"
	DeltaStream    = "DELTA"
	WorkStream     = "WORK"
	ApprovalStream = "APPROVAL"
	AuditStream    = "AUDIT"
	ShellStream    = "SHELL"
	ParkedStream   = "PARKED"
	TaskStream     = "TASK"
	ReportStream   = "REPORT"
	PresenceBucket = "PRESENCE"
)

// Partitions is how many partitions the sessions are spread over.
const Partitions = chat.Partitions

// DeltaWindow bounds how many deltas are kept, and so how many low bits of a delta's sequence identify it in a client's
// cursor.
const DeltaWindow = 1 << 20

// Names of the durable consumers.
const (
	ProjectorConsumer = "gateway-projector"
	SignalConsumer    = "brain-signals"
	CompactConsumer   = "compactor"

	ApprovalConsumer      = "approval-follow"
	ApprovalTimerConsumer = "approval-timers"
	ShellLogConsumer      = "shell-log"

	TaskConsumer      = "registry-tasks"
	TaskTimerConsumer = "registry-timers"
	ReportConsumer    = "registry-reports"
)

// partitionGroup is the priority group of the partition consumers.
const partitionGroup = "brain"

// Timings of the partition consumers, as measured: with them a killed worker's partition was taken over in 2.6 s and a
// frozen one's in 5.4 s.
const (
	partitionAckWait   = 6 * time.Second
	partitionPinnedTTL = 4 * time.Second
	partitionExpiry    = 2 * time.Second
	partitionBeat      = 2 * time.Second
)

// Streams declares every stream. replicas is for those on disk.
func Streams(replicas int) []jetstream.StreamConfig {
	return []jetstream.StreamConfig{
		{
			Name:        ChatStream,
			Description: "Conversations and the journal of each turn",
			Subjects:    []string{"butler.chat.>"},
			Storage:     jetstream.FileStorage,
			Replicas:    replicas,
			AllowDirect: true,
			MaxMsgSize:  1 << 20,
			Duplicates:  2 * time.Minute,
			SubjectTransform: &jetstream.SubjectTransformConfig{
				// The partition comes first, so that the server finds a partition's subjects without looking at the others:
				// it counts what each consumer has before it whenever it starts.
				Source:      "butler.chat.*.*.>",
				Destination: fmt.Sprintf("butler.chat.{{partition(%d,1,2)}}.{{wildcard(1)}}.{{wildcard(2)}}.>", Partitions),
			},
		},
		{
			Name:        DeltaStream,
			Description: "Streamed pieces of answers, for clients that reconnect",
			Subjects:    []string{"butler.delta.>"},
			Storage:     jetstream.MemoryStorage,
			Replicas:    1,
			AllowDirect: true,
			MaxAge:      5 * time.Minute,
			MaxMsgs:     DeltaWindow,
			MaxBytes:    64 << 20,
			MaxMsgSize:  1 << 20,
			Duplicates:  time.Second, // deltas carry no id
		},
		{
			Name:              WorkStream,
			Description:       "What a worker must do, now or at a time",
			Subjects:          []string{"butler.work.>", "butler.timer.>"},
			Retention:         jetstream.WorkQueuePolicy,
			Storage:           jetstream.FileStorage,
			Replicas:          replicas,
			AllowDirect:       true,
			AllowMsgSchedules: true,
			MaxMsgSize:        1 << 20,
			Duplicates:        2 * time.Minute,
		},
		{
			Name:        ApprovalStream,
			Description: "Requests for approval and their decisions; what became of each grant",
			Subjects:    []string{"butler.approval.>", "butler.approval-use.>"},
			Storage:     jetstream.FileStorage,
			Replicas:    replicas,
			AllowDirect: true,
			MaxMsgSize:  1 << 20,
			Duplicates:  2 * time.Minute,
		},
		{
			Name:        AuditStream,
			Description: "The chain of who asked, decided and did what",
			Subjects:    []string{"butler.audit"},
			Storage:     jetstream.FileStorage,
			Replicas:    replicas,
			AllowDirect: true,
			MaxMsgSize:  1 << 20,
			Duplicates:  2 * time.Minute,
		},
		{
			Name:        ShellStream,
			Description: "What was executed in shells, redacted",
			Subjects:    []string{"butler.shell.>"},
			Storage:     jetstream.FileStorage,
			Replicas:    replicas,
			AllowDirect: true,
			MaxMsgSize:  1 << 20,
			Duplicates:  2 * time.Minute,
		},
		{
			Name:        TaskStream,
			Description: "Tasks of agents, each as it stands",
			Subjects:    []string{"butler.task.>", "butler.task-answer.>"},
			Storage:     jetstream.FileStorage,
			Replicas:    replicas,
			AllowDirect: true,
			MaxMsgSize:  1 << 20,
			Duplicates:  2 * time.Minute,
			// Each event carries the whole task. What is over is taken from the agents' consumers by this, too.
			MaxMsgsPerSubject: 1,
		},
		{
			// Agents write here: no schedules, no rollup, no markers of deletion, and nothing that a service writes.
			Name:        ReportStream,
			Description: "What agents say of their tasks",
			Subjects:    []string{"butler.report.>"},
			Storage:     jetstream.FileStorage,
			Replicas:    replicas,
			AllowDirect: true,
			MaxAge:      30 * 24 * time.Hour,
			MaxBytes:    4 << 30,
			MaxMsgSize:  1 << 20,
			// Ids are remembered by stream: with a window one agent could make another's report vanish. The shortest there is.
			Duplicates: 100 * time.Millisecond,
		},
		{
			Name:        ParkedStream,
			Description: "Items that were given up, kept for inspection",
			Subjects:    []string{"butler.parked.>"},
			Storage:     jetstream.FileStorage,
			Replicas:    replicas,
			AllowDirect: true,
			MaxAge:      30 * 24 * time.Hour,
			MaxBytes:    1 << 30,
			MaxMsgSize:  1 << 20,
			Duplicates:  2 * time.Minute,
		},
	}
}

// streamOf gives the stream that takes a subject.
func streamOf(subject string) string {
	switch {
	case strings.HasPrefix(subject, "butler.chat."):
		return ChatStream
	case strings.HasPrefix(subject, "butler.delta."):
		return DeltaStream
	case strings.HasPrefix(subject, "butler.parked."):
		return ParkedStream
	case strings.HasPrefix(subject, "butler.approval."), strings.HasPrefix(subject, "butler.approval-use."):
		return ApprovalStream
	case subject == "butler.audit":
		return AuditStream
	case strings.HasPrefix(subject, "butler.shell."):
		return ShellStream
	case strings.HasPrefix(subject, "butler.task."), strings.HasPrefix(subject, "butler.task-answer."):
		return TaskStream
	case strings.HasPrefix(subject, "butler.report."):
		return ReportStream
	default:
		return WorkStream
	}
}

// PartitionConsumer names the consumer of a partition.
func PartitionConsumer(p int) string { return fmt.Sprintf("brain-%02d", p) }

// partitionFilters are what a partition's consumer is woken by, in stored form.
func partitionFilters(p int) []string {
	var out []string
	for _, kind := range []chat.Kind{chat.Asked, chat.Signal, chat.Stop} {
		out = append(out, chat.PartitionFilter(p, kind))
	}
	return out
}

// Consumers declares every durable consumer of a stream.
func Consumers(stream string) []jetstream.ConsumerConfig {
	switch stream {
	case ChatStream:
		out := []jetstream.ConsumerConfig{{
			Durable:        ProjectorConsumer,
			Description:    "Fills the gateway's read model",
			FilterSubjects: []string{chat.AllAsked, chat.AllAnswer},
			AckPolicy:      jetstream.AckExplicitPolicy,
			AckWait:        10 * time.Second, // so long the history lags after a crash
			MaxAckPending:  2000,
			MaxDeliver:     -1,
		}}
		for p := range Partitions {
			out = append(out, jetstream.ConsumerConfig{
				Durable:        PartitionConsumer(p),
				Description:    "Wakes the sessions of one partition on one replica of butler-brain",
				FilterSubjects: partitionFilters(p),
				AckPolicy:      jetstream.AckExplicitPolicy,
				AckWait:        partitionAckWait,
				MaxAckPending:  1000,
				MaxDeliver:     -1, // the journal counts attempts and ends poison
				PriorityPolicy: jetstream.PriorityPolicyPinned,
				PriorityGroups: []string{partitionGroup},
				PinnedTTL:      partitionPinnedTTL,
			})
		}
		return out
	case WorkStream:
		return []jetstream.ConsumerConfig{{
			Durable:        SignalConsumer,
			Description:    "Hands waiting turns what they wait for",
			FilterSubjects: []string{"butler.work.turn.>"}, // never butler.timer.>: an acknowledged schedule is called off
			AckPolicy:      jetstream.AckExplicitPolicy,
			AckWait:        30 * time.Second,
			MaxAckPending:  1000,
			MaxDeliver:     -1, // Consume parks what was tried too often
		}, {
			Durable:        ApprovalTimerConsumer,
			Description:    "Ends requests that nobody decided in time",
			FilterSubjects: []string{"butler.work.approval.*"},
			AckPolicy:      jetstream.AckExplicitPolicy,
			AckWait:        30 * time.Second,
			MaxAckPending:  1000,
			MaxDeliver:     -1,
		}, {
			Durable:        TaskTimerConsumer,
			Description:    "Ends tasks whose time is over",
			FilterSubjects: []string{"butler.work.task.*.*"},
			AckPolicy:      jetstream.AckExplicitPolicy,
			AckWait:        30 * time.Second,
			MaxAckPending:  1000,
			MaxDeliver:     -1,
		}, {
			Durable:        CompactConsumer,
			Description:    "Has conversations compacted",
			FilterSubjects: []string{chat.AllCompact},
			AckPolicy:      jetstream.AckExplicitPolicy,
			AckWait:        6 * time.Minute, // longer than a compaction may take: it costs calls of a model
			MaxAckPending:  100,
			MaxDeliver:     3, // best effort: butler-brain asks again as long as it is needed
		}}
	case ApprovalStream:
		return []jetstream.ConsumerConfig{worker(ApprovalConsumer, "Wakes who waits for a decision, and audits", "butler.approval.*", "butler.approval-use.*.*")}
	case TaskStream:
		return []jetstream.ConsumerConfig{worker(TaskConsumer, "Sets the timers of tasks, and wakes who waits for one", "butler.task.*.*")}
	case ReportStream:
		return []jetstream.ConsumerConfig{worker(ReportConsumer, "Ends tasks by what their agents report", "butler.report.*.*.*")}
	case ShellStream:
		return []jetstream.ConsumerConfig{worker(ShellLogConsumer, "Fills the shell log in SQL", "butler.shell.*.*")}
	default:
		return nil
	}
}

// worker declares a consumer whose service works through a stream, and takes an item again 10 s after it was lost.
func worker(durable, description string, filters ...string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:        durable,
		Description:    description,
		FilterSubjects: filters,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        10 * time.Second,
		MaxAckPending:  1000,
		MaxDeliver:     -1,
	}
}

// Ensure creates the named streams and their consumers where they are missing and changes them to what is declared,
// without ever deleting one, taking a subject away or making a limit smaller. It is done again after each reconnect, since
// a server that was restarted has lost what was in memory. It tries until ctx ends.
func (b *Bus) Ensure(ctx context.Context, streams ...string) error {
	if err := b.ensureUntil(ctx, streams); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.onRestore = func(ctx context.Context) {
		if err := b.ensureUntil(ctx, streams); err != nil {
			b.log.Error("the streams could not be reconciled after a reconnect", "error", err)
		}
	}
	return nil
}

func (b *Bus) ensureUntil(ctx context.Context, streams []string) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := b.ensureOnce(ctx, streams)
		if err == nil {
			return nil
		}
		if errors.Is(err, errIncompatible) {
			return err
		}
		b.log.Warn("waiting for JetStream", "error", err)
		if !sleep(ctx, wait) {
			return fault.Wrap(err, fault.Unavailable, "JetStream does not answer")
		}
	}
}

func (b *Bus) ensureOnce(ctx context.Context, names []string) error {
	for _, name := range names {
		if name == PresenceBucket {
			if err := b.ensurePresence(ctx); err != nil {
				return err
			}
			continue
		}
		i := slices.IndexFunc(Streams(b.replicas), func(c jetstream.StreamConfig) bool { return c.Name == name })
		if i < 0 {
			return fmt.Errorf("bus: no stream %q is declared", name)
		}
		if err := b.ensureStream(ctx, Streams(b.replicas)[i]); err != nil {
			return err
		}
		if err := b.EnsureConsumers(ctx, name, ""); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bus) ensureStream(ctx context.Context, want jetstream.StreamConfig) error {
	s, err := b.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = b.js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another replica was first
			s, err = b.js.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return fmt.Errorf("bus: stream %s: %w", want.Name, err)
	}
	info := s.CachedInfo()
	merged, changed, err := merge(info.Config, want)
	if err != nil {
		return err
	}
	if changed {
		if _, err := b.js.UpdateStream(ctx, merged); err != nil {
			return fmt.Errorf("bus: stream %s: %w", want.Name, err)
		}
		b.log.Info("stream brought up to date", "stream", want.Name)
	}
	if want.Storage == jetstream.MemoryStorage && info.State.LastSeq == 0 {
		// Start somewhere new, so that a position from before a restart is not taken for one from after it.
		if err := s.Purge(ctx, jetstream.WithPurgeSequence(1+rand.Uint64N(DeltaWindow))); err != nil {
			return fmt.Errorf("bus: stream %s: %w", want.Name, err)
		}
	}
	return nil
}

// errIncompatible marks what no reconciling can mend.
var errIncompatible = errors.New("the existing stream does not fit")

// merge gives what is there plus what is declared; changed says whether that differs from what is there.
func merge(have, want jetstream.StreamConfig) (out jetstream.StreamConfig, changed bool, err error) {
	out = have
	if have.Storage != want.Storage || have.Retention != want.Retention {
		return out, false, fmt.Errorf("bus: stream %s: %w: storage or retention differ from what this version needs", have.Name, errIncompatible)
	}
	if want.SubjectTransform != nil && (have.SubjectTransform == nil || *have.SubjectTransform != *want.SubjectTransform) {
		return out, false, fmt.Errorf("bus: stream %s: %w: its subjects are stored in another form than this version reads; "+
			"start with another data folder, or with the version that wrote this one", have.Name, errIncompatible)
	}
	for _, s := range want.Subjects {
		if !slices.Contains(out.Subjects, s) {
			out.Subjects, changed = append(slices.Clone(out.Subjects), s), true
		}
	}
	grow := func(have *int64, want int64) { // 0 or less means no limit
		if *have > 0 && (want <= 0 || want > *have) {
			*have, changed = want, true
		}
	}
	grow(&out.MaxMsgs, want.MaxMsgs)
	grow(&out.MaxBytes, want.MaxBytes)
	age := int64(out.MaxAge)
	grow(&age, int64(want.MaxAge))
	out.MaxAge = time.Duration(age)
	size := int64(out.MaxMsgSize)
	grow(&size, int64(want.MaxMsgSize))
	out.MaxMsgSize = int32(size)
	if want.Replicas > out.Replicas {
		out.Replicas, changed = want.Replicas, true
	}
	if want.AllowDirect && !out.AllowDirect {
		out.AllowDirect, changed = true, true
	}
	if want.AllowMsgSchedules && !out.AllowMsgSchedules {
		out.AllowMsgSchedules, changed = true, true
	}
	return out, changed, nil
}

// EnsureConsumers creates or updates the declared consumers of a stream; only that named only, when it is not empty.
func (b *Bus) EnsureConsumers(ctx context.Context, stream, only string) error {
	inMemory := b.server != nil && stream == ChatStream // see position.go
	var s jetstream.Stream
	if inMemory {
		var err error
		if s, err = b.js.Stream(ctx, stream); err != nil {
			return fmt.Errorf("bus: stream %s: %w", stream, err)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8) // each is synced to disk: one after the other they would take most of a second
	for _, c := range Consumers(stream) {
		if only != "" && c.Durable != only {
			continue
		}
		group.Go(func() error {
			if inMemory {
				if err := b.ensureInMemory(ctx, s, c); err != nil {
					return fmt.Errorf("bus: consumer %s of %s: %w", c.Durable, stream, err)
				}
				return nil
			}
			have, err := b.js.Consumer(ctx, stream, c.Durable)
			if err == nil && sameConsumer(have.CachedInfo().Config, c) {
				return nil
			}
			if _, err := b.js.CreateOrUpdateConsumer(ctx, stream, c); err != nil {
				return fmt.Errorf("bus: consumer %s of %s: %w", c.Durable, stream, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// sameConsumer says whether what exists has every setting that is declared.
func sameConsumer(have, want jetstream.ConsumerConfig) bool {
	filters := have.FilterSubjects
	if have.FilterSubject != "" {
		filters = []string{have.FilterSubject}
	}
	return have.Description == want.Description && slices.Equal(filters, want.FilterSubjects) &&
		have.AckPolicy == want.AckPolicy && have.AckWait == want.AckWait && have.MaxAckPending == want.MaxAckPending &&
		have.MaxDeliver == want.MaxDeliver && have.PriorityPolicy == want.PriorityPolicy &&
		slices.Equal(have.PriorityGroups, want.PriorityGroups) && have.PinnedTTL == want.PinnedTTL
}

// Wait blocks until the named streams exist, because the service that declares them has been there, or ctx ends.
func (b *Bus) Wait(ctx context.Context, streams ...string) error {
	for _, name := range streams {
		if name == PresenceBucket {
			name = "KV_" + name
		}
		for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
			_, err := b.js.Stream(ctx, name)
			if err == nil {
				break
			}
			if !sleep(ctx, wait) {
				return fault.Wrap(err, fault.Unavailable, "the stream %s is not there yet: butler-brain makes it", name)
			}
		}
	}
	return nil
}
