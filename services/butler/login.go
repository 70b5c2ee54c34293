package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/butler/client"
)

func (a *app) loginCommand() *cobra.Command {
	var user string
	var initial bool
	cmd := &cobra.Command{
		Use:   "login [USER]",
		Short: "Sign in and keep the sign-in for later commands",
		Long: `Signs in and keeps the sign-in, for this server, in $XDG_CONFIG_HOME/butler/credentials.json (mode 0600).
The password is asked for without echo, or read from standard input.

On the machine where ` + "`butler up`" + ` runs, --initial signs in as the first administrator with the password that
was generated for them, as long as it was not changed.`,
		Example: `  butler login
  butler login --initial
  butler login alice --server https://butler.example.org
  pass show butler/alice | butler login alice`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				user = args[0]
			}
			if initial && user != "" {
				return usagef("--initial says who signs in: leave USER out")
			}
			return a.do(func(ctx context.Context) error { return a.login(ctx, user, initial) })
		},
	}
	cmd.Flags().BoolVar(&initial, "initial", false, "sign in with the first administrator's generated password")
	cmd.Flags().StringVarP(&user, "user", "u", "", "who signs in")
	return cmd
}

func (a *app) login(ctx context.Context, user string, initial bool) error {
	c, err := a.anonymous()
	if err != nil {
		return err
	}
	defer c.Close()
	credentials, err := a.credentials()
	if err != nil {
		return err
	}
	saved, _, err := credentials.Load(c.Server())
	if err != nil {
		return err
	}
	if err := c.Ping(ctx); err != nil { // before anybody types a password
		return err
	}
	var password string
	switch {
	case initial:
		user, password, err = a.initialPassword()
	case user == "":
		if user, err = a.askUser(saved.Username); err != nil {
			return err
		}
		fallthrough
	default:
		password, err = a.secret(fmt.Sprintf("Password of %s at %s: ", user, c.Server()), false)
	}
	if err != nil {
		return err
	}
	_, who, err := a.signIn(ctx, c, user, password)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"server": c.Server(), "user": who})
	}
	fmt.Fprintf(a.out, "Signed in at %s as %s (%s).\n", c.Server(), oneLine(who.Username), who.Role)
	return nil
}

// initialPassword reads what was generated for the first administrator, from the data folder of the settings.
func (a *app) initialPassword() (user, password string, err error) {
	settings, _, err := a.settings()
	if err != nil {
		return "", "", err
	}
	user, password, err = readInitialPassword(settings)
	if err != nil {
		return "", "", fault.Wrap(err, fault.NotFound, "there is no generated password in %s: sign in with `butler login USER`",
			initialPasswordFile(settings))
	}
	return user, password, nil
}

// askUser asks who signs in; in a terminal only, since standard input holds the password otherwise.
func (a *app) askUser(before string) (string, error) {
	if _, ok := terminalOf(a.in); !ok {
		return "", usagef("say who signs in: butler login USER")
	}
	if before == "" {
		before = "admin"
	}
	fmt.Fprintf(a.err, "User [%s]: ", before)
	user, err := a.line("a name")
	if err != nil {
		return "", err
	}
	if user == "" {
		user = before
	}
	return user, nil
}

// signIn signs in and keeps the token.
func (a *app) signIn(ctx context.Context, c *client.Client, user, password string) (*client.Client, client.User, error) {
	token, who, err := c.Login(ctx, user, password)
	if err != nil {
		return nil, client.User{}, err
	}
	if token == "" {
		return nil, client.User{}, fault.New(fault.Internal, "%s gave no token; is it a Butler?", c.Server())
	}
	if err := a.keep(c.Server(), token, who.Username); err != nil {
		return nil, client.User{}, err
	}
	return c.WithToken(token), who, nil
}

// keep saves a sign-in.
func (a *app) keep(server, token, user string) error {
	credentials, err := a.credentials()
	if err != nil {
		return err
	}
	return credentials.Save(server, client.SignIn{Token: token, Username: user, SavedAt: time.Now().UTC()})
}

func (a *app) logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "logout",
		Short: "End the saved sign-in",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.do(a.logout)
		},
	}
}

func (a *app) logout(ctx context.Context) error {
	c, err := a.anonymous()
	if err != nil {
		return err
	}
	defer c.Close()
	credentials, err := a.credentials()
	if err != nil {
		return err
	}
	saved, ok, err := credentials.Load(c.Server())
	if err != nil {
		return err
	}
	if !ok {
		fmt.Fprintf(a.out, "Nobody was signed in at %s.\n", c.Server())
		return nil
	}
	// The server first: a sign-in that is only forgotten here would go on being valid.
	remote := c.WithToken(saved.Token).Logout(ctx)
	if _, err := credentials.Delete(c.Server()); err != nil {
		return err
	}
	if remote != nil && fault.CodeOf(remote) != fault.Unauthenticated {
		return fault.Wrap(remote, fault.CodeOf(remote),
			"the sign-in was deleted here, but %s was not told and believes it until it ends", c.Server())
	}
	if a.json {
		return a.printJSON(map[string]any{"server": c.Server(), "signed_out": true})
	}
	fmt.Fprintf(a.out, "Signed out at %s.\n", c.Server())
	return nil
}
