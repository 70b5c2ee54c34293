package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// turnCase is one way of talking to one Butler, and what it gave.
type turnCase struct {
	name   string
	people int // who talk at the same time
	turns  int // of each in a round
	crowd  []*person
	butler *product
	raw    *rawLog

	heard     heard
	rate      series
	rawTimes  durations
	rawRate   series
	ratio     series // of the rounds' p50
	rateShare series // of the raw log's pairs per second
	cpu       map[string]time.Duration
}

// turns measures what Butler adds to a model that answers at once.
func turns(ctx context.Context, r *rig, out *report) error {
	var cases []*turnCase
	for _, s := range r.o.sync {
		raw, err := r.newRawLog(ctx, s)
		if err != nil {
			return err
		}
		b, err := r.newProduct(r.butler, "", "BUTLER_NATS_SYNC="+s.name)
		if err != nil {
			return err
		}
		if err := b.start(ctx, "up"); err != nil {
			return err
		}
		people, err := b.people(ctx, r.o.people+1)
		if err != nil {
			return err
		}
		single := min(2*r.o.messages, mostMessages)
		cases = append(cases,
			&turnCase{name: s.name + ", 1 person", people: 1, turns: single, crowd: people[:1], butler: b, raw: raw, cpu: map[string]time.Duration{}},
			&turnCase{
				name:   fmt.Sprintf("%s, %d people", s.name, r.o.people),
				people: r.o.people, turns: r.o.messages, crowd: people[1:], butler: b, raw: raw, cpu: map[string]time.Duration{},
			})
		// Everything is touched once before it counts.
		if _, _, err := b.speak(ctx, people, min(5, r.o.messages), "warm", nil); err != nil {
			return err
		}
	}
	var size string
	for round := range r.o.rounds {
		for _, c := range inTurn(cases, round) {
			r.say("turn: round %d of %d, sync %s", round+1, r.o.rounds, c.name)
			asked, answer, err := c.butler.newest(ctx)
			if err != nil {
				return err
			}
			size = fmt.Sprintf("question %d B, answer %d B, and headers", len(asked.data), len(answer.data))
			if err := c.round(ctx, r, round, asked, answer); err != nil {
				return err
			}
		}
	}
	for _, c := range cases {
		c.report(out)
	}
	out.table(table{
		group: "turn", rows: "sync, people",
		title: "Turn: frame in → final frame out, through `butler up`; the model answers 20 chunks at once",
		notes: []string{
			"raw: the turn's two appends alone, conditional, over TCP, to an embedded server with the same sync (" + size + ")",
			"× raw: median over rounds of Butler's p50 by the raw p50; of raw: of turns/s by pairs/s",
			"echo, first: p50 until the person's own message and the first piece are shown; cpu: processor time a turn",
		},
	})
	return nil
}

// inTurn gives cases in an order that changes from round to round.
func inTurn[T any](cases []T, round int) []T {
	out := make([]T, 0, len(cases))
	for i := range cases {
		out = append(out, cases[(i+round)%len(cases)])
	}
	return out
}

// round measures the raw log and Butler, one after the other.
func (c *turnCase) round(ctx context.Context, r *rig, round int, asked, answer stored) error {
	var rawP50 float64
	raw := func() error {
		times, took, err := c.raw.turns(ctx, c.people, c.turns, asked, answer)
		if err != nil {
			return fmt.Errorf("raw log: %w", err)
		}
		rawP50 = times.ms(0.5)
		c.rawTimes = append(c.rawTimes, times...)
		c.rawRate = append(c.rawRate, float64(len(times))/took.Seconds())
		return nil
	}
	var p50 float64
	butler := func() error {
		pids := map[string]int{"butler": c.butler.pid(), "model": r.model.pid(), "people": os.Getpid()}
		sign := time.Duration(-1) // of the first mark
		heard, took, err := c.butler.speak(ctx, c.crowd, c.turns, fmt.Sprintf("r%d", round), func() {
			for name, pid := range pids {
				c.cpu[name] += sign * cpu(pid)
			}
			sign = 1
		})
		if err != nil {
			return err
		}
		p50 = heard.final.ms(0.5)
		c.heard.merge(heard)
		c.rate = append(c.rate, float64(heard.answered)/took.Seconds())
		return nil
	}
	for _, f := range inTurn([]func() error{raw, butler}, round) {
		if err := f(); err != nil {
			return err
		}
	}
	n := len(c.rate) - 1
	c.ratio = append(c.ratio, p50/rawP50)
	c.rateShare = append(c.rateShare, c.rate[n]/c.rawRate[n])
	return nil
}

func (c *turnCase) report(out *report) {
	const g = "turn"
	h := &c.heard
	p50 := out.add(g, c.name, "p50", h.final.ms(0.5), "ms")
	out.add(g, c.name, "p90", h.final.ms(0.9), "ms")
	out.add(g, c.name, "p99", h.final.ms(0.99), "ms")
	out.add(g, c.name, "max", h.final.ms(1), "ms")
	rate := out.addSeries(g, c.name, "turns", c.rate, "/s")
	lost := out.add(g, c.name, "lost", float64(h.lost+h.failed), "")
	doubled := out.add(g, c.name, "doubled", float64(h.doubled), "")
	missing := out.add(g, c.name, "missing", float64(h.missing), "")
	out.add(g, c.name, "raw p50", c.rawTimes.ms(0.5), "ms")
	out.add(g, c.name, "raw p99", c.rawTimes.ms(0.99), "ms")
	out.addSeries(g, c.name, "raw pairs", c.rawRate, "/s")
	out.addSeries(g, c.name, "× raw", c.ratio, "")
	out.addSeries(g, c.name, "of raw", c.rateShare, "")
	out.add(g, c.name, "echo", h.echo.ms(0.5), "ms")
	out.add(g, c.name, "first", h.first.ms(0.5), "ms")
	for _, who := range []string{"butler", "people", "model"} {
		out.add(g, c.name, "cpu "+who, milliseconds(c.cpu[who])/float64(max(1, h.answered)), "ms")
	}
	out.add(g, c.name, "waits", float64(h.waits), "")
	if c.people == 1 {
		p50.below(1.5)
	} else {
		rate.above(1500)
	}
	for _, f := range []*figure{lost, doubled, missing} {
		f.below(1)
	}
}
