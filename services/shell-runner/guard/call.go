package guard

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// redirects judges where output goes and remembers where input comes from.
func (w *walker) redirects(list []*syntax.Redirect) {
	for _, r := range list {
		switch r.Op {
		case syntax.Hdoc, syntax.DashHdoc:
			text := w.one(r.Hdoc)
			w.sc.stdin = source{fromText, text.text}
		case syntax.WordHdoc:
			text := w.one(r.Word)
			w.sc.stdin = source{fromText, text.text + "\n"}
		case syntax.RdrIn:
			x := w.one(r.Word)
			w.readFrom(x, false)
			if isNetwork(x.text) {
				w.addWord(high, "raw-connection", x)
			}
			if x.process {
				w.sc.stdin = source{kind: fromPipe}
			} else if x.text == "/dev/null" {
				w.sc.stdin = source{kind: fromText}
			} else {
				w.sc.stdin = source{kind: fromFile}
			}
		case syntax.DplIn:
			w.sc.stdin = source{kind: fromFile}
			w.one(r.Word)
		case syntax.DplOut:
			x := w.one(r.Word)
			if strings.Trim(x.text, "0123456789-") != "" && !x.process {
				w.redirectTo(x)
			}
		default:
			x := w.one(r.Word)
			if !x.process {
				w.redirectTo(x)
			}
			if r.Op == syntax.RdrInOut {
				w.readFrom(x, false)
			}
		}
	}
}

func isNetwork(p string) bool {
	return strings.HasPrefix(p, "/dev/tcp/") || strings.HasPrefix(p, "/dev/udp/")
}

func (w *walker) redirectTo(x word) {
	if isNetwork(x.text) {
		w.addWord(high, "raw-connection", x)
		return
	}
	if x.text == unknown || x.text == "" {
		w.addWord(medium, "writes-file", x)
		return
	}
	w.writeTo(x)
}

// call judges one simple command of the text.
func (w *walker) call(x *syntax.CallExpr) {
	if len(x.Args) == 0 {
		for _, a := range x.Assigns {
			w.assignment(a)
		}
		return
	}
	if name := x.Args[0].Lit(); name != "" {
		if text, ok := w.sc.aliases[name]; ok && !w.sc.expanding[name] {
			w.expandAlias(name, text, x)
			return
		}
	}
	words := w.many(x.Args)
	if len(x.Assigns) > 0 {
		// They hold for the command alone.
		w.isolated(func() {
			for _, a := range x.Assigns {
				w.assignment(a)
			}
		})
	}
	if len(words) == 0 {
		// Everything expanded to nothing, as far as is known.
		w.add(medium, "computed-command", x)
		return
	}
	w.exec(words)
}

func (w *walker) expandAlias(name, text string, x *syntax.CallExpr) {
	words := w.many(x.Args[1:])
	for _, a := range x.Assigns {
		w.isolated(func() { w.assignment(a) })
	}
	start, end := w.span(x)
	for _, a := range words {
		text += " " + quoteWord(a)
	}
	sc := w.sc
	outer := sc.expanding
	sc.expanding = map[string]bool{name: true}
	for n := range outer {
		sc.expanding[n] = true
	}
	w.inner(text, word{text: name, start: start, end: end}, sc)
	sc.expanding = outer
}

// quoteWord writes a resolved word so that parsing it gives the same word.
func quoteWord(x word) string {
	parts := strings.Split(x.text, unknown)
	for i, p := range parts {
		if x.glob {
			parts[i] = p
		} else {
			parts[i] = "'" + strings.ReplaceAll(p, "'", `'\''`) + "'"
		}
	}
	if x.loose {
		return strings.Join(parts, "${_}")
	}
	return strings.Join(parts, `"${_}"`)
}

// programFolders are where programs of the system stand: a path there is the program's name.
var programFolders = map[string]bool{
	"/bin": true, "/sbin": true, "/usr/bin": true, "/usr/sbin": true, "/usr/local/bin": true, "/usr/local/sbin": true,
	"/opt/homebrew/bin": true, "/usr/local/go/bin": true, "/snap/bin": true,
}

