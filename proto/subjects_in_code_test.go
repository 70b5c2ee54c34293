package contracts

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/bus/bustest"
)

// covers says whether the filter matches every subject that the pattern can stand for.
func covers(filter, pattern string) bool {
	f, p := strings.Split(filter, "."), strings.Split(pattern, ".")
	for i, tok := range f {
		if tok == ">" {
			return len(p) > i
		}
		if i >= len(p) || p[i] == ">" || tok != "*" && tok != p[i] {
			return false
		}
	}
	return len(f) == len(p)
}

// meet says whether some subject is matched by both filters.
func meet(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		if x[i] == ">" || y[i] == ">" {
			return true
		}
		if x[i] != "*" && y[i] != "*" && x[i] != y[i] {
			return false
		}
	}
	return len(x) == len(y)
}

func TestStreamsAreThoseOfTheDocument(t *testing.T) {
	t.Parallel()
	d := load(t)
	names := map[string]bool{"KV_" + bus.PresenceBucket: true}
	for _, s := range bus.Streams(1) {
		names[s.Name] = true
		for _, subject := range s.Subjects {
			found := false
			for _, c := range d.Channels {
				found = found || c.Stream == s.Name && covers(subject, pattern(c.Address))
			}
			require.True(t, found, "asyncapi.yaml has no channel for %s of stream %s", subject, s.Name)
		}
		for id, c := range d.Channels {
			takes := slices.ContainsFunc(s.Subjects, func(f string) bool { return covers(f, pattern(c.Address)) })
			require.Equal(t, takes, c.Stream == s.Name, "channel %s and stream %s", id, s.Name)
		}
	}
	used := map[string]bool{}
	for _, c := range d.Channels {
		if c.Stream != "" {
			used[c.Stream] = true
		}
	}
	require.Equal(t, names, used)
}

// What is stored, and with which headers, is asked of a real server.
func TestStoredFormsAndHeaders(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d, b := load(t), bustest.Start(t)
	for id, c := range d.Channels {
		if c.Stream == "" {
			continue
		}
		_, m := d.message(t, c)
		seq, err := b.Publish(ctx, c.Stream, bus.NewEvent(m.Name, "/butler/test", sample(c.Address), []byte("{}")))
		require.NoError(t, err, id)
		got, err := b.Load(ctx, c.Stream, pattern(c.stored()), seq-1, 0)
		require.NoError(t, err, id)
		require.Len(t, got, 1, "%s: nothing is stored under %s", id, c.stored())
		want := "^" + strings.ReplaceAll(regexp.QuoteMeta(sample(c.stored())), `\{partition\}`, `(\d|[12]\d|3[01])`) + "$"
		require.Regexp(t, want, got[0].Subject, id)
		if m.Protobuf == "" {
			continue
		}
		headers, required := d.headers(t, m)
		for _, h := range required {
			if !strings.HasPrefix(h, "butler-") {
				require.NotEmpty(t, got[0].Header.Get(h), "%s: header %s", id, h)
			}
		}
		for h := range got[0].Header {
			if !strings.HasPrefix(h, "Nats-") { // those are JetStream's own
				require.Contains(t, headers, h, "%s: asyncapi.yaml does not know this header", id)
			}
		}
		require.Equal(t, headers["ce-specversion"].Const, got[0].Header.Get("ce-specversion"))
		require.Equal(t, m.Name, got[0].Header.Get("ce-type"))
	}
}

// A durable consumer receives exactly the channels that name it.
func TestConsumersAreThoseOfTheDocument(t *testing.T) {
	t.Parallel()
	d := load(t)
	named := map[string][]string{} // consumer to channels
	for _, o := range d.Operations {
		if o.Consumer == "" {
			continue
		}
		ch := o.Channel.id(t, "#/channels/")
		for _, name := range consumerNames(t, o.Consumer) {
			named[d.Channels[ch].Stream+"/"+name] = append(named[d.Channels[ch].Stream+"/"+name], ch)
		}
	}
	declared := map[string][]string{}
	for _, s := range bus.Streams(1) {
		for _, c := range bus.Consumers(s.Name) {
			key := s.Name + "/" + c.Durable
			filters := c.FilterSubjects
			if c.FilterSubject != "" {
				filters = append(filters, c.FilterSubject)
			}
			for _, f := range filters {
				n := len(declared[key])
				for id, ch := range d.Channels {
					if ch.Stream == s.Name && meet(f, pattern(ch.stored())) {
						declared[key] = append(declared[key], id)
					}
				}
				require.Greater(t, len(declared[key]), n, "consumer %s: no channel is stored under %s", key, f)
			}
		}
	}
	for _, m := range []map[string][]string{named, declared} {
		for _, list := range m {
			slices.Sort(list)
		}
	}
	require.Equal(t, declared, named)
}

