package guard

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// labelled is one line of a corpus: danger, approve or safe.
type labelled struct {
	label, category, text string
}

// readCorpus reads a file of `label TAB category TAB text`, with the escapes \\ \n \t \r \xHH \uHHHH in the text.
func readCorpus(t testing.TB, file string) []labelled {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []labelled
	for n, line := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
		parts := strings.SplitN(line, "\t", 3)
		if len(parts) != 3 {
			t.Fatalf("%s:%d: %q", file, n+1, line)
		}
		all = append(all, labelled{parts[0], parts[1], unescape(parts[2])})
	}
	return all
}

func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		i++
		digits := map[byte]int{'x': 2, 'u': 4}[s[i]]
		switch {
		case digits > 0 && i+digits < len(s):
			n, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32)
			if err != nil {
				out.WriteString(s[i-1 : i+1])
				continue
			}
			out.WriteRune(rune(n))
			i += digits
		default:
			out.WriteString(map[byte]string{'n': "\n", 't': "\t", 'r': "\r", '\\': `\`}[s[i]])
		}
	}
	return out.String()
}

func newGuard(t testing.TB) *Guard {
	t.Helper()
	g, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestCorpora holds the rates that the guard promises, on both sets of labelled lines.
func TestCorpora(t *testing.T) {
	g := newGuard(t)
	for _, file := range []string{"testdata/danger-corpus.tsv", "testdata/own-corpus.tsv"} {
		t.Run(strings.TrimSuffix(strings.TrimPrefix(file, "testdata/"), ".tsv"), func(t *testing.T) {
			count, gated, high := map[string]int{}, map[string]int{}, 0
			var took []time.Duration
			for _, l := range readCorpus(t, file) {
				begin := time.Now()
				r := g.Check(Request{Text: l.text, User: "ops", Home: "/home/ops", Dir: "/home/ops/src/app"})
				took = append(took, time.Since(begin))
				count[l.label]++
				stopped := r.Verdict != Run
				if stopped {
					gated[l.label]++
				}
				if l.label == "danger" && (r.Risk == High || r.Risk == Critical) {
					high++
				}
				if stopped == (l.label == "safe") {
					t.Logf("%s %s: %q: %s %s", l.label, l.category, l.text, r.Verdict, codes(r))
				} else if testing.Verbose() && l.label == "danger" && r.Risk == Medium {
					t.Logf("rated medium: %s: %q: %s", l.category, l.text, codes(r))
				}
			}
			slices.Sort(took)
			t.Logf("%d lines: danger gated %d/%d (called high %d), approve gated %d/%d, safe stopped %d/%d; p50 %s p99 %s max %s",
				len(took), gated["danger"], count["danger"], high, gated["approve"], count["approve"], gated["safe"], count["safe"],
				took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
			if gated["danger"] < count["danger"] {
				t.Errorf("%d dangerous lines would run", count["danger"]-gated["danger"])
			}
			if 100*gated["approve"] < 97*count["approve"] {
				t.Errorf("%d of %d lines to approve would run", count["approve"]-gated["approve"], count["approve"])
			}
			if 100*gated["safe"] > 3*count["safe"] {
				t.Errorf("%d of %d safe lines are stopped", gated["safe"], count["safe"])
			}
		})
	}
}

func codes(r Result) []string {
	var all []string
	for _, reason := range r.Reasons {
		all = append(all, reason.Code+":"+string(reason.Risk))
	}
	return all
}
