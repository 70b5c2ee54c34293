package registry

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// agentPrefix begins the keys of agents in the presence bucket.
const agentPrefix = "agent"

func agentKey(id int64) string { return agentPrefix + "." + strconv.FormatInt(id, 10) }

// presence judges who is online. The bucket's times are of the NATS server's clock, which may differ from this one, so
// silence is measured from when a new beat was seen here.
type presence struct {
	bucket Presence
	now    func() time.Time

	mu     sync.Mutex
	looked time.Time // last successful look
	seen   map[int64]sighting
}

type sighting struct {
	beat  time.Time // by the bucket's clock: tells a new beat from an old one
	heard time.Time // by this process's clock
}

func newPresence(bucket Presence, now func() time.Time) *presence {
	return &presence{bucket: bucket, now: now, seen: map[int64]sighting{}}
}

// beat says that an agent is alive.
func (p *presence) beat(ctx context.Context, id int64) error {
	ctx, cancel := context.WithTimeout(ctx, presenceTimeout)
	defer cancel()
	if err := p.bucket.Beat(ctx, agentKey(id)); err != nil {
		return fault.Wrap(err, fault.Unavailable, "the heartbeat could not be noted now; send it again")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.seen[id]
	s.heard = p.now()
	p.seen[id] = s
	return nil
}

// look reads the bucket. When that fails, what was seen before stays, and grows old.
func (p *presence) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, presenceTimeout)
	defer cancel()
	alive, err := p.bucket.Alive(ctx, agentPrefix)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "who is online cannot be told now")
	}
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, beat := range alive {
		id, err := strconv.ParseInt(strings.TrimPrefix(key, agentPrefix+"."), 10, 64)
		if err != nil {
			continue // not an agent's
		}
		s := p.seen[id]
		if s.beat.Equal(beat) {
			continue
		}
		// A beat that is new happened after the last look and before this one, whatever the other clock says.
		heard := beat
		if heard.Before(p.looked) {
			heard = p.looked
		}
		if heard.After(now) {
			heard = now
		}
		if heard.Before(s.heard) {
			heard = s.heard
		}
		p.seen[id] = sighting{beat: beat, heard: heard}
	}
	for id, s := range p.seen {
		if _, ok := alive[agentKey(id)]; !ok && now.Sub(s.heard) >= Silence {
			delete(p.seen, id)
		}
	}
	p.looked = now
	return nil
}

// lastHeard gives when an agent was heard of, zero when it was not lately, and whether that makes it online.
func (p *presence) lastHeard(id int64) (at time.Time, online bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.seen[id]
	return s.heard, ok && p.now().Sub(s.heard) < Silence
}
