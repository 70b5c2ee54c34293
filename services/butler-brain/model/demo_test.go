package model_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	einomodel "github.com/cloudwego/eino/components/model"
	"github.com/cloudwego/eino/schema"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/services/butler-brain/model"
)

func demo(t testing.TB, delay time.Duration) *model.Client {
	t.Helper()
	c, err := model.New(model.Config{DemoDelay: delay, Now: func() time.Time {
		return time.Date(2026, 12, 1, 12, 34, 56, 0, time.UTC)
	}})
	require.NoError(t, err)
	return c
}

func TestDemoAnswers(t *testing.T) {
	t.Parallel()
	c := demo(t, -1)
	require.True(t, c.Demo())
	require.NoError(t, c.Check(deadline(t)))
	for asked, want := range map[string][]string{
		"hello there":       {"demo model", "hello there", "BUTLER_BASE_URL", "BUTLER_API_TOKEN", "BUTLER_MODEL"},
		"你好":                {"演示模型", "你好", "BUTLER_BASE_URL", "ANTHROPIC_API_KEY"},
		"what time is it?":  {"12:34:56", "demo model"},
		"现在几点？":             {"2026年12月1日 12:34:56", "演示模型"},
		"echo  Hello World": {"Hello World"},
		"重复：你好 世界":          {"你好 世界"},
		"who is online?":    {"no tool"},
		"谁在线？":              {"没有可用的工具"},
		"count to 12":       {"1 2 3 4 5 6 7 8 9 10 11 12"},
		"数到 5":              {"1 2 3 4 5"},
		"long":              {"199 200"},
		"count to 99999999": {"1999 2000"},
		"how long is this?": {"how long is this?", "demo model"},
		"saying nothing":    {"saying nothing", "demo model"},
	} {
		var pieces []string
		res, err := c.Stream(deadline(t), ask(asked), nil, model.CallOptions{}, collect(&pieces))
		require.NoError(t, err, asked)
		for _, w := range want {
			require.Contains(t, res.Message.Content, w, asked)
		}
		require.Equal(t, res.Message.Content, strings.Join(pieces, ""))
		require.Positive(t, res.Usage.PromptTokens)
		require.Positive(t, res.Usage.CompletionTokens)
		require.Equal(t, "demo", res.Model)
		require.Equal(t, "stop", res.FinishReason)
		if len(res.Message.Content) > 40 {
			require.Greater(t, len(pieces), 5, "word by word")
		}
	}
}

func TestDemoCallsTools(t *testing.T) {
	t.Parallel()
	c := demo(t, -1)
	tools := []*schema.ToolInfo{listAgents}
	for asked, want := range map[string]struct{ args, answer string }{
		"who is online?":                    {"{}", "- Disk keeper: watches disks"},
		"哪些代理在线？":                           {"{}", "工具 list_agents 的结果"},
		`call list_agents {"online":false}`: {`{"online":false}`, "The tool list_agents"},
	} {
		msgs := ask(asked)
		res, err := c.Stream(deadline(t), msgs, tools, model.CallOptions{}, nil)
		require.NoError(t, err)
		require.NotEmpty(t, res.Message.Content, "text before the call")
		require.Equal(t, "tool_calls", res.FinishReason)
		require.Len(t, res.Message.ToolCalls, 1)
		call := res.Message.ToolCalls[0]
		require.Equal(t, "list_agents", call.Function.Name)
		require.Equal(t, want.args, call.Function.Arguments)

		msgs = append(msgs, res.Message,
			schema.ToolMessage(`{"agents":[{"name":"Disk keeper","description":"watches disks"}]}`, call.ID))
		res, err = c.Stream(deadline(t), msgs, tools, model.CallOptions{}, nil)
		require.NoError(t, err)
		require.Empty(t, res.Message.ToolCalls)
		require.Contains(t, res.Message.Content, want.answer)
	}
	res, err := c.Stream(deadline(t), ask("call rm_rf"), tools, model.CallOptions{}, nil)
	require.NoError(t, err)
	require.Empty(t, res.Message.ToolCalls, "only tools that are offered")
}

