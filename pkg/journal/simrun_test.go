package journal_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSimulation plays seeds 1 … JOURNAL_SEEDS (default 300). JOURNAL_SEED=<n> plays one and prints what happens.
func TestSimulation(t *testing.T) {
	if one := os.Getenv("JOURNAL_SEED"); one != "" {
		seed, err := strconv.ParseUint(one, 10, 64)
		require.NoError(t, err)
		problems, trace := simulate(t, seed, faults{}, true)
		t.Logf("seed %d:\n%s", seed, strings.Join(trace, "\n"))
		require.Empty(t, problems)
		return
	}
	seeds := 300
	if n := os.Getenv("JOURNAL_SEEDS"); n != "" {
		var err error
		seeds, err = strconv.Atoi(n)
		require.NoError(t, err)
	}
	const shards = 4
	for shard := range shards {
		t.Run(fmt.Sprintf("shard-%d", shard), func(t *testing.T) {
			t.Parallel()
			for seed := 1 + shard; seed <= seeds; seed += shards {
				if problems, _ := simulate(t, uint64(seed), faults{}, false); len(problems) > 0 {
					t.Fatalf("seed %d (JOURNAL_SEED=%d plays it again):\n%s", seed, seed, strings.Join(problems, "\n"))
				}
			}
		})
	}
}

func TestSimulationIsDeterministic(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		_, once := simulate(t, seed, faults{}, true)
		_, again := simulate(t, seed, faults{}, true)
		require.Equal(t, once, again, "seed %d", seed)
	}
}

func TestWithoutFaultsEverythingIsAnswered(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		problems, _ := simulate(t, seed, faults{none: true}, false)
		require.Empty(t, problems, "seed %d", seed)
	}
}

// A simulation that cannot fail proves nothing: each rule that is broken on purpose must be noticed.
func TestSimulationNoticesBrokenRules(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]faults{
		"appends without condition": {unconditional: true},
		"takeover without claim":    {claimless: true},
		"intents are lost":          {forgetIntents: true},
		"outcomes are lost":         {forgetOutcome: true},
		"signals are lost":          {forgetSignals: true},
		"timers are lost":           {loseTimers: true},
		"timers come early":         {eagerTimers: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(100) {
				if problems, _ := simulate(t, seed, f, false); len(problems) > 0 {
					t.Logf("seed %d: %s", seed, problems[0])
					return
				}
			}
			t.Fatal("100 seeds noticed nothing")
		})
	}
}
