package guard

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func judged(t testing.TB, text string) Result {
	t.Helper()
	return newGuard(t).Check(Request{Text: text, User: "ops", Home: "/home/ops", Dir: "/home/ops/src/app"})
}

// TestHardline holds what no chat may approve, and neighbours that it may.
func TestHardline(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`rm -rf /`, `rm -rf ~`, `rm -rf "$HOME"`, `rm -fr /*`, `rm -rf --no-preserve-root /`, `sudo rm -rf /usr`, `cd / && rm -rf .`,
		`rm -rf ~/*`, `rm -rf /home/ann`, `sh -c 'rm -rf ~'`, `mkfs.ext4 /dev/sdb`, `dd if=/dev/zero of=/dev/sda`, `cat x > /dev/nvme0n1`,
		`:(){ :|:& };:`, `bomb() { bomb | bomb & }; bomb`, `kill -9 -1`, `kill -1`, `kill -KILL -- -1`, `tmux kill-server`,
		`tmux send-keys -t bob ls`, `screen -X stuff x`, `a=rm; b=-rf; $a $b /`, `docker exec x rm -rf /`, `mv ~ /tmp/x`,
	} {
		if r := judged(t, text); !r.Hardline || r.Verdict != Refuse || r.Risk != Critical {
			t.Errorf("%q: %s %s hardline=%v %v", text, r.Verdict, r.Risk, r.Hardline, codes(r))
		}
	}
	for _, text := range []string{`rm -rf build`, `rm -rf /srv/data`, `kill -9 4711`, `dd if=a of=b`, `rm -rf /tmp/x`, `kill -1 4711`, `tmux -V`} {
		if r := judged(t, text); r.Hardline || r.Verdict == Refuse {
			t.Errorf("%q: %s hardline=%v %v", text, r.Verdict, r.Hardline, codes(r))
		}
	}
}

// TestReads holds how a line is read: the commands in it, and the scripts it would run.
func TestReads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text     string
		commands string
		scripts  string
	}{
		{`r''m -r"f" $'\x2fsrv'`, `[[rm -rf /srv]]`, `[]`},
		{`a=ls; $a -l "x y"`, `[[ls -l x y]]`, `[]`},
		{`echo {a,b}{1..2}`, `[[echo a1 a2 b1 b2]]`, `[]`},
		{`ls${IFS}-l`, `[[ls -l]]`, `[]`},
		{`sudo -u bob env A=1 nice -n 5 ls ~`, `[[sudo -u bob env A=1 nice -n 5 ls /home/ops] [env A=1 nice -n 5 ls /home/ops] [nice -n 5 ls /home/ops] [ls /home/ops]]`, `[]`},
		{`echo $(date) $X`, `[[date] [echo … …]]`, `[]`},
		{`./a.sh; bash b.sh; . ../c`, `[[./a.sh] [bash b.sh] [. ../c]]`, `[/home/ops/src/app/a.sh /home/ops/src/app/b.sh /home/ops/src/c]`},
		{`python3 t/x.py --fast`, `[[python3 t/x.py --fast]]`, `[/home/ops/src/app/t/x.py]`},
		{`set -- rm x; "$@"`, `[[set -- rm x] [rm x]]`, `[]`},
		{`find . -name x -exec grep y {} +`, `[[find . -name x -exec grep y {} +] [grep y …]]`, `[]`},
		{`bash -c 'ls "$1"' _ z`, `[[bash -c ls "$1" _ z] [ls …]]`, `[]`},
		{"cat <<'E'\n$(rm x)\nE", `[[cat]]`, `[]`},
		{"cat <<E\n$(rm x)\nE", `[[rm x] [cat]]`, `[]`},
	} {
		r := judged(t, c.text)
		if got := fmt.Sprint(r.Commands); got != c.commands {
			t.Errorf("%q: commands %s, want %s", c.text, got, c.commands)
		}
		if got := fmt.Sprint(r.Scripts); got != c.scripts {
			t.Errorf("%q: scripts %s, want %s", c.text, got, c.scripts)
		}
	}
}

