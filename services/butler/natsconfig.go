package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
)

func (a *app) natsConfigCommand() *cobra.Command {
	var dir, listen, store string
	cmd := &cobra.Command{
		Use:   "nats-config --dir DIR",
		Short: "Write a NATS configuration and credentials for each service",
		Long: `Writes, for Butler in its distributed form, nats-server.conf and for each service, and for the operator who may do everything, a file with its credentials
(SERVICE.nk, an nkey seed, mode 0600), which reach only the subjects that the service needs. A seed that is
there already stays, so that the configuration can be written anew by a later version. agents.nk is the key with
which agent-registry lets agents in: give it to that service alone, as BUTLER_AGENTS_KEY.`,
		Example: `  butler nats-config --dir nats --listen 0.0.0.0:4222 --store /var/lib/nats
  nats-server -c nats/nats-server.conf
  BUTLER_NATS_CREDENTIALS=nats/gateway.nk butler gateway`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if dir == "" {
				return usagef("say where to write: --dir DIR")
			}
			return a.writeNATSConfig(dir, listen, store)
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "folder to write to")
	f.StringVar(&listen, "listen", "127.0.0.1:4222", "where the NATS server listens")
	f.StringVar(&store, "store", "", "folder in which it keeps the log (default: jetstream in DIR)")
	return cmd
}

func (a *app) writeNATSConfig(dir, listen, store string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if store == "" {
		store = filepath.Join(dir, "jetstream")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.Wrap(pathCause(err), fault.Invalid, "the folder %s cannot be made", dir)
	}
	written := []string{}
	keys := map[string]string{}
	for _, u := range bus.ServiceUsers() {
		file := filepath.Join(dir, u.Service+".nk")
		public, made, err := keyFile(file, bus.NewServiceKey)
		if err != nil {
			return err
		}
		keys[u.Service] = public
		if made {
			written = append(written, file)
		}
	}
	issuerFile := filepath.Join(dir, "agents.nk")
	issuer, made, err := keyFile(issuerFile, bus.NewIssuerKey)
	if err != nil {
		return err
	}
	if made {
		written = append(written, issuerFile)
	}
	conf, err := bus.ServerConfig(listen, store, keys, issuer)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "nats-server.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		return fault.Wrap(pathCause(err), fault.Invalid, "%s cannot be written", file)
	}
	written = append(written, file)
	if a.json {
		return a.printJSON(map[string]any{"written": written})
	}
	for _, file := range written {
		fmt.Fprintf(a.out, "wrote %s\n", file)
	}
	fmt.Fprintf(a.out, "Start NATS with: nats-server -c %s\n", file)
	return nil
}

// keyFile gives the public key of the seed in a file, which it makes when there is none.
func keyFile(file string, generate func() (seed, public string, err error)) (public string, made bool, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		seed, public, err := generate()
		if err != nil {
			return "", false, err
		}
		if err := os.WriteFile(file, []byte(seed+"\n"), 0o600); err != nil {
			return "", false, fault.Wrap(pathCause(err), fault.Invalid, "%s cannot be written", file)
		}
		return public, true, nil
	}
	if err != nil {
		return "", false, fault.Wrap(pathCause(err), fault.Invalid, "%s cannot be read", file)
	}
	public, err = publicKey(data)
	if err != nil {
		return "", false, fault.Wrap(err, fault.Invalid, "%s holds no nkey seed: delete it to have one made", file)
	}
	return public, false, nil
}
