package shell

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// What controls show of a session: jobs, the published snapshot, help.

// maxLastOutput bounds what /compact gives of the terminal, in bytes.
const maxLastOutput = 4 << 10

func (c *control) jobsList(ctx context.Context) error {
	var b strings.Builder
	for _, j := range c.jobsOf(c.seat.person) {
		text, _ := c.redactor.String(j.req.GetEffect().GetCommand())
		fmt.Fprintf(&b, "- %s `%s` — %s\n", c.say("runs", "运行中"), inline(text), c.now().Sub(j.use.GetTakenAt().AsTime()).Round(time.Second))
	}
	jobs, err := c.sess.Jobs(ctx)
	if _, busy := errors.AsType[*tmux.BusyError](err); busy {
		b.WriteString("\n" + c.say("The shell's own background jobs can be listed once it is at its prompt.", "shell 回到提示符后才能列出它的后台作业。"))
	} else if err != nil {
		return err
	}
	for _, j := range jobs {
		text, _ := c.redactor.String(j.Text)
		fmt.Fprintf(&b, "- [%d] %s `%s` (%d)\n", j.Number, j.State, inline(text), j.PID)
	}
	c.out.Text = cmp.Or(b.String(), c.say("There are no jobs.", "没有作业。"))
	return nil
}

// jobsOf gives a person's commands that run, the oldest first.
func (s *Service) jobsOf(person int64) []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*job
	for _, j := range s.jobs {
		if j.req.GetPerson().GetId() == person && j.use.GetStatus() == approval.Taken {
			out = append(out, j)
		}
	}
	slices.SortFunc(out, func(a, b *job) int { return a.use.GetTakenAt().AsTime().Compare(b.use.GetTakenAt().AsTime()) })
	return out
}

// published is a session's snapshot with the published names. The values of its variables are nobody's business.
type published struct {
	SessionID   string    `json:"session_id"`
	UserID      string    `json:"user_id"`
	Mode        string    `json:"mode"`
	State       string    `json:"state"`
	Pwd         string    `json:"pwd"`
	Env         []string  `json:"env"`
	LastOutput  string    `json:"last_output"`
	Interactive *string   `json:"interactive_process"`
	UpdatedAt   time.Time `json:"updated_at"`
}

func (c *control) compact(ctx context.Context) error {
	st := c.shellState(ctx, c.sess)
	p := published{
		SessionID: st.GetName(), UserID: strconv.FormatInt(c.seat.person, 10), Mode: st.GetMode(), State: st.GetState(), Pwd: st.GetDir(),
		Env: []string{}, UpdatedAt: c.now().UTC().Truncate(time.Second),
	}
	if name := st.GetProgram(); name != "" {
		p.Interactive = &name
	}
	note := ""
	names, err := c.sess.Environment(ctx)
	if _, busy := errors.AsType[*tmux.BusyError](err); busy {
		note = c.say("The names of its variables can be read once the shell is at its prompt.", "shell 回到提示符后才能读取变量名。")
	} else if err != nil {
		return err
	} else {
		p.Env = names
	}
	shown, err := c.sess.Screen(ctx, false)
	if err != nil {
		return err
	}
	p.LastOutput, _ = c.redactor.String(shown.Text)
	if n := len(p.LastOutput); n > maxLastOutput {
		p.LastOutput = "…" + strings.ToValidUTF8(p.LastOutput[n-maxLastOutput:], "")
	}
	data, err := json.MarshalIndent(p, "", "  ") //nolint:gosec // pwd is the directory
	if err != nil {
		return err
	}
	c.out.Text = fencedAs("json", string(data))
	if note != "" {
		c.out.Text += "\n\n" + note
	}
	return nil
}

func (c *control) help() string {
	var b strings.Builder
	line := func(use, en, zh string) { fmt.Fprintf(&b, "- `%s` — %s\n", use, c.say(en, zh)) }
	line("/shell", "attach this conversation to your shell here", "把本次对话接入你的 shell")
	line("/shell off", "leave it; the shell lives on", "脱离 shell，shell 仍保留")
	line("/shell status", "how the shell stands", "查看 shell 状态")
	line("!command", "run a command, whatever it looks like (also: $ command)", "无论内容如何都作为命令执行（也可用 $ command）")
	line("/interactive", "what I write goes to the program in the foreground", "输入传给前台程序")
	line("/nl", "what I write is for Butler again", "输入重新由 Butler 处理")
	line("/force-nl", "the same, whatever runs", "同上，且无论前台运行什么")
	line("/key C-c", "press keys: C-c, C-d, Esc, Tab, Enter, Up, PgDn, F1, …", "按键：C-c、C-d、Esc、Tab、Enter、Up、PgDn、F1 等")
	line("/cancel", "interrupt what runs (C-c)", "中断正在运行的命令（C-c）")
	line("/kill", "kill it at once (SIGKILL)", "立即终止（SIGKILL）")
	line("/screen", "show the screen", "显示屏幕")
	line("/pwd", "show the directory", "显示当前目录")
	line("/jobs", "list what runs", "列出作业")
	line("/compact", "snapshot: directory, names of variables, last output", "快照：目录、变量名、最近输出")
	line("/remember fact", "pin a fact in this conversation; alone: what is pinned", "在本会话中固定一条内容；单独使用则列出已固定的内容")
	line("/forget fact", "take it back, by its text or number", "按文本或编号取消固定")
	for _, s := range c.order {
		fmt.Fprintf(&b, "- `%s` — %s\n", strings.Join(s.Triggers(), "`, `"), s.Description(c.req.GetLanguage()))
	}
	line("//text", "text that begins with a slash, for a program", "以斜杠开头、要传给程序的文本")
	line("/help", "this list", "本列表")
	return b.String()
}

// fenced puts text into a block of Markdown that it cannot end itself.
func fenced(text string) string { return fencedAs("text", text) }

func fencedAs(kind, text string) string {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence + kind + "\n" + text + "\n" + fence
}

// inline makes a text fit between two backticks: one line, bounded.
func inline(text string) string {
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, "`", "'")), " ")
	if utf8.RuneCountInString(text) > 200 {
		text = string([]rune(text)[:200]) + "…"
	}
	return text
}
