package journal_test

import (
	"context"
	"fmt"
	"time"

	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/journal/journaltest"
)

// A program that asks before it acts. It is suspended while the person thinks, goes on in another process, and deletes
// once whatever happens.
func Example() {
	program := func(ctx context.Context, run *journal.Run) (journal.End, error) {
		plan, err := journal.Do(ctx, run, "plan", journal.Effect{Repeat: journal.Pure, Cost: journal.Spent{ModelCalls: 1}},
			func(_ context.Context, c *journal.Call) (string, error) {
				c.Spend(journal.Spent{Tokens: 42})
				return "delete old logs", nil
			})
		if err != nil {
			return journal.End{}, err
		}
		decision, err := run.Await(ctx, "approval", time.Now().Add(5*time.Minute))
		if err != nil {
			return journal.End{}, err
		}
		if decision.Timeout {
			return journal.End{Status: "failed", Reason: "nobody decided"}, nil
		}
		freed, err := journal.Do(ctx, run, "delete", journal.Effect{Repeat: journal.Once, Description: plan},
			func(context.Context, *journal.Call) (int, error) { return 17, nil })
		if err != nil {
			return journal.End{}, err
		}
		return journal.End{Status: "answered", Result: fmt.Appendf(nil, `"%d files deleted"`, freed)}, nil
	}

	ctx := context.Background()
	log := journaltest.NewMemory()
	log.Open("turn-1", []byte(`{"text":"clean up"}`))
	one, _ := journal.NewExecutor(program, journal.Options{Log: log, Timers: log, Worker: "brain-1"})
	two, _ := journal.NewExecutor(program, journal.Options{Log: log, Timers: log, Worker: "brain-2"})

	res, _ := one.Execute(ctx, "turn-1", journal.Mode{First: true})
	fmt.Println(res.Status, res.Waiting)

	receipt, _ := two.Signal(ctx, "turn-1", journal.Message{Key: "approval", Value: []byte(`"approved"`)})
	fmt.Println("new:", receipt.New)

	res, _ = two.Execute(ctx, "turn-1", journal.Mode{})
	fmt.Println(res.Status, string(res.End.Result))
	for _, r := range log.Records("turn-1") {
		line := string(r.Kind)
		for _, e := range r.Entries {
			line += fmt.Sprintf(" %s:%s", e.Kind, e.Key)
		}
		fmt.Println(line)
	}
	// Output:
	// suspended [approval]
	// new: true
	// ended "17 files deleted"
	// open
	// step outcome:plan await:approval
	// signal signal:approval
	// step claim:
	// step intent:delete
	// step outcome:delete
	// end
}
