package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
)

const (
	// failedPause is how long lists leave SQL alone after it did not answer. Run looks more often than that, so that
	// during an outage only the first list waits.
	failedPause = 3 * Interval
	// listTimeout bounds how long a list waits for SQL when there is a known one to give instead.
	listTimeout = time.Second
)

// agent is a row of agents.
type agent struct {
	id                      int64
	name, kind, description string
	lastSeen, created       time.Time
	capabilities            []capability
	labels                  map[string]string
	concurrency             int
	disabled                bool
	tokenHash               string // SHA-256 in hex; empty for an agent without credentials
	key                     string // public nkey for NATS; empty likewise
}

// capability is something that an agent can do, as it stands in SQL.
type capability struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Schema      string `json:"schema,omitempty"` // JSON Schema of the input; empty for any
}

const agentColumns = "id, name, kind, description, last_seen_at, created_at, capabilities, labels, concurrency, disabled, token_hash, nats_key"

func scanAgent(row storage.Row) (agent, error) {
	var a agent
	var seen, created, concurrency, disabled int64
	var capabilities, labels string
	if err := row.Scan(&a.id, &a.name, &a.kind, &a.description, &seen, &created,
		&capabilities, &labels, &concurrency, &disabled, &a.tokenHash, &a.key); err != nil {
		return agent{}, err
	}
	if err := errors.Join(json.Unmarshal([]byte(capabilities), &a.capabilities), json.Unmarshal([]byte(labels), &a.labels)); err != nil {
		return agent{}, fmt.Errorf("registry: what agent %d can do: %w", a.id, err)
	}
	a.concurrency, a.disabled = int(concurrency), disabled != 0
	if seen > 0 {
		a.lastSeen = time.UnixMilli(seen)
	}
	a.created = time.UnixMilli(created)
	return a, nil
}

// save adds or updates the agent of that name, and gives it as stored.
func (s *Service) save(ctx context.Context, a agent, key string) (agent, error) {
	var saved agent
	err := s.db.Write(ctx, func(tx *storage.Tx) error {
		if err := tx.Lock("agents"); err != nil {
			return err
		}
		now := s.now().UnixMilli()
		var err error
		saved, err = scanAgent(tx.QueryRow(`UPDATE agents SET name = $1, kind = $2, description = $3, updated_at = $4
			WHERE name_key = $5 RETURNING `+agentColumns, a.name, a.kind, a.description, now, key))
		if !errors.Is(err, storage.ErrNoRows) {
			return err
		}
		var n int
		if err := tx.QueryRow("SELECT COUNT(*) FROM agents").Scan(&n); err != nil {
			return err
		}
		if n >= MaxAgents {
			return fault.New(fault.Conflict, "there are %d agents already, and no more are accepted", n)
		}
		id, err := tx.NewPrincipal(storage.AgentKind)
		if err != nil {
			return err
		}
		saved, err = scanAgent(tx.QueryRow(`INSERT INTO agents (id, name, name_key, kind, description, created_at, updated_at)
			VALUES ($1, $2, $3, $4, $5, $6, $6) RETURNING `+agentColumns, id, a.name, key, a.kind, a.description, now))
		return err
	})
	return saved, err
}

// list gives the agents: from SQL, or as last read when SQL does not answer.
func (s *Service) list(ctx context.Context) ([]agent, error) {
	s.mu.Lock()
	known, loaded, migrated := s.known, s.loaded, s.migrated
	resting := s.now().Sub(s.failedAt) < failedPause
	s.mu.Unlock()
	if loaded && resting {
		return known, nil
	}
	if !migrated {
		return nil, s.started()
	}
	if !loaded {
		return s.load(ctx)
	}
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	agents, err := s.load(limited)
	if err != nil && ctx.Err() == nil && fault.ClassOf(err) == fault.Transient {
		s.noteFailure()
		return known, nil
	}
	return agents, err
}

// noteFailure remembers that SQL does not answer.
func (s *Service) noteFailure() {
	s.mu.Lock()
	s.failedAt = s.now()
	s.mu.Unlock()
}

// load reads all agents from SQL and remembers them.
func (s *Service) load(ctx context.Context) ([]agent, error) {
	var agents []agent
	err := s.db.Read(ctx, func(tx *storage.Tx) (err error) {
		agents, err = storage.Collect(tx, scanAgent, "SELECT "+agentColumns+" FROM agents ORDER BY id")
		return err
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.loaded, s.loadedAt, s.failedAt = agents, true, s.now(), time.Time{}
	return agents, nil
}

// saveLastSeen writes the beats that came here to SQL, so that it is known when an agent that is gone was last seen.
func (s *Service) saveLastSeen(ctx context.Context) error {
	beats := s.takeUnsaved()
	if len(beats) == 0 {
		return nil
	}
	err := s.db.Write(ctx, func(tx *storage.Tx) error {
		for _, id := range slices.Sorted(maps.Keys(beats)) { // one order, so that replicas do not block each other
			if _, err := tx.Exec("UPDATE agents SET last_seen_at = $1 WHERE id = $2 AND last_seen_at < $1",
				beats[id].UnixMilli(), id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.putBack(beats)
	}
	return err
}