// consumerNames expands "brain-00 … brain-31".
func consumerNames(t *testing.T, text string) []string {
	t.Helper()
	first, last, isRange := strings.Cut(text, " … ")
	if !isRange {
		return []string{text}
	}
	cut := strings.LastIndex(first, "-") + 1
	from, err := strconv.Atoi(first[cut:])
	require.NoError(t, err)
	to, err := strconv.Atoi(last[cut:])
	require.NoError(t, err)
	require.Equal(t, bus.Partitions, to-from+1, text)
	var out []string
	for i := from; i <= to; i++ {
		out = append(out, fmt.Sprintf("%s%02d", first[:cut], i))
	}
	return out
}

// notSubjects are strings of the code that look like subjects and are none.
var notSubjects = regexp.MustCompile(`^butler\.(v1\.|example\.|prompt_|forged$|(yaml|yml|db|log|lock|pid|sock|sqlite)$)`)

// Every subject and event type that the code writes down is in the document, and the other way round.
func TestCodeAndDocumentHaveTheSameSubjects(t *testing.T) {
	t.Parallel()
	d := load(t)
	types := map[string]bool{}
	for _, m := range d.Components.Messages {
		if m.Protobuf != "" {
			types[m.Name] = true
		}
	}
	literals := code(t)

	seenTypes := map[string]bool{}
	for text, places := range literals {
		if types[text] {
			seenTypes[text] = true
			continue
		}
		filter := regexp.MustCompile(`%[a-z]|\{\{[^}]*\}\}`).ReplaceAllString(text, "*")
		if strings.HasSuffix(filter, ".") {
			filter += ">"
		}
		known := slices.ContainsFunc(slices.Collect(maps.Values(d.Channels)), func(c channel) bool {
			if c.Stream == bus.ParkedStream { // bus.Park puts "parked" into a subject
				return meet(filter, pattern(c.Address)) ||
					meet("butler.parked."+strings.TrimPrefix(filter, "butler."), pattern(c.Address))
			}
			return meet(filter, pattern(c.Address)) || meet(filter, pattern(c.stored()))
		})
		require.True(t, known, "%q in %s: asyncapi.yaml has no such subject and no such event type", text, places)
	}
	require.Equal(t, types, seenTypes, "event types of asyncapi.yaml, and those that the code has")

	for id, c := range d.Channels {
		if strings.HasPrefix(c.Address, "$") {
			continue
		}
		prefix, _, _ := strings.Cut(c.Address, "{")
		prefix = strings.TrimPrefix(prefix, "butler.parked.") // made of the item's own subject
		found := false
		for text, places := range literals {
			elsewhere := slices.ContainsFunc(places, func(p string) bool { return !strings.HasSuffix(p, "bus/streams.go") })
			found = found || elsewhere && (strings.HasPrefix(text, prefix) || strings.HasPrefix(text, "butler."+prefix))
		}
		require.True(t, found, "channel %s: no code publishes or reads %s", id, c.Address)
	}
}

// The kinds of a turn's events are the channels of CHAT.
func TestKindsOfATurnAreTheChannelsOfChat(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "../pkg/chat/chat.go", nil, 0)
	require.NoError(t, err)
	var kinds []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Kind" {
			for _, v := range spec.Values {
				text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
				require.NoError(t, err)
				kinds = append(kinds, text)
			}
		}
		return true
	})
	var channels []string
	for _, c := range load(t).Channels {
		if c.Stream == bus.ChatStream && strings.Contains(c.Address, "{turn}") {
			channels = append(channels, c.Address[strings.LastIndex(c.Address, ".")+1:])
		}
	}
	require.ElementsMatch(t, channels, kinds)
}

// code gives the string literals of the product that begin like a subject, with the files that have them.
func code(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, root := range []string{"../pkg", "../services"} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, src, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(lit.Value)
				if err == nil && strings.HasPrefix(text, "butler.") && !strings.ContainsAny(text, " /\n") &&
					text != "butler." && !notSubjects.MatchString(text) {
					found[text] = append(found[text], path)
				}
				return true
			})
			return nil
		})
		require.NoError(t, err)
	}
	return found
}
