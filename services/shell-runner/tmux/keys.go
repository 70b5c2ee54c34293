package tmux

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/butlerhub/butler/pkg/fault"
)

const maxKeys = 64

// keyNames maps what people write, in lower case, to tmux's names.
var keyNames = func() map[string]string {
	m := map[string]string{
		"esc": "Escape", "escape": "Escape", "tab": "Tab", "btab": "BTab", "s-tab": "BTab", "enter": "Enter",
		"return": "Enter", "space": "Space", "up": "Up", "down": "Down", "left": "Left", "right": "Right",
		"home": "Home", "end": "End", "pgup": "PPage", "pageup": "PPage", "ppage": "PPage", "pgdn": "NPage",
		"pgdown": "NPage", "pagedown": "NPage", "npage": "NPage", "backspace": "BSpace", "bspace": "BSpace",
		"delete": "DC", "del": "DC", "dc": "DC", "insert": "IC", "ins": "IC", "ic": "IC",
		"c-space": "C-Space", `c-\`: `C-\`, "c-]": "C-]", "c-_": "C-_", "c-^": "C-^",
	}
	for c := 'a'; c <= 'z'; c++ {
		m["c-"+string(c)] = "C-" + string(c)
		m["m-"+string(c)] = "M-" + string(c)
	}
	for i := 1; i <= 12; i++ {
		m[fmt.Sprintf("f%d", i)] = fmt.Sprintf("F%d", i)
	}
	return m
}()

// KeyName gives tmux's name for a key as people write it (C-c, Esc, Up, F5, PgDn, …; case does not matter), and whether
// it is one that may be sent.
func KeyName(key string) (string, bool) {
	name, ok := keyNames[strings.ToLower(strings.TrimSpace(key))]
	return name, ok
}

func keysLine(pane string, keys []string) (string, error) {
	if len(keys) == 0 || len(keys) > maxKeys {
		return "", fault.New(fault.Invalid, "1 to %d keys can be sent at once", maxKeys)
	}
	var b strings.Builder
	b.WriteString("send-keys -t " + pane)
	for _, k := range keys {
		name, ok := KeyName(k)
		if !ok {
			return "", fault.New(fault.Invalid,
				"%q is no key: use C-a to C-z, Esc, Tab, Enter, Space, Up, Down, Left, Right, Home, End, PgUp, PgDn, "+
					"Backspace, Delete or F1 to F12", cut(k, 20))
		}
		b.WriteString(" '" + name + "'")
	}
	return b.String(), nil
}

// tmux's parser gives up on long lines: 8,000 bytes of input a command pass, 16,000 do not.
const hexChunk = 4000

// hexLines gives the commands that type data into the pane. What fits into one is one write to the terminal.
func hexLines(pane string, data []byte) []string {
	var lines []string
	for len(data) > 0 {
		n := min(len(data), hexChunk)
		var b strings.Builder
		b.Grow(32 + 3*n)
		b.WriteString("send-keys -t " + pane + " -H")
		for _, c := range data[:n] {
			b.WriteByte(' ')
			b.WriteString(hex.EncodeToString([]byte{c}))
		}
		lines = append(lines, b.String())
		data = data[n:]
	}
	return lines
}

// pasteBytes is what puts text at readline's prompt and runs it: to the end of the line and erase it (whatever is there
// was not agreed), the text as a bracketed paste, Enter.
func pasteBytes(text string) []byte {
	return []byte("\x05\x15\x1b[200~" + text + "\x1b[201~\r")
}
