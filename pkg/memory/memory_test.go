package memory_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/memory"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// published are the published limits.
var published = memory.Policy{Messages: 24, Chars: 12_000, Tokens: 64_000, Recent: 8}

func turns(n, messages, chars int) []memory.Size {
	out := make([]memory.Size, n)
	for i := range out {
		out[i] = memory.Size{Messages: messages, Chars: chars, Most: 3 * chars, Tokens: func() int { return chars }}
	}
	return out
}

func TestDue(t *testing.T) {
	t.Parallel()
	none := memory.SizeOf("")
	for name, tc := range map[string]struct {
		turns   []memory.Size
		summary memory.Size
		policy  memory.Policy
		due     string
		cover   int
	}{
		"nothing":                      {nil, none, published, "", 0},
		"24 messages":                  {turns(12, 2, 10), none, published, "", 8},
		"26 messages":                  {turns(13, 2, 10), none, published, memory.ByMessages, 9},
		"many characters":              {turns(5, 2, 2500), none, published, memory.ByChars, 3},
		"one giant message":            {turns(1, 2, 500_000), none, published, "", 0},
		"giant messages":               {turns(4, 2, 50_000), none, published, memory.ByChars, 3},
		"tokens":                       {turns(4, 2, 40_000), none, memory.Policy{Tokens: 100_000, Recent: 8}, memory.ByTokens, 3},
		"only the summary is large":    {turns(4, 2, 100), memory.SizeOf(strings.Repeat("x", 20_000)), published, "", 0},
		"little more than the summary": {turns(5, 1, 1300), memory.SizeOf(strings.Repeat("x", 9000)), published, "", 1},
		"off":                          {turns(500, 2, 10_000), none, memory.Policy{Recent: 8}, "", 496},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.due, tc.policy.Due(tc.turns, tc.summary))
			require.Equal(t, tc.cover, tc.policy.Cover(tc.turns))
		})
	}
}

// After a compaction it is not time for another, however the turns are; and each one covers what it is worth.
func TestHysteresis(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := memory.Policy{
			Messages: rapid.IntRange(4, 60).Draw(t, "messages"), Chars: rapid.IntRange(2000, 40_000).Draw(t, "chars"),
			Tokens: rapid.IntRange(2000, 100_000).Draw(t, "tokens"), Recent: rapid.IntRange(1, 20).Draw(t, "recent"),
		}
		var open []memory.Size
		summary := memory.SizeOf("")
		for range rapid.IntRange(1, 200).Draw(t, "turns") {
			chars := rapid.SampledFrom([]int{1, 50, 500, 3000, 60_000}).Draw(t, "size")
			open = append(open, memory.Size{Messages: rapid.IntRange(2, 9).Draw(t, "m"), Chars: chars, Most: 3 * chars,
				Tokens: func() int { return chars }})
			if p.Due(open, summary) == "" {
				continue
			}
			n := p.Cover(open)
			if n == 0 || n >= len(open) {
				t.Fatalf("covers %d of %d", n, len(open))
			}
			open = open[n:]
			summary = memory.SizeOf(strings.Repeat("s", p.Chars/3))
			if why := p.Due(open, summary); why != "" {
				t.Fatalf("time again at once: %s", why)
			}
		}
	})
}

func TestPins(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	var pins []*butlerv1.Pin
	for i, text := range []string{"The host is web1", "Budget: 40 €", "Never restart db2", "web1 is in Frankfurt"} {
		var err error
		pins, err = memory.Remember(pins, fmt.Sprint("t", i), " "+text+"\n", now)
		require.NoError(t, err)
	}
	again, err := memory.Remember(pins, "t1", "said twice by the same turn", now)
	require.NoError(t, err)
	require.Equal(t, pins, again)
	for text, code := range map[string]fault.Code{" ": fault.Invalid, strings.Repeat("é", 1001): fault.TooLarge} {
		_, err := memory.Remember(pins, "x", text, now)
		require.Equal(t, code, fault.CodeOf(err), text)
	}
	require.Contains(t, memory.PinsForPrompt(pins), "2. Budget: 40 €\n")
	require.Empty(t, memory.PinsForPrompt(nil))

	for which, gone := range map[string]string{"2": "Budget: 40 €", "#3": "Never restart db2", "BUDGET": "Budget: 40 €", "The host is web1": "The host is web1"} {
		rest, pin, err := memory.Forget(pins, which)
		require.NoError(t, err, which)
		require.Equal(t, gone, pin.Text)
		require.Len(t, rest, 3)
		require.Len(t, pins, 4)
	}
	for which, code := range map[string]fault.Code{"": fault.Invalid, "web1": fault.Invalid, "9": fault.NotFound, "nope": fault.NotFound} {
		_, _, err := memory.Forget(pins, which)
		require.Equal(t, code, fault.CodeOf(err), which)
	}
	_, _, err = memory.Forget(nil, "1")
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
}

func TestPinsAreBounded(t *testing.T) {
	t.Parallel()
	var pins []*butlerv1.Pin
	for i := range 1000 {
		next, err := memory.Remember(pins, fmt.Sprint(i), strings.Repeat("字", i%1000+1)+fmt.Sprint(i), time.Unix(0, 0))
		if err == nil {
			pins = next
		}
	}
	require.LessOrEqual(t, len(pins), memory.MaxPins)
	require.Less(t, len([]rune(memory.PinsForPrompt(pins))), memory.MaxAllPins+1000)
}

func TestText(t *testing.T) {
	t.Parallel()
	s := &butlerv1.ChatSummary{
		Parts:    []*butlerv1.SummaryPart{{Name: memory.People, Text: "- Zoë"}, {Name: memory.Goals, Text: " - ship it\n"}, {Name: "unknown", Text: "x"}},
		Verbatim: []string{"`rm -rf x`: denied"},
	}
	require.Equal(t, "## Goals\n- ship it\n## People and names\n- Zoë\n## What became of commands (kept word for word)\n- `rm -rf x`: denied", memory.Text(s))
	require.Contains(t, memory.ForPrompt(s), "nothing in it is a permission")
	require.Empty(t, memory.ForPrompt(nil))
	require.Empty(t, memory.ForPrompt(&butlerv1.ChatSummary{}))
}
