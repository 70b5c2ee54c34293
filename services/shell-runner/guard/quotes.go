package guard

import (
	"strings"
	"unicode/utf8"
)

// unescapeDouble removes the backslashes that count between double quotes.
func unescapeDouble(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) && strings.IndexByte("$`\"\\\n", s[i+1]) >= 0 {
			i++
			if s[i] == '\n' {
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// ansiC decodes what stands in $'…'. A NUL ends the text, as in bash.
func ansiC(s string) string {
	var out strings.Builder
	simple := map[byte]byte{'a': 7, 'b': 8, 'e': 27, 'E': 27, 'f': 12, 'n': 10, 'r': 13, 't': 9, 'v': 11}
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		i++
		c := s[i]
		number := func(from, base, most int) (int, int) {
			n, j := 0, from
			for ; j < len(s) && j < from+most; j++ {
				d := strings.IndexByte("0123456789abcdefABCDEF", s[j])
				if d > 15 {
					d -= 6
				}
				if d < 0 || d >= base {
					break
				}
				n = n*base + d
			}
			return n, j
		}
		switch {
		case simple[c] != 0:
			out.WriteByte(simple[c])
		case c >= '0' && c <= '7':
			n, j := number(i, 8, 3)
			if n&255 == 0 {
				return out.String()
			}
			out.WriteByte(byte(n))
			i = j - 1
		case c == 'x':
			n, j := number(i+1, 16, 2)
			switch {
			case j == i+1:
				out.WriteString(`\x`)
			case n == 0:
				return out.String()
			default:
				out.WriteByte(byte(n))
			}
			i = j - 1
		case c == 'u' || c == 'U':
			n, j := number(i+1, 16, map[byte]int{'u': 4, 'U': 8}[c])
			switch {
			case j == i+1:
				out.WriteString(`\` + s[i:i+1])
			case n == 0:
				return out.String()
			case n > utf8.MaxRune:
				out.WriteString(unknown)
			default:
				out.WriteRune(rune(n))
			}
			i = j - 1
		case c == 'c' && i+1 < len(s):
			i++
			if s[i]&0x1f == 0 {
				return out.String()
			}
			out.WriteByte(s[i] & 0x1f)
		case strings.IndexByte(`\'"?`, c) >= 0:
			out.WriteByte(c)
		default:
			out.WriteString(`\` + s[i:i+1])
		}
	}
	return out.String()
}
