package journal_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/journal/journaltest"
)

// BenchmarkPlainUnit is what the journal adds to a plain turn: a pure step of 1 KiB and the end, without a real log.
func BenchmarkPlainUnit(b *testing.B) {
	text := json.RawMessage(`"` + strings.Repeat("x", 1<<10) + `"`)
	m := journaltest.NewMemory()
	x, err := journal.NewExecutor(func(ctx context.Context, run *journal.Run) (journal.End, error) {
		v, err := run.Do(ctx, "model-1", pure, func(context.Context, *journal.Call) (json.RawMessage, error) {
			return text, nil
		})
		return journal.End{Status: "answered", Result: v}, err
	}, journal.Options{Log: m, Timers: m, Worker: "w1"})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		unit := fmt.Sprint("u", i)
		m.Open(unit, nil)
		if res, err := x.Execute(b.Context(), unit, journal.Mode{First: true}); err != nil || !res.New {
			b.Fatal(res, err)
		}
		m.Delete(unit)
	}
}