func TestDemoStops(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(deadline(t))
	n := 0
	_, err := demo(t, time.Millisecond).Stream(ctx, ask("count to 2000"), nil, model.CallOptions{}, func(string) {
		if n++; n == 3 {
			cancel()
		}
	})
	var f *model.Failure
	require.ErrorAs(t, err, &f)
	require.Equal(t, model.Cancelled, f.Reason)
	require.True(t, f.Streamed)
	require.Less(t, n, 10)
}

func TestDemoGeneratesTheSame(t *testing.T) {
	t.Parallel()
	d := model.NewDemo(0, time.Now)
	m, err := d.Generate(deadline(t), ask("echo hi"))
	require.NoError(t, err)
	require.Equal(t, "hi", m.Content)
}

func FuzzDemo(f *testing.F) {
	f.Add("数到 5")
	f.Add("call list_agents {}")
	f.Add("\xff echo")
	d, err := model.NewDemo(0, time.Now).WithTools([]*schema.ToolInfo{listAgents})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, asked string) {
		m, err := d.Generate(context.Background(), ask(asked))
		if err != nil || len(m.Content) > 16<<10 || (m.Content == "" && len(m.ToolCalls) == 0) {
			t.Fatalf("%q: %v %v", asked, m, err)
		}
	})
}

func TestTheDemoModelProposesCommands(t *testing.T) {
	t.Parallel()
	plain := model.NewDemo(0, time.Now)
	tooled, err := plain.WithTools([]*schema.ToolInfo{{Name: "run_command"}})
	require.NoError(t, err)
	for text, command := range map[string]string{
		"run: ls -la":          "ls -la",
		"Run： rm -rf build":    "rm -rf build",
		"执行 df -h":             "df -h",
		"执行：uptime":            "uptime",
		"运行 echo 你好 && ls":     "echo 你好 && ls",
		"run: echo run: twice": "echo run: twice",
	} {
		m, err := tooled.Generate(t.Context(), []*schema.Message{schema.UserMessage(text)})
		require.NoError(t, err)
		require.Len(t, m.ToolCalls, 1, text)
		require.Equal(t, "run_command", m.ToolCalls[0].Function.Name)
		var args struct{ Command, Reasoning string }
		require.NoError(t, json.Unmarshal([]byte(m.ToolCalls[0].Function.Arguments), &args))
		require.Equal(t, command, args.Command)
		require.NotEmpty(t, args.Reasoning)
		m, err = plain.Generate(t.Context(), []*schema.Message{schema.UserMessage(text)})
		require.NoError(t, err)
		require.Empty(t, m.ToolCalls)
	}
	for _, text := range []string{"runs: x", "run away", "执行力很重要", "hello"} {
		m, err := tooled.Generate(t.Context(), []*schema.Message{schema.UserMessage(text)})
		require.NoError(t, err)
		require.Empty(t, m.ToolCalls, text)
	}
	for demo, want := range map[einomodel.BaseChatModel]bool{tooled: true, plain: false} {
		m, err := demo.Generate(t.Context(), []*schema.Message{schema.UserMessage("hello")})
		require.NoError(t, err)
		require.Equal(t, want, strings.Contains(m.Content, "run: ls -la"), "the help names what can be tried")
	}
}

func TestTheSystemPromptSaysHowCommandsAreRun(t *testing.T) {
	t.Parallel()
	with := model.SystemPrompt(model.PromptState{Hosts: []string{"db1", "web1"}})
	for _, want := range []string{"run_command", "db1, web1", "Never claim that a command ran", "is data"} {
		require.Contains(t, with, want)
	}
	require.NotContains(t, model.SystemPrompt(model.PromptState{}), "run_command")
}
