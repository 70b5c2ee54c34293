package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Presence is beaten by whoever is alive and read by whoever wants to know. A key disappears presenceTTL after its last
// beat; readers that need less judge by the time of the last beat.
const presenceTTL = 30 * time.Second

// Timings of replicas: how often each beats, and after how long a silent one counts as gone. A reader measures the silence
// with its own clock.
const (
	replicaBeat = 1500 * time.Millisecond
	replicaGone = 6 * time.Second
)

func (b *Bus) ensurePresence(ctx context.Context) error {
	_, err := b.js.KeyValue(ctx, PresenceBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		_, err = b.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:      PresenceBucket,
			Description: "Who is alive: agents and the replicas of services",
			TTL:         presenceTTL,
			Storage:     jetstream.MemoryStorage,
			Replicas:    1,
			MaxBytes:    16 << 20,
		})
		if errors.Is(err, jetstream.ErrBucketExists) || errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			err = nil // another replica was first
		}
	}
	if err != nil {
		return fmt.Errorf("bus: presence: %w", err)
	}
	return nil
}

// Beat says that key is alive. key has the tokens of a subject, for example agent.7.
func (b *Bus) Beat(ctx context.Context, key string) error {
	kv, err := b.js.KeyValue(ctx, PresenceBucket)
	if err != nil {
		return fmt.Errorf("bus: presence: %w", err)
	}
	if _, err := kv.Put(ctx, key, nil); err != nil {
		return fmt.Errorf("bus: presence: %w", err)
	}
	return nil
}

// Alive gives the keys that begin with prefix and a dot, with the time of their last beat.
func (b *Bus) Alive(ctx context.Context, prefix string) (map[string]time.Time, error) {
	root := "$KV." + PresenceBucket + "."
	events, err := b.Load(ctx, "KV_"+PresenceBucket, root+prefix+".>", 0, 0)
	if err != nil {
		return nil, err
	}
	out := make(map[string]time.Time, len(events))
	for _, ev := range events {
		key := strings.TrimPrefix(ev.Subject, root)
		if ev.Header.Get("KV-Operation") != "" { // deleted or purged
			delete(out, key)
			continue
		}
		out[key] = ev.At
	}
	return out, nil
}

// replicas follows which replicas of one service are alive.
type replicas struct {
	mu   sync.Mutex
	seen map[string]time.Time // replica to when it was last heard of, by this process's clock
}

// watchReplicas beats for self and follows the others until ctx ends, in goroutines of life; changed is told whenever
// somebody comes or goes.
func (b *Bus) watchReplicas(ctx context.Context, life *sync.WaitGroup, service, self string, changed chan<- struct{}) *replicas {
	r := &replicas{seen: map[string]time.Time{}}
	root := "$KV." + PresenceBucket + ".replica." + service + "."
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	life.Go(func() {
		_ = b.Follow(ctx, Follow{Stream: "KV_" + PresenceBucket, Filters: []string{root + "*"}}, func(ev Stored) {
			id := strings.TrimPrefix(ev.Subject, root)
			r.mu.Lock()
			_, known := r.seen[id]
			gone := ev.Header.Get("KV-Operation") != ""
			if gone {
				delete(r.seen, id)
			} else {
				r.seen[id] = time.Now()
			}
			r.mu.Unlock()
			if known == gone {
				tell()
			}
		})
	})
	life.Go(func() {
		key := "replica." + service + "." + self
		tick := time.NewTicker(replicaBeat)
		defer tick.Stop()
		for {
			beat, cancel := context.WithTimeout(ctx, replicaBeat)
			if err := b.Beat(beat, key); err != nil && ctx.Err() == nil {
				b.log.Debug("no beat", "error", err)
			}
			cancel()
			if r.expire() {
				tell()
			}
			select {
			case <-ctx.Done():
				last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
				defer cancel()
				if kv, err := b.js.KeyValue(last, PresenceBucket); err == nil {
					_ = kv.Delete(last, key) // best effort: it expires by itself
				}
				return
			case <-tick.C:
			}
		}
	})
	return r
}

// expire forgets the silent and says whether there were any.
func (r *replicas) expire() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.seen)
	for id, at := range r.seen {
		if time.Since(at) > replicaGone {
			delete(r.seen, id)
		}
	}
	return len(r.seen) != n
}

// alive gives the living, self always among them, sorted.
func (r *replicas) alive(self string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []string{self}
	for id := range r.seen {
		if id != self {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}