// TestSpans holds that a reason points at what it is about.
func TestSpans(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, code, span string }{
		{`ls; echo 你好 && rm -rf ~/x`, "removes-files", `rm -rf ~/x`},
		{`git status; sh -c 'reboot'`, "switches-off", `'reboot'`},
		{`echo hi > /etc/passwd`, "writes-system", `/etc/passwd`},
		{`echo "$(kill 1)"`, "kills-init", `1`},
		{"ls\u200b", "hidden-character", "\u200b"},
		{`echo a; $X`, "computed-command", `$X`},
		{`frobnicate now`, "unknown-program", `frobnicate`},
		{`LD_PRELOAD=/tmp/x ls`, "runs-through-environment", `LD_PRELOAD=/tmp/x`},
		{`cat ~/.ssh/id_rsa`, "reads-secret", `~/.ssh/id_rsa`},
		{`echo !!`, "history-expansion", `!!`},
		{`echo 'x`, "incomplete", `echo 'x`},
	} {
		r := judged(t, c.text)
		i := slices.IndexFunc(r.Reasons, func(x Reason) bool { return x.Code == c.code })
		if i < 0 {
			t.Errorf("%q: no %s in %v", c.text, c.code, codes(r))
			continue
		}
		if got := c.text[r.Reasons[i].Start:r.Reasons[i].End]; got != c.span {
			t.Errorf("%q: %s points at %q, want %q", c.text, c.code, got, c.span)
		}
	}
}

// TestSession holds that names are read as the live shell would read them.
func TestSession(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	s := Session{
		Aliases: map[string]string{"ll": "ls -alF", "ls": "ls --color=auto", "st": "git status", "boom": "rm -rf ~; ls", "loop": "loop2", "loop2": "loop"},
		Functions: map[string]string{
			"greet": "greet () \n{ \n    echo hi \"$1\"\n}", "wipe": "wipe () \n{ \n    rm -rf \"$1\"\n}", "run": "run () \n{ \n    \"$@\"\n}",
			"again": "again () \n{ \n    again\n}",
		},
		Exports: map[string]string{"PROJECT": "/srv/prod", "GREP": "grep -n"},
	}
	for _, c := range []struct {
		text string
		want Verdict
		risk Risk
	}{
		{"ll src", Run, Low}, {"ls", Run, Low}, {"st", Run, Low}, {"boom", Refuse, Critical}, {`\ls`, Run, Low}, {"command ls", Run, Low},
		{"loop", Ask, Medium}, {"greet ann", Run, Low}, {"wipe build", Ask, Medium}, {"wipe /srv/x", Ask, High}, {"wipe ~", Refuse, Critical},
		{"run git status", Run, Low}, {"run rm -rf ~", Refuse, Critical}, {"again", Ask, Medium}, {"rm -rf $PROJECT/x", Ask, High},
		{"$GREP x f", Run, Low}, {"unknown x", Ask, Medium},
	} {
		r := g.Check(Request{Text: c.text, Home: "/home/ops", Dir: "/home/ops/app", Session: s})
		if r.Verdict != c.want || r.Risk != c.risk {
			t.Errorf("%q: %s %s %v, want %s %s", c.text, r.Verdict, r.Risk, codes(r), c.want, c.risk)
		}
	}
}

// TestSessionVariables holds that variables which an earlier line set are seen.
func TestSessionVariables(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	for _, c := range []struct {
		exports map[string]string
		text    string
		want    Risk
	}{
		{nil, "git status", Low}, {map[string]string{"GIT_DIR": "/tmp/evil"}, "git status", Medium}, {map[string]string{"GIT_WORK_TREE": "/tmp/x"}, "git diff", Medium},
		{map[string]string{"GIT_DIR": ""}, "git status", Low}, {map[string]string{"IFS": " \t\n"}, "c='ls -l'; $c", Low}, {map[string]string{"IFS": "_"}, "c=ls_-l; $c", Low},
		{map[string]string{"IFS": "_"}, "c=rm_-rf_/srv/x; $c", High}, {map[string]string{"IFS": "_"}, "c='ls -l'; $c", High},
	} {
		r := g.Check(Request{Text: c.text, Home: "/home/ops", Dir: "/home/ops/app", Session: Session{Exports: c.exports}})
		if r.Risk != c.want {
			t.Errorf("%q with %v: %s %v, want %s", c.text, c.exports, r.Risk, codes(r), c.want)
		}
	}
}

