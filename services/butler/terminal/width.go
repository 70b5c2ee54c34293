package terminal

import (
	"unicode"

	"golang.org/x/text/width"
)

// Columns gives how many columns a character takes: 2 for East Asian wide and fullwidth ones (UAX #11) and emoji, 0 for
// combining marks, joiners and control characters, else 1.
func Columns(r rune) int {
	switch {
	case r < ' ' || r >= 0x7f && r < 0xa0:
		return 0
	case r < 0x300: // nothing below is wide or combining
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	default:
		return 1
	}
}

// place is a position on the screen, from where the prompt begins.
type place struct{ row, col int }

// after gives where the cursor stands after text was written at p on a screen of the given width. A wide character that
// does not fit into the last column goes to the next row as a whole, as terminals do it.
func (p place) after(text []rune, screen int) place {
	for _, r := range text {
		if r == '\n' {
			p = place{p.row + 1, 0}
			continue
		}
		w := Columns(r)
		if p.col+w > screen {
			p = place{p.row + 1, 0}
		}
		p.col += w
	}
	if p.col >= screen {
		p = place{p.row + 1, 0}
	}
	return p
}

// Printable takes out what would steer the terminal: control characters but newline and tab, escape sequences' ESC among
// them, and the characters that reorder text (Trojan Source, CVE-2021-42574).
func Printable(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return true
	case r < ' ' || r >= 0x7f && r < 0xa0:
		return false
	case r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069:
		return false
	default:
		return true
	}
}
