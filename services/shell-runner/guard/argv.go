package guard

import (
	"slices"
	"strings"
)

// option is one option of a command line: -x, --name, or a letter of a cluster.
type option struct {
	name  string
	value word
	has   bool // a value was given, by = or as the next argument
	at    int  // its index in the arguments
}

// arguments are the arguments of a command, taken apart as the table says.
type arguments struct {
	options  []option
	operands []word
	raw      []word
	whole    map[string]bool // long options that the table names: they are no abbreviations of longer ones
}

// takeApart splits args into options and operands. In clusters (-xzf) every letter counts; a letter whose option takes a
// value takes the rest of the cluster, or the next argument.
func takeApart(args []word, p *program) arguments {
	a := arguments{raw: args, whole: p.whole}
	done := false
	for i := 0; i < len(args); i++ {
		w := args[i]
		text := w.text
		if i == 0 && p.bundle && isLetters(text) {
			text = "-" + text
		}
		switch {
		case done || len(text) < 2 || text[0] != '-' || strings.HasPrefix(text, unknown):
			a.operands = append(a.operands, w)
			done = done || p.first
		case text == "--":
			done = true
		case text[1] == '-' || p.single && len(text) > 2:
			name, value, has := strings.Cut(text, "=")
			if p.single && len(name) > 3 && text[1] == '-' {
				// Where one dash is enough, most take two as well.
				if a.options = append(a.options, option{name: name, has: has, at: i, value: w.with(value)}); !p.values[name] {
					name = name[1:]
				}
			}
			o := option{name: name, has: has, at: i}
			if has {
				o.value = w.with(value)
			} else if p.values[name] && i+1 < len(args) {
				i++
				o.value, o.has = args[i], true
				if isOption(args[i].text) {
					i-- // whether it really is the value differs between subcommands: read it both ways
				}
			}
			a.options = append(a.options, o)
		default:
			for j := 1; j < len(text); j++ {
				name := "-" + text[j:j+1]
				o := option{name: name, at: i}
				if p.values[name] {
					if j+1 < len(text) {
						o.value, o.has = w.with(strings.TrimPrefix(text[j+1:], "=")), true
						j = len(text)
					} else if i+1 < len(args) {
						i++
						o.value, o.has = args[i], true
						if isOption(args[i].text) {
							i--
							a.options = append(a.options, o)
							break
						}
					}
				}
				a.options = append(a.options, o)
			}
		}
	}
	return a
}

func isOption(s string) bool {
	return len(s) > 1 && s[0] == '-' && strings.Trim(s, "-0123456789") != ""
}

func isLetters(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return false
		}
	}
	return s != ""
}

// has says whether one of the options is there.
func (a *arguments) has(names ...string) bool {
	for _, o := range a.options {
		for _, n := range names {
			if o.name == n {
				return true
			}
		}
	}
	return false
}

// values gives the values of an option.
func (a *arguments) valuesOf(names ...string) []word {
	var all []word
	for _, o := range a.options {
		for _, n := range names {
			if o.name == n && o.has {
				all = append(all, o.value)
			}
		}
	}
	return all
}

// matches says whether the rule applies.
func (r *rule) matches(a *arguments) bool {
	if r.bare && len(a.raw) > 0 || r.noOps && len(a.operands) > 0 {
		return false
	}
	if len(r.subs) > len(a.operands) {
		return false
	}
	for i, alternatives := range r.subs {
		if !anyGlob(alternatives, a.operands[i].text) {
			return false
		}
	}
	if r.each != nil && (len(a.operands) == 0 || slices.ContainsFunc(a.operands, func(x word) bool { return !anyGlob(r.each, x.text) })) {
		return false
	}
	for _, tokens := range r.with {
		if !anyToken(tokens, a, r.level > low) {
			return false
		}
	}
	if len(r.without) > 0 && anyToken(r.without, a, r.level == low) {
		return false
	}
	if r.only == nil {
		return true
	}
	for _, o := range a.options {
		listed := anyGlob(r.only, o.name) || anyGlob(r.only, a.raw[o.at].text) || o.has && anyGlob(r.only, o.name+"="+o.value.text)
		if !listed {
			return false
		}
	}
	return true
}

func anyGlob(patterns []string, s string) bool {
	for _, p := range patterns {
		if glob(p, s) {
			return true
		}
	}
	return false
}

// anyToken says whether one of the tokens is among the arguments. With abbreviations a long option also matches by its
// beginning, as GNU programs read it: that is for rules that raise the risk, never for those that lower it.
func anyToken(tokens []string, a *arguments, abbreviations bool) bool {
	for _, tok := range tokens {
		if tok[0] != '-' {
			for _, w := range a.operands {
				if glob(tok, w.text) {
					return true
				}
			}
			continue
		}
		for _, o := range a.options {
			full := o.name
			if o.has {
				full += "=" + o.value.text
			}
			switch {
			case glob(tok, o.name), glob(tok, full), glob(tok, a.raw[o.at].text):
				return true
			case abbreviations && !a.whole[o.name] && abbreviates(o, tok):
				return true
			}
		}
	}
	return false
}

// abbreviates says whether a GNU program would read the option as the long option that tok names.
func abbreviates(o option, tok string) bool {
	name, value, has := strings.Cut(tok, "=")
	return len(o.name) > 3 && strings.HasPrefix(name, "--") && strings.HasPrefix(name, o.name) && (!has || glob(value, o.value.text))
}

// glob matches s with a pattern whose only special character is *, which stands for any text.
func glob(pattern, s string) bool {
	head, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == s
	}
	if !strings.HasPrefix(s, head) {
		return false
	}
	s = s[len(head):]
	for {
		part, more, star := strings.Cut(rest, "*")
		if !star {
			return strings.HasSuffix(s, part)
		}
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s, rest = s[i+len(part):], more
	}
}
