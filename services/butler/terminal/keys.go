package terminal

import (
	"bytes"
	"unicode/utf8"
)

// key is what a person did: a character, or one of the named keys.
type key struct {
	char rune // when name is ""
	name string
}

// Names of keys.
const (
	keyEnter     = "enter"
	keyNewline   = "newline" // Alt-Enter
	keyInterrupt = "ctrl-c"
	keyEnd       = "end"
	keyHome      = "home"
	keyLeft      = "left"
	keyRight     = "right"
	keyUp        = "up"
	keyDown      = "down"
	keyWordLeft  = "word-left"
	keyWordRight = "word-right"
	keyBackspace = "backspace"
	keyDelete    = "delete"
	keyEOF       = "ctrl-d"
	keyCutEnd    = "ctrl-k"
	keyCutLine   = "ctrl-u"
	keyCutWord   = "ctrl-w"
	keyClear     = "ctrl-l"
	keyPasteOn   = "paste-on"
	keyPasteOff  = "paste-off"
	keyNone      = "none" // a sequence that means nothing here
)

var controls = map[byte]string{
	0x01: keyHome, 0x02: keyLeft, 0x03: keyInterrupt, 0x04: keyEOF, 0x05: keyEnd, 0x06: keyRight, 0x08: keyBackspace,
	0x0a: keyEnter, 0x0b: keyCutEnd, 0x0c: keyClear, 0x0d: keyEnter, 0x0e: keyDown, 0x10: keyUp, 0x15: keyCutLine,
	0x17: keyCutWord, 0x7f: keyBackspace,
}

// sequences are what follows ESC.
var sequences = map[string]string{
	"[A": keyUp, "[B": keyDown, "[C": keyRight, "[D": keyLeft, "[H": keyHome, "[F": keyEnd,
	"OA": keyUp, "OB": keyDown, "OC": keyRight, "OD": keyLeft, "OH": keyHome, "OF": keyEnd,
	"[1~": keyHome, "[7~": keyHome, "[4~": keyEnd, "[8~": keyEnd, "[3~": keyDelete,
	"[1;5C": keyWordRight, "[1;5D": keyWordLeft, "[1;3C": keyWordRight, "[1;3D": keyWordLeft,
	"f": keyWordRight, "b": keyWordLeft, "\r": keyNewline, "\n": keyNewline, "\x7f": keyCutWord,
	"[200~": keyPasteOn, "[201~": keyPasteOff,
}

// maxSequence bounds an escape sequence, in bytes.
const maxSequence = 32

// decode takes the first key off input. more says that input is the beginning of something longer; whole, that nothing
// comes for now, so that a lone ESC is the Escape key.
func decode(input []byte, whole bool) (k key, rest []byte, more bool) {
	b := input[0]
	switch {
	case b == 0x1b:
		return decodeEscape(input, whole)
	case b < ' ' || b == 0x7f:
		if b == '\t' {
			return key{char: '\t'}, input[1:], false
		}
		name, ok := controls[b]
		if !ok {
			name = keyNone
		}
		return key{name: name}, input[1:], false
	case !utf8.FullRune(input):
		if whole {
			return key{name: keyNone}, input[1:], false
		}
		return key{}, input, true
	}
	r, n := utf8.DecodeRune(input)
	return key{char: r}, input[n:], false
}

func decodeEscape(input []byte, whole bool) (k key, rest []byte, more bool) {
	if len(input) == 1 {
		if whole {
			return key{name: keyNone}, nil, false
		}
		return key{}, input, true
	}
	n := 2
	switch input[1] {
	case '[': // CSI: parameters, then one byte from @ to ~ (ECMA-48 5.4)
		end := bytes.IndexFunc(input[2:], func(r rune) bool { return r >= '@' && r <= '~' })
		if end < 0 {
			if len(input) > maxSequence || whole {
				return key{name: keyNone}, nil, false
			}
			return key{}, input, true
		}
		n = 2 + end + 1
	case 'O':
		if len(input) < 3 {
			if whole {
				return key{name: keyNone}, nil, false
			}
			return key{}, input, true
		}
		n = 3
	}
	name, ok := sequences[string(input[1:n])]
	if !ok {
		name = keyNone
	}
	return key{name: name}, input[n:], false
}
