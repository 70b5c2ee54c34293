package e2e

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

// slowChunks and slowPause make an answer of about a second: long enough to die in.
const (
	slowChunks = 40
	slowPause  = 25 * time.Millisecond
)

// conversation is several people who go on talking while things break, two of them with two messages waiting at a time.
type conversation struct {
	site    *site
	devices []*device
	others  []*device // second tabs, which only listen
	quit    chan struct{}
	done    sync.WaitGroup
}

// talk has people talk until end is called.
func (s *site) talk(people []*person) *conversation {
	c := &conversation{site: s, devices: s.each(people), quit: make(chan struct{})}
	c.others = s.each(people[:1])
	for i, d := range c.devices {
		c.done.Go(func() {
			for n := 1; ; n++ {
				d.say(0, fmt.Sprintf("%s-%d", d.who.name, n), fmt.Sprintf("message %d of %s, which is answered slowly and at some length", n, d.who.name))
				ahead := 1 + i%2 // messages that may be open
				if !d.wait(c.quit, func() bool { return d.open() < ahead }) {
					return
				}
			}
		})
	}
	return c
}

// wait waits until ok gives true, which it calls with the mutex held; false when quit was closed before.
func (d *device) wait(quit <-chan struct{}, ok func() bool) bool {
	for {
		d.mu.Lock()
		good, changed := ok(), d.changed
		d.mu.Unlock()
		if good {
			select {
			case <-quit:
				return false
			default:
				return true
			}
		}
		select {
		case <-quit:
			return false
		case <-changed:
		}
	}
}

