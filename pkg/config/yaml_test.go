package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExpand(t *testing.T) {
	t.Parallel()
	env := map[string]string{"A": "1", "EMPTY": "", "NESTED": "${A}", "_x9": "ok"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	for in, want := range map[string]string{
		"":                   "",
		"plain":              "plain",
		"${A}":               "1",
		"x${A}y${A}z":        "x1y1z",
		"${B:-two}":          "two",
		"${EMPTY:-two}":      "two",
		"${EMPTY}":           "",
		"${A:-two}":          "1",
		"${B:-}":             "",
		"${B:-a:-b}":         "a:-b",
		"$$":                 "$",
		"$${A}":              "${A}",
		"pa$word$":           "pa$word$",
		"$A":                 "$A",
		"${NESTED}":          "${A}",
		"${_x9}":             "ok",
		"http://h:${B:-80}/": "http://h:80/",
	} {
		got, err := expand(in, lookup)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for in, want := range map[string]string{
		"${MISSING}": "variable MISSING, which is not set",
		"${":         "without }",
		"${A":        "without }",
		"${}":        "does not name a variable",
		"${9}":       "does not name a variable",
		"${A-b}":     "does not name a variable",
	} {
		_, err := expand(in, lookup)
		require.ErrorContains(t, err, want, in)
	}
	env["BIG"] = strings.Repeat("x", maxText)
	_, err := expand("${BIG}${BIG}${BIG}", lookup)
	require.ErrorContains(t, err, "longer than")
}

func TestFilesThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ file, want string }{
		{"http: [", "is not valid YAML"},
		{"\tx", "is not valid YAML"},
		{"- a", "settings as key: value"},
		{"just text", "settings as key: value"},
		{"language: en\n---\nlanguage: zh", "one YAML document"},
		{"language: en\nlanguage: zh", "language is set twice, first in line 1"},
		{"nats.url: nats://a\nnats: {url: nats://b}", "nats.url is set twice"},
		{"http: 8080", "http is a section"},
		{"language: {a: b}", "single value, not a section"},
		{"language: [en]", "single value, not a list"},
		{"http: {trusted_proxies: [[a]]}", "list of plain values"},
		{"language: &a en\nlog: {format: *a}", "is an alias"},
		{"? {a: b}\n: c", "key that is not a word"},
		{"BUTLER_HTTP_ADDR: x", "its key here is http.addr"},
		{"max_steps: x", "did you mean turn.max_steps?"},
		{"zzzzzzzzzzzzzz: x", "docs/reference/settings.md"},
		{"http:\n  <<: {addr: x}", "http.<< is not a setting"},
		{"a\xff: b", "not UTF-8"},
		{strings.Repeat("[", 20000), "is not valid YAML"},
	} {
		_, _, err := load(t, c.file)
		require.ErrorContains(t, err, c.want, "%.40q", c.file)
	}
}

func TestFileBounds(t *testing.T) {
	t.Parallel()
	_, _, err := load(t, "language: en\n#"+strings.Repeat("x", MaxFileSize))
	require.ErrorContains(t, err, "larger than 1024 KiB")
	var many strings.Builder
	for range 1000 {
		many.WriteString("zzzzzzzzzzzzzzz" + strings.Repeat("q", many.Len()%90) + ": x\n")
	}
	_, _, err = load(t, many.String())
	require.ErrorContains(t, err, "more problems")
	require.Less(t, len(err.Error()), 20_000)

	dir := t.TempDir()
	for name, want := range map[string]string{dir: "is a folder", filepath.Join(dir, "none.yaml"): "no such file"} {
		_, _, err := Load(Options{File: name, Environ: []string{"HOME=/h"}})
		require.ErrorContains(t, err, want)
	}
	empty := filepath.Join(dir, "empty.yaml")
	for _, text := range []string{"", "# nothing\n", "null\n"} {
		require.NoError(t, os.WriteFile(empty, []byte(text), 0o600))
		_, _, err := Load(Options{File: empty, Environ: []string{"HOME=/h"}})
		require.NoError(t, err, "%q", text)
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	require.Equal(t, 3, distance("kitten", "sitting"))
	require.Equal(t, 0, distance("", ""))
	require.Equal(t, 3, distance("", "abc"))
	require.Equal(t, "", nearest("addr", []string{"http.addr", "very_long_section.addr"}))
	require.Equal(t, "", nearest(strings.Repeat("a", 1000), []string{"a"}))
}

func FuzzReadYAML(f *testing.F) {
	for _, seed := range []string{"", "http: {addr: 127.0.0.1:1}", "nats:\n  url: ${A:-nats://b}\n", "a: &a [*a]",
		"http: {trusted_proxies: [10.0.0.0/8, ${A}]}", "? {a: b}\n: c", "log: {level: $${x}}", "x: !!binary aGk="} {
		f.Add([]byte(seed))
	}
	entries := table("/home/ann", "/home/ann/data")
	lookup := func(name string) (string, bool) { return "value of " + name, name != "MISSING" }
	f.Fuzz(func(t *testing.T, data []byte) {
		values, problems, _ := readYAML(data, entries, lookup)
		if len(problems) > maxProblems+1 {
			t.Fatalf("%d problems", len(problems))
		}
		for _, p := range problems {
			if len(p.text) > 2000 {
				t.Fatalf("a problem of %d bytes", len(p.text))
			}
		}
		if len(values) > len(entries) {
			t.Fatalf("%d values of %d settings", len(values), len(entries))
		}
		var s Settings
		for _, v := range values {
			_ = v.entry.parse(&s, v.text)
			_ = v.entry.show(&s)
		}
	})
}
