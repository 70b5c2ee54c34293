package brain

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloudwego/eino/schema"

	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/journal"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

// Tool is something that the model may call.
type Tool struct {
	// Info is the name (1–64 characters of A–Z, a–z, 0–9, _ and -), the description and the parameters that the model sees.
	Info *schema.ToolInfo
	// Repeat says how a call may be repeated after a crash.
	Repeat journal.Repeat
	// Lookup tells what became of an interrupted call that must not be repeated; see journal.Effect.
	Lookup func(ctx context.Context, key string) (json.RawMessage, bool, error)
	// Run does it, in one step of the turn's journal. Arguments are the JSON that the model wrote, valid but not checked
	// against the parameters. The text is what the model reads, at most maxResult bytes of it. key is the same when this
	// call is repeated, and no other's.
	Run func(ctx context.Context, c Caller, key string, arguments json.RawMessage) (string, error)
	// Flow, instead of Run and Repeat, does it in steps and waits of its own on the turn's journal; their keys begin with
	// key and a hyphen.
	Flow func(ctx context.Context, run *journal.Run, c Caller, key string, arguments json.RawMessage) (string, error)
}

// Caller is for whom a tool is called.
type Caller struct {
	Turn     chat.Turn
	Person   *butlerv1.Actor
	Language string

	talk *talk // of the built-in tools
}

// Bounds of a tool call.
const (
	toolTimeout = 2 * time.Minute
	maxResult   = 64 << 10
	maxParallel = 8 // calls of one step at the same time
)

var toolName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// toolbox holds the tools by name.
type toolbox struct {
	infos  []*schema.ToolInfo
	by     map[string]Tool
	tokens int // about how many a prompt has of the descriptions
}

func newToolbox(tools []Tool) (*toolbox, error) {
	b := &toolbox{by: map[string]Tool{}}
	for _, t := range tools {
		if t.Info == nil || !toolName.MatchString(t.Info.Name) || (t.Run == nil) == (t.Flow == nil) {
			return nil, fmt.Errorf("brain: a tool needs a usable name and either Run or Flow")
		}
		if _, twice := b.by[t.Info.Name]; twice {
			return nil, fmt.Errorf("brain: two tools are named %s", t.Info.Name)
		}
		switch {
		case t.Flow != nil, t.Repeat == journal.Pure, t.Repeat == journal.Idempotent, t.Repeat == journal.Once:
		default:
			return nil, fmt.Errorf("brain: tool %s does not say how it may be repeated", t.Info.Name)
		}
		b.by[t.Info.Name] = t
		b.infos = append(b.infos, t.Info)
		b.tokens += describedTokens(t.Info)
	}
	return b, nil
}

// describedTokens is about how many tokens the description of a tool takes, rather too many than too few.
func describedTokens(info *schema.ToolInfo) int {
	size := len(info.Name) + len(info.Desc)
	if js, err := info.ToJSONSchema(); err == nil && js != nil {
		if data, err := json.Marshal(js); err == nil {
			size += len(data)
		}
	}
	return size/3 + 16
}

// clip keeps the beginning of a tool's result and says so.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxResult {
		return s
	}
	return strings.ToValidUTF8(s[:maxResult], "") + fmt.Sprintf("\n[cut: %d bytes in all]", len(s))
}

// builtinTools are those that need nothing but what the brain knows.
func builtinTools(agents *agentList, clock journal.Clock) []Tool {
	return []Tool{
		{
			Info: &schema.ToolInfo{
				Name: "list_agents",
				Desc: "Lists the agents that Butler knows, and which of them are online now.",
			},
			Repeat: journal.Pure,
			Run: func(ctx context.Context, _ Caller, _ string, _ json.RawMessage) (string, error) {
				all, err := agents.fetch(ctx)
				if err != nil {
					return "", err
				}
				type row struct {
					ID          int64  `json:"id"`
					Name        string `json:"name"`
					Kind        string `json:"kind,omitempty"`
					Description string `json:"description,omitempty"`
					Online      bool   `json:"online"`
				}
				rows := make([]row, 0, len(all))
				for _, a := range all {
					rows = append(rows, row{a.Id, a.Name, a.Kind, a.Description, a.Online})
				}
				out, err := json.Marshal(rows)
				return string(out), err
			},
		},
		{
			Info: &schema.ToolInfo{
				Name: "current_time",
				Desc: "Gives the date and the time now.",
				ParamsOneOf: schema.NewParamsOneOfByParams(map[string]*schema.ParameterInfo{
					"time_zone": {Type: schema.String, Desc: "IANA name such as Asia/Shanghai; UTC when left out"},
				}),
			},
			Repeat: journal.Pure,
			Run: func(_ context.Context, _ Caller, _ string, args json.RawMessage) (string, error) {
				var in struct {
					TimeZone string `json:"time_zone"`
				}
				if err := json.Unmarshal(args, &in); err != nil {
					return "", fmt.Errorf("the arguments do not fit: %w", err)
				}
				zone, err := time.LoadLocation(in.TimeZone)
				if err != nil {
					return "", fmt.Errorf("there is no time zone %q", in.TimeZone)
				}
				return clock.Now().In(zone).Format("Monday, 2006-01-02 15:04:05 MST"), nil
			},
		},
	}
}

// agentList knows the agents well enough for a prompt: it never makes one wait for the registry.
type agentList struct {
	client butlerv1.RegistryServiceClient
	clock  journal.Clock

	mu       sync.Mutex
	agents   []*butlerv1.Agent
	at       time.Time
	fetching bool
}

const (
	agentsFresh   = 2 * time.Second  // asked again after
	agentsTrusted = 30 * time.Second // not believed any more after
	agentsTimeout = 2 * time.Second
)

func newAgentList(client butlerv1.RegistryServiceClient, clock journal.Clock) *agentList {
	return &agentList{client: client, clock: clock}
}

// fetch asks the registry.
func (l *agentList) fetch(ctx context.Context) ([]*butlerv1.Agent, error) {
	if l.client == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, agentsTimeout)
	defer cancel()
	resp, err := l.client.ListAgents(ctx, &butlerv1.ListAgentsRequest{})
	if err != nil {
		return nil, fmt.Errorf("the list of agents is not to be had now: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agents, l.at = resp.Agents, l.clock.Now()
	return resp.Agents, nil
}

// online gives those who were online a moment ago, and has the list refreshed in the background.
func (l *agentList) online() []model.AgentInfo {
	if l.client == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	age := l.clock.Now().Sub(l.at)
	if age > agentsFresh && !l.fetching {
		l.fetching = true
		go func() {
			_, _ = l.fetch(context.Background()) // the prompt goes without
			l.mu.Lock()
			l.fetching = false
			l.mu.Unlock()
		}()
	}
	if age > agentsTrusted {
		return nil
	}
	var out []model.AgentInfo
	for _, a := range l.agents {
		if a.Online {
			out = append(out, model.AgentInfo{ID: a.Id, Name: a.Name, Description: a.Description, Online: true})
		}
	}
	return slices.Clip(out)
}
