package journal_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/journal/journaltest"
)

// simLog is a log whose appends get lost, stored without an answer, or kill their writer.
type simLog struct {
	s     *sim
	seq   uint64
	units map[string][]journal.Record
}

func (l *simLog) Load(ctx context.Context, unit string, after uint64) ([]journal.Record, error) {
	if err := l.s.point(ctx, "load "+unit); err != nil {
		return nil, err
	}
	if l.s.fault(0.5) {
		return nil, errors.New("the log does not answer")
	}
	var out []journal.Record
	for _, r := range l.units[unit] {
		if r.Seq > after {
			out = append(out, l.read(r))
		}
	}
	return out, nil
}

// read gives a stored record as it comes out of its bytes, without what is to be forgotten.
func (l *simLog) read(r journal.Record) journal.Record {
	f := l.s.f
	data, err := r.Encode()
	if err != nil {
		panic(err)
	}
	out := journal.Record{Seq: r.Seq, At: r.At, ID: r.ID, Kind: r.Kind}
	if err := out.Decode(data); err != nil {
		panic(err)
	}
	out.Entries = slices.DeleteFunc(out.Entries, func(e journal.Entry) bool {
		return f.forgetIntents && e.Kind == journal.EntryIntent || f.forgetOutcome && e.Kind == journal.EntryOutcome ||
			f.forgetSignals && e.Kind == journal.EntrySignal
	})
	for i, e := range out.Entries {
		if f.eagerTimers && e.Kind == journal.EntryAwait && !e.Deadline.IsZero() {
			out.Entries[i].Deadline = l.s.start
		}
	}
	return out
}

func (l *simLog) Append(ctx context.Context, unit string, expect uint64, rec journal.Record) (uint64, error) {
	if err := l.s.point(ctx, "append "+string(rec.Kind)+" to "+unit); err != nil {
		return 0, err
	}
	a := actorOf(ctx)
	if a.w != nil && l.s.fault(1.5) {
		l.s.kill(a.w) // before it is stored
		return 0, errDead
	}
	if l.s.f.claimless && len(rec.Entries) > 0 && rec.Entries[0].Kind == journal.EntryClaim {
		return expect, nil
	}
	seq, err := l.store(unit, expect, rec)
	switch {
	case l.s.fault(3): // slow: the world goes on before the answer is there
		if err := l.s.point(ctx, "acknowledgement"); err != nil {
			return 0, err
		}
	case l.s.fault(2): // the answer is lost, and the append repeated under its id
		if err := l.s.point(ctx, "repeated append"); err != nil {
			return 0, err
		}
		seq, err = l.store(unit, expect, rec)
	case l.s.fault(1): // the answer is lost for good
		return 0, errors.New("the log did not answer in time")
	case a.w != nil && l.s.fault(1.5):
		l.s.kill(a.w) // after it was stored
		return 0, errDead
	}
	return seq, err
}

func (l *simLog) store(unit string, expect uint64, rec journal.Record) (uint64, error) {
	records := l.units[unit]
	for _, r := range records {
		if r.ID == rec.ID {
			return r.Seq, nil
		}
	}
	if records[len(records)-1].Seq != expect && !l.s.f.unconditional {
		l.s.logf("  conflict: %s expects %d", rec.ID, expect)
		return 0, journal.ErrConflict
	}
	l.put(unit, rec)
	return l.seq, nil
}

func (l *simLog) put(unit string, rec journal.Record) {
	l.seq++
	rec.Seq, rec.At = l.seq, l.s.now
	l.units[unit] = append(l.units[unit], rec)
	data, _ := rec.Encode()
	l.s.logf("  stored %d %s %s %s", rec.Seq, unit, rec.Kind, data)
	u := l.s.unit(unit)
	switch rec.Kind {
	case journal.KindSignal:
		l.s.items = append(l.s.items, &simItem{unit: u})
	case journal.KindCancel:
		l.s.items = append(l.s.items, &simItem{unit: u})
		l.s.messages = append(l.s.messages, &simMessage{unit: u, hint: true})
	}
}

type simTimers struct{ s *sim }

