package brain

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/approval"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

// words are what people read about commands, in one language.
type words struct{ zh bool }

func wordsIn(language string) words { return words{model.Chinese(language)} }

func (w words) pick(en, zh string) string {
	if w.zh {
		return zh
	}
	return en
}

// Bounds of what is repeated in a sentence, in characters.
const (
	shownCommand = 500
	shownReason  = 1000
)

// waits says that a request waits: what, where, why, for whom, and how and until when it is decided.
func (w words) waits(a *butlerv1.Approval, now time.Time) string {
	e := a.GetEffect()
	var b strings.Builder
	fmt.Fprintf(&b, w.pick("Waiting for approval **%s** on %s:\n\n%s\n", "等待批准 **%s**（%s）：\n\n%s\n"),
		a.GetCode(), place(e), fence("", firstRunes(visible(a), shownCommand)))
	for _, r := range w.reasons(a.GetRisk()) {
		fmt.Fprintf(&b, "- %s\n", r)
	}
	fmt.Fprintf(&b, w.pick("\n%s may decide: `approve %s`, or `deny %s` and why.", "\n%s可以决定：`确认 %s`，或 `取消 %s` 加理由。"),
		w.deciders(a), a.GetCode(), a.GetCode())
	if by := a.GetDecideBy(); by.IsValid() && by.GetSeconds() > 0 {
		left := max(by.AsTime().Sub(now), 0).Round(time.Second)
		fmt.Fprintf(&b, w.pick(" It waits until %s (%s).", "截止 %s（还有 %s）。"), by.AsTime().UTC().Format("15:04:05 MST"), left)
	}
	return b.String() + "\n\n"
}

// deciders names who may decide.
func (w words) deciders(a *butlerv1.Approval) string {
	p := a.GetPolicy()
	var who []string
	if p.GetRequester() == approval.RequesterAlways {
		who = append(who, w.pick("you", "您"))
	}
	for _, r := range p.GetRoles() {
		who = append(who, w.pick("an "+r, r))
	}
	if len(p.GetPeople()) > 0 {
		who = append(who, w.pick("people whom the policy names", "策略指定的人"))
	}
	if len(who) == 0 {
		who = append(who, w.pick("whoever the policy allows", "策略允许的人"))
	}
	out := strings.Join(who, w.pick(" or ", "或 "))
	if q := p.GetQuorum(); q > 1 {
		out = fmt.Sprintf(w.pick("%d different people of: %s", "%d 位不同的人（%s）"), q, out)
	}
	if r, n := utf8.DecodeRuneInString(out); n > 0 {
		out = string(unicode.ToUpper(r)) + out[n:]
	}
	return out
}

func (w words) reasons(r *butlerv1.Risk) []string {
	var out []string
	for _, reason := range r.GetReasons() {
		if len(out) == 5 {
			break
		}
		text := reason.GetText()
		if w.zh && reason.GetTextZh() != "" {
			text = reason.GetTextZh()
		}
		out = append(out, firstRunes(text, shownReason))
	}
	return out
}

// because gives the reasons of a risk as the end of a sentence.
func (w words) because(r *butlerv1.Risk) string {
	reasons := w.reasons(r)
	if len(reasons) == 0 {
		return w.pick(".", "。")
	}
	return w.pick(": ", "：") + strings.Join(reasons, w.pick("; ", "；"))
}

func (w words) unreachable(host string) string {
	if host == "" {
		return w.pick("Approval or the shell does not answer now; I keep trying. Stop this message to give it up.\n\n",
			"批准服务或终端暂时没有响应，我会继续尝试；停止此消息即可放弃。\n\n")
	}
	return fmt.Sprintf(w.pick("Approval or the shell of %s does not answer now; I keep trying. Stop this message to give it up.\n\n",
		"批准服务或 %s 的终端暂时没有响应，我会继续尝试；停止此消息即可放弃。\n\n"), host)
}

