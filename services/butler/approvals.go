package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/butler/client"
	"github.com/butlerhub/butler/services/butler/terminal"
)

func (a *app) approvalsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approvals",
		Short: "Requests for approval: list, show, approve, deny, watch",
		Long: `What Butler wants to do and somebody has to allow. A request is named by its code, such as K7QF, while it is
pending, or by its id.`,
		Example: `  butler approvals list
  butler approvals show K7QF
  butler approvals approve K7QF
  butler approvals approve K7QF --edit "rm -r /srv/cache/old"
  butler approvals deny K7QF --reason "not on a Friday"
  butler approvals watch`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.approvalsList(), a.approvalsShow(), a.approvalsApprove(), a.approvalsDeny(), a.approvalsWatch())
	return cmd
}

// approvalStatuses are what the list can be asked for, as its help names them.
var approvalStatuses = []string{"pending", "approved", "denied", "expired", "withdrawn", "refused", "all"}

func (a *app) approvalsList() *cobra.Command {
	var filter client.ApprovalFilter
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List requests, newest first",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if filter.Limit < 1 || filter.Limit > 200 {
				return usagef("--limit must be from 1 to 200")
			}
			if !slices.Contains(approvalStatuses, strings.ToLower(filter.Status)) {
				return usagef("--status must be %s or all, not %q", strings.Join(approvalStatuses[:len(approvalStatuses)-1], ", "), filter.Status)
			}
			if strings.EqualFold(filter.Status, "all") {
				filter.Status = ""
			}
			return a.with(func(ctx context.Context, c *client.Client) error {
				page, err := c.Approvals(ctx, filter)
				if err != nil {
					return err
				}
				if page.Stale {
					fmt.Fprintf(a.err, "butler: %s\n", a.say("the approval service does not answer: this list may be out of date, and nothing can be decided now",
						"审批服务没有响应：此列表可能不是最新的，现在也无法审批"))
				}
				if a.json {
					return a.printJSON(page.Raw)
				}
				none := a.say("There are no such requests.", "没有这样的请求。")
				if filter.Status == "pending" {
					none = a.say("No request waits for a decision.", "没有等待决定的请求。")
				}
				return a.table("CODE\tSTATUS\tASKED\tFOR\tRISK\tWHERE\tCOMMAND", none, func(row func(...any)) {
					for _, r := range page.Items {
						status := r.Status
						if r.Pending() && r.MayDecide {
							status += " *"
						}
						row(r.Code, status, when(r.RequestedAt), r.Requester.Name, r.Risk, where(r), clip(visibleText(r.Command), 60))
					}
				})
			})
		},
	}
	cmd.Flags().StringVarP(&filter.Status, "status", "s", "pending", "pending, approved, denied, expired, withdrawn, refused or all")
	cmd.Flags().IntVarP(&filter.Limit, "limit", "n", 50, "at most so many")
	cmd.Long = "Lists the requests that concern you, newest first. Those marked with * wait for you."
	return cmd
}

func (a *app) approvalsShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show CODE|ID",
		Short: "Show a request with all that is known of it",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.with(func(ctx context.Context, c *client.Client) error {
				r, raw, err := c.Approval(ctx, args[0])
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(raw)
				}
				a.printApproval(r)
				return nil
			})
		},
	}
}

