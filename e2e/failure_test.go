package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

// Whatever the model does, a message ends with an answer or with a reason in the person's language, the log says more
// (MS-22), and the conversation goes on.
func TestModelFailures(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	up := startUp(t, model, "BUTLER_MODEL_RETRIES=1", "BUTLER_MODEL_IDLE_TIMEOUT=2s", "BUTLER_MAX_STEPS=3")
	failures := map[string]modeltest.Reply{ // by what the message says
		"refused with 400":       {modeltest.Refuse(400, "bad_request", "no such thing")},
		"refused with 401":       {modeltest.Refuse(401, "invalid_api_key", "wrong key")},
		"refused with 429":       {modeltest.Status(429, "Retry-After: 1", `{"error":{"message":"slow down"}}`)},
		"refused with 500":       {modeltest.Refuse(500, "internal", "out of order")},
		"cut in mid-answer":      {modeltest.Text("half an ", "answ"), modeltest.Cut()},
		"an empty answer":        {modeltest.Empty()},
		"silence in mid-answer":  {modeltest.Text("half an answ"), modeltest.Hang()},
		"garbage":                {modeltest.Text("half an answ"), modeltest.Garbage()},
		"a context that is full": {modeltest.Refuse(400, "context_length_exceeded", "maximum context length is 10 tokens")},
		"tool calls without end": {modeltest.Tool("no_such_tool", "{}")},
	}
	model.by(func(text string) modeltest.Reply {
		for what, reply := range failures {
			if strings.Contains(text, what) {
				return reply
			}
		}
		return nil
	})
	var devices []*device
	people := up.people(len(failures))
	sentences := map[string]bool{}
	for i, what := range slices.Sorted(maps.Keys(failures)) {
		d := up.connect(people[i])
		devices = append(devices, d)
		d.say(0, "fails", "a message for "+what)
		d.say(0, "goes on", fmt.Sprintf("and afterwards, person %d", i))
	}
	all(devices, func(_ int, d *device) { d.answered(60 * time.Second) })
	for _, d := range devices {
		m, next := d.sent["fails"], d.sent["goes on"]
		if m.final.Status != "failed" {
			t.Errorf("%s: %s", m.Payload, m.final)
		}
		t.Logf("%s: %s: %s", m.Payload, m.final.Reason, m.final.Payload)
		sentences[m.final.Reason] = true
		if next.final.Status != "answered" {
			t.Errorf("after %s: %s", m.Payload, next.final)
		}
		// A cut answer is never stored as a whole one.
		if m.final.Payload == "half an answ" {
			t.Errorf("%s: half an answer stands as a whole one", m.Payload)
		}
	}
	if len(sentences) < 5 {
		t.Errorf("all these failures have but %d reasons", len(sentences))
	}
	up.check(devices, conditions{unanswerable: true, again: true})
	// The operator finds more, and no secret.
	text := up.text()
	for _, d := range devices {
		if d.sent["fails"].final.Reason == "tool_loop" {
			continue // that was no failure of the model
		}
		if !strings.Contains(text, fmt.Sprintf("turn=%d.%d.fails", d.who.id, d.sent["fails"].echo.ConversationID)) {
			t.Errorf("the log does not name the failed turn of person %d", d.who.id)
		}
	}
	if strings.Contains(text, "none-needed") {
		t.Error("the model's token is in the log")
	}
	// In Chinese for who speaks it.
	d := devices[0]
	d.raw(`{"type":"CHAT","local_id":"chinese","target_id":2,"language":"zh","payload":"a message for refused with 500"}`)
	d.until(30*time.Second, "the answer", func() bool { return d.finalOf("chinese") != nil })
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.finalOf("chinese"); !strings.ContainsFunc(f.Payload, func(r rune) bool { return r >= 0x4e00 && r <= 0x9fff }) {
		t.Errorf("a failure told in another language: %s", f)
	}
}

// finalOf gives the final answer to a message, nil when there is none yet. The mutex is held.
func (d *device) finalOf(localID string) *frame {
	for _, f := range d.frames {
		if f.Type == "CHAT" && f.ReplyToLocalID == localID {
			return f
		}
	}
	return nil
}

