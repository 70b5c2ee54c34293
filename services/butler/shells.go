package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/butler/client"
)

func (a *app) shellCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "shell",
		Short: "Shells: list, show, close, log",
		Long: `The shells that Butler keeps for people on its hosts, and what was run in them. Yours; those of others are for
administrators. They are used in a conversation: write /shell in ` + "`butler chat`" + `.`,
		Example: `  butler shell list
  butler shell show
  butler shell close alice
  butler shell log
  butler shell log 6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f57 | less`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.shellList(), a.shellShow(), a.shellClose(), a.shellLog())
	return cmd
}

func (a *app) shellList() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List your shells, or everybody's",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.with(func(ctx context.Context, c *client.Client) error {
				list, raw, err := c.Shells(ctx, 0, all)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(raw)
				}
				a.tellUnreachable(list)
				if len(list.Shells) == 0 {
					fmt.Fprintln(a.out, map[bool]string{true: "Nobody has a shell open.", false: "You have no shell open: write /shell in `butler chat`."}[all])
					return nil
				}
				return a.table("HOST\tPERSON\tSTATE\tMODE\tACTIVE\tDIRECTORY\tRUNS", "", func(row func(...any)) {
					for _, s := range list.Shells {
						row(s.Host, personName(s.Person), s.State, s.Mode, when(s.ActiveAt), visibleText(s.Dir), clip(visibleText(runs(s)), 60))
					}
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "everybody's; for administrators")
	return cmd
}

// tellUnreachable says that a list is not all.
func (a *app) tellUnreachable(list client.ShellList) {
	if len(list.Unreachable) > 0 {
		fmt.Fprintf(a.err, "butler: no answer from %s: shells there are not shown\n", oneLine(strings.Join(list.Unreachable, ", ")))
	}
}

func personName(p client.Somebody) string {
	if p.Name == "" {
		return strconv.FormatInt(p.ID, 10)
	}
	return p.Name
}

// runs says what runs in a shell.
func runs(s client.Shell) string {
	var all []string
	for _, c := range s.Commands {
		all = append(all, c.Command)
	}
	switch {
	case len(all) > 0:
		return strings.Join(all, "; ")
	case s.Program != "":
		return s.Program
	}
	return "–"
}

func (a *app) shellShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show [PERSON]",
		Short: "Show a person's shells: state, mode, directory, what runs",
		Long:  "Shows your shells, or those of a person (name or id), which is for administrators.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.with(func(ctx context.Context, c *client.Client) error {
				u, err := somebody(ctx, c, args)
				if err != nil {
					return err
				}
				list, raw, err := c.Shells(ctx, u.ID, false)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(raw)
				}
				a.tellUnreachable(list)
				if len(list.Shells) == 0 {
					fmt.Fprintf(a.out, "%s has no shell open.\n", oneLine(u.Username))
				}
				for i, s := range list.Shells {
					if i > 0 {
						fmt.Fprintln(a.out)
					}
					a.printShell(s)
				}
				return nil
			})
		},
	}
}

func (a *app) printShell(s client.Shell) {
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(a.out, "  %-10s %s\n", name, oneLine(visibleText(value)))
		}
	}
	fmt.Fprintln(a.out, oneLine(visibleText(fmt.Sprintf("%s on %s (%s)", personName(s.Person), s.Host, s.Name))))
	state := s.State
	if s.Password {
		state += ", a password is asked for"
	}
	row("state", state)
	row("mode", s.Mode)
	row("directory", s.Dir)
	row("program", s.Program)
	for _, c := range s.Commands {
		since := ""
		if c.BeganAt != nil {
			since = fmt.Sprintf(" (for %s)", time.Since(*c.BeganAt).Round(time.Second))
		}
		row("runs", clip(c.Command, 200)+since)
		row("", c.ActionID)
	}
	row("active", when(s.ActiveAt))
}

// somebody gives the person whom the first argument names, by name or id; without one who is signed in. Only
// administrators may name others.
func somebody(ctx context.Context, c *client.Client, args []string) (client.User, error) {
	me, err := c.Me(ctx)
	if err != nil || len(args) == 0 || args[0] == "" || strings.EqualFold(me.Username, args[0]) || args[0] == strconv.FormatInt(me.ID, 10) {
		return me, err
	}
	if me.Role != "ADMIN" {
		return client.User{}, fault.New(fault.Forbidden, "the shells of others are for administrators")
	}
	return findUser(ctx, c, args[0])
}

