package guard

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

func (w *walker) binary(x *syntax.BinaryCmd) {
	if x.Op == syntax.AndStmt || x.Op == syntax.OrStmt {
		w.stmt(x.X)
		w.branch(func() { w.stmt(x.Y) })
		return
	}
	// A pipe: each side is a shell of its own.
	w.isolated(func() {
		w.sc.listed = w.sc.listed || takesNames(x.Y)
		w.sc.namesOnly = showsNames(x.Y)
		w.stmt(x.X)
	})
	text, ok := w.constant([]*syntax.Stmt{x.X})
	w.isolated(func() {
		w.sc.stdin = source{kind: fromPipe}
		if ok {
			w.sc.stdin = source{fromText, text}
		}
		w.stmt(x.Y)
	})
}

// showsNames says whether a part of a pipe shows no values of NAME=value: it counts, or cuts them off.
func showsNames(s *syntax.Stmt) bool {
	call, ok := s.Cmd.(*syntax.CallExpr)
	if !ok || len(s.Redirs) > 0 {
		return false
	}
	var args []string
	for _, a := range call.Args {
		args = append(args, a.Lit())
	}
	switch line := strings.Join(args, " "); line {
	case "wc -l", "cut -d= -f1", "cut -f1 -d=", "cut -d = -f 1":
		return true
	default:
		return strings.HasPrefix(line, "grep -c ") || strings.HasPrefix(line, "grep -q ")
	}
}

// takesNames says whether a part of a pipe reads names and works on what they name.
func takesNames(s *syntax.Stmt) bool {
	switch x := s.Cmd.(type) {
	case *syntax.CallExpr:
		return isCall(s, "xargs", "parallel", "cpio", "tar", "zip")
	case *syntax.BinaryCmd:
		return takesNames(x.X) || takesNames(x.Y)
	case *syntax.WhileClause, *syntax.ForClause:
		return true
	}
	return false
}
