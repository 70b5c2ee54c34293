package guard

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// unknown stands in a resolved word for each part that only the shell can know. No text has this byte: NUL is refused.
const unknown = "\x00"

// word is one argument as the shell would pass it, as far as the text decides it.
type word struct {
	text       string
	glob       bool // the shell will look for file names
	loose      bool // an unquoted part is not known: it may become several words, or options, or nothing
	computed   bool // came out of an expansion, known or not
	substs     bool // has the output of a command in it
	process    bool // has the name of a pipe to a command in it: <(…)
	quoted     bool // some part was quoted or escaped
	secret     bool // has the value of a variable in it whose name says that it is secret
	data       bool // an unknown part may hold anything: output, input, a variable; not a number or one of the text's words
	start, end int  // byte span in the text of the frame
}

func (w word) known() bool { return !strings.Contains(w.text, unknown) }

// with gives the same word with another text: a part of it.
func (w word) with(text string) word {
	w.text = text
	return w
}

// shown is the word for people.
func (w word) shown() string { return strings.ReplaceAll(w.text, unknown, "…") }

// fields resolves a word into the arguments it becomes.
func (w *walker) fields(x *syntax.Word) []word {
	if x == nil || !w.c.step() {
		return nil
	}
	variants, ok := w.braces(x)
	start, end := w.span(x)
	if !ok {
		w.substitutions(x)
		return []word{{text: unknown, loose: true, computed: true, data: true, start: start, end: end}}
	}
	var all []word
	for _, parts := range variants {
		b := fieldBuilder{w: w, ifs: w.sc.ifs()}
		b.parts(parts, false)
		for _, f := range b.done() {
			if len(all) == maxFields {
				return append(all[:maxFields-1], word{text: unknown, loose: true, computed: true, data: true, start: start, end: end})
			}
			f.start, f.end = start, end
			f.computed = f.computed || len(variants) > 1
			all = append(all, f)
		}
	}
	w.c.steps += len(all)
	return all
}

// one resolves a word that is not split: a redirect's target, the value of an assignment, a word of case.
func (w *walker) one(x *syntax.Word) word {
	if x == nil || !w.c.step() {
		return word{}
	}
	b := fieldBuilder{w: w}
	b.parts(x.Parts, true)
	out := word{}
	for _, f := range b.done() {
		out.text += f.text
		out.glob = out.glob || f.glob
		out.loose = out.loose || f.loose
		out.computed = out.computed || f.computed
		out.substs = out.substs || f.substs
		out.process = out.process || f.process
		out.quoted = out.quoted || f.quoted
		out.secret = out.secret || f.secret
		out.data = out.data || f.data
	}
	out.start, out.end = w.span(x)
	return out
}

func (w *walker) many(xs []*syntax.Word) []word {
	var all []word
	for _, x := range xs {
		all = append(all, w.fields(x)...)
		if len(all) > 4*maxFields {
			w.c.over = true
			break
		}
	}
	return all
}

// braces expands {a,b} and {1..9} into lists of word parts; false when there are too many.
func (w *walker) braces(x *syntax.Word) ([][]syntax.WordPart, bool) {
	has := false
	for _, p := range x.Parts {
		if l, ok := p.(*syntax.Lit); ok && strings.Contains(l.Value, "{") {
			has = true
		}
	}
	if !has {
		return [][]syntax.WordPart{x.Parts}, true
	}
	copied := &syntax.Word{Parts: append([]syntax.WordPart(nil), x.Parts...)}
	syntax.SplitBraces(copied)
	return expandBraces(copied.Parts, 0)
}

const maxBraces = 64

func expandBraces(parts []syntax.WordPart, depth int) ([][]syntax.WordPart, bool) {
	out := [][]syntax.WordPart{nil}
	for _, p := range parts {
		exp, ok := p.(*syntax.BraceExp)
		if !ok {
			for i := range out {
				out[i] = append(out[i][:len(out[i]):len(out[i])], p)
			}
			continue
		}
		if depth > 6 {
			return nil, false
		}
		var choices [][]syntax.WordPart
		if exp.Sequence {
			seq, ok := sequence(exp)
			if !ok {
				return nil, false
			}
			for _, s := range seq {
				choices = append(choices, []syntax.WordPart{&syntax.SglQuoted{Value: s}})
			}
		} else {
			for _, e := range exp.Elems {
				sub, ok := expandBraces(e.Parts, depth+1)
				if !ok {
					return nil, false
				}
				choices = append(choices, sub...)
			}
		}
		if len(choices)*len(out) > maxBraces {
			return nil, false
		}
		var next [][]syntax.WordPart
		for _, o := range out {
			for _, c := range choices {
				next = append(next, append(o[:len(o):len(o)], c...))
			}
		}
		out = next
	}
	return out, true
}

