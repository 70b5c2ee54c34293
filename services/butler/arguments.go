package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// explainArguments makes commands say which argument is missing or too many, instead of how many there were.
func explainArguments(cmd *cobra.Command) {
	if check := cmd.Args; check != nil && !cmd.HasSubCommands() {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if check(cmd, args) == nil {
				return nil
			}
			return wrongArguments(cmd, args)
		}
	}
	for _, c := range cmd.Commands() {
		explainArguments(c)
	}
}

// wrongArguments says what is wrong with arguments that a command does not take.
func wrongArguments(cmd *cobra.Command, args []string) error {
	wanted := strings.Fields(cmd.Use)[1:]
	needed := 0
	for needed < len(wanted) && !strings.HasPrefix(wanted[needed], "[") {
		needed++
	}
	if len(args) < needed {
		missing, are := wanted[len(args):needed], "is"
		if len(missing) > 1 {
			are = "are"
		}
		return fmt.Errorf("%s %s missing: %s", strings.Join(missing, " and "), are, cmd.UseLine())
	}
	return fmt.Errorf("there is an argument too many, %q: %s", args[min(len(wanted), len(args)-1)], cmd.UseLine())
}

// strictHelp makes `butler help NAME` fail for what is no command.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, help := range root.Commands() {
		if help.Name() != "help" {
			continue
		}
		help.Run = nil
		help.RunE = func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("there is no command `%s %s`: `%s --help` lists those that there are",
					root.Name(), strings.Join(args, " "), cmdOr(cmd, root).CommandPath())
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		}
	}
}

func cmdOr(cmd, other *cobra.Command) *cobra.Command {
	if cmd == nil {
		return other
	}
	return cmd
}
