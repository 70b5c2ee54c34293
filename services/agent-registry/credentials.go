package registry

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
	"github.com/butlerhub/butler/pkg/task"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Limits of what an agent declares.
const (
	MaxCapabilities    = 32
	MaxLabels          = 32
	MaxLabelBytes      = 256
	MaxConcurrency     = 1000
	DefaultConcurrency = 10
)

const (
	// reloadEvery bounds how often a stranger makes the registry read the list of agents.
	reloadEvery = time.Second
	// kickAgain is after how long the connections of who lost their rights are ended once more: one may have been let in at
	// the same moment, and the server takes up to two seconds for that.
	kickAgain = 3 * time.Second
)

// tokenPrefix begins the tokens of agents, so that one that got somewhere it should not be is recognised.
const tokenPrefix = "bta_"

var labelKey = regexp.MustCompile(`^[A-Za-z0-9._/-]{1,63}$`)

// secrets are what an agent is given once, and what is kept of them.
type secrets struct{ token, tokenHash, credentials, key string }

func hashToken(token string) string {
	sum := sha256.Sum256([]byte(token)) // a fast hash will do: tokens are 256 random bits
	return hex.EncodeToString(sum[:])
}

func (s *Service) newSecrets(id int64) (secrets, error) {
	if s.issuer == "" {
		return secrets{}, fault.New(fault.Unavailable, "agents cannot be let in on NATS: give agent-registry the file agents.nk "+
			"of `butler nats-config` as BUTLER_AGENTS_KEY")
	}
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return secrets{}, err
	}
	c, err := bus.NewCredentials(s.issuer, bus.AgentName(id))
	if err != nil {
		return secrets{}, err
	}
	token := tokenPrefix + hex.EncodeToString(raw)
	return secrets{token: token, tokenHash: hashToken(token), credentials: c.File, key: c.Public}, nil
}

// AddAgent adds an agent with a token and credentials, which nobody can see again.
func (s *Service) AddAgent(ctx context.Context, req *butlerv1.AddAgentRequest) (*butlerv1.AddAgentResponse, error) {
	a, nameKey, err := s.declared(req)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	if err := s.started(); err != nil {
		return nil, fault.GRPC(err)
	}
	a, secret, err := s.insert(ctx, a, nameKey)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	if err := s.bus.EnsureAgentConsumer(ctx, a.id, a.concurrency); err != nil {
		s.log.WarnContext(ctx, "the consumer of a new agent is made later", "agent", a.id, "error", err)
	}
	s.reload(ctx)
	return &butlerv1.AddAgentResponse{Agent: s.message(a), Token: secret.token, Credentials: secret.credentials}, nil
}

// declared checks a request and gives it as it is stored, with the key of its name.
func (s *Service) declared(req *butlerv1.AddAgentRequest) (a agent, nameKey string, err error) {
	a, nameKey, err = clean(&butlerv1.RegisterAgentRequest{Name: req.GetName(), Kind: req.GetKind(), Description: req.GetDescription()})
	if err != nil {
		return agent{}, "", err
	}
	if len(req.GetCapabilities()) > MaxCapabilities {
		return agent{}, "", fault.New(fault.Invalid, "an agent has at most %d capabilities", MaxCapabilities)
	}
	a.capabilities = []capability{}
	for _, c := range req.GetCapabilities() {
		if !task.ValidWord(c.GetName()) {
			return agent{}, "", fault.New(fault.Invalid, "the name of a capability has 1 to 64 characters of A–Z, a–z, 0–9, - and _")
		}
		if slices.ContainsFunc(a.capabilities, func(other capability) bool { return other.Name == c.GetName() }) {
			return agent{}, "", fault.New(fault.Invalid, "the capability %s is declared twice", c.GetName())
		}
		description, err := line(c.GetDescription(), "description", MaxDescriptionRunes)
		if err != nil {
			return agent{}, "", err
		}
		if c.GetInputSchema() != "" {
			if _, err := s.schemas.compile(c.GetInputSchema()); err != nil {
				return agent{}, "", err
			}
		}
		a.capabilities = append(a.capabilities, capability{c.GetName(), description, c.GetInputSchema()})
	}
	if len(req.GetLabels()) > MaxLabels {
		return agent{}, "", fault.New(fault.Invalid, "an agent has at most %d labels", MaxLabels)
	}
	a.labels = map[string]string{}
	for key, value := range req.GetLabels() {
		if !labelKey.MatchString(key) || len(value) > MaxLabelBytes || !utf8.ValidString(value) {
			return agent{}, "", fault.New(fault.Invalid, "a label has a key of 1 to 63 characters of A–Z, a–z, 0–9, ., _, / and -, "+
				"and a value of at most %d bytes", MaxLabelBytes)
		}
		a.labels[key] = value
	}
	a.concurrency = int(req.GetConcurrency())
	if a.concurrency == 0 {
		a.concurrency = DefaultConcurrency
	}
	if a.concurrency < 1 || a.concurrency > MaxConcurrency {
		return agent{}, "", fault.New(fault.Invalid, "an agent works on 1 to %d tasks at the same time", MaxConcurrency)
	}
	return a, nameKey, nil
}

