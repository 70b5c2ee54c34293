package brain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/transcript"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// appendTimeout bounds one append of the journal, its repetitions included. It is longer than a restart of NATS takes.
const appendTimeout = 60 * time.Second

// turnLog is the journal's log and timers over the stream CHAT: a unit is a turn, its name "<person>.<thread>.<turn>".
type turnLog struct {
	bus    *bus.Bus
	worker string

	mu      sync.Mutex
	watched map[string][]journal.Record // by unit: the records that this process appended
}

func newTurnLog(b *bus.Bus, worker string) *turnLog {
	return &turnLog{bus: b, worker: worker, watched: map[string][]journal.Record{}}
}

// watch collects the records that this process appends to unit from now on; written ends that and gives them, in order.
func (l *turnLog) watch(unit string) (written func() []journal.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watched[unit] = nil
	return func() []journal.Record {
		l.mu.Lock()
		defer l.mu.Unlock()
		records := l.watched[unit]
		delete(l.watched, unit)
		slices.SortFunc(records, func(a, b journal.Record) int { return cmp.Compare(a.Seq, b.Seq) })
		return records
	}
}

var subjectOf = map[journal.Kind]chat.Kind{
	journal.KindOpen: chat.Asked, journal.KindStep: chat.Step, journal.KindSignal: chat.Signal,
	journal.KindCancel: chat.Stop, journal.KindEnd: chat.Answer,
}

// Load implements journal.Log.
func (l *turnLog) Load(ctx context.Context, unit string, after uint64) ([]journal.Record, error) {
	turn, err := chat.ParseTurn(unit)
	if err != nil {
		return nil, err
	}
	events, err := l.bus.Load(ctx, bus.ChatStream, turn.Filter(), after, 0)
	if err != nil {
		return nil, err
	}
	out := make([]journal.Record, 0, len(events))
	for _, ev := range events {
		_, r, err := transcript.Record(ev)
		if err != nil {
			return nil, fmt.Errorf("turn %s, sequence %d: %w", unit, ev.Seq, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// Append implements journal.Log.
func (l *turnLog) Append(ctx context.Context, unit string, expect uint64, r journal.Record) (uint64, error) {
	turn, err := chat.ParseTurn(unit)
	if err != nil {
		return 0, err
	}
	data, err := r.Encode()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	kind := subjectOf[r.Kind]
	ev := bus.NewEvent(kind.Type(), l.bus.Source(), turn.Subject(kind), data)
	ev.ID = r.ID
	seq, err := l.bus.Append(ctx, ev, bus.Expect{Filter: turn.Filter(), Seq: expect})
	if errors.Is(err, bus.ErrFenced) {
		return 0, journal.ErrConflict
	}
	if err != nil {
		return 0, err
	}
	r.Seq = seq
	l.mu.Lock()
	defer l.mu.Unlock()
	if records, ok := l.watched[unit]; ok {
		l.watched[unit] = append(records, r)
	}
	return seq, nil
}

// typeSignal is the type of a work item that wakes a waiting turn.
const typeSignal = "butler.work.signal"

// Set implements journal.Timers.
func (l *turnLog) Set(ctx context.Context, unit, key string, due time.Time) error {
	turn, err := chat.ParseTurn(unit)
	if err != nil {
		return err
	}
	data, err := chat.Encode(&butlerv1.WorkSignal{Timer: true, Due: timestamppb.New(due)})
	if err != nil {
		return err
	}
	return l.bus.Schedule(ctx, turn.Timer(key), due, bus.NewEvent(typeSignal, l.bus.Source(), turn.Signal(key), data))
}

// Clear implements journal.Timers.
func (l *turnLog) Clear(ctx context.Context, unit, key string) error {
	turn, err := chat.ParseTurn(unit)
	if err != nil {
		return err
	}
	return l.bus.Unschedule(ctx, turn.Timer(key))
}

// relay takes work items that wake a waiting turn and records them in its journal. Any replica may do so: the record then
// wakes the turn's session where that is.
func (s *Service) relay(ctx context.Context, events []bus.Stored) error {
	for _, ev := range events {
		turn, key, err := chat.ParseWork(ev.Subject)
		if err != nil {
			return err
		}
		// Read as plain JSON: what arrived keeps its bytes.
		var msg struct {
			Value json.RawMessage `json:"value"`
			Timer bool            `json:"timer"`
			Due   time.Time       `json:"due"`
		}
		if err := json.Unmarshal(ev.Data, &msg); err != nil {
			return fmt.Errorf("a work item that cannot be read: %w", err)
		}
		receipt, err := s.exec.Signal(ctx, turn.String(), journal.Message{Key: key, Value: msg.Value, Timeout: msg.Timer, Due: msg.Due})
		if fault.CodeOf(err) == fault.NotFound {
			continue // the conversation was deleted
		}
		if err != nil {
			return err
		}
		if receipt.Hold > 0 {
			return bus.Retry{After: receipt.Hold}
		}
	}
	return nil
}
