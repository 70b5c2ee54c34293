package guard

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// scope is what the guard knows of the shell at one point of the text. It never knows more than the shell: what depends
// on a condition is forgotten when the condition ends.
type scope struct {
	vars       map[string][]string // values that are known; one that holds nil was forgotten
	exports    map[string]string   // of the session, read only
	dirs       []string            // where it may be; more than one after a cd that may have failed
	positional []string            // $1 …; nil when not known
	functions  map[string][]string // defined in this text, with the variables they assign
	aliases    map[string]string   // of the session and of this text
	declared   map[string]string   // functions of the session
	expanding  map[string]bool     // aliases and functions that are being looked into
	tame       map[string]bool     // variables whose values, known or not, are numbers or words of the text
	stdin      source
	inLoop     bool // in a loop that may not end
	namesOnly  bool // of what is printed, the rest of the pipe shows names or numbers
	listed     bool // what is printed names files that the rest of the pipe opens
}

// source is where a command reads its standard input from.
type source struct {
	kind sourceKind
	text string // for fromText
}

type sourceKind int

const (
	fromTerminal sourceKind = iota
	fromPipe                // something computes it
	fromFile
	fromText // it stands in the line
)

func (s *scope) clone() *scope {
	c := *s
	c.vars, c.functions, c.aliases = maps.Clone(s.vars), maps.Clone(s.functions), maps.Clone(s.aliases)
	c.tame = maps.Clone(s.tame)
	c.dirs = slices.Clone(s.dirs)
	return &c
}

// lookup gives the value of a variable, one element for each word of an array.
func (s *scope) lookup(name string) ([]string, bool) {
	switch name {
	case "@", "*":
		return s.positional, s.positional != nil
	case "PWD":
		if len(s.dirs) == 1 && !strings.HasPrefix(s.dirs[0], unknown) {
			return s.dirs[:1], true
		}
		return nil, false
	}
	if len(name) == 1 && name[0] >= '1' && name[0] <= '9' {
		if i := int(name[0] - '1'); i < len(s.positional) {
			return s.positional[i : i+1], true
		}
		return nil, false
	}
	if v, ok := s.vars[name]; ok {
		return v, v != nil
	}
	if v, ok := s.exports[name]; ok {
		return []string{v}, true
	}
	return nil, false
}

func (s *scope) set(name string, values []string) {
	size := 0
	for _, v := range values {
		size += len(v)
	}
	if len(s.vars) > 200 || len(values) > maxFields || size > MaxText {
		values = nil
	}
	s.vars[name] = values
	delete(s.tame, name)
}

func (s *scope) forget(names ...string) {
	for _, name := range names {
		s.vars[name] = nil
		delete(s.tame, name)
	}
}

// forgetAll is for code that is not read here and runs in this shell.
func (s *scope) forgetAll() {
	for name := range s.vars {
		s.vars[name] = nil
	}
	s.exports = nil
	s.positional = nil
	clear(s.tame)
}

// ifs gives the characters at which unquoted expansions are split.
func (s *scope) ifs() string {
	v, ok := s.vars["IFS"]
	switch {
	case !ok:
		return " \t\n"
	case len(v) == 1 && !strings.Contains(v[0], unknown):
		return v[0]
	}
	return unknown
}

// branch runs f in a copy of the scope, as something that may or may not happen: what it changed is not known after.
func (w *walker) branch(f func()) {
	outer := w.sc
	w.sc = outer.clone()
	f()
	inner := w.sc
	w.sc = outer
	for name, v := range inner.vars {
		if o, ok := outer.vars[name]; !ok || !slices.Equal(o, v) || o == nil {
			outer.vars[name] = nil
		}
		if !inner.tame[name] {
			delete(outer.tame, name)
		}
	}
	maps.Copy(outer.functions, inner.functions)
	maps.Copy(outer.aliases, inner.aliases)
	for _, d := range inner.dirs {
		outer.addDir(d)
	}
	if !slices.Equal(outer.positional, inner.positional) {
		outer.positional = nil
	}
	if inner.exports == nil {
		outer.exports = nil
	}
}

// isolated runs f in a copy of the scope that is thrown away: a subshell.
func (w *walker) isolated(f func()) {
	outer := w.sc
	w.sc = outer.clone()
	f()
	w.sc = outer
}

func (s *scope) addDir(d string) {
	if !slices.Contains(s.dirs, d) {
		if len(s.dirs) >= 6 {
			d = unknown
			s.dirs = s.dirs[:5]
		}
		s.dirs = append(s.dirs, d)
	}
}

var secretWords = regexp.MustCompile(`(?i)(SECRET|TOKEN|PASSW|PASSPHRASE|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL|PGPASS|_PWD$|_PASS$|_KEY$)`)

// secretName says whether a variable's name promises a secret.
func secretName(name string) bool { return secretWords.MatchString(name) }
