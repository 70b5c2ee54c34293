package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/butler/client"
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
			if filter.Status == "all" {
				filter.Status = ""
			}
			return a.with(func(ctx context.Context, c *client.Client) error {
				page, err := c.Approvals(ctx, filter)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(page.Raw)
				}
				return a.table("CODE\tSTATUS\tASKED\tFOR\tRISK\tWHERE\tCOMMAND", func(row func(...any)) {
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
		fmt.Fprintf(a.out, "%s %s: %s\n", r.Code, approvalWords(r), commandLine(r))
		return nil
	})
}

func (a *app) approvalsWatch() *cobra.Command {
	return &cobra.Command{
		Use:   "watch",
		Short: "Follow requests as they come, and decide about them",
		Long: `Shows the requests that are pending, and what comes and changes from now on, until Ctrl-C. In a terminal it asks
about each that waits for you: y approves, n denies (with a reason, if you like), Enter leaves it for later.
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
		Lost:  func(error) { fmt.Fprintln(a.err, "butler: connection lost, trying again…") },
		Back:  func() { fmt.Fprintln(a.err, "butler: connected again") },
		Ended: func(err error) { broken <- err },
	})
	if err != nil {
		return err
	}
	defer func() { leave(); feed.Close() }() // the feed waits for whom it tells
	if !a.json {
		fmt.Fprintf(a.err, "butler: watching requests for approval at %s; Ctrl-C leaves\n", c.Server())
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
			} // what was typed before a question stood there answers none
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
		fmt.Fprintf(w.app.out, "%s %s: %s\n", r.Code, approvalWords(r), commandLine(r))
	}
	if r.Pending() && r.MayDecide {
		w.open = append(w.open, r)
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
	fmt.Fprintf(w.app.out, "Allow %s? [y/n, Enter for later] ", r.Code)
}

// answer takes what a person typed about a request.
func (w *watching) answer(ctx context.Context, r client.Approval, line string) {
	w.prompted = ""
	if time.Since(w.since) < w.pause {
		fmt.Fprintln(w.app.out, "That was typed before this question could be read; answer again.")
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
		fmt.Fprintf(w.app.err, "butler: %s: %s\n", r.Code, sentence(err))
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

// printApproval shows a request to a person.
func (a *app) printApproval(r client.Approval) {
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(a.out, "  %-10s %s\n", name, strings.ReplaceAll(visibleText(value), "\n", "\n             "))
		}
	}
	head := fmt.Sprintf("%s  %s", r.Code, approvalWords(r))
	if r.Pending() && r.DecideBy != nil {
		head += fmt.Sprintf(", %s left", time.Until(*r.DecideBy).Round(time.Second))
	}
	fmt.Fprintln(a.out, oneLine(head))
	row("command", r.Command)
	row("where", where(r))
	row("program", r.Program)
	row("for", r.Requester.Name+", "+map[string]string{"person": "who typed it", "model": "proposed by the model", "agent": "proposed by an agent"}[r.Proposer])
	row("why", r.Why)
	row("risk", r.Risk)
	for _, reason := range r.Reasons {
		text := reason.Text
		if a.language() == "zh" {
			text = cmp.Or(reason.TextZH, text)
		}
		row("", "- "+text)
	}
	for _, u := range r.Untrusted {
		row("beware", fmt.Sprintf("text from outside came before, from %s: %s", u.Name, clip(u.Excerpt, 200)))
	}
	for _, e := range r.Edits {
		row("edited", fmt.Sprintf("%s changed it; before: %s", e.By.Name, e.Command))
	}
	for _, d := range r.Decisions {
		who, said := cmp.Or(d.By.Name, "the policy"), "approved"
		if !d.Approved {
			said = "denied"
		}
		text := fmt.Sprintf("%s %s %s", who, said, when(d.At))
		if d.Reason != "" {
			text += ": " + d.Reason
		}
		row("decided", text)
	}
	row("failure", r.Failure)
	if r.Outcome != nil {
		row("output", strings.TrimRight(r.Outcome.Output, "\n"))
	}
	row("id", r.ID)
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
func approvalWords(r client.Approval) string {
	switch r.Status {
	case "PENDING":
		if r.Quorum > 1 {
			return fmt.Sprintf("pending, %d of %d agreed", r.Agreed, r.Quorum)
		}
		return "pending"
	case "REJECTED":
		return "denied"
	case "EXPIRED":
		return "expired: nobody decided in time"
	case "REFUSED":
		return "refused by the policy"
	case "EXECUTING":
		return "is running"
	case "EXECUTED":
		if r.Outcome != nil && r.Outcome.StatusKnown {
			return fmt.Sprintf("ended with exit status %d", r.Outcome.ExitStatus)
		}
		return "ended"
	case "FAILED":
		return "was approved and not run"
	case "UNKNOWN":
		return "has an unknown outcome: it may have run"
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
