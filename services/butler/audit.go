package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/services/butler/client"
)

func (a *app) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Who asked, decided and did what: list, verify",
		Long: `The audit chain holds each request, decision, refusal, execution and outcome. For administrators, at a Butler
that runs.`,
		Example: `  butler audit list
  butler audit list "alice approved" --limit 20
  butler audit verify`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.auditList(), a.auditVerify())
	return cmd
}

func (a *app) auditList() *cobra.Command {
	var filter client.AuditFilter
	cmd := &cobra.Command{
		Use:   "list [WORDS...]",
		Short: "Search the chain, newest first",
		RunE: func(_ *cobra.Command, args []string) error {
			if filter.Limit < 1 || filter.Limit > 500 {
				return usagef("--limit must be from 1 to 500")
			}
			filter.Query = strings.Join(args, " ")
			return a.with(func(ctx context.Context, c *client.Client) error {
				page, err := c.Audit(ctx, filter)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(page.Raw)
				}
				return a.table("LINK\tWHEN\tWHO\tWHAT\tSUMMARY", "Nothing in the chain is like that.", func(row func(...any)) {
					for _, e := range page.Items {
						who := e.Actor.Name
						if who == "" {
							who = "–"
						}
						row(e.N, when(e.At), who, e.Kind, visibleText(e.Summary))
					}
				})
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&filter.ApprovalID, "approval", "", "only of the request with this id")
	f.Int64Var(&filter.Actor, "actor", 0, "only what the person with this id did")
	f.IntVarP(&filter.Limit, "limit", "n", 50, "at most so many")
	f.Int64Var(&filter.Before, "before", 0, "only links before this one")
	return cmd
}

func (a *app) auditVerify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Check that nothing in the chain was changed, lost or moved",
		Long: `Recomputes the chain from its beginning, checks its signatures, and fetches every event that it covers. It names
each link that does not fit, and fails when there is one.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			problems := 0
			err := a.with(func(ctx context.Context, c *client.Client) error {
				_, terminal := terminalOf(a.err)
				return c.VerifyAudit(ctx, func(line client.AuditCheck, raw json.RawMessage) {
					if line.Problem != "" {
						problems++
					}
					switch {
					case a.json:
						fmt.Fprintf(a.out, "%s\n", raw)
					case line.Problem != "":
						fmt.Fprintf(a.out, "link %d: %s\n", line.N, oneLine(line.Problem))
					case line.Done:
						fmt.Fprintf(a.out, "%d links and %d events checked, %d of them erased on request; %s\n", line.Links, line.Events, line.Erased,
							map[bool]string{true: "everything fits", false: fmt.Sprintf("problems: %d", problems)}[problems == 0])
					case terminal:
						fmt.Fprintf(a.err, "\r%d links, %d events… ", line.Links, line.Events)
					}
				})
			})
			if err != nil {
				return err
			}
			if problems > 0 {
				return errReported
			}
			return nil
		},
	}
}
