package guard

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// check is one judgement in progress.
type check struct {
	g     *Guard
	req   *Request
	home  string
	dir   string
	out   *Result
	level level
	all   []scored
	steps int
	bytes int
	depth int  // of statements
	texts int  // within texts
	over  bool // a bound was passed
	// written are the files that the line has written so far: running one runs what nobody has seen.
	written map[string]bool
}

type scored struct {
	Reason
	level level
}

// step counts work, and says whether there may be more.
func (c *check) step() bool {
	c.steps++
	if c.steps > maxSteps {
		c.over = true
	}
	return !c.over
}

func (c *check) add(l level, code string, start, end int, subject string) {
	c.level = max(c.level, l)
	if l == low {
		return
	}
	for i, r := range c.all {
		if r.Code == code && r.Start == start && r.End == end {
			c.all[i].level = max(r.level, l)
			return
		}
	}
	if len(c.all) >= 4*maxReasons {
		return
	}
	text := c.g.tables.reasons[code]
	if subject == "" {
		subject = "…"
	}
	subject = visible(short(subject, 60))
	c.all = append(c.all, scored{level: l, Reason: Reason{
		Code: code, Start: start, End: end,
		Text:   strings.ReplaceAll(text.en, "{}", subject),
		TextZH: strings.ReplaceAll(text.zh, "{}", subject),
	}})
}

