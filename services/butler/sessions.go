package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/butler/client"
	"github.com/butlerhub/butler/services/butler/terminal"
)

func (a *app) sessionsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "sessions",
		Aliases: []string{"threads"},
		Short:   "Conversations: list, show, rename, delete",
		Example: `  butler sessions list
  butler sessions show 12 --limit 20
  butler sessions rename 12 "Holiday plans"
  butler sessions delete 12`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.sessionsList(), a.sessionsShow(), a.sessionsRename(), a.sessionsDelete())
	return cmd
}

func (a *app) sessionsList() *cobra.Command {
	var filter client.ThreadFilter
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List your conversations, newest first",
		Long:  "Lists your conversations, newest first. The one marked with * is that which `butler chat` and the page open with.",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.with(func(ctx context.Context, c *client.Client) error {
				page, err := c.Threads(ctx, filter)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(page.Raw)
				}
				if err := a.table("ID\tLAST MESSAGE\tTITLE", a.say("There are no such conversations.", "没有这样的会话。"), func(row func(...any)) {
					for _, t := range page.Items {
						row(t.ID, when(t.LastMessageAt), a.threadTitle(t))
					}
				}); err != nil {
					return err
				}
				if slices.ContainsFunc(page.Items, func(t client.Thread) bool { return t.Default }) {
					fmt.Fprintln(a.err, a.say("* is the one that `butler chat` and the page open with.", "* 是 `butler chat` 和网页默认打开的会话。"))
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&filter.Query, "query", "q", "", "only those whose title contains this")
	cmd.Flags().BoolVar(&filter.Archived, "archived", false, "only those that are archived")
	return cmd
}

func (a *app) threadTitle(t client.Thread) string {
	title := t.Title
	if title == "" {
		title = a.say("(nothing said yet)", "（还没有消息）")
	}
	if t.Default {
		title += " *"
	}
	return title
}

// pageSize is how many messages one request asks for.
const pageSize = 100

func (a *app) sessionsShow() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show what was said in a conversation, oldest first",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			id, err := idArg(args[0])
			if err != nil {
				return err
			}
			if limit < 1 {
				return usagef("--limit must be 1 or more")
			}
			return a.with(func(ctx context.Context, c *client.Client) error { return a.showSession(ctx, c, id, limit) })
		},
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 50, "how many of the newest messages")
	return cmd
}

func (a *app) showSession(ctx context.Context, c *client.Client, id int64, limit int) error {
	var messages []client.Message
	var raw []json.RawMessage
	for before := uint64(0); len(messages) < limit; {
		page, err := c.Messages(ctx, id, before, min(limit-len(messages), pageSize))
		if err != nil {
			return err
		}
		if len(page.Items) == 0 || before != 0 && page.Items[0].ID >= before {
			break
		}
		before = page.Items[0].ID
		messages = append(page.Items, messages...)
		var items []json.RawMessage
		if err := json.Unmarshal(page.Raw, &items); err != nil {
			return fault.Wrap(err, fault.Internal, "the history cannot be read")
		}
		raw = append(items, raw...)
	}
	if a.json {
		if raw == nil {
			raw = []json.RawMessage{}
		}
		return a.printJSON(raw)
	}
	for i, m := range messages {
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		status := ""
		if m.Status != "" && m.Status != "answered" {
			status = " [" + strings.TrimSuffix(m.Status+": "+m.Reason, ": ") + "]"
		}
		fmt.Fprintf(a.out, "%s  %s%s\n%s\n", m.Timestamp.Local().Format("2006-01-02 15:04:05"), oneLine(m.SenderName),
			oneLine(status), strings.Map(keepPrintable, m.Text))
	}
	return nil
}

// keepPrintable drops from a text of others what would steer a terminal.
func keepPrintable(r rune) rune {
	if terminal.Printable(r) {
		return r
	}
	return -1
}

func (a *app) sessionsRename() *cobra.Command {
	return &cobra.Command{
		Use:   "rename ID TITLE",
		Short: "Give a conversation another title",
		Args:  cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			id, err := idArg(args[0])
			if err != nil {
				return err
			}
			return a.with(func(ctx context.Context, c *client.Client) error {
				t, err := c.RenameThread(ctx, id, args[1])
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(t)
				}
				fmt.Fprintf(a.out, "Conversation %d is now %q.\n", id, t.Title)
				return nil
			})
		},
	}
}

func (a *app) sessionsDelete() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete ID...",
		Short: "Delete conversations and all that was said in them",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			ids := make([]int64, len(args))
			for i, arg := range args {
				var err error
				if ids[i], err = idArg(arg); err != nil {
					return err
				}
			}
			return a.with(func(ctx context.Context, c *client.Client) error {
				if err := a.confirm(fmt.Sprintf("Delete %s for good?", strings.Join(args, ", ")), yes); err != nil {
					return err
				}
				for _, id := range ids {
					if err := c.DeleteThread(ctx, id); err != nil {
						return err
					}
					if !a.json {
						fmt.Fprintf(a.out, "Conversation %d is deleted.\n", id)
					}
				}
				if a.json {
					return a.printJSON(map[string]any{"deleted": ids})
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

// confirm asks before what cannot be undone; without a terminal to ask in, yes must be given.
func (a *app) confirm(question string, yes bool) error {
	if yes {
		return nil
	}
	if _, ok := terminalOf(a.in); !ok {
		return usagef("this cannot be undone: add --yes")
	}
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	answer, err := a.line("yes or no")
	if err != nil {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errInterrupted
	}
	return nil
}

func idArg(arg string) (int64, error) {
	id, err := strconv.ParseInt(arg, 10, 64)
	if err != nil || id < 1 {
		return 0, usagef("%q is not an id: give the number that `list` shows", arg)
	}
	return id, nil
}
