package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

type fileValue struct {
	entry entry
	text  string
	line  int
}

type fileProblem struct {
	line int // 0 for the file as a whole
	text string
}

// maxProblems bounds how many problems of one file are told.
const maxProblems = 50

// published is the section in which the settings of Butler-Shell, as published, stand. They are read as what they are called
// here; a file may have both forms, but no setting twice.
const published = "butler."

// publishedKeys are the published settings that are called differently here.
var publishedKeys = map[string]string{"guardrail.approval_timeout": "approval.timeout", "logging.level": "log.level"}

// publishedSections are the published sections that are none here.
var publishedSections = map[string]bool{"logging": true, "napcat": true}

// publishedUnused are accepted without effect, with what is said of that.
var publishedUnused = map[string]string{
	"logging.path": "logging.path has no effect: the log goes to standard error, and the log of commands to the database (/log); redirect standard " +
		"error to a file where one is wanted",
	"napcat.ws_url": napcatNotice, "napcat.token": napcatNotice,
}

const napcatNotice = "napcat has no effect yet: QQ comes with its channel"

type yamlReader struct {
	entries  []entry
	notices  []string
	lookup   func(string) (string, bool)
	values   []fileValue
	problems []fileProblem
	seen     map[string]int // line by key
}

// readYAML flattens one YAML document into settings. Variables are expanded in values after parsing, so that what a
// variable holds can never become YAML. Aliases are refused: they serve nothing here and can multiply a small file.
func readYAML(data []byte, entries []entry, lookup func(string) (string, bool)) ([]fileValue, []fileProblem, []string) {
	r := &yamlReader{entries: entries, lookup: lookup, seen: map[string]int{}}
	if !utf8.Valid(data) {
		return nil, []fileProblem{{0, "is not UTF-8 text"}}, nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil, nil // empty, or comments only
		}
		return nil, []fileProblem{{0, "is not valid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}}, nil
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		r.problem(0, "must be one YAML document")
	}
	root := &doc
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		root = root.Content[0]
	}
	switch {
	case root.Kind == yaml.MappingNode:
		r.mapping(root, "")
	case root.Kind == yaml.ScalarNode && root.Tag == "!!null":
	default:
		r.problem(root.Line, "must hold settings as key: value")
	}
	return r.values, r.problems, r.notices
}

func (r *yamlReader) problem(line int, format string, args ...any) {
	if len(r.problems) == maxProblems {
		r.problems = append(r.problems, fileProblem{0, "has more problems than are listed here"})
	}
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, fileProblem{line, fmt.Sprintf(format, args...)})
	}
}

// own gives what a key of the published section is called here; any other key is itself.
func own(key string) (name string, isPublished bool) {
	name, isPublished = strings.CutPrefix(key, published)
	if to, ok := publishedKeys[name]; ok && isPublished {
		name = to
	}
	return name, isPublished
}

// unused takes a published setting that has no effect here.
func (r *yamlReader) unused(key string) bool {
	name, isPublished := strings.CutPrefix(key, published)
	notice, ok := publishedUnused[name]
	if ok && isPublished && !slices.Contains(r.notices, notice) {
		r.notices = append(r.notices, notice)
	}
	return ok && isPublished
}

// mapping reads a section. The table has two levels, the published section one more, and unknown sections are not descended
// into, so depth is bounded.
func (r *yamlReader) mapping(node *yaml.Node, prefix string) {
	for i := 0; i+1 < len(node.Content); i += 2 {
		k, v := node.Content[i], node.Content[i+1]
		if k.Kind != yaml.ScalarNode {
			r.problem(k.Line, "has a key that is not a word")
			continue
		}
		key := prefix + k.Value
		name, isPublished := own(key)
		e, section, ok := r.find(name)
		section = section || isPublished && publishedSections[name] || key+"." == published
		seen := key
		if ok && !section {
			seen = name
		}
		if first, ok := r.seen[seen]; ok {
			r.problem(k.Line, "%s is set twice, first in line %d", clip(key), first)
			continue
		}
		r.seen[seen] = k.Line
		switch {
		case r.unused(key):
		case section && v.Kind == yaml.MappingNode:
			r.mapping(v, key+".")
		case section && v.Tag == "!!null": // a section whose settings are all commented out
		case section:
			r.problem(v.Line, "%s is a section: write its settings below it, indented", key)
		case !ok:
			r.unknown(k.Line, key)
		default:
			r.value(e, v)
		}
	}
}

