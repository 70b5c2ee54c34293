package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/journal"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// idlePeople is over how many people the idle connections are spread.
const idlePeople = 20

const mib = 1 << 20

// idle measures what Butler costs while nobody says anything, and how long it takes to be there.
func idle(ctx context.Context, r *rig, out *report) error {
	const g = "idle"
	r.say("idle: an empty log")
	b, err := r.newProduct(r.butler, "")
	if err != nil {
		return err
	}
	if err := b.start(ctx, "up"); err != nil {
		return err
	}
	out.add(g, "first start", "ready", milliseconds(b.readyIn), "ms").below(2000)
	memory, busy, err := b.rest(ctx, r.o.settle)
	if err != nil {
		return err
	}
	out.add(g, "first start", "memory", memory, "MiB").below(80)
	out.add(g, "first start", "cpu", busy, "% of a core")
	people, err := b.people(ctx, idlePeople)
	if err != nil {
		return err
	}
	// Signing people in takes memory of its own, so it is not the process that signed them in that is measured.
	if err := b.stop(); err != nil {
		return err
	}
	if err := idleConnections(ctx, r, b, people, out); err != nil {
		return err
	}
	if err := fullLog(ctx, r, out); err != nil {
		return err
	}
	out.table(table{
		group: g, rows: "`butler up`", title: "Idle: memory, processor, and the time from the start of the process to /ready",
		notes: []string{
			"memory: resident set, after " + r.o.settle.String() + " of rest; connections: how much more with that many idle WebSockets",
			"each conversation of the full log has 20 messages; all are answered and read by everybody",
		},
	})
	return nil
}

// rest lets the product do nothing for a while, and gives its memory then and the processor time that it used meanwhile.
func (b *product) rest(ctx context.Context, d time.Duration) (memory, busy float64, err error) {
	if err := pause(ctx, d/2); err != nil { // what the start left to do
		return 0, 0, err
	}
	before := cpu(b.pid())
	if err := pause(ctx, d/2); err != nil {
		return 0, 0, err
	}
	busy = 100 * (cpu(b.pid()) - before).Seconds() / (d / 2).Seconds()
	bytes, err := b.rss(ctx)
	return float64(bytes) / mib, busy, err
}

func idleConnections(ctx context.Context, r *rig, b *product, people []*person, out *report) error {
	const g = "idle"
	r.say("idle: %d connections", r.o.connections)
	if err := b.start(ctx, "up"); err != nil {
		return err
	}
	name := fmt.Sprintf("%d connections", r.o.connections)
	out.add(g, name, "ready", milliseconds(b.readyIn), "ms")
	before, _, err := b.rest(ctx, r.o.settle)
	if err != nil {
		return err
	}
	var open atomic.Int64
	connections := make([]*websocket.Conn, r.o.connections)
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		for _, ws := range connections {
			if ws != nil {
				_ = ws.CloseNow()
			}
		}
	}()
	dial, dialCtx := errgroup.WithContext(ctx)
	dial.SetLimit(8)
	for i := range connections {
		dial.Go(func() error {
			ws, err := b.connect(dialCtx, people[i%len(people)])
			if err != nil {
				return err
			}
			connections[i] = ws
			open.Add(1)
			go func() {
				for { // answers pings, until the end; the first frame says where the connection stands
					if _, _, err := ws.Read(wait); err != nil {
						break
					}
				}
				open.Add(-1)
			}()
			return nil
		})
	}
	if err := dial.Wait(); err != nil {
		return err
	}
	after, busy, err := b.rest(ctx, r.o.settle)
	if err != nil {
		return err
	}
	if n := open.Load(); n != int64(r.o.connections) {
		return fmt.Errorf("of %d idle connections %d are open", r.o.connections, n)
	}
	out.add(g, name, "memory", after, "MiB")
	out.add(g, name, "cpu", busy, "% of a core")
	out.add(g, name, "connections", after-before, "MiB").below(40)
	return nil
}

// fullLog measures the time to ready with many messages in the log: after an orderly stop, and after kill -9.
func fullLog(ctx context.Context, r *rig, out *report) error {
	const g = "idle"
	r.say("idle: a log of %d messages", r.o.logMessages)
	b, err := r.newProduct(r.butler, "")
	if err != nil {
		return err
	}
	if err := fill(ctx, filepath.Join(b.dir, "nats"), r.o.logMessages); err != nil {
		return fmt.Errorf("filling a log: %w", err)
	}
	for _, how := range []string{"", ", after kill -9"} {
		if how != "" {
			b.kill()
		}
		if err := b.start(ctx, "up"); err != nil {
			return err
		}
		name := fmt.Sprintf("%d messages in the log%s", r.o.logMessages, how)
		out.add(g, name, "ready", milliseconds(b.readyIn), "ms").below(2000)
		memory, busy, err := b.rest(ctx, r.o.settle)
		if err != nil {
			return err
		}
		out.add(g, name, "memory", memory, "MiB")
		out.add(g, name, "cpu", busy, "% of a core")
	}
	return nil
}