func short(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// walker walks one parsed text.
type walker struct {
	c     *check
	sc    *scope
	fixed bool // the text is not the line itself: everything in it has the span start, end
	start int
	end   int
	far   bool // runs on another host or in a container
}

func (w *walker) span(n syntax.Node) (int, int) {
	if w.fixed {
		return w.start, w.end
	}
	start, end := int(n.Pos().Offset()), int(n.End().Offset())
	if end < start {
		end = start
	}
	return min(start, len(w.c.req.Text)), min(end, len(w.c.req.Text))
}

func (w *walker) add(l level, code string, n syntax.Node) {
	start, end := w.span(n)
	subject := ""
	if !w.fixed {
		subject = w.c.req.Text[start:end]
	}
	w.c.add(l, code, start, end, subject)
}

func (w *walker) addWord(l level, code string, x word) { w.c.add(l, code, x.start, x.end, x.shown()) }

// inner judges a text within the text: the argument of sh -c, of eval, of a trap, an alias.
func (w *walker) inner(text string, x word, sc *scope) {
	if !w.c.step() {
		return
	}
	if strings.Contains(text, unknown) {
		// The parts that are not known become the value of a variable nobody has set: as words they are unknown again.
		text = strings.ReplaceAll(text, unknown, "${_}")
	}
	w.c.bytes += len(text)
	if w.c.texts >= maxTexts || w.c.bytes > maxParsed {
		w.c.over = true
		return
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		w.c.add(high, "inner-unreadable", x.start, x.end, text)
		return
	}
	w.c.texts++
	v := &walker{c: w.c, sc: sc, fixed: true, start: x.start, end: x.end, far: w.far}
	v.stmts(file.Stmts)
	w.c.texts--
}

func (w *walker) stmts(list []*syntax.Stmt) {
	for _, s := range list {
		w.stmt(s)
	}
}

func (w *walker) stmt(s *syntax.Stmt) {
	if s == nil || !w.c.step() {
		return
	}
	w.c.depth++
	defer func() { w.c.depth-- }()
	if w.c.depth > maxDepth {
		w.c.over = true
		return
	}
	if s.Background && w.sc.inLoop {
		w.add(high, "endless-jobs", s)
	}
	stdin := w.sc.stdin
	w.sc.namesOnly = w.sc.namesOnly && len(s.Redirs) == 0
	w.redirects(s.Redirs)
	if s.Background || s.Coprocess {
		w.isolated(func() { w.command(s.Cmd, s) })
	} else {
		w.command(s.Cmd, s)
	}
	w.sc.stdin = stdin
}

func (w *walker) command(cmd syntax.Command, s *syntax.Stmt) {
	switch x := cmd.(type) {
	case nil:
	case *syntax.CallExpr:
		w.call(x)
	case *syntax.BinaryCmd:
		w.binary(x)
	case *syntax.Subshell:
		w.isolated(func() { w.stmts(x.Stmts) })
	case *syntax.Block:
		w.stmts(x.Stmts)
	case *syntax.IfClause:
		w.ifClause(x)
	case *syntax.WhileClause:
		w.while(x)
	case *syntax.ForClause:
		w.forClause(x)
	case *syntax.CaseClause:
		w.one(x.Word)
		for _, item := range x.Items {
			for _, p := range item.Patterns {
				w.one(p)
			}
			w.branch(func() { w.stmts(item.Stmts) })
		}
	case *syntax.FuncDecl:
		w.function(x)
	case *syntax.DeclClause:
		w.declare(x)
	case *syntax.TestClause:
		w.test(x.X)
	case *syntax.ArithmCmd:
		w.arithmetic(x.X)
	case *syntax.LetClause:
		for _, e := range x.Exprs {
			w.arithmetic(e)
		}
	case *syntax.TimeClause:
		w.stmt(x.Stmt)
	case *syntax.CoprocClause:
		w.add(medium, "background-pipe", s)
		if x.Name != nil {
			w.one(x.Name)
		}
		w.isolated(func() { w.stmt(x.Stmt) })
	default:
		w.add(high, "unreadable", s)
	}
}

func (w *walker) ifClause(x *syntax.IfClause) {
	for x != nil {
		w.stmts(x.Cond)
		w.branch(func() { w.stmts(x.Then) })
		if x.Else != nil && len(x.Else.Cond) == 0 {
			w.branch(func() { w.stmts(x.Else.Then) })
			return
		}
		x = x.Else
	}
}

func (w *walker) while(x *syntax.WhileClause) {
	w.forgetAssigned(x)
	endless := len(x.Cond) == 1 && (isCall(x.Cond[0], "true", ":") && !x.Until || isCall(x.Cond[0], "false") && x.Until)
	w.branch(func() {
		w.sc.inLoop = w.sc.inLoop || endless
		w.stmts(x.Cond)
		w.stmts(x.Do)
		w.sc.inLoop = false
	})
}

func isCall(s *syntax.Stmt, names ...string) bool {
	call, ok := s.Cmd.(*syntax.CallExpr)
	if !ok || len(call.Args) == 0 {
		arithm, ok := s.Cmd.(*syntax.ArithmCmd)
		return ok && arithm.X != nil && slices.Contains(names, "true")
	}
	return slices.Contains(names, call.Args[0].Lit())
}

func (w *walker) forClause(x *syntax.ForClause) {
	w.forgetAssigned(x)
	endless := false
	switch loop := x.Loop.(type) {
	case *syntax.WordIter:
		var items []word
		for _, item := range loop.Items {
			items = append(items, w.fields(item)...)
		}
		start, end := w.span(loop.Name)
		name := word{text: loop.Name.Value, start: start, end: end}
		for _, item := range items {
			if influence(name.text) > low || hidesCode(item.text) {
				w.assign(name.text, []string{item.text}, name)
			}
		}
		w.branch(func() {
			w.sc.set(loop.Name.Value, nil)
			// What a pattern matches is not in the text.
			listed := len(items) > 0 && !slices.ContainsFunc(items, func(x word) bool { return x.data || x.glob })
			// Few constants are judged one after the other.
			if len(items) > 0 && len(items) <= 8 && !slices.ContainsFunc(items, func(x word) bool { return !x.known() || x.glob }) {
				for _, item := range items {
					w.sc.set(loop.Name.Value, []string{item.text})
					w.sc.tame[loop.Name.Value] = listed
					w.stmts(x.Do)
				}
				return
			}
			if prefix, ok := commonPlace(items); ok {
				w.sc.set(loop.Name.Value, []string{prefix})
			}
			w.sc.tame[loop.Name.Value] = listed
			w.stmts(x.Do)
		})
		return
	case *syntax.CStyleLoop:
		w.arithmetic(loop.Init)
		w.arithmetic(loop.Cond)
		w.arithmetic(loop.Post)
		endless = loop.Cond == nil
		if name := counter(loop.Init); name != "" && !slices.Contains(assigned(x), name) {
			w.sc.tame[name] = true
			if !w.tame(loop.Init) || !w.tame(loop.Cond) || !w.tame(loop.Post) {
				delete(w.sc.tame, name)
			}
		}
	}
	w.branch(func() {
		w.sc.inLoop = w.sc.inLoop || endless
		w.stmts(x.Do)
		w.sc.inLoop = false
	})
}

// commonPlace gives what is known of the file names that the only word of a loop's list becomes.
func commonPlace(items []word) (string, bool) {
	if len(items) != 1 || !items[0].glob || !items[0].known() {
		return "", false
	}
	i := strings.IndexAny(items[0].text, "*?[")
	if i <= 0 {
		return "", false
	}
	return items[0].text[:i] + unknown, true
}

// function judges a definition: its body, with nothing known of what it will be called with.
func (w *walker) function(x *syntax.FuncDecl) {
	name := ""
	if x.Name != nil {
		name = x.Name.Value
	}
	start, end := w.span(x)
	if w.bomb(x, name) {
		w.c.add(critical, "fork-bomb", start, end, name)
	}
	l := medium
	if w.c.g.tables.programs[name] != nil || builtins[name] {
		l = high
	}
	w.c.add(l, map[level]string{medium: "defines-function", high: "shadows-command"}[l], start, end, name)
	names := assigned(x.Body)
	w.sc.functions[name] = names
	w.isolated(func() {
		for v := range w.sc.vars {
			if v != "HOME" {
				w.sc.vars[v] = nil
			}
		}
		w.sc.positional = nil
		w.sc.stdin = source{kind: fromPipe}
		w.stmt(x.Body)
	})
}

// bomb says whether a function starts itself more than once, or in the background.
func (w *walker) bomb(x *syntax.FuncDecl, name string) bool {
	if name == "" {
		return false
	}
	calls, background := 0, false
	syntax.Walk(x.Body, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CallExpr:
			if len(n.Args) > 0 && n.Args[0].Lit() == name {
				calls++
			}
		case *syntax.Stmt:
			background = background || n.Background
		case *syntax.BinaryCmd:
			background = background || n.Op == syntax.Pipe || n.Op == syntax.PipeAll
		}
		return true
	})
	return calls > 1 || calls == 1 && background
}