func (a *app) shellClose() *cobra.Command {
	var host string
	var yes bool
	cmd := &cobra.Command{
		Use:   "close PERSON",
		Short: "Close a person's shells, and end what runs in them",
		Long: `Closes the shells of a person (name or id): yours, or as an administrator anybody's. What runs in them ends, and what
became of it is called unknown. The next command of that person opens a new one.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.with(func(ctx context.Context, c *client.Client) error {
				u, err := somebody(ctx, c, args)
				if err != nil {
					return err
				}
				return a.closeShells(ctx, c, u, host, yes)
			})
		},
	}
	cmd.Flags().StringVar(&host, "host", "", "only the one on this host")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func (a *app) closeShells(ctx context.Context, c *client.Client, u client.User, host string, yes bool) error {
	list, _, err := c.Shells(ctx, u.ID, false)
	if err != nil {
		return err
	}
	a.tellUnreachable(list)
	closed := []string{}
	for _, s := range list.Shells {
		if host != "" && s.Host != host {
			continue
		}
		question := fmt.Sprintf("Close the shell of %s on %s?", oneLine(u.Username), oneLine(s.Host))
		if what := runs(s); what != "–" {
			question += fmt.Sprintf(" What runs in it ends: %s.", clip(oneLine(visibleText(what)), 100))
		}
		if err := a.confirm(question, yes); err != nil {
			return err
		}
		if err := c.CloseShell(ctx, s.Host, u.ID); err != nil {
			return err
		}
		closed = append(closed, s.Host)
	}
	switch {
	case len(closed) == 0 && host != "": // the host may be unknown: the server says so
		if err := c.CloseShell(ctx, host, u.ID); err != nil {
			return err
		}
	case len(closed) == 0 && len(list.Unreachable) > 0:
		return fault.New(fault.Unavailable, "nothing was closed: try again when %s answers", oneLine(strings.Join(list.Unreachable, ", ")))
	}
	switch {
	case a.json:
		return a.printJSON(map[string]any{"person": u.ID, "closed": closed})
	case len(closed) == 0:
		fmt.Fprintf(a.out, "%s has no shell open.\n", oneLine(u.Username))
	default:
		fmt.Fprintf(a.out, "The shell of %s on %s is closed.\n", oneLine(u.Username), oneLine(strings.Join(closed, ", ")))
	}
	return nil
}

func (a *app) shellLog() *cobra.Command {
	var filter client.CommandFilter
	var person string
	cmd := &cobra.Command{
		Use:   "log [ID]",
		Short: "List what was run, or show all that one command printed",
		Long: `Without an argument, lists what was run in your shells, newest first; as an administrator, with --person, in somebody
else's. With the id of a command, the last column of the list, it writes all that the command printed, secrets taken
out; where some of it is missing, the text says so.`,
		Example: `  butler shell log --limit 20
  butler shell log --person alice
  butler shell log 6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f57 >output.txt`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if !approval.ValidID(args[0]) {
					return usagef("%q is not the id of a command: `butler shell log` lists them", args[0])
				}
				for _, name := range []string{"person", "limit", "before"} {
					if cmd.Flags().Changed(name) {
						return usagef("--%s is for the list, without an id", name)
					}
				}
				return a.with(func(ctx context.Context, c *client.Client) error { return a.printOutput(ctx, c, args[0]) })
			}
			if filter.Limit < 1 || filter.Limit > 200 {
				return usagef("--limit must be from 1 to 200")
			}
			return a.with(func(ctx context.Context, c *client.Client) error {
				if person != "" {
					u, err := somebody(ctx, c, []string{person})
					if err != nil {
						return err
					}
					filter.Person = u.ID
				}
				return a.listCommands(ctx, c, filter)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&person, "person", "", "of this person, by name or id; for administrators")
	f.IntVarP(&filter.Limit, "limit", "n", 50, "at most so many")
	f.Int64Var(&filter.Before, "before", 0, "only entries before this number")
	return cmd
}

func (a *app) listCommands(ctx context.Context, c *client.Client, filter client.CommandFilter) error {
	page, err := c.Commands(ctx, filter)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(page.Raw)
	}
	if len(page.Items) == 0 {
		fmt.Fprintln(a.out, "Nothing was run.")
		return nil
	}
	return a.table("NO\tWHEN\tENDED\tTOOK\tWHERE\tCOMMAND\tID", "", func(row func(...any)) {
		for _, e := range page.Items {
			row(e.ID, when(e.At), endedWords(e), (time.Duration(e.DurationMS) * time.Millisecond).String(), visibleText(e.Host+":"+e.Dir),
				clip(visibleText(e.Command), 60), orDash(e.ActionID))
		}
	})
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// endedWords says how a command ended.
func endedWords(e client.Command) string {
	switch {
	case e.Status == "refused":
		return "not run"
	case e.Status != "ended":
		return e.Status
	case e.ExitStatus == nil:
		return "ended"
	}
	return fmt.Sprintf("exit %d", *e.ExitStatus)
}

// printOutput writes what a command printed. A terminal gets no control characters.
func (a *app) printOutput(ctx context.Context, c *client.Client, id string) error {
	if a.json {
		var b strings.Builder
		if err := c.CommandOutput(ctx, id, &b); err != nil {
			return err
		}
		return a.printJSON(map[string]string{"action_id": id, "output": b.String()})
	}
	if _, shown := terminalOf(a.out); !shown {
		return c.CommandOutput(ctx, id, a.out)
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- harmless(r, a.out) }()
	err := c.CommandOutput(ctx, id, w)
	_ = w.Close()
	return errors.Join(err, <-done)
}

// harmless copies text without what a terminal would obey.
func harmless(r *io.PipeReader, w io.Writer) error {
	in, out := bufio.NewReader(r), bufio.NewWriter(w)
	last := '\n'
	for {
		c, _, err := in.ReadRune()
		if err != nil {
			break
		}
		if c < ' ' && c != '\n' && c != '\t' || c >= 0x7f && c < 0xa0 {
			c = '\uFFFD'
		}
		last = c
		if _, err := out.WriteRune(c); err != nil {
			_ = r.CloseWithError(err)
			return err
		}
	}
	if last != '\n' {
		_, _ = out.WriteRune('\n') // Flush tells
	}
	return out.Flush()
}