func sequence(exp *syntax.BraceExp) ([]string, bool) {
	if len(exp.Elems) < 2 {
		return nil, false
	}
	a, b := exp.Elems[0].Lit(), exp.Elems[1].Lit()
	step := 1
	if len(exp.Elems) > 2 {
		n, err := strconv.Atoi(exp.Elems[2].Lit())
		if err != nil || n == 0 || n > 1000 || n < -1000 {
			return nil, false
		}
		step = max(n, -n)
	}
	from, err1 := strconv.Atoi(a)
	to, err2 := strconv.Atoi(b)
	letters := false
	if err1 != nil || err2 != nil {
		if len(a) != 1 || len(b) != 1 {
			return nil, false
		}
		from, to, letters = int(a[0]), int(b[0]), true
	}
	if from < -1e9 || from > 1e9 || to < -1e9 || to > 1e9 || max(to-from, from-to)/step > maxBraces {
		return nil, false
	}
	var out []string
	if from > to {
		step = -step
	}
	for n := from; step > 0 && n <= to || step < 0 && n >= to; n += step {
		if letters {
			out = append(out, string(rune(n)))
		} else {
			out = append(out, strconv.Itoa(n))
		}
	}
	return out, true
}

// fieldBuilder collects the fields of one word.
type fieldBuilder struct {
	w     *walker
	ifs   string // of field splitting; unknown when it is not known
	cur   word
	begun bool // cur is a field even when its text is empty
	out   []word
	size  int  // bytes that came out of expansions
	tame  bool // the unknown parts that are being added are numbers, or words of the text
}

func (b *fieldBuilder) done() []word {
	b.cut()
	return b.out
}

func (b *fieldBuilder) cut() {
	if b.begun || b.cur.text != "" {
		b.out = append(b.out, b.cur)
	}
	b.cur, b.begun = word{}, false
}

// add appends text that came out of an expansion; unless quoted it is split.
func (b *fieldBuilder) add(text string, quoted, computed bool) {
	b.cur.computed = b.cur.computed || computed
	if b.size += len(text); b.size > maxWord {
		b.w.c.over = true
		return
	}
	if quoted || !computed {
		b.cur.data = b.cur.data || !b.tame && strings.Contains(text, unknown)
		b.cur.text += text
		b.begun = b.begun || quoted
		return
	}
	if b.ifs == unknown && text != "" {
		b.cur.text += unknown
		b.cur.loose, b.cur.data = true, true
		return
	}
	if strings.ContainsAny(text, "*?[") {
		b.cur.glob = true
	}
	if strings.Contains(text, unknown) {
		b.cur.loose = true
	}
	for _, r := range text {
		if strings.ContainsRune(b.ifs, r) {
			b.cut()
			if len(b.out) > maxFields {
				return
			}
			b.cur.computed = true
		} else {
			b.cur.data = b.cur.data || !b.tame && r == 0
			b.cur.text += string(r)
		}
	}
}

func (b *fieldBuilder) unknown(quoted bool) {
	b.cur.text += unknown
	b.cur.computed = true
	b.cur.data = b.cur.data || !b.tame
	b.begun = true
	b.cur.loose = b.cur.loose || !quoted
}

// parts adds the parts of a word. whole: it is not split and not globbed.
func (b *fieldBuilder) parts(parts []syntax.WordPart, whole bool) {
	for i, p := range parts {
		if l, ok := p.(*syntax.Lit); ok && i == 0 {
			b.literal(l.Value, len(parts) == 1)
			continue
		}
		b.part(p, whole, false)
	}
}

// literal adds unquoted text that begins a word: with ~.
func (b *fieldBuilder) literal(s string, last bool) {
	if strings.HasPrefix(s, "~") {
		end := strings.IndexAny(s, "/:")
		if end < 0 && (last || len(s) == 1) {
			end = len(s)
		}
		if end > 0 {
			if home, ok := b.w.tilde(s[1:end]); ok {
				b.cur.text += home
				s = s[end:]
			}
		}
	}
	b.unquoted(s)
}

func (b *fieldBuilder) unquoted(s string) {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '\\':
			b.cur.quoted = true
			i++
			if i < len(s) && s[i] != '\n' {
				out.WriteByte(s[i])
			}
		case '*', '?':
			b.cur.glob = true
			out.WriteByte(c)
		case '[':
			if strings.IndexByte(s[i:], ']') > 0 {
				b.cur.glob = true
			}
			out.WriteByte(c)
		default:
			out.WriteByte(c)
		}
	}
	b.cur.text += out.String()
}

