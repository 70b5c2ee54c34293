package guard

import (
	"regexp"
	"slices"
	"strings"
)

// interpreters are the programs whose name on a local file says nothing about what the file does.
var interpreters = set(`python python2 python3 node perl ruby php lua sh bash`)

// family gives the program of the tables for names with a version or a kind in them: python3.12, mkfs.ext4, gcc-13.
func (w *walker) family(name string) *program {
	t := w.c.g.tables.programs
	if base, _, ok := strings.Cut(name, "."); ok {
		if base == "mkfs" || base == "fsck" {
			return t[base]
		}
		if p := t[base]; p != nil && digitsOnly(name[len(base)+1:]) {
			return p
		}
	}
	if i := strings.LastIndexByte(name, '-'); i > 0 && digitsOnly(name[i+1:]) {
		return t[name[:i]]
	}
	return t[strings.TrimRight(name, "0123456789.")]
}

func digitsOnly(s string) bool { return s != "" && strings.Trim(s, "0123456789.") == "" }

// stdinCode judges a program that reads code from its standard input.
func (w *walker) stdinCode(c *command, isShell bool) {
	switch w.sc.stdin.kind {
	case fromText:
		x := c.at
		x.text = w.sc.stdin.text
		w.c.add(medium, "inline-code", c.at.start, c.at.end, c.name)
		if isShell {
			stdin := w.sc.stdin
			w.sc.stdin = source{kind: fromPipe}
			w.code(x)
			w.sc.stdin = stdin
		} else if badTokens(x.text) || strings.Contains(x.text, unknown) {
			w.addWord(high, "dangerous-code", c.at)
		}
	case fromPipe:
		w.addWord(high, "pipe-to-interpreter", c.at)
	case fromFile:
		w.addWord(high, "runs-input", c.at)
	default:
		w.addWord(medium, "starts-shell", c.at)
	}
}

// checkShell judges sh, bash and their kin.
func checkShell(w *walker, c *command) {
	if helpOnly(c) {
		return
	}
	args := c.words[1:]
	var i int
	text, syntaxOnly, stdin := false, false, false
	for i = 0; i < len(args); i++ {
		a := args[i].text
		if a == "--" || a == "-" {
			i++
			break
		}
		if len(a) < 2 || a[0] != '-' && a[0] != '+' || strings.HasPrefix(a, unknown) {
			break
		}
		switch {
		case a == "--rcfile" || a == "--init-file":
			w.addWord(high, "runs-option", args[i])
			i++
		case a == "--norc" || a == "--noprofile" || a == "--posix" || a == "--login" || a == "--restricted" || a == "--verbose" || a == "--noediting":
			w.addWord(low, "", args[i])
		case a == "-o" || a == "+o" || a == "-O" || a == "+O":
			i++
		case a == "--command" || a == "-Command":
			text = true
		case strings.HasPrefix(a, "--"):
			w.addWord(high, "unknown-option", args[i])
		case a[0] == '-':
			text = text || strings.Contains(a, "c")
			syntaxOnly = syntaxOnly || strings.Contains(a, "n")
			stdin = stdin || strings.Contains(a, "s")
			if strings.HasSuffix(a, "o") || strings.HasSuffix(a, "O") {
				i++
			}
		}
	}
	i = min(i, len(args))
	switch {
	case syntaxOnly && !text:
		return
	case text && i >= len(args):
		w.addWord(medium, "starts-shell", c.at)
	case text:
		x := args[i]
		if strings.HasSuffix(c.name, "fish") || strings.HasSuffix(c.name, "csh") || c.name == "pwsh" {
			w.addWord(medium, "inline-code", x)
			if badTokens(x.text) {
				w.addWord(high, "dangerous-code", x)
			}
			return
		}
		if !x.known() && (x.loose || x.substs || quotedUnknownCode(x.text)) {
			w.addWord(high, "computed-code", x)
		}
		outer := w.sc
		sc := outer.clone()
		sc.vars = map[string][]string{"HOME": {w.c.home}}
		sc.aliases, sc.functions, sc.declared = map[string]string{}, map[string][]string{}, nil
		sc.positional = nil
		w.inner(x.text, x, sc)
	case i < len(args) && !stdin:
		if args[i].text == "/dev/stdin" {
			w.stdinCode(c, true)
		} else {
			w.script(args[i])
		}
	default:
		w.stdinCode(c, true)
	}
}

// quotedUnknownCode says whether parts that are not known stand where they would be read as code.
func quotedUnknownCode(s string) bool { return strings.Contains(s, unknown) }

// checkInterpreter judges python, perl, node and their kin: code in the arguments, on the input, in a file.
// afterWord gives the words that follow x, or the one that x is a part of.
func afterWord(words []word, x word) []word {
	for i, y := range words {
		if y.start == x.start && strings.HasSuffix(y.text, x.text) {
			return words[i+1:]
		}
	}
	return nil
}

