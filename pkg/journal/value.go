package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

const maxDepth = 1000 // of nested arrays and objects in a value; protobuf's readers stop at 10,000

var errNotJSON = errors.New("not JSON")

// canonical gives value in the form in which it is stored and comes back: without insignificant spaces, and readable by
// every JSON and protobuf reader and by PostgreSQL. Invalid UTF-8, escaped lone surrogates and NUL become U+FFFD; of
// doubled names of an object the last is kept; a number too big for a double becomes a string. Otherwise the bytes stay
// as they are, numbers of any precision included. nil is null. It returns errNotJSON for anything else.
func canonical(value json.RawMessage) (json.RawMessage, error) {
	if len(value) == 0 {
		return json.RawMessage("null"), nil
	}
	if !json.Valid(value) {
		return nil, errNotJSON
	}
	out, plain, err := compact(value)
	if err != nil || plain {
		return out, err
	}
	// Rare: build it anew.
	dec := json.NewDecoder(bytes.NewReader(out))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, errNotJSON
	}
	return marshal(tameNumbers(v))
}

// compact writes valid JSON without spaces and with mended strings; plain is false when an object has a name twice or a
// number is out of a double's range.
func compact(in []byte) (out []byte, plain bool, err error) {
	out = make([]byte, 0, len(in))
	plain = true
	var names []map[string]struct{} // per open object; nil for an array
	nameNext := false
	for i := 0; i < len(in); {
		switch c := in[i]; c {
		case ' ', '\t', '\r', '\n':
			i++
		case '{', '[':
			if len(names) == maxDepth {
				return nil, false, fmt.Errorf("nested deeper than %d: %w", maxDepth, errNotJSON)
			}
			if c == '{' {
				names = append(names, make(map[string]struct{}))
			} else {
				names = append(names, nil)
			}
			nameNext = c == '{'
			out = append(out, c)
			i++
		case '}', ']':
			names = names[:len(names)-1]
			nameNext = false
			out = append(out, c)
			i++
		case ',':
			nameNext = names[len(names)-1] != nil
			out = append(out, c)
			i++
		case ':':
			nameNext = false
			out = append(out, c)
			i++
		case '"':
			start := len(out)
			out, i = appendString(out, in, i)
			if nameNext {
				name := string(out[start:])
				if strings.IndexByte(name, '\\') >= 0 { // "a" and "\u0061" are the same name
					_ = json.Unmarshal(out[start:], &name)
					name = `"` + name + `"`
				}
				open := names[len(names)-1]
				if _, twice := open[name]; twice {
					plain = false
				}
				open[name] = struct{}{}
			}
		default: // number, true, false, null
			start := i
			for i < len(in) && strings.IndexByte(" \t\r\n,]}", in[i]) < 0 {
				i++
			}
			if token := in[start:i]; len(token) > 15 || bytes.ContainsAny(token, "eE") {
				if _, err := strconv.ParseFloat(string(token), 64); errors.Is(err, strconv.ErrRange) {
					plain = false
				}
			}
			out = append(out, in[start:i]...)
		}
	}
	return out, plain, nil
}

const replacement = `\ufffd`

// appendString copies the string literal that begins at in[i], mended, and gives the position after it.
func appendString(out, in []byte, i int) ([]byte, int) {
	out = append(out, '"')
	for i++; ; {
		plain := i
		for c := in[i]; c != '"' && c != '\\' && c < utf8.RuneSelf; c = in[i] {
			i++
		}
		if out = append(out, in[plain:i]...); in[i] == '"' {
			return append(out, '"'), i + 1
		}
		switch c := in[i]; {
		case c == '\\' && in[i+1] == 'u':
			r := hex4(in[i+2:])
			switch {
			case r == 0, r >= 0xDC00 && r < 0xE000:
				out = append(out, replacement...)
			case r >= 0xD800 && r < 0xDC00:
				if in[i+6] == '\\' && in[i+7] == 'u' {
					if low := hex4(in[i+8:]); low >= 0xDC00 && low < 0xE000 {
						out = append(out, in[i:i+12]...)
						i += 12
						continue
					}
				}
				out = append(out, replacement...)
			default:
				out = append(out, in[i:i+6]...)
			}
			i += 6
		case c == '\\':
			out = append(out, c, in[i+1])
			i += 2
		default:
			r, size := utf8.DecodeRune(in[i:])
			if r == utf8.RuneError && size == 1 {
				out = append(out, replacement...)
			} else {
				out = append(out, in[i:i+size]...)
			}
			i += size
		}
	}
}

// hex4 reads four hex digits, which json.Valid has seen.
func hex4(b []byte) rune {
	n, _ := strconv.ParseUint(string(b[:4]), 16, 32)
	return rune(n)
}

func tameNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if _, err := v.Float64(); err != nil {
			return v.String()
		}
	case map[string]any:
		for name, x := range v {
			v[name] = tameNumbers(x)
		}
	case []any:
		for i, x := range v {
			v[i] = tameNumbers(x)
		}
	}
	return v
}

// marshal is json.Marshal that leaves < > & as they are.
func marshal(v any) (json.RawMessage, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'}), nil
}

// clip makes s fit to be shown and stored: valid UTF-8 without NUL, at most limit bytes.
func clip(s string, limit int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= limit {
		return s
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}
