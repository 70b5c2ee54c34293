package redact

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// entry is a labelled text: what must be gone from it, or, with no gone, a text that must stay as it is.
type entry struct {
	secret         bool
	category, text string
	gone           []string
}

// corpus reads a labelled file of testdata: label, category, text, what must be gone (between |||), with escapes. The
// prefixes of providers are escaped in it, so that no scanner takes the file for a leak.
func corpus(t testing.TB, name string) []entry {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	var out []entry
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		require.Len(t, f, 4, line)
		e := entry{secret: f[0] == "secret", category: f[1], text: unescape(f[2])}
		if e.secret {
			for _, v := range strings.Split(f[3], "|||") {
				e.gone = append(e.gone, unescape(v))
			}
		}
		out = append(out, e)
	}
	return out
}

func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		i++
		switch s[i] {
		case 'n':
			out.WriteByte('\n')
		case 't':
			out.WriteByte('\t')
		case 'r':
			out.WriteByte('\r')
		case 'x', 'u':
			n := 2
			if s[i] == 'u' {
				n = 4
			}
			v, _ := strconv.ParseUint(s[i+1:i+1+n], 16, 32)
			out.WriteRune(rune(v))
			i += n
		default:
			out.WriteByte(s[i])
		}
	}
	return out.String()
}

// visible is a text as a reader sees it who puts broken tokens together.
func visible(text string) string {
	var s stripper
	s.write([]byte(text))
	s.end()
	return string(joined(bytes.Clone(s.plain)))
}

// leaks gives what of an entry is still in a text.
func (e entry) leaks(text string) (left []string) {
	seen := visible(text)
	for _, v := range e.gone {
		if strings.Contains(text, v) || strings.Contains(seen, visible(v)) {
			left = append(left, v)
		}
	}
	return left
}

func TestCorpus(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"secrets.tsv", "own-secrets.tsv"} {
		secrets, leaked, harmless, touched := 0, 0, 0, 0
		for _, e := range corpus(t, name) {
			out, found := String(e.text)
			if !e.secret {
				harmless++
				if out != e.text {
					touched++
					t.Logf("%s: touched (%s) %q -> %q", name, e.category, e.text, out)
				}
				continue
			}
			secrets++
			if left := e.leaks(out); len(left) > 0 {
				leaked++
				t.Logf("%s: leaked (%s) %q -> %q", name, e.category, e.text, out)
			} else {
				assert.NotEmpty(t, found)
				again, _ := String(out)
				assert.Equal(t, out, again, "redacting twice changes nothing")
			}
		}
		t.Logf("%s: %d of %d secrets leaked, %d of %d harmless texts touched", name, leaked, secrets, touched, harmless)
		assert.LessOrEqual(t, leaked*100, 3*secrets)
		assert.LessOrEqual(t, touched*100, 3*harmless)
	}
}
