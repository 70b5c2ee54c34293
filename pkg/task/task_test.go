package task_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/task"
)

func TestSubjectsReadBack(t *testing.T) {
	t.Parallel()
	ref := task.Ref{Agent: 7, ID: "t-1"}
	got, attempt, err := task.ParseReport(ref.Report(3))
	require.NoError(t, err)
	require.Equal(t, ref, got)
	require.Equal(t, 3, attempt)
	got, last, err := task.Parse(ref.Answer("q"), "butler.task-answer.")
	require.NoError(t, err)
	require.Equal(t, ref, got)
	require.Equal(t, "q", last)
	for _, s := range []string{"", "butler.report.7.t", "butler.report.7.t.0", "butler.report.7.t.01", "butler.report.7.t.x", "butler.report.0.t.1",
		"butler.report.-1.t.1", "butler.report.7.t t.1", "butler.report.7.t.1.1", "butler.task.7.t.1", "butler.report.7..1"} {
		_, _, err := task.ParseReport(s)
		require.Error(t, err, s)
	}
}

// Agents write these subjects: reading one never fails badly, and what is read names the same subject again.
func FuzzParseReport(f *testing.F) {
	f.Add("butler.report.7.t.1")
	f.Add("butler.report..t.")
	f.Fuzz(func(t *testing.T, s string) {
		ref, attempt, err := task.ParseReport(s)
		if err == nil && ref.Report(attempt) != s {
			t.Fatalf("%q is read as %q", s, ref.Report(attempt))
		}
	})
}
