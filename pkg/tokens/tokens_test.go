package tokens_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/butlerhub/butler/pkg/tokens"
)

func TestCount(t *testing.T) {
	t.Parallel()
	require.Zero(t, tokens.Count(""))
	require.Equal(t, 1, tokens.Count("hello"))
	require.Equal(t, 10, tokens.Count("The quick brown fox jumps over the lazy dog."))
	require.InDelta(t, 20_000, tokens.Count(strings.Repeat("The quick brown fox jumps over the lazy dog. ", 2000)), 200)
	require.Less(t, tokens.Count(strings.Repeat("文", 3000)), 3100)
}

func TestCountIsBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := strings.Repeat(rapid.String().Draw(t, "text"), rapid.IntRange(0, 300).Draw(t, "times"))
		require.LessOrEqual(t, tokens.Count(s), tokens.Most(s))
		require.Equal(t, s != "", tokens.Count(s) > 0)
	})
	broken := strings.Repeat("\xff\xfe\x80", 3000)
	require.LessOrEqual(t, tokens.Count(broken), len(broken))
}

func TestRatio(t *testing.T) {
	t.Parallel()
	var r tokens.Ratio
	require.Equal(t, 1000, r.Limit(1000))
	r.Learn(100, 400) // too small to say anything
	require.InDelta(t, 1, r.Value(), 0)
	r.Learn(1000, 1300)
	require.InDelta(t, 1.3, r.Value(), 1e-9)
	for range 50 {
		r.Learn(1000, 2000)
	}
	require.InDelta(t, 2, r.Value(), 0.01)
	require.InDelta(t, 500, r.Limit(1000), 3)
	for range 50 {
		r.Learn(1000, 1_000_000)
	}
	require.InDelta(t, 3, r.Value(), 0.01)
}
