package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

// The test program is also the Butler that is profiled: see serveVariable.
func TestMain(m *testing.M) {
	if os.Getenv(serveVariable) != "" {
		exit(serve(context.Background()))
	}
	os.Exit(m.Run())
}

// log shows a run's progress in the test's log.
type log struct{ t *testing.T }

func (l log) Write(p []byte) (int, error) {
	l.t.Logf("%s", strings.TrimSpace(string(p)))
	return len(p), nil
}

// The whole program in its short form: every figure is there, and nothing is lost, doubled or incomplete.
func TestShort(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "results.json")
	o, err := parse([]string{"--short", "--json", file}, io.Discard)
	require.NoError(t, err)
	report, err := measure(t.Context(), o, log{t})
	require.NoError(t, err)
	var text strings.Builder
	report.print(&text)
	t.Log(text.String())
	require.NoError(t, report.write(file))

	want := map[string][]string{
		"turn": {
			"p50", "p90", "p99", "max", "turns", "lost", "doubled", "missing", "raw p50", "raw p99", "raw pairs", "× raw", "of raw", "echo",
			"first", "cpu butler", "cpu people", "cpu model", "waits",
		},
		"journal": {"appends", "p50", "p99", "units", "raw p50", "raw p99", "raw", "× raw"},
		"model":   {"p50", "p99", "calls", "raw p50", "raw p99", "raw calls", "× raw"},
	}
	if _, err := exec.LookPath("tmux"); err == nil && canBeBare {
		want["shell"] = []string{"p50", "p99", "final", "failed", "late", "appends"}
		want["shell way"] = []string{"asked", "request", "taken", "audit link", "output", "ended", "answer", "final"}
	} else {
		t.Log("shells are not measured: that needs Linux and tmux")
	}
	cases := map[string][]string{}
	for _, f := range report.Figures {
		if !slices.Contains(cases[f.Group], f.Case) {
			cases[f.Group] = append(cases[f.Group], f.Case)
		}
	}
	require.Equal(t, []string{"always, 1 person", "always, 5 people", "2m, 1 person", "2m, 5 people"}, cases["turn"])
	require.Len(t, cases["journal"], 2*3*2)
	require.Equal(t, []string{"1 caller", "5 callers"}, cases["model"])
	for group, names := range want {
		for _, kase := range cases[group] {
			for _, name := range names {
				require.NotNil(t, report.find(group, kase, name), "%s, %s, %s", group, kase, name)
			}
		}
	}
	for _, kase := range cases["turn"] {
		for _, name := range []string{"lost", "doubled", "missing"} {
			require.Zero(t, report.find("turn", kase, name).Value, "%s, %s", kase, name)
		}
	}
	if want["shell"] != nil {
		require.Equal(t, []string{"always, echo", "always, asked", "2m, echo", "2m, asked"}, cases["shell"])
		require.Equal(t, cases["shell"], cases["shell way"])
		for _, kase := range cases["shell"] {
			require.Zero(t, report.find("shell", kase, "failed").Value, kase)
			if strings.HasSuffix(kase, "asked") {
				require.Zero(t, report.find("shell", kase, "lost").Value, kase)
				require.Zero(t, report.find("shell", kase, "doubled").Value, kase)
			}
		}
	}
	for kase, appends := range map[string]float64{"append": 1, "pure": 1, "idempotent": 3} {
		require.InDelta(t, appends, report.find("journal", "always, "+kase+", 1", "appends").Value, 0, kase)
	}
	for kase, names := range map[string][]string{
		"first start": {"ready", "memory", "cpu"}, "50 connections": {"ready", "memory", "connections"},
		"400 messages in the log": {"ready", "memory"}, "400 messages in the log, after kill -9": {"ready", "memory"},
	} {
		for _, name := range names {
			require.NotNil(t, report.find("idle", kase, name), "%s, %s", kase, name)
		}
	}
}

