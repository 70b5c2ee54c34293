package gateway

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/gateway/store"
)

// userJSON is a person, an agent or Butler, with EchoCenter's field names.
type userJSON struct {
	ID          int64      `json:"id"`
	Username    string     `json:"username"`
	Role        string     `json:"role"`
	ActorType   string     `json:"actor_type"` // HUMAN or SYSTEM
	AgentKind   string     `json:"agent_kind,omitempty"`
	Description string     `json:"description,omitempty"`
	Status      string     `json:"status,omitempty"` // ONLINE or OFFLINE
	Online      *bool      `json:"online,omitempty"` // of agents and Butler
	LastSeenAt  *time.Time `json:"last_seen_at,omitempty"`
	LastReport  string     `json:"last_report,omitempty"`
	Disabled    bool       `json:"disabled,omitempty"`
	CreatedAt   time.Time  `json:"created_at"`
}

const (
	online  = "ONLINE"
	offline = "OFFLINE"
)

func userOf(p store.Person) userJSON {
	u := userJSON{
		ID: p.ID, Username: p.Name, Role: string(p.Role), ActorType: "HUMAN", Disabled: p.Disabled, CreatedAt: p.CreatedAt,
	}
	if p.Role == store.ButlerRole {
		u.ActorType, u.Status, u.Online = "SYSTEM", online, new(true)
	}
	return u
}

func agentOf(a *butlerv1.Agent) userJSON {
	u := userJSON{
		ID: a.GetId(), Username: a.GetName(), Role: "AGENT", ActorType: "SYSTEM", AgentKind: a.GetKind(),
		Description: a.GetDescription(), Status: offline, Online: new(a.GetOnline()), LastReport: "no_heartbeat", CreatedAt: a.GetCreatedAt().AsTime(),
	}
	if a.GetOnline() {
		u.Status, u.LastReport = online, "heartbeat"
	}
	if a.GetLastSeen() != nil {
		u.LastSeenAt = optional(a.GetLastSeen().AsTime())
	}
	return u
}

// listPeople serves GET /api/users.
func (s *Service) listPeople(w http.ResponseWriter, r *http.Request, _ *principal) error {
	people, err := s.store.People(r.Context())
	if err != nil {
		return err
	}
	out := make([]userJSON, 0, len(people))
	for _, p := range people {
		out = append(out, userOf(p))
	}
	w.Header().Set("X-Total-Count", strconv.Itoa(len(out)))
	writeJSON(w, http.StatusOK, out)
	return nil
}

// createPerson serves POST /api/users.
func (s *Service) createPerson(w http.ResponseWriter, r *http.Request, _ *principal) error {
	var in struct {
		Username string `json:"username"`
		Password string `json:"password"`
		Role     string `json:"role"`
	}
	if err := readJSON(w, r, &in, 16<<10); err != nil {
		return err
	}
	if in.Role == "" {
		in.Role = string(store.Member)
	}
	person, err := s.store.CreatePerson(r.Context(), store.NewPerson{
		Name: in.Username, Role: store.Role(strings.ToUpper(in.Role)), Password: in.Password,
	})
	if err != nil {
		return err
	}
	s.access.announce(r.Context(), person.ID, 0) // who may decide depends on who else is there
	writeJSON(w, http.StatusCreated, userOf(person))
	return nil
}

// updatePerson serves PATCH /api/users/{id}.
func (s *Service) updatePerson(w http.ResponseWriter, r *http.Request, who *principal) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	var in struct {
		Role     *string `json:"role"`
		Password *string `json:"password"`
		Disabled *bool   `json:"disabled"`
	}
	if err := readJSON(w, r, &in, 16<<10); err != nil {
		return err
	}
	if in.Role == nil && in.Password == nil && in.Disabled == nil {
		return fault.New(fault.Invalid, "role, password or disabled is needed")
	}
	change := store.Change{Password: in.Password, Disabled: in.Disabled}
	if in.Role != nil {
		role := store.Role(strings.ToUpper(*in.Role))
		change.Role = &role
	}
	person, err := s.store.UpdatePerson(r.Context(), id, change)
	if err != nil {
		return err
	}
	s.log.InfoContext(r.Context(), "an account was changed", "by", who.id(), "person", id,
		"role", in.Role != nil, "password", in.Password != nil, "disabled", in.Disabled != nil)
	s.access.announce(r.Context(), id, 0)
	writeJSON(w, http.StatusOK, userOf(person))
	return nil
}