// forgetAssigned forgets what a loop's body assigns: its later rounds see it from the start.
func (w *walker) forgetAssigned(n syntax.Node) { w.sc.forget(assigned(n)...) }

// assigned names the variables that a part of the text may assign.
func assigned(n syntax.Node) []string {
	var names []string
	syntax.Walk(n, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Assign:
			if n.Name != nil {
				names = append(names, n.Name.Value)
			}
		case *syntax.WordIter:
			names = append(names, n.Name.Value)
		case *syntax.ParamExp:
			if n.Exp != nil && n.Param != nil && (n.Exp.Op == syntax.AssignUnset || n.Exp.Op == syntax.AssignUnsetOrNull) {
				names = append(names, n.Param.Value)
			}
		case *syntax.CallExpr:
			if len(n.Args) > 0 {
				switch n.Args[0].Lit() {
				case "read", "mapfile", "readarray", "printf", "getopts", "unset", "eval", "source", ".", "builtin", "command":
					for _, a := range n.Args[1:] {
						if l := a.Lit(); l != "" {
							names = append(names, l)
						}
					}
				}
			}
		}
		return len(names) < 500
	})
	return names
}

// arithmetic walks an expression: it may hold substitutions, and the shell evaluates the values of variables as
// expressions too, whose indexes may hold substitutions.
func (w *walker) arithmetic(x syntax.ArithmExpr) {
	if x == nil {
		return
	}
	syntax.Walk(x, func(n syntax.Node) bool {
		if n == nil || !w.c.step() {
			return false
		}
		switch n := n.(type) {
		case *syntax.Word:
			v := w.one(n)
			if hasSubstitution(v.text) {
				w.add(high, "computed-code", n)
			}
			if values, ok := w.sc.lookup(v.text); ok && hasSubstitution(strings.Join(values, " ")) {
				w.add(high, "computed-code", n)
			}
			return false
		case *syntax.BinaryArithm:
			if word, ok := n.X.(*syntax.Word); ok && strings.HasSuffix(n.Op.String(), "=") {
				w.sc.forget(word.Lit())
				if influence(word.Lit()) > low {
					w.add(medium, "changes-environment", n)
				}
			}
		case *syntax.UnaryArithm:
			if word, ok := n.X.(*syntax.Word); ok && (n.Op == syntax.Inc || n.Op == syntax.Dec) {
				w.sc.forget(word.Lit())
			}
		}
		return true
	})
}

func hasSubstitution(s string) bool { return strings.Contains(s, "$(") || strings.ContainsAny(s, "`") }

func (w *walker) test(x syntax.TestExpr) {
	switch x := x.(type) {
	case *syntax.Word:
		w.one(x)
	case *syntax.ParenTest:
		w.test(x.X)
	case *syntax.UnaryTest:
		w.test(x.X)
		if word, ok := x.X.(*syntax.Word); ok && x.Op == syntax.TsVarSet && hasSubstitution(w.one(word).text) {
			w.add(high, "computed-code", x)
		}
	case *syntax.BinaryTest:
		w.test(x.X)
		w.test(x.Y)
		switch x.Op {
		case syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr:
			for _, e := range []syntax.TestExpr{x.X, x.Y} {
				if word, ok := e.(*syntax.Word); ok && hasSubstitution(w.one(word).text) {
					w.add(high, "computed-code", x)
				}
			}
		}
	}
}

// substitutions walks the commands in a word that is not resolved.
func (w *walker) substitutions(x *syntax.Word) {
	syntax.Walk(x, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CmdSubst:
			w.isolated(func() { w.stmts(n.Stmts) })
			return false
		case *syntax.ProcSubst:
			w.isolated(func() { w.stmts(n.Stmts) })
			return false
		}
		return w.c.step()
	})
}

// substituted walks $(…) and gives its output where the text decides it.
func (w *walker) substituted(x *syntax.CmdSubst) (string, bool) {
	w.isolated(func() {
		w.sc.stdin = source{}
		w.stmts(x.Stmts)
	})
	text, ok := w.constant(x.Stmts)
	return strings.TrimRight(text, "\n"), ok
}
