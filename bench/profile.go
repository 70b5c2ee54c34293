package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/pprof/profile"
)

// profileTurns runs the services inside a program of this folder under the load of many people, writes the CPU profile,
// and prints what it says. The people and the model are other processes, so that the profile has Butler alone.
func profileTurns(ctx context.Context, o options, out, progress io.Writer) error {
	file, err := filepath.Abs(o.cpuProfile)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o.butler = self
	r, err := newRig(ctx, o, progress)
	if err != nil {
		return err
	}
	defer r.close()
	b, err := r.newProduct(self, "", serveVariable+"="+file, "BUTLER_NATS_SYNC="+o.sync[0].name)
	if err != nil {
		return err
	}
	if err := b.start(ctx); err != nil {
		return err
	}
	people, err := b.people(ctx, o.people)
	if err != nil {
		return err
	}
	if _, _, err := b.speak(ctx, people, min(10, o.messages), "warm", nil); err != nil {
		return err
	}
	if err := b.profiling(ctx, "start"); err != nil {
		return err
	}
	all, took := &heard{}, time.Duration(0)
	for round := range o.rounds {
		r.say("profile: round %d of %d", round+1, o.rounds)
		h, t, err := b.speak(ctx, people, o.messages, fmt.Sprintf("r%d", round), nil)
		if err != nil {
			return err
		}
		all.merge(h)
		took += t
	}
	if err := b.profiling(ctx, "stop"); err != nil {
		return err
	}
	if err := b.stop(); err != nil {
		return err
	}
	fmt.Fprintf(out, "sync %s, %d people: %d turns, %.0f/s, p50 %.2f ms, p99 %.2f ms\n\n", o.sync[0].name, o.people, all.answered,
		float64(all.answered)/took.Seconds(), all.final.ms(0.5), all.final.ms(0.99))
	if err := printProfile(out, file, all.answered); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nMore of it: go tool pprof -http=: %s\n", file)
	return all.wholeness()
}

func (b *product) profiling(ctx context.Context, what string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+b.ops+"/profile/"+what, nil)
	if err != nil {
		return err
	}
	resp, err := probes.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the profile does not %s: %s", what, resp.Status)
	}
	return nil
}

// rule gives the processor time below a function to a part: of all functions on a stack, the innermost that a rule knows
// decides, so that what a library does counts for whoever called it.
type rule struct {
	function string // prefix of its full name
	part     string
}

const natsServer = "github.com/nats-io/nats-server/v2/server."

// rules, the more special ones first.
var rules = []rule{
	{natsServer + "(*consumerFileStore)", "log: consumers' positions on disk"},
	{natsServer + "writeAtomically", "log: consumers' positions on disk"},
	{natsServer + "(*fileStore).writeFileWithOptionalSync", "log: consumers' positions on disk"},
	{natsServer + "(*fileStore)", "log: store on disk"},
	{natsServer + "(*msgBlock)", "log: store on disk"},
	{natsServer + "(*memStore)", "log: store in memory (deltas)"},
	{natsServer + "(*consumer)", "log: delivery to consumers"},
	{natsServer + "(*stream)", "log: streams"},
	{"github.com/nats-io/nats-server/", "log: protocol, routing, connections"},
	{"github.com/nats-io/nats.go", "log: client"},
	{"github.com/butlerhub/butler/pkg/bus", "bus"},
	{"github.com/butlerhub/butler/pkg/journal", "journal"},
	{"github.com/butlerhub/butler/services/gateway/store", "read model and accounts (SQL)"},
	{"github.com/butlerhub/butler/pkg/storage", "read model and accounts (SQL)"},
	{"github.com/butlerhub/butler/services/gateway.(*Service).project", "read model and accounts (SQL)"},
	{"modernc.org/", "read model and accounts (SQL)"},
	{"database/sql", "read model and accounts (SQL)"},
	{"github.com/coder/websocket", "WebSocket"},
	{"github.com/butlerhub/butler/services/gateway.(*socket)", "WebSocket"},
	{"github.com/butlerhub/butler/services/gateway.(*corked)", "WebSocket"},
	{"github.com/butlerhub/butler/services/gateway", "gateway: frames, hub, sending"},
	{"github.com/butlerhub/butler/services/butler-brain/model", "model stream"},
	{"github.com/cloudwego/", "model stream"},
	{"github.com/meguminnnnnnnnn/", "model stream"},
	{"net/http.(*persistConn)", "model stream"},
	{"net/http.(*Transport)", "model stream"},
	{"net/http.(*Client)", "model stream"},
	{"net/http.(*conn)", "HTTP server"},
	{"github.com/butlerhub/butler/services/butler-brain", "brain: sessions, turn, speech"},
	{"runtime.gcBgMarkWorker", "garbage collection"},
	{"runtime.bgsweep", "garbage collection"},
	{"runtime.bgscavenge", "garbage collection"},
	{"runtime.mcall", "scheduler"},
	{"runtime.mstart", "scheduler"},
	{"runtime.schedule", "scheduler"},
	{"runtime.park_m", "scheduler"},
}