func (a *app) approvalsApprove() *cobra.Command {
	var d client.Decision
	cmd := &cobra.Command{
		Use:   "approve CODE|ID",
		Short: "Allow a request, as it is or with another command",
		Long: `Allows exactly what the request says now, once. With --edit another command is run instead of the one that was
asked for; everybody sees that it was changed.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("edit") && strings.TrimSpace(d.Command) == "" {
				return usagef("--edit needs the command to run instead")
			}
			d.Approved = true
			return a.decide(args[0], d)
		},
	}
	cmd.Flags().StringVarP(&d.Command, "edit", "e", "", "run this command instead")
	cmd.Flags().StringVarP(&d.Reason, "reason", "r", "", "why, for the record")
	return cmd
}

func (a *app) approvalsDeny() *cobra.Command {
	var d client.Decision
	cmd := &cobra.Command{
		Use:   "deny CODE|ID",
		Short: "Deny a request; Butler reads the reason",
		Args:  cobra.ExactArgs(1),
		RunE:  func(_ *cobra.Command, args []string) error { return a.decide(args[0], d) },
	}
	cmd.Flags().StringVarP(&d.Reason, "reason", "r", "", "why not; Butler reads it and can try something else")
	return cmd
}

// decide decides about a request as it stands now: when it is changed in between, nothing is decided.
func (a *app) decide(id string, d client.Decision) error {
	return a.with(func(ctx context.Context, c *client.Client) error {
		r, _, err := c.Approval(ctx, id)
		if err != nil && fault.CodeOf(err) != fault.NotFound {
			return err
		}
		if err == nil {
			d.Digest = r.Digest
			id = r.ID
		} // what one may not see, one may not decide either; the server says so, and keeps it
		r, raw, err := c.Decide(ctx, id, d)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(raw)
		}
		fmt.Fprintf(a.out, "%s %s: %s\n", r.Code, a.approvalWords(r), commandLine(r))
		return nil
	})
}

func (a *app) approvalsWatch() *cobra.Command {
	return &cobra.Command{
		Use:   "watch",
		Short: "Follow requests as they come, and decide about them",
		Long: `Shows the requests that are pending, and what comes and changes from now on, until Ctrl-C. In a terminal it asks
about each that waits for you: y approves, n denies, Enter leaves it for later; a reason may follow on the same line, as in
“n not today”. What others have to decide is shown, and not asked about.
With --json each line is one request as it stands.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, typed := terminalOf(a.in)
			_, shown := terminalOf(a.out)
			return a.with(func(ctx context.Context, c *client.Client) error {
				err := a.watch(ctx, c, typed && shown && !a.json, answerPause)
				if ctx.Err() != nil {
					return nil //nolint:nilerr // to leave is no failure
				}
				return err
			})
		},
	}
}

// watchBuffer is how much news may wait while a person thinks.
const watchBuffer = 1000

// approvalNews is one change of a request.
type approvalNews struct {
	request client.Approval
	raw     json.RawMessage
}

// answerPause is how long a question must have stood on the screen before an answer counts: what was typed for the one
// before must not decide about another.
const answerPause = 700 * time.Millisecond

// watch shows news until ctx ends. When asking, it asks about what waits for the person.
func (a *app) watch(ctx context.Context, c *client.Client, asking bool, pause time.Duration) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	news := make(chan approvalNews, watchBuffer)
	broken := make(chan error, 1)
	feed, err := c.Feed(ctx, client.FeedOptions{
		Approval: func(r client.Approval, raw json.RawMessage) {
			select {
			case news <- approvalNews{r, raw}:
			case <-ctx.Done():
			}
		},
		Lost: func(error) {
			fmt.Fprintln(a.err, "butler: "+a.say("connection lost, trying again…", "连接已断开，正在重试……"))
		},
		Back:  func() { fmt.Fprintln(a.err, "butler: "+a.say("connected again", "已重新连接")) },
		Ended: func(err error) { broken <- err },
	})
	if err != nil {
		return err
	}
	defer func() { leave(); feed.Close() }() // the feed waits for whom it tells
	if !a.json {
		fmt.Fprintf(a.err, a.say("butler: watching requests for approval at %s; Ctrl-C leaves\n", "butler: 正在关注 %s 的审批请求，Ctrl-C 离开\n"), c.Server())
	}
	w := &watching{app: a, client: c, pause: pause, seen: map[string]client.Approval{}}
	if asking {
		w.lines = readLines(a.in)
	}
	for {
		var next *client.Approval
		if len(w.open) > 0 && asking {
			next = &w.open[0]
			w.prompt(*next)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-broken:
			return err
		case n := <-news:
			w.tell(n)
		case line, ok := <-w.lines:
			if !ok {
				return nil // Ctrl-D
			}
			if next != nil {
				w.answer(ctx, *next, line)
			} else {
				w.unasked(line)
			}
		}
	}
}

// watching is one run of `butler approvals watch`.
type watching struct {
	app      *app
	client   *client.Client
	pause    time.Duration
	lines    <-chan string
	seen     map[string]client.Approval
	open     []client.Approval // that wait for this person, the oldest first
	prompted string            // about which request the question stands on the screen
	about    string            // as prompted, but kept while other news are shown
	since    time.Time         // when about began
}