// exec judges the command that words are.
func (w *walker) exec(words []word) {
	if len(words) == 0 || !w.c.step() {
		return
	}
	w.c.depth++
	defer func() { w.c.depth-- }()
	if w.c.depth > maxDepth {
		w.c.over = true
		return
	}
	w.record(words)
	name, ok := w.commandName(words)
	if !ok {
		return
	}
	if w.definedHere(name, words) {
		return
	}
	p := w.c.g.tables.programs[name]
	if p == nil {
		p = w.family(name)
	}
	if p == nil {
		w.addWord(medium, "unknown-program", words[0])
		w.read(words[1:], false)
		return
	}
	if p.wrap != nil && w.unwrap(p, words) {
		return
	}
	c := &command{name: name, p: p, words: words, arguments: takeApart(words[1:], p)}
	c.at = words[0]
	c.at.end = max(c.at.end, words[len(words)-1].end)
	c.at.text = shownWords(words)
	l, code := w.rate(c)
	if l > low {
		w.addWord(l, code, c.at)
	}
	for _, name := range p.checks {
		checks[name](w, c)
	}
	if len(p.points) > 0 {
		w.pointed(c)
	}
	w.files(c, l)
}

func shownWords(words []word) string {
	var parts []string
	for _, x := range words {
		parts = append(parts, x.shown())
	}
	return strings.Join(parts, " ")
}

func (w *walker) record(words []word) {
	joined := make([]string, len(words))
	for i, x := range words {
		joined[i] = x.shown()
	}
	end := words[0].end
	for _, x := range words {
		end = max(end, x.end)
	}
	for _, p := range w.c.g.patterns {
		if p.in(strings.Join(joined, " ")) {
			w.c.add(medium, "danger-pattern", words[0].start, end, p.text)
		}
	}
	if len(w.c.out.Commands) < maxCommands {
		w.c.out.Commands = append(w.c.out.Commands, joined)
	}
}

// command is one command taken apart.
type command struct {
	name  string
	p     *program
	words []word
	arguments
	at word // all of it, for reasons
}

// commandName gives the name under which the tables know the program, and judges names that hide it.
func (w *walker) commandName(words []word) (string, bool) {
	first := words[0]
	name := first.text
	switch {
	case !first.known() || first.glob && name != "[" || first.substs || first.process:
		w.addWord(high, "computed-command", first)
		// What is known of it may still tell more.
		w.read(words[1:], false)
		return "", false
	case name == "":
		w.addWord(medium, "computed-command", first)
		return "", false
	case !plainName(name):
		w.addWord(high, "odd-name", first)
		return "", false
	}
	if !strings.Contains(name, "/") {
		return name, true
	}
	clean := cleanPath(name)
	i := strings.LastIndexByte(clean, '/')
	dir, base := clean[:max(i, 0)], clean[i+1:]
	if programFolders[dir] {
		return base, true
	}
	if strings.HasPrefix(name, "./") && dir == "" && (base == "gradlew" || base == "mvnw") && !w.far {
		return base, true // the project's own build, as good as make
	}
	w.script(first)
	if p := w.c.g.tables.programs[base]; p != nil && !interpreters[base] {
		return base, true // whatever it is, it is called like this one
	}
	w.read(words[1:], false)
	return "", false
}

// plainName says whether a command's name has nothing but printable ASCII.
func plainName(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// script judges that a local file is executed.
func (w *walker) script(x word) {
	code, l := "runs-script", medium
	paths, cut := w.absolute(x.text)
	if cut || x.process || len(paths) == 0 {
		w.addWord(high, "computed-code", x)
		return
	}
	for _, p := range paths {
		if w.c.written[p] || isNetwork(p) || strings.HasPrefix(p, "/dev/") || strings.HasPrefix(p, "/proc/") {
			code, l = "runs-what-it-wrote", high
		}
		if !w.far && len(w.c.out.Scripts) < maxCommands {
			w.c.out.Scripts = appendNew(w.c.out.Scripts, p)
		}
	}
	w.addWord(l, code, x)
}

func appendNew(list []string, s string) []string {
	for _, have := range list {
		if have == s {
			return list
		}
	}
	return append(list, s)
}

// definedHere judges a call of a function that the session or this text defined; false when there is none.
func (w *walker) definedHere(name string, words []word) bool {
	if names, ok := w.sc.functions[name]; ok {
		w.sc.forget(names...) // its body was judged where it stands
		return true
	}
	body, ok := w.sc.declared[name]
	if !ok || w.sc.expanding[name] || w.far {
		return false
	}
	outer := w.sc
	sc := outer.clone()
	sc.vars, sc.positional = map[string][]string{}, nil
	sc.functions = map[string][]string{}
	sc.expanding = map[string]bool{name: true}
	for n := range outer.expanding {
		sc.expanding[n] = true
	}
	at := words[0]
	at.end = max(at.end, words[len(words)-1].end)
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(body), "")
	w.c.bytes += len(body)
	if err != nil || w.c.bytes > maxParsed || w.c.texts >= maxTexts {
		w.addWord(high, "inner-unreadable", at)
		return true
	}
	for i, arg := range words[1:] {
		if !arg.known() || arg.loose || arg.glob {
			break
		}
		if i == len(words)-2 {
			sc.positional = []string{}
			for _, a := range words[1:] {
				sc.positional = append(sc.positional, a.text)
			}
		}
	}
	v := &walker{c: w.c, sc: sc, fixed: true, start: at.start, end: at.end}
	w.c.texts++
	defer func() { w.c.texts-- }()
	for _, s := range file.Stmts {
		if decl, ok := s.Cmd.(*syntax.FuncDecl); ok && decl.Name != nil && decl.Name.Value == name {
			v.stmt(decl.Body)
		} else {
			v.stmt(s)
		}
	}
	w.sc.forgetAll()
	return true
}

