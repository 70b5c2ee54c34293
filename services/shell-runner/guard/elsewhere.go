package guard

import (
	"slices"
	"strings"
)

// Programs that build, test or look after a project do what the files of that project say: Makefiles, settings of git,
// tests. In the folder where the person works that is what they are for. Pointed at another folder they run what stands
// there, and a folder that somebody else filled is as good as a program of theirs.

// visited are trees in which projects are kept apart from homes: going there to work is daily business.
var visited = []string{"/srv", "/opt", "/var/www", "/usr/src", "/usr/local/src", "/workspace", "/workspaces", "/app", "/data"}

// pointed judges where a program of a project is sent by an option, and where it stands after a cd of the same line.
func (w *walker) pointed(c *command) {
	if w.far {
		return
	}
	for _, o := range c.options {
		points := o.has && slices.ContainsFunc(c.p.points, func(p string) bool {
			return p == o.name || strings.HasPrefix(p, "--") && abbreviates(o, p)
		})
		if points && w.outside(o.value) {
			w.addWord(medium, "points-elsewhere", o.value)
		}
	}
	w.strayed(c)
}

// strayed judges that the command runs in a folder that the line itself went to, and that belongs to nobody it knows.
func (w *walker) strayed(c *command) {
	for _, d := range w.sc.dirs {
		if d == w.c.dir || strings.HasPrefix(d, unknown) {
			continue
		}
		if !under(d, w.c.dir) && !under(d, w.c.home) && !underAny(d, visited) {
			w.addWord(medium, "points-elsewhere", c.at)
			return
		}
	}
}

// outside says whether a word names a place that is not in the folder where the command runs, or may name one.
func (w *walker) outside(x word) bool {
	text := strings.TrimPrefix(x.text, "file://")
	if strings.Contains(text, "://") {
		return true
	}
	paths, cut := w.absolute(text)
	if len(paths) == 0 || cut {
		return true
	}
	return slices.ContainsFunc(paths, func(p string) bool {
		return !slices.ContainsFunc(w.sc.dirs, func(d string) bool { return under(p, d) }) && !under(p, w.c.dir)
	})
}

// withLabels are programs to which //app:test is a name in the project.
var withLabels = set(`bazel buck2 pants please`)

// checkElsewhere judges operands of programs that run the code they are pointed at: tests, tasks, modules.
func checkElsewhere(w *walker, c *command) {
	if w.far {
		return
	}
	for _, x := range c.operands {
		if withLabels[c.name] && strings.HasPrefix(x.text, "//") {
			continue
		}
		if _, value, ok := strings.Cut(x.text, "="); ok && strings.HasPrefix(x.text, "-") {
			x = x.with(value) // an option of the tests, after --
		}
		w.leadsOut(x)
	}
	for _, o := range c.options {
		if o.has && !harmlessValues[o.name] && !slices.Contains(c.p.outputs, o.name) && !slices.Contains(c.p.writes, o.name) {
			w.leadsOut(o.value)
		}
	}
	w.strayed(c)
}

// leadsOut judges an argument that is a path and nothing else: patterns of tests, names of packages and settings have
// other forms.
func (w *walker) leadsOut(x word) {
	path := strings.HasPrefix(x.text, "/") || strings.HasPrefix(x.text, "..") || strings.HasPrefix(x.text, unknown+"/")
	if path && w.outside(x) {
		w.addWord(medium, "points-elsewhere", x)
	}
}

// harmlessValues are options whose values are patterns that may begin with a slash, or places for what comes out.
var harmlessValues = set(`-run -bench -skip -k -t --grep --testNamePattern --filter --target-dir --junitxml --junit-xml --log-file
	--basetemp --output-file`)
