package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// writeNATSConfig writes the NATS server's configuration and the credentials of the services into dir, as an operator
// does.
func writeNATSConfig(t testing.TB, dir, addr string) {
	t.Helper()
	cmd := exec.Command(butler(t), "nats-config", "--dir", dir, "--listen", addr)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("butler nats-config: %v\n%s", err, out)
	}
}

// natsCredentials is the file with what a service signs in to NATS with.
func natsCredentials(dir, service string) string { return filepath.Join(dir, "nats", service+".nk") }