// TestPlaces holds that the working directory and the home decide what a path means.
func TestPlaces(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	for _, c := range []struct {
		dir, home, text string
		want            Risk
	}{
		{"/home/ann/app", "/home/ann", "rm -rf build", Medium}, {"/", "/home/ann", "rm -rf etc", Critical}, {"/etc", "/home/ann", "rm x", High},
		{"/home/ann", "/home/ann", "rm -rf .", Critical}, {"/srv/app", "/home/ann", "rm -rf dist", Medium}, {"/srv/app", "/home/ann", "echo > a", Medium},
		{"/home/ann/app", "/home/ann", "echo > /srv/x", High}, {"/root/app", "/root", "echo > a", Medium}, {"/home/ann", "/home/ann", "echo > .bashrc", High},
		{"/tmp", "/home/ann", "rm -rf x", Medium}, {"/home/ann/app", "/home/ann", "cd .. && rm -rf *", Critical},
		{"/home/ann/app", "/home/ann", "rm -rf ../../..", Critical}, {"/home/ann/app", "/home/ann", "rm -rf /home/ann", Critical},
	} {
		r := g.Check(Request{Text: c.text, Dir: c.dir, Home: c.home})
		if r.Risk != c.want {
			t.Errorf("in %s: %q: %s %v, want %s", c.dir, c.text, r.Risk, codes(r), c.want)
		}
	}
}

func TestForeground(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	for program, want := range map[string]Verdict{"": Run, "bash": Run, "-bash": Run, "zsh": Run, "python3": Ask, "vim": Ask, "ssh": Ask} {
		if r := g.Check(Request{Text: "ls", Foreground: program}); r.Verdict != want {
			t.Errorf("in front of %q: %s %v", program, r.Verdict, codes(r))
		}
	}
}

// TestOptions holds that the patterns and folders of the settings only add.
func TestOptions(t *testing.T) {
	t.Parallel()
	g, err := New(Options{DangerPatterns: []string{"git st", `^ls\s+-R`, "a(b"}, Protected: []string{"/data/butler"}})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]Verdict{
		"git status": Ask, `"git" 'status'`: Ask, "ls -R": Ask, "echo 'a(b'": Ask, "ls": Run, "rm -rf /": Refuse, "cat /data/butler/x": Ask,
		"sudo ls": Ask,
	} {
		if r := g.Check(Request{Text: text}); r.Verdict != want {
			t.Errorf("%q: %s %v, want %s", text, r.Verdict, codes(r), want)
		}
	}
	for _, bad := range [][]string{{""}, {strings.Repeat("x", 501)}, make([]string, 201)} {
		if _, err := New(Options{DangerPatterns: bad}); err == nil {
			t.Errorf("%d patterns were taken", len(bad))
		}
	}
}

func TestVisible(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ls -l\n你好": "ls -l\n你好", "a\x1b[201~b": `a\x1b[201~b`, "a\u202eb": `a\u202eb`, "a\u00a0b\tc": `a\u00a0b\tc`, "\xff": `\xff`,
		"👩\u200d💻 ❤\ufe0f": "👩\u200d💻 ❤\ufe0f", "a\u200db": `a\u200db`, "\U000e0041": `\U000e0041`,
	} {
		if r := judged(t, text); r.Visible != want {
			t.Errorf("%q: %q, want %q", text, r.Visible, want)
		}
	}
	if r := judged(t, strings.Repeat("界", MaxText)); len(r.Visible) > MaxText+3 || !utf8.ValidString(r.Visible) || r.Verdict != Refuse {
		t.Errorf("a long text shows %d bytes, %s", len(r.Visible), r.Verdict)
	}
}