// butler serves GET /api/users/butler.
func (s *Service) butler(w http.ResponseWriter, r *http.Request, _ *principal) error {
	person, err := s.store.Person(r.Context(), store.ButlerID)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, userOf(person))
	return nil
}

// agentList is the agents as the registry last gave them.
type agentList struct {
	client butlerv1.RegistryServiceClient

	mu    sync.Mutex
	known []userJSON
	read  bool
}

// get gives the agents. While the registry does not answer, they are as it last told, offline, and current is false;
// when it never did it gives fault.Unavailable.
func (l *agentList) get(ctx context.Context) (agents []userJSON, current bool, err error) {
	if l.client == nil {
		return nil, false, fault.New(fault.Unavailable, "the agent registry is not running")
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	res, err := l.client.ListAgents(ctx, &butlerv1.ListAgentsRequest{})
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if !l.read {
			return nil, false, fault.Wrap(err, fault.Unavailable, "the agent registry does not answer now; try again")
		}
		out := make([]userJSON, len(l.known))
		for i, u := range l.known {
			u.Status, u.Online, u.LastReport = offline, new(false), "registry_unavailable"
			out[i] = u
		}
		return out, false, nil
	}
	l.known, l.read = make([]userJSON, 0, len(res.GetAgents())), true
	for _, a := range res.GetAgents() {
		l.known = append(l.known, agentOf(a))
	}
	return append([]userJSON(nil), l.known...), true, nil
}

// listAgents serves GET /api/users/agents: Butler and the agents, by exclude_role, q, page and limit.
func (s *Service) listAgents(w http.ResponseWriter, r *http.Request, _ *principal) error {
	q := r.URL.Query()
	page, err := queryInt(q.Get("page"), 0, 1, 1_000_000, "page")
	if err != nil {
		return err
	}
	limit, err := queryInt(q.Get("limit"), 0, 1, 0, "limit")
	if err != nil {
		return err
	}
	agents, current, err := s.agents.get(r.Context())
	if err != nil {
		return err
	}
	all := agents
	if butler, err := s.store.Person(r.Context(), store.ButlerID); err == nil {
		all = append([]userJSON{userOf(butler)}, agents...)
	}
	excluded := map[string]bool{}
	for role := range strings.SplitSeq(q.Get("exclude_role"), ",") {
		excluded[strings.ToUpper(strings.TrimSpace(role))] = true
	}
	text := strings.ToLower(strings.TrimSpace(q.Get("q")))
	out := make([]userJSON, 0, len(all))
	for _, u := range all {
		if !excluded[u.Role] && (text == "" || strings.Contains(strings.ToLower(u.Username+"\n"+u.Role), text)) {
			out = append(out, u)
		}
	}
	w.Header().Set("X-Total-Count", strconv.Itoa(len(out)))
	if !current {
		w.Header().Set("X-Butler-Stale", "true")
	}
	if page > 0 || limit > 0 {
		page = max(page, 1)
		if limit == 0 {
			limit = 50
		}
		limit = min(limit, 200)
		start := min((page-1)*limit, len(out))
		out = out[start:min(start+limit, len(out))]
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// agentStatus serves GET /api/users/agents/status.
func (s *Service) agentStatus(w http.ResponseWriter, r *http.Request, _ *principal) error {
	agents, current, err := s.agents.get(r.Context())
	if err != nil {
		return err
	}
	if !current {
		w.Header().Set("X-Butler-Stale", "true")
	}
	if agents == nil {
		agents = []userJSON{}
	}
	writeJSON(w, http.StatusOK, agents)
	return nil
}
