package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/journal"
)

// unitLog is the journal's log over the stream CHAT, as butler-brain's is, and remembers what was appended last to each
// unit, so that the raw log can publish the same bytes.
type unitLog struct {
	bus *bus.Bus

	mu       sync.Mutex
	appended map[string][]stored
}

func (l *unitLog) Load(ctx context.Context, unit string, after uint64) ([]journal.Record, error) {
	turn, err := chat.ParseTurn(unit)
	if err != nil {
		return nil, err
	}
	events, err := l.bus.Load(ctx, bus.ChatStream, turn.Filter(), after, 0)
	if err != nil {
		return nil, err
	}
	out := make([]journal.Record, len(events))
	for i, ev := range events {
		_, kind, err := chat.ParseSubject(ev.Subject)
		if err != nil {
			return nil, err
		}
		out[i] = journal.Record{Seq: ev.Seq, At: ev.At, ID: ev.ID, Kind: recordKinds[kind]}
		if err := out[i].Decode(ev.Data); err != nil {
			return nil, err
		}
	}
	return out, nil
}

var (
	recordKinds = map[chat.Kind]journal.Kind{
		chat.Asked: journal.KindOpen, chat.Step: journal.KindStep, chat.Answer: journal.KindEnd,
	}
	subjectKinds = map[journal.Kind]chat.Kind{
		journal.KindOpen: chat.Asked, journal.KindStep: chat.Step, journal.KindEnd: chat.Answer,
	}
)

func (l *unitLog) Append(ctx context.Context, unit string, expect uint64, r journal.Record) (uint64, error) {
	turn, err := chat.ParseTurn(unit)
	if err != nil {
		return 0, err
	}
	data, err := r.Encode()
	if err != nil {
		return 0, err
	}
	kind := subjectKinds[r.Kind]
	ev := bus.NewEvent(kind.Type(), l.bus.Source(), turn.Subject(kind), data)
	ev.ID = r.ID
	seq, err := l.bus.Append(ctx, ev, bus.Expect{Filter: turn.Filter(), Seq: expect})
	if errors.Is(err, bus.ErrFenced) {
		return 0, journal.ErrConflict
	}
	if err == nil && r.Kind != journal.KindOpen {
		l.mu.Lock()
		l.appended[unit] = append(l.appended[unit], stored{headerOf(ev), data})
		l.mu.Unlock()
	}
	return seq, err
}

// headerOf gives the header that the bus writes for an event, without a condition.
func headerOf(ev bus.Event) nats.Header {
	return nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {ev.ID}, "ce-type": {ev.Type}, "ce-source": {ev.Source},
		"ce-time": {ev.Time.UTC().Format(time.RFC3339Nano)}, "content-type": {"application/json"},
	}
}

// take gives what was appended to a unit, and forgets it.
func (l *unitLog) take(unit string) []stored {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.appended[unit]
	delete(l.appended, unit)
	return out
}

// Set and Clear make it the journal's timers as well: the programs here wait for nothing.
func (l *unitLog) Set(context.Context, string, string, time.Time) error {
	return errors.New("nothing here sets a timer")
}

// Clear does nothing.
func (l *unitLog) Clear(context.Context, string, string) error { return nil }

// publish appends the same bytes to the raw log, without a condition.
func (l *rawLog) publish(ctx context.Context, m stored, subject string) error {
	h := maps.Clone(m.header)
	h[jetstream.MsgIDHeader] = []string{subject + "." + fmt.Sprint(l.units.Add(1))}
	_, err := l.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Header: h, Data: m.data})
	return err
}

// work is what a journal case does once: through Butler's packages, and with nothing but publishes.
type work struct {
	name string
	// run does it for a new unit and gives the time that counts, and what was appended in it.
	run func(ctx context.Context, unit string) (time.Duration, []stored, error)
}

// journalCase is one work under one setting.
type journalCase struct {
	name    string
	writers int
	work    work
	raw     *rawLog

	own, limit         durations
	ownRate, limitRate series
	ratio              series
	appends            int
}