// goesOn tells that a command has not ended: it runs, or it waits for what the person writes.
func (w words) goesOn(a *butlerv1.Approval, res *butlerv1.ExecuteResponse, after time.Duration) string {
	command, shell := inline(a.GetEffect().GetCommand()), res.GetShell()
	switch {
	case shell.GetPassword():
		return fmt.Sprintf(w.pick("\n`%s` waits for a password. What you write next goes to it, sealed: it is kept nowhere. `/cancel` interrupts it.\n\n",
			"\n`%s` 正在等待密码。接下来输入的内容会加密传给它，不会保存在任何地方。`/cancel` 可中断。\n\n"), command)
	case shell.GetState() == "blocked":
		return fmt.Sprintf(w.pick("\n`%s` waits for a line. What you write next goes to it; `/cancel` interrupts it.\n\n",
			"\n`%s` 正在等待输入。接下来输入的内容会传给它；`/cancel` 可中断。\n\n"), command)
	case shell.GetMode() == "interactive":
		return fmt.Sprintf(w.pick("\n`%s` is in the foreground. What you write next goes to it, `/key` presses keys, `/screen` shows it, `/nl` talks to me meanwhile.\n\n",
			"\n`%s` 正在前台运行。接下来输入的内容会传给它；`/key` 发送按键，`/screen` 查看屏幕，`/nl` 可先与我对话。\n\n"), command)
	}
	if took := duration(res.GetOutcome()); took > 0 {
		after = took.Round(time.Second)
	}
	return fmt.Sprintf(w.pick("\n`%s` still runs after %s and goes on; the answer comes when it ends. `/cancel`, or stopping this message, interrupts it.\n\n",
		"\n`%s` 已运行 %s，仍在继续；结束后会给出结果。发送 `/cancel` 或停止此消息会中断它。\n\n"), command, after)
}

func (w words) detached() string {
	return w.pick("This conversation is not attached to the shell any more. The shell itself could not be asked; it goes on as it is.",
		"此会话已与终端分离。终端服务没有响应，终端本身保持原样。")
}

func (w words) noShell(host string) string {
	return fmt.Sprintf(w.pick("Nothing was run: the shell of %s does not answer now. Try again in a moment; `/shell off` makes this an ordinary conversation.",
		"没有运行任何命令：%s 的终端暂时没有响应。请稍后再试；`/shell off` 可切回普通会话。"), host)
}

func (w words) noApproval() string {
	return w.pick("Your decision was not passed on: the approval service does not answer now. Please say it again in a moment.",
		"您的决定没有送达：批准服务暂时没有响应。请稍后再说一次。")
}

func (w words) decisionUnknown() string {
	return w.pick("I was interrupted while I passed your decision on, and do not know whether it arrived. If the request still waits, decide it with its code.",
		"传达您的决定时被中断，无法确定是否送达。如果请求仍在等待，请连同编号再说一次。")
}

func (w words) withdrawn(n int) string {
	if n == 1 {
		return w.pick("The request for approval was withdrawn; nothing of it was run.", "批准请求已撤回，没有运行。")
	}
	return fmt.Sprintf(w.pick("%d requests for approval were withdrawn; nothing of them was run.", "%d 个批准请求已撤回，没有运行。"), n)
}

func (w words) mayRun(command, host string) string {
	return fmt.Sprintf(w.pick("%s may still be running on %s: `/screen` shows it, `/key C-c` interrupts it.",
		"%s 可能仍在 %s 上运行：`/screen` 查看，`/key C-c` 中断。"), w.named(command), host)
}

func (w words) notBegun(command string) string {
	return fmt.Sprintf(w.pick("%s had not begun.", "%s 尚未开始。"), w.named(command))
}

func (w words) interrupted(command, host string) string {
	return fmt.Sprintf(w.pick("%s was running on %s; it was sent Ctrl-C. `/screen` shows what became of it.",
		"%s 正在 %s 上运行，已发送 Ctrl-C。用 `/screen` 查看结果。"), w.named(command), host)
}

func (w words) hadEnded(command string) string {
	return fmt.Sprintf(w.pick("%s had ended already.", "%s 已经结束。"), w.named(command))
}

func (w words) named(command string) string {
	if command == "" {
		return w.pick("The command", "命令")
	}
	return "`" + inline(command) + "`"
}

// result is the answer to what a person typed into the shell.
func (w words) result(r routeOutcome, d deed) string {
	switch d.end {
	case approval.Ended, running:
		return w.output(r, d)
	case approval.Unknown:
		return w.pick("It is not known whether this ran, and it is not repeated by itself", "无法确定是否已运行，不会自动重复") +
			w.after(d.sentence) + w.pick(" `/screen` shows the shell as it is.", " 用 `/screen` 查看终端现状。")
	case byGuard:
		return w.pick("Not run", "未运行") + w.because(d.approval.GetRisk())
	case approval.Refused:
		return w.pick("Not run: the policy refuses it", "未运行：策略拒绝") + w.because(d.approval.GetRisk())
	case approval.Denied:
		by, why := denier(d.approval)
		out := fmt.Sprintf(w.pick("Not run: %s denied it", "未运行：%s 已拒绝"), by)
		if why = strings.TrimSpace(firstRunes(why, shownReason)); why == "" {
			return out + w.after("")
		}
		return out + fmt.Sprintf(w.pick(": “%s”", "：“%s”"), why) // in their words
	case approval.Expired:
		return w.pick("Not run: nobody approved it in time. Send it again to ask anew.", "未运行：未在期限内获得批准。如仍需要，请重新发送。")
	case approval.Withdrawn:
		return w.pick("Not run: the request was withdrawn.", "未运行：请求已撤回。")
	case drifted:
		return w.pick("Not run: what would run changed each time after it was approved. Send it again when the shell is at rest.",
			"未运行：每次批准后，将要执行的内容都发生了变化。请在终端稳定后重新发送。")
	default:
		return w.pick("Not run", "未运行") + w.after(d.sentence)
	}
}