// rate gives what the tables say of the command.
func (w *walker) rate(c *command) (level, string) {
	p := c.p
	if helpOnly(c) {
		return low, ""
	}
	l, code := medium, p.why
	for i := range p.rules {
		if r := &p.rules[i]; r.matches(&c.arguments) {
			l, code = r.level, r.code
		}
	}
	if l == low && p.subs && len(c.operands) > 0 && !c.operands[0].known() {
		return medium, "computed-argument"
	}
	if l == low && p.careful {
		for _, a := range c.raw {
			if a.loose && strings.HasPrefix(a.text, unknown) {
				return medium, "computed-argument"
			}
		}
	}
	return l, code
}

// helpOnly says whether the command only asks for help or for the version.
func helpOnly(c *command) bool {
	args := c.raw
	if n := len(args); n == 2 && c.p.subs && len(c.operands) == 1 && args[1].text == "--help" {
		return args[0].known() && !strings.HasPrefix(args[0].text, "-")
	}
	return len(args) == 1 && (args[0].text == "--help" || args[0].text == "--version")
}

// files judges the files that the table says the command reads and writes; l is what the rules said of it.
func (w *walker) files(c *command, l level) {
	for _, x := range c.valuesOf(c.p.writes...) {
		w.writeTo(x)
	}
	for _, x := range c.valuesOf(c.p.outputs...) {
		if l, code := w.place(x).writeRisk(); l > medium {
			w.addWord(l, code, x)
		}
	}
	sends := c.p.why == "sends-out" || c.p.why == "changes-cloud"
	switch c.p.uses {
	case usesNames:
		if c.name != "test" && c.name != "[" {
			w.secretVariables(c.words[1:])
		}
		return
	case usesWrites:
		for _, x := range c.operands {
			w.writeTo(x)
		}
	case usesRemoves:
		for _, x := range c.operands {
			w.removes(x, false)
		}
	case usesCopies:
		if l == low { // a rehearsal
			break
		}
		targets := c.valuesOf("-t", "--target-directory")
		if len(targets) == 0 && len(c.operands) > 1 {
			targets = c.operands[len(c.operands)-1:]
		}
		for _, x := range targets {
			if !isRemote(x.text) {
				w.writeTo(x)
			} else if l, code := w.remotePlace(x); l > medium {
				w.addWord(l, code, x)
			}
		}
	default:
	}
	w.read(c.words[1:], sends)
}

// isRemote says whether a path is host:path, as scp and rsync read it.
func isRemote(s string) bool {
	i := strings.IndexByte(s, ':')
	return i > 0 && !strings.Contains(s[:i], "/")
}

func (w *walker) remotePlace(x word) (level, string) {
	p := x.text[strings.IndexByte(x.text, ':')+1:]
	p = strings.TrimPrefix(p, ":")
	if strings.HasPrefix(p, "/") && w.placeOf(cleanPath(p), false) == placeSystem && !under(p, "/srv") && !under(p, "/home") && !under(p, "/opt") && !under(p, "/var/www") {
		return high, "writes-system"
	}
	if strings.HasPrefix(p, ".") || strings.HasPrefix(p, "~/.") || strings.Contains(p, "/.ssh/") {
		return high, "writes-startup"
	}
	return low, ""
}

func (w *walker) read(words []word, sends bool) {
	if !w.far {
		for _, x := range words {
			if !w.c.step() {
				return
			}
			w.readFrom(x, sends)
		}
	}
	w.secretVariables(words)
}

func (w *walker) secretVariables(words []word) {
	for _, x := range words {
		if x.secret {
			w.addWord(medium, "shows-secrets", x)
		}
	}
}