// RotateAgent replaces the secrets of an agent. Whoever uses the old ones is disconnected before it returns.
func (s *Service) RotateAgent(ctx context.Context, req *butlerv1.RotateAgentRequest) (*butlerv1.RotateAgentResponse, error) {
	a, err := s.find(ctx, req.GetAgentId())
	if err != nil {
		return nil, fault.GRPC(err)
	}
	secret, err := s.newSecrets(a.id)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	a, err = s.change(ctx, a.id, "token_hash = $3, nats_key = $4", secret.tokenHash, secret.key)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	s.disconnect(ctx, a.id)
	return &butlerv1.RotateAgentResponse{Agent: s.message(a), Token: secret.token, Credentials: secret.credentials}, nil
}

// SetAgentDisabled takes the rights of an agent away or gives them back.
func (s *Service) SetAgentDisabled(ctx context.Context, req *butlerv1.SetAgentDisabledRequest) (*butlerv1.SetAgentDisabledResponse, error) {
	disabled := 0
	if req.GetDisabled() {
		disabled = 1
	}
	a, err := s.change(ctx, req.GetAgentId(), "disabled = $3", disabled)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	if a.disabled {
		s.disconnect(ctx, a.id)
	}
	return &butlerv1.SetAgentDisabledResponse{Agent: s.message(a)}, nil
}

// DeleteAgent removes an agent for good; its open tasks fail.
func (s *Service) DeleteAgent(ctx context.Context, req *butlerv1.DeleteAgentRequest) (*butlerv1.DeleteAgentResponse, error) {
	id := req.GetAgentId()
	if err := s.started(); err != nil {
		return nil, fault.GRPC(err)
	}
	err := s.db.Write(ctx, func(tx *storage.Tx) error {
		n, err := tx.Exec("DELETE FROM agents WHERE id = $1", id)
		if err == nil && n == 0 {
			err = errNoAgent()
		}
		return err
	})
	if err != nil {
		return nil, fault.GRPC(err)
	}
	s.reload(ctx)
	s.disconnect(ctx, id)
	if s.bus != nil {
		s.endAll(ctx, id)
		if err := s.bus.DeleteAgentConsumer(ctx, id); err != nil {
			s.log.WarnContext(ctx, "the consumer of a deleted agent is left over", "agent", id, "error", err)
		}
	}
	return &butlerv1.DeleteAgentResponse{}, nil
}