// journals measures appends and steps of the journal beside publishes of the same bytes.
func journals(ctx context.Context, r *rig, out *report) error {
	var cases []*journalCase
	for _, s := range r.o.sync {
		raw, err := r.newRawLog(ctx, s)
		if err != nil {
			return err
		}
		b, err := bus.Connect(ctx, bus.Options{URL: raw.url, Service: "bench"})
		if err != nil {
			return err
		}
		r.onClose(b.Close)
		works, err := journalWorks(b)
		if err != nil {
			return err
		}
		for _, w := range works {
			for _, writers := range []int{1, r.o.people} {
				name := fmt.Sprintf("%s, %s, %d", s.name, w.name, writers)
				cases = append(cases, &journalCase{name: name, writers: writers, work: w, raw: raw})
			}
		}
	}
	for _, c := range cases { // everything is touched once before it counts
		if err := c.round(ctx, max(1, min(100, r.o.appends)/c.writers)); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		*c = journalCase{name: c.name, writers: c.writers, work: c.work, raw: c.raw}
	}
	for round := range r.o.rounds {
		r.say("journal: round %d of %d", round+1, r.o.rounds)
		for _, c := range inTurn(cases, round) {
			n := r.o.appends
			if c.writers > 1 {
				n = max(2, 4*r.o.appends/c.writers)
			}
			if err := c.round(ctx, n); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	for _, c := range cases {
		c.report(out)
	}
	out.table(table{
		group: "journal", rows: "sync, what, writers",
		title: "Journal: one append, and units of one step, beside publishes of the same bytes",
		notes: []string{
			"append: pkg/bus.Append of 600 B; pure, idempotent: pkg/journal's Executor runs a unit of one such step (1 KiB) and its end",
			"raw: as many plain publishes with the same bytes; both over TCP, to the same server, one unit of each in turn",
			"× raw: median over rounds of the two p50",
		},
	})
	return nil
}

// round does n units by each writer, and publishes the same bytes raw: one unit of each in turn where there is one
// writer, so that the machine treats both alike; else all of the one and then all of the other, so that neither waits for
// the other.
func (c *journalCase) round(ctx context.Context, n int) error {
	block := n
	if c.writers == 1 {
		block = 1
	}
	var own, limit phase
	for range n / block {
		if err := own.run(c.writers, block, func() (time.Duration, []stored, error) {
			return c.work.run(ctx, c.raw.unit().String())
		}); err != nil {
			return err
		}
		units := own.appended
		own.appended = nil
		c.appends = len(units[0])
		if err := limit.run(c.writers, block, func() (time.Duration, []stored, error) {
			unit := c.raw.unit()
			began := time.Now()
			for _, m := range units[0] {
				if err := c.raw.publish(ctx, m, unit.Subject(chat.Step)); err != nil {
					return 0, nil, err
				}
			}
			return time.Since(began), nil, nil
		}); err != nil {
			return err
		}
	}
	c.own, c.limit = append(c.own, own.times...), append(c.limit, limit.times...)
	c.ratio = append(c.ratio, own.times.ms(0.5)/limit.times.ms(0.5))
	c.ownRate = append(c.ownRate, own.rate())
	c.limitRate = append(c.limitRate, limit.rate())
	return nil
}

// phase is one kind of work by some writers at the same time.
type phase struct {
	times    durations
	appended [][]stored // of one unit each
	writers  int
}

// run has each writer do n units.
func (p *phase) run(writers, n int, do func() (time.Duration, []stored, error)) error {
	var mu sync.Mutex
	var g errgroup.Group
	p.writers = writers
	for range writers {
		g.Go(func() error {
			for range n {
				took, appended, err := do()
				if err != nil {
					return err
				}
				mu.Lock()
				p.times = append(p.times, took)
				p.appended = append(p.appended, appended)
				mu.Unlock()
			}
			return nil
		})
	}
	return g.Wait()
}

// rate gives units a second, of the time that counts: all writers are always at work.
func (p *phase) rate() float64 {
	sum := time.Duration(0)
	for _, d := range p.times {
		sum += d
	}
	return float64(len(p.times)*p.writers) / sum.Seconds()
}

func (c *journalCase) report(out *report) {
	const g = "journal"
	out.add(g, c.name, "appends", float64(c.appends), "")
	out.add(g, c.name, "p50", c.own.ms(0.5), "ms")
	out.add(g, c.name, "p99", c.own.ms(0.99), "ms")
	out.addSeries(g, c.name, "units", c.ownRate, "/s")
	out.add(g, c.name, "raw p50", c.limit.ms(0.5), "ms")
	out.add(g, c.name, "raw p99", c.limit.ms(0.99), "ms")
	out.addSeries(g, c.name, "raw", c.limitRate, "/s")
	ratio := out.addSeries(g, c.name, "× raw", c.ratio, "")
	if c.work.name == "append" {
		ratio.below(1.3)
	}
}

// journalWorks are the works of the cases.
func journalWorks(b *bus.Bus) ([]work, error) {
	log := &unitLog{bus: b, appended: map[string][]stored{}}
	payload := json.RawMessage(`{"text":"` + strings.Repeat("x", 600-11) + `"}`)
	works := []work{{"append", func(ctx context.Context, unit string) (time.Duration, []stored, error) {
		turn, err := chat.ParseTurn(unit)
		if err != nil {
			return 0, nil, err
		}
		began := time.Now()
		ev := bus.NewEvent(chat.TypeStep, b.Source(), turn.Subject(chat.Step), payload)
		_, err = b.Append(ctx, ev, bus.Expect{Filter: turn.Filter()})
		took := time.Since(began)
		return took, []stored{{headerOf(ev), payload}}, err
	}}}
	value := json.RawMessage(`"` + strings.Repeat("x", 1<<10) + `"`)
	for _, repeat := range []journal.Repeat{journal.Pure, journal.Idempotent} {
		x, err := journal.NewExecutor(func(ctx context.Context, run *journal.Run) (journal.End, error) {
			v, err := run.Do(ctx, "step-1", journal.Effect{Repeat: repeat}, func(context.Context, *journal.Call) (json.RawMessage, error) {
				return value, nil
			})
			_ = v // the outcome stands in the record that the end is written with
			return journal.End{Status: "answered"}, err
		}, journal.Options{Log: log, Timers: log, Worker: "bench-" + string(repeat)})
		if err != nil {
			return nil, err
		}
		works = append(works, work{string(repeat), func(ctx context.Context, unit string) (time.Duration, []stored, error) {
			open := journal.Record{ID: unit, Kind: journal.KindOpen, Body: json.RawMessage(`{"text":"a question"}`)}
			var err error
			if open.Seq, err = log.Append(ctx, unit, 0, open); err != nil {
				return 0, nil, err
			}
			began := time.Now()
			res, err := x.Execute(ctx, unit, journal.Mode{First: true, Known: []journal.Record{open}})
			took := time.Since(began)
			if err == nil && !res.New {
				err = fmt.Errorf("the unit %s was not ended here: %s", unit, res.Status)
			}
			return took, log.take(unit), err
		}})
	}
	return works, nil
}
