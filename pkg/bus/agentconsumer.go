package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// AgentAckWait is how long an agent may be silent about a task that it took before another replica gets it.
	AgentAckWait = 15 * time.Second
	// AgentMaxDeliver bounds how often one task is handed out. What ends a task that its agent cannot survive comes before.
	AgentMaxDeliver = 20
)

// agentConsumer is the consumer that the replicas of an agent share. Its filter gives it the tasks of that agent, each
// time that one changes: that one is over is told, too.
func agentConsumer(id int64, concurrency int) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:        AgentName(id),
		Description:    fmt.Sprintf("Tasks of agent %d", id),
		FilterSubjects: []string{fmt.Sprintf("butler.task.%d.*", id)},
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        AgentAckWait,
		MaxAckPending:  concurrency,
		MaxDeliver:     AgentMaxDeliver,
		MaxWaiting:     256, // replicas that wait
	}
}

// EnsureAgentConsumer makes the consumer of an agent, or changes it to the concurrency given: how many tasks its replicas
// work on together.
func (b *Bus) EnsureAgentConsumer(ctx context.Context, id int64, concurrency int) error {
	want := agentConsumer(id, concurrency)
	have, err := b.js.Consumer(ctx, TaskStream, AgentName(id))
	if err == nil && sameConsumer(have.CachedInfo().Config, want) {
		return nil
	}
	if _, err := b.js.CreateOrUpdateConsumer(ctx, TaskStream, want); err != nil {
		return fmt.Errorf("bus: the consumer of agent %d: %w", id, err)
	}
	return nil
}

// DeleteAgentConsumer removes the consumer of an agent; nothing happens when there is none.
func (b *Bus) DeleteAgentConsumer(ctx context.Context, id int64) error {
	err := b.js.DeleteConsumer(ctx, TaskStream, AgentName(id))
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("bus: deleting the consumer of an agent: %w", err)
	}
	return nil
}

// AgentConsumes says whether somebody takes what an agent's consumer gives: a request waits there, or tasks are being
// worked on.
func (b *Bus) AgentConsumes(ctx context.Context, id int64) (bool, error) {
	c, err := b.js.Consumer(ctx, TaskStream, AgentName(id))
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("bus: looking at the consumer of an agent: %w", err)
	}
	info := c.CachedInfo()
	return info.NumWaiting > 0 || info.NumAckPending > 0, nil
}
