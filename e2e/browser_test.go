package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/butlerhub/butler/internal/modeltest"
)

// The page's browser tests against the real thing.
func TestPage(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("Node is not installed, and this test needs it: run `make test`, which installs it")
	}
	browser := os.Getenv("CHROMIUM")
	if browser == "" {
		browser = "/usr/bin/chromium"
	}
	if _, err := os.Stat(browser); err != nil {
		t.Fatalf("there is no browser at %s: run `make test`, which installs one, or name one with CHROMIUM", browser)
	}
	dir, err := filepath.Abs("../web/e2e")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "playwright-core")); err != nil {
		if out, err := exec.Command("npm", "ci", "--prefix", dir, "--no-fund", "--no-audit").CombinedOutput(); err != nil {
			t.Fatalf("npm ci: %v\n%s", err, out)
		}
	}
	model := startModel(t)
	model.answers(10, 5*time.Millisecond)
	const slow = "please answer this one slowly"
	model.by(func(text string) modeltest.Reply {
		if strings.Contains(text, slow) {
			return modeltest.Reply{modeltest.EchoSlow(60, 150*time.Millisecond)}
		}
		return nil
	})
	up := startUp(t, model)
	args := []string{"--test", "--test-concurrency=1"}
	if !soak {
		// What depends on the server; web/e2e itself runs all of them against its own.
		for _, name := range []string{
			"a wrong password is refused", "the answer streams and stays", "stop ends the answer", "goes on after a break",
			"loaded again in mid-answer", "a second tab follows",
		} {
			args = append(args, "--test-name-pattern="+name)
		}
	}
	cmd := exec.Command(node, append(args, "page.test.mjs")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "BUTLER_E2E_URL="+up.urls[0], "BUTLER_E2E_USER="+adminName,
		"BUTLER_E2E_PASS="+adminPassword, "BUTLER_E2E_SLOW="+slow, "CHROMIUM="+browser)
	cmd.SysProcAttr = ownGroup()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the page's tests: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		for _, count := range []string{"pass ", "fail ", "skipped "} {
			if _, n, ok := strings.Cut(line, count); ok && len(n) < 6 {
				t.Log(count + strings.TrimSpace(n))
			}
		}
	}
	if !strings.Contains(string(out), "pass ") || strings.Contains(string(out), "pass 0\n") {
		t.Errorf("no test of the page ran:\n%s", out)
	}
}
