package brain

import (
	"context"
	"slices"
	"unicode/utf8"

	"github.com/cloudwego/eino/schema"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/transcript"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

// turnState is a turn as far as this replica has read it.
type turnState struct {
	turn    chat.Turn
	first   uint64           // sequence of asked
	last    uint64           // sequence of the newest record
	records []journal.Record // of a turn that is open; dropped when it has ended
	ended   bool
	// said is what the turn adds to later prompts, once it has ended.
	said  *model.Group
	size  int // bytes of text in it
	chars int // characters of text in it
	// attached is the host of the shell that the ended turn attached its conversation to, or transcript.Detached; empty when
	// it changed nothing.
	attached string
}

// waiting says that the turn is suspended: it needs a signal or a stop to go on.
func (t *turnState) waiting() bool { return len(t.records) > 1 && journal.Fold(t.records).Suspended() }

// history is what was said in one session, read from the log: a cache that can be dropped at any time.
type history struct {
	session chat.Session
	last    uint64 // the log was read up to here
	turns   []*turnState
	by      map[string]*turnState
	size    int
	// attached is what the turns that are not kept any more left behind; see turnState.
	attached string
	memory   remembered
	stale    bool // there may be a newer summary, or pins
	// asked is how many turns no summary stood for when one was asked for; 0 when none was since the last summary.
	asked int
}

func newHistory(s chat.Session) *history {
	return &history{session: s, by: map[string]*turnState{}}
}

// add takes the next event of the session, in any order between turns; those that were seen before are passed over.
func (h *history) add(turn chat.Turn, r journal.Record) {
	h.last = max(h.last, r.Seq)
	t := h.by[turn.ID]
	if t == nil {
		if r.Kind != journal.KindOpen {
			return // of a turn that was erased, or that ended before what is kept here
		}
		t = &turnState{turn: turn, first: r.Seq}
		h.by[turn.ID] = t
		i, _ := slices.BinarySearchFunc(h.turns, r.Seq, func(t *turnState, seq uint64) int {
			if t.first < seq {
				return -1
			}
			return 1
		})
		h.turns = slices.Insert(h.turns, i, t)
	}
	if t.ended || r.Seq <= t.last {
		return
	}
	t.last = r.Seq
	t.records = append(t.records, r)
	if r.Kind == journal.KindEnd {
		var messages []*schema.Message
		messages, t.attached = transcript.Fold(t.records)
		t.said = model.NewGroup(messages)
		for _, m := range messages {
			t.size += len(m.Content)
			t.chars += utf8.RuneCountInString(m.Content)
			for _, c := range m.ToolCalls {
				t.size += len(c.Function.Arguments)
				t.chars += utf8.RuneCountInString(c.Function.Arguments)
			}
		}
		h.size += t.size
		t.ended, t.records = true, nil
	}
}

// trim forgets the oldest ended turns that the summary stands for, and those beyond limit bytes of text: they would not fit
// into a prompt any more.
func (h *history) trim(limit int) {
	drop := 0
	for drop < len(h.turns) && (h.size > limit || h.memory.covers(h.turns[drop])) && h.turns[drop].ended {
		h.size -= h.turns[drop].size
		if on := h.turns[drop].attached; on != "" {
			h.attached = on
		}
		delete(h.by, h.turns[drop].turn.ID)
		drop++
	}
	h.turns = slices.Delete(h.turns, 0, drop)
}

// drop forgets a turn, so that the next load reads it again.
func (h *history) drop(t *turnState) {
	if i := slices.Index(h.turns, t); i >= 0 {
		h.turns = slices.Delete(h.turns, i, i+1)
	}
	h.size -= t.size
	delete(h.by, t.turn.ID)
	h.last = min(h.last, t.first-1)
}

// load reads what is new in the log, page by page, and keeps about limit bytes of text of it. Of a session that was not
// read before, or where something was written beside the turns, it looks for the summary and the pins first.
func (h *history) load(ctx context.Context, b *bus.Bus, limit int) error {
	const page = 500
	if h.last == 0 || h.stale {
		if err := h.loadMemory(ctx, b); err != nil {
			return err
		}
	}
	for {
		events, err := b.Load(ctx, bus.ChatStream, h.session.Filter(), h.last, page)
		if err != nil {
			return err
		}
		back := false
		for _, ev := range events {
			turn, r, err := transcript.Record(ev)
			if err != nil { // not a record of a turn, or not by who may write it
				h.last = max(h.last, ev.Seq)
				back = h.beside(ev) || back
				continue
			}
			h.add(turn, r)
		}
		if back {
			h.rewind()
			continue
		}
		h.trim(limit)
		if len(events) < page {
			return nil
		}
	}
}

// before gives what was before turn t: of the turns that were asked before it, those that have ended.
func (h *history) before(t *turnState) past {
	p := past{attached: h.attached, memory: h.memory}
	for _, other := range h.turns {
		if other.first >= t.first {
			break
		}
		if !other.ended {
			p.unsettled = true
			continue
		}
		if !h.memory.covers(other) {
			p.turns = append(p.turns, other.said)
		}
		if other.attached != "" {
			p.attached = other.attached
		}
	}
	return p
}
