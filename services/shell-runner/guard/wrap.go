package guard

import (
	"slices"
	"strings"
)

// unwrap judges a wrapper and what it runs. It gives false when the wrapper runs nothing here, so that the rules of the
// table decide (sudo -l, su -, exec with redirections alone).
func (w *walker) unwrap(p *program, words []word) bool {
	wr := p.wrap
	whole := words[0]
	whole.end = max(whole.end, words[len(words)-1].end)
	whole.text = shownWords(words)
	if len(words) == 2 && (words[1].text == "--help" || words[1].text == "--version" || words[1].text == "-V") {
		return true
	}
	var inlined []word
	rest, told := w.wrapperOptions(p, words[1:], &inlined)
	if told {
		return true
	}
	for i := 0; i < wr.skip && len(rest) > 0; i++ {
		rest = rest[1:]
		if len(wr.inline) > 0 { // `su bob -c …`, `flock FILE -c …`: options follow the operand
			rest, _ = w.wrapperOptions(p, rest, &inlined)
		}
	}
	// env has its assignments, and sudo its own, also after --.
	for wr.assign && len(rest) > 0 && isAssignment(rest[0].text) {
		w.wrapperAssign(rest[0])
		rest = rest[1:]
	}
	if len(rest) == 0 && len(inlined) == 0 {
		if len(p.rules) > 0 {
			return false
		}
		if wr.bare > low && !(p.name == "env" && w.sc.namesOnly) {
			w.addWord(wr.bare, p.why, whole)
		}
		return true
	}
	if wr.level > low {
		w.addWord(wr.level, p.why, whole)
	}
	outer := *w
	w.far = w.far || wr.remote
	for _, x := range inlined {
		w.code(x)
	}
	if len(rest) > 0 {
		if wr.more {
			rest = w.moreArguments(words, rest)
		}
		if wr.text {
			w.code(join(rest))
		} else {
			w.exec(rest)
		}
	}
	w.far = outer.far
	return true
}

// wrapperOptions judges the options at the beginning of args and gives what follows them. It collects in inlined what a
// shell will read. told says that the wrapper only tells something, and runs nothing.
func (w *walker) wrapperOptions(p *program, args []word, inlined *[]word) (rest []word, told bool) {
	wr := p.wrap
	for rest = args; len(rest) > 0; {
		x := rest[0]
		text := x.text
		if text == "--" {
			return rest[1:], false
		}
		if len(text) < 2 || text[0] != '-' {
			if wr.assign && isAssignment(text) {
				w.wrapperAssign(x)
				rest = rest[1:]
				continue
			}
			if text != "-" || !hasKey(wr.flags, "-") {
				break
			}
		}
		name, value, has := strings.Cut(text, "=")
		takes, known := wr.flags[name]
		if !known && !strings.HasPrefix(text, "--") && !wr.single {
			name, value, has, takes, known = clusterOf(wr, text)
		}
		rest = rest[1:]
		if !known {
			w.addWord(high, "unknown-option", x)
			continue
		}
		val := x.with(value)
		if takes && !has && len(rest) > 0 {
			val, rest = rest[0], rest[1:]
		}
		if slices.Contains(wr.inline, name) {
			*inlined = append(*inlined, val)
		}
		if p.name == "command" && strings.ContainsAny(text, "vV") {
			return nil, true // it only tells what the name means
		}
		w.wrapperOption(p.name, name, val)
	}
	return rest, false
}

// clusterOf reads a cluster of one-letter options (-n5, -it): all but the last take no value.
func clusterOf(wr *wrapper, text string) (name, value string, has, takes, known bool) {
	for j := 1; j < len(text); j++ {
		name = "-" + text[j:j+1]
		takes, known = wr.flags[name]
		if !known {
			// -19 of nice, -5 of timeout and their like.
			return name, "", false, false, wr.flags["-#"] || strings.Trim(text[j:], "0123456789") == "" && hasKey(wr.flags, "-#")
		}
		if takes {
			if j+1 < len(text) {
				return name, text[j+1:], true, true, true
			}
			return name, "", false, true, true
		}
	}
	return name, "", false, false, true
}

func hasKey(m map[string]bool, k string) bool {
	_, ok := m[k]
	return ok
}

