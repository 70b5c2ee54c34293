package journal_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/journal/journaltest"
)

// crashes plays one fixed program over a log that fails at the given appends, each failure being the death of the
// worker, and gives the journal and how often each effect was executed.
func crashes(t *testing.T, at map[int]journaltest.Fault, cancelAt int) ([]journal.Record, map[string]int, int) {
	t.Helper()
	m := journaltest.NewMemory()
	var mu sync.Mutex
	appends, runs, dead := 0, map[string]int{}, false
	m.Fault = func(unit string, rec journal.Record) journaltest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if rec.Kind == journal.KindCancel {
			return journaltest.None
		}
		if dead {
			return journaltest.Lost
		}
		appends++
		fault := at[appends]
		dead = fault != journaltest.None
		return fault
	}
	effect := func(_ context.Context, c *journal.Call) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if dead {
			return "", errors.New("dead")
		}
		runs[c.Key]++
		return fmt.Sprint(c.Key, " ", runs[c.Key]), nil
	}
	program := func(ctx context.Context, run *journal.Run) (journal.End, error) {
		var saw []string
		do := func(ctx context.Context, key string, repeat journal.Repeat) (string, error) {
			v, err := journal.Do(ctx, run, key, journal.Effect{Repeat: repeat}, effect)
			if f, ok := errors.AsType[*journal.Failure](err); ok {
				return f.Class, nil
			}
			return v, err
		}
		for _, s := range []struct {
			key    string
			repeat journal.Repeat
		}{{"plan", journal.Pure}, {"ask", journal.Idempotent}, {"think", journal.Pure}, {"pay", journal.Once}} {
			v, err := do(ctx, s.key, s.repeat)
			if err != nil {
				return journal.End{}, err
			}
			saw = append(saw, v)
		}
		branches := make([]string, 3)
		err := journal.Parallel(ctx, 3, 0, func(ctx context.Context, i int) (err error) {
			branches[i], err = do(ctx, fmt.Sprintf("tool-%d", i), []journal.Repeat{journal.Once, journal.Idempotent, journal.Pure}[i])
			return err
		})
		if err != nil {
			return journal.End{}, err
		}
		got, err := run.Await(ctx, "approval", time.Now().Add(time.Hour))
		if err != nil {
			return journal.End{}, err
		}
		last, err := do(ctx, "last", journal.Once)
		if err != nil {
			return journal.End{}, err
		}
		result, err := json.Marshal(append(append(saw, branches...), string(got.Value), last))
		return journal.End{Status: "answered", Result: result}, err
	}
	m.Open("u", nil)
	started := 0
	worker := func() *journal.Executor {
		mu.Lock()
		defer mu.Unlock()
		started++
		dead = false
		x, err := journal.NewExecutor(program, journal.Options{Log: m, Timers: m, Worker: fmt.Sprintf("w%d", started)})
		require.NoError(t, err)
		return x
	}
	x := worker()
	signalled := false
	for tries := 0; ; tries++ {
		require.Less(t, tries, 30, "the unit does not end")
		if cancelAt == tries+1 {
			_, err := journal.RequestCancel(t.Context(), m, "u", journal.Record{ID: "cancel", Body: []byte(`{}`)})
			require.NoError(t, err)
		}
		res, err := x.Execute(t.Context(), "u", journal.Mode{First: tries == 0})
		switch {
		case err != nil:
			x = worker()
		case res.Status == journal.Ended:
			return m.Records("u"), runs, appends
		case res.Status == journal.Suspended && !signalled:
			require.Contains(t, m.Timers("u"), "approval")
			if _, err := x.Signal(t.Context(), "u", journal.Message{Key: "approval", Value: []byte(`"yes"`)}); err != nil {
				x = worker()
			} else {
				signalled = true
			}
		default:
			t.Fatalf("unexpected: %+v", res)
		}
	}
}

func checkCrashes(t *testing.T, at map[int]journaltest.Fault, cancelAt int) int {
	t.Helper()
	records, runs, appends := crashes(t, at, cancelAt)
	require.NoError(t, journaltest.CheckUnit(records), "crashes at %v", at)
	st := journal.Fold(records)
	if cancelAt == 0 {
		require.Equal(t, "answered", st.End.Status)
	}
	for _, key := range []string{"pay", "tool-0", "last"} {
		require.LessOrEqual(t, runs["u/"+key], 1, "crashes at %v: %s", at, key)
		if out := st.Outcomes[key]; out.Error != nil {
			require.Contains(t, []string{journal.ClassUnknown, journal.ClassPermanent}, out.Error.Class)
		}
	}
	return appends
}

// Every append of a program fails once, before and after it is stored, alone and together with a later one.
func TestCrashAtEveryAppend(t *testing.T) {
	t.Parallel()
	appends := checkCrashes(t, nil, 0)
	require.Greater(t, appends, 8)
	kinds := []journaltest.Fault{journaltest.Lost, journaltest.Unsure}
	for i := 1; i <= appends+1; i++ {
		for _, one := range kinds {
			more := checkCrashes(t, map[int]journaltest.Fault{i: one}, 0)
			if os.Getenv("JOURNAL_SEEDS") == "" {
				more = min(more, i+3) // the soak takes all pairs
			}
			for j := i + 1; j <= more; j++ {
				for _, two := range kinds {
					checkCrashes(t, map[int]journaltest.Fault{i: one, j: two}, 0)
				}
			}
		}
	}
}

func TestCrashAndCancelAtEveryAppend(t *testing.T) {
	t.Parallel()
	for i := 1; i <= 14; i++ {
		for _, fault := range []journaltest.Fault{journaltest.Lost, journaltest.Unsure} {
			for attempt := 1; attempt <= 3; attempt++ {
				checkCrashes(t, map[int]journaltest.Fault{i: fault}, attempt)
			}
		}
	}
}
