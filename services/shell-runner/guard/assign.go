package guard

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

func (w *walker) declare(x *syntax.DeclClause) {
	exported := x.Variant.Value == "export"
	print := true
	for _, a := range x.Args {
		switch {
		case a.Name == nil && a.Value != nil:
			flag := w.one(a.Value)
			if strings.HasPrefix(flag.text, "-") {
				exported = exported || strings.Contains(flag.text, "x")
				if strings.ContainsAny(flag.text, "n") && x.Variant.Value != "export" {
					w.addWord(medium, "indirect-variable", flag)
				}
				if strings.Contains(flag.text, "f") && x.Variant.Value == "export" {
					w.addWord(medium, "exports-function", flag)
					print = false
				}
				continue
			}
			print = false
			name, value, ok := strings.Cut(flag.text, "=")
			if strings.Contains(flag.text, "$(") || strings.Contains(flag.text, "`") || strings.Contains(name, unknown) {
				w.addWord(high, "computed-code", flag)
			} else if ok {
				w.assign(name, []string{value}, flag)
			}
		default:
			print = false
			if a.Naked {
				if exported && influence(a.Name.Value) > low {
					w.add(medium, "changes-environment", a)
				}
				continue
			}
			w.assignment(a)
		}
	}
	if print && (exported || x.Variant.Value == "declare" || x.Variant.Value == "typeset") {
		w.add(medium, "shows-secrets", x)
	}
}

// assignment judges NAME=value and remembers the value.
func (w *walker) assignment(a *syntax.Assign) {
	if a.Name == nil {
		return
	}
	name := a.Name.Value
	if a.Index != nil {
		w.arithmetic(a.Index)
	}
	start, end := w.span(a)
	subject := word{text: name, start: start, end: end}
	if a.Array != nil {
		var values []string
		whole := !a.Append
		for _, e := range a.Array.Elems {
			if e.Index != nil {
				w.arithmetic(e.Index)
				whole = false
			}
			for _, f := range w.fields(e.Value) {
				values = append(values, f.text)
				whole = whole && !f.loose && !f.glob
			}
		}
		if !whole || len(values) == 0 {
			values = nil
		}
		w.assign(name, values, subject)
		return
	}
	value := w.one(a.Value)
	values := []string{value.text}
	if a.Append {
		old, ok := w.sc.lookup(name)
		if ok && len(old) == 1 {
			values[0] = old[0] + values[0]
		} else {
			values[0] = unknown + values[0]
		}
	}
	if a.Index != nil {
		values = nil
	}
	w.assign(name, values, subject)
	if a.Index == nil && !a.Append && !value.data {
		w.sc.tame[name] = true
	}
}

// assign remembers a value and judges what the variable makes of later commands.
func (w *walker) assign(name string, values []string, at word) {
	text := unknown
	if values != nil {
		text = strings.Join(values, " ")
	}
	if l := influence(name); l > low {
		code := "changes-environment"
		switch {
		case name == "PATH" || name == "CDPATH":
			l = pathRisk(text)
		case name[0] == 'P' && name[1] == 'S' && len(name) == 3:
			if strings.ContainsAny(text, "`") || strings.Contains(text, "$(") || strings.Contains(text, unknown) {
				l = high
			}
		}
		if l == high {
			code = "runs-through-environment"
		}
		if l > low {
			w.addWord(l, code, at)
		}
	}
	if hidesCode(text) {
		w.addWord(high, "computed-code", at)
	}
	if commandVariables[name] && values != nil {
		w.code(at.with(text))
	}
	w.sc.set(name, values)
}