// AuthenticateAgent gives the agent that has a token. It asks SQL each time, so that a revoked token is worth nothing at
// once.
func (s *Service) AuthenticateAgent(ctx context.Context, req *butlerv1.AuthenticateAgentRequest) (*butlerv1.AuthenticateAgentResponse, error) {
	stranger := fault.New(fault.Unauthenticated, "this token is no agent's, or not valid any more")
	if !strings.HasPrefix(req.GetToken(), tokenPrefix) || len(req.GetToken()) > 200 {
		return nil, fault.GRPC(stranger)
	}
	if err := s.started(); err != nil {
		return nil, fault.GRPC(err)
	}
	a, err := s.readOne(ctx, "token_hash = $1", hashToken(req.GetToken()))
	if fault.CodeOf(err) == fault.NotFound || err == nil && a.disabled {
		err = stranger
	}
	if err != nil {
		return nil, fault.GRPC(err)
	}
	return &butlerv1.AuthenticateAgentResponse{Agent: s.message(a)}, nil
}

func errNoAgent() error { return fault.New(fault.NotFound, "there is no such agent") }

// find gives an agent from SQL.
func (s *Service) find(ctx context.Context, id int64) (agent, error) {
	if err := s.started(); err != nil {
		return agent{}, err
	}
	return s.readOne(ctx, "id = $1", id)
}

func (s *Service) readOne(ctx context.Context, where string, arg any) (agent, error) {
	var a agent
	err := s.db.Read(ctx, func(tx *storage.Tx) (err error) {
		a, err = scanAgent(tx.QueryRow("SELECT "+agentColumns+" FROM agents WHERE "+where, arg))
		return err
	})
	if errors.Is(err, storage.ErrNoRows) {
		err = errNoAgent()
	}
	return a, err
}

// change sets columns of an agent; what names parameters from $3 on.
func (s *Service) change(ctx context.Context, id int64, what string, args ...any) (agent, error) {
	if err := s.started(); err != nil {
		return agent{}, err
	}
	var a agent
	err := s.db.Write(ctx, func(tx *storage.Tx) (err error) {
		a, err = scanAgent(tx.QueryRow("UPDATE agents SET updated_at = $2, "+what+" WHERE id = $1 RETURNING "+agentColumns,
			append([]any{id, s.now().UnixMilli()}, args...)...))
		return err
	})
	if errors.Is(err, storage.ErrNoRows) {
		err = errNoAgent()
	}
	if err == nil {
		s.reload(ctx)
	}
	return a, err
}

// insert adds an agent and gives it its secrets.
func (s *Service) insert(ctx context.Context, a agent, nameKey string) (saved agent, secret secrets, err error) {
	capabilities, err1 := json.Marshal(a.capabilities)
	labels, err2 := json.Marshal(a.labels)
	if err := errors.Join(err1, err2); err != nil {
		return agent{}, secrets{}, err
	}
	err = s.db.Write(ctx, func(tx *storage.Tx) error {
		if err := tx.Lock("agents"); err != nil {
			return err
		}
		var n, same int
		if err := tx.QueryRow("SELECT COUNT(*), COUNT(CASE WHEN name_key = $1 THEN 1 END) FROM agents", nameKey).Scan(&n, &same); err != nil {
			return err
		}
		if same > 0 {
			return fault.New(fault.Conflict, "there is an agent called %s already", a.name)
		}
		if n >= MaxAgents {
			return fault.New(fault.Conflict, "there are %d agents already, and no more are accepted", n)
		}
		id, err := tx.NewPrincipal(storage.AgentKind)
		if err != nil {
			return err
		}
		if secret, err = s.newSecrets(id); err != nil {
			return err
		}
		saved, err = scanAgent(tx.QueryRow(`INSERT INTO agents
			(id, name, name_key, kind, description, created_at, updated_at, capabilities, labels, concurrency, token_hash, nats_key)
			VALUES ($1, $2, $3, $4, $5, $6, $6, $7, $8, $9, $10, $11) RETURNING `+agentColumns,
			id, a.name, nameKey, a.kind, a.description, s.now().UnixMilli(), string(capabilities), string(labels), a.concurrency, secret.tokenHash, secret.key))
		return err
	})
	return saved, secret, err
}

