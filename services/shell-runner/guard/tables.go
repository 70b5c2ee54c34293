package guard

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
)

//go:embed rules/*.rules rules/reasons.txt
var ruleFiles embed.FS

// tables are what the folder rules says; rules/README.md tells its grammar.
type tables struct {
	programs map[string]*program
	reasons  map[string]reasonText
}

type reasonText struct{ en, zh string }

// program is what the tables know of one program.
type program struct {
	name    string
	why     string          // code of reasons where a rule names none
	values  map[string]bool // options whose value is the next argument
	whole   map[string]bool // long options that stand in the rules
	single  bool            // long options have one dash
	bundle  bool            // the first argument may be flags without a dash (tar, ps)
	careful bool            // an argument that is not known could be an option that runs something
	first   bool            // options end at the first operand
	uses    use             // what becomes of operands
	writes  []string        // options whose value is a path that is written
	outputs []string        // the same, of a build: a fault only outside the project
	points  []string        // options whose value is a folder or file whose code or settings are used
	checks  []string        // names of functions in Go that look further
	rules   []rule
	subs    bool // some rule names a subcommand
	wrap    *wrapper
}

// use is what a program does with its operands.
type use int

const (
	usesReads   use = iota // reads them: a secret one is asked about
	usesNames              // looks at names and attributes, or prints the words
	usesWrites             // writes or changes them
	usesRemoves            // removes them
	usesCopies             // writes the last, or the value of -t, and reads the others
)

// rule is one line of a program: the last that matches decides.
type rule struct {
	level   level
	subs    [][]string // alternatives for the first operands
	with    [][]string // for each, one of the arguments must be there
	without []string   // none of these may be there
	only    []string   // no option but these; nil for any
	each    []string   // every operand is one of these, and there is one; nil for any
	bare    bool       // no argument at all
	noOps   bool       // no operand
	code    string
}

// wrapper is how a program runs another one that its arguments name.
type wrapper struct {
	flags  map[string]bool // known options; true when a value follows
	skip   int             // operands before the command
	assign bool            // NAME=value may stand before the command
	text   bool            // the rest is joined and read by a shell
	inline []string        // options whose value is read by a shell
	more   bool            // arguments unknown to us are added (xargs)
	remote bool            // runs elsewhere: paths of here do not count
	level  level           // at least this
	bare   level           // without a command
	single bool            // options have no clusters
}

var loadTables = sync.OnceValues(func() (*tables, error) {
	t := &tables{programs: map[string]*program{}, reasons: map[string]reasonText{}}
	data, err := ruleFiles.ReadFile("rules/reasons.txt")
	if err != nil {
		return nil, err
	}
	if err := t.parseReasons(string(data)); err != nil {
		return nil, err
	}
	files, err := ruleFiles.ReadDir("rules")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if path.Ext(f.Name()) != ".rules" {
			continue
		}
		data, err := ruleFiles.ReadFile("rules/" + f.Name())
		if err != nil {
			return nil, err
		}
		if err := t.parse(string(data)); err != nil {
			return nil, fmt.Errorf("rules/%s: %w", f.Name(), err)
		}
	}
	return t, nil
})

func (t *tables) parseReasons(text string) error {
	for n, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		parts := strings.Split(line, " | ")
		if len(parts) != 3 {
			return fmt.Errorf("rules/reasons.txt:%d: want `code | English | Chinese`", n+1)
		}
		code := strings.TrimSpace(parts[0])
		if _, twice := t.reasons[code]; twice {
			return fmt.Errorf("rules/reasons.txt:%d: %s stands there twice", n+1, code)
		}
		t.reasons[code] = reasonText{strings.TrimSpace(parts[1]), strings.TrimSpace(parts[2])}
	}
	return nil
}

