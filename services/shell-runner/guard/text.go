package guard

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// visible writes characters that do not show, or that change how the text shows, as escapes. Newlines stay.
func visible(s string) string {
	clean := true
	for i, r := range s {
		if r == utf8.RuneError || hidden(r) || oddSpace(r) || r == '\t' || i < 0 {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var out strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&out, `\x%02x`, s[i])
		case r == '\t':
			out.WriteString(`\t`)
		case r == '\n':
			out.WriteByte('\n')
		case (r == '\u200d' || r == '\ufe0f') && inEmoji(s, i):
			out.WriteRune(r)
		case r < 0x100 && hidden(r):
			fmt.Fprintf(&out, `\x%02x`, r)
		case r > 0xffff && hidden(r):
			fmt.Fprintf(&out, `\U%08x`, r)
		case hidden(r), oddSpace(r):
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

// hidden says whether a character must not stand in a command line: it acts on the terminal, or deceives the eye.
func hidden(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case r < 0x20, r >= 0x7f && r < 0xa0: // C0, DEL, C1
		return true
	case r < 0xad:
		return false
	case r == 0xad, r == 0x034f, r == 0x061c, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r == 0x3164, r == 0xffa0:
		return true
	case r >= 0x180b && r <= 0x180f, r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x206f:
		return true
	case r >= 0xfe00 && r <= 0xfe0f, r == 0xfeff, r >= 0xfff0 && r <= 0xfffb, r >= 0xe0000 && r <= 0xe0fff:
		return true
	case r >= 0xd800 && r <= 0xdfff:
		return true
	}
	return unicode.Is(unicode.Co, r)
}

// oddSpace finds blanks that a shell takes for part of a word.
func oddSpace(r rune) bool {
	return r == 0xa0 || r == 0x1680 || r >= 0x2000 && r <= 0x200a || r == 0x202f || r == 0x205f || r == 0x3000
}

// inEmoji says whether the joiner or variation selector at s[i] belongs to an emoji, where it is harmless.
func inEmoji(s string, i int) bool {
	before, _ := utf8.DecodeLastRuneInString(s[:i])
	r, size := utf8.DecodeRuneInString(s[i:])
	after, _ := utf8.DecodeRuneInString(s[i+size:])
	pictograph := func(r rune) bool { return unicode.Is(unicode.So, r) || r >= 0x1f3fb && r <= 0x1f3ff }
	if r == '\ufe0f' {
		return pictograph(before) || before >= '0' && before <= '9' || before == '#' || before == '*'
	}
	return (pictograph(before) || before == '\ufe0f') && pictograph(after)
}

// characters judges the text before it is parsed; false when it must go no further.
func (c *check) characters(text string) bool {
	fine := true
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD"):
			c.add(high, "not-utf8", i, i+1, text[i:i+1])
			fine = false
		case (r == '\u200d' || r == '\ufe0f') && inEmoji(text, i):
		case hidden(r):
			code := "hidden-character"
			if r < 0x100 {
				code = "control-character"
			}
			c.add(high, code, i, i+utf8.RuneLen(max(r, 0)), string(r))
			fine = false
		}
	}
	return fine
}
