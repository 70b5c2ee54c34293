package tmux

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The shell's marks: ESC ] 133 ; <nonce> ; <kind> [ ; <fields> ] BEL. The nonce comes first, so that what another program
// prints differs early and is passed on at once.
const (
	markStarted  = 'C' // a command line was read and begins to run
	markFinished = 'D' // status ; directory
	markMore     = 'k' // the continuation prompt is shown
	markPrompt   = 'B' // the prompt is shown, input begins
	markReply    = 'R' // id ; text: answer to a query
)

// maxMark bounds what is held back for one mark: a reply with all functions of a shell.
const maxMark = 1 << 20

// Private modes of the terminal that matter here.
const modePaste = 2004

// sink takes what the scanner finds, in order.
type sink interface {
	data(p []byte) // valid until it returns
	mark(kind byte, fields string)
	private(mode int, on bool) // also given as data
}

// scanner takes marks out of a stream and finds switches of private modes. Zero allocation for plain output.
type scanner struct {
	prefix []byte // ESC ] 133 ; nonce ;
	held   []byte // a sequence whose end has not come
	drop   bool   // inside of a mark that is too long
}

func newScanner(nonce string) *scanner { return &scanner{prefix: []byte("\x1b]133;" + nonce + ";")} }

// pending gives how many bytes were read and not yet given on.
func (s *scanner) pending() int { return len(s.held) }

func (s *scanner) feed(p []byte, to sink) {
	if len(s.held) > 0 {
		p = append(s.held, p...)
		s.held = nil
	}
	for len(p) > 0 {
		if s.drop {
			i := bytes.IndexByte(p, '\a')
			if i < 0 {
				return
			}
			s.drop, p = false, p[i+1:]
			continue
		}
		i := bytes.IndexByte(p, '\x1b')
		if i < 0 {
			to.data(p)
			return
		}
		if i > 0 {
			to.data(p[:i])
			p = p[i:]
		}
		n, more := s.sequence(p, to)
		if more {
			if len(p) > maxMark {
				s.drop = true
				return
			}
			s.held = append([]byte(nil), p...)
			return
		}
		p = p[n:]
	}
}

// sequence handles what begins with the escape at p[0]: how many bytes were used, or that more are needed.
func (s *scanner) sequence(p []byte, to sink) (n int, more bool) {
	if common := min(len(p), len(s.prefix)); bytes.Equal(p[:common], s.prefix[:common]) {
		if common < len(s.prefix) {
			return 0, true
		}
		end := bytes.IndexByte(p[common:], '\a')
		if end < 0 {
			return 0, true
		}
		body := p[common : common+end]
		if len(body) > 0 {
			fields := ""
			if len(body) > 2 {
				fields = string(body[2:])
			}
			to.mark(body[0], fields)
		}
		return common + end + 1, false
	}
	// ESC [ ? digits h|l
	const maxCSI = 16
	if len(p) == 1 {
		return 0, true
	}
	if p[1] != '[' {
		to.data(p[:1])
		return 1, false
	}
	if len(p) == 2 {
		return 0, true
	}
	if p[2] != '?' {
		to.data(p[:2])
		return 2, false
	}
	for i := 3; i < len(p) && i < maxCSI; i++ {
		switch c := p[i]; {
		case c >= '0' && c <= '9' || c == ';':
		case c == 'h' || c == 'l':
			to.data(p[:i+1])
			for m := range strings.SplitSeq(string(p[3:i]), ";") {
				if v, err := strconv.Atoi(m); err == nil {
					to.private(v, c == 'h')
				}
			}
			return i + 1, false
		default:
			to.data(p[:i])
			return i, false
		}
	}
	if len(p) >= maxCSI {
		to.data(p[:maxCSI])
		return maxCSI, false
	}
	return 0, true
}

// alternateScreen says whether mode switches to the other screen.
func alternateScreen(mode int) bool { return mode == 1049 || mode == 1047 || mode == 47 }

// unquote undoes bash's ${x@Q}: '…', \c and $'…' one after the other.
func unquote(s string) (string, bool) {
	if !strings.Contains(s, `$'`) && strings.Count(s, "'") == 2 && len(s) >= 2 && s[0] == '\'' && s[len(s)-1] == '\'' {
		return s[1 : len(s)-1], true
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		switch {
		case s[i] == '\'':
			end := strings.IndexByte(s[i+1:], '\'')
			if end < 0 {
				return "", false
			}
			b.WriteString(s[i+1 : i+1+end])
			i += end + 2
		case strings.HasPrefix(s[i:], `$'`):
			n, ok := ansiC(s[i+2:], &b)
			if !ok {
				return "", false
			}
			i += 2 + n
		case s[i] == '\\' && i+1 < len(s):
			b.WriteByte(s[i+1])
			i += 2
		default:
			b.WriteByte(s[i])
			i++
		}
	}
	return b.String(), true
}

// ansiC reads the inside of $'…' and its closing quote.
func ansiC(s string, b *strings.Builder) (n int, ok bool) {
	for i := 0; i < len(s); i++ {
		if s[i] == '\'' {
			return i + 1, true
		}
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i == len(s) {
			return 0, false
		}
		if j := strings.IndexByte("abeEfnrtv", s[i]); j >= 0 {
			b.WriteByte("\a\b\x1b\x1b\f\n\r\t\v"[j])
			continue
		}
		digits := func(from, most, base int, also string) bool {
			end := from
			for end < len(s) && end-from < most && strings.IndexByte(also, s[end]|0x20) >= 0 {
				end++
			}
			v, err := strconv.ParseUint(s[from:end], base, 32)
			if err != nil {
				return false
			}
			if most > 3 {
				b.WriteRune(rune(v))
			} else {
				b.WriteByte(byte(v))
			}
			i = end - 1
			return true
		}
		const hexDigits = "0123456789abcdef"
		switch c := s[i]; {
		case c >= '0' && c <= '7':
			end := i
			for end < len(s) && end-i < 3 && s[end] >= '0' && s[end] <= '7' {
				end++
			}
			v, _ := strconv.ParseUint(s[i:end], 8, 16)
			b.WriteByte(byte(v))
			i = end - 1
		case c == 'x':
			if !digits(i+1, 2, 16, hexDigits) {
				return 0, false
			}
		case c == 'u':
			if !digits(i+1, 4, 16, hexDigits) {
				return 0, false
			}
		case c == 'U':
			if !digits(i+1, 8, 16, hexDigits) {
				return 0, false
			}
		default:
			b.WriteByte(c)
		}
	}
	return 0, false
}

// notText counts the bytes of p that are not valid UTF-8. A character cut at either end counts as a few.
func notText(p []byte) (n int64) {
	if utf8.Valid(p) {
		return 0
	}
	for len(p) > 0 {
		r, size := utf8.DecodeRune(p)
		if r == utf8.RuneError && size == 1 {
			n++
		}
		p = p[size:]
	}
	return n
}
