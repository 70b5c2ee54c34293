package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	einomodel "github.com/cloudwego/eino/components/model"
	"github.com/cloudwego/eino/schema"
)

const (
	demoName      = "demo"
	maxDemoCount  = 2000
	maxDemoQuoted = 2000 // bytes of a message or tool result that the demo model repeats
)

// Demo is a rule-based stand-in for a language model: chat, tools and stopping can be tried with it offline. It says
// what it is and how a real model is configured, and answers in the language of the message. It is safe for concurrent
// use.
type Demo struct {
	delay time.Duration
	now   func() time.Time
	tools []*schema.ToolInfo
}

var _ einomodel.ToolCallingChatModel = (*Demo)(nil)

// NewDemo makes a demo model that pauses for delay between words.
func NewDemo(delay time.Duration, now func() time.Time) *Demo { return &Demo{delay: delay, now: now} }

// WithTools gives a demo model that may call tools.
func (d *Demo) WithTools(tools []*schema.ToolInfo) (einomodel.ToolCallingChatModel, error) {
	copied := *d
	copied.tools = tools
	return &copied, nil
}

// Generate gives the whole answer at once.
func (d *Demo) Generate(ctx context.Context, in []*schema.Message, _ ...einomodel.Option) (*schema.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	reply := d.answer(in)
	m := &schema.Message{Role: schema.Assistant, Content: reply.text}
	if reply.call != nil {
		m.ToolCalls = []schema.ToolCall{*reply.call}
	}
	m.ResponseMeta = reply.meta(in)
	return m, nil
}

// Stream gives the answer word by word. The stream ends with the context's error when that ends first.
func (d *Demo) Stream(ctx context.Context, in []*schema.Message, _ ...einomodel.Option) (
	*schema.StreamReader[*schema.Message], error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	reply := d.answer(in)
	sr, sw := schema.Pipe[*schema.Message](1)
	go func() {
		defer sw.Close()
		for _, word := range demoWords(reply.text) {
			if err := pause(ctx, d.delay); err != nil {
				sw.Send(nil, err)
				return
			}
			if sw.Send(&schema.Message{Role: schema.Assistant, Content: word}, nil) {
				return
			}
		}
		last := &schema.Message{Role: schema.Assistant, ResponseMeta: reply.meta(in)}
		if reply.call != nil {
			last.ToolCalls = []schema.ToolCall{*reply.call}
		}
		sw.Send(last, nil)
	}()
	return sr, nil
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type demoReply struct {
	text string
	call *schema.ToolCall
}

func (r demoReply) meta(in []*schema.Message) *schema.ResponseMeta {
	finish := "stop"
	if r.call != nil {
		finish = "tool_calls"
	}
	prompt, answer := estimateTokens(in), estimateText(r.text)
	return &schema.ResponseMeta{FinishReason: finish, Usage: &schema.TokenUsage{
		PromptTokens: prompt, CompletionTokens: answer, TotalTokens: prompt + answer,
	}}
}

var (
	demoEcho   = regexp.MustCompile(`(?is)^\s*(?:(?:echo|say|repeat)[\s:：]+|(?:重复|复述|跟我说)[\s:：]*)(\S.*)$`)
	demoCount  = regexp.MustCompile(`(?i)(?:\bcount\s+(?:up\s+)?to|数到|^\s*long|^\s*长文)\s*(\d{1,9}|$)`)
	demoRun    = regexp.MustCompile(`(?is)^\s*(?:run\s*[:：]|(?:执行|运行)[\s:：]+)\s*(\S.*)$`)
	demoTool   = regexp.MustCompile(`(?is)^\s*(?:call|use|调用)\s+([A-Za-z0-9_-]{1,64})\s*(\{.*\})?\s*$`)
	demoAgents = regexp.MustCompile(`(?i)\bagents?\b|\bonline\b|在线|代理|智能体`)
	demoTime   = regexp.MustCompile(`(?i)\btime\b|\bdate\b|\btoday\b|几点|时间|日期|几号|今天`)
)

func (d *Demo) answer(in []*schema.Message) demoReply {
	asked := lastOf(in, schema.User)
	zh := hasHan(asked)
	say := func(en, chinese string) demoReply {
		if zh {
			return demoReply{text: chinese}
		}
		return demoReply{text: en}
	}
	if n := len(in); n > 0 && in[n-1].Role == schema.Tool {
		result := describeResult(in[n-1].Content)
		name := in[n-1].ToolName
		if name == "" {
			name = toolNameOf(in, in[n-1].ToolCallID)
		}
		return say(fmt.Sprintf("The tool %s gave this:\n\n%s\n\n— the demo model", name, result),
			fmt.Sprintf("工具 %s 的结果：\n\n%s\n\n——演示模型", name, result))
	}
	if m := demoRun.FindStringSubmatch(asked); m != nil {
		if !d.offers("run_command") {
			return say("I cannot run commands: no tool for it is offered to me. — the demo model",
				"我无法执行命令：没有可用的工具。——演示模型")
		}
		args, _ := json.Marshal(map[string]string{ // strings
			"command": strings.TrimSpace(m[1]), "reasoning": say("You asked the demo model to run it.", "您让演示模型执行它。").text,
		})
		return d.calling("run_command", string(args), len(in), zh)
	}
	if m := demoTool.FindStringSubmatch(asked); m != nil && d.offers(m[1]) {
		return d.calling(m[1], m[2], len(in), zh)
	}
	if m := demoCount.FindStringSubmatch(asked); m != nil {
		return demoReply{text: countTo(m[1])}
	}
	if m := demoEcho.FindStringSubmatch(asked); m != nil {
		return demoReply{text: cutBytes(strings.TrimSpace(m[1]), maxDemoQuoted)}
	}
	if demoAgents.MatchString(asked) {
		if d.offers("list_agents") {
			return d.calling("list_agents", "", len(in), zh)
		}
		return say("I cannot see any agents: no tool for it is offered to me. — the demo model",
			"我看不到任何代理：没有可用的工具。——演示模型")
	}
	if demoTime.MatchString(asked) {
		now := d.now()
		return say(fmt.Sprintf("It is %s. — the demo model", now.Format("Monday, 2 January 2006, 15:04:05 MST")),
			fmt.Sprintf("现在是 %s。——演示模型", now.Format("2006年1月2日 15:04:05 MST")))
	}
	quoted := cutBytes(strings.TrimSpace(asked), 200)
	if quoted != strings.TrimSpace(asked) {
		quoted += "…"
	}
	run, runZh := "", ""
	if d.offers("run_command") {
		run, runZh = ", “run: ls -la” (what is dangerous, such as “run: rm -rf build”, waits for approval)",
			"、“执行 ls -la”（危险的命令，如“执行 rm -rf build”，会等待批准）"
	}
	return say(fmt.Sprintf("I am Butler's built-in demo model: I follow a few rules and do not understand language. "+
		"You wrote: “%s”.\n\nTry: “who is online?”, “what time is it?”, “echo hello”, “count to 300” (and stop me)%s.\n\n"+
		"For a real model, set BUTLER_BASE_URL, BUTLER_API_TOKEN and BUTLER_MODEL (any OpenAI-compatible endpoint), or "+
		"ANTHROPIC_API_KEY and BUTLER_MODEL, and start Butler again.", quoted, run),
		fmt.Sprintf("我是 Butler 内置的演示模型：只会按几条规则回答，并不理解语言。你写的是：“%s”。\n\n"+
			"可以试试：“谁在线？”、“现在几点？”、“重复 你好”、“数到 300”（然后停止我）%s。\n\n"+
			"要使用真正的模型，请设置 BUTLER_BASE_URL、BUTLER_API_TOKEN 和 BUTLER_MODEL（任何兼容 OpenAI 的服务），"+
			"或设置 ANTHROPIC_API_KEY 和 BUTLER_MODEL，然后重新启动 Butler。", quoted, runZh))
}

func (d *Demo) calling(tool, args string, round int, zh bool) demoReply {
	if args == "" {
		args = "{}"
	}
	text := "Let me look. "
	if zh {
		text = "我看一下。"
	}
	return demoReply{text: text, call: &schema.ToolCall{
		ID: callID(round, 0, tool, args), Type: "function",
		Function: schema.FunctionCall{Name: tool, Arguments: args},
	}}
}

func (d *Demo) offers(tool string) bool {
	for _, t := range d.tools {
		if t.Name == tool {
			return true
		}
	}
	return false
}

func countTo(number string) string {
	n, err := strconv.Atoi(number)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		n = 200
	}
	var b strings.Builder
	for i := range min(max(n, 1), maxDemoCount) {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.Itoa(i + 1))
	}
	return b.String()
}