// fillWithin bounds what is waited for while a log is filled.
const fillWithin = time.Minute

// fill makes a log of n messages, half of them questions and half their answers, that everybody has read.
func fill(ctx context.Context, dir string, n int) error {
	server, err := bus.StartServer(bus.ServerOptions{Dir: dir, Addr: "127.0.0.1:0", Sync: 2 * time.Minute, Operator: "operator-of-the-bench"})
	if err != nil {
		return err
	}
	defer server.Close()
	b, err := bus.Connect(ctx, bus.Options{Server: server, Service: "brain"})
	if err != nil {
		return err
	}
	defer b.Close()
	if err := b.Ensure(ctx, bus.ChatStream, bus.DeltaStream, bus.WorkStream, bus.ParkedStream, bus.PresenceBucket); err != nil {
		return err
	}
	nc, _, err := connect("nats://operator:operator-of-the-bench@" + server.URL()[len("nats://"):])
	if err != nil {
		return err
	}
	defer nc.Close()
	failed := make(chan error, 1)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(fillWithin),
		jetstream.WithPublishAsyncMaxPending(4000), jetstream.WithPublishAsyncTimeout(fillWithin),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) {
			select {
			case failed <- err:
			default: // one is enough
			}
		}))
	if err != nil {
		return err
	}
	for i := range n / 2 {
		turn := chat.Turn{Session: chat.Session{Person: int64(1 + i/10%1000), Thread: int64(1 + i/10)}, ID: fmt.Sprintf("m-%d", i)}
		if err := publishTurn(js, b.Source(), turn); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case err := <-failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-failed:
		return err
	default:
	}
	return acknowledge(ctx, js)
}

func publishTurn(js jetstream.JetStream, source string, turn chat.Turn) error {
	asked, err := chat.Encode(&butlerv1.ChatAsked{
		Sender:         &butlerv1.Actor{Id: turn.Person, Name: "person", Role: "MEMBER"},
		ConversationId: turn.Thread, LocalId: turn.ID, Text: modelQuestion, Channel: "websocket",
	})
	if err != nil {
		return err
	}
	reply, err := chat.Encode(&butlerv1.ChatReply{
		Text: "answer to: " + modelQuestion, StreamId: turn.ID + "-1-1", Deltas: 2, ConversationId: turn.Thread,
		ReplyToLocalId: turn.ID, Model: "test-model", Usage: &butlerv1.Usage{PromptTokens: 10, CompletionTokens: 20, ModelCalls: 1},
	})
	if err != nil {
		return err
	}
	answer, err := journal.Record{
		Kind: journal.KindEnd, Worker: "bench", End: &journal.End{Status: chat.Answered, Result: reply},
	}.Encode()
	if err != nil {
		return err
	}
	for _, m := range []struct {
		kind chat.Kind
		data []byte
	}{{chat.Asked, asked}, {chat.Answer, answer}} {
		ev := bus.NewEvent(m.kind.Type(), source, turn.Subject(m.kind), m.data)
		msg := &nats.Msg{Subject: ev.Subject, Header: headerOf(ev), Data: ev.Data}
		if _, err := js.PublishMsgAsync(msg, jetstream.WithMsgID(ev.ID), jetstream.WithExpectStream(bus.ChatStream), jetstream.WithStallWait(time.Minute)); err != nil {
			return err
		}
	}
	return nil
}

// acknowledge reads everything as the services do.
func acknowledge(ctx context.Context, js jetstream.JetStream) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, c := range bus.Consumers(bus.ChatStream) {
		g.Go(func() error {
			cons, err := js.Consumer(ctx, bus.ChatStream, c.Durable)
			if err != nil {
				return err
			}
			opts := []jetstream.PullConsumeOpt{jetstream.PullMaxMessages(500)}
			if len(c.PriorityGroups) > 0 {
				opts = append(opts, jetstream.PullPriorityGroup(c.PriorityGroups[0]))
			}
			consuming, err := cons.Consume(func(m jetstream.Msg) { _ = m.Ack() }, opts...) // else it comes again
			if err != nil {
				return err
			}
			defer consuming.Stop()
			return drained(ctx, cons)
		})
	}
	return g.Wait()
}

// drained waits until a consumer has nothing to deliver and nothing that is not acknowledged.
func drained(ctx context.Context, cons jetstream.Consumer) error {
	left, since := uint64(1<<63), time.Now()
	for {
		info, err := cons.Info(ctx)
		if err != nil {
			return err
		}
		now := info.NumPending + uint64(info.NumAckPending)
		switch {
		case now == 0:
			return nil
		case now < left:
			left, since = now, time.Now()
		case time.Since(since) > fillWithin:
			return fmt.Errorf("%s stands still with %d messages left", info.Name, now)
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}