// views are other cuts through the same time: whatever has one of these functions anywhere on its stack.
var views = []struct {
	name      string
	functions []string
}{
	{"JSON", []string{"encoding/json", "google.golang.org/protobuf/encoding/protojson", "github.com/bytedance/sonic"}},
	{"allocating memory", []string{"runtime.mallocgc"}},
	{"fsync", []string{"os.(*File).Sync", "internal/poll.(*FD).Fsync"}},
	{"writing to sockets and files", []string{"syscall.write", "syscall.pwrite", "syscall.Write", "internal/poll.(*FD).Write"}},
	{"reading from sockets and files", []string{"syscall.read", "internal/poll.(*FD).Read"}},
	{"compression, hashing", []string{"github.com/minio/highwayhash", "crypto/"}},
	{"timers", []string{"runtime.(*timer", "time.AfterFunc", "time.NewTimer"}},
	{"context", []string{"context."}},
}

// partOf gives the part that a stack, innermost function first, counts for.
func partOf(stack []string) string {
	for _, function := range stack {
		for _, r := range rules {
			if strings.HasPrefix(function, r.function) {
				return r.part
			}
		}
	}
	return "other"
}

// cost is where a profile's time went.
type cost struct {
	total time.Duration
	parts map[string]time.Duration
	views map[string]time.Duration
	cum   map[string]time.Duration // by function: with what it called
}

func readProfile(file string) (*cost, error) {
	f, err := os.Open(file) //nolint:gosec // the caller's own file
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	p, err := profile.Parse(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return costOf(p), nil
}

// costOf adds up the samples, whose last value is nanoseconds.
func costOf(p *profile.Profile) *cost {
	c := &cost{parts: map[string]time.Duration{}, views: map[string]time.Duration{}, cum: map[string]time.Duration{}}
	for _, s := range p.Sample {
		d := time.Duration(s.Value[len(s.Value)-1])
		var stack []string
		for _, l := range s.Location {
			for _, line := range l.Line {
				if line.Function != nil {
					stack = append(stack, line.Function.Name)
				}
			}
		}
		c.total += d
		c.parts[partOf(stack)] += d
		for _, v := range views {
			if slices.ContainsFunc(stack, func(f string) bool {
				return slices.ContainsFunc(v.functions, func(prefix string) bool { return strings.HasPrefix(f, prefix) })
			}) {
				c.views[v.name] += d
			}
		}
		slices.Sort(stack)
		for _, f := range slices.Compact(stack) {
			c.cum[f] += d
		}
	}
	return c
}

// topFunctions is how many functions are listed.
const topFunctions = 40

func printProfile(w io.Writer, file string, turns int) error {
	c, err := readProfile(file)
	if err != nil {
		return err
	}
	perTurn := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(max(1, turns)) }
	list := func(title string, of map[string]time.Duration, most int) {
		fmt.Fprintf(w, "%s\n", title)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		names := slices.SortedFunc(maps.Keys(of), func(a, b string) int {
			return cmp.Or(cmp.Compare(of[b], of[a]), strings.Compare(a, b))
		})
		for _, name := range names[:min(most, len(names))] {
			fmt.Fprintf(tw, "  %5.1f %%\t%6.1f µs\t%s\n", 100*float64(of[name])/float64(c.total), perTurn(of[name]), name)
		}
		_ = tw.Flush()
	}
	fmt.Fprintf(w, "%.1f s of processor time, %.0f µs a turn\n\n", c.total.Seconds(), perTurn(c.total))
	list("By part: the innermost known function on the stack decides", c.parts, len(c.parts))
	fmt.Fprintln(w)
	list("Other cuts through the same time", c.views, len(c.views))
	fmt.Fprintln(w)
	maps.DeleteFunc(c.cum, func(f string, _ time.Duration) bool {
		return strings.HasPrefix(f, "runtime.") || strings.HasPrefix(f, "internal/runtime") || !strings.Contains(f, ".")
	})
	list("Functions, with what they call", c.cum, topFunctions)
	return nil
}