// Answers that take longer than anything waits for an acknowledgement are still given once (NA-02): two brains, ten
// messages, each answered after a long silence.
func TestLongAnswers(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	silence := time.Duration(sample(9, 35)) * time.Second // the ack wait is 6 s, that of other consumers 30 s
	model.by(func(string) modeltest.Reply { return modeltest.Reply{modeltest.Delay(silence), modeltest.Echo(5)} })
	c := startCluster(t, model, storagetest.Shared(t))
	devices := c.each(c.people(10))
	for i, d := range devices {
		d.say(0, "long", fmt.Sprintf("message %d, answered after a long silence", i))
		d.say(0, "second", fmt.Sprintf("message %d, which waits for that", i))
	}
	all(devices, func(_ int, d *device) {
		d.until(2*silence+30*time.Second, "the answer", func() bool { return d.sent["long"].final != nil })
	})
	model.by(nil)
	all(devices, func(_ int, d *device) { d.answered(2*silence + 30*time.Second) })
	c.check(devices, conditions{})
}

// While the registry is away, chat goes on and the list of agents is what was last known (MS-18).
func TestRegistryAway(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	c := startCluster(t, model, storagetest.Shared(t))
	devices := c.each(c.people(3))
	talk := func(when string) {
		t.Helper()
		for i, d := range devices {
			m := d.say(0, when, fmt.Sprintf("%s, person %d", when, i))
			d.until(20*time.Second, "the answer "+when, func() bool { return m.final != nil })
			within(t, "an answer "+when, d.took(m), 3*time.Second)
		}
	}
	talk("before")
	c.as(devices[0].who).must(t, http.StatusOK, "GET", "/api/users/agents", nil, nil)
	c.registries[0].kill()
	talk("while the registry is away")
	status, header, err := c.as(devices[0].who).do(context.Background(), "GET", "/api/users/agents", nil, nil)
	if err != nil || status != http.StatusOK || header.Get("X-Butler-Stale") != "true" {
		t.Errorf("the agents while the registry is away: %d, X-Butler-Stale %q, %v", status, header.Get("X-Butler-Stale"), err)
	}
	c.registries[0].run()
	talk("afterwards")
	eventually(t, 20*time.Second, "fresh agents", func() bool {
		status, header, err := c.as(devices[0].who).do(context.Background(), "GET", "/api/users/agents", nil, nil)
		return err == nil && status == http.StatusOK && header.Get("X-Butler-Stale") == ""
	})
	c.check(devices, conditions{})
}

// Somebody who is away while Butler dies and comes back finds the answer when they connect again, once (MS-05).
func TestAnswerWaitsForTheClient(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	model.answers(slowChunks, slowPause)
	up := startUp(t, model)
	d := up.connect(up.people(1)[0])
	m := d.say(0, "and away", "I ask this and leave")
	d.until(20*time.Second, "the first pieces", func() bool { return d.streamed("and away") > 3 })
	d.halt(true)
	up.kill()
	up.run()
	eventually(t, 30*time.Second, "the answer, with nobody there", func() bool {
		var page []stored
		status, _, err := up.as(d.who).do(context.Background(), "GET", fmt.Sprintf("/api/chat/history/%d", butlerID), nil, &page)
		return err == nil && status == http.StatusOK && slices.ContainsFunc(page, func(m stored) bool { return m.ReplyToLocalID == "and away" })
	})
	d.halt(false)
	d.until(20*time.Second, "the answer, after all", func() bool { return m.final != nil })
	// What comes next comes after it, and it does not come again.
	d.say(0, "back", "I am back")
	d.answered(20 * time.Second)
	up.check([]*device{d}, conditions{cut: true, deltasLost: true, again: true})
	if n := count(d.seen(), func(f *frame) bool { return f.Type == "CHAT" && f.ReplyToLocalID == "and away" }); n != 1 {
		t.Errorf("the answer was told %d times", n)
	}
}
