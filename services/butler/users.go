package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/butler/client"
)

func (a *app) usersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "users",
		Short: "People: list, add, change (for administrators)",
		Long: `Manages people, as an administrator who is signed in. Passwords are asked for without echo or read from
standard input; they are never arguments. USER is a name or an id.`,
		Example: `  butler users list
  butler users add alice
  openssl rand -base64 18 | butler users add bob --role ADMIN
  butler users passwd alice
  butler users disable alice
  butler users reset-admin        # nobody can sign in any more: works on the database itself`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.usersList(), a.usersAdd(), a.usersPasswd(), a.usersRole(),
		a.usersSwitch("disable", "Take a person's access away, at once", true, "is disabled: every sign-in and token has ended"),
		a.usersSwitch("enable", "Give a person's access back", false, "may sign in again"),
		a.resetAdminCommand())
	return cmd
}

func (a *app) usersList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List all people",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.with(func(ctx context.Context, c *client.Client) error {
				page, err := c.Users(ctx)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(page.Raw)
				}
				return a.table("ID\tNAME\tROLE\tSINCE\tSTATE", "There are no people.", func(row func(...any)) {
					for _, u := range page.Items {
						state := "active"
						if u.Disabled {
							state = "disabled"
						}
						row(u.ID, u.Username, u.Role, when(u.CreatedAt), state)
					}
				})
			})
		},
	}
}

// roleArg checks a role as people write it.
func roleArg(arg string) (string, error) {
	role := strings.ToUpper(arg)
	if role != "ADMIN" && role != "MEMBER" {
		return "", usagef("the role must be ADMIN or MEMBER, not %q", arg)
	}
	return role, nil
}

func (a *app) usersAdd() *cobra.Command {
	role := "MEMBER"
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Add a person",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			role, err := roleArg(role)
			if err != nil {
				return err
			}
			return a.with(func(ctx context.Context, c *client.Client) error {
				password, err := a.secret("Password for "+args[0]+": ", true)
				if err != nil {
					return err
				}
				u, err := c.AddUser(ctx, args[0], role, password)
				if err != nil {
					return err
				}
				return a.printUser(u, "was added")
			})
		},
	}
	cmd.Flags().StringVar(&role, "role", role, "ADMIN or MEMBER")
	return cmd
}

func (a *app) printUser(u client.User, what string) error {
	if a.json {
		return a.printJSON(u)
	}
	fmt.Fprintf(a.out, "%s (id %d, %s) %s.\n", oneLine(u.Username), u.ID, u.Role, what)
	return nil
}

func (a *app) usersPasswd() *cobra.Command {
	return &cobra.Command{
		Use:   "passwd USER",
		Short: "Give a person another password; ends their sign-ins and tokens",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.with(func(ctx context.Context, c *client.Client) error {
				u, err := findUser(ctx, c, args[0])
				if err != nil {
					return err
				}
				password, err := a.secret("New password for "+oneLine(u.Username)+": ", true)
				if err != nil {
					return err
				}
				if u, err = c.ChangeUser(ctx, u.ID, client.UserChange{Password: &password}); err != nil {
					return err
				}
				return a.printUser(u, "has a new password; every sign-in and token has ended")
			})
		},
	}
}

func (a *app) usersRole() *cobra.Command {
	return &cobra.Command{
		Use:   "role USER ADMIN|MEMBER",
		Short: "Change what a person may do",
		Args:  cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			role, err := roleArg(args[1])
			if err != nil {
				return err
			}
			return a.with(func(ctx context.Context, c *client.Client) error {
				return a.changeUser(ctx, c, args[0], client.UserChange{Role: &role}, "has the new role")
			})
		},
	}
}

func (a *app) usersSwitch(name, short string, disabled bool, done string) *cobra.Command {
	return &cobra.Command{
		Use:   name + " USER",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.with(func(ctx context.Context, c *client.Client) error {
				return a.changeUser(ctx, c, args[0], client.UserChange{Disabled: &disabled}, done)
			})
		},
	}
}

func (a *app) changeUser(ctx context.Context, c *client.Client, who string, change client.UserChange, done string) error {
	u, err := findUser(ctx, c, who)
	if err != nil {
		return err
	}
	if u, err = c.ChangeUser(ctx, u.ID, change); err != nil {
		return err
	}
	return a.printUser(u, done)
}

// findUser finds a person by name, without regard to case, or by id.
func findUser(ctx context.Context, c *client.Client, who string) (client.User, error) {
	page, err := c.Users(ctx)
	if err != nil {
		return client.User{}, err
	}
	for _, u := range page.Items {
		if strings.EqualFold(u.Username, who) {
			return u, nil
		}
	}
	if id, err := strconv.ParseInt(who, 10, 64); err == nil {
		for _, u := range page.Items {
			if u.ID == id {
				return u, nil
			}
		}
	}
	return client.User{}, fault.New(fault.NotFound, "there is no %q: `butler users list` shows everybody", who)
}

func (a *app) passwordCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "passwd",
		Short: "Change your own password",
		Long: `Changes your own password. All your sign-ins and personal tokens end; this command line stays signed in.
Without a terminal the current password is the first line of standard input and the new one the second.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.with(a.changeOwnPassword)
		},
	}
}

func (a *app) changeOwnPassword(ctx context.Context, c *client.Client) error {
	who, err := c.Me(ctx)
	if err != nil {
		return err
	}
	current, err := a.secret("Current password of "+oneLine(who.Username)+": ", false)
	if err != nil {
		return err
	}
	replacement, err := a.secret("New password: ", true)
	if err != nil {
		return err
	}
	token, err := c.ChangePassword(ctx, current, replacement)
	if err != nil {
		return err
	}
	if a.env("BUTLER_TOKEN") == "" && token != "" {
		if err := a.keep(c.Server(), token, who.Username); err != nil {
			return err
		}
	}
	if a.json {
		return a.printJSON(map[string]any{"changed": true})
	}
	fmt.Fprintln(a.out, "Your password is changed; your other sign-ins and your tokens have ended.")
	return nil
}
