package main

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// countedStreams are those whose events a command makes. All but WORK are kept for ever.
var countedStreams = []string{bus.ChatStream, bus.ApprovalStream, bus.AuditStream, bus.WorkStream}

// operate connects to Butler's own log, as its operator.
func (b *product) operate() (*nats.Conn, jetstream.JetStream, error) {
	password, _, err := bus.OperatorPassword(b.dir)
	if err != nil {
		return nil, nil, err
	}
	return connect("nats://operator:" + password + "@" + b.nats)
}

// counted does f and adds what it appended to the log. What follows a command's last frame may be counted for the next.
func (c *shellCase) counted(ctx context.Context, into *commands, f func() error) error {
	nc, js, err := c.butler.operate()
	if err != nil {
		return err
	}
	defer nc.Close()
	count := func(sign uint64) error {
		for _, name := range countedStreams {
			s, err := js.Stream(ctx, name)
			if err != nil {
				return err
			}
			into.appended[name] += sign * s.CachedInfo().State.LastSeq
		}
		return nil
	}
	if err := count(^uint64(0)); err != nil { // -1
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return count(1)
}

// perCommand gives how many events a command made.
func (c commands) perCommand() float64 {
	var all uint64
	for _, n := range c.appended {
		all += n
	}
	return float64(all) / float64(max(1, len(c.done)+c.failed))
}

// moments is when the log stored the events of one command.
type moments struct {
	asked, request, decided, woken, resumed, taken, link, ended, answer time.Time
}

// way reads the log of what was measured, and gives what adds a table of when which event was stored.
func (c *shellCase) way(ctx context.Context) (func(*report), error) {
	nc, js, err := c.butler.operate()
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	byLocal, byAction := map[string]*moments{}, map[string]*moments{}
	for _, of := range []*commands{&c.typed, &c.asked} {
		for _, one := range of.done {
			m := &moments{}
			byLocal[one.local], byAction[one.action] = m, m
		}
	}
	taken := map[uint64]*moments{} // by the sequence of the taking
	err = c.read(ctx, js, bus.ChatStream, func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		turn, kind, err := chat.ParseSubject(m.Subject())
		if at := byLocal[turn.ID]; err == nil && at != nil {
			switch kind {
			case chat.Asked:
				at.asked = meta.Timestamp
			case chat.Signal:
				at.woken, at.resumed = meta.Timestamp, time.Time{}
			case chat.Step:
				if at.resumed.IsZero() {
					at.resumed = meta.Timestamp
				}
			case chat.Answer:
				at.answer = meta.Timestamp
			}
		}
	})
	if err != nil {
		return nil, err
	}
	err = c.read(ctx, js, bus.ApprovalStream, func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		tokens := strings.Split(m.Subject(), ".")
		at := byAction[tokens[len(tokens)-1]]
		switch {
		case at == nil:
		case tokens[1] == "approval" && at.request.IsZero():
			at.request = meta.Timestamp
		case tokens[1] == "approval":
			at.decided = meta.Timestamp
		case at.taken.IsZero():
			at.taken = meta.Timestamp
			taken[meta.Sequence.Stream] = at
		default:
			at.ended = meta.Timestamp
		}
	})
	if err != nil {
		return nil, err
	}
	err = c.read(ctx, js, bus.AuditStream, func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		var r butlerv1.AuditRecord
		if chat.Decode(m.Data(), &r) != nil {
			return
		}
		for _, i := range r.GetItems() {
			if at := taken[i.GetSeq()]; at != nil && i.GetStream() == bus.ApprovalStream {
				at.link = meta.Timestamp
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return func(out *report) {
		c.tellWay(out, c.name+", echo", &c.typed, byAction, func(one command) time.Time { return one.sent })
		c.tellWay(out, c.name+", asked", &c.asked, byAction, func(one command) time.Time { return one.decided })
	}, nil
}

func (c *shellCase) tellWay(out *report, kase string, of *commands, byAction map[string]*moments, from func(command) time.Time) {
	for _, step := range []struct {
		name string
		at   func(command, *moments) time.Time
	}{
		{"asked", func(_ command, m *moments) time.Time { return m.asked }},
		{"request", func(_ command, m *moments) time.Time { return m.request }},
		{"card", func(one command, _ *moments) time.Time { return one.card }},
		{"decided", func(_ command, m *moments) time.Time { return m.decided }},
		{"woken", func(_ command, m *moments) time.Time { return m.woken }},
		{"resumed", func(_ command, m *moments) time.Time { return m.resumed }},
		{"taken", func(_ command, m *moments) time.Time { return m.taken }},
		{"audit link", func(_ command, m *moments) time.Time { return m.link }},
		{"output", func(one command, _ *moments) time.Time { return one.output }},
		{"ended", func(_ command, m *moments) time.Time { return m.ended }},
		{"answer", func(_ command, m *moments) time.Time { return m.answer }},
		{"final", func(one command, _ *moments) time.Time { return one.final }},
	} {
		var times durations
		for _, one := range of.done {
			if at := step.at(one, byAction[one.action]); !at.IsZero() {
				times = append(times, at.Sub(from(one)))
			}
		}
		if len(times) > 0 {
			out.add("shell way", kase, step.name, times.ms(0.5), "ms")
		}
	}
}

// read gives the events of a stream since the measuring began.
func (c *shellCase) read(ctx context.Context, js jetstream.JetStream, stream string, take func(jetstream.Msg, *jetstream.MsgMetadata)) error {
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &c.started,
	})
	if err != nil {
		return err
	}
	left := consumer.CachedInfo().NumPending
	for left > 0 {
		batch, err := consumer.Fetch(int(min(left, 1000)), jetstream.FetchMaxWait(30*time.Second))
		if err != nil {
			return err
		}
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return err
			}
			take(m, meta)
			if left = min(left-1, meta.NumPending); left == 0 {
				break
			}
		}
		if err := batch.Error(); err != nil {
			return err
		}
	}
	return nil
}
