package guard

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// counter names the variable that a loop like for ((i=0; …)) begins with.
func counter(init syntax.ArithmExpr) string {
	if b, ok := init.(*syntax.BinaryArithm); ok {
		if name, ok := b.X.(*syntax.Word); ok && isName(name.Lit()) {
			return name.Lit()
		}
	}
	return ""
}

// tame says whether an expression can only become a number that the text decides or counts: it reads no output of commands
// and no variable that may hold anything.
func (w *walker) tame(x syntax.ArithmExpr) bool {
	if x == nil {
		return true
	}
	ok := true
	syntax.Walk(x, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CmdSubst, *syntax.ProcSubst:
			ok = false
		case *syntax.ParamExp:
			ok = ok && (n.Length || n.Param != nil && (w.sc.tame[n.Param.Value] || n.Param.Value == "RANDOM"))
			return false
		case *syntax.Word:
			if name := n.Lit(); isName(name) {
				v, known := w.sc.lookup(name)
				known = known && !strings.Contains(strings.Join(v, ""), unknown)
				ok = ok && (known || w.sc.tame[name] || name == "RANDOM")
			}
		}
		return ok
	})
	return ok
}
