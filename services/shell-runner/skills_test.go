package shell

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func TestTheLogIsSearched(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.do("echo first")
	r.do("echo second; false")
	req := r.granted("echo third")
	r.approver.confirm = func(*butlerv1.ConfirmUseRequest) error { return fault.New(fault.Forbidden, "not any more") }
	_, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	r.approver.confirm = nil
	for _, trigger := range []string{"/log", "/history"} {
		r.eventually("all are there", func() bool {
			text := r.control(trigger)
			return contains(text, "echo first", "echo second", "echo third")
		})
	}
	for text, want := range map[string][2]string{
		"/log FIRST":                  {"echo first", "second"},
		"/log --status ok":            {"echo first", "second"},
		"/log --status failed":        {"echo second", "first"},
		"/log --status=refused":       {"echo third", "first"},
		"/history -n 1":               {"echo third", "second"},
		"/log --since 1h echo second": {"echo second", "first"},
		"/log --since 2100-01-01":     {"nothing that fits", "echo"},
		"/log %":                      {"nothing that fits", "echo"},
		"/log nothing-like-it":        {"nothing that fits", "echo"},
	} {
		got := r.control(text)
		require.Contains(t, got, want[0], text)
		require.NotContains(t, got, want[1], text)
	}
	whole := r.control("/log 1")
	require.True(t, contains(whole, "```sh\necho first\n```", "status 0", "```text\nfirst\n```"), whole)
	_, err = r.controlIn("zh", "/log 4711")
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
	// Another's log is not theirs to read.
	bob := &butlerv1.Actor{Id: 9, Name: "bob", Role: "MEMBER"}
	out, err := r.Control(r.ctx(), &butlerv1.ControlRequest{Person: bob, Text: "/log"})
	require.NoError(t, err)
	require.NotContains(t, out.GetText(), "echo")
	_, err = r.Control(r.ctx(), &butlerv1.ControlRequest{Person: bob, Text: "/log 1"})
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
}

func contains(text string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}

func TestLogQueries(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	parse := func(args ...string) (logQuery, int64, error) {
		return parseLogQuery(SkillContext{Person: alice, Args: args, Language: "en", Now: now})
	}
	q, id, err := parse("nginx", "--since", "2h", "-n=5", "--status", "failed", "restart")
	require.NoError(t, err)
	require.Zero(t, id)
	require.Equal(t, logQuery{Person: 7, Words: []string{"nginx", "restart"}, Status: "failed", Since: now.Add(-2 * time.Hour), Limit: 5}, q)
	_, id, err = parse("42")
	require.NoError(t, err)
	require.EqualValues(t, 42, id)
	for value, want := range map[string]time.Time{
		"3d": now.AddDate(0, 0, -3), "90m": now.Add(-90 * time.Minute), "2026-11-30": time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC),
		"2026-11-30T08:15": time.Date(2026, 11, 30, 8, 15, 0, 0, time.UTC), "2026-11-30T08:15:00+08:00": time.Date(2026, 11, 30, 0, 15, 0, 0, time.UTC),
	} {
		q, _, err := parse("--since", value)
		require.NoError(t, err, value)
		require.True(t, want.Equal(q.Since), value)
	}
	for _, args := range [][]string{
		{"--since"}, {"--since", "yesterday"}, {"--since", "-2h"}, {"-n", "0"}, {"-n", "1000"}, {"-n", "x"}, {"--status", "fine"}, {"--verbose"},
		{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"},
	} {
		_, _, err := parse(args...)
		require.Equal(t, fault.Invalid, fault.CodeOf(err), "%v", args)
	}
}

func TestSystemFigures(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	k := systemSkill{root: root}
	in := SkillContext{Person: alice, Trigger: "/sys", Language: "en", Host: "web", Dir: root}
	_, err := k.Execute(t.Context(), in)
	require.Equal(t, fault.Unavailable, fault.CodeOf(err))
	write("loadavg", "0.50 1.25 2.00 1/234 5678\n")
	write("meminfo", "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable: 2097152 kB\n")
	write("uptime", "266400.10 1.0\n")
	out, err := k.Execute(t.Context(), in)
	require.NoError(t, err)
	require.True(t, contains(out.Text, "0.50, 1.25, 2.00", "6.0 GiB of 8.0 GiB used (75 %)", "disk `/`", "up: 3 d 2 h"), out.Text)
	in.Trigger, in.Language = "/load", "zh"
	out, err = k.Execute(t.Context(), in)
	require.NoError(t, err)
	require.True(t, contains(out.Text, "负载", "0.50"), out.Text)
	require.NotContains(t, out.Text, "GiB")
	write("meminfo", "nonsense")
	in.Trigger = "/system"
	out, err = k.Execute(t.Context(), in)
	require.NoError(t, err, "what cannot be told is left out")
	require.NotContains(t, out.Text, "内存")
}

func TestASkillIsRedactedAndBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.NoError(t, r.learn([]Skill{fakeSkill{"/fake"}}))
	require.Contains(t, r.control("/FAKE"), "/fake password=[REDACTED:password]")
	_, err := r.controlIn("en", "/fake panic")
	require.Equal(t, fault.Internal, fault.CodeOf(err))
	require.NotContains(t, fault.MessageOf(err), "of the skill")
}

// A program that writes its screen anew again and again is not streamed, and only its last screen is kept.
func TestScreensThatAreDrawn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := r.granted(`echo before; for i in $(seq 1 50); do printf '\033[H\033[Jpage %d\n' $i; done`)
	resp, err := r.Execute(r.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, "page 50", resp.GetOutcome().GetOutput())
	text, _ := r.streamed(req.GetApprovalId())
	require.Contains(t, text, "draws on the screen")
	require.NotContains(t, text, "page 50")
	require.Equal(t, "after", r.do(`echo before; printf '\033[H\033[2J\033[3J'; echo after`).GetOutcome().GetOutput(), "clear begins anew")
}