func join(words []word) word {
	out := words[0]
	for _, x := range words[1:] {
		out.text += " " + x.text
		out.end = max(out.end, x.end)
		out.loose = out.loose || x.loose
		out.substs = out.substs || x.substs
		out.process = out.process || x.process
		out.data = out.data || x.data
	}
	return out
}

func isAssignment(s string) bool {
	name, _, ok := strings.Cut(s, "=")
	return ok && isName(name)
}

func isName(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func (w *walker) wrapperAssign(x word) {
	name, value, _ := strings.Cut(x.text, "=")
	w.isolated(func() { w.assign(name, []string{value}, x) })
}

// wrapperOption judges the options of wrappers that do more than tune how the command runs.
func (w *walker) wrapperOption(program, name string, value word) {
	switch {
	case program == "ssh" && name == "-o":
		key, _, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(value.text, " ", "=")), "=")
		switch key {
		case "proxycommand", "localcommand", "permitlocalcommand", "knownhostscommand", "remotecommand", "include", "pkcs11provider", "securitykeyprovider":
			w.addWord(high, "runs-option", value)
		}
	case program == "ssh" && (name == "-R" || name == "-w" || name == "-F" || name == "-I" || name == "-S"):
		w.addWord(high, "opens-tunnel", value)
	case (program == "xargs" || program == "parallel") && (name == "-a" || name == "--arg-file"):
		w.readFrom(value, false)
	case program == "env" && name == "-C", program == "sudo" && name == "-D":
		w.sc.addDir(value.text)
	case program == "time" && name == "-o", program == "strace" && name == "-o", program == "ltrace" && name == "-o":
		w.writeTo(value)
	}
}

// moreArguments adds what a wrapper such as xargs reads from its input: arguments that are not known.
func (w *walker) moreArguments(words, rest []word) []word {
	at := words[0]
	replaced := false
	var marks []string
	for i, x := range words[1:] {
		switch {
		case x.text == "-I" && i+2 < len(words):
			marks = append(marks, words[i+2].text)
		case strings.HasPrefix(x.text, "-I") && len(x.text) > 2:
			marks = append(marks, x.text[2:])
		case strings.HasPrefix(x.text, "--replace="):
			marks = append(marks, x.text[10:])
		case x.text == "-i" || x.text == "--replace", words[0].text == "parallel":
			marks = append(marks, "{}")
		}
	}
	out := slices.Clone(rest)
	for i, x := range out {
		for _, m := range marks {
			if m != "" && strings.Contains(x.text, m) {
				out[i].text = strings.ReplaceAll(x.text, m, unknown)
				out[i].computed, out[i].loose, out[i].data = true, false, true
				replaced = true
			}
		}
	}
	if strings.HasSuffix(words[0].text, "parallel") {
		for i, x := range out {
			if strings.HasPrefix(x.text, ":::") {
				out = out[:i] // its values; what they name is not known to the command's words
				break
			}
		}
		if len(out) == 0 {
			return []word{{text: unknown, start: at.start, end: at.end}}
		}
	}
	if !replaced {
		out = append(out, word{text: unknown, computed: true, data: true, start: at.start, end: at.end})
	}
	return out
}

// code judges text that a shell will read.
func (w *walker) code(x word) {
	switch {
	case x.process, x.substs && !x.known(), strings.TrimSpace(strings.ReplaceAll(x.text, unknown, "")) == "" && !x.known():
		w.addWord(high, "computed-code", x)
	case !x.known():
		// The rest is judged all the same: `sh -c "rm -rf $x"`.
		if x.loose || !quietlyUnknown(x.text) {
			w.addWord(high, "computed-code", x)
		} else {
			w.addWord(medium, "computed-code", x)
		}
		w.sub(x)
	default:
		w.sub(x)
	}
}

// quietlyUnknown says whether the unknown parts stand where they can only be an argument, in a text without operators.
func quietlyUnknown(s string) bool { return !strings.HasPrefix(strings.TrimSpace(s), unknown) }

func (w *walker) sub(x word) {
	outer := w.sc
	sc := outer.clone()
	sc.positional = nil
	w.inner(x.text, x, sc)
}
