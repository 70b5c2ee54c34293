package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

// Fifty people and a model that answers at once.
func TestInstantModel(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	model.answers(20, 0)
	up := startUp(t, model)
	run := func(messages int) (goroutines float64) {
		for _, d := range load(t, up.site, 50, messages) {
			d.stop()
		}
		eventually(t, 20*time.Second, "all connections are gone", func() bool { return up.metric("butler_gateway_connections") == 0 })
		return up.metric("go_goroutines")
	}
	// Afterwards nothing of it is left (SO-03), but what the first time left as well: connections to the model, kept for
	// the next call.
	before, memory := run(2), up.memory()
	after := run(sample(8, 40))
	t.Logf("goroutines %.0f → %.0f, memory %.1f → %.1f MB", before, after, mb(memory), mb(up.memory()))
	if after > before+50 {
		t.Errorf("%.0f goroutines after the load, %.0f before", after, before)
	}
}

// Two hundred people and a model at 20 ms a token.
func TestSlowModel(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	model.answers(20, 20*time.Millisecond)
	load(t, startUp(t, model).site, sample(60, 200), sample(3, 5))
}

// The same over two gateways and two brains.
func TestLoadOnServices(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	model.answers(20, 0)
	load(t, startCluster(t, model, storagetest.Shared(t)).site, sample(20, 50), sample(6, 40))
}

// load has people send so many messages each: most wait for each answer, every fifth sends all at once. Every tenth has a
// second tab.
func load(t *testing.T, s *site, people, messages int) (devices []*device) {
	devices = s.each(s.people(people))
	var tabs []*device
	for i := 0; i < len(devices); i += 10 {
		tabs = append(tabs, s.connect(devices[i].who))
	}
	began := time.Now()
	all(devices, func(i int, d *device) {
		for n := range messages {
			id := fmt.Sprintf("load-%d-%d", i, n)
			m := d.say(0, id, fmt.Sprintf("message %d of %s: what is the weather like?", n, d.who.name))
			if i%5 != 4 {
				d.until(60*time.Second, "the answer to "+id, func() bool { return m.final != nil })
			}
		}
		d.answered(120 * time.Second)
	})
	took := time.Since(began)
	s.check(devices, conditions{})
	for k, tab := range tabs {
		tab.until(10*time.Second, "the other tab has all answers", func() bool {
			return count(tab.frames, func(f *frame) bool { return f.Type == "CHAT" && f.ReplyToLocalID != "" }) == messages
		})
		if n := count(tab.seen(), func(f *frame) bool { return f.Type == "CHAT_STREAM_END" }); n > messages {
			t.Errorf("tab %d saw %d ends of %d streams", k, n, messages)
		}
	}
	var times []time.Duration
	for _, d := range devices {
		for _, m := range d.sent {
			if m.final != nil {
				times = append(times, d.took(m))
			}
		}
	}
	slices.Sort(times)
	t.Logf("%d people × %d messages in %v: %.0f turns/s, p50 %v, p99 %v (with the test's own clients)", people, messages,
		took.Round(time.Millisecond), float64(len(times))/took.Seconds(),
		times[len(times)/2].Round(time.Millisecond), times[len(times)*99/100].Round(time.Millisecond))
	return append(devices, tabs...)
}
