// Bench measures Butler beside the raw limit of the same machine in the same run, prints tables and writes the figures
// as JSON. It builds the product from the tree, runs it as people do (`butler up`, a process of its own), with a scripted
// model as another process, and is itself all the people.
//
//	go run .                          everything, about five minutes
//	go run . --filter 'turn|journal'  some groups: turn, journal, model, shell, idle
//	go run . --cpuprofile cpu.pprof   where the time of a turn goes, with many people
//
// Absolute figures move by 2–3 times from minute to minute on a shared machine. So what is compared is measured in
// rounds, one after the other, and ratios are taken within a round.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	rounds      int
	people      int
	messages    int
	connections int
	logMessages int
	appends     int
	settle      time.Duration
	filter      *regexp.Regexp
	json        string
	butler      string
	cpuProfile  string
	sync        []syncSetting
}

// mostMessages is what a person may send at once: the gateway lets a burst of 100 pass, then 30 a second.
const mostMessages = 90

func parse(args []string, errOut io.Writer) (options, error) {
	o := options{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(errOut)
	short := f.Bool("short", false, "seconds instead of minutes: to see that everything works, not for figures")
	f.IntVar(&o.rounds, "rounds", 8, "rounds of what is compared")
	f.IntVar(&o.people, "people", 50, "people, publishers, callers at the same time in the crowded cases")
	f.IntVar(&o.messages, "messages", 40, "messages of each person in a round, in a conversation of its own; at most 90")
	f.IntVar(&o.appends, "appends", 400, "appends, steps and model calls of one caller in a round")
	f.IntVar(&o.connections, "connections", 1000, "idle WebSocket connections")
	f.IntVar(&o.logMessages, "log-messages", 20_000, "messages in the log when the time to ready is taken; try 1000000")
	filter := f.String("filter", "", "regular expression: the groups to measure, of turn, journal, model, shell, idle")
	sync := f.String("sync", "always,2m", "settings of the log's sync to measure, of always and 2m; the first one is profiled")
	f.StringVar(&o.json, "json", "results.json", "file for the figures; - for none")
	f.StringVar(&o.butler, "butler", "", "a butler program to measure instead of one built from the tree")
	f.StringVar(&o.cpuProfile, "cpuprofile", "", "only profile: run the services inside a program of this folder under the "+
		"load of --people, write the CPU profile to this file, and print what it says")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q; --help lists the flags", f.Arg(0))
	}
	o.settle = 5 * time.Second
	if *short {
		set := map[string]bool{}
		f.Visit(func(f *flag.Flag) { set[f.Name] = true })
		for name, v := range map[string]struct {
			to *int
			n  int
		}{
			"rounds": {&o.rounds, 2}, "people": {&o.people, 5}, "messages": {&o.messages, 5}, "appends": {&o.appends, 20},
			"connections": {&o.connections, 50}, "log-messages": {&o.logMessages, 400},
		} {
			if !set[name] {
				*v.to = v.n
			}
		}
		o.settle = 500 * time.Millisecond
	}
	for name, n := range map[string]int{
		"rounds": o.rounds, "people": o.people, "messages": o.messages, "appends": o.appends, "connections": o.connections,
	} {
		if n < 1 {
			return o, fmt.Errorf("--%s must be 1 or more", name)
		}
	}
	if o.messages > mostMessages {
		return o, fmt.Errorf("--messages is at most %d: the gateway lets a person send 100 at once", mostMessages)
	}
	for name := range strings.SplitSeq(*sync, ",") {
		i := slices.IndexFunc(syncSettings, func(s syncSetting) bool { return s.name == name })
		if i < 0 {
			return o, fmt.Errorf("--sync %s is unknown: there are always and 2m", name)
		}
		o.sync = append(o.sync, syncSettings[i])
	}
	var err error
	if o.filter, err = regexp.Compile(*filter); err != nil {
		return o, fmt.Errorf("--filter: %w", err)
	}
	return o, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if os.Getenv(serveVariable) != "" {
		exit(serve(ctx))
	}
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		exit(err)
	}
	if o.cpuProfile != "" {
		var text strings.Builder // a closed pipe must not end this before the other processes have ended
		err := profileTurns(ctx, o, &text, os.Stderr)
		fmt.Print(text.String())
		exit(err)
	}
	report, err := measure(ctx, o, os.Stderr)
	if err != nil {
		exit(err)
	}
	report.print(os.Stdout)
	if o.json != "-" {
		exit(report.write(o.json))
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// group is figures that are measured together.
type group struct {
	name string
	run  func(context.Context, *rig, *report) error
}

var groups = []group{
	{"turn", turns},
	{"journal", journals},
	{"model", models},
	{"shell", shells},
	{"idle", idle},
}

// measure runs the groups that the filter names, and says on progress what it does.
func measure(ctx context.Context, o options, progress io.Writer) (*report, error) {
	r, err := newRig(ctx, o, progress)
	if err != nil {
		return nil, err
	}
	defer r.close()
	out := newReport(o)
	for _, g := range groups {
		if !o.filter.MatchString(g.name) {
			continue
		}
		if err := g.run(ctx, r, out); err != nil {
			return nil, fmt.Errorf("%s: %w", g.name, err)
		}
	}
	if len(out.Figures) == 0 {
		return nil, errors.New("--filter names no group: there are turn, journal, model, shell, idle")
	}
	out.end()
	return out, nil
}
