package tmux

import (
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

// typeLines gives the commands that write data to the terminal, whatever its length in one piece: nothing can come in
// between. (send-keys -H does the same at 0.2 ms a byte, and its parser gives up above 8,000 bytes.)
func typeLines(pane string, data []byte) []string {
	var b strings.Builder
	b.Grow(32 + 2*len(data))
	b.WriteString(`set-buffer -b butler "`)
	for _, c := range data {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == ' ', c == '/', c == '.', c == '-':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\%03o`, c)
		}
	}
	b.WriteByte('"')
	return []string{b.String(), "paste-buffer -r -d -b butler -t " + pane}
}

// pasteBytes is what puts text at readline's prompt and runs it: to the end of the line and erase it (whatever is there
// was not agreed), the text as a bracketed paste, Enter.
func pasteBytes(text string) []byte {
	return []byte("\x05\x15\x1b[200~" + text + "\x1b[201~\r")
}
