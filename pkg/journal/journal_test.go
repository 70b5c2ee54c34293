package journal_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/journal/journaltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const unit = "u"

func newExecutor(t *testing.T, m *journaltest.Memory, worker string, p journal.Program,
	change ...func(*journal.Options)) *journal.Executor {
	t.Helper()
	o := journal.Options{Log: m, Timers: m, Worker: worker}
	for _, c := range change {
		c(&o)
	}
	x, err := journal.NewExecutor(p, o)
	require.NoError(t, err)
	return x
}

func opened() *journaltest.Memory {
	m := journaltest.NewMemory()
	m.Open(unit, []byte(`{"text":"hello"}`))
	return m
}

func answer(text string) journal.End {
	result, _ := json.Marshal(text)
	return journal.End{Status: "answered", Result: result}
}

var pure = journal.Effect{Repeat: journal.Pure}

func TestPlainUnitCostsOneAppend(t *testing.T) {
	t.Parallel()
	m := opened()
	before := m.Appends()
	x := newExecutor(t, m, "w1", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		require.Equal(t, 1, run.Attempt())
		require.JSONEq(t, `{"text":"hello"}`, string(run.Open().Body))
		text, err := journal.Do(ctx, run, "model-1", pure, func(context.Context, *journal.Call) (string, error) {
			return "<good> day", nil
		})
		return answer(text), err
	})
	res, err := x.Execute(t.Context(), unit, journal.Mode{First: true, Known: m.Records(unit)})
	require.NoError(t, err)
	require.Equal(t, journal.Ended, res.Status)
	require.True(t, res.New)
	require.Equal(t, 1, m.Appends()-before)
	records := m.Records(unit)
	require.Equal(t, `"<good> day"`, string(records[1].Entries[0].Value))

	again, err := x.Execute(t.Context(), unit, journal.Mode{})
	require.NoError(t, err)
	require.Equal(t, journal.Ended, again.Status)
	require.False(t, again.New)
	require.Equal(t, "answered", again.End.Status)
}

func TestRecordedFailureIsTheSameAfterwards(t *testing.T) {
	t.Parallel()
	m := opened()
	var seen []string
	fail := true
	program := func(ctx context.Context, run *journal.Run) (journal.End, error) {
		_, err := run.Do(ctx, "tool", journal.Effect{Repeat: journal.Idempotent},
			func(context.Context, *journal.Call) (json.RawMessage, error) {
				return nil, fault.Wrap(errors.New("secret"), fault.Forbidden, "you may not")
			})
		f, ok := errors.AsType[*journal.Failure](err)
		require.True(t, ok)
		require.Equal(t, fault.Forbidden, fault.CodeOf(err))
		require.NotContains(t, err.Error(), "secret")
		seen = append(seen, fmt.Sprint(*f, fault.MessageOf(err)))
		if fail {
			return journal.End{}, errors.New("later")
		}
		return answer("no"), nil
	}
	x := newExecutor(t, m, "w1", program)
	_, err := x.Execute(t.Context(), unit, journal.Mode{First: true})
	require.ErrorContains(t, err, "later")
	fail = false
	res, err := x.Execute(t.Context(), unit, journal.Mode{})
	require.NoError(t, err)
	require.Equal(t, 2, res.Attempt)
	require.Equal(t, journal.Ended, res.Status)
	require.Equal(t, seen[0], seen[1])
}

