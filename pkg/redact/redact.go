// Package redact takes secrets out of text before it goes anywhere: terminal output on its way to the log, to a model, to
// a chat or to a page.
//
// Three layers look at every text:
//
//   - known values: what a Redactor was told with Add, as it is and in its base64 and URL-encoded forms;
//   - shapes: tokens of providers by their prefixes, web tokens, seeds of nkeys, password hashes, private keys (PEM, also
//     without its head or tail, indented, numbered, or on one line with \n);
//   - context: the value after a name such as password, in assignments, JSON, YAML, flags, URLs, headers, SQL, netrc and
//     pgpass files, prompts and sentences, English and Chinese.
//
// A secret becomes "[REDACTED:kind]", where kind says what it was ("password", "github-token"). Everything else stays
// byte for byte, colours included, with two exceptions: control strings of the terminal (titles, hyperlinks, clipboard
// writes) are dropped, and a colour change inside a secret follows its marker. Colours never hide a secret: text is
// searched without them. Nor does a line break that a narrow terminal put into a token.
//
// What has neither shape nor context (a password alone on a line) cannot be told from a word and stays, unless it is
// known. Redacting is a second line of defence: what need not be printed should not be.
package redact

import (
	"io"
	"sort"
	"strings"
	"unsafe"
)

// marker begins what stands where a secret was. It is never redacted again.
const marker = "[REDACTED"

// Marker gives what stands where a secret of that kind was; with no kind, "[REDACTED]".
func Marker(kind string) string {
	if kind == "" {
		return marker + "]"
	}
	return marker + ":" + kind + "]"
}

// Found is how many secrets of one kind were taken out.
type Found struct {
	Kind  string `json:"kind"`
	Count int    `json:"count"`
}

// Redactor redacts texts and streams. The zero value works and knows no values. It is safe for concurrent use.
type Redactor struct {
	values known
}

// Add makes values known as secrets of a kind until remove is called: from then on they are found anywhere, also in
// base64 and URL-encoded. Values shorter than MinKnown bytes, and ones that are a plain word or number that texts are full
// of (see Knowable), are ignored. A value that was added twice stays until it was removed twice; remove may be called
// again without effect. Streams that are open use the values as they stand when a line is complete.
func (r *Redactor) Add(kind string, values ...string) (remove func()) {
	return r.values.add(kind, values)
}

// String redacts a whole text. It gives the same text when nothing was found, and what was found, by kind.
func (r *Redactor) String(text string) (string, []Found) {
	if r.clean(text) {
		return text, nil
	}
	var out strings.Builder
	s := Stream{w: &out, r: r, whole: true}
	s.strip.plain = make([]byte, 0, len(text))
	_, _ = s.writeString(text) // a strings.Builder takes everything
	_ = s.Close()
	if !s.changed {
		return text, nil
	}
	return out.String(), s.Found()
}

// clean is a quick look at a text in place: most hold no secret, and then nothing is copied.
func (r *Redactor) clean(text string) bool {
	if strings.IndexByte(text, esc) >= 0 {
		return false
	}
	s := scanner{known: r.values.set.Load(), text: unsafe.Slice(unsafe.StringData(text), len(text)), final: true} //nolint:gosec // only read
	for pos := 0; pos < len(text); {
		end, ok := s.unit(pos)
		if !ok || len(s.spans) > 0 {
			return false
		}
		pos = end
	}
	return true
}

// Stream gives a writer that passes what it is given to w, redacted. It is not safe for concurrent use.
func (r *Redactor) Stream(w io.Writer) *Stream { return &Stream{w: w, r: r} }

// String redacts a whole text by shape and context.
func String(text string) (string, []Found) { return new(Redactor).String(text) }

// sum adds what was found, in the order of kinds.
func sum(counts map[string]int) []Found {
	if len(counts) == 0 {
		return nil
	}
	found := make([]Found, 0, len(counts))
	for kind, n := range counts {
		found = append(found, Found{kind, n})
	}
	sort.Slice(found, func(i, j int) bool { return found[i].Kind < found[j].Kind })
	return found
}