func (t *tables) parse(text string) error {
	var current []*program
	for n, line := range strings.Split(text, "\n") {
		if i := strings.Index(line, "# "); i >= 0 && strings.TrimSpace(line[:i]) == "" {
			continue
		}
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		var err error
		if line[0] != ' ' && line[0] != '\t' {
			current, err = t.begin(words)
		} else {
			for _, p := range current {
				if err = t.directive(p, words); err != nil {
					break
				}
			}
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	return nil
}

func (t *tables) begin(names []string) ([]*program, error) {
	var all []*program
	for _, name := range names {
		if t.programs[name] != nil {
			return nil, fmt.Errorf("%s stands there twice", name)
		}
		p := &program{name: name, why: "changes-state", values: map[string]bool{}, whole: map[string]bool{}}
		t.programs[name] = p
		all = append(all, p)
	}
	return all, nil
}

var levelNames = map[string]level{"run": low, "ask": medium, "danger": high, "never": critical}

func (t *tables) directive(p *program, words []string) error {
	key, args := words[0], words[1:]
	switch key {
	case "why":
		if len(args) != 1 || t.reasons[args[0]].en == "" {
			return fmt.Errorf("why: no such reason: %v", args)
		}
		p.why = args[0]
	case "values":
		for _, a := range args {
			p.values[a] = true
		}
	case "single":
		p.single = true
	case "bundle":
		p.bundle = true
	case "careful":
		p.careful = true
	case "first":
		p.first = true
	case "operands":
		uses := map[string]use{
			"read": usesReads, "named": usesNames, "written": usesWrites, "removed": usesRemoves, "copied": usesCopies,
		}
		u, ok := uses[strings.Join(args, " ")]
		if !ok {
			return fmt.Errorf("operands: unknown use %v", args)
		}
		p.uses = u
	case "writes":
		p.writes = append(p.writes, args...)
		for _, a := range args {
			p.values[a] = true
		}
	case "outputs":
		p.outputs = append(p.outputs, args...)
		for _, a := range args {
			p.values[a] = true
		}
	case "points":
		p.points = append(p.points, args...)
		for _, a := range args {
			p.values[a] = true
		}
	case "check":
		for _, a := range args {
			if checks[a] == nil {
				return fmt.Errorf("check: no function %q", a)
			}
		}
		p.checks = append(p.checks, args...)
	case "wrapper":
		return t.wrapper(p, args)
	case "flags":
		if p.wrap == nil {
			return fmt.Errorf("flags stand after wrapper")
		}
		for _, a := range args {
			name, value := strings.CutSuffix(a, ":")
			p.wrap.flags[name] = value
		}
	case "inline":
		if p.wrap == nil {
			return fmt.Errorf("inline stands after wrapper")
		}
		for _, a := range args {
			p.wrap.flags[a] = true
		}
		p.wrap.inline = append(p.wrap.inline, args...)
	default:
		l, ok := levelNames[key]
		if !ok {
			return fmt.Errorf("unknown word %q", key)
		}
		return t.rule(p, l, args)
	}
	return nil
}

func (t *tables) wrapper(p *program, args []string) error {
	w := &wrapper{flags: map[string]bool{}, bare: medium}
	p.wrap = w
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "skip":
			w.skip = len(value)
		case "assign":
			w.assign = true
		case "text":
			w.text = true
		case "more":
			w.more = true
		case "remote":
			w.remote = true
		case "single":
			w.single = true
		case "least":
			w.level = levelNames[value]
		case "bare":
			w.bare = levelNames[value]
		default:
			return fmt.Errorf("wrapper: unknown word %q", a)
		}
	}
	return nil
}

func (t *tables) rule(p *program, l level, words []string) error {
	r := rule{level: l}
	mode := "subs"
	for i := 0; i < len(words); i++ {
		switch word := words[i]; word {
		case "with":
			r.with = append(r.with, nil)
			mode = word
		case "without":
			mode = word
		case "only":
			mode = word
			r.only = []string{}
		case "each":
			mode = word
			r.each = []string{}
		case "bare":
			r.bare = true
		case "no-operands":
			r.noOps = true
		case "->":
			if i+2 != len(words) {
				return fmt.Errorf("one reason stands after ->")
			}
			r.code = words[i+1]
			i++
		default:
			switch mode {
			case "subs":
				r.subs = append(r.subs, strings.Split(word, "|"))
				p.subs = true
			case "with":
				r.with[len(r.with)-1] = append(r.with[len(r.with)-1], word)
			case "without":
				r.without = append(r.without, word)
			case "only":
				r.only = append(r.only, word)
			case "each":
				r.each = append(r.each, strings.Split(word, "|")...)
			}
		}
	}
	if r.code == "" {
		r.code = p.why
	}
	if t.reasons[r.code].en == "" {
		return fmt.Errorf("no reason %q in reasons.txt", r.code)
	}
	for _, list := range append(r.with, r.without, r.only) {
		for _, token := range list {
			if strings.HasPrefix(token, "--") {
				p.whole[token] = true
			}
		}
	}
	p.rules = append(p.rules, r)
	return nil
}

// names gives all names of the tables, in order.
func (t *tables) names() []string {
	var names []string
	for name := range t.programs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