func TestAwaitSuspendsAndGoesOnElsewhere(t *testing.T) {
	t.Parallel()
	m := opened()
	deadline := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	program := func(ctx context.Context, run *journal.Run) (journal.End, error) {
		got, err := run.Await(ctx, "approval", deadline)
		if err != nil {
			return journal.End{}, fmt.Errorf("waiting: %w", err)
		}
		return answer(string(got.Value)), nil
	}
	one, two := newExecutor(t, m, "w1", program), newExecutor(t, m, "w2", program)
	res, err := one.Execute(t.Context(), unit, journal.Mode{First: true})
	require.NoError(t, err)
	require.Equal(t, journal.Suspended, res.Status)
	require.Equal(t, []string{"approval"}, res.Waiting)
	require.Equal(t, deadline, m.Timers(unit)["approval"])

	// Found suspended: nothing is written, but the timer is set again.
	require.NoError(t, m.Clear(t.Context(), unit, "approval"))
	res, err = two.Execute(t.Context(), unit, journal.Mode{})
	require.NoError(t, err)
	require.Equal(t, journal.Suspended, res.Status)
	require.Len(t, m.Records(unit), 2)
	require.Equal(t, deadline, m.Timers(unit)["approval"])

	// Early timers are held, the first signal wins and calls the timer off.
	receipt, err := two.Signal(t.Context(), unit, journal.Message{Key: "approval", Timeout: true, Due: deadline})
	require.NoError(t, err)
	require.Positive(t, receipt.Hold)
	receipt, err = two.Signal(t.Context(), unit, journal.Message{Key: "approval", Timeout: true})
	require.NoError(t, err)
	require.Positive(t, receipt.Hold, "the recorded deadline holds")
	receipt, err = two.Signal(t.Context(), unit, journal.Message{Key: "approval", Value: []byte(`"yes"`)})
	require.NoError(t, err)
	require.Equal(t, journal.Receipt{New: true}, receipt)
	require.Empty(t, m.Timers(unit))
	receipt, err = one.Signal(t.Context(), unit, journal.Message{Key: "approval", Value: []byte(`"no"`)})
	require.NoError(t, err)
	require.Equal(t, journal.Receipt{}, receipt)

	known := m.Records(unit)[:2] // stale: without the signal
	res, err = two.Execute(t.Context(), unit, journal.Mode{Known: known})
	require.NoError(t, err)
	require.Equal(t, journal.Ended, res.Status)
	require.Equal(t, `"\"yes\""`, string(res.End.Result))
	require.NoError(t, journaltest.CheckUnit(m.Records(unit)))

	receipt, err = one.Signal(t.Context(), unit, journal.Message{Key: "other"})
	require.NoError(t, err)
	require.True(t, receipt.Ended)
	_, err = one.Signal(t.Context(), "nobody", journal.Message{Key: "other"})
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
}

func TestManyWakesAreNoPoison(t *testing.T) {
	t.Parallel()
	m := opened()
	x := newExecutor(t, m, "w1", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		for i := range 120 {
			if _, err := run.Await(ctx, fmt.Sprintf("s-%d", i), time.Time{}); err != nil {
				return journal.End{}, err
			}
		}
		return answer("done"), nil
	})
	res, err := x.Execute(t.Context(), unit, journal.Mode{First: true})
	for i := 0; res.Status == journal.Suspended; i++ {
		require.NoError(t, err)
		_, err = x.Signal(t.Context(), unit, journal.Message{Key: fmt.Sprintf("s-%d", i), Value: []byte("1")})
		require.NoError(t, err)
		res, err = x.Execute(t.Context(), unit, journal.Mode{})
	}
	require.NoError(t, err)
	require.Equal(t, "answered", res.End.Status)
	require.Equal(t, 121, res.Attempt)
	require.Empty(t, m.Timers(unit))
}

func TestPoisonEndsWithAReasonAndIsParked(t *testing.T) {
	t.Parallel()
	m := opened()
	runs := 0
	var parked []string
	x := newExecutor(t, m, "w1", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		runs++
		_, err := run.Do(ctx, "pay", journal.Effect{Repeat: journal.Once}, func(context.Context, *journal.Call) (json.RawMessage, error) {
			panic("boom")
		})
		if runs > 1 {
			require.ErrorContains(t, err, "interrupted")
			panic("bang")
		}
		return answer("swallowed"), nil
	}, func(o *journal.Options) {
		o.Poison = func(run *journal.Run, reason string) journal.End {
			return journal.End{Status: "failed", Reason: reason, Result: run.Open().Body}
		}
		o.Park = func(_ context.Context, unit, reason string) error {
			parked = append(parked, unit+" "+reason)
			return nil
		}
	})
	for i := range 7 {
		_, err := x.Execute(t.Context(), unit, journal.Mode{First: i == 0})
		p, ok := errors.AsType[*journal.PanicError](err)
		require.True(t, ok, "%v", err)
		require.NotEmpty(t, p.Stack)
	}
	res, err := x.Execute(t.Context(), unit, journal.Mode{})
	require.NoError(t, err)
	require.Equal(t, journal.End{Status: "failed", Reason: "poison", Result: []byte(`{"text":"hello"}`)}, *res.End)
	require.Equal(t, []string{"u poison"}, parked)
	require.Equal(t, 7, runs, "attempt 2 brought an outcome (unknown), five more brought none")
	require.NoError(t, journaltest.CheckUnit(m.Records(unit)))
}

