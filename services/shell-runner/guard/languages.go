package guard

import (
	"regexp"
	"slices"
	"strings"
)

// checkAwk judges an awk program: it may start commands and write files.
func checkAwk(w *walker, c *command) {
	if helpOnly(c) {
		return
	}
	programs := append(c.valuesOf("-e", "--source"), c.operands[:min(1, len(c.operands))]...)
	if c.has("-f", "--file", "-E", "--exec") {
		for _, f := range c.valuesOf("-f", "--file", "-E", "--exec") {
			w.script(f)
		}
		programs = nil
	}
	for _, x := range programs {
		switch awkRisk(x.text) {
		case high:
			if lines, ok := awkPipes(x.text); ok && x.known() {
				w.isolated(func() {
					w.sc.stdin = source{kind: fromPipe}
					for _, line := range lines {
						w.code(x.with(line))
					}
				})
			} else {
				w.addWord(high, "dangerous-code", x)
			}
		case medium:
			targets := awkTarget.FindAllStringSubmatch(x.text, 8)
			bare, _ := awkBare(x.text)
			kept := slices.ContainsFunc(targets, func(m []string) bool { return !slices.Contains(sinks, m[1]) })
			if kept || strings.Count(bare, ">") != len(targets) {
				w.addWord(medium, "writes-file", x)
			}
			for _, m := range targets {
				w.writeTo(x.with(m[1]))
			}
		}
		bare, texts := awkBare(x.text)
		for _, t := range texts {
			if strings.HasPrefix(t, "/") {
				w.readFrom(x.with(t), false)
			}
		}
		if len(awkReads.FindAllString(bare, -1)) < len(awkReadsAny.FindAllString(bare, -1)) {
			w.addWord(medium, "computed-argument", x) // which file it reads is put together
		}
		if strings.Contains(x.text, "ENVIRON") {
			w.addWord(medium, "shows-secrets", x)
		}
		if !x.known() {
			w.addWord(medium, "computed-code", x)
		}
	}
}

var (
	awkReads    = regexp.MustCompile(`\bgetline\b[^<;}|\n]*<[ \t]*"[ \t]*(?:[;})\n&]|$)`)
	awkReadsAny = regexp.MustCompile(`\bgetline\b[^<;}|)\n]*<`)
	awkPipe     = regexp.MustCompile(`\|[ \t]*"[ \t]*(?:[;}\n]|$)`) // to a text that ends there: "sort " x would go on
	awkTarget   = regexp.MustCompile(`>>?\s*"([^"]*)"`)
	awkPrint    = regexp.MustCompile(`\bprintf?\b[^;}\n]*>`)
	awkRuns     = regexp.MustCompile(`\bsystem\s*\(|\|&?|@load|@include|@\s*[A-Za-z_]\w*\s*\(|/inet/`)
)

