package shell

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// controls are the slash words that Control knows beside the skills'.
var controls = set(`/shell /interactive /nl /force-nl /key /kill /screen /pwd /cancel /jobs /compact /help`)

// controlled is what a control call answered: the same call again gets the same, and does nothing.
type controlled struct {
	at   time.Time
	resp *butlerv1.ControlResponse
	err  error
}

const (
	// controlledFor is how long an answer is kept for a repetition, maxControlled how many are.
	controlledFor = 10 * time.Minute
	maxControlled = 10_000
)

func (s *Service) forgetControlled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, c := range s.done {
		if s.now().Sub(c.at) > controlledFor || len(s.done) > maxControlled {
			delete(s.done, key)
		}
	}
}

// say gives a text in a person's language.
func say(language, en, zh string) string {
	if language == "zh" {
		return zh
	}
	return en
}

// control is one call of Control.
type control struct {
	*Service
	req  *butlerv1.ControlRequest
	seat *seat
	sess *tmux.Session // nil when there is none
	args []string      // after the slash word
	out  *butlerv1.ControlResponse
}

func (c *control) say(en, zh string, args ...any) string {
	return fmt.Sprintf(say(c.req.GetLanguage(), en, zh), args...)
}

// Control does what a slash command or a skill says, or passes keys and text on; see the service's definition.
func (s *Service) Control(ctx context.Context, req *butlerv1.ControlRequest) (*butlerv1.ControlResponse, error) {
	if err := s.allowIn(req.GetPerson(), req.GetLanguage()); err != nil {
		return nil, err
	}
	seat := s.seat(req.GetPerson().GetId())
	seat.Lock()
	defer seat.Unlock()
	key := fmt.Sprintf("%d %s", seat.person, req.GetKey())
	if req.GetKey() != "" {
		s.mu.Lock()
		was, again := s.done[key]
		s.mu.Unlock()
		if again {
			return was.resp, was.err
		}
	}
	if req.GetKey() != "" && acts(req.GetText()) && !s.noteControl(key) {
		// Begun before, by this process or one before it, and nothing is known of its end.
		return nil, fault.New(fault.Conflict, "%s", say(req.GetLanguage(), "it is not known whether this was done; it is not repeated by itself, /screen shows the terminal",
			"无法确定是否已执行，不会自动重复；可用 /screen 查看终端"))
	}
	c := &control{Service: s, req: req, seat: seat, out: &butlerv1.ControlResponse{}}
	if sess, err := s.tmux.Find(sessionUser(seat.person)); err == nil && sess.Lost() == nil {
		c.sess = sess
	}
	err := c.do(ctx)
	if err == nil && c.sess != nil {
		c.out.Shell = s.shellState(ctx, c.sess)
		c.footer()
	}
	if err != nil {
		c.out = nil
	}
	// What failed for a moment may be tried again, if it does nothing to what runs.
	if req.GetKey() != "" && (err == nil || fault.ClassOf(err) == fault.User) {
		s.mu.Lock()
		s.done[key] = controlled{at: s.now(), resp: c.out, err: err}
		s.mu.Unlock()
	}
	return c.out, err
}

// footer says in which mode the shell is: that is always visible.
func (c *control) footer() {
	st := c.out.GetShell()
	mode := st.GetMode()
	if p := st.GetProgram(); p != "" {
		mode += " · " + p
	}
	c.out.Text = strings.TrimRight(c.out.Text, "\n") + "\n\n`" + st.GetHost() + " · " + strings.ReplaceAll(mode, "`", "'") + "`"
}

func (c *control) do(ctx context.Context) error {
	text := strings.TrimSpace(c.req.GetText())
	word := firstField(text)
	if f := strings.Fields(text); len(f) > 0 {
		c.args = f[1:]
	}
	if skill := c.skills[word]; skill != nil {
		return c.skill(ctx, skill, text)
	}
	switch word {
	case "/shell":
		return c.shell(ctx)
	case "/help":
		c.out.Text = c.help()
		return nil
	}
	if c.sess == nil {
		return fault.New(fault.NotFound, "%s", c.say("you have no shell on %s; /shell opens one", "你在 %s 上没有 shell；发送 /shell 打开一个", c.host))
	}
	switch word {
	case "/interactive":
		return c.switchMode(ctx, modeInteractive)
	case "/nl":
		return c.switchMode(ctx, modeTalk)
	case "/force-nl":
		return c.switchMode(ctx, modeAlwaysTalk)
	case "/key":
		return c.passOn(ctx)
	case "/kill":
		return c.kill(ctx)
	case "/screen":
		screen, err := c.screen(ctx, c.sess)
		c.out.Text = fenced(cmp.Or(screen, c.say("(the screen is empty)", "（屏幕为空）")))
		return err
	case "/pwd":
		c.out.Text = "`" + c.sess.Dir() + "`"
		return nil
	case "/cancel":
		return c.cancel(ctx)
	case "/jobs":
		return c.jobsList(ctx)
	case "/compact":
		return c.compact(ctx)
	}
	if near := c.mistyped(text); near != "" && atPrompt(stateOf(ctx, c.sess)) {
		return fault.New(fault.Invalid, "%s", c.say("%.30q is no command of the shell; did you mean %s? /help lists them",
			"%.30q 不是 shell 指令；是否想用 %s？/help 列出全部指令", word, near))
	}
	return c.passOn(ctx)
}