func TestStaleWorkerIsFenced(t *testing.T) {
	t.Parallel()
	m := opened()
	frozen, wake := make(chan struct{}), make(chan struct{})
	stale := newExecutor(t, m, "w1", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		_, err := run.Do(ctx, "tool", journal.Effect{Repeat: journal.Idempotent},
			func(context.Context, *journal.Call) (json.RawMessage, error) {
				close(frozen)
				<-wake
				return json.RawMessage(`1`), nil
			})
		require.ErrorIs(t, err, journal.ErrFenced)
		require.ErrorIs(t, context.Cause(ctx), journal.ErrFenced)
		_, err = run.Do(ctx, "next", pure, nil)
		require.ErrorIs(t, err, journal.ErrFenced)
		return answer("stale"), nil
	})
	var res journal.Result
	var wg sync.WaitGroup
	wg.Go(func() { res, _ = stale.Execute(t.Context(), unit, journal.Mode{First: true}) })
	<-frozen
	busy, err := stale.Execute(t.Context(), unit, journal.Mode{})
	require.NoError(t, err)
	require.Equal(t, journal.Busy, busy.Status)

	suspend := true
	other := newExecutor(t, m, "w2", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		if suspend {
			_, err := run.Await(ctx, "x", time.Time{})
			return journal.End{}, err
		}
		return answer("fresh"), nil
	})
	first, err := other.Execute(t.Context(), unit, journal.Mode{First: true})
	require.NoError(t, err)
	require.Equal(t, journal.Fenced, first.Status, "a first delivery does not take over")
	_, err = other.Execute(t.Context(), unit, journal.Mode{})
	require.NoError(t, err)
	before := len(m.Records(unit))
	close(wake)
	wg.Wait()
	require.Equal(t, journal.Fenced, res.Status)
	require.Len(t, m.Records(unit), before)
}

func TestDeletedUnitFencesItsWorker(t *testing.T) {
	t.Parallel()
	m := opened()
	x := newExecutor(t, m, "w1", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		m.Delete(unit)
		return answer("too late"), nil
	})
	res, err := x.Execute(t.Context(), unit, journal.Mode{First: true})
	require.NoError(t, err)
	require.Equal(t, journal.Fenced, res.Status)
	require.Empty(t, m.Records(unit))
	_, err = x.Execute(t.Context(), unit, journal.Mode{})
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
}

func cancelUnit(t *testing.T, m *journaltest.Memory) {
	t.Helper()
	added, err := journal.RequestCancel(t.Context(), m, unit, journal.Record{ID: "stop", Body: []byte(`{"by":{}}`)})
	require.NoError(t, err)
	require.True(t, added)
}

func TestCancelReachesTheProgramAtOnce(t *testing.T) {
	t.Parallel()
	m := opened()
	running := make(chan struct{})
	x := newExecutor(t, m, "w1", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		_, err := run.Do(ctx, "model", pure, func(ctx context.Context, _ *journal.Call) (json.RawMessage, error) {
			close(running)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		require.ErrorIs(t, err, journal.ErrCancelled)
		cancel, ok := run.CancelRecord()
		require.True(t, ok)
		require.JSONEq(t, `{"by":{}}`, string(cancel.Body))
		_, err = run.Await(ctx, "x", time.Time{})
		require.ErrorIs(t, err, journal.ErrCancelled)
		return journal.End{Status: "stopped"}, nil
	})
	var wg sync.WaitGroup
	var res journal.Result
	wg.Go(func() { res, _ = x.Execute(t.Context(), unit, journal.Mode{First: true}) })
	<-running
	cancelUnit(t, m)
	require.NoError(t, x.Cancel(t.Context(), unit))
	wg.Wait()
	require.Equal(t, "stopped", res.End.Status)
	require.Empty(t, m.Records(unit)[2].Entries, "an interrupted pure step has no outcome")
	require.NoError(t, x.Cancel(t.Context(), unit), "a late hint does nothing")
	added, err := journal.RequestCancel(t.Context(), m, unit, journal.Record{ID: "stop-2"})
	require.NoError(t, err)
	require.False(t, added, "the unit has ended")
}

func TestCancelBeforeAnExecutionThatKnowsTooLittle(t *testing.T) {
	t.Parallel()
	m := opened()
	x := newExecutor(t, m, "w1", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		_, err := run.Do(ctx, "model", pure, func(context.Context, *journal.Call) (json.RawMessage, error) {
			panic("it must not run")
		})
		return journal.End{}, err
	})
	known := m.Records(unit)
	cancelUnit(t, m)
	require.NoError(t, x.Cancel(t.Context(), unit))
	res, err := x.Execute(t.Context(), unit, journal.Mode{First: true, Known: known})
	require.NoError(t, err)
	require.Equal(t, "stopped", res.End.Status)
}

