package brain

import (
	"context"
	"fmt"
	"time"

	"github.com/cloudwego/eino/schema"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/memory"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// remembered is what a session remembers beside its turns. Its parts are replaced, never changed.
type remembered struct {
	summary *butlerv1.ChatSummary // nil for none
	seq     uint64                // of the summary
	text    string                // of the summary, for the prompt
	pins    []*butlerv1.Pin
	pinsSeq uint64
}

// covers says whether the summary stands for a turn.
func (m remembered) covers(t *turnState) bool { return t.first <= m.coversTo() }

func (m remembered) coversTo() uint64 { return uint64(max(m.summary.GetCoversTo(), 0)) }

// heads gives what stands in a prompt between who Butler is and what was said.
func (m remembered) heads() []*schema.Message {
	var out []*schema.Message
	if pins := memory.PinsForPrompt(m.pins); pins != "" {
		out = append(out, schema.SystemMessage(pins))
	}
	if m.text != "" {
		out = append(out, schema.SystemMessage(m.text))
	}
	return out
}

// loadMemory reads the newest summary and the pins. They are looked for by their subjects: what stands beside the turns may
// be older than the newest event of a turn that this replica knows already.
func (h *history) loadMemory(ctx context.Context, b *bus.Bus) error {
	back := h.last == 0
	for _, subject := range []string{h.session.StoredSummary(), h.session.StoredPins()} {
		ev, found, err := b.Last(ctx, bus.ChatStream, subject)
		if err != nil {
			return err
		}
		if found {
			back = h.beside(ev) || back
		}
	}
	h.stale = false
	if back {
		h.rewind()
	}
	return nil
}

// rewind has the next load begin after what the summary stands for: what was read is forgotten, since turns that the
// summary before stood for are missing in it.
func (h *history) rewind() {
	h.turns, h.size = nil, 0
	clear(h.by)
	h.last = h.memory.coversTo()
	h.attached = h.memory.summary.GetAttached()
}

// beside takes an event that stands beside the turns. back says that the summary stands for less than the one before: the
// turns in between are to be read again.
func (h *history) beside(ev bus.Stored) (back bool) {
	session, typ, err := chat.ParseBeside(ev.Subject)
	if err != nil || session != h.session || ev.Type != typ {
		return false
	}
	switch typ {
	case chat.TypeSummary:
		summary := &butlerv1.ChatSummary{}
		if ev.Seq <= h.memory.seq || chat.Decode(ev.Data, summary) != nil {
			return false
		}
		before := h.memory.coversTo()
		h.asked = 0
		h.memory.summary, h.memory.seq, h.memory.text = summary, ev.Seq, memory.ForPrompt(summary)
		return h.memory.coversTo() < before
	case chat.TypePins:
		pins := &butlerv1.ChatPins{}
		if ev.Seq > h.memory.pinsSeq && chat.Decode(ev.Data, pins) == nil {
			h.memory.pins, h.memory.pinsSeq = pins.GetPins(), ev.Seq
		}
	}
	return false
}

const (
	// askAgain is after how many turns more a summary is asked for again that did not come.
	askAgain = 4
	// askTimeout bounds asking, and askers how many do at the same time: of more, each asks after its next answer.
	askTimeout = 10 * time.Second
	askers     = 8
)

// askForSummary asks compactor to summarise a session when it is time. It returns at once, and nothing depends on it.
func (s *Service) askForSummary(h *history) {
	policy := s.settings.Compaction
	if policy == (memory.Policy{}) {
		return
	}
	turns := h.sizes()
	if len(turns) == 0 || h.asked > 0 && len(turns) < h.asked+askAgain {
		return
	}
	// Nothing is counted here: the session waits.
	summary := memory.SizeOf(h.memory.text)
	cheap := policy
	cheap.Tokens = 0
	why, most := cheap.Due(turns, summary), summary.Most
	for _, t := range turns {
		most += t.Most
	}
	if why == "" && (policy.Tokens == 0 || most <= policy.Tokens) {
		return
	}
	select {
	case s.asking <- struct{}{}:
	default:
		return
	}
	h.asked = len(turns)
	session, newest := h.session, h.turns[len(h.turns)-1].last
	s.background.Go(func() {
		defer func() { <-s.asking }()
		if why == "" {
			why = policy.Due(turns, summary)
		}
		if why == "" {
			return
		}
		s.metrics.asked.WithLabelValues(why).Inc()
		if err := s.publishCompact(session, newest, why); err != nil {
			s.log.Warn("a summary could not be asked for; it is again after later turns", "session", session.String(), "error", err)
		}
	})
}

func (s *Service) publishCompact(session chat.Session, newest uint64, why string) error {
	data, err := chat.Encode(&butlerv1.WorkCompact{Reason: why})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	ev := bus.NewEvent(chat.TypeCompact, s.bus.Source(), session.Compact(), data)
	ev.ID = fmt.Sprintf("compact-%s-%d", session, newest)
	_, err = s.bus.Publish(ctx, bus.WorkStream, ev)
	return err
}

// followMemory hears of summaries and pins that are written, until ctx ends. One that it misses is found when the session
// is read again; until then prompts are longer than they have to be.
func (s *Service) followMemory(ctx context.Context) {
	_ = s.bus.Follow(ctx, bus.Follow{
		Stream: bus.ChatStream, Filters: []string{chat.AllSummaries, chat.AllPins}, FromNow: true,
	}, func(ev bus.Stored) {
		if session, _, err := chat.ParseBeside(ev.Subject); err == nil {
			s.sessions.mark(session)
		}
	})
}

// sizes gives the turns that a summary could stand for beside those that it does: all that have ended before the first that
// is open. What came before an undo counts no more: the person did not want it summarised.
func (h *history) sizes() []memory.Size {
	var out []memory.Size
	for _, t := range h.turns {
		if !t.ended {
			break
		}
		if h.memory.covers(t) || h.memory.summary.GetUndoes() > 0 && t.first <= h.memory.seq {
			continue
		}
		out = append(out, memory.Size{Messages: len(t.said.Messages), Chars: t.chars, Most: t.said.Most(), Tokens: t.said.Tokens})
	}
	return out
}
