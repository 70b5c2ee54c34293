package guard

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// Check judges a line. It never fails and never panics: what cannot be judged is refused.
func (g *Guard) Check(req Request) (out Result) {
	c := &check{g: g, req: &req, out: &out, home: req.Home, dir: req.Dir, written: map[string]bool{}}
	defer func() {
		if p := recover(); p != nil {
			// The parser is another's: whatever makes it stumble is not sent to a shell.
			out = Result{Visible: visible(clip(req.Text))}
			c.all, c.level = nil, low
			c.add(high, "unreadable", 0, len(req.Text), fmt.Sprint(p))
			c.finish(true)
		}
	}()
	out.Visible = visible(clip(req.Text))
	c.finish(!c.judge())
	return out
}

// clip bounds what is shown of a text that is too long.
func clip(s string) string {
	if len(s) <= MaxText {
		return s
	}
	end := MaxText
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// shells are the programs whose prompt reads command lines.
var shells = map[string]bool{
	"": true, "sh": true, "bash": true, "dash": true, "zsh": true, "ksh": true, "mksh": true, "ash": true, "rbash": true, "fish": true,
}

// judge finds the reasons; false when the line must not be sent.
func (c *check) judge() bool {
	text := c.req.Text
	if len(text) > MaxText {
		c.add(high, "too-long", 0, len(text), fmt.Sprintf("%d", len(text)))
		return false
	}
	if !c.characters(text) {
		return false
	}
	for _, p := range c.g.patterns {
		if p.in(text) {
			c.add(medium, "danger-pattern", 0, len(text), p.text)
		}
	}
	if fg := strings.TrimPrefix(path.Base(c.req.Foreground), "-"); c.req.Foreground != "" && !shells[fg] {
		c.add(high, "goes-to-program", 0, len(text), c.req.Foreground)
		return true
	}
	if strings.TrimSpace(text) == "" {
		return true
	}
	parser := syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true))
	file, err := parser.Parse(strings.NewReader(text), "")
	if err != nil {
		code := "not-shell"
		if syntax.IsIncomplete(err) {
			code = "incomplete"
		}
		c.add(high, code, 0, len(text), text)
		return false
	}
	if strings.HasSuffix(text, `\`) && (len(text)-len(strings.TrimRight(text, `\`)))%2 == 1 {
		c.add(high, "incomplete", len(text)-1, len(text), `\`)
		return false
	}
	c.shellOptions(c.req.Session.Options)
	c.history(text, file)
	c.oddText(text, file)
	w := &walker{c: c, sc: c.scope()}
	w.stmts(file.Stmts)
	if c.over {
		c.add(high, "too-complex", 0, len(text), "")
		return false
	}
	return true
}

func (c *check) scope() *scope {
	req := c.req
	if c.home == "" {
		c.home = "/home/user"
		if strings.HasPrefix(c.dir, "/home/") {
			c.home = "/home/" + strings.SplitN(c.dir[6:], "/", 2)[0]
		} else if req.User != "" && isName(req.User) {
			c.home = "/home/" + req.User
		}
	}
	c.home = path.Clean(c.home)
	if c.dir == "" {
		c.dir = c.home + "/src/project"
	}
	c.dir = path.Clean(c.dir)
	s := &scope{
		vars:      map[string][]string{"HOME": {c.home}, "IFS": {" \t\n"}},
		exports:   req.Session.Exports,
		dirs:      []string{c.dir},
		functions: map[string][]string{},
		aliases:   map[string]string{},
		declared:  req.Session.Functions,
		expanding: map[string]bool{},
		tame:      map[string]bool{},
	}
	if req.User != "" {
		s.vars["USER"] = []string{req.User}
	}
	if ifs, ok := req.Session.Exports["IFS"]; ok {
		s.vars["IFS"] = []string{ifs}
	}
	maps.Copy(s.aliases, req.Session.Aliases)
	return s
}

// oddText flags what reads differently to a person than to the shell: foreign blanks outside quotes, dashes that are not
// hyphens, and long runs of blanks that push a command out of sight.
func (c *check) oddText(text string, file *syntax.File) {
	ascii := true
	for i := 0; i < len(text); i++ {
		if text[i] >= utf8.RuneSelf {
			ascii = false
			break
		}
	}
	if i := strings.Index(text, strings.Repeat(" ", 80)); i >= 0 && strings.TrimSpace(text[i:]) != "" {
		c.add(medium, "pushed-away", i, len(text), "")
	}
	if ascii {
		return
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.SglQuoted, *syntax.DblQuoted, *syntax.Comment:
			return false
		case *syntax.Redirect:
			return n.Hdoc == nil
		case *syntax.Lit:
			for i, r := range n.Value {
				if oddSpace(r) || i == 0 && (r >= 0x2010 && r <= 0x2015 || r == 0x2212 || r == 0xff0d) {
					start := int(n.Pos().Offset())
					c.add(medium, "odd-space", start, min(int(n.End().Offset()), len(text)), n.Value)
				}
			}
		}
		return true
	})
}

// finish makes the result of what was found.
func (c *check) finish(refused bool) {
	out := c.out
	if len(c.all) > maxReasons {
		slices.SortStableFunc(c.all, func(a, b scored) int { return int(b.level) - int(a.level) })
		c.all = c.all[:maxReasons]
	}
	sort.SliceStable(c.all, func(i, j int) bool {
		if c.all[i].Start != c.all[j].Start {
			return c.all[i].Start < c.all[j].Start
		}
		return c.all[i].level > c.all[j].level
	})
	out.Reasons = make([]Reason, 0, len(c.all))
	for _, r := range c.all {
		r.Risk = r.level.risk()
		out.Reasons = append(out.Reasons, r.Reason)
	}
	out.Risk = c.level.risk()
	out.Hardline = c.level == critical
	switch {
	case refused || out.Hardline:
		out.Verdict = Refuse
	case c.level == low:
		out.Verdict = Run
	default:
		out.Verdict = Ask
	}
}
