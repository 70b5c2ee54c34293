package guard

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// constant gives what a command prints, for the few that print what stands in the text: echo, printf, seq, cat of a
// heredoc.
func (w *walker) constant(list []*syntax.Stmt) (string, bool) {
	if len(list) != 1 || w.c.depth > maxDepth {
		return "", false
	}
	s := list[0]
	call, ok := s.Cmd.(*syntax.CallExpr)
	if !ok || len(call.Args) == 0 || len(call.Assigns) > 0 || s.Background {
		return "", false
	}
	// Resolving words again would add the reasons of their substitutions again: only plain ones are.
	for _, a := range call.Args {
		plain := true
		syntax.Walk(a, func(n syntax.Node) bool {
			switch n.(type) {
			case *syntax.CmdSubst, *syntax.ProcSubst, *syntax.ArithmExp:
				plain = false
			}
			return plain
		})
		if !plain {
			return "", false
		}
	}
	args := w.many(call.Args)
	for _, a := range args {
		if !a.known() || a.glob {
			return "", false
		}
	}
	if len(args) == 0 {
		return "", false
	}
	if args[0].text == "cat" && len(args) == 1 && len(s.Redirs) == 1 {
		switch r := s.Redirs[0]; r.Op {
		case syntax.Hdoc, syntax.DashHdoc:
			text := w.one(r.Hdoc)
			return text.text, text.known()
		case syntax.WordHdoc:
			text := w.one(r.Word)
			return text.text + "\n", text.known()
		}
	}
	if len(s.Redirs) > 0 {
		return "", false
	}
	switch args[0].text {
	case "echo":
		return echoed(args[1:])
	case "printf":
		return printed(args[1:])
	case "seq":
		return counted(args[1:])
	case "pwd":
		v, ok := w.sc.lookup("PWD")
		return strings.Join(v, ""), ok && len(args) == 1
	}
	return "", false
}

// counted gives what seq prints for up to three whole numbers.
func counted(args []word) (string, bool) {
	n := []int{1, 1, 0} // from, step, to
	if len(args) == 0 || len(args) > 3 {
		return "", false
	}
	for i, a := range args {
		v, err := strconv.Atoi(a.text)
		if err != nil || v > 1e6 || v < -1e6 {
			return "", false
		}
		switch {
		case i == len(args)-1:
			n[2] = v
		default:
			n[i] = v
		}
	}
	if n[1] == 0 || (n[2]-n[0])/n[1] > maxFields {
		return "", false
	}
	var out strings.Builder
	for v := n[0]; n[1] > 0 && v <= n[2] || n[1] < 0 && v >= n[2]; v += n[1] {
		out.WriteString(strconv.Itoa(v))
		out.WriteByte('\n')
	}
	return out.String(), true
}

func echoed(args []word) (string, bool) {
	end, escapes := "\n", false
	for len(args) > 0 && len(args[0].text) > 1 && args[0].text[0] == '-' && strings.Trim(args[0].text[1:], "neE") == "" {
		if strings.Contains(args[0].text, "n") {
			end = ""
		}
		escapes = escapes || strings.Contains(args[0].text, "e")
		args = args[1:]
	}
	var words []string
	for _, a := range args {
		words = append(words, a.text)
	}
	text := strings.Join(words, " ")
	if escapes {
		text = ansiC(text)
	}
	return text + end, true
}

func printed(args []word) (string, bool) {
	if len(args) == 0 || strings.HasPrefix(args[0].text, "-") {
		return "", false
	}
	format := ansiC(args[0].text)
	args = args[1:]
	var out strings.Builder
	for {
		used := false
		for i := 0; i < len(format); i++ {
			if format[i] != '%' {
				out.WriteByte(format[i])
				continue
			}
			i++
			switch {
			case i < len(format) && format[i] == '%':
				out.WriteByte('%')
			case i < len(format) && format[i] == 's':
				if len(args) > 0 {
					out.WriteString(args[0].text)
					args = args[1:]
				}
				used = true
			default:
				return "", false
			}
		}
		if !used || len(args) == 0 || out.Len() > MaxText {
			return out.String(), out.Len() <= MaxText
		}
	}
}
