package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// report is everything that a run found.
type report struct {
	Date      time.Time `json:"date"`
	System    system    `json:"system"`
	Settings  settings  `json:"settings"`
	Figures   []*figure `json:"figures"`
	Elsewhere []other   `json:"elsewhere"`

	tables []table
}

type system struct {
	OS         string  `json:"os"`
	Arch       string  `json:"arch"`
	CPUs       int     `json:"cpus"`
	Processor  string  `json:"processor"`
	Go         string  `json:"go"`
	LoadBefore float64 `json:"load_before"` // average of a minute; -1 when unknown
	LoadAfter  float64 `json:"load_after"`
}

type settings struct {
	Rounds   int `json:"rounds"`
	People   int `json:"people"`
	Messages int `json:"messages"`
	Appends  int `json:"appends"`
}

// figure is one number.
type figure struct {
	Group string  `json:"group"`
	Case  string  `json:"case"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// The least and the most of a round, where Value is the median of rounds.
	Low  *float64 `json:"low,omitempty"`
	High *float64 `json:"high,omitempty"`
	Aim  *aim     `json:"aim,omitempty"`
}

// aim is what the figure should be below or above.
type aim struct {
	Below float64 `json:"below,omitempty"`
	Above float64 `json:"above,omitempty"`
	Met   bool    `json:"met"`
}

// other is a figure of another system, measured in another run.
type other struct {
	System string `json:"system"`
	Case   string `json:"case"`
	Text   string `json:"text"`
	Source string `json:"source"`
}

// elsewhere is what Butler is compared with. It was not measured in this run.
var elsewhere = []other{
	{
		System: "EchoCenter", Case: "1 person", Text: "p50 4.4–5.2 ms, p99 6.7–12.7 ms, 168–201 turns/s, none lost",
		Source: "commit b663a274, SQLite, model that answers 20 chunks at once; measured earlier on two cores, another run",
	},
	{
		System: "EchoCenter", Case: "50 people", Text: "105–126 turns/s, 8–12 % of the answers lost",
		Source: "commit b663a274, SQLite and PostgreSQL, the same model; measured earlier on two cores, another run",
	},
}

// table says how figures of a group are printed: a row for each case, a column for each name.
type table struct {
	group string
	title string
	rows  string // header of the first column
	notes []string
}

func newReport(o options) *report {
	return &report{
		Date: time.Now().UTC().Truncate(time.Second), Elsewhere: elsewhere,
		System: system{
			OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Processor: processorName(), Go: runtime.Version(),
			LoadBefore: loadAverage(),
		},
		Settings: settings{Rounds: o.rounds, People: o.people, Messages: o.messages, Appends: o.appends},
	}
}

func (r *report) end() { r.System.LoadAfter = loadAverage() }

func (r *report) table(t table) { r.tables = append(r.tables, t) }

// add notes a figure.
func (r *report) add(group, kase, name string, value float64, unit string) *figure {
	f := &figure{Group: group, Case: kase, Name: name, Value: value, Unit: unit}
	r.Figures = append(r.Figures, f)
	return f
}

// addSeries notes the median of rounds.
func (r *report) addSeries(group, kase, name string, s series, unit string) *figure {
	f := r.add(group, kase, name, s.median(), unit)
	low, high := slices.Min(s), slices.Max(s)
	f.Low, f.High = &low, &high
	return f
}

// below says that the figure should be below v; above that it should be above v.
func (f *figure) below(v float64) { f.Aim = &aim{Below: v, Met: f.Value < v} }
func (f *figure) above(v float64) { f.Aim = &aim{Above: v, Met: f.Value > v} }

// find gives a figure, nil when there is none.
func (r *report) find(group, kase, name string) *figure {
	i := slices.IndexFunc(r.Figures, func(f *figure) bool { return f.Group == group && f.Case == kase && f.Name == name })
	if i < 0 {
		return nil
	}
	return r.Figures[i]
}

func (r *report) write(file string) error {
	for _, f := range r.Figures {
		if math.IsNaN(f.Value) || math.IsInf(f.Value, 0) {
			return fmt.Errorf("%s, %s, %s is no number", f.Group, f.Case, f.Name)
		}
	}
	data, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644) //nolint:gosec // figures, for everybody
}

func (r *report) print(w io.Writer) {
	s := r.System
	fmt.Fprintf(w, "%s  %s/%s, %d × %s, %s, load %s → %s, %d rounds\n", r.Date.Format(time.DateTime), s.OS, s.Arch, s.CPUs,
		s.Processor, s.Go, short(s.LoadBefore), short(s.LoadAfter), r.Settings.Rounds)
	for _, t := range r.tables {
		fmt.Fprintf(w, "\n%s\n", t.title)
		r.printTable(w, t)
		for _, n := range t.notes {
			fmt.Fprintf(w, "  %s\n", n)
		}
		if t.group == "turn" {
			for _, o := range r.Elsewhere {
				fmt.Fprintf(w, "  %s, %s: %s (%s)\n", o.System, o.Case, o.Text, o.Source)
			}
		}
	}
	fmt.Fprintln(w)
	for _, f := range r.Figures {
		if f.Aim == nil {
			continue
		}
		verdict := "met"
		if !f.Aim.Met {
			verdict = "MISSED"
		}
		want := "below " + short(f.Aim.Below)
		if f.Aim.Above != 0 {
			want = "above " + short(f.Aim.Above)
		}
		fmt.Fprintf(w, "aim %s: %s, %s, %s: %s %s, %s wanted\n", verdict, f.Group, f.Case, f.Name, short(f.Value), f.Unit, want)
	}
}

func (r *report) printTable(w io.Writer, t table) {
	var rows, columns []string
	units := map[string]string{}
	for _, f := range r.Figures {
		if f.Group != t.group {
			continue
		}
		if !slices.Contains(rows, f.Case) {
			rows = append(rows, f.Case)
		}
		if !slices.Contains(columns, f.Name) {
			columns = append(columns, f.Name)
		}
		units[f.Name] = f.Unit
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(first string, cells []string) { fmt.Fprintf(tw, "%s\t%s\t\n", first, strings.Join(cells, "\t")) }
	line(t.rows, columns)
	head := make([]string, len(columns))
	for i, c := range columns {
		head[i] = units[c]
	}
	line("", head)
	for _, row := range rows {
		cells := make([]string, len(columns))
		for i, c := range columns {
			if f := r.find(t.group, row, c); f != nil {
				cells[i] = short(f.Value)
			}
		}
		line(row, cells)
	}
	_ = tw.Flush()
}

// short writes a number with about three digits.
func short(v float64) string {
	switch a := math.Abs(v); {
	case v == math.Trunc(v) || a >= 100:
		return strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
}