// TestBounds holds that no text takes long, whatever it nests or expands.
func TestBounds(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	repeat := func(s string, n int) string { return strings.Repeat(s, n) }
	for name, text := range map[string]string{
		"parentheses":    repeat("(", 4000) + "ls" + repeat(")", 4000),
		"substitutions":  repeat("$(", 2000) + "ls" + repeat(")", 2000),
		"quoted":         repeat(`"$(`, 1300) + "ls" + repeat(`)"`, 1300),
		"braces":         "echo " + repeat("{a,b}", 200),
		"sequence":       "echo {1..999999999}{1..999999999}",
		"nested braces":  "echo " + repeat("{a,", 500) + "b" + repeat("}", 500),
		"loops":          repeat("for a in 1 2 3 4 5 6 7 8; do ", 20) + "ls;" + repeat("done;", 20),
		"functions":      repeat("f(){ ", 300) + "ls;" + repeat("};", 300),
		"pipes":          repeat("cat |", 1500) + "cat",
		"doubling":       "a=xxxxxxxx;" + repeat("a=$a$a$a$a;", 300) + "echo $a",
		"evals":          "eval " + repeat("eval ", 1500) + "ls",
		"wrappers":       repeat("sudo ", 1600) + "ls",
		"ands":           repeat("ls && ", 1300) + "ls",
		"ifs":            repeat("if ls; then ", 500) + "ls;" + repeat("fi;", 500),
		"arithmetic":     "echo $((" + repeat("(", 3000) + "1" + repeat(")", 3000) + "))",
		"tests":          "[[ " + repeat("( ", 2000) + "a" + repeat(" )", 2000) + " ]]",
		"words":          "echo " + repeat("a ", 4000),
		"seds":           "sed '" + repeat("s/[[[[/]]]]/;", 600) + "'",
		"awk":            "awk '" + repeat("print(", 1300) + "'",
		"sql":            "psql -c '" + repeat("select (select 1);", 400) + "'",
		"inner":          "sh -c \"sh -c 'sh -c ls; " + repeat("sh -c ls;", 700) + "'\"",
		"array":          "a=(" + repeat("x ", 3000) + "); " + repeat(`echo "${a[@]}";`, 100),
		"backticks":      repeat("`", 4000),
		"heredocs":       repeat("cat <<E\n$(ls)\nE\n", 500),
		"history":        repeat("!a ", 2000),
		"alternatives":   "x='" + repeat("a ", 2000) + "'; " + repeat("$x;", 500),
		"long name":      repeat("a", 8000),
		"case":           repeat("case a in b) ", 500) + "ls" + repeat(";; esac", 500),
		"deep functions": repeat("f() (", 1000) + "ls" + repeat(")", 1000),
	} {
		begin := time.Now()
		r := g.Check(Request{Text: text})
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s took %s", name, took)
		} else {
			t.Logf("%-16s %-7s %-9s %s %v", name, r.Verdict, took.Round(10*time.Microsecond), r.Risk, r.Reasons[:min(1, len(r.Reasons))])
		}
		if len(r.Reasons) > maxReasons || len(r.Commands) > maxCommands {
			t.Errorf("%s: %d reasons, %d commands", name, len(r.Reasons), len(r.Commands))
		}
	}
}

// TestTables holds that every reason has its sentences, and that the tables name no function that is not there.
func TestTables(t *testing.T) {
	t.Parallel()
	tables, err := loadTables()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(tables.names()); n < 700 {
		t.Errorf("%d programs", n)
	}
	for code, text := range tables.reasons {
		if text.en == "" || text.zh == "" {
			t.Errorf("%s has no sentence", code)
		}
	}
	// Every literal reason of the code is found by running lines; the corpora reach most, this one is total.
	for _, file := range []string{"testdata/danger-corpus.tsv", "testdata/own-corpus.tsv"} {
		for _, l := range readCorpus(t, file) {
			for _, r := range judged(t, l.text).Reasons {
				if r.Text == "" || r.TextZH == "" {
					t.Errorf("%q: %s has no sentence", l.text, r.Code)
				}
				if r.Start < 0 || r.End < r.Start || r.End > len(l.text) {
					t.Errorf("%q: span %d-%d", l.text, r.Start, r.End)
				}
			}
		}
	}
}

