package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/storage/storagetest"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Ready in under two seconds with a large log: when services have yet to work through it, after a proper end, and after
// kill -9. A conversation of a thousand messages is in it, of which nothing is told again to who has seen it (MS-04), and
// a flood that came in while nobody was there is worked through afterwards (MS-24).
func TestLargeLog(t *testing.T) {
	t.Parallel()
	handled := sample(10_000, 990_000)
	const flood = 10_000 // events that nobody has handled yet
	const own = 1000     // of these: one person's conversation, questions and answers
	events := handled + flood
	model := startModel(t)
	up := startUp(t, model, "BUTLER_CONTEXT_COMPACTION_ENABLED=false")
	who := up.people(1)[0]
	thread := up.newThread(who)
	before := up.connect(who)
	before.say(thread, "before", "before all that")
	before.answered(20 * time.Second)
	// Handled to the end, since the consumers are moved on below.
	handledAll := func() bool {
		op := up.operator()
		defer op.nc.Close()
		return op.pending(t, bus.ChatStream) == 0
	}
	eventually(t, 20*time.Second, "the first message is handled", handledAll)
	before.halt(true)
	up.stop()

	filled := time.Now()
	fillLog(t, filepath.Join(up.dir, "nats"), handled, flood, own, who, thread)
	t.Logf("%d events put into the log in %v", events, time.Since(filled).Round(time.Millisecond))

	start := func(how string, limit time.Duration) {
		t.Helper()
		began := time.Now()
		within(t, "ready with a log of "+fmt.Sprint(events)+" events, "+how, up.run().Sub(began), limit)
	}
	start("some of which were not handled", 10*time.Second)
	// The history has all of it in the end, and new messages do not wait for that.
	d := up.connect(who)
	m := d.say(thread, "meanwhile", "while the backlog is being handled")
	d.until(30*time.Second, "an answer meanwhile", func() bool { return m.final != nil })
	within(t, "an answer beside the backlog", d.took(m), 5*time.Second)
	eventually(t, 60*time.Second, "the backlog is in the history", handledAll)
	n := 0
	eventually(t, 20*time.Second, fmt.Sprintf("%d messages in the history", own+4), func() bool {
		n = len(up.readHistory(d, thread))
		return n >= own+4
	})
	if n != own+4 {
		t.Errorf("the conversation has %d messages in the history, not %d", n, own+4)
	}
	if n := model.Count(); n != 2 {
		t.Errorf("the model was called %d times: for messages that had their answer", n)
	}
	if soak {
		// The server reads again what was stored within the window of deduplication, here all of it. No log grows so fast:
		// the aim is about one whose events are older.
		time.Sleep(time.Until(filled.Add(bus.Streams(1)[0].Duplicates + time.Minute)))
	}
	d.halt(true)
	up.stop()
	start("after a proper end", 2*time.Second)
	d.halt(false)
	m = d.say(thread, "unwritten", "the server's index of the log does not know this")
	d.until(30*time.Second, "an answer after a proper end", func() bool { return m.final != nil })
	d.halt(true)
	up.kill()
	start("after kill -9", time.Duration(sample(2, 10))*time.Second)

	// Who was away for all of it is told what they missed, or to read the history; who is up to date is told nothing.
	d.mu.Lock()
	seen := len(d.frames)
	d.mu.Unlock()
	d.halt(false)
	m = d.say(thread, "after", "after the restarts")
	d.until(30*time.Second, "an answer after the restarts", func() bool { return m.final != nil })
	for _, f := range d.seen()[seen:] {
		// The end of the last stream may come again: it is how a client learns of one that it missed.
		if f.LocalID != "after" && f.ReplyToLocalID != "after" && f.Type != "CHAT_STREAM_END" {
			t.Errorf("told again to a client that was up to date: %s", f)
		}
	}
	before.halt(false)
	before.until(30*time.Second, "the missed messages, or word that there are more", func() bool {
		last := before.frames[len(before.frames)-1]
		return last.Type == "GAP" || last.ReplyToLocalID == "after"
	})
	if n := model.Count(); n != 4 {
		t.Errorf("the model was called %d times, not 4", n)
	}
	up.check([]*device{d}, conditions{cut: true})
}

// pending gives how many messages the stream's durable consumers have yet to get or to acknowledge.
func (o *operator) pending(t testing.TB, stream string) (n uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := o.js.Stream(ctx, stream)
	if err != nil {
		t.Fatal(err)
	}
	list := s.ListConsumers(ctx)
	for c := range list.Info() {
		if c.Config.Durable != "" {
			n += c.NumPending + uint64(c.NumAckPending)
		}
	}
	if list.Err() != nil {
		t.Fatal(list.Err())
	}
	return n
}