func (w *watching) tell(n approvalNews) {
	r, before := n.request, w.seen[n.request.ID]
	if before.ID != "" && before.Status == r.Status && before.Version == r.Version && before.MayDecide == r.MayDecide {
		return
	}
	w.seen[r.ID] = r
	if w.app.json {
		fmt.Fprintf(w.app.out, "%s\n", n.raw)
		return
	}
	if w.prompted != "" {
		fmt.Fprintln(w.app.out)
		w.prompted = ""
	}
	at := 0
	for _, o := range w.open {
		if o.ID != r.ID {
			w.open[at] = o
			at++
		}
	}
	w.open = w.open[:at]
	switch {
	case r.Pending() && (before.ID == "" || before.Digest != r.Digest):
		w.app.printApproval(r)
		fmt.Fprintln(w.app.out)
	default:
		fmt.Fprintf(w.app.out, "%s %s: %s\n", r.Code, w.app.approvalWords(r), commandLine(r))
	}
	switch {
	case r.Pending() && r.MayDecide:
		w.open = append(w.open, r)
	case r.Pending():
		fmt.Fprintf(w.app.out, "%s: %s\n", r.Code, w.app.othersDecide(r))
	}
}

// unasked says of what was typed while no question stood there that it decides nothing.
func (w *watching) unasked(line string) {
	if strings.TrimSpace(line) == "" {
		return
	}
	fmt.Fprintln(w.app.out, w.app.say("Nothing here waits for your word, so nothing was decided.", "这里没有等待您决定的请求，什么也没有决定。"))
	for _, r := range w.seen {
		if r.Pending() && !r.MayDecide {
			fmt.Fprintf(w.app.out, "%s: %s\n", r.Code, w.app.othersDecide(r))
		}
	}
}

func (w *watching) prompt(r client.Approval) {
	if w.prompted == r.ID {
		return
	}
	w.prompted = r.ID
	if w.about != r.ID {
		w.about, w.since = r.ID, time.Now()
	}
	fmt.Fprintf(w.app.out, w.app.say("Allow %s? [y/n, a reason may follow: n not today; Enter for later] ",
		"允许 %s 吗？[y/n，可加理由：n 今天不行；回车表示稍后] "), r.Code)
}

// answer takes what a person typed about a request.
func (w *watching) answer(ctx context.Context, r client.Approval, line string) {
	w.prompted = ""
	if time.Since(w.since) < w.pause {
		fmt.Fprintln(w.app.out, w.app.say("That was typed before this question could be read; answer again.", "这是在看清问题之前输入的，请重新回答。"))
		return
	}
	w.about = ""
	word, reason, _ := strings.Cut(strings.TrimSpace(line), " ")
	d := client.Decision{Digest: r.Digest, Reason: strings.TrimSpace(reason)}
	switch strings.ToLower(word) {
	case "y", "yes", "approve", "是", "确认":
		d.Approved = true
	case "n", "no", "deny", "否", "取消":
	default:
		w.open = w.open[1:] // later: `butler approvals list` has it
		return
	}
	w.open = w.open[1:]
	if _, _, err := w.client.Decide(ctx, r.ID, d); err != nil && ctx.Err() == nil {
		fmt.Fprintf(w.app.err, "butler: %s: %s\n", r.Code, w.app.sentence(err))
		if fault.ClassOf(err) == fault.Transient {
			w.open = append([]client.Approval{r}, w.open...)
		}
	} // what was decided comes as news
}

// readLines gives the lines of a terminal until its end.
func readLines(in io.Reader) <-chan string {
	lines := make(chan string)
	go func() { // ends with the process: reading a terminal cannot be broken off
		defer close(lines)
		s := bufio.NewScanner(in)
		for s.Scan() {
			lines <- s.Text()
		}
	}()
	return lines
}

// nameWidth is how wide the names of a request's fields are, in columns.
const nameWidth = 10