func TestCancelSeenAtTheLastMoment(t *testing.T) {
	t.Parallel()
	for name, program := range map[string]journal.Program{
		"before an intent": func(ctx context.Context, run *journal.Run) (journal.End, error) {
			_, err := run.Do(ctx, "pay", journal.Effect{Repeat: journal.Once},
				func(context.Context, *journal.Call) (json.RawMessage, error) { panic("it must not run") })
			return journal.End{}, err
		},
		"before the end": func(context.Context, *journal.Run) (journal.End, error) { return answer("done"), nil },
		"before a wait": func(ctx context.Context, run *journal.Run) (journal.End, error) {
			_, err := run.Await(ctx, "x", time.Time{})
			return journal.End{}, err
		},
	} {
		m := opened()
		once := sync.OnceFunc(func() { cancelUnit(t, m) })
		m.Fault = func(_ string, rec journal.Record) journaltest.Fault {
			if rec.Kind != journal.KindCancel {
				once()
			}
			return journaltest.None
		}
		x := newExecutor(t, m, "w1", program, func(o *journal.Options) {
			o.Stopped = func(_ *journal.Run, end *journal.End) journal.End {
				if end == nil {
					return journal.End{Status: "stopped"}
				}
				return journal.End{Status: "stopped", Result: end.Result}
			}
		})
		res, err := x.Execute(t.Context(), unit, journal.Mode{First: true})
		require.NoError(t, err, name)
		require.Equal(t, "stopped", res.End.Status, name)
		records := m.Records(unit)
		require.Len(t, records, 3, name)
		require.Empty(t, records[2].Entries, name)
		if name == "before the end" {
			require.Equal(t, `"done"`, string(res.End.Result))
		}
	}
}

func TestSuspendedUnitIsCancelled(t *testing.T) {
	t.Parallel()
	m := opened()
	x := newExecutor(t, m, "w1", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		_, err := run.Await(ctx, "x", time.Now().Add(time.Hour))
		return journal.End{}, err
	})
	_, err := x.Execute(t.Context(), unit, journal.Mode{First: true})
	require.NoError(t, err)
	cancelUnit(t, m)
	res, err := x.Execute(t.Context(), unit, journal.Mode{})
	require.NoError(t, err)
	require.Equal(t, journal.End{Status: "stopped", Reason: "cancelled"}, *res.End)
	require.Empty(t, m.Timers(unit))
}

func TestOnceEffectIsLookedUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		value       string
		found       bool
		err         error
		want, class string
	}{
		"it happened":     {value: `"paid"`, found: true, want: `"paid"`},
		"it failed":       {found: true, err: fault.New(fault.Conflict, "no money"), class: "user"},
		"nobody knows":    {class: journal.ClassUnknown},
		"nobody answered": {err: fault.New(fault.Unavailable, "no answer")},
	} {
		m := opened()
		program := func(ctx context.Context, run *journal.Run) (journal.End, error) {
			v, err := run.Do(ctx, "pay", journal.Effect{Repeat: journal.Once,
				Lookup: func(_ context.Context, key string) (json.RawMessage, bool, error) {
					require.Equal(t, "u/pay", key)
					return json.RawMessage(c.value), c.found, c.err
				}}, func(context.Context, *journal.Call) (json.RawMessage, error) {
				require.Equal(t, 1, run.Attempt())
				panic("dies")
			})
			if f, ok := errors.AsType[*journal.Failure](err); ok {
				return journal.End{Status: "failed", Reason: f.Class}, nil
			}
			return journal.End{Status: "answered", Result: v}, err
		}
		x := newExecutor(t, m, "w1", program)
		_, err := x.Execute(t.Context(), unit, journal.Mode{First: true})
		require.Error(t, err)
		res, err := x.Execute(t.Context(), unit, journal.Mode{})
		if c.want == "" && c.class == "" {
			require.Equal(t, fault.Transient, fault.ClassOf(err), name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, c.want, string(res.End.Result), name)
		require.Equal(t, c.class, res.End.Reason, name)
		require.NoError(t, journaltest.CheckUnit(m.Records(unit)), name)
	}
}

