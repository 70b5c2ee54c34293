package journal

import "math"

// State is what a unit's records say. It is a fold: Apply each record in order. The zero State is a unit without records.
type State struct {
	Last   uint64  // sequence of the last record
	Open   *Record // nil: there is no such unit
	Cancel *Record // the first cancel
	End    *End

	Outcomes map[string]Entry // by key; the first counts
	Intents  map[string]Entry
	Awaits   map[string]Entry // the first counts, with its deadline
	Signals  map[string]Entry // the first counts

	Holder  string   // worker of the last step
	Waiting []string // keys of the last step, when it suspended the unit
	Attempt int      // the attempt that is recorded: 1, or that of the last claim
	Tries   int      // attempts begun since the last new outcome or suspension
	Crashes int      // claims that did not resume a suspended unit

	Spent   Spent
	Entries int // of all kinds
	Bytes   int // about, of all entries
}

// Fold folds a unit's records.
func Fold(records []Record) *State {
	s := &State{}
	for _, r := range records {
		s.Apply(r)
	}
	return s
}

// Apply adds the next record. One that is not above Last is ignored, and so is what follows the End.
func (s *State) Apply(r Record) {
	if r.Seq <= s.Last {
		return
	}
	s.Last = r.Seq
	if s.End != nil {
		return
	}
	switch r.Kind {
	case KindOpen:
		if s.Open == nil {
			s.Open, s.Attempt, s.Tries = &r, 1, 1
		}
	case KindCancel:
		if s.Cancel == nil {
			s.Cancel = &r
		}
	case KindSignal:
		for _, e := range r.Entries {
			if e.Kind == EntrySignal {
				s.note(e)
			}
		}
	case KindStep, KindEnd:
		s.Holder = r.Worker
		resumes := len(s.Waiting) > 0
		s.Waiting = nil
		for _, e := range r.Entries {
			if e.Kind == EntryClaim && !resumes {
				s.Crashes++
			}
			if e.Kind != EntrySignal {
				s.note(e)
			}
			if e.Kind == EntryAwait {
				s.Waiting = append(s.Waiting, e.Key)
			}
		}
		if r.Kind == KindEnd {
			s.End = r.End
		}
	}
}

// note adds an entry. Noting an outcome twice is harmless, so a worker notes its own before they are stored.
func (s *State) note(e Entry) {
	switch e.Kind {
	case EntryClaim:
		s.Attempt = max(s.Attempt+1, int(e.Attempt))
		s.Tries++
	case EntryIntent:
		put(&s.Intents, e)
	case EntryOutcome:
		if !put(&s.Outcomes, e) {
			return
		}
		s.Tries = 0
	case EntryAwait:
		put(&s.Awaits, e)
		s.Tries = 0
	case EntrySignal:
		if !put(&s.Signals, e) {
			return
		}
	}
	if e.Spent != nil {
		s.Spent = s.Spent.plus(*e.Spent)
	}
	s.Entries++
	s.Bytes += e.size()
}

func put(m *map[string]Entry, e Entry) bool {
	if _, known := (*m)[e.Key]; known {
		return false
	}
	if *m == nil {
		*m = make(map[string]Entry)
	}
	(*m)[e.Key] = e
	return true
}

// Suspended says whether the unit waits and nothing that it waits for has happened, so that there is nothing to do.
func (s *State) Suspended() bool {
	if s.End != nil || s.Cancel != nil || len(s.Waiting) == 0 {
		return false
	}
	for _, key := range s.Waiting {
		if _, arrived := s.Signals[key]; arrived {
			return false
		}
	}
	return true
}

// size is about the length of the entry's JSON, never less.
func (e Entry) size() int {
	n := 160 + len(e.Key) + len(e.Value) + 6*len(e.Description) // every byte may become \u00xx
	if e.Error != nil {
		n += 60 + 6*(len(e.Error.Class)+len(e.Error.Code)+len(e.Error.Message))
	}
	if e.Spent != nil {
		n += 100
	}
	return n
}

func (s Spent) plus(t Spent) Spent {
	return Spent{
		ModelCalls: add(s.ModelCalls, t.ModelCalls),
		ToolCalls:  add(s.ToolCalls, t.ToolCalls),
		Tokens:     add(s.Tokens, t.Tokens),
		ActiveMs:   add(s.ActiveMs, t.ActiveMs),
	}
}

func (s Spent) minus(t Spent) Spent {
	return s.plus(Spent{-t.ModelCalls, -t.ToolCalls, -t.Tokens, -t.ActiveMs})
}

func add(a, b int32) int32 {
	return int32(min(max(int64(a)+int64(b), 0), math.MaxInt32))
}

// over says which part of the budget s would not allow to use cost after spent; 0 is no limit. Tokens and active time are known
// only afterwards: they are used up when reached.
func (s Spent) over(spent, cost Spent) error {
	next := spent.plus(cost)
	check := func(which string, limit, used int32) error {
		if limit > 0 && used > limit {
			return &BudgetError{Which: which, Limit: int64(limit)}
		}
		return nil
	}
	if err := check("model_calls", s.ModelCalls, next.ModelCalls); err != nil {
		return err
	}
	if err := check("tool_calls", s.ToolCalls, next.ToolCalls); err != nil {
		return err
	}
	if cost.ModelCalls > 0 || cost.Tokens > 0 {
		if err := check("tokens", s.Tokens, max(next.Tokens, add(spent.Tokens, 1))); err != nil {
			return err
		}
	}
	return check("active_ms", s.ActiveMs, max(next.ActiveMs, add(spent.ActiveMs, 1)))
}