func (b *fieldBuilder) part(p syntax.WordPart, whole, inQuotes bool) {
	w := b.w
	switch p := p.(type) {
	case *syntax.Lit:
		if inQuotes {
			b.add(unescapeDouble(p.Value), true, false)
		} else {
			b.unquoted(p.Value)
		}
	case *syntax.SglQuoted:
		b.cur.quoted, b.begun = true, true
		if p.Dollar {
			b.cur.text += ansiC(p.Value)
		} else {
			b.cur.text += p.Value
		}
	case *syntax.DblQuoted:
		b.cur.quoted, b.begun = true, true
		for _, q := range p.Parts {
			b.part(q, whole, true)
		}
	case *syntax.ParamExp:
		b.param(p, whole || inQuotes, inQuotes)
	case *syntax.CmdSubst:
		text, ok := w.substituted(p)
		b.cur.substs = true
		if ok {
			b.add(text, whole || inQuotes, true)
			b.cur.substs = true
		} else {
			b.unknown(whole || inQuotes)
		}
	case *syntax.ArithmExp:
		w.arithmetic(p.X)
		b.tame = w.tame(p.X)
		b.unknown(true)
		b.tame = false
	case *syntax.ProcSubst:
		w.isolated(func() {
			if p.Op == syntax.CmdOut {
				w.sc.stdin = source{kind: fromPipe}
			}
			w.stmts(p.Stmts)
		})
		b.cur.process = true
		b.unknown(true)
	case *syntax.ExtGlob:
		b.cur.glob = true
		b.cur.text += p.Pattern.Value
	default:
		b.unknown(whole || inQuotes)
	}
}

// param adds the value of a parameter. keep: the value is not split.
func (b *fieldBuilder) param(p *syntax.ParamExp, keep, inQuotes bool) {
	w := b.w
	if p.Param == nil {
		b.unknown(keep)
		return
	}
	name := p.Param.Value
	b.tame = p.Length || p.Exp == nil && p.Repl == nil && !p.Excl && w.sc.tame[name] || len(name) == 1 && strings.Contains("?#$!-", name)
	defer func() { b.tame = false }()
	if p.Index != nil {
		w.arithmetic(p.Index)
	}
	if p.Slice != nil {
		w.arithmetic(p.Slice.Offset)
		w.arithmetic(p.Slice.Length)
	}
	if p.Repl != nil {
		w.one(p.Repl.Orig)
		w.one(p.Repl.With)
	}
	if secretName(name) && !p.Length {
		b.cur.secret = true
	}
	if p.Length {
		b.unknown(true)
		return
	}
	v, ok := w.sc.lookup(name)
	if p.Index != nil && !wholeArray(p.Index) && name != "@" && name != "*" {
		ok = false
	}
	if p.Exp != nil {
		if p.Exp.Op == syntax.OtherParamOps {
			if p.Exp.Word != nil && p.Exp.Word.Lit() == "P" { // ${x@P} runs what stands in $x
				w.add(high, "computed-code", p)
			}
			b.unknown(keep)
			return
		}
		value := w.one(p.Exp.Word)
		if p.Exp.Op == syntax.AssignUnset || p.Exp.Op == syntax.AssignUnsetOrNull {
			start, end := w.span(p)
			w.assign(name, []string{value.text}, word{text: name, start: start, end: end})
		}
		if v, ok = b.expansion(p.Exp.Op, v, ok, name); !ok {
			b.unknown(keep)
			return
		}
	}
	if p.Excl || p.Slice != nil || p.Repl != nil || p.Names != 0 || !ok {
		b.unknown(keep)
		return
	}
	switch {
	case len(v) == 0:
		b.cur.computed = true
	case !inQuotes || name == "*":
		b.add(strings.Join(v, " "), keep, true)
	case wholeArray(p.Index) || name == "@":
		for i, s := range v {
			if i > 0 {
				b.begun = true
				b.cut()
				b.cur.computed = true
			}
			b.add(s, true, true)
		}
	default:
		b.add(v[0], true, true)
	}
}

// expansion gives the value of ${x:-y} and its like where x is known.
func (b *fieldBuilder) expansion(op syntax.ParExpOperator, v []string, ok bool, name string) ([]string, bool) {
	empty := len(v) == 0 || len(v) == 1 && v[0] == ""
	switch op {
	case syntax.DefaultUnsetOrNull, syntax.AssignUnsetOrNull, syntax.ErrorUnsetOrNull:
		if ok && !empty {
			return v, true
		}
	case syntax.DefaultUnset, syntax.AssignUnset, syntax.ErrorUnset:
		if ok && len(v) > 0 {
			return v, true
		}
	}
	if op == syntax.AssignUnset || op == syntax.AssignUnsetOrNull {
		b.w.sc.forget(name)
	}
	return nil, false
}

func wholeArray(x syntax.ArithmExpr) bool {
	word, ok := x.(*syntax.Word)
	return ok && (word.Lit() == "@" || word.Lit() == "*")
}