// fillLog puts answered questions into the log of a Butler that does not run: so many events that every consumer is said
// to have handled, and then so many that none has. Of the latter the first are one person's conversation; all others are
// of people of whom nothing else is known, ten questions a conversation.
func fillLog(t *testing.T, dir string, handled, flood, own int, who *person, thread int64) {
	t.Helper()
	addr := freeAddr(t)
	const password = "filling-the-log-for-a-test"
	server, err := bus.StartServer(bus.ServerOptions{Dir: dir, Addr: addr, Sync: time.Minute, Operator: password})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	op := connectOperator(t, addr, nats.UserInfo("operator", password))
	defer op.nc.Close()
	var acks []jetstream.PubAckFuture
	flush := func() {
		for _, a := range acks {
			select {
			case <-a.Ok():
			case err := <-a.Err():
				t.Fatal(err)
			case <-ctx.Done():
				t.Fatal(ctx.Err())
			}
		}
		acks = acks[:0]
	}
	put := func(turn chat.Turn, kind chat.Kind, data []byte) {
		a, err := op.js.PublishMsgAsync(cloudEvent(turn.Subject(kind), turn.ID+"-"+string(kind), kind.Type(), data))
		if err != nil {
			t.Fatal(err)
		}
		if acks = append(acks, a); len(acks) == 1000 {
			flush()
		}
	}
	for n := range (handled + flood) / 2 {
		if n == handled/2 {
			flush()
			op.skipAll(t)
		}
		session := chat.Session{Person: who.id, Thread: thread}
		if n < handled/2 || n >= (handled+own)/2 {
			session = chat.Session{Person: int64(1_000_000 + n/100), Thread: int64(1_000_000 + n/10)}
		}
		turn := chat.Turn{Session: session, ID: fmt.Sprintf("filled-%d", n)}
		asked, err := chat.Encode(&butlerv1.ChatAsked{
			Sender: &butlerv1.Actor{Id: session.Person, Name: "somebody", Role: "MEMBER"}, ConversationId: session.Thread,
			LocalId: turn.ID, Text: fmt.Sprintf("question number %d of a long history", n), Channel: "websocket", Language: "en",
		})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := chat.Encode(&butlerv1.ChatAnswer{Worker: "filler", End: &butlerv1.ChatOutcome{
			Status: "answered", Result: &butlerv1.ChatReply{
				Text: fmt.Sprintf("answer number %d, of an ordinary length, as answers are", n), StreamId: turn.ID + "-1-1",
				ConversationId: session.Thread, ReplyToLocalId: turn.ID,
			},
		}})
		if err != nil {
			t.Fatal(err)
		}
		put(turn, chat.Asked, asked)
		put(turn, chat.Answer, answer)
	}
	flush()
}

// What is in force at the server is what is declared: nothing overrides the waiting times (NA-05).
func TestConsumersAreAsDeclared(t *testing.T) {
	t.Parallel()
	up := startUp(t, startModel(t))
	op := up.operator()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, stream := range bus.Streams(1) {
		s, err := op.js.Stream(ctx, stream.Name)
		if err != nil {
			t.Fatal(err)
		}
		have := s.CachedInfo().Config
		if have.Storage != stream.Storage || have.Retention != stream.Retention || have.MaxAge != stream.MaxAge ||
			have.Duplicates != stream.Duplicates || have.Discard != stream.Discard || have.MaxMsgs > 0 && have.MaxMsgs != stream.MaxMsgs {
			t.Errorf("%s is %+v, not %+v", stream.Name, have, stream)
		}
		for _, want := range bus.Consumers(stream.Name) {
			c, err := s.Consumer(ctx, want.Durable)
			if err != nil {
				t.Fatal(err)
			}
			have := c.CachedInfo().Config
			if have.AckWait != want.AckWait || len(have.BackOff) > 0 || have.MaxAckPending != want.MaxAckPending ||
				have.MaxDeliver != want.MaxDeliver || have.AckPolicy != want.AckPolicy || have.PinnedTTL != want.PinnedTTL {
				t.Errorf("%s of %s is %+v, not %+v", want.Durable, stream.Name, have, want)
			}
		}
	}
}

