package shell

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// maxClassified bounds the messages that are looked at, in bytes and lines; longer ones are talk.
const (
	maxClassified = 4 << 10
	maxLines      = 20
)

// classify says whether a message reads as a command line, for a shell that resolves the given words. What is unsure is
// not: it goes to the model, which proposes a command when one is meant; "!" before it makes it one.
//
// A message is a command line when bash can parse it, every command in it begins with a word that the shell knows, nothing
// in it reads as prose (English or Chinese), and its arguments speak for it. How much they must say depends on the first
// word: "mkdir build" is one, "make coffee" is not.
func classify(text string, resolve func(word string) bool) bool {
	text = strings.TrimSpace(text)
	if text == "" || len(text) > maxClassified || strings.Count(text, "\n") >= maxLines || !plainFirst(text) {
		return false
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil || len(file.Stmts) == 0 {
		return false
	}
	if !resolve(firstToken(text)) && !startsOtherwise(file.Stmts[0]) {
		return false // the commonest reason by far, and the cheapest
	}
	r := &reading{resolve: resolve, known: map[string]bool{}, text: text}
	for _, s := range file.Stmts {
		r.statement(s, false)
	}
	return !r.talk && r.calls > 0
}

// plainFirst says whether the first letter can begin a command line: those do not begin with a capital, and hardly with
// anything but ASCII.
func plainFirst(text string) bool {
	c, _ := utf8.DecodeRuneInString(text)
	return c < utf8.RuneSelf && !unicode.IsUpper(c) || assigned.MatchString(text)
}

func firstToken(text string) string {
	f := strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(";|&<>()", r) })
	if len(f) == 0 {
		return ""
	}
	return f[0]
}

// startsOtherwise says whether a statement begins with something else than a plain command's name.
func startsOtherwise(s *syntax.Stmt) bool {
	c, ok := s.Cmd.(*syntax.CallExpr)
	return !ok || len(c.Assigns) > 0
}

// reading is the look at one message.
type reading struct {
	resolve func(string) bool
	known   map[string]bool // answers of resolve
	text    string
	calls   int
	talk    bool // something speaks against a command line
}

func (r *reading) resolves(word string) bool {
	if word == "" || word != "[" && strings.ContainsAny(word, "*?[") {
		return false
	}
	ok, asked := r.known[word]
	if !asked {
		if len(r.known) >= 16 {
			return false
		}
		ok = r.resolve(word)
		r.known[word] = ok
	}
	return ok
}

// statement looks at one statement; piped says that it reads what another prints.
func (r *reading) statement(s *syntax.Stmt, piped bool) {
	if r.talk {
		return
	}
	extra := 0
	if len(s.Redirs) > 0 {
		extra++
	}
	switch c := s.Cmd.(type) {
	case nil:
		r.talk = r.talk || len(s.Redirs) == 0
		r.calls++
	case *syntax.CallExpr:
		r.call(c, extra, piped)
	case *syntax.BinaryCmd:
		r.statement(c.X, piped)
		r.statement(c.Y, c.Op == syntax.Pipe || c.Op == syntax.PipeAll)
	case *syntax.TimeClause:
		if c.Stmt == nil {
			r.talk = true
			return
		}
		r.statement(c.Stmt, false)
	case *syntax.DeclClause: // export FOO=bar, declare -p
		r.declaration(c)
	default:
		// Loops, tests, blocks: prose that happens to parse as one is of commands that do not resolve.
		syntax.Walk(s.Cmd, func(n syntax.Node) bool {
			switch n := n.(type) {
			case *syntax.CallExpr:
				r.call(n, 1, false)
				return false
			case *syntax.TestClause, *syntax.ArithmCmd, *syntax.ForClause:
				r.calls++
			}
			return !r.talk
		})
	}
}

func (r *reading) declaration(c *syntax.DeclClause) {
	r.calls++
	sure := false
	for _, a := range c.Args {
		switch {
		case a.Name != nil && !a.Naked: // NAME=value
			sure = true
		case a.Value != nil && strings.HasPrefix(a.Value.Lit(), "-"):
			sure = true
		case a.Name != nil && a.Naked && isUpper(a.Name.Value):
		default:
			r.talk = true
		}
	}
	if len(c.Args) == 0 || !sure && len(c.Args) > 1 {
		r.talk = true
	}
}

// call looks at one command. evidence is what speaks for it so far.
func (r *reading) call(c *syntax.CallExpr, evidence int, piped bool) {
	r.calls++
	evidence += len(c.Assigns)
	if len(c.Args) == 0 {
		r.talk = r.talk || len(c.Assigns) == 0
		return
	}
	args := make([]argument, len(c.Args))
	for i, w := range c.Args {
		args[i] = r.argument(w)
	}
	r.command(args, evidence, piped)
}