// reload reads the agents again, so that the next list has what was changed, also when SQL goes down now.
func (s *Service) reload(ctx context.Context) {
	if _, err := s.load(ctx); err != nil {
		s.log.DebugContext(ctx, "the list of agents was not read after a change", "error", err)
	}
}

// disconnect ends the connections of an agent that lost its rights.
func (s *Service) disconnect(ctx context.Context, id int64) {
	if s.bus == nil {
		return
	}
	n, err := s.bus.Kick(ctx, bus.AgentName(id))
	if err != nil {
		s.log.ErrorContext(ctx, "an agent lost its rights, and its connections could not be ended", "agent", id, "error", err)
		return
	}
	s.log.InfoContext(ctx, "an agent lost its rights", "agent", id, "connections", n)
	select {
	case s.again <- id:
	default: // many at once: the moment in which it matters is short
	}
}

// kickLater ends connections once more, until ctx ends.
func (s *Service) kickLater(ctx context.Context) error {
	for {
		var id int64
		select {
		case id = <-s.again:
		case <-ctx.Done():
			return nil
		}
		timer := time.NewTimer(kickAgain)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		if _, err := s.bus.Kick(ctx, bus.AgentName(id)); err != nil {
			return err
		}
	}
}

// door lets agents in until ctx ends.
func (s *Service) door(ctx context.Context) error {
	if s.issuer == "" {
		s.log.WarnContext(ctx, "agents are not let in on NATS: BUTLER_AGENTS_KEY is not set")
		<-ctx.Done()
		return nil
	}
	stop, err := s.bus.Admit(s.issuer, s.judge)
	if err != nil {
		return err
	}
	defer stop()
	<-ctx.Done()
	return nil
}

// judge says what a connection may do: that of the agent whose key it holds. The server does not tell which key that is,
// where a .creds file is used; so it is looked for, first where the connection's name says.
func (s *Service) judge(ctx context.Context, k bus.Knock) (bus.ServiceUser, error) {
	a, ok := holder(s.agents(), k)
	if !ok {
		// It may have been added by another replica a moment ago.
		if s.loadedWithin(reloadEvery) {
			return bus.ServiceUser{}, bus.ErrStranger // strangers do not keep SQL busy
		}
		agents, err := s.load(ctx)
		if err != nil {
			return bus.ServiceUser{}, err
		}
		if a, ok = holder(agents, k); !ok {
			return bus.ServiceUser{}, bus.ErrStranger
		}
		return bus.AgentUser(a.id), nil
	}
	// What is known may be older than a revocation. While SQL is down it counts nevertheless: who was let in before may come
	// back.
	fresh, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	now, err := s.readOne(fresh, "id = $1", a.id)
	switch {
	case err == nil && (now.key != a.key || now.disabled), fault.CodeOf(err) == fault.NotFound:
		return bus.ServiceUser{}, bus.ErrStranger
	case err != nil && fault.ClassOf(err) != fault.Transient:
		return bus.ServiceUser{}, err
	}
	return bus.AgentUser(a.id), nil
}

// holder gives the agent whose key a connection holds.
func holder(agents []agent, k bus.Knock) (agent, bool) {
	holds := func(a agent) bool { return a.key != "" && !a.disabled && k.Holds(a.key) }
	if k.Key != "" {
		i := slices.IndexFunc(agents, func(a agent) bool { return a.key == k.Key })
		if i < 0 || !holds(agents[i]) {
			return agent{}, false
		}
		return agents[i], true
	}
	named := slices.IndexFunc(agents, func(a agent) bool { return bus.AgentName(a.id) == k.Name })
	if named >= 0 && holds(agents[named]) {
		return agents[named], true
	}
	if i := slices.IndexFunc(agents, holds); i >= 0 {
		return agents[i], true
	}
	return agent{}, false
}

// loadedWithin says whether the list of agents is younger than d.
func (s *Service) loadedWithin(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now().Sub(s.loadedAt) < d
}

// agents gives those that are known.
func (s *Service) agents() []agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known
}