// TestBadTables holds that mistakes in a table are found when it is loaded.
func TestBadTables(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"  run\n x\n", "a a\n", "a\n  fly\n", "a\n  why nothing\n", "a\n  run -> nothing\n", "a\n  check nothing\n",
		"a\n  wrapper upside=down\n", "a\n  flags -x\n", "a\n  inline -x\n", "a\n  operands eaten\n", "a\n  run -> x y\n",
	} {
		tables := &tables{programs: map[string]*program{}, reasons: map[string]reasonText{"changes-state": {"a", "b"}}}
		if err := tables.parse(text); err == nil && text != "  run\n x\n" {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestANSI(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`\x72\x6d`: "rm", `\162\155`: "rm", `\u0072\U0000006d`: "rm", `a\nb`: "a\nb", `\'`: "'", `\cA`: "\x01", `a\0b`: "a", `\q`: `\q`,
		`\x`: `\x`, `\xAf`: "\xaf", `\`: `\`, `\u4f60`: "你",
	} {
		if got := ansiC(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestLanguages(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]level{
		`{print $1}`: low, `{print $1 > "f"}`: medium, `{if ($1 > 2) print}`: low, `BEGIN{system("x")}`: high, `{print | "sh"}`: high,
		`$1 ~ /a|b>c/ {print}`: low, `{print a || b}`: low, `{ x = $1/2 > 3; print "system(x)" }`: low, `{print (a > b)}`: low,
		`{"date" | getline d}`: high, `{printf "%s\n", $1 >> "x"}`: medium,
	} {
		if got := awkRisk(code); got != want {
			t.Errorf("awk %q: %d, want %d", code, got, want)
		}
	}
	for code, want := range map[string]string{
		`s/a/b/g`: "[] false true", `s/a/b/e`: "[] true true", `w out`: "[out] false true", `s/x/y/w o2`: "[o2] false true", `1e ls`: "[] true true",
		`/a/,/b/p;5d`: "[] false true", `s|/a|/b|`: "[] false true", `a\ text e w`: "[] false true", `s/[/]/x/`: "[] false true", `y/abc/xyz/`: "[] false true",
		`$!N;P;D`: "[] false true", `/x/{s/a/b/;p}`: "[] false true", `s/a/b`: "[] false false", `:a;N;$!ba;s/\n/ /g`: "[] false true",
	} {
		targets, runs, ok := sedScript(code)
		if got := fmt.Sprint(targets, runs, ok); got != want {
			t.Errorf("sed %q: %s, want %s", code, got, want)
		}
	}
	for text, want := range map[string]level{
		"select 1": low, "SELECT 'drop table x'": low, "select 1; drop table x": high, "insert into x values (1)": medium, "with a as (select 1) select * from a": low,
		"with a as (delete from x returning 1) select 1": high, "explain select 1": low, `\dt`: low, `\! ls`: high, ".tables": low, ".shell ls": high,
		"/*!50000 drop table x */": high, "-- drop\nselect 1": low, "copy x to program 'sh'": high,
		`show tables\G`: low, `select 1 \g`: low, `select 1 \g |sh`: high, `drop table x\G`: high,
	} {
		if got := sqlRisk(text); got != want {
			t.Errorf("sql %q: %d, want %d", text, got, want)
		}
	}
}

// TestSameAnswer holds that a judgement depends on nothing but the request.
func TestSameAnswer(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	for _, l := range readCorpus(t, "testdata/own-corpus.tsv")[:200] {
		if a, b := g.Check(Request{Text: l.text}), g.Check(Request{Text: l.text}); !reflect.DeepEqual(a, b) {
			t.Errorf("%q: %+v and %+v", l.text, a, b)
		}
	}
}

// FuzzCheck holds that no text makes the guard panic or takes long, and that what it says fits together.
func FuzzCheck(f *testing.F) {
	for _, file := range []string{"testdata/danger-corpus.tsv", "testdata/own-corpus.tsv"} {
		for _, l := range readCorpus(f, file) {
			f.Add(l.text, "/home/ops/app")
		}
	}
	g, err := New(Options{DangerPatterns: []string{"rm -rf"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text, dir string) {
		begin := time.Now()
		r := g.Check(Request{Text: text, Dir: dir, Session: Session{Aliases: map[string]string{"x": text}, Functions: map[string]string{"f": text}}})
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("took %s", took)
		}
		if (r.Verdict == Run) != (r.Risk == Low) || (r.Verdict == Run) != (len(r.Reasons) == 0) || r.Hardline != (r.Risk == Critical) {
			t.Errorf("%+v", r)
		}
		for _, reason := range r.Reasons {
			if reason.Start < 0 || reason.End < reason.Start || reason.End > len(text) || reason.Text == "" || reason.Code == "unreadable" && strings.Contains(reason.Text, "runtime error") {
				t.Errorf("%q: %+v", text, reason)
			}
		}
	})
}

// TestLatency holds that judging is fast enough to stand in front of every line: the best of five, so that what else runs
// on the machine does not count.
func TestLatency(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes everything slower: run without it")
	}
	g := newGuard(t)
	var took []time.Duration
	for _, l := range append(readCorpus(t, "testdata/danger-corpus.tsv"), readCorpus(t, "testdata/own-corpus.tsv")...) {
		best := time.Hour
		for range 5 {
			begin := time.Now()
			g.Check(Request{Text: l.text})
			best = min(best, time.Since(begin))
		}
		took = append(took, best)
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	t.Logf("p50 %s, p99 %s, slowest %s of %d lines", p50, p99, took[len(took)-1], len(took))
	if p99 > 2*time.Millisecond {
		t.Errorf("p99 is %s, want at most 2ms", p99)
	}
}

// BenchmarkCheck judges all lines of both corpora and reports the percentiles of one.
func BenchmarkCheck(b *testing.B) {
	g := newGuard(b)
	lines := append(readCorpus(b, "testdata/danger-corpus.tsv"), readCorpus(b, "testdata/own-corpus.tsv")...)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		begin := time.Now()
		g.Check(Request{Text: lines[i%len(lines)].text, Home: "/home/ops", Dir: "/home/ops/app"})
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}
