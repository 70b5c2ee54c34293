package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

// Services start in any order, wait for what they need, say in /ready what that is, and become ready.
func TestStartOrder(t *testing.T) {
	t.Parallel()
	chance := random(t)
	names := []string{"nats", "sql", "registry", "approval", "shell", "brain", "gateway"}
	orders := [][]string{
		{"brain", "gateway", "shell", "approval", "registry", "sql", "nats"}, // NATS last
		{"gateway", "approval", "registry", "brain", "shell", "nats", "sql"}, // SQL last
	}
	for len(orders) < sample(3, 12) {
		order := append([]string(nil), names...)
		chance.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		orders = append(orders, order)
	}
	model := startModel(t)
	for _, order := range orders {
		t.Run(strings.Join(order, "-"), func(t *testing.T) {
			postgres := storagetest.New(t)
			c := newCluster(t, model, postgres)
			if order[0] != "sql" {
				postgres.Stop(t)
			}
			up := map[string]bool{}
			for _, name := range order {
				up[name] = true
				switch name {
				case "nats":
					c.nats.run()
				case "sql":
					if order[0] != "sql" {
						postgres.Start(t)
					}
				case "registry":
					c.registries[0].start()
				case "approval":
					c.approvals[0].start()
				case "shell":
					c.shells[0].start()
				case "brain":
					for _, p := range c.brains {
						p.start()
					}
				case "gateway":
					for _, p := range c.gateways {
						p.start()
					}
				}
				if !up["nats"] {
					expectMissing(t, c, up, "nats")
				} else if !up["sql"] && up["gateway"] {
					// It may be waiting for what else is missing first; never is it ready.
					for _, p := range c.gateways {
						expectWaiting(t, p, "")
					}
				}
			}
			for _, p := range c.services() {
				p.waitReady()
			}
			c.signIn()
			devices := c.each(c.people(2))
			for i, d := range devices {
				d.say(0, fmt.Sprintf("order-%d", i), fmt.Sprintf("%v: message %d", order, i))
				d.answered(20 * time.Second)
			}
			c.check(devices, conditions{})
			for _, p := range c.services() {
				if !p.running() {
					t.Errorf("%s ended while it waited", p.name)
				}
				if p.metric("go_goroutines") == 0 {
					t.Errorf("%s has no metrics", p.name)
				}
			}
		})
	}
}

// expectMissing wants every started service to say that something is missing.
func expectMissing(t *testing.T, c *cluster, up map[string]bool, what string) {
	t.Helper()
	for _, p := range c.services() {
		if name, _, _ := strings.Cut(p.name, "-"); up[name] {
			expectWaiting(t, p, what)
		}
	}
}

func expectWaiting(t *testing.T, p *process, what string) {
	t.Helper()
	eventually(t, 15*time.Second, p.name+" says in /ready that it waits for "+what, func() bool {
		if !p.running() {
			t.Fatalf("%s ended instead of waiting: %v\n%s", p.name, p.exit, p.tail(2<<10))
		}
		ready, missing := p.ready()
		if ready {
			t.Fatalf("%s says that it is ready without %s", p.name, what)
		}
		return strings.Contains(missing, "{") && strings.Contains(strings.ToLower(missing), what)
	})
}

// A new brain takes its share within ten seconds, and gives it back when it goes.
func TestNewBrain(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	c := newCluster(t, model, storagetest.Shared(t))
	second := c.brains[1]
	c.nats.run()
	for _, p := range c.services() {
		if p != second {
			p.start()
		}
	}
	for _, p := range c.services() {
		if p != second {
			p.waitReady()
		}
	}
	c.signIn()
	devices := c.each(c.people(16))
	n := 0
	ask := func() {
		n++
		for i, d := range devices {
			d.say(0, fmt.Sprintf("share-%d-%d", n, i), fmt.Sprintf("round %d, message %d", n, i))
		}
		all(devices, func(_ int, d *device) { d.answered(30 * time.Second) })
	}
	answeredBy := func(p *process) float64 { return p.metric(`butler_turns_total{reason="",status="answered"}`) }
	ask()
	joined := second.run()
	eventually(t, 15*time.Second, "the new brain answers some conversations", func() bool {
		ask()
		return answeredBy(second) > 0
	})
	within(t, "from ready until the new brain has its share", time.Since(joined), 10*time.Second)
	// It goes in order: its share is back at once.
	left := time.Now()
	second.stop()
	ask()
	within(t, "from the end of a brain until all conversations are answered again", time.Since(left), 10*time.Second)
	c.check(devices, conditions{again: true})
}