// command judges a command by its words.
func (r *reading) command(args []argument, evidence int, piped bool) {
	name := args[0].text
	if !args[0].literal || !r.resolves(name) {
		r.talk = true
		return
	}
	if strings.Contains(name, "/") { // a path that can be run
		evidence += 2
	}
	name = name[strings.LastIndexByte(name, '/')+1:]
	rest := args[1:]
	if prefixes[name] {
		for len(rest) > 0 && (rest[0].kind == flagArg || rest[0].kind == assignArg || rest[0].kind == numberArg) {
			evidence++
			rest = rest[1:]
		}
		switch {
		case len(rest) > 0 && rest[0].kind == quotedArg: // watch "df -h"
		case len(rest) > 0:
			if piped {
				evidence++
			}
			r.command(rest, evidence, piped)
		default:
			r.talk = r.talk || evidence == 0 && name != "env"
		}
		return
	}
	if len(rest) == 0 {
		r.talk = r.talk || alone[name] && evidence == 0 && !(piped && filters[name])
		return
	}
	if rest[0].text == "compose" && (name == "docker" || name == "podman") && len(rest) > 1 {
		name, rest = "docker-compose", rest[1:]
	}
	sub := subcommands[name]
	plain, flags, leading, first, words := 0, 0, true, false, true
	for i, a := range rest {
		switch {
		case i == 0 && sub[a.text]: // "up" is one
			continue
		case name == "echo" && greetings[a.text]:
			plain++
		case a.prose, a.kind == plainArg && topics[a.text] && !aboutFiles(name, sub), a.text == "a" && i+1 < len(rest) && len(rest[i+1].text) > 1:
			r.talk = true
			return
		case a.strong():
			evidence += 2
			leading = false
			if a.kind == flagArg || a.kind == expandArg || name == "kill" && a.kind == numberArg {
				flags++
			}
		case a.name():
			leading = false
		case name == "make" && (targets[a.text]):
			evidence++
		case a.kind == cjkArg:
			if !takesFiles[name] {
				r.talk = true
				return
			}
		default:
			plain++
			first = first || leading
			words = words && greetings[a.text]
		}
	}
	switch {
	case sub != nil:
		// "git status", "docker logs web", not "git is confusing". Plain words after it are names.
		verb, most := rest[0].text, 1
		switch {
		case !sub[verb]:
			// An interpreter's script may have one argument, but "python app.py crashes" says something.
			r.talk = r.talk || !rest[0].strong() || rest[0].kind == numberArg || plain > 0 && flags == 0 && verb != "manage.py"
		case fileSubcommands[name][verb]:
			r.talk = r.talk || plain > 0 && evidence <= 0
		default:
			if groups[verb] {
				most = 2
			}
			r.talk = r.talk || plain > most && flags == 0 || plain > 3
		}
	case name == "service":
		r.talk = r.talk || len(rest) != 2 || !serviceWords[rest[1].text]
	case name == "which" || name == "type" || name == "man" || name == "whereis":
		r.talk = r.talk || !r.asksAbout(rest)
	case unlikely[name]:
		switch {
		case name == "echo" || name == "printf":
			r.talk = r.talk || plain > 0 && !words && evidence <= 0
		case name == "grep" && len(rest) < 2 && !piped:
			r.talk = true
		case twoNames[name] || name == "grep":
			r.talk = r.talk || plain > 2 && evidence <= 0
		default:
			r.talk = r.talk || plain > 1 && flags == 0
		}
	case name == "make":
		r.talk = r.talk || plain > 0 && (flags == 0 || plain > 1) || evidence <= 0
	case needsFlag[name] && (name != "find" || rest[0].kind != pathArg), name == "kill":
		r.talk = r.talk || flags == 0 || first
	default:
		// What stands first is what is meant: "find large files", "open port 8080".
		r.talk = r.talk || evidence <= 0 || plain > 2 || first
	}
}