func TestBudgetsSurviveCrashes(t *testing.T) {
	t.Parallel()
	calls := 0
	program := func(ctx context.Context, run *journal.Run) (journal.End, error) {
		for i := range 10 {
			_, err := run.Do(ctx, fmt.Sprintf("model-%d", i),
				journal.Effect{Repeat: journal.Idempotent, Cost: journal.Spent{ModelCalls: 1}},
				func(_ context.Context, c *journal.Call) (json.RawMessage, error) {
					calls++
					c.Spend(journal.Spent{Tokens: 100})
					return nil, nil
				})
			if b, ok := errors.AsType[*journal.BudgetError](err); ok {
				require.ErrorIs(t, err, journal.ErrBudget)
				return journal.End{Status: "failed", Reason: b.Which}, nil
			}
			if err != nil {
				return journal.End{}, err
			}
			if run.Attempt() == i+1 {
				panic("one step an attempt")
			}
		}
		return answer("all"), nil
	}
	for which, budget := range map[string]journal.Spent{"model_calls": {ModelCalls: 3}, "tokens": {Tokens: 250}} {
		m := opened()
		calls = 0
		x := newExecutor(t, m, "w1", program, func(o *journal.Options) { o.Budget = budget })
		var res journal.Result
		err := errors.New("not yet")
		for i := 0; err != nil; i++ {
			require.Less(t, i, 10)
			res, err = x.Execute(t.Context(), unit, journal.Mode{First: i == 0})
		}
		require.Equal(t, which, res.End.Reason)
		require.Equal(t, 3, calls)
		require.EqualValues(t, 300, journal.Fold(m.Records(unit)).Spent.Tokens)
	}
}

func TestActiveTimeIsCutShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := opened()
		program := func(ctx context.Context, run *journal.Run) (journal.End, error) {
			if _, err := run.Do(ctx, "quick", pure, func(context.Context, *journal.Call) (json.RawMessage, error) {
				time.Sleep(600 * time.Millisecond)
				return nil, nil
			}); err != nil {
				return journal.End{}, err
			}
			if _, err := run.Await(ctx, "x", time.Time{}); err != nil {
				return journal.End{}, err
			}
			start := time.Now()
			_, err := run.Do(ctx, "slow", pure, func(ctx context.Context, _ *journal.Call) (json.RawMessage, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})
			require.ErrorIs(t, err, journal.ErrBudget)
			require.Equal(t, 400*time.Millisecond, time.Since(start))
			_, err = run.Do(ctx, "next", pure, nil)
			require.ErrorIs(t, err, journal.ErrBudget)
			return journal.End{Status: "failed", Reason: "active_ms"}, nil
		}
		x := newExecutor(t, m, "w1", program, func(o *journal.Options) { o.Budget.ActiveMs = 1000 })
		_, err := x.Execute(t.Context(), unit, journal.Mode{First: true})
		require.NoError(t, err)
		time.Sleep(time.Hour) // suspended: not active
		_, err = x.Signal(t.Context(), unit, journal.Message{Key: "x"})
		require.NoError(t, err)
		res, err := x.Execute(t.Context(), unit, journal.Mode{})
		require.NoError(t, err)
		require.Equal(t, "active_ms", res.End.Reason)
		require.Len(t, m.Records(unit)[4].Entries, 0)
	})
}

