package compactor

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/cloudwego/eino/schema"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/memory"
	"github.com/butlerhub/butler/pkg/tokens"
	"github.com/butlerhub/butler/pkg/transcript"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Bounds of what is read for one compaction; what is beyond them is for the next.
const (
	readPage   = 500
	readEvents = 40_000
	readBytes  = 48 << 20
)

// conversation is a session as it stands in the log.
type conversation struct {
	session chat.Session
	seq     uint64    // of the summary event that counts; 0 for none
	at      time.Time // of it
	summary *butlerv1.ChatSummary
	pins    []*butlerv1.Pin
	turns   []turn // that no summary stands for and that have ended, up to the first that is open; oldest first
}

// turn is one that has ended.
type turn struct {
	id       chat.Turn
	asked    uint64 // sequence
	messages []*schema.Message
	attached string
	size     memory.Size
}

// read gives the conversation of a session.
func (s *Service) read(ctx context.Context, session chat.Session) (*conversation, error) {
	c := &conversation{session: session, summary: &butlerv1.ChatSummary{}}
	ev, found, err := s.bus.Last(ctx, bus.ChatStream, session.StoredSummary())
	if err != nil {
		return nil, err
	}
	if found {
		c.seq, c.at = ev.Seq, ev.At
		if ev.Type == chat.TypeSummary {
			if err := chat.Decode(ev.Data, c.summary); err != nil {
				return nil, err
			}
		}
	}
	ev, found, err = s.bus.Last(ctx, bus.ChatStream, session.StoredPins())
	if err != nil {
		return nil, err
	}
	if pins := (&butlerv1.ChatPins{}); found && ev.Type == chat.TypePins {
		if err := chat.Decode(ev.Data, pins); err != nil {
			return nil, err
		}
		c.pins = pins.GetPins()
	}
	c.turns, err = s.readTurns(ctx, session, uint64(max(c.summary.GetCoversTo(), 0)))
	return c, err
}

// readTurns gives the turns that were asked after a sequence and have ended, up to the first that has not.
func (s *Service) readTurns(ctx context.Context, session chat.Session, after uint64) ([]turn, error) {
	type state struct {
		asked   uint64
		records []journal.Record
		turn    turn
		ended   bool
	}
	by := map[string]*state{}
	for read, size, more := 0, 0, true; more && read < readEvents && size < readBytes; {
		events, err := s.bus.Load(ctx, bus.ChatStream, session.Filter(), after, readPage)
		if err != nil {
			return nil, err
		}
		for _, ev := range events {
			after = ev.Seq
			size += len(ev.Data)
			id, r, err := transcript.Record(ev)
			if err != nil {
				continue // beside the turns, or not by who may write it
			}
			t := by[id.ID]
			if t == nil {
				if r.Kind != journal.KindOpen {
					continue // of a turn that the summary stands for
				}
				t = &state{asked: r.Seq, turn: turn{id: id, asked: r.Seq}}
				by[id.ID] = t
			}
			if t.ended {
				continue
			}
			t.records = append(t.records, r)
			if r.Kind == journal.KindEnd {
				t.turn.messages, t.turn.attached = transcript.Fold(t.records)
				t.turn.size = sizeOf(t.turn.messages)
				t.records, t.ended = nil, true
			}
		}
		read += len(events)
		more = len(events) == readPage
	}
	all := make([]*state, 0, len(by))
	for _, t := range by {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *state) int { return cmp.Compare(a.asked, b.asked) })
	var out []turn
	for _, t := range all {
		if !t.ended {
			break
		}
		out = append(out, t.turn)
	}
	return out, nil
}

func sizeOf(msgs []*schema.Message) memory.Size {
	n := memory.Size{Messages: len(msgs)}
	each := func(text string) {
		n.Chars += utf8.RuneCountInString(text)
		n.Most += tokens.Most(text)
	}
	for _, m := range msgs {
		each(m.Content)
		for _, call := range m.ToolCalls {
			each(call.Function.Arguments)
		}
	}
	n.Tokens = sync.OnceValue(func() int {
		count := 0
		for _, m := range msgs {
			count += tokens.Count(m.Content)
			for _, call := range m.ToolCalls {
				count += tokens.Count(call.Function.Arguments)
			}
		}
		return count
	})
	return n
}

// sizes gives the sizes of the turns.
func (c *conversation) sizes() []memory.Size {
	out := make([]memory.Size, len(c.turns))
	for i, t := range c.turns {
		out[i] = t.size
	}
	return out
}
