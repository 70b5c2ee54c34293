// Package terminaltest is a terminal for tests: what is written to it can be looked at as a person sees it.
package terminaltest

import (
	"strings"
	"sync"
)

// Screen is a terminal that wraps late, as xterm does, and knows the sequences that package terminal writes. All that scrolled
// away is kept. It is safe for concurrent use.
type Screen struct {
	width   int
	columns func(rune) int

	mu       sync.Mutex
	rows     [][]rune
	row, col int
}

// New returns an empty screen; columns says how wide a character is.
func New(width int, columns func(rune) int) *Screen { return &Screen{width: width, columns: columns} }

// line makes the row of the cursor.
func (v *Screen) line() {
	for v.row >= len(v.rows) {
		v.rows = append(v.rows, nil)
	}
}

// Write shows p, which holds whole characters and sequences.
func (v *Screen) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	text := []rune(string(p))
	for i := 0; i < len(text); i++ {
		v.line()
		switch r := text[i]; r {
		case '\r':
			v.col = 0
		case '\n':
			v.row++
			v.line()
		case 0x1b:
			n, private := 0, false
			for i += 2; text[i] < '@'; i++ {
				if text[i] == '?' {
					private = true
				} else {
					n = n*10 + int(text[i]-'0')
				}
			}
			switch {
			case private:
			case text[i] == 'A':
				v.row = max(0, v.row-max(1, n))
			case text[i] == 'C':
				v.col = min(v.width-1, v.col+max(1, n))
			case text[i] == 'J':
				v.rows = v.rows[:v.row+1]
				v.rows[v.row] = v.rows[v.row][:min(v.col, len(v.rows[v.row]))]
			}
		default:
			if v.col+v.columns(r) > v.width {
				v.row, v.col = v.row+1, 0
				v.line()
			}
			cells := v.rows[v.row]
			for len(cells) < v.col+v.columns(r) {
				cells = append(cells, ' ')
			}
			cells[v.col] = r
			if v.columns(r) == 2 {
				cells[v.col+1] = 0
			}
			v.rows[v.row] = cells
			v.col += v.columns(r)
		}
	}
	return len(p), nil
}

// String gives the rows without the blanks at their ends.
func (v *Screen) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	lines := make([]string, len(v.rows))
	for i, row := range v.rows {
		lines[i] = strings.TrimRight(strings.ReplaceAll(string(row), "\x00", ""), " ")
	}
	return strings.Join(lines, "\n")
}
