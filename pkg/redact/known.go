package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// MinKnown is the length in bytes of the shortest value that Add takes.
	MinKnown = 8
	// maxKnown bounds one pattern: a longer value is several of them.
	maxKnown = 1 << 10
)

// known is a set of values that may change at any time. Readers take a snapshot.
type known struct {
	mu   sync.Mutex
	refs map[string]*knownRef
	set  atomic.Pointer[knownSet]
}

type knownRef struct {
	kind  string
	count int
}

type pattern struct {
	text []byte
	kind string
}

// knownSet finds values by their first eight bytes. It does not change.
type knownSet struct {
	first   [1 << 13]byte // bits by a hash of the first three bytes
	by      map[uint64][]pattern
	byFirst [256][]pattern // by their first byte
}

// Knowable says whether a value is taken by Add: long enough, and not a word, number or placeholder of ordinary text,
// whose removal would only harm.
func Knowable(value string) bool {
	if len(value) < MinKnown || placeholder([]byte(value)) {
		return false
	}
	lower := bytes.ToLower([]byte(value))
	return !stopWords[string(lower)] && (classOf(lower) == none || !onlyLetters(lower))
}

func (k *known) add(kind string, values []string) (remove func()) {
	if kind == "" {
		kind = "known"
	}
	var taken []string
	for _, v := range values {
		if Knowable(v) {
			taken = append(taken, strings.Clone(v))
		}
	}
	k.change(func() {
		for _, v := range taken {
			if ref := k.refs[v]; ref != nil {
				ref.count++
				continue
			}
			k.refs[v] = &knownRef{kind, 1}
		}
	})
	var once sync.Once
	return func() {
		once.Do(func() {
			k.change(func() {
				for _, v := range taken {
					if k.refs[v].count--; k.refs[v].count == 0 {
						delete(k.refs, v)
					}
				}
			})
		})
	}
}

func (k *known) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refs == nil {
		k.refs = map[string]*knownRef{}
	}
	f()
	if len(k.refs) == 0 {
		k.set.Store(nil)
		return
	}
	set := &knownSet{by: map[uint64][]pattern{}}
	seen := map[string]bool{}
	for v, ref := range k.refs {
		for _, form := range forms(v) {
			for len(form) >= MinKnown {
				piece := form[:min(len(form), maxKnown)]
				form = form[len(piece):]
				if !seen[piece] {
					seen[piece] = true
					set.put(pattern{[]byte(piece), ref.kind})
				}
			}
		}
	}
	k.set.Store(set)
}

func (k *knownSet) put(p pattern) {
	h := hash3(p.text)
	k.first[h>>3] |= 1 << (h & 7)
	head := binary.LittleEndian.Uint64(p.text)
	k.by[head] = append(k.by[head], p)
	k.byFirst[p.text[0]] = append(k.byFirst[p.text[0]], p)
}

func hash3(b []byte) uint32 {
	return (uint32(b[0])*0x9e3779b1 ^ uint32(b[1])*0x85ebca6b ^ uint32(b[2])*0xc2b2ae35) >> 16
}

// forms gives a value as it may appear: itself, its long lines, escaped for JSON and URLs, and base64 of it alone or
// inside of something longer, at each of three offsets, without the characters that depend on the neighbours.
func forms(v string) []string {
	out := []string{v, url.QueryEscape(v), url.PathEscape(v)}
	if lines := strings.Split(v, "\n"); len(lines) > 1 {
		for _, l := range lines {
			if l = strings.TrimSpace(l); len(l) >= 2*MinKnown && !strings.HasPrefix(l, "-----") {
				out = append(out, l)
			}
		}
		out = append(out, strings.ReplaceAll(v, "\n", `\n`))
	}
	if strings.ContainsAny(v, `"\`) {
		out = append(out, strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v))
	}
	for offset := range 3 {
		padded := append(make([]byte, offset, offset+len(v)), v...)
		first := (offset*8 + 5) / 6 // characters that hold bits of what is before
		last := len(padded) * 8 / 6 // characters that hold only bits of the value
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			out = append(out, enc.EncodeToString(padded)[first:last])
		}
	}
	return out
}

// find adds the known values that begin in [from, to). A value that a terminal broke is found too, when its first eight
// bytes are in one piece.
func (k *knownSet) find(s *scanner, from, to int) {
	text := s.text
	for i := from; i < to && i+MinKnown <= len(text); i++ {
		h := hash3(text[i:])
		if k.first[h>>3]&(1<<(h&7)) == 0 {
			continue
		}
		end, kind := i, ""
		for _, p := range k.by[binary.LittleEndian.Uint64(text[i:])] {
			if e, ok := s.matches(p.text, i); ok && e > end {
				end, kind = e, p.kind
			}
		}
		if end > i {
			s.add(i, end, kind)
			i = end - 1
		}
	}
}

// matches compares a pattern with the text at i, over breaks of lines that the pattern does not have.
func (s *scanner) matches(p []byte, i int) (end int, ok bool) {
	start := i
	for j := 0; j < len(p); {
		switch {
		case i >= len(s.text):
			if !s.final {
				s.wait(start)
			}
			return 0, false
		case s.text[i] == p[j]:
			i++
			j++
		case s.text[i] == '\n' || s.text[i] == '\r':
			i++
		default:
			return 0, false
		}
	}
	return i, true
}

// tail gives where a known value may have begun of which the text has only the beginning; len(text) when none.
func (k *knownSet) tail(text []byte, from int) int {
	for i := max(from, len(text)-maxKnown); i < len(text); i++ {
		for _, p := range k.byFirst[text[i]] {
			if rest := text[i:]; len(rest) < len(p.text) && bytes.HasPrefix(p.text, rest) {
				return i
			}
		}
	}
	return len(text)
}
