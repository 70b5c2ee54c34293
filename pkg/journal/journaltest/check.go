// Package journaltest checks implementations of journal.Log and journal.Timers, and journals themselves.
package journaltest

import (
	"errors"
	"fmt"

	"github.com/butlerhub/butler/pkg/journal"
)

// CheckUnit gives everything that is wrong with the journal of a unit that has ended, nil for nothing: it opens once and
// ends once, with its last record; nobody wrote who had been fenced; an outcome is recorded once, and after its intent;
// each once effect has an outcome; deadlines stand; a timeout is never early.
func CheckUnit(records []journal.Record) error {
	var wrong []error
	fail := func(r journal.Record, format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("record %d (%s by %s): %s", r.Seq, r.Kind, r.Worker, fmt.Sprintf(format, args...)))
	}
	if len(records) == 0 {
		return errors.New("no records")
	}
	var (
		c       = checker{fail: fail, ids: map[string]bool{}, intents: map[string]journal.Entry{}, outcomes: map[string]bool{}, awaits: map[string]journal.Entry{}, signals: map[string]bool{}}
		last    uint64
		cancels int
	)
	for i, r := range records {
		if r.Seq <= last {
			fail(r, "sequence does not rise")
		}
		last = r.Seq
		if c.ids[r.ID] {
			fail(r, "id %s is stored twice", r.ID)
		}
		c.ids[r.ID] = true
		if (r.Kind == journal.KindOpen) != (i == 0) {
			fail(r, "the unit must open with its first record, once")
		}
		if c.ended {
			fail(r, "after the end")
		}
		switch r.Kind {
		case journal.KindCancel:
			if cancels++; cancels > 1 {
				fail(r, "cancelled twice")
			}
		case journal.KindSignal:
			c.signal(r)
		case journal.KindStep, journal.KindEnd:
			c.step(r)
		}
	}
	if !c.ended {
		wrong = append(wrong, errors.New("the unit has no end"))
	}
	for key, intent := range c.intents {
		if intent.Repeat == journal.Once && !c.outcomes[key] {
			wrong = append(wrong, fmt.Errorf("once effect %s has no outcome", key))
		}
	}
	return errors.Join(wrong...)
}

type checker struct {
	fail     func(r journal.Record, format string, args ...any)
	ids      map[string]bool
	holder   string
	attempt  int32
	intents  map[string]journal.Entry
	outcomes map[string]bool
	awaits   map[string]journal.Entry
	signals  map[string]bool
	ended    bool
}

func (c *checker) signal(r journal.Record) {
	for _, e := range r.Entries {
		if c.signals[e.Key] {
			c.fail(r, "%s is signalled twice", e.Key)
		}
		c.signals[e.Key] = true
		if e.Timeout && r.At.Before(e.Deadline) {
			c.fail(r, "timeout of %s at %s, before its deadline %s", e.Key, r.At, e.Deadline)
		}
		if e.Timeout && !e.Deadline.Equal(c.awaits[e.Key].Deadline) {
			c.fail(r, "timeout of %s for %s, which nobody waits for", e.Key, e.Deadline)
		}
	}
}

func (c *checker) step(r journal.Record) {
	for i, e := range r.Entries {
		if e.Kind != journal.EntryClaim {
			continue
		}
		if i > 0 {
			c.fail(r, "a claim must come first")
		}
		if e.Attempt <= max(c.attempt, 1) {
			c.fail(r, "claims attempt %d after %d", e.Attempt, max(c.attempt, 1))
		}
		c.attempt, c.holder = e.Attempt, r.Worker
	}
	if c.holder == "" {
		c.holder = r.Worker
	}
	if r.Worker != c.holder {
		c.fail(r, "%s had the unit then", c.holder)
	}
	before := make(map[string]bool, len(c.intents))
	for key := range c.intents {
		before[key] = true
	}
	for _, e := range r.Entries {
		switch e.Kind {
		case journal.EntryIntent:
			if _, twice := c.intents[e.Key]; twice {
				c.fail(r, "a second intent of %s", e.Key)
			}
			if c.outcomes[e.Key] {
				c.fail(r, "intent of %s after its outcome", e.Key)
			}
			c.intents[e.Key] = e
		case journal.EntryOutcome:
			if c.outcomes[e.Key] {
				c.fail(r, "a second outcome of %s", e.Key)
			}
			c.outcomes[e.Key] = true
			if _, intended := c.intents[e.Key]; intended && !before[e.Key] {
				c.fail(r, "intent and outcome of %s in one record", e.Key)
			}
		case journal.EntryAwait:
			if first, again := c.awaits[e.Key]; again && !first.Deadline.Equal(e.Deadline) {
				c.fail(r, "the deadline of %s moved from %s to %s", e.Key, first.Deadline, e.Deadline)
			} else if !again {
				c.awaits[e.Key] = e
			}
		}
	}
	c.ended = r.Kind == journal.KindEnd
}