// end has nobody say anything more, waits for all answers, and counts.
func (c *conversation) end(within time.Duration, how conditions) {
	c.site.t.Helper()
	close(c.quit)
	c.done.Wait()
	for _, d := range c.devices {
		d.answered(within)
	}
	c.site.check(c.devices, how)
	// The other tabs of the same people saw the same answers.
	for i, o := range c.others {
		d := c.devices[i]
		o.until(within, "the other tab to see all answers", func() bool {
			seen := map[string]bool{}
			for _, f := range o.frames {
				if f.Type == "CHAT" && f.ReplyToLocalID != "" {
					seen[f.ReplyToLocalID] = true
				}
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			for id, m := range d.sent {
				if m.final != nil && !seen[id] {
					return false
				}
			}
			return true
		})
	}
}

// interrupted gives the texts that the model is answering now, as far as devices know.
func (c *conversation) interrupted() []string {
	var out []string
	for _, d := range c.devices {
		d.mu.Lock()
		for _, id := range d.order {
			if m := d.sent[id]; m.echo != nil && m.final == nil && d.streamed(id) > 0 {
				out = append(out, m.Payload)
			}
		}
		d.mu.Unlock()
	}
	return out
}

// kill -9 of the only process, at random moments of slow answers.
func TestKillUp(t *testing.T) {
	t.Parallel()
	chance := random(t)
	model := startModel(t)
	model.answers(slowChunks, slowPause)
	up := startUp(t, model)
	talk := up.talk(up.people(6))
	for n := range sample(5, 20) {
		// A random moment of an answer, from before its first piece until after its last one.
		moment := time.Duration(chance.Int64N(int64(slowChunks * slowPause * 5 / 4)))
		time.Sleep(moment) // the random moment is the point
		up.kill()
		begun := talk.interrupted()
		before := map[string]int{}
		for _, text := range begun {
			before[text] = len(model.asked(text))
		}
		started := time.Now()
		ready := up.run()
		t.Logf("kill %d after %v: %d answers interrupted, ready again in %v", n+1, moment, len(begun), ready.Sub(started).Round(time.Millisecond))
		if n%3 == 1 {
			continue // again at once: what goes on is interrupted as well
		}
		var slowest time.Duration
		for _, text := range begun {
			eventually(t, 15*time.Second, "an interrupted answer goes on: "+text, func() bool {
				return len(model.asked(text)) > before[text] || talk.finished(text)
			})
			if calls := model.asked(text); len(calls) > before[text] {
				slowest = max(slowest, calls[before[text]].Sub(ready))
			}
		}
		within(t, "from ready to going on with what was interrupted", slowest, time.Second)
		for _, text := range begun {
			eventually(t, 30*time.Second, "an interrupted answer is complete: "+text, func() bool { return talk.finished(text) })
		}
	}
	talk.end(60*time.Second, conditions{cut: true, deltasLost: true, again: true})
}

// finished says whether a message has its answer.
func (c *conversation) finished(text string) bool {
	for _, d := range c.devices {
		d.mu.Lock()
		for _, m := range d.sent {
			if m.Payload == text && m.final != nil {
				d.mu.Unlock()
				return true
			}
		}
		d.mu.Unlock()
	}
	return false
}

// kill -9 of each service of the distributed form in turn.
func TestKillServices(t *testing.T) {
	t.Parallel()
	chance := random(t)
	model := startModel(t)
	model.answers(slowChunks, slowPause)
	c := startCluster(t, model, storagetest.Shared(t))
	talk := c.talk(c.people(6))
	moment := func() { time.Sleep(time.Duration(chance.Int64N(int64(slowChunks * slowPause)))) } // as above
	for range sample(1, 5) {
		for _, p := range c.services() {
			moment()
			p.kill()
			begun := talk.interrupted()
			killed := time.Now()
			for _, text := range begun {
				eventually(t, 30*time.Second, "an answer although "+p.name+" was killed: "+text, func() bool { return talk.finished(text) })
			}
			within(t, fmt.Sprintf("from the kill of %s until the %d answers that were streaming are complete", p.name, len(begun)),
				time.Since(killed), 30*time.Second)
			p.run()
		}
	}
	talk.end(60*time.Second, conditions{cut: true, again: true})
}

// kill -9 of the NATS server, which holds the log. What was acknowledged is there afterwards.
func TestKillNATS(t *testing.T) {
	t.Parallel()
	chance := random(t)
	model := startModel(t)
	model.answers(slowChunks, slowPause)
	c := startCluster(t, model, storagetest.Shared(t))
	talk := c.talk(c.people(4))
	for range sample(2, 10) {
		time.Sleep(time.Duration(chance.Int64N(int64(slowChunks * slowPause)))) // a random moment is the point
		c.nats.kill()
		c.nats.run()
		for _, p := range c.services() {
			p.waitReady()
		}
	}
	talk.end(60*time.Second, conditions{cut: true, natsAway: true, again: true})
}

// Everything dies at once, as in a power cut, and starts again in any order.
func TestKillEverything(t *testing.T) {
	t.Parallel()
	chance := random(t)
	model := startModel(t)
	model.answers(slowChunks, slowPause)
	c := startCluster(t, model, storagetest.Shared(t))
	talk := c.talk(c.people(6))
	for range sample(1, 10) {
		time.Sleep(time.Duration(chance.Int64N(int64(slowChunks * slowPause)))) // a random moment is the point
		processes := append(c.services(), c.nats)
		chance.Shuffle(len(processes), func(i, j int) { processes[i], processes[j] = processes[j], processes[i] })
		for _, p := range processes {
			p.signal(syscall.SIGKILL)
		}
		begun := talk.interrupted()
		for _, p := range processes {
			<-p.done
			p.start()
		}
		for _, p := range processes {
			p.waitReady()
		}
		ready := time.Now()
		for _, text := range begun {
			eventually(t, 30*time.Second, "an interrupted answer is complete: "+text, func() bool { return talk.finished(text) })
		}
		within(t, fmt.Sprintf("from ready until %d interrupted answers are complete", len(begun)), time.Since(ready), 15*time.Second)
	}
	talk.end(60*time.Second, conditions{cut: true, deltasLost: true, again: true})
}

// A brain that was frozen wakes up when another has taken its work: it says nothing more.
func TestFrozenBrain(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	c := startCluster(t, model, storagetest.Shared(t))
	// Each message is answered in a single pause that is longer than the takeover.
	gate := modeltest.NewGate()
	model.by(func(text string) modeltest.Reply {
		if len(model.asked(text)) > 1 {
			return nil // whoever took over gets an answer at once
		}
		return modeltest.Reply{modeltest.Text("begun "), modeltest.At(gate), modeltest.Text("by the first")}
	})
	people := c.people(8)
	devices := c.each(people)
	for i, d := range devices {
		d.say(0, fmt.Sprintf("frozen-%d", i), fmt.Sprintf("message %d", i))
	}
	all(devices, func(i int, d *device) {
		d.until(20*time.Second, "the first piece", func() bool { return d.streamed(fmt.Sprintf("frozen-%d", i)) > 0 })
	})
	c.brains[0].pause()
	frozen := time.Now()
	// The other brain takes over what the frozen one had; what it has itself stands at the gate.
	taken := func() (n int) {
		for i := range devices {
			if len(model.asked(fmt.Sprintf("message %d", i))) > 1 {
				n++
			}
		}
		return n
	}
	const freeze = 12 * time.Second
	eventually(t, 30*time.Second, "the other brain takes over", func() bool { return taken() > 0 })
	within(t, "takeover of a frozen brain", time.Since(frozen), 30*time.Second)
	time.Sleep(time.Until(frozen.Add(freeze))) // how long it stays frozen is the point
	c.brains[0].resume()
	gate.Open()
	all(devices, func(_ int, d *device) { d.answered(30 * time.Second) })
	// It must have had time to say something wrong: its next messages prove that it is awake.
	for i, d := range devices {
		d.say(0, fmt.Sprintf("after-%d", i), fmt.Sprintf("afterwards %d", i))
	}
	model.by(nil)
	all(devices, func(_ int, d *device) { d.answered(30 * time.Second) })
	t.Logf("%d of %d conversations were taken over", taken(), len(devices))
	c.check(devices, conditions{cut: true, again: true})
}
