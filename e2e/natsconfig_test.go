package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// writeNATSConfig writes the NATS server's configuration and the credentials of the services into dir, as an operator
// does, and adds somebody who may do everything, which only tests have.
func writeNATSConfig(t testing.TB, dir, addr, operatorPassword string) {
	t.Helper()
	cmd := exec.Command(butler(t), "nats-config", "--dir", dir, "--listen", addr)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("butler nats-config: %v\n%s", err, out)
	}
	file := filepath.Join(dir, "nats-server.conf")
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const begin = "users: ["
	if strings.Count(string(config), begin) != 1 {
		t.Fatalf("the NATS configuration has no list of users:\n%s", config)
	}
	text := strings.Replace(string(config), begin, begin+"\n    { user: operator, password: \""+operatorPassword+"\" }", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// natsCredentials is the file with what a service signs in to NATS with.
func natsCredentials(dir, service string) string { return filepath.Join(dir, "nats", service+".nk") }