// printApproval shows a request to a person.
func (a *app) printApproval(r client.Approval) {
	row := func(en, zh, value string) {
		if value == "" {
			return
		}
		name, columns := a.say(en, zh), 0
		for _, c := range name {
			columns += terminal.Columns(c)
		}
		fmt.Fprintf(a.out, "  %s%s %s\n", name, strings.Repeat(" ", max(0, nameWidth-columns)),
			strings.ReplaceAll(visibleText(value), "\n", "\n"+strings.Repeat(" ", nameWidth+3)))
	}
	head := fmt.Sprintf("%s  %s", r.Code, a.approvalWords(r))
	if r.Pending() && r.DecideBy != nil {
		head += fmt.Sprintf(a.say(", %s left", "，还有 %s"), time.Until(*r.DecideBy).Round(time.Second))
	}
	fmt.Fprintln(a.out, oneLine(head))
	row("command", "命令", r.Command)
	row("where", "位置", where(r))
	row("program", "程序", r.Program)
	row("for", "请求人", r.Requester.Name+a.say(", ", "，")+map[string]string{
		"person": a.say("who typed it", "本人输入"), "model": a.say("proposed by the model", "由模型提出"), "agent": a.say("proposed by an agent", "由代理提出"),
	}[r.Proposer])
	row("why", "原因", r.Why)
	row("risk", "风险", r.Risk)
	for _, reason := range r.Reasons {
		row("", "", "- "+a.say(reason.Text, cmp.Or(reason.TextZH, reason.Text)))
	}
	for _, u := range r.Untrusted {
		row("beware", "注意", fmt.Sprintf(a.say("text from outside came before, from %s: %s", "此前读到了外部文本，来自 %s：%s"), u.Name, clip(u.Excerpt, 200)))
	}
	for _, e := range r.Edits {
		row("edited", "修改", fmt.Sprintf(a.say("%s changed it; before: %s", "%s 修改过；之前是：%s"), e.By.Name, e.Command))
	}
	for _, d := range r.Decisions {
		who, said := cmp.Or(d.By.Name, a.say("the policy", "策略")), a.say("approved", "已批准")
		if !d.Approved {
			said = a.say("denied", "已拒绝")
		}
		text := fmt.Sprintf("%s %s %s", who, said, when(d.At))
		if d.Reason != "" {
			text += a.say(": ", "：") + d.Reason
		}
		row("decided", "决定", text)
	}
	row("failure", "失败", r.Failure)
	if r.Outcome != nil {
		row("output", "输出", strings.TrimRight(r.Outcome.Output, "\n"))
	}
	row("id", "id", r.ID)
}

// othersDecide says who decides about a request that is not this person's to decide.
func (a *app) othersDecide(r client.Approval) string {
	who := a.say("not yours to decide; somebody whom the policy allows has to", "不由您决定，需由策略允许的人决定")
	if r.Rule != "" {
		who = fmt.Sprintf(a.say("not yours to decide; those decide whom the policy's rule “%s” names", "不由您决定，由策略规则“%s”指定的人决定"), r.Rule)
	}
	if r.Quorum > 1 {
		who += fmt.Sprintf(a.say(" (%d of %d agreed)", "（%d/%d 人已同意）"), r.Agreed, r.Quorum)
	}
	return oneLine(who)
}

// where says where a request would be done.
func where(r client.Approval) string {
	if r.Kind == "agent" {
		return "agent " + r.Agent
	}
	out := r.Host
	if r.User != "" {
		out = r.User + "@" + out
	}
	if r.Dir != "" {
		out += ":" + r.Dir
	}
	return out
}

// commandLine is a request in one line.
func commandLine(r client.Approval) string {
	return fmt.Sprintf("%s (%s)", clip(oneLine(visibleText(r.Command)), 120), oneLine(where(r)))
}

// approvalWords says how a request stands.
func (a *app) approvalWords(r client.Approval) string {
	switch r.Status {
	case "PENDING":
		if r.Quorum > 1 {
			return fmt.Sprintf(a.say("pending, %d of %d agreed", "等待中，%d/%d 人已同意"), r.Agreed, r.Quorum)
		}
		return a.say("pending", "等待中")
	case "APPROVED":
		return a.say("approved", "已批准")
	case "REJECTED":
		return a.say("denied", "已拒绝")
	case "EXPIRED":
		return a.say("expired: nobody decided in time", "已过期：没有人及时决定")
	case "WITHDRAWN":
		return a.say("withdrawn", "已撤回")
	case "REFUSED":
		return a.say("refused by the policy", "被策略拒绝")
	case "EXECUTING":
		return a.say("is running", "正在运行")
	case "EXECUTED":
		if r.Outcome != nil && r.Outcome.StatusKnown {
			return fmt.Sprintf(a.say("ended with exit status %d", "已结束，退出码 %d"), r.Outcome.ExitStatus)
		}
		return a.say("ended", "已结束")
	case "FAILED":
		return a.say("was approved and not run", "已批准但没有运行")
	case "UNKNOWN":
		return a.say("has an unknown outcome: it may have run", "结果未知：可能已经运行")
	}
	return strings.ToLower(r.Status)
}

// visibleText writes characters that a terminal would hide, or obey, as escapes. Line breaks stay.
func visibleText(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// clip cuts a text for one line.
func clip(s string, most int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
