package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/config"
)

// settingJSON is one setting as `butler config --json` shows it.
type settingJSON struct {
	Key         string `json:"key"`
	Env         string `json:"env"`
	Value       string `json:"value"`
	Origin      string `json:"origin"`
	Secret      bool   `json:"secret,omitempty"`
	Reloadable  bool   `json:"reloadable,omitempty"`
	Description string `json:"description"`
}

func (a *app) configCommand() *cobra.Command {
	var changed bool
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the settings that are in force, and where each comes from",
		Long: `Shows every setting with its value and where that comes from: default, file:line or environment variable.
Secrets are masked. Settings come from the defaults, one YAML file (--config or BUTLER_CONFIG), and the
environment; each later one wins.`,
		Example: `  butler config
  butler config --changed
  butler config --json | jq -r '.[] | select(.key == "http.addr").value'
  butler config check butler.yaml`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			settings, warnings, err := a.settings()
			if err != nil {
				return err
			}
			a.warn(warnings)
			return a.printSettings(settings, changed)
		},
	}
	cmd.Flags().BoolVar(&changed, "changed", false, "only those that are not at their default")
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Check a settings file, together with the environment",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			_, warnings, err := config.Load(config.Options{File: args[0], Environ: a.environ, KnownEnv: cliEnv})
			a.warn(warnings)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"valid": true, "warnings": append([]config.Warning{}, warnings...)})
			}
			fmt.Fprintf(a.out, "%s is valid.\n", args[0])
			return nil
		},
	})
	return cmd
}

func (a *app) printSettings(settings config.Settings, changed bool) error {
	var values []config.Value
	for _, v := range settings.Describe() {
		if !changed || v.Origin.Source != config.FromDefault {
			values = append(values, v)
		}
	}
	if a.json {
		out := make([]settingJSON, 0, len(values))
		for _, v := range values {
			out = append(out, settingJSON{
				Key: v.Key, Env: v.Env, Value: v.Value, Origin: v.Origin.String(), Secret: v.Secret,
				Reloadable: v.Reloadable, Description: v.Description,
			})
		}
		return a.printJSON(out)
	}
	return a.table("SETTING\tENVIRONMENT\tVALUE\tFROM", "There are no settings.", func(row func(...any)) {
		for _, v := range values {
			value := v.Value
			if value == "" {
				value = "–"
			}
			row(v.Key, v.Env, value, v.Origin)
		}
	})
}