func TestShutdownKeepsWhatWasDone(t *testing.T) {
	t.Parallel()
	m := opened()
	ctx, cancel := context.WithCancelCause(t.Context())
	program := func(ctx context.Context, run *journal.Run) (journal.End, error) {
		v, err := journal.Do(ctx, run, "first", pure, func(context.Context, *journal.Call) (int, error) { return run.Attempt(), nil })
		if err != nil {
			return journal.End{}, err
		}
		_, err = run.Do(ctx, "second", pure, func(ctx context.Context, _ *journal.Call) (json.RawMessage, error) {
			if run.Attempt() == 1 {
				cancel(errors.New("going down"))
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return nil, nil
		})
		return answer(fmt.Sprint(v)), err
	}
	_, err := newExecutor(t, m, "w1", program).Execute(ctx, unit, journal.Mode{First: true})
	require.EqualError(t, err, "going down")
	require.Len(t, m.Records(unit), 2, "the buffered outcome")
	res, err := newExecutor(t, m, "w2", program).Execute(t.Context(), unit, journal.Mode{})
	require.NoError(t, err)
	require.Equal(t, `"1"`, string(res.End.Result))
	_, err = newExecutor(t, m, "w3", program).Execute(ctx, unit, journal.Mode{})
	require.EqualError(t, err, "going down")
}

func TestLimits(t *testing.T) {
	t.Parallel()
	m := opened()
	big := func(n int) json.RawMessage { return json.RawMessage(`"` + strings.Repeat("x", n) + `"`) }
	var codes []string
	x := newExecutor(t, m, "w1", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		for i := range 12 {
			_, err := run.Do(ctx, fmt.Sprintf("s-%d", i), pure, func(context.Context, *journal.Call) (json.RawMessage, error) {
				switch i {
				case 0:
					return big(600 << 10), nil
				case 1:
					return json.RawMessage(`{"a":`), nil
				case 2:
					return nil, fault.New(fault.Invalid, "bad \x00 \xff %s", strings.Repeat("é", 5000))
				}
				return big(500 << 10), nil
			})
			if err != nil {
				codes = append(codes, string(fault.CodeOf(err)))
			}
		}
		return journal.End{Status: "answered", Result: big(500 << 10)}, nil
	}, func(o *journal.Options) { o.Limits = journal.Limits{Entries: 9} })
	res, err := x.Execute(t.Context(), unit, journal.Mode{First: true})
	require.NoError(t, err)
	require.Equal(t, "answered", res.End.Status)
	require.Equal(t, []string{"output_too_large", "invalid_output", "invalid"}, codes[:3])
	require.Equal(t, "too_many_entries", codes[3])
	require.Len(t, codes, 3+3)
	for _, r := range m.Records(unit) {
		data, err := r.Encode()
		require.NoError(t, err)
		require.LessOrEqual(t, len(data), 900<<10)
	}
	require.NoError(t, journaltest.CheckUnit(m.Records(unit)))

	// An end that cannot be stored becomes one that can.
	for reason, result := range map[string]json.RawMessage{"output_too_large": big(600 << 10), "invalid_output": []byte(`{`)} {
		m := opened()
		x := newExecutor(t, m, "w1", func(context.Context, *journal.Run) (journal.End, error) {
			return journal.End{Status: "answered", Result: result}, nil
		})
		res, err := x.Execute(t.Context(), unit, journal.Mode{First: true})
		require.NoError(t, err)
		require.Equal(t, journal.End{Status: "failed", Reason: reason}, *res.End)
	}

	// A signal that cannot be stored still wakes the unit.
	m = opened()
	x = newExecutor(t, m, "w1", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		_, err := run.Await(ctx, "x", time.Time{})
		if f, ok := errors.AsType[*journal.Failure](err); ok {
			return journal.End{Status: "failed", Reason: f.Code}, nil
		}
		return journal.End{}, err
	})
	_, err = x.Signal(t.Context(), unit, journal.Message{Key: "x", Value: big(600 << 10)})
	require.NoError(t, err)
	res, err = x.Execute(t.Context(), unit, journal.Mode{First: true})
	require.NoError(t, err)
	require.Equal(t, "output_too_large", res.End.Reason)

	// Keys.
	m = opened()
	x = newExecutor(t, m, "w1", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		for _, key := range []string{"", "a.b", "a b", strings.Repeat("k", 65), "é", "a/b", "a\n"} {
			_, err := run.Do(ctx, key, pure, nil)
			require.Equal(t, fault.Invalid, fault.CodeOf(err), key)
			_, err = run.Await(ctx, key, time.Time{})
			require.Equal(t, fault.Invalid, fault.CodeOf(err), key)
		}
		_, err := run.Do(ctx, "a", journal.Effect{}, nil)
		require.Equal(t, fault.Invalid, fault.CodeOf(err))
		return answer("ok"), nil
	})
	_, err = x.Execute(t.Context(), unit, journal.Mode{First: true})
	require.NoError(t, err)
}

