package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

// With the rights that the services have on NATS: long output is whole in the log, is read from any gateway by who may, also
// after shell-runner was killed in the middle, and a shell is closed.
func TestShellsAreLookedAfterFromAnyGateway(t *testing.T) {
	t.Parallel()
	c := startCluster(t, actingModel(t), storagetest.Shared(t), "BUTLER_ALLOWED_USERS=person-1,person-2")
	people := c.people(2)
	p, other := people[0], people[1]
	d := c.connect(p)
	run := func(id, text string) {
		d.say(0, id, text)
		d.until(60*time.Second, "the answer to "+id, func() bool { return d.sent[id].final != nil })
	}
	run("attach", "/shell")
	run("long", "!seq 200000")
	type command struct {
		ActionID string `json:"action_id"`
		Command  string `json:"command"`
	}
	var log []command
	eventually(t, 30*time.Second, "the log of commands", func() bool {
		code, _, err := c.as(p, 1).do(t.Context(), "GET", "/api/shell/commands", nil, &log)
		return err == nil && code == http.StatusOK && len(log) == 1
	})
	output := func(p *person, gateway int, id string) (code int, text string) {
		code, _, err := c.as(p, gateway).do(t.Context(), "GET", "/api/shell/commands/"+id+"/output", nil, &text)
		if err != nil {
			t.Fatal(err)
		}
		return code, text
	}
	var want strings.Builder
	for i := 1; i <= 200_000; i++ {
		fmt.Fprintln(&want, i)
	}
	for gateway := range c.urls {
		for _, reader := range []*person{p, c.admin} {
			if code, text := output(reader, gateway, log[0].ActionID); code != http.StatusOK || text != want.String() {
				t.Fatalf("%d, %d bytes, not %d", code, len(text), want.Len())
			}
		}
		if code, text := output(other, gateway, log[0].ActionID); code != http.StatusNotFound {
			t.Fatalf("%d %.100s", code, text)
		}
	}

	t.Log("shell-runner is killed in the middle of a long output")
	d.say(0, "middle", "!seq 200000; sleep 8; seq 200000")
	var shells struct {
		Shells []struct {
			Host     string    `json:"host"`
			Commands []command `json:"commands"`
		} `json:"shells"`
	}
	eventually(t, 30*time.Second, "the command and a part of its output", func() bool {
		code, _, err := c.as(p).do(t.Context(), "GET", "/api/shells", nil, &shells)
		if err != nil || code != http.StatusOK || len(shells.Shells) != 1 || len(shells.Shells[0].Commands) != 1 {
			return false
		}
		code, text := output(p, 1, shells.Shells[0].Commands[0].ActionID)
		return code == http.StatusOK && len(text) > want.Len()/2 && strings.Contains(text, "it goes on")
	})
	c.shells[0].kill()
	c.shells[0].start()
	c.shells[0].waitReady()
	d.until(60*time.Second, "the answer", func() bool { return d.sent["middle"].final != nil })
	eventually(t, 30*time.Second, "the log of it", func() bool {
		code, _, err := c.as(p, 1).do(t.Context(), "GET", "/api/shell/commands", nil, &log)
		return err == nil && code == http.StatusOK && len(log) == 2
	})
	code, text := output(p, 0, log[0].ActionID)
	if code != http.StatusOK || !strings.Contains(text, "may be missing") || !strings.HasSuffix(text, "may be missing …]\n") {
		t.Fatalf("%d: nothing is said of the restart at the end of %d bytes", code, len(text))
	}
	if head, tail := strings.HasPrefix(text, "1\n2\n3\n"), strings.Contains(text, "\n199999\n200000\n"); !head || !tail || len(text) < want.Len() {
		t.Fatalf("%d bytes of %d", len(text), 2*want.Len())
	}

	path := fmt.Sprintf("/api/shells/host/%d", p.id)
	if code, _, err := c.as(other).do(context.Background(), "DELETE", path, nil, nil); err != nil || code != http.StatusNotFound {
		t.Fatal(code, err)
	}
	for gateway := range c.urls {
		if code, _, err := c.as(c.admin, gateway).do(context.Background(), "DELETE", path, nil, nil); err != nil || code != http.StatusNoContent {
			t.Fatal(code, err)
		}
	}
	if code, _, err := c.as(p).do(context.Background(), "GET", "/api/shells", nil, &shells); err != nil || code != http.StatusOK || len(shells.Shells) != 0 {
		t.Fatal(code, err, shells)
	}
}