// awkPipes gives the command lines that an awk program pipes to, when they stand in it as they are (print | "sort -rn") and
// nothing else in it starts a program or writes a file.
func awkPipes(code string) (lines []string, ok bool) {
	bare, texts := awkBare(code)
	pipes := awkPipe.FindAllStringIndex(bare, -1)
	rest := awkPipe.ReplaceAllString(bare, " ")
	if len(pipes) == 0 || strings.Contains(rest, "|") || awkRuns.MatchString(rest) || hasPrintRedirect(rest) || strings.Contains(code, "/inet/") {
		return nil, false
	}
	for _, p := range pipes {
		text := texts[strings.Count(bare[:p[1]], `"`)-1]
		if strings.Contains(text, `\`) {
			return nil, false
		}
		lines = append(lines, text)
	}
	return lines, true
}

// awkRisk looks at an awk program without its texts and regular expressions.
func awkRisk(code string) level {
	if strings.Contains(code, "/inet/") {
		return high
	}
	text, _ := awkBare(code)
	switch {
	case awkRuns.MatchString(text):
		return high
	case hasPrintRedirect(text):
		return medium
	}
	return low
}

// awkBare gives an awk program with a quote for each text and regular expression, without comments and without ||; and
// those texts, in order.
func awkBare(code string) (string, []string) {
	var texts []string
	var bare strings.Builder
	last := byte(' ') // last character that is not blank: tells a regular expression from a division
	for i := 0; i < len(code); i++ {
		ch := code[i]
		switch {
		case ch == '"' || ch == '/' && (strings.IndexByte("(,=!~&|{};\n ?:", last) >= 0):
			j := i + 1
			for j < len(code) && code[j] != ch {
				if code[j] == '\\' {
					j++
				}
				j++
			}
			texts = append(texts, code[i+1:min(j, len(code))])
			i = j
			bare.WriteByte('"')
			last = 'x'
			continue
		case ch == '#':
			for i < len(code) && code[i] != '\n' {
				i++
			}
			continue
		}
		bare.WriteByte(ch)
		if ch != ' ' && ch != '\t' {
			last = ch
		}
	}
	return strings.ReplaceAll(bare.String(), "||", "  "), texts
}

// hasPrintRedirect finds `print … > file`; between parentheses > compares.
func hasPrintRedirect(text string) bool {
	for _, part := range awkPrint.FindAllString(text, -1) {
		depth := 0
		for i := 0; i < len(part); i++ {
			switch part[i] {
			case '(':
				depth++
			case ')':
				depth--
			case '>':
				if depth <= 0 {
					return true
				}
			}
		}
	}
	return false
}

// checkSed judges a sed script: it may run commands (e), write files (w) and change files in place (-i).
func checkSed(w *walker, c *command) {
	if helpOnly(c) {
		return
	}
	scripts := c.valuesOf("-e", "--expression")
	files := c.operands
	if len(scripts) == 0 && !c.has("-f", "--file") && len(files) > 0 {
		scripts, files = files[:1], files[1:]
	}
	for _, f := range c.valuesOf("-f", "--file") {
		w.script(f)
	}
	inPlace := c.has("-i", "--in-place", "-I")
	for _, x := range files {
		if inPlace {
			w.writeTo(x)
		}
	}
	for _, x := range scripts {
		if x.loose {
			w.addWord(medium, "computed-code", x)
		}
		targets, runs, ok := sedScript(x.text)
		switch {
		case runs:
			w.addWord(high, "dangerous-code", x)
		case !ok:
			w.addWord(medium, "unlisted-use", x)
		}
		for _, t := range targets {
			if l, code := w.place(x.with(t)).writeRisk(); l > low {
				w.addWord(l, code, x)
			}
		}
	}
}

// sedScript finds the files a sed script writes and whether it runs commands; ok is false when it was not understood.
func sedScript(s string) (targets []string, runs, ok bool) {
	line := func(i int) (string, int) {
		end := strings.IndexByte(s[i:], '\n')
		if end < 0 {
			return strings.TrimSpace(s[i:]), len(s)
		}
		return strings.TrimSpace(s[i : i+end]), i + end + 1
	}
	// delimited gives the index after the closing d. In a regular expression a d within brackets does not close it.
	delimited := func(i int, d byte, regex bool) int {
		for ; i < len(s); i++ {
			switch {
			case s[i] == '\\':
				i++
			case s[i] == d:
				return i + 1
			case s[i] == '[' && regex:
				j := i + 1
				if j < len(s) && s[j] == '^' {
					j++
				}
				if j < len(s) && s[j] == ']' {
					j++
				}
				if j < len(s) {
					if k := strings.IndexByte(s[j:], ']'); k >= 0 {
						i = j + k
					}
				}
			}
		}
		return -1
	}
	for i := 0; i < len(s); {
		switch ch := s[i]; {
		case strings.IndexByte(" \t\n;{}!,$~+", ch) >= 0, ch >= '0' && ch <= '9', ch == 'I', ch == 'M':
			i++
		case ch == '#':
			_, i = line(i)
		case ch == '/' || ch == '\\' && i+1 < len(s):
			from, d := i+1, byte('/')
			if ch == '\\' {
				from, d = i+2, s[i+1]
			}
			if i = delimited(from, d, true); i < 0 {
				return targets, runs, false
			}
		case ch == 's' || ch == 'y':
			if i+1 >= len(s) {
				return targets, runs, false
			}
			d := s[i+1]
			j := delimited(i+2, d, ch == 's')
			if j < 0 {
				return targets, runs, false
			}
			if j = delimited(j, d, false); j < 0 {
				return targets, runs, false
			}
			for i = j; i < len(s) && ch == 's' && strings.IndexByte("gpiImMe0123456789w", s[i]) >= 0; i++ {
				if s[i] == 'e' {
					runs = true
				}
				if s[i] == 'w' {
					var t string
					t, i = line(i + 1)
					targets = append(targets, t)
					break
				}
			}
		case ch == 'e':
			return targets, true, true
		case ch == 'w' || ch == 'W':
			var t string
			t, i = line(i + 1)
			targets = append(targets, t)
		case ch == 'a' || ch == 'i' || ch == 'c' || ch == 'r' || ch == 'R' || ch == ':' || ch == 'b' || ch == 't' || ch == 'T' || ch == 'v':
			_, next := line(i)
			if k := strings.IndexAny(s[i:], ";}"); k >= 0 && strings.IndexByte(":btTv", ch) >= 0 && i+k < next {
				next = i + k
			}
			for strings.HasSuffix(strings.TrimRight(s[i:next], "\n"), `\`) && next < len(s) { // a\ continues
				_, next = line(next)
			}
			i = next
		case strings.IndexByte("=dDgGhHlnNpPqQxzF", ch) >= 0:
			i++
		default:
			return targets, runs, false
		}
	}
	return targets, runs, true
}

var (
	sqlReads  = regexp.MustCompile(`(?is)^\s*(select|show|explain|describe|desc|with|values|table|use|help|pragma\s+(table_info|index_list|foreign_key_list|database_list|integrity_check|user_version)|check\s+table|\\(d\w*|l|dt|du|dn|df|di|conninfo|timing|x|q|c|z|echo)\+?|\.(tables|schema|databases|indexes|indices|headers|mode|help|show|stats|width|dbinfo|quit|timer))\b?[+*]?`)
	sqlLoses  = regexp.MustCompile(`(?is)\b(drop|truncate|delete|update|alter|grant|revoke|shutdown|vacuum\s+full|reindex|attach|load_extension|load_file|pg_terminate_backend|pg_cancel_backend|pg_read_file|pg_read_binary_file|lo_import|lo_export|dblink|pg_ls_dir|pg_sleep|xp_cmdshell|writefile|readfile|edit)\b|\binto\s+(out|dump)file\b|\bcopy\b.*\b(program|to|from)\b|\\(!|copy|o|w|i|g\w*\s*[|/~.]|e|setenv)|\.(shell|system|import|read|output|once|load|save|backup|restore|open|log|clone|excel)\b|create\s+(extension|user|role|function)|set\s+global|kill\s`)
	sqlWrites = regexp.MustCompile(`(?is)\b(insert|create|replace|merge|call|do|lock|set|comment|analyze|begin|commit|vacuum|execute|prepare|into|setval|nextval|set_config|query_to_xml\w*|pg_reload_conf|pg_switch_wal|pg_create_\w+|pg_drop_\w+|pg_promote|dblink\w*)\b`)
	sqlShows  = regexp.MustCompile(`(?i)^\s*(show|desc|describe)\s`) // show create table
	sqlTexts  = regexp.MustCompile(`'(?:[^']|'')*'|"[^"]*"|--[^\n]*|/\*.*?\*/`)
)