// Restarting services does not leave consumers behind (NA-09).
func TestConsumersStayFew(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	c := startCluster(t, model, storagetest.Shared(t))
	op := c.operator()
	d := c.connect(c.people(1)[0])
	d.say(0, "first", "before the restarts")
	d.answered(20 * time.Second)
	streams := []string{bus.ChatStream, bus.DeltaStream, bus.WorkStream, "KV_" + bus.PresenceBucket}
	consumers := func() map[string]int {
		n := map[string]int{}
		for _, s := range streams {
			n[s] = op.consumers(t, s)
		}
		return n
	}
	before := consumers()
	for i := range sample(10, 50) {
		p := []*process{c.gateways[i%2], c.brains[i%2]}[i/2%2]
		if i%3 == 0 {
			p.kill()
		} else {
			p.stop()
		}
		p.run()
	}
	d.say(0, "last", "after the restarts")
	d.answered(30 * time.Second)
	// What a killed process followed the log with has no name of its own and goes after a few seconds without it.
	eventually(t, 60*time.Second, fmt.Sprintf("as few consumers as before: %v", before), func() bool {
		for s, n := range consumers() {
			if n > before[s] {
				return false
			}
		}
		return true
	})
	t.Logf("consumers before and after %d restarts: %v", sample(10, 50), before)
	c.check([]*device{d}, conditions{cut: true})
}

// Many conversations that nobody goes on with cost no memory (SO-02).
func TestIdleSessions(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	up := startUp(t, model)
	sessions := sample(500, 5000)
	people := up.people(20) // one alone would be too fast
	ask := func(from, n int) {
		t.Helper()
		for i := from; i < from+n; i++ {
			who := people[i%len(people)]
			var sent struct{ Answer *stored }
			up.as(who).must(t, http.StatusOK, "POST", "/api/chat/messages", map[string]any{
				"text": fmt.Sprintf("message of session %d", i), "local_id": fmt.Sprintf("idle-%d", i),
				"conversation_id": up.newThread(who), "wait": 30,
			}, &sent)
			if sent.Answer == nil {
				t.Fatalf("session %d was not answered", i)
			}
		}
	}
	warm := sessions / 5
	ask(0, warm)
	heap := func() int64 { return int64(up.metric("go_memstats_heap_inuse_bytes")) }
	beforeRSS, beforeHeap, goroutines := up.memory(), heap(), up.metric("go_goroutines")
	ask(warm, sessions)
	afterRSS, afterHeap := up.memory(), heap()
	each := float64(afterRSS-beforeRSS) / float64(sessions) / 1024
	t.Logf("%d more sessions: RSS %.1f → %.1f MB, heap %.1f → %.1f MB (%.1f KiB a session), goroutines %.0f → %.0f",
		sessions, mb(beforeRSS), mb(afterRSS), mb(beforeHeap), mb(afterHeap), each, goroutines, up.metric("go_goroutines"))
	if each > 24 && afterRSS-beforeRSS > 16<<20 {
		t.Errorf("each idle session costs %.1f KiB", each)
	}
	if more := up.metric("go_goroutines") - goroutines; more > 50 {
		t.Errorf("%.0f goroutines more for %d idle sessions", more, sessions)
	}
}

// skipAll has the consumers of CHAT begin after what is there, as if they had handled all of it.
func (o *operator) skipAll(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := o.js.Stream(ctx, bus.ChatStream)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range bus.Consumers(bus.ChatStream) {
		c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, s.CachedInfo().State.LastSeq+1
		c.MemoryStorage = true // as on every embedded server: their positions are noted when it closes
		if err := s.DeleteConsumer(ctx, c.Durable); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Fatal(err)
		}
		if _, err := s.CreateConsumer(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
}

// cloudEvent makes an event as services frame it; without an id for an empty one.
func cloudEvent(subject, id, typ string, data []byte) *nats.Msg {
	msg := nats.NewMsg(subject)
	msg.Data = data
	for name, value := range map[string]string{
		"ce-specversion": "1.0", "ce-type": typ, "ce-source": "/butler/gateway",
		"ce-time": time.Now().UTC().Format(time.RFC3339Nano), "content-type": "application/json",
	} {
		msg.Header.Set(name, value)
	}
	if id != "" {
		msg.Header.Set("ce-id", id)
		msg.Header.Set("Nats-Msg-Id", id)
	}
	if strings.HasPrefix(subject, "butler.chat.") {
		msg.Header.Set("Nats-Expected-Stream", "CHAT") // without it Butler takes it for smuggled in
	}
	return msg
}