func (r *yamlReader) find(key string) (e entry, section, ok bool) {
	for _, e := range r.entries {
		if e.Key == key {
			return e, false, true
		}
		if strings.HasPrefix(e.Key, key+".") {
			section = true
		}
	}
	return entry{}, section, false
}

func (r *yamlReader) unknown(line int, key string) {
	var known []string
	for _, e := range r.entries {
		known = append(known, e.Key)
		if e.Env == key {
			r.problem(line, "%s is an environment variable: its key here is %s", key, e.Key)
			return
		}
		if section, _, ok := strings.Cut(e.Key, "."); ok {
			known = append(known, section)
		}
	}
	if near := nearest(key, known); near != "" {
		r.problem(line, "%s is not a setting; did you mean %s?", clip(key), near)
		return
	}
	r.problem(line, "%s is not a setting; docs/reference/settings.md lists them", clip(key))
}

func (r *yamlReader) value(e entry, v *yaml.Node) {
	switch v.Kind {
	case yaml.AliasNode:
		r.problem(v.Line, "%s is an alias (*name): write the value itself", e.Key)
	case yaml.ScalarNode:
		if v.Tag == "!!null" {
			return // as if the line were not there
		}
		if text, ok := r.expand(e.Key, v); ok {
			r.values = append(r.values, fileValue{e, text, v.Line})
		}
	case yaml.SequenceNode:
		r.sequence(e, v)
	default:
		r.problem(v.Line, "%s must be a single value, not a section", e.Key)
	}
}

func (r *yamlReader) sequence(e entry, v *yaml.Node) {
	if !e.List {
		r.problem(v.Line, "%s must be a single value, not a list", e.Key)
		return
	}
	var parts []string
	size := 0
	for _, item := range v.Content {
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
			r.problem(item.Line, "%s must be a list of plain values", e.Key)
			return
		}
		text, ok := r.expand(e.Key, item)
		if !ok {
			return
		}
		if size += len(text); size > maxText {
			r.problem(item.Line, "%s is longer than %d bytes", e.Key, maxText)
			return
		}
		parts = append(parts, text)
	}
	r.values = append(r.values, fileValue{e, strings.Join(parts, ","), v.Line})
}

func (r *yamlReader) expand(key string, v *yaml.Node) (string, bool) {
	text, err := expand(v.Value, r.lookup)
	if err != nil {
		r.problem(v.Line, "%s %v", key, err)
		return "", false
	}
	return text, true
}

// expand replaces ${VAR} and ${VAR:-default} and turns $$ into $. A $ before anything else stays as it is. The default
// also stands for an empty variable, as in a shell; a variable that is not set and has no default is an error. What a
// variable holds is not expanded again.
func expand(text string, lookup func(string) (string, bool)) (string, error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		b.WriteString(before)
		if b.Len() > maxText {
			return "", fmt.Errorf("is longer than %d bytes", maxText)
		}
		if !found {
			return b.String(), nil
		}
		switch {
		case strings.HasPrefix(after, "$"):
			b.WriteByte('$')
			text = after[1:]
		case strings.HasPrefix(after, "{"):
			body, rest, closed := strings.Cut(after[1:], "}")
			if !closed {
				return "", errors.New("has ${ without }; write $$ for a plain $")
			}
			name, fallback, hasFallback := strings.Cut(body, ":-")
			if !isVariable(name) {
				return "", errors.New("has ${…} that does not name a variable; write $$ for a plain $")
			}
			value, ok := lookup(name)
			switch {
			case hasFallback && value == "":
				value = fallback
			case !ok:
				return "", fmt.Errorf("needs the environment variable %s, which is not set; "+
					"set it, or write ${%s:-default}", clip(name), clip(name))
			}
			b.WriteString(value)
			text = rest
		default:
			b.WriteByte('$')
			text = after
		}
	}
}

func isVariable(name string) bool {
	for i, r := range name {
		switch {
		case r == '_', r >= 'A' && r <= 'Z', r >= 'a' && r <= 'z':
		case r >= '0' && r <= '9' && i > 0:
		default:
			return false
		}
	}
	return name != ""
}