func (t simTimers) Set(ctx context.Context, unit, key string, due time.Time) error {
	if err := t.s.point(ctx, "set timer "+key); err != nil {
		return err
	}
	if t.s.fault(2) {
		return errors.New("the timer could not be set")
	}
	if !t.s.f.loseTimers {
		t.s.timers[unit+"/"+key] = due
	}
	return nil
}

func (t simTimers) Clear(ctx context.Context, unit, key string) error {
	if err := t.s.point(ctx, "clear timer "+key); err != nil {
		return err
	}
	delete(t.s.timers, unit+"/"+key)
	return nil
}

// simUnit is a unit, the plan of its program, and what really happened to it.
type simUnit struct {
	s      *sim
	name   string
	plan   []op
	budget journal.Spent
	giveUp bool // its program returns ErrCancelled instead of an end
	cursed bool // its program never gets to an end

	runs  map[string]int             // executions of each key
	calls map[string]string          // idempotency key handed to each key
	did   map[string]json.RawMessage // the last value of each key
}

type op struct {
	key      string
	kind     string // pure, idempotent, once, looked, await, parallel
	fails    bool
	signals  int  // await: how many messages are sent
	deadline bool // await
	branches [][]op
	big      bool
}

func (u *simUnit) ended() bool {
	records := u.s.log.units[u.name]
	return records[len(records)-1].Kind == journal.KindEnd
}

func (u *simUnit) delivered() bool { return len(u.s.log.units[u.name]) > 1 }

func (s *sim) unit(name string) *simUnit {
	for _, u := range s.units {
		if u.name == name {
			return u
		}
	}
	panic("no unit " + name)
}

func (s *sim) addUnit(i int) {
	u := &simUnit{s: s, name: fmt.Sprintf("u%d", i), runs: map[string]int{}, calls: map[string]string{},
		did: map[string]json.RawMessage{}, giveUp: s.chance(50)}
	u.plan = s.plan("", 1+s.rng.IntN(6), 0)
	switch {
	case s.chance(15):
		u.budget = journal.Spent{ModelCalls: int32(1 + s.rng.IntN(3))}
	case s.chance(15):
		u.budget = journal.Spent{ActiveMs: int32(300 + s.rng.IntN(1500))}
	}
	u.cursed = s.fault(10)
	s.units = append(s.units, u)
	s.log.put(u.name, journal.Record{ID: "open-" + u.name, Kind: journal.KindOpen, Body: []byte(`{"text":"do it"}`)})
	s.items = append(s.items, &simItem{unit: u, first: true})
	u.eachAwait(u.plan, func(o op) {
		for n := range o.signals {
			m := &simMessage{unit: u, msg: journal.Message{Key: o.key, Value: fmt.Appendf(nil, `{"n":%d}`, n)}}
			if !s.f.none {
				m.after = s.now.Add(time.Duration(s.rng.IntN(8000)) * time.Millisecond)
				m.copies = s.rng.IntN(2)
			}
			s.messages = append(s.messages, m)
		}
	})
	if s.fault(20) {
		s.messages = append(s.messages, &simMessage{unit: u, cancel: true,
			after: s.now.Add(time.Duration(s.rng.IntN(2)*s.rng.IntN(5000)) * time.Millisecond)})
	}
}

func (u *simUnit) eachAwait(plan []op, f func(op)) {
	for _, o := range plan {
		if o.kind == "await" {
			f(o)
		}
		for _, b := range o.branches {
			u.eachAwait(b, f)
		}
	}
}

func (s *sim) plan(prefix string, n, depth int) []op {
	var plan []op
	for i := range n {
		o := op{key: fmt.Sprintf("%ss%d", prefix, i)}
		kinds := []string{"pure", "pure", "idempotent", "once", "looked", "await", "parallel"}
		if depth > 0 {
			kinds = kinds[:6]
		}
		o.kind = kinds[s.rng.IntN(len(kinds))]
		o.fails = s.chance(10)
		o.big = s.chance(10)
		switch o.kind {
		case "await":
			o.deadline = s.chance(60)
			o.signals = s.rng.IntN(3)
			if !o.deadline {
				o.signals = max(o.signals, 1)
			}
		case "parallel":
			for b := range 2 + s.rng.IntN(2) {
				o.branches = append(o.branches, s.plan(fmt.Sprintf("%s-b%d", o.key, b), 1+s.rng.IntN(2), depth+1))
			}
		}
		plan = append(plan, o)
	}
	return plan
}