func TestSameKeyAtTheSameTimeRunsOnce(t *testing.T) {
	t.Parallel()
	m := opened()
	var mu sync.Mutex
	runs := 0
	x := newExecutor(t, m, "w1", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		err := journal.Parallel(ctx, 20, 5, func(ctx context.Context, i int) error {
			_, err := run.Do(ctx, fmt.Sprintf("k-%d", i%2), journal.Effect{Repeat: journal.Once},
				func(context.Context, *journal.Call) (json.RawMessage, error) {
					mu.Lock()
					defer mu.Unlock()
					runs++
					return nil, nil
				})
			return err
		})
		return answer("ok"), err
	})
	_, err := x.Execute(t.Context(), unit, journal.Mode{First: true})
	require.NoError(t, err)
	require.Equal(t, 2, runs)
	require.NoError(t, journaltest.CheckUnit(m.Records(unit)))
}

func TestParallelGivesTheErrorThatMatters(t *testing.T) {
	t.Parallel()
	other := errors.New("other")
	for want, errs := range map[error][]error{
		other:                {journal.ErrSuspended, other, journal.ErrCancelled, nil},
		journal.ErrCancelled: {journal.ErrSuspended, journal.ErrCancelled},
		journal.ErrFenced:    {other, journal.ErrFenced, journal.ErrSuspended},
		journal.ErrSuspended: {nil, journal.ErrSuspended},
	} {
		err := journal.Parallel(t.Context(), len(errs), 1, func(_ context.Context, i int) error { return errs[i] })
		require.ErrorIs(t, err, want)
	}
	err := journal.Parallel(t.Context(), 2, 0, func(_ context.Context, i int) error { panic(i) })
	p, ok := errors.AsType[*journal.PanicError](err)
	require.True(t, ok)
	require.Equal(t, 0, p.Value)
	require.NoError(t, journal.Parallel(t.Context(), 0, 0, nil))
}

func TestWhatAProgramLeavesBehindIsNotWritten(t *testing.T) {
	t.Parallel()
	m := opened()
	release, started, left := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	x := newExecutor(t, m, "w1", func(ctx context.Context, run *journal.Run) (journal.End, error) {
		go func() {
			_, err := run.Do(context.WithoutCancel(ctx), "late", journal.Effect{Repeat: journal.Once},
				func(context.Context, *journal.Call) (json.RawMessage, error) {
					close(started)
					<-release
					return nil, nil
				})
			left <- err
		}()
		<-started
		return answer("gone"), nil
	})
	_, err := x.Execute(t.Context(), unit, journal.Mode{First: true})
	require.NoError(t, err)
	close(release)
	require.Error(t, <-left)
	records := m.Records(unit)
	require.NoError(t, journaltest.CheckUnit(records))
	require.Equal(t, journal.ClassUnknown, journal.Fold(records).Outcomes["late"].Error.Class)
}

func TestLogThatRefusesForNothingIsAnError(t *testing.T) {
	t.Parallel()
	m := opened()
	x, err := journal.NewExecutor(func(context.Context, *journal.Run) (journal.End, error) { return answer("x"), nil },
		journal.Options{Log: refusing{m}, Timers: m, Worker: "w1"})
	require.NoError(t, err)
	for _, first := range []bool{true, false} {
		_, err = x.Execute(t.Context(), unit, journal.Mode{First: first})
		require.Equal(t, fault.Transient, fault.ClassOf(err))
	}
	_, err = x.Signal(t.Context(), unit, journal.Message{Key: "k"})
	require.Equal(t, fault.Transient, fault.ClassOf(err))
	_, err = journal.NewExecutor(nil, journal.Options{})
	require.Error(t, err)
}

type refusing struct{ *journaltest.Memory }

func (refusing) Append(context.Context, string, uint64, journal.Record) (uint64, error) {
	return 0, journal.ErrConflict
}
