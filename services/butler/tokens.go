package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/butler/client"
)

func (a *app) tokensCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tokens",
		Short: "Personal tokens for programs: list, add, revoke",
		Long: `A personal token lets a program do what you may do, for example as the key of an OpenAI client:

  export OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=$(butler tokens add laptop --quiet)`,
		Example: `  butler tokens list
  butler tokens add ci --days 90
  butler tokens revoke 7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.tokensList(), a.tokensAdd(), a.tokensRevoke())
	return cmd
}

func (a *app) tokensList() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List your tokens",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.with(func(ctx context.Context, c *client.Client) error {
				page, err := c.Tokens(ctx)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(page.Raw)
				}
				return a.table("ID\tKIND\tNAME\tMADE\tLAST USED\tENDS", "There are no tokens: `butler tokens add NAME` makes one.", func(row func(...any)) {
					for _, t := range page.Items {
						if t.Kind != "personal" && !all {
							continue
						}
						ends := when(t.ExpiresAt)
						if t.ExpiresAt == nil {
							ends = "never"
						}
						row(t.ID, t.Kind, t.Name, when(t.CreatedAt), when(t.LastUsedAt), ends)
					}
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "sign-ins too")
	return cmd
}

func (a *app) tokensAdd() *cobra.Command {
	var days int
	var quiet bool
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Make a token; it is shown once",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if days < 0 {
				return usagef("--days must be 1 or more, or 0 for a token that does not end")
			}
			return a.with(func(ctx context.Context, c *client.Client) error {
				t, err := c.AddToken(ctx, args[0], days)
				if err != nil {
					return err
				}
				if t.Secret == "" {
					return fault.New(fault.Internal, "%s made no token; is it a Butler?", c.Server())
				}
				switch {
				case a.json:
					return a.printJSON(t)
				case quiet:
					fmt.Fprintln(a.out, t.Secret)
				default:
					fmt.Fprintf(a.err, "Token %d, %q. Keep it now; it is not shown again:\n", t.ID, t.Name)
					fmt.Fprintln(a.out, t.Secret)
				}
				return nil
			})
		},
	}
	cmd.Flags().IntVar(&days, "days", 0, "how many days it is valid; 0 for ever")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print the token alone")
	return cmd
}

func (a *app) tokensRevoke() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID...",
		Short: "End tokens, at once",
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
				for _, id := range ids {
					if err := c.RevokeToken(ctx, id); err != nil {
						return err
					}
					if !a.json {
						fmt.Fprintf(a.out, "Token %d has ended.\n", id)
					}
				}
				if a.json {
					return a.printJSON(map[string]any{"revoked": ids})
				}
				return nil
			})
		},
	}
}
