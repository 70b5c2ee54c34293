package registry

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Limits of what is registered.
const (
	// MaxAgents bounds the agents of an installation.
	MaxAgents = 1000
	// MaxKindRunes bounds an agent's kind, in characters.
	MaxKindRunes = 32
	// MaxDescriptionRunes bounds an agent's description, in characters.
	MaxDescriptionRunes = 1000

	defaultKind = "generic"
)

// RegisterAgent adds an agent, or updates the one of the same name (without regard to case), which keeps its id.
func (s *Service) RegisterAgent(ctx context.Context, req *butlerv1.RegisterAgentRequest) (*butlerv1.RegisterAgentResponse, error) {
	a, key, err := clean(req)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	if err := s.started(); err != nil {
		return nil, fault.GRPC(err)
	}
	if a, err = s.save(ctx, a, key); err != nil {
		return nil, fault.GRPC(err)
	}
	// The next list has it, also when SQL goes down now.
	if _, err := s.load(ctx); err != nil {
		s.log.DebugContext(ctx, "the list of agents was not read after a registration", "error", err)
	}
	return &butlerv1.RegisterAgentResponse{Agent: s.message(a)}, nil
}

// clean checks a request and gives it as it is stored, with the key of its name.
func clean(req *butlerv1.RegisterAgentRequest) (a agent, key string, err error) {
	if a.name, key, err = storage.CleanName(req.GetName()); err != nil {
		return agent{}, "", err
	}
	if a.kind, err = line(req.GetKind(), "kind", MaxKindRunes); err != nil {
		return agent{}, "", err
	}
	if a.kind == "" {
		a.kind = defaultKind
	}
	if a.description, err = line(req.GetDescription(), "description", MaxDescriptionRunes); err != nil {
		return agent{}, "", err
	}
	return a, key, nil
}

// line gives text in one line: it stands in lists, and in the prompt, where a line of its own could be mistaken.
func line(text, what string, limit int) (string, error) {
	if len(text) > 4*limit || utf8.RuneCountInString(text) > limit {
		return "", fault.New(fault.Invalid, "the %s of an agent has at most %d characters", what, limit)
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, text)), nil
}

// ListAgents gives all agents by id. When SQL does not answer it gives the last list that this replica read, with who
// is online now.
func (s *Service) ListAgents(ctx context.Context, req *butlerv1.ListAgentsRequest) (*butlerv1.ListAgentsResponse, error) {
	agents, err := s.list(ctx)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	if err := s.presence.look(ctx); err != nil {
		s.log.DebugContext(ctx, "who is online is judged by what was heard before", "error", err)
	}
	out := &butlerv1.ListAgentsResponse{}
	for _, a := range agents {
		m := s.message(a)
		if m.GetOnline() || !req.GetOnlineOnly() {
			out.Agents = append(out.Agents, m)
		}
	}
	return out, nil
}

// Heartbeat says that an agent is alive. It works while SQL is down, for agents that this replica has read before.
func (s *Service) Heartbeat(ctx context.Context, req *butlerv1.HeartbeatRequest) (*butlerv1.HeartbeatResponse, error) {
	id := req.GetAgentId()
	if err := s.exists(ctx, id); err != nil {
		return nil, fault.GRPC(err)
	}
	if err := s.presence.beat(ctx, id); err != nil {
		return nil, fault.GRPC(err)
	}
	s.mu.Lock()
	s.unsaved[id] = s.now()
	s.mu.Unlock()
	return &butlerv1.HeartbeatResponse{IntervalSeconds: int32(Interval / time.Second)}, nil
}

// exists looks for an agent among those that are known, and in SQL only when it is not there: heartbeats are many.
func (s *Service) exists(ctx context.Context, id int64) error {
	is := func(a agent) bool { return a.id == id }
	s.mu.Lock()
	known := slices.ContainsFunc(s.known, is)
	s.mu.Unlock()
	if known {
		return nil
	}
	if err := s.started(); err != nil {
		return err
	}
	agents, err := s.load(ctx)
	if err == nil && !slices.ContainsFunc(agents, is) {
		err = fault.New(fault.NotFound, "there is no such agent; register it first")
	}
	return err
}

func (s *Service) started() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.migrated {
		return fault.New(fault.Unavailable, "the registry is starting: it waits for its database")
	}
	return nil
}

// message gives an agent as others see it, with its presence.
func (s *Service) message(a agent) *butlerv1.Agent {
	heard, online := s.presence.lastHeard(a.id)
	if heard.Before(a.lastSeen) {
		heard = a.lastSeen
	}
	m := &butlerv1.Agent{
		Id: a.id, Name: a.name, Kind: a.kind, Description: a.description,
		Online: online && !a.disabled, CreatedAt: timestamppb.New(a.created),
		Labels: a.labels, Concurrency: int32(a.concurrency), Disabled: a.disabled, HasCredentials: a.key != "",
	}
	for _, c := range a.capabilities {
		m.Capabilities = append(m.Capabilities, &butlerv1.AgentCapability{
			Name: c.Name, Description: c.Description, InputSchema: c.Schema,
		})
	}
	if !heard.IsZero() {
		m.LastSeen = timestamppb.New(heard)
	}
	return m
}

// takeUnsaved gives the beats to save and forgets them.
func (s *Service) takeUnsaved() map[int64]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.unsaved
	s.unsaved = map[int64]time.Time{}
	return taken
}

// putBack remembers beats that could not be saved, unless newer ones came.
func (s *Service) putBack(beats map[int64]time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newer := s.unsaved
	s.unsaved = beats
	maps.Copy(s.unsaved, newer)
}
