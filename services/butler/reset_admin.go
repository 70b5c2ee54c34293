package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/gateway/store"
)

func (a *app) resetAdminCommand() *cobra.Command {
	var generate bool
	cmd := &cobra.Command{
		Use:   "reset-admin [NAME]",
		Short: "Let an administrator in again, on the database itself",
		Long: `For when nobody can sign in: gives a person, by default the first administrator, a new password and the role
ADMIN, and lifts a block. It needs no sign-in but the database of the settings, so it runs where that can be
reached, for ` + "`butler up`" + ` on the same machine. Butler may run meanwhile. The person's sign-ins and tokens end.`,
		Example: `  butler users reset-admin
  butler users reset-admin alice --generate`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			name := ""
			if len(args) == 1 {
				name = args[0]
			}
			return a.do(func(ctx context.Context) error { return a.resetAdmin(ctx, name, generate) })
		},
	}
	cmd.Flags().BoolVar(&generate, "generate", false, "make a password up and print it")
	return cmd
}

func (a *app) resetAdmin(ctx context.Context, name string, generate bool) error {
	o, err := a.operation()
	if err != nil {
		return err
	}
	defer o.close()
	db, err := o.openDatabase(ctx)
	if err != nil {
		return err
	}
	st, err := newStore(db, o.settings)
	if err != nil {
		return err
	}
	if err := st.Migrate(ctx); err != nil {
		return err
	}
	var person store.Person
	if name == "" {
		person, err = st.Person(ctx, 1)
	} else {
		person, err = st.PersonByName(ctx, name)
	}
	if fault.CodeOf(err) == fault.NotFound {
		return fault.New(fault.NotFound, "there is no such person in %s; when there is nobody at all, the next start makes the "+
			"first administrator", db)
	}
	if err != nil {
		return err
	}
	password := rand.Text()
	if !generate {
		if password, err = a.secret("New password for "+oneLine(person.Name)+": ", true); err != nil {
			return err
		}
	}
	role, disabled := store.Admin, false
	person, err = st.UpdatePerson(ctx, person.ID, store.Change{Role: &role, Password: &password, Disabled: &disabled})
	if err != nil {
		return err
	}
	if person.ID == 1 { // what was generated for them is not true any more
		_ = os.Remove(initialPasswordFile(o.settings))
	}
	if a.json {
		out := map[string]any{"id": person.ID, "username": person.Name, "role": person.Role}
		if generate {
			out["password"] = password
		}
		return a.printJSON(out)
	}
	fmt.Fprintf(a.out, "%s (id %d) is an administrator and has a new password. A running Butler believes old sign-ins of theirs "+
		"for up to a minute.\n", oneLine(person.Name), person.ID)
	if generate {
		fmt.Fprintf(a.out, "Password: %s\n", password)
	}
	return nil
}
