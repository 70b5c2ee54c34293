package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/storage/storagetest"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// The same local_id again, however long ago the first was: the same answer, and one model call.
func TestSameLocalID(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	up := startUp(t, model)
	people := up.people(2)
	d := up.connect(people[0])
	const text = "said once"
	m := d.say(0, "once", text)
	d.answered(20 * time.Second)

	again := func(what string) {
		t.Helper()
		// Over the socket: this connection is told again.
		tab := up.connect(people[0])
		defer tab.stop()
		r := tab.say(0, "once", text)
		tab.until(20*time.Second, what, func() bool { return r.final != nil })
		if r.final.ID != m.final.ID || r.final.Payload != m.final.Payload || r.echo.ID != m.echo.ID {
			t.Errorf("%s: another answer: %s instead of %s", what, r.final, m.final)
		}
		// Over HTTP.
		var sent struct {
			ID     uint64
			Answer *stored
		}
		up.as(people[0]).must(t, http.StatusOK, "POST", "/api/chat/messages",
			map[string]any{"text": text, "local_id": "once", "wait": 10}, &sent)
		if sent.ID != m.echo.ID || sent.Answer == nil || sent.Answer.ID != m.final.ID {
			t.Errorf("%s over HTTP: %+v", what, sent)
		}
	}
	again("the same local_id at once")
	var others sync.WaitGroup
	for range 8 {
		others.Go(func() {
			_, _, _ = caller{up.urls[0], people[0].token}.do(context.Background(), "POST", "/api/chat/messages",
				map[string]any{"text": text, "local_id": "once"}, nil)
		})
	}
	others.Wait()
	up.stop()
	up.run()
	again("the same local_id after a restart")
	if soak {
		time.Sleep(130 * time.Second) // longer than NATS remembers ids is the point
		again("the same local_id after the duplicate window")
	}
	if n := len(model.asked(text)); n != 1 {
		t.Errorf("the model was called %d times", n)
	}
	// Another text under it is refused, another person's is another message.
	var said struct{ Error, Code string }
	status, _, err := up.as(people[0]).do(context.Background(), "POST", "/api/chat/messages",
		map[string]any{"text": "said otherwise", "local_id": "once"}, &said)
	if err != nil || status != http.StatusConflict || said.Code != "conflict" {
		t.Errorf("another text under the same local_id: %d %+v %v", status, said, err)
	}
	o := up.connect(people[1])
	o.say(0, "once", "said by another person")
	o.answered(20 * time.Second)
	up.check([]*device{o}, conditions{})
	up.check([]*device{d}, conditions{cut: true})
}

// The same event twice, published past the gateway: with its id within the duplicate window, and without any. A model is
// called once, and the history has it once.
func TestSameEvent(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	up := startUp(t, model)
	who := up.people(1)[0]
	thread := up.newThread(who)
	d := up.connect(who)
	op := up.operator()
	turn := chat.Turn{Session: chat.Session{Person: who.id, Thread: thread}, ID: "twice"}
	data, err := chat.Encode(&butlerv1.ChatAsked{
		Sender:         &butlerv1.Actor{Id: who.id, Name: who.name, Role: "MEMBER"},
		ConversationId: thread, LocalId: "twice", Text: "published twice", Channel: "websocket", Language: "en",
	})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(id string) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := op.js.PublishMsg(ctx, cloudEvent(turn.Subject(chat.Asked), id, chat.TypeAsked, data))
		return err
	}
	answers := func() int { // the mutex is held
		return count(d.frames, func(f *frame) bool { return f.Type == "CHAT" && f.ReplyToLocalID == "twice" })
	}
	for range 3 {
		if err := publish("event-1"); err != nil {
			t.Fatal(err)
		}
	}
	d.until(20*time.Second, "the answer", func() bool { return answers() > 0 })
	// Past the window, or from who knows where, the same event has another id or none: nothing in NATS holds it back.
	for _, id := range []string{"event-2", ""} {
		if err := publish(id); err != nil {
			t.Fatal(err)
		}
	}
	// A later message is answered, so everything before was handled.
	d.say(thread, "later", "said afterwards")
	d.answered(20 * time.Second)
	if n := len(model.asked("published twice")); n != 1 {
		t.Errorf("the model was called %d times for one event", n)
	}
	d.mu.Lock()
	n := answers()
	d.mu.Unlock()
	if n != 1 {
		t.Errorf("%d answers to one event", n)
	}
	eventually(t, 10*time.Second, "the history has the later message", func() bool {
		return count(up.readHistory(d, thread), func(m stored) bool { return m.ReplyToLocalID == "later" }) == 1
	})
	history := up.readHistory(d, thread)
	if n := count(history, func(m stored) bool { return m.LocalID == "twice" }); n != 1 {
		t.Errorf("the question is %d times in the history", n)
	}
	if n := count(history, func(m stored) bool { return m.ReplyToLocalID == "twice" }); n != 1 {
		t.Errorf("the answer is %d times in the history", n)
	}
}