// sqlRisk judges SQL, and the commands of psql and sqlite3.
func sqlRisk(text string) level {
	risk := low
	bare := sqlTexts.ReplaceAllStringFunc(text, func(s string) string {
		if strings.HasPrefix(s, "/*!") { // MySQL executes these
			return strings.Trim(s, "/*!")
		}
		if s[0] == '-' || s[0] == '/' {
			return " "
		}
		return "''"
	})
	bare = strings.TrimSpace(bare)
	bare = strings.TrimSuffix(strings.TrimSuffix(bare, `\G`), `\g`) // they end a statement, as ; does
	for _, statement := range strings.Split(bare, ";") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		switch {
		case strings.Contains(statement, unknown):
			risk = max(risk, medium)
			fallthrough
		default:
			if sqlLoses.MatchString(statement) {
				risk = max(risk, high)
			} else if !sqlReads.MatchString(statement) || sqlWrites.MatchString(statement) && !sqlShows.MatchString(statement) {
				risk = max(risk, medium)
			}
		}
	}
	return risk
}

// checkSQL judges the clients of SQL databases by the statements they are given.
func checkSQL(w *walker, c *command) {
	if helpOnly(c) || c.has("-l", "--list", "--version", "-V", "--help") {
		return
	}
	statements := c.valuesOf("-c", "--command", "-e", "--execute", "-q", "--query", "-Q", "-cmd")
	if strings.HasPrefix(c.name, "sqlite") || c.name == "duckdb" {
		statements = c.valuesOf("-cmd", "-c")
		for i, x := range c.operands {
			if i > 0 {
				statements = append(statements, x)
			}
		}
	}
	for _, x := range statements {
		w.statement(x, x.text)
	}
	if c.has("-f", "--file", "-init") {
		w.addWord(medium, "changes-database", c.at)
	}
	if len(statements) > 0 || c.has("-f", "--file") {
		return
	}
	switch w.sc.stdin.kind {
	case fromText:
		w.statement(c.at, w.sc.stdin.text)
	case fromPipe:
		w.addWord(high, "runs-input", c.at)
	case fromFile:
		w.addWord(medium, "changes-database", c.at)
	default:
		w.addWord(medium, "opens-database", c.at)
	}
}