// program is what the workers execute: the unit's plan, and an end that says what it saw.
func (s *sim) program(ctx context.Context, run *journal.Run) (journal.End, error) {
	u := s.unit(run.Unit())
	run.SetBudget(u.budget)
	p := &playing{u: u, run: run, saw: map[string]string{}}
	err := p.play(ctx, u.plan)
	if u.cursed && err == nil {
		if s.chance(50) {
			panic("the program panics")
		}
		err = errors.New("the program always fails")
	}
	result, _ := json.Marshal(p.saw)
	switch {
	case err == nil:
		return journal.End{Status: "answered", Result: result}, nil
	case errors.Is(err, journal.ErrBudget):
		return journal.End{Status: "failed", Reason: "budget", Result: result}, nil
	case errors.Is(err, journal.ErrCancelled) && !u.giveUp:
		return journal.End{Status: "stopped", Result: result}, nil
	default:
		return journal.End{}, err
	}
}

type playing struct {
	u   *simUnit
	run *journal.Run
	mu  sync.Mutex
	saw map[string]string
}

func (p *playing) play(ctx context.Context, plan []op) error {
	for _, o := range plan {
		if err := p.do(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func (p *playing) do(ctx context.Context, o op) error {
	s := p.u.s
	var value json.RawMessage
	var err error
	switch o.kind {
	case "await":
		var deadline time.Time
		if o.deadline {
			deadline = s.now.Add(2 * time.Second)
		}
		var got journal.Arrival
		got, err = p.run.Await(ctx, o.key, deadline)
		value = got.Value
		if got.Timeout {
			value = json.RawMessage("timeout")
		}
	case "parallel":
		parent := actorOf(ctx)
		return journal.Parallel(ctx, len(o.branches), 0, func(ctx context.Context, i int) error {
			ctx = as(ctx, &simActor{name: fmt.Sprintf("%s/%d", parent.name, i), w: parent.w})
			if err := s.point(ctx, "branch"); err != nil {
				return err
			}
			return p.play(ctx, o.branches[i])
		})
	default:
		e := journal.Effect{Repeat: journal.Repeat(o.kind), Description: "step " + o.key}
		switch o.kind {
		case "pure":
			e.Cost.ModelCalls = 1
		case "looked":
			e.Repeat, e.Lookup = journal.Once, p.lookup(o)
		}
		value, err = p.run.Do(ctx, o.key, e, func(ctx context.Context, c *journal.Call) (json.RawMessage, error) {
			return p.effect(ctx, o, c)
		})
	}
	if f, ok := errors.AsType[*journal.Failure](err); ok {
		value, err = json.RawMessage("failed "+f.Class+" "+f.Code), nil
	}
	if err == nil {
		p.mu.Lock()
		p.saw[o.key] = brief(string(value))
		p.mu.Unlock()
		if s.fault(0.5) {
			return errors.New("the program fails")
		}
	}
	return err
}

// brief keeps ends small.
func brief(value string) string {
	if len(value) > 120 {
		return fmt.Sprintf("%d bytes, %08x", len(value), crc32.ChecksumIEEE([]byte(value)))
	}
	return value
}

func (p *playing) effect(ctx context.Context, o op, c *journal.Call) (json.RawMessage, error) {
	s, u := p.u.s, p.u
	if err := s.point(ctx, "effect "+o.key); err != nil {
		return nil, err
	}
	if ctx.Err() != nil && s.chance(50) {
		return nil, context.Cause(ctx)
	}
	u.runs[o.key]++
	if before, again := u.calls[o.key]; again && before != c.Key {
		s.problem("%s/%s is called with the keys %s and %s", u.name, o.key, before, c.Key)
	}
	u.calls[o.key] = c.Key
	value := fmt.Sprintf(`{"run":%d,"x":"<&>\u2028é %s"}`, u.runs[o.key], strings.Repeat("x", s.rng.IntN(40)))
	if o.big {
		value = `"` + strings.Repeat("x", 1<<10*(1+s.rng.IntN(5))) + `"`
	}
	u.did[o.key] = json.RawMessage(value)
	if s.fault(1) {
		panic("the effect panics")
	}
	if err := s.point(ctx, "done "+o.key); err != nil {
		return nil, err
	}
	if o.fails {
		return nil, fault.New(fault.Conflict, "it cannot be done")
	}
	return u.did[o.key], nil
}

func (p *playing) lookup(o op) func(context.Context, string) (json.RawMessage, bool, error) {
	return func(ctx context.Context, key string) (json.RawMessage, bool, error) {
		s, u := p.u.s, p.u
		if err := s.point(ctx, "look up "+o.key); err != nil {
			return nil, false, err
		}
		if s.fault(10) {
			return nil, false, fault.New(fault.Unavailable, "nobody answers")
		}
		if u.runs[o.key] == 0 {
			return nil, false, nil
		}
		return u.did[o.key], true, nil
	}
}

// check compares what is in the log with what happened.
func (s *sim) check() {
	for _, u := range s.units {
		records := s.log.units[u.name]
		if err := journaltest.CheckUnit(records); err != nil {
			for line := range strings.Lines(err.Error()) {
				s.problem("%s: %s", u.name, strings.TrimSpace(line))
			}
		}
		u.check(records)
	}
}

func (u *simUnit) check(records []journal.Record) {
	s := u.s
	st := journal.Fold(records)
	if st.End == nil {
		return
	}
	u.checkPlan(u.plan, st)
	if limit := u.budget.ModelCalls; limit > 0 && st.Spent.ModelCalls > limit {
		s.problem("%s: %d model calls, allowed are %d", u.name, st.Spent.ModelCalls, limit)
	}
	switch before := journal.Fold(records[:len(records)-1]); {
	case st.End.Reason == journal.CodePoison:
		if before.Tries < 5 {
			s.problem("%s: given up after %d attempts", u.name, before.Tries)
		}
	case st.Cancel != nil && st.End.Status != "stopped":
		s.problem("%s: cancelled, but %s", u.name, st.End.Status)
	case st.Cancel == nil && st.End.Status == "stopped":
		s.problem("%s: stopped, but nobody asked for it", u.name)
	}
	if s.f.none && st.End.Status != "answered" && st.End.Reason != "budget" {
		s.problem("%s: %s %s without a fault", u.name, st.End.Status, st.End.Reason)
	}
	if st.End.Result == nil {
		return
	}
	saw := map[string]string{}
	if err := json.Unmarshal(st.End.Result, &saw); err != nil {
		s.problem("%s: result: %v", u.name, err)
	}
	for key, value := range saw {
		e, ok := st.Outcomes[key]
		if signal, isSignal := st.Signals[key]; isSignal {
			e, ok = signal, true
		}
		want := string(e.Value)
		if e.Timeout {
			want = "timeout"
		}
		if e.Error != nil {
			want = "failed " + e.Error.Class + " " + e.Error.Code
		}
		if want = brief(want); !ok || want != value {
			s.problem("%s: the program saw %s = %s, recorded is %s", u.name, key, value, want)
		}
	}
}

func (u *simUnit) checkPlan(plan []op, st *journal.State) {
	for _, o := range plan {
		out, done := st.Outcomes[o.key]
		if o.kind == "once" || o.kind == "looked" {
			if u.runs[o.key] > 1 {
				u.s.problem("%s: once effect %s was executed %d times", u.name, o.key, u.runs[o.key])
			}
			if _, intended := st.Intents[o.key]; u.runs[o.key] > 0 && !intended {
				u.s.problem("%s: %s was executed without an intent", u.name, o.key)
			}
		}
		if done && out.Error == nil && o.kind != "pure" && o.kind != "await" && u.runs[o.key] == 0 {
			u.s.problem("%s: %s has an outcome but was never executed", u.name, o.key)
		}
		if (o.kind == "once" || o.kind == "looked") && done && out.Error == nil && string(out.Value) != string(u.did[o.key]) {
			u.s.problem("%s: %s gave %s, recorded is %s", u.name, o.key, u.did[o.key], out.Value)
		}
		for _, b := range o.branches {
			u.checkPlan(b, st)
		}
	}
}