// describeResult shows a tool's result: a JSON list of things with names as a list of these names, else as it is.
func describeResult(content string) string {
	type thing struct {
		Name        string `json:"name"`
		Description string `json:"description"`
	}
	var wrapped struct {
		Agents []thing `json:"agents"`
	}
	var things []thing
	if json.Unmarshal([]byte(content), &things) != nil && json.Unmarshal([]byte(content), &wrapped) == nil {
		things = wrapped.Agents
	}
	var b strings.Builder
	for _, t := range things {
		if t.Name == "" {
			continue
		}
		fmt.Fprintf(&b, "- %s", t.Name)
		if t.Description != "" {
			fmt.Fprintf(&b, ": %s", t.Description)
		}
		b.WriteByte('\n')
	}
	if b.Len() == 0 {
		b.WriteString(strings.TrimSpace(content))
	}
	return cutBytes(strings.TrimSpace(b.String()), maxDemoQuoted)
}

func lastOf(in []*schema.Message, role schema.RoleType) string {
	for i := len(in) - 1; i >= 0; i-- {
		if in[i].Role == role {
			return in[i].Content
		}
	}
	return ""
}

func toolNameOf(in []*schema.Message, id string) string {
	for i := len(in) - 1; i >= 0; i-- {
		for _, call := range in[i].ToolCalls {
			if call.ID == id {
				return call.Function.Name
			}
		}
	}
	return ""
}

func hasHan(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return unicode.Is(unicode.Han, r) })
}

// demoWords cuts text into the pieces that are streamed: words with the space after them, Chinese two characters at a
// time.
func demoWords(text string) []string {
	var out []string
	start, wide := 0, 0
	for i, r := range text {
		if i > start && (wide == 2 || startsWord(text, i, r)) {
			out = append(out, text[start:i])
			start, wide = i, 0
		}
		if unicode.Is(unicode.Han, r) {
			wide++
		}
	}
	if start < len(text) {
		out = append(out, text[start:])
	}
	return out
}

func startsWord(text string, i int, r rune) bool {
	return !unicode.IsSpace(r) && (text[i-1] == ' ' || text[i-1] == '\n')
}