// after gives a sentence of somebody else's as the end of one.
func (w words) after(text string) string {
	text = strings.TrimSpace(firstRunes(text, shownReason))
	if text == "" {
		return w.pick(".", "。")
	}
	return w.pick(": ", "：") + sentence(text)
}

func (w words) output(r routeOutcome, d deed) string {
	o := d.outcome
	var body strings.Builder
	if r.Kind == routeCommand {
		fmt.Fprintf(&body, "$ %s\n", d.approval.GetEffect().GetCommand())
	}
	body.WriteString(o.GetOutput())
	var notes []string
	switch {
	case r.Kind == routeInput: // it is the screen that is shown
	case d.end == running:
		notes = append(notes, w.pick("still running", "仍在运行"))
	case !o.GetStatusKnown():
		notes = append(notes, w.pick("exit status unknown", "退出码未知"))
	default:
		notes = append(notes, fmt.Sprintf(w.pick("exit %d", "退出码 %d"), o.GetExitStatus()))
	}
	if dir := o.GetDir(); dir != "" {
		notes = append(notes, "`"+inline(dir)+"`")
	}
	if r.Kind == routeCommand {
		notes = append(notes, duration(o).String())
	}
	if o.GetTruncated() {
		notes = append(notes, fmt.Sprintf(w.pick("cut: %d bytes in all", "已截断：共 %d 字节"), o.GetOutputBytes()))
	}
	if n := o.GetRedacted(); n > 0 {
		notes = append(notes, fmt.Sprintf(w.pick("%d secrets taken out", "已脱敏 %d 处"), n))
	}
	if by := editor(d.approval); by != "" {
		notes = append(notes, fmt.Sprintf(w.pick("edited by %s", "由 %s 修改"), by))
	}
	return fence("console", body.String()) + strings.Join(notes, " · ")
}

// place says where an effect happens.
func place(e *butlerv1.Effect) string {
	out := e.GetHost()
	if e.GetDir() != "" {
		out += ":" + inline(e.GetDir())
	}
	if e.GetProgram() != "" {
		out += " (" + inline(e.GetProgram()) + ")"
	}
	return "`" + out + "`"
}

// visible gives a command with its invisible characters made visible.
func visible(a *butlerv1.Approval) string {
	if v := a.GetRisk().GetVisible(); v != "" {
		return v
	}
	return a.GetEffect().GetCommand()
}

// denier gives who said no, and why.
func denier(a *butlerv1.Approval) (by, reason string) {
	for _, d := range a.GetDecisions() {
		if !d.GetApproved() {
			by, reason = d.GetBy().GetName(), d.GetReason()
		}
	}
	if by == "" {
		by = "?"
	}
	return by, reason
}

// editor gives who edited a command last.
func editor(a *butlerv1.Approval) string {
	if n := len(a.GetEdits()); n > 0 {
		return a.GetEdits()[n-1].GetBy().GetName()
	}
	return ""
}

// fence puts text into a code block that nothing in it can end.
func fence(language, text string) string {
	longest, n := 0, 0
	for _, r := range text {
		if r != '`' {
			n = 0
			continue
		}
		n++
		longest = max(longest, n)
	}
	marks := strings.Repeat("`", max(3, longest+1))
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return marks + language + "\n" + text + marks + "\n"
}

// inline gives text for between two backquotes: one line, short.
func inline(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '`':
			return '\''
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, text)
	return firstRunes(text, 120)
}

// firstRunes keeps at most n characters and says when there were more.
func firstRunes(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	i := 0
	for pos := range s {
		if i == n {
			return s[:pos] + "…"
		}
		i++
	}
	return s
}

// sentence gives what another service said as a sentence.
func sentence(text string) string {
	text = strings.TrimSpace(text)
	r, n := utf8.DecodeRuneInString(text)
	if n == 0 {
		return text
	}
	if last, _ := utf8.DecodeLastRuneInString(text); !unicode.IsPunct(last) && last != '`' {
		if last > unicode.MaxLatin1 {
			text += "。"
		} else {
			text += "."
		}
	}
	return string(unicode.ToUpper(r)) + text[n:]
}
