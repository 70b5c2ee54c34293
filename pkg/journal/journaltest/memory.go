package journaltest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/journal"
)

// Memory is a Log and Timers in memory, for tests of programs. Records pass through their stored form. Timers do not
// fire: Timers gives them. Safe for concurrent use.
type Memory struct {
	// Fault, when set, is asked before each append: what it returns says how the append goes wrong. Set it before use.
	Fault func(unit string, rec journal.Record) Fault
	// Now gives the records' time; default time.Now.
	Now func() time.Time

	mu      sync.Mutex
	seq     uint64
	units   map[string][]journal.Record
	timers  map[string]map[string]time.Time
	appends int
}

// Fault is how an append goes wrong.
type Fault int

// Faults of an append.
const (
	None   Fault = iota
	Lost         // not stored, its writer gets an error
	Unsure       // stored, its writer gets an error
)

// ErrFault is what the writer gets.
var ErrFault = errors.New("the log does not answer")

// NewMemory makes an empty log.
func NewMemory() *Memory {
	return &Memory{units: map[string][]journal.Record{}, timers: map[string]map[string]time.Time{}, Now: time.Now}
}

// Open writes the record that opens unit.
func (m *Memory) Open(unit string, body json.RawMessage) {
	if _, err := m.Append(context.Background(), unit, 0,
		journal.Record{ID: "open-" + unit, Kind: journal.KindOpen, Body: body}); err != nil {
		panic(err)
	}
}

// Load implements journal.Log.
func (m *Memory) Load(_ context.Context, unit string, after uint64) ([]journal.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []journal.Record
	for _, r := range m.units[unit] {
		if r.Seq > after {
			out = append(out, r)
		}
	}
	return out, nil
}

// Append implements journal.Log.
func (m *Memory) Append(ctx context.Context, unit string, expect uint64, rec journal.Record) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	fault := None
	if m.Fault != nil && rec.Kind != journal.KindOpen {
		fault = m.Fault(unit, rec)
	}
	if fault == Lost {
		return 0, ErrFault
	}
	data, err := rec.Encode()
	if err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	records := m.units[unit]
	last := uint64(0)
	for _, r := range records {
		if last = r.Seq; r.ID == rec.ID {
			return r.Seq, nil
		}
	}
	if last != expect {
		return 0, journal.ErrConflict
	}
	m.seq++
	m.appends++
	stored := journal.Record{Seq: m.seq, At: m.Now(), ID: rec.ID, Kind: rec.Kind}
	if err := stored.Decode(data); err != nil {
		return 0, err
	}
	m.units[unit] = append(records, stored)
	if fault == Unsure {
		return 0, ErrFault
	}
	return m.seq, nil
}

// Records gives what is stored of unit.
func (m *Memory) Records(unit string) []journal.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.units[unit])
}

// Appends gives the number of records stored in all units.
func (m *Memory) Appends() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.appends
}

// Delete removes a unit, as the deletion of a conversation does.
func (m *Memory) Delete(unit string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.units, unit)
}

// Set implements journal.Timers.
func (m *Memory) Set(_ context.Context, unit, key string, due time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.timers[unit] == nil {
		m.timers[unit] = map[string]time.Time{}
	}
	m.timers[unit][key] = due
	return nil
}

// Clear implements journal.Timers.
func (m *Memory) Clear(_ context.Context, unit, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.timers[unit], key)
	return nil
}

// Timers gives the timers of unit that are set, by key.
func (m *Memory) Timers(unit string) map[string]time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]time.Time{}
	for key, due := range m.timers[unit] {
		out[key] = due
	}
	return out
}