// asksAbout says whether the words after which, type or man name commands.
func (r *reading) asksAbout(rest []argument) bool {
	for _, a := range rest {
		switch a.kind {
		case flagArg, numberArg, pathArg:
		case plainArg:
			if !r.resolves(a.text) && len(rest) != 2 || !r.resolves(a.text) && rest[0].kind != numberArg || reserved[a.text] {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// Kinds of an argument.
type argumentKind int

const (
	plainArg  argumentKind = iota // a word that could stand in a sentence
	cjkArg                        // a word with Chinese letters
	flagArg                       // -x, --long, +%F
	numberArg                     // 8080, 10.0.0.5, %1
	pathArg                       // src/, ./x, ~/x, README.md, *.go, user@host, https://…
	assignArg                     // name=value
	expandArg                     // $HOME, $(date), {a,b}
	quotedArg                     // 'text', "text"
)

type argument struct {
	kind    argumentKind
	text    string // of a literal word
	literal bool
	prose   bool // hardly anything but a part of a sentence
}

// strong says that the argument speaks for a command line.
func (a argument) strong() bool { return a.kind > cjkArg }

// name says that the word is rather a name than a word: web1, web-0, b.
func (a argument) name() bool {
	return a.kind == plainArg && (len(a.text) == 1 || strings.ContainsAny(a.text, "0123456789"))
}

// aboutFiles says whether a command takes files, so that any word may be the name of one.
func aboutFiles(name string, sub map[string]bool) bool {
	return sub == nil && takesFiles[name] && !editors[name] || name == "make"
}

var (
	numbers   = regexp.MustCompile(`^[%+-]?[0-9][0-9.:/,x-]*[A-Za-z%]{0,2}$`)
	extension = regexp.MustCompile(`^[\pL\pN_][\pL\pN_.+-]*\.[A-Za-z][A-Za-z0-9]{0,9}$`)
	remote    = regexp.MustCompile(`^[A-Za-z0-9_.-]+(@[A-Za-z0-9_.-]+(:.*)?|:[0-9]+(/.*)?)$`)
	assigned  = regexp.MustCompile(`^[A-Za-z_.-][A-Za-z0-9_.-]*=`)
	bigName   = regexp.MustCompile(`^([A-Z][A-Z0-9_]+|Makefile|Dockerfile|Gemfile|Procfile|Vagrantfile|Jenkinsfile)$`)
	letters   = regexp.MustCompile(`^[A-Za-z][A-Za-z'’]*$`)
	snake     = regexp.MustCompile(`^[A-Za-z0-9]*(_[A-Za-z0-9]+)+$`)
	ranges    = regexp.MustCompile(`^[A-Za-z]-[A-Za-z]$|~[0-9]+$|^[A-Za-z0-9_.-]+-[0-9]+$`)
)

func (r *reading) argument(w *syntax.Word) argument {
	src := r.text[w.Pos().Offset():w.End().Offset()]
	if len(w.Parts) != 1 {
		return argument{kind: expandArg, text: src, prose: proseCJK(unquoted(w))}
	}
	switch p := w.Parts[0].(type) {
	case *syntax.Lit:
		return literalArgument(p.Value)
	case *syntax.SglQuoted, *syntax.DblQuoted:
		return argument{kind: quotedArg, text: src}
	default:
		return argument{kind: expandArg, text: src}
	}
}

// unquoted gives the plain parts of a word.
func unquoted(w *syntax.Word) string {
	var b strings.Builder
	for _, p := range w.Parts {
		if l, ok := p.(*syntax.Lit); ok {
			b.WriteString(l.Value)
		}
	}
	return b.String()
}

func literalArgument(s string) argument {
	a := argument{text: s, literal: true}
	switch {
	case strings.ContainsFunc(s, isCJKPunctuation):
		a.kind, a.prose = cjkArg, true
	case strings.ContainsFunc(s, isCJK):
		a.kind = cjkArg
		if fileLike := extension.MatchString(s) || strings.Contains(s, "/"); fileLike {
			a.kind = pathArg
		} else {
			a.prose = proseCJK(s)
		}
	case strings.HasPrefix(s, "-") && len(s) > 1 && s != "--" || strings.HasPrefix(s, "+%"), s == "-":
		a.kind = flagArg
	case numbers.MatchString(s):
		a.kind = numberArg
	case sentenceEnd(s):
		a.prose = true
	case s == "." || s == ".." || strings.HasPrefix(s, "~") || strings.HasPrefix(s, ".") || strings.Contains(s, "/") && !slashed(s) ||
		strings.ContainsAny(s, "*?[") || extension.MatchString(s) || remote.MatchString(s) || bigName.MatchString(s) || ranges.MatchString(s) || snake.MatchString(s):
		a.kind = pathArg
	case assigned.MatchString(s):
		a.kind = assignArg
	case strings.ContainsAny(s, "{}\\@^:"):
		a.kind = expandArg
	default:
		a.prose = stopWords[strings.ToLower(s)] || capitalised(s)
	}
	return a
}

// slashed says whether a word with a slash is "and/or" rather than a path.
func slashed(s string) bool { return s == "and/or" || s == "he/she" || s == "n/a" || s == "w/o" }

// capitalised says whether a word is written as at the beginning of a sentence, or as a name: HEAD and README are not.
func capitalised(s string) bool {
	c, n := utf8.DecodeRuneInString(s)
	return unicode.IsUpper(c) && len(s) > n && strings.ToLower(s[n:]) == s[n:] && letters.MatchString(s)
}

// sentenceEnd says whether a word ends as words in sentences do.
func sentenceEnd(s string) bool {
	stem := strings.TrimRight(s, ".,!?;:…")
	return stem != s && stem != "" && letters.MatchString(stem)
}

func isUpper(s string) bool { return strings.ToUpper(s) == s }

func isCJK(r rune) bool { return unicode.Is(unicode.Han, r) || isCJKPunctuation(r) }

func isCJKPunctuation(r rune) bool { return r >= 0x3000 && r <= 0x303f || r >= 0xff00 && r <= 0xffef }

// proseCJK says whether a Chinese word is a part of a sentence rather than the name of a file.
func proseCJK(s string) bool {
	if !strings.ContainsFunc(s, isCJK) {
		return false
	}
	for _, f := range chineseProse {
		if strings.Contains(s, f) {
			return true
		}
	}
	return utf8.RuneCountInString(s) > 12
}