func (w *walker) statement(x word, text string) {
	switch sqlRisk(text) {
	case high:
		w.addWord(high, "loses-database", x)
	case medium:
		w.addWord(medium, "changes-database", x)
	}
	for _, t := range []string{"\\!", ".shell", ".system"} {
		if _, after, ok := strings.Cut(text, t); ok {
			w.sub(x.with(after))
		}
	}
}

// checkCurl judges curl by what it sends and where it writes.
func checkCurl(w *walker, c *command) {
	sending := func(x word) {
		switch {
		case x.text == "-" || x.text == "@-" || strings.HasSuffix(x.text, "=@-"):
			if w.sc.stdin.kind == fromPipe || w.sc.stdin.kind == fromFile {
				w.addWord(high, "sends-input", x)
			}
		case strings.HasPrefix(x.text, "@") || strings.Contains(x.text, "=@") || strings.Contains(x.text, "=<"):
			p := x.text[strings.IndexAny(x.text, "@<")+1:]
			w.sendsFile(x, p)
		}
	}
	for _, x := range c.valuesOf("-d", "--data", "--data-binary", "--data-ascii", "--data-urlencode", "-F", "--form", "--json", "-H", "--header") {
		sending(x)
	}
	for _, x := range c.valuesOf("-T", "--upload-file", "--post-file", "--body-file") {
		sending(x)
		w.sendsFile(x, x.text)
	}
	for _, x := range c.valuesOf("-b", "--cookie") {
		if c.name == "curl" && !strings.Contains(x.text, "=") && x.text != "" { // a file of cookies
			w.addWord(medium, "sends-out", x)
			w.sendsFile(x, x.text)
		}
	}
	for _, x := range c.valuesOf("-X", "--request", "--method") {
		switch strings.ToUpper(x.text) {
		case "GET", "HEAD", "OPTIONS":
		case "DELETE":
			w.addWord(high, "deletes-remote", c.at)
		default:
			w.addWord(medium, "changes-remote", c.at)
		}
	}
	for _, x := range c.operands {
		if rest, ok := strings.CutPrefix(x.text, "file://"); ok {
			w.readPart(x, rest, false)
		}
	}
	for _, x := range c.valuesOf("--unix-socket", "--abstract-unix-socket") {
		w.addWord(high, "container-reaches-host", x)
	}
	checkNetwork(w, c)
	if c.name == "wget" || c.has("-O", "--remote-name") {
		w.fetched(c)
	}
}

// fetched remembers the files that a download names after its addresses: running one runs what nobody has seen.
func (w *walker) fetched(c *command) {
	for _, x := range c.operands {
		name := x.text[strings.LastIndexByte(x.text, '/')+1:]
		if i := strings.IndexAny(name, "?#"); i >= 0 && c.name != "wget" {
			name = name[:i]
		}
		paths, cut := w.absolute(name)
		for _, p := range paths {
			w.c.written[p] = w.c.written[p] || !cut && name != ""
		}
	}
}

func (w *walker) sendsFile(x word, p string) {
	if p == "" || p == "-" || p == "." {
		return
	}
	paths, _ := w.absolute(p)
	for _, abs := range paths {
		if under(abs, "/etc") || under(abs, "/var") || under(abs, "/proc") || secretPath(abs) {
			w.addWord(high, "sends-secret", x)
			return
		}
	}
	w.addWord(medium, "sends-out", x)
}

func checkMongo(w *walker, c *command) {
	for _, x := range c.valuesOf("--eval") {
		lower := strings.ToLower(x.text)
		for _, bad := range []string{"drop", "delete", "remove", "update", "shutdown", "insert", "fsync", "createuser", "grant", "run(", "rename"} {
			if strings.Contains(lower, bad) {
				w.addWord(high, "loses-database", x)
				break
			}
		}
	}
}