// What is said while an answer is being given waits its turn, over both gateways and brains; other conversations of the
// same person do not wait.
func TestSecondMessageWaits(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	c := startCluster(t, model, storagetest.Shared(t))
	who := c.people(1)[0]
	elsewhere := c.newThread(who)
	gate := modeltest.NewGate()
	model.by(func(text string) modeltest.Reply {
		if text == "the first, which takes long" {
			return modeltest.Reply{modeltest.Text("well, "), modeltest.At(gate), modeltest.Echo(3)}
		}
		return nil
	})
	a, b := c.connectTo(who, c.urls[0]), c.connectTo(who, c.urls[1])
	a.say(0, "m1", "the first, which takes long")
	a.until(20*time.Second, "the first piece", func() bool { return a.streamed("m1") > 0 })
	later := []*message{}
	for i := 2; i <= 6; i++ {
		d := a
		if i%2 == 0 {
			d = b
		}
		m := d.say(0, fmt.Sprintf("m%d", i), fmt.Sprintf("message number %d", i))
		d.until(20*time.Second, "acceptance", func() bool { return m.echo != nil })
		later = append(later, m)
	}
	other := a.say(elsewhere, "other", "in another conversation")
	a.until(20*time.Second, "an answer in the other conversation", func() bool { return other.final != nil })
	for _, m := range later {
		if n := len(model.asked(m.Payload)); n != 0 {
			t.Errorf("%s did not wait", m.LocalID)
		}
	}
	gate.Open()
	a.answered(30 * time.Second)
	b.answered(30 * time.Second)
	c.check([]*device{a, b}, conditions{})
	for _, d := range []*device{a, b} {
		want := 1
		for _, f := range d.seen() {
			if f.Type == "CHAT" && f.ReplyToLocalID != "" && f.ConversationID != elsewhere {
				if f.ReplyToLocalID != fmt.Sprintf("m%d", want) {
					t.Errorf("the answer to %s came when m%d was due", f.ReplyToLocalID, want)
				}
				want++
			}
		}
	}
}

// Stop works at any moment: while text streams, before any has, while it waits its turn; from another tab, over another
// gateway, and over HTTP. It is not held up by what waits (MS-12).
func TestStop(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	c := startCluster(t, model, storagetest.Shared(t))
	who := c.people(1)[0]
	var mu sync.Mutex
	silent := map[string]bool{}
	model.by(func(text string) modeltest.Reply {
		mu.Lock()
		defer mu.Unlock()
		if silent[text] {
			return modeltest.Reply{modeltest.HangSilently()}
		}
		return modeltest.Reply{modeltest.Text("this much was said"), modeltest.Hang()}
	})
	a, b := c.connectTo(who, c.urls[0]), c.connectTo(who, c.urls[1])
	stops := map[string]func(id string){
		"the same tab": func(id string) { a.raw(fmt.Sprintf(`{"type":"STOP","local_id":%q}`, id)) },
		"another tab over the other gateway": func(id string) {
			b.raw(fmt.Sprintf(`{"type":"STOP","local_id":%q}`, id))
		},
		"HTTP on the other gateway": func(id string) {
			var out struct{ Stopped bool }
			c.as(who, 1).must(t, http.StatusOK, "POST", "/api/chat/stop", map[string]any{"local_id": id}, &out)
			if !out.Stopped {
				t.Errorf("%s: nothing was stopped", id)
			}
		},
		"everything": func(string) { b.raw(`{"type":"STOP"}`) },
	}
	n := 0
	for from, stop := range stops {
		for _, before := range []bool{false, true} {
			n++
			id := fmt.Sprintf("stop-%d", n)
			text := fmt.Sprintf("a question that is stopped, number %d", n)
			mu.Lock()
			silent[text] = before
			mu.Unlock()
			m := a.say(0, id, text)
			if before {
				eventually(t, 20*time.Second, "the model is asked", func() bool { return len(model.asked(text)) > 0 })
			} else {
				a.until(20*time.Second, "the first piece", func() bool { return a.streamed(id) > 0 })
			}
			// One that waits behind it is stopped as well, alone, and is never asked of the model.
			waiting := a.say(0, id+"-waiting", text+", waiting")
			a.until(20*time.Second, "acceptance", func() bool { return waiting.echo != nil })
			var out struct{ Stopped bool }
			c.as(who).must(t, http.StatusOK, "POST", "/api/chat/stop", map[string]any{"local_id": waiting.LocalID}, &out)
			if !out.Stopped {
				t.Errorf("what waited was not stopped")
			}
			stopped := time.Now()
			stop(id)
			a.until(20*time.Second, "the end of what was stopped by "+from, func() bool { return m.final != nil && waiting.final != nil })
			within(t, "stop from "+from, m.final.at.Sub(stopped), time.Second)
			if m.final.Status != "stopped" || !before && !strings.HasPrefix(m.final.Payload, "this much was said") {
				t.Errorf("stopped from %s: %s", from, m.final)
			}
			if waiting.final.Status != "stopped" || len(model.asked(waiting.Payload)) > 0 {
				t.Errorf("what waited was stopped: %s, the model was asked %d times", waiting.final, len(model.asked(waiting.Payload)))
			}
		}
	}
	eventually(t, 10*time.Second, "the model's calls are let go", func() bool { return model.Active() == 0 })
	model.by(nil)
	a.say(0, "goes on", "and it goes on")
	a.answered(20 * time.Second)
	c.check([]*device{a}, conditions{})
}