func checkInterpreter(w *walker, c *command) {
	if helpOnly(c) {
		return
	}
	if c.has("-i") && (c.name == "perl" || c.name == "ruby") {
		for _, x := range c.operands[min(1, len(c.operands)):] {
			w.writeTo(x)
		}
	}
	code, module := false, false
	for _, o := range c.options {
		if module = o.name == "-m" && strings.HasPrefix(c.name, "py"); module {
			// What follows belongs to the module, which is judged as the program of its name.
			p := w.c.g.tables.programs[o.value.text]
			if p != nil && o.has && (slices.Contains(p.checks, "elsewhere") || len(p.points) > 0 || p.name == "pip") {
				rest := append([]word{o.value}, afterWord(c.raw, o.value)...)
				w.exec(rest)
			}
			break
		}
		switch o.name {
		case "-c", "-e", "-E", "-r", "-p", "-pe", "-ne", "--eval", "--print", "-x", "-R":
			if !o.has || c.name == "php" && o.name == "-e" || strings.HasPrefix(c.name, "python") && o.name != "-c" {
				continue
			}
			code = true
			w.addWord(medium, "inline-code", o.value)
			if badTokens(o.value.text) || !o.value.known() {
				w.addWord(high, "dangerous-code", o.value)
			}
		}
	}
	// Clusters such as perl -lne put the code in the next argument: look at all of them.
	for _, x := range c.operands {
		if !code && badTokens(x.text) && strings.ContainsAny(x.text, " (;") {
			w.addWord(high, "dangerous-code", x)
		}
	}
	if code || module || len(c.operands) == 0 && c.has("--version", "-V", "--help", "-h", "-v") {
		return
	}
	if len(c.operands) == 0 || c.operands[0].text == "-" || c.operands[0].text == "/dev/stdin" {
		w.stdinCode(c, false)
		return
	}
	if c.has("--check", "-c") {
		return
	}
	x := c.operands[0]
	if strings.Contains(x.text, "://") {
		w.addWord(high, "runs-remote", x)
		return
	}
	w.script(x)
}

var bad = regexp.MustCompile(`(?i)` + strings.Join([]string{
	`\bos\s*\.\s*(system|popen|remove|unlink|rmdir|removedirs|exec|spawn|kill|chmod|chown|fork|rename|truncate|setuid)`,
	`\bsubprocess\b`, `\bshutil\b`, `\brmtree\b`, `__import__`, `\bpty\b`, `\bctypes\b`, `\bsocket\b`, `\bimportlib\b`,
	`\bexec\w*\b`, `\beval\b`, `\bcompile\s*\(`, `\bspawn\w*\b`, `\bchild_process\b`, `\bsystem\b`, `\bpopen\b`, `\bpassthru\b`,
	`\bshell_exec\b`, `\bproc_open\b`, `\bunlink\w*\b`, `\brmdir\w*\b`, `\brm_?rf?\b`, `\brmSync\b`, `\bFileUtils\b`,
	`\bfork\b`, `\bkill\b`, `\bioctl\b`, `TIOCSTI`, `\bfcntl\b`, `\bwriteFile\w*`, `\bopen\s*\([^)]*,\s*['"]?[^)'"]*[wax+]`,
	`\bwrite_text\b`, `\bwrite_bytes\b`, `\bFile\.(write|delete|open|unlink|rename|chmod)`, `\bIO\.popen\b`, `\bdelete-(directory|file)`,
	`\bshell-command\b`, `\bio\.popen\b`, `\bpack\s*\(`, `\bb64decode\b`, `\bbase64\b`, `\bfromCharCode\b`, `\batob\b`, `\burlopen\b`,
	`\brequests?\.(get|post|put)`, `\bqx\b`, "`", `\bprocess\.(kill|binding|env)`, `\bos\.environ\b`, `\bgetenv\b`, `\bENV\b`, `\brequire\s*\(?['"](fs|net|http)`,
	`/etc/(passwd|shadow|sudoers|cron)`, `\.ssh\b`, `\brm\s+-`, `\breboot\b`, `\bshutdown\b`, `\bmkfs\b`, `\bmalloc\b.*\bwhile\b`, `while\s*\(?\s*(1|true)`,
	`\bglob\b.*\bdelete\b`, `\bchmod\b`, `\bchown\b`, `\brename\b`, `\btruncate\b`, `\bdd\s+if=`, `\bcurl\b`, `\bwget\b`, `/dev/(tcp|sd|nvme|mem)`,
}, "|"))

// badTokens says whether code in another language holds words that start programs, remove files, or hide what they do.
func badTokens(code string) bool { return bad.MatchString(code) }

// checkStdin judges programs that take orders from their input: from a pipe nobody has read them.
func checkStdin(w *walker, c *command) {
	if len(c.operands) > 0 && c.operands[0].text != "-" && c.name != "at" && c.name != "batch" {
		return
	}
	switch w.sc.stdin.kind {
	case fromText:
		if badTokens(w.sc.stdin.text) {
			w.addWord(high, "dangerous-code", c.at)
		}
	case fromPipe, fromFile:
		w.addWord(high, "runs-input", c.at)
	default:
	}
}

func checkJQ(w *walker, c *command) {
	for _, x := range c.operands[:min(len(c.operands), 1)] {
		if jqEnvironment.MatchString(x.text) {
			w.addWord(medium, "shows-secrets", x)
		}
	}
}

var jqEnvironment = regexp.MustCompile(`\$ENV\b|(^|[^.\w])env\b|\$__prog|input_filename\s*\|\s*input`)