// mistyped gives the slash word that a single wrong one probably means, "" for none.
func (s *Service) mistyped(text string) string {
	word := firstField(text)
	if len(word) < 3 || len(word) > 20 || word[0] != '/' || strings.Count(word, "/") > 1 || s.isControl(text) {
		return ""
	}
	best, least := "", 3
	for known := range controls {
		if d := distance(word, known); d < min(least, len(known)/2) || d == least && known < best {
			best, least = known, d
		}
	}
	for known := range s.skills {
		if d := distance(word, known); d < min(least, len(known)/2) || d == least && known < best {
			best, least = known, d
		}
	}
	return best
}

// distance is Levenshtein's, of bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// passOn passes the message to the program in the foreground, and shows the screen.
func (c *control) passOn(ctx context.Context) error {
	was := stateOf(ctx, c.sess)
	var screen string
	var err error
	if in := c.req.GetSealed(); in != nil {
		screen, err = c.passSealed(ctx, c.seat, c.sess, in, c.req.GetLanguage())
	} else {
		screen, err = c.pass(ctx, c.seat, c.sess, c.req.GetText(), c.req.GetLanguage())
	}
	if err != nil {
		return err
	}
	c.out.Text = fenced(cmp.Or(screen, c.say("(the screen is empty)", "（屏幕为空）")))
	switch {
	case c.req.GetSealed() != nil:
		c.out.Text += "\n\n" + c.say("The password was passed on; it is kept nowhere.", "密码已传送，没有保存在任何地方。")
	case was.Password && firstField(c.req.GetText()) != "/key":
		c.out.Text += "\n\n" + c.say("The password was passed on; shell-runner keeps it nowhere. It stands in this conversation: delete that if others can read it.",
			"密码已传送，shell-runner 不会保存它。它仍在本次对话中：若他人可见，请删除对话。")
	}
	return nil
}

func (c *control) shell(ctx context.Context) error {
	word := ""
	if len(c.args) > 0 {
		word = c.args[0]
	}
	switch {
	case len(c.args) > 1 || word != "" && word != "off" && word != "status" && word != c.host:
		return fault.New(fault.Invalid, "%s", c.say("use /shell, /shell off or /shell status; this host is %s", "用法：/shell、/shell off 或 /shell status；本主机为 %s", c.host))
	case word == "off":
		c.out.Attach = "off"
		c.seat.detach(c.req.GetConversationId())
		c.out.Text = c.say("This conversation is not attached to the shell any more. The shell lives on; /shell attaches again.",
			"本次对话已脱离 shell。shell 仍保留；发送 /shell 可再次接入。")
		return nil
	case word == "status":
		return c.status(ctx)
	}
	made := c.sess == nil
	sess, err := c.tmux.Session(ctx, sessionUser(c.seat.person))
	if err != nil {
		return err
	}
	c.sess, c.out.Attach = sess, "on"
	var b strings.Builder
	if made {
		b.WriteString(c.say("Opened the shell `%s` on **%s**, in `%s`. ", "已在 **%[2]s** 上打开 shell `%[1]s`，目录 `%[3]s`。", sess.Name(), c.host, sess.Dir()))
	} else {
		b.WriteString(c.say("Attached to the shell `%s` on **%s**, in `%s`. ", "已接入 **%[2]s** 上的 shell `%[1]s`，目录 `%[3]s`。", sess.Name(), c.host, sess.Dir()))
	}
	b.WriteString(c.say("Command lines run here; `!` before a text makes it one. Anything else is for me. `/help` lists what there is, `/shell off` leaves.",
		"命令行会在此执行；以 `!` 开头的文本一律作为命令，其他内容由我处理。`/help` 列出指令，`/shell off` 退出。"))
	for _, w := range c.tmux.Warnings() {
		b.WriteString("\n\n> ⚠ " + w)
	}
	if c.settings.Load().GuardDisabled {
		b.WriteString("\n\n> ⚠ " + c.say("the command guard is off (guardrail.enabled)", "命令防护已关闭（guardrail.enabled）"))
	}
	c.out.Text = b.String()
	return nil
}

func (c *control) status(ctx context.Context) error {
	if c.sess == nil {
		c.out.Text = c.say("You have no shell on %s; `/shell` opens one.", "你在 %s 上没有 shell；发送 `/shell` 打开一个。", c.host)
		return nil
	}
	st := c.shellState(ctx, c.sess)
	quiet, working := c.sess.Idle()
	rows := [][2]string{
		{c.say("shell", "会话"), "`" + st.GetName() + "`"}, {c.say("host", "主机"), c.host}, {c.say("directory", "目录"), "`" + st.GetDir() + "`"},
		{c.say("state", "状态"), st.GetState()}, {c.say("mode", "模式"), st.GetMode()},
	}
	if p := st.GetProgram(); p != "" {
		rows = append(rows, [2]string{c.say("program", "前台程序"), "`" + p + "`"})
	}
	if st.GetPassword() {
		rows = append(rows, [2]string{c.say("waits for", "等待"), c.say("a password", "密码")})
	}
	if !working {
		left := max(0, c.settings.Load().IdleTimeout-quiet).Round(time.Second)
		rows = append(rows, [2]string{c.say("closes when idle for another", "再闲置多久后关闭"), left.String()})
	}
	attached := c.say("no", "否")
	if c.req.GetAttached() {
		attached = c.say("yes", "是")
	}
	rows = append(rows, [2]string{c.say("this conversation is attached", "本次对话已接入"), attached})
	c.out.Text = table(rows)
	return nil
}