// The services inside a program of this folder answer as the product does, and what is profiled has names.
func TestProfile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "cpu.pprof")
	o, err := parse([]string{"--short", "--cpuprofile", file}, io.Discard)
	require.NoError(t, err)
	var text strings.Builder
	require.NoError(t, profileTurns(t.Context(), o, &text, log{t}))
	t.Log(text.String())
	_, err = readProfile(file)
	require.NoError(t, err)
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--rounds", "0"}, {"--messages", "91"}, {"--filter", "("}, {"--sync", "1m"}, {"turn"}, {"--unknown"},
	} {
		_, err := parse(args, io.Discard)
		require.Error(t, err, args)
	}
	o, err := parse([]string{"--short", "--rounds", "7", "--sync", "2m"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, 7, o.rounds, "what is said counts for more than --short")
	require.Equal(t, 5, o.people)
	require.Len(t, o.sync, 1)
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	var d durations
	require.Zero(t, d.quantile(0.5))
	for i := 100; i > 0; i-- {
		d = append(d, time.Duration(i))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 50, 0.9: 90, 0.99: 99, 1: 100} {
		require.Equal(t, want, d.quantile(q), "%v", q)
	}
	require.InDelta(t, 2.5, series{4, 1, 3, 2}.median(), 0)
	require.InDelta(t, 3, series{4, 1, 3}.median(), 0)
}

// A person waits when the gateway would refuse.
func TestSpending(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	p := &person{tokens: personBurst, at: now}
	require.Zero(t, p.spend(90, now))
	require.InDelta(t, 80.0/personRate, p.spend(90, now).Seconds(), 1e-6)
	require.Zero(t, p.spend(90, now.Add(time.Minute)))
}

// A talker finds what it is there for.
func TestTalkerFindsFaults(t *testing.T) {
	t.Parallel()
	one := func(frames ...frame) heard {
		talker := &talker{local: "m", left: 1, done: make(chan struct{}), answers: map[string]int{}}
		for i := range frames {
			frames[i].ReplyToLocalID = "m"
			require.NoError(t, talker.take(t.Context(), &frames[i], time.Now()))
		}
		talker.heard.lost = talker.left
		return talker.heard
	}
	piece := func(text string) frame { return frame{Type: "CHAT_STREAM", Payload: text} }
	answer := func(text string) frame { return frame{Type: "CHAT", Payload: text, Status: "answered"} }
	for name, c := range map[string]struct {
		frames []frame
		want   heard
	}{
		"whole":   {[]frame{piece("a "), piece("b"), answer("a b")}, heard{answered: 1}},
		"lost":    {[]frame{piece("a "), piece("b")}, heard{lost: 1}},
		"missing": {[]frame{piece("a "), answer("a b")}, heard{answered: 1, missing: 1}},
		"late":    {[]frame{answer("a b"), piece("a b")}, heard{answered: 1, missing: 1}},
		"failed":  {[]frame{{Type: "CHAT", Payload: "no", Status: "failed"}}, heard{answered: 1, failed: 1}},
		"refused": {[]frame{{Type: "ERROR", Code: "invalid"}}, heard{failed: 1}},
	} {
		got := one(c.frames...)
		require.Equal(t, []int{c.want.answered, c.want.lost, c.want.missing, c.want.failed},
			[]int{got.answered, got.lost, got.missing, got.failed}, name)
		require.Equal(t, name == "whole", got.wholeness() == nil, name)
	}
	doubled := one(piece("a"), answer("a"), answer("a"))
	require.Equal(t, 1, doubled.doubled)
}

func TestPartOf(t *testing.T) {
	t.Parallel()
	for want, stack := range map[string][]string{
		"log: store on disk": {"syscall.fsync", "os.(*File).Sync", natsServer + "(*msgBlock).flush", natsServer + "(*stream).process"},
		"log: streams":       {"runtime.mallocgc", natsServer + "(*stream).process", natsServer + "(*client).readLoop"},
		"model stream":       {"encoding/json.Unmarshal", "github.com/cloudwego/eino/x", "github.com/butlerhub/butler/services/butler-brain.y"},
		"scheduler":          {"runtime.futex", "runtime.mcall"},
		"other":              {"main.main"},
	} {
		require.Equal(t, want, partOf(stack))
	}
	f := func(name string) *profile.Location {
		return &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: name}}}}
	}
	c := costOf(&profile.Profile{Sample: []*profile.Sample{
		{Value: []int64{1, 10}, Location: []*profile.Location{f("encoding/json.x"), f("github.com/butlerhub/butler/pkg/bus.y")}},
		{Value: []int64{1, 30}, Location: []*profile.Location{f("runtime.mcall")}},
	}})
	require.Equal(t, time.Duration(40), c.total)
	require.Equal(t, time.Duration(10), c.parts["bus"])
	require.Equal(t, time.Duration(10), c.views["JSON"])
}
