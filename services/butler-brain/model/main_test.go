package model_test

import (
	"context"
	"testing"
	"time"

	"github.com/cloudwego/eino/schema"
	"go.uber.org/goleak"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "sk-test-0123456789abcdef"

// client makes a client of an endpoint; set may change its settings.
func client(t testing.TB, url string, set ...func(*model.Config)) *model.Client {
	t.Helper()
	cfg := model.Config{BaseURL: url, APIToken: token, Model: "test-model"}
	for _, f := range set {
		f(&cfg)
	}
	c, err := model.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// deadline gives a context that ends a test which hangs.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func ask(text string) []*schema.Message {
	return []*schema.Message{schema.SystemMessage("You are a test."), schema.UserMessage(text)}
}

// collect gives an onText that gathers pieces.
func collect(pieces *[]string) func(string) { return func(s string) { *pieces = append(*pieces, s) } }

var listAgents = &schema.ToolInfo{Name: "list_agents", Desc: "Lists agents.", ParamsOneOf: schema.NewParamsOneOfByParams(
	map[string]*schema.ParameterInfo{"online": {Type: schema.Boolean, Desc: "Only those online."}})}

func start(t testing.TB) *modeltest.Server {
	t.Helper()
	return modeltest.Start(t)
}
