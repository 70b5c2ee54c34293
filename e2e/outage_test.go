package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

// outage is how long something is away.
const outage = 5 * time.Second

// The NATS server is stopped for five seconds under load.
func TestNATSAway(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	model.answers(20, 10*time.Millisecond)
	c := startCluster(t, model, storagetest.Shared(t))
	people := c.people(sample(10, 50))
	talk := c.talk(people)
	talk.some(3)
	// Somebody looks on, as with `nats sub`: a subscriber must not hide that no stream takes an event (NA-08).
	if _, err := c.operator().nc.Subscribe("butler.>", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	c.nats.stop()
	away := time.Now()
	// Services live on and say what is missing.
	for _, p := range c.services() {
		eventually(t, 10*time.Second, p.name+" is not ready without NATS", func() bool {
			ready, missing := p.ready()
			return !ready && strings.Contains(strings.ToLower(missing), "nats")
		})
	}
	// What cannot be put into the log is refused, and in words.
	var said string
	status, _, err := c.as(people[0]).do(context.Background(), "POST", "/api/chat/messages",
		map[string]any{"text": "while NATS is away", "local_id": "no-nats"}, &said)
	switch {
	case err != nil:
		t.Errorf("a message while NATS is away: %v", err)
	case status == http.StatusServiceUnavailable:
		if !strings.Contains(said, "error") {
			t.Errorf("refused without a sentence: %s", said)
		}
	case status != http.StatusAccepted: // it waited until NATS was back
		t.Errorf("a message while NATS is away: %d %s", status, said)
	}
	time.Sleep(time.Until(away.Add(outage))) // how long it is away is the point
	c.nats.run()
	back := time.Now()
	for _, p := range c.services() {
		p.waitReady()
	}
	t.Logf("all services are ready again %v after NATS", time.Since(back).Round(time.Millisecond))
	talk.some(2)
	talk.end(60*time.Second, conditions{cut: true, natsAway: true, again: true})
}

// some waits until each device has n more answers.
func (c *conversation) some(n int) {
	c.site.t.Helper()
	for _, d := range c.devices {
		d.mu.Lock()
		want := d.finals() + n
		d.mu.Unlock()
		d.until(60*time.Second, fmt.Sprintf("%d more answers", n), func() bool { return d.finals() >= want })
	}
}

// finals counts the messages that have their answer. The mutex is held.
func (d *device) finals() int {
	n := 0
	for _, m := range d.sent {
		if m.final != nil {
			n++
		}
	}
	return n
}

// PostgreSQL is stopped for five seconds under load: chat goes on, signing in does not, and the history is complete
// afterwards.
func TestPostgresAway(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	model.answers(20, 5*time.Millisecond)
	postgres := storagetest.New(t)
	c := startCluster(t, model, postgres)
	people := c.people(sample(10, 50))
	talk := c.talk(people)
	talk.some(2)
	postgres.Stop(t)
	away := time.Now()
	talk.some(3)
	t.Log("chat goes on without SQL")
	// A message over HTTP with a known token is accepted, and answered.
	var sent struct{ Answer *stored }
	c.as(people[0]).must(t, http.StatusOK, "POST", "/api/chat/messages",
		map[string]any{"text": "over HTTP while SQL is away", "local_id": "no-sql", "wait": 30}, &sent)
	if sent.Answer == nil || sent.Answer.Status != "answered" {
		t.Errorf("no answer over HTTP while SQL is away: %+v", sent)
	}
	for i := range c.urls {
		var said struct{ Error, Code string }
		status, header, err := caller{url: c.urls[i]}.do(context.Background(), "POST", "/api/auth/login",
			map[string]string{"username": people[0].name, "password": people[0].password}, &said)
		if err != nil || status != http.StatusServiceUnavailable || said.Code != "unavailable" ||
			len(strings.Fields(said.Error)) < 4 || header.Get("Retry-After") == "" {
			t.Errorf("signing in while SQL is away: %d %+v Retry-After %q %v", status, said, header.Get("Retry-After"), err)
		}
		// A token that nobody saw before cannot be checked either.
		status, _, err = caller{c.urls[i], "bt_" + strings.Repeat("x", 40)}.do(context.Background(), "GET", "/api/auth/me", nil, &said)
		if err != nil || status != http.StatusServiceUnavailable && status != http.StatusUnauthorized {
			t.Errorf("an unknown token while SQL is away: %d %v", status, err)
		}
	}
	// A device that loses its connection now comes back.
	d := talk.devices[1]
	d.halt(true)
	d.halt(false)
	d.until(10*time.Second, "the connection, while SQL is away", func() bool { return d.ws != nil })
	time.Sleep(time.Until(away.Add(outage))) // how long it is away is the point
	postgres.Start(t)
	talk.some(2)
	for _, p := range c.services() {
		p.waitReady()
	}
	talk.end(60*time.Second, conditions{cut: true})
	var history []stored
	c.as(people[0]).must(t, http.StatusOK, "GET", fmt.Sprintf("/api/chat/history/%d?limit=200", butlerID), nil, &history)
	if n := count(history, func(m stored) bool { return m.ReplyToLocalID == "no-sql" }); n != 1 {
		t.Errorf("the answer given while SQL was away is %d times in the history", n)
	}
	c.login(people[0].name, people[0].password)
}

func count[T any](list []T, ok func(T) bool) (n int) {
	for _, v := range list {
		if ok(v) {
			n++
		}
	}
	return n
}