// table writes names and values as a Markdown list.
func table(rows [][2]string) string {
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "- %s: %s\n", r[0], r[1])
	}
	return b.String()
}

func (c *control) switchMode(ctx context.Context, choice modeChoice) error {
	st := stateOf(ctx, c.sess)
	before, _ := c.seat.mode(st)
	c.seat.choose(choice, st)
	after, _ := c.seat.mode(st)
	if before != after {
		c.metrics.switched(after)
	}
	switch choice {
	case modeInteractive:
		c.out.Text = c.say("Interactive: what you write goes to the program in the foreground; at the prompt every line is a command, which the guard judges as ever. `/nl` ends it.",
			"交互模式：你输入的内容会传给前台程序；在提示符下每一行都是命令，仍由防护检查。`/nl` 退出。")
	case modeTalk:
		c.out.Text = c.say("Natural language: what you write is for me.", "自然语言模式：你输入的内容由我处理。")
		if !atPrompt(st) {
			c.out.Text += " " + c.say("`%s` stays in the foreground; `/interactive` goes back to it.", "`%s` 仍在前台；`/interactive` 返回。", st.Foreground.Name)
		}
	case modeAlwaysTalk, modeAuto:
		c.out.Text = c.say("Natural language, whatever runs in the foreground, until `/interactive` or `/nl`.",
			"强制自然语言模式：无论前台运行什么，直到 `/interactive` 或 `/nl`。")
	}
	return nil
}

func (c *control) kill(ctx context.Context) error {
	st := stateOf(ctx, c.sess)
	if err := c.sess.KillForeground(ctx); err != nil {
		if fault.CodeOf(err) == fault.NotFound {
			c.out.Text = c.say("Nothing runs in the foreground: nothing was killed.", "前台没有运行任何程序：未终止任何进程。")
			return nil
		}
		return err
	}
	c.settle(ctx)
	c.out.Text = c.say("Killed `%s` (process %d) and its process group with SIGKILL; what it had not saved is lost.",
		"已用 SIGKILL 终止 `%s`（进程 %d）及其进程组；未保存的内容已丢失。", st.Foreground.Name, st.Foreground.PID)
	return nil
}

// settle waits until the session is quiet for a moment.
func (c *control) settle(ctx context.Context) {
	wait, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	c.sess.Settle(wait, settleQuiet)
}

func (c *control) cancel(ctx context.Context) error {
	st := stateOf(ctx, c.sess)
	if atPrompt(st) {
		c.out.Text = c.say("Nothing runs in the foreground.", "前台没有运行任何程序。")
		return nil
	}
	if err := c.sess.Keys(ctx, "C-c"); err != nil {
		return err
	}
	c.settle(ctx)
	what := cmp.Or(st.Foreground.Name, c.say("the command", "该命令"))
	if atPrompt(stateOf(ctx, c.sess)) {
		c.out.Text = c.say("Interrupted `%s` (C-c): it ended.", "已中断 `%s`（C-c）：它已结束。", what)
	} else {
		c.out.Text = c.say("Sent C-c to `%s`, and it is still there: `/kill` ends it at once.", "已向 `%s` 发送 C-c，但它仍在运行：`/kill` 可立即终止。", what)
	}
	return nil
}

// acts says whether a message does something to what runs, so that it must not be done twice.
func acts(text string) bool {
	word, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	switch {
	case !strings.HasPrefix(word, "/") || strings.HasPrefix(word, "//"):
		return true
	default:
		return word == "/key" || word == "/kill" || word == "/cancel"
	}
}

// noteControl writes down that a call begins; false when it was begun before. The note outlives the process.
func (s *Service) noteControl(key string) bool {
	sum := sha256.Sum256([]byte(key))
	f, err := os.OpenFile(filepath.Join(s.controlFolder(), hex.EncodeToString(sum[:16])), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false
	}
	if err != nil {
		s.log.Warn("a call could not be noted; it may be done twice after a restart", "error", err)
		return true
	}
	_ = f.Close()
	return true
}

// forgetNotes removes the notes of calls that nobody repeats any more.
func (s *Service) forgetNotes() {
	files, _ := os.ReadDir(s.controlFolder())
	for _, f := range files {
		if info, err := f.Info(); err == nil && s.now().Sub(info.ModTime()) > 2*time.Hour {
			_ = os.Remove(filepath.Join(s.controlFolder(), f.Name()))
		}
	}
}

func (s *Service) controlFolder() string { return filepath.Join(s.state, "controls") }
