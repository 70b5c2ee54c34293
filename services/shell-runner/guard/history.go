package guard

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// history finds what an interactive bash with history expansion replaces by earlier commands: `!!`, `!rm`, `^a^b`. Butler's
// shells have it off, a shell that a person started inside one may not.
func (c *check) history(text string, file *syntax.File) {
	for start := 0; start < len(text); {
		end := strings.IndexByte(text[start:], '\n')
		if end < 0 {
			end = len(text) - start
		}
		if line := text[start : start+end]; len(line) > 1 && line[0] == '^' {
			c.add(high, "history-expansion", start, start+end, line)
		}
		start += end + 1
	}
	if !strings.Contains(text, "!") {
		return
	}
	quiet := make([]bool, len(text)+1)
	mark := func(a, b syntax.Pos) {
		for i := int(a.Offset()); i < int(b.Offset()) && i < len(text); i++ {
			quiet[i] = true
		}
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.SglQuoted:
			mark(n.Pos(), n.End())
		case *syntax.Comment:
			mark(n.Pos(), n.End())
		case *syntax.Redirect:
			if n.Hdoc != nil {
				mark(n.Hdoc.Pos(), n.Hdoc.End())
			}
		case *syntax.ParamExp:
			if n.Excl {
				mark(n.Pos(), n.End())
			}
		case *syntax.ExtGlob:
			mark(n.Pos(), n.End())
		}
		return true
	})
	for i := 0; i < len(text); i++ {
		if text[i] != '!' || quiet[i] || i+1 >= len(text) || strings.IndexByte(" \t\n=(\"';&|)", text[i+1]) >= 0 {
			continue
		}
		if i > 0 && (text[i-1] == '\\' || text[i-1] == '$' || text[i-1] == '[' || text[i-1] == '{') {
			continue
		}
		end := i + 1
		for end < len(text) && strings.IndexByte(" \t\n;|&", text[end]) < 0 {
			end++
		}
		c.add(high, "history-expansion", i, end, text[i:end])
		i = end
	}
}
