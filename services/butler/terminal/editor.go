// Package terminal edits lines in a terminal: with a history, over several rows, and with characters that are two columns
// wide, which golang.org/x/term counts as one. It reads and writes byte streams and changes no terminal mode itself: its
// caller puts the terminal into raw mode (term.MakeRaw) and back.
package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"
)

// ErrInterrupted is what ReadLine returns on Ctrl-C.
var ErrInterrupted = errors.New("interrupted")

// maxLine bounds a line, in characters.
const maxLine = 256 << 10

// Editor reads lines, and prints above the line that is being typed. Make it with New. One goroutine at a time reads; any may
// print.
type Editor struct {
	out     io.Writer
	columns func() int
	history *History

	chunks chan []byte
	typed  []byte // input that was not decoded yet; the reader's
	closed bool   // the input ended; the reader's

	mu sync.Mutex // of what follows

	// The line being edited.
	reading bool // it stands on the screen
	prompt  []rune
	line    []rune
	pos     int
	cursor  int // row of the cursor on the screen, from the prompt's
	paste   bool

	// col is the column behind what was printed last: 0 at the begin of a line, the screen's width when a line is just full.
	// While a line is edited, that is the row above the prompt.
	col     int
	swallow bool // a full line was ended to show the prompt: a newline that follows is there already
}

// New returns an editor that reads from in and writes to out, which must take raw output: newlines are written as \r\n.
// columns gives the width of the screen. It starts a goroutine that reads in until that ends; a terminal's never does.
func New(in io.Reader, out io.Writer, columns func() int, history *History) *Editor {
	e := &Editor{out: out, columns: columns, history: history, chunks: make(chan []byte)}
	go e.read(in)
	return e
}

func (e *Editor) read(in io.Reader) {
	defer close(e.chunks)
	for {
		buf := make([]byte, 4096)
		n, err := in.Read(buf)
		if n > 0 {
			e.chunks <- buf[:n]
		}
		if err != nil {
			return
		}
	}
}

// Write prints text; the line that is being typed moves below it. Newlines return to the first column, and what follows a
// text without one at its end goes on in the same line. The caller takes out what would steer the terminal. It never fails.
func (e *Editor) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.print(string(p))
	return len(p), nil
}

// EndLine ends the line that was printed last, if something stands in it.
func (e *Editor) EndLine() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.swallow = false
	if e.col > 0 {
		e.print("\n")
	}
}

// print writes text where the last one ended, and the prompt with its line below, in one go so that nothing flickers.
func (e *Editor) print(text string) {
	if text == "" {
		return
	}
	var b strings.Builder
	if e.reading {
		b.WriteString(e.lift())
		if e.swallow {
			text = strings.TrimPrefix(text, "\n")
		}
	}
	e.swallow = false
	screen := e.screen()
	for _, r := range text {
		switch r {
		case '\n':
			b.WriteString("\r\n")
			e.col = 0
		case '\t':
			n := max(0, min(8-e.col%8, screen-1-e.col)) // terminals do not wrap at a tab
			b.WriteString(strings.Repeat(" ", n))
			e.col += n
		default:
			w := Columns(r)
			if e.col+w > screen {
				e.col = 0
			}
			b.WriteRune(r)
			e.col += w
		}
	}
	if e.reading {
		b.WriteString(e.lower())
	}
	e.write(b.String())
}

// lift takes prompt and line off the screen and goes back to where the printed text ended.
func (e *Editor) lift() string {
	var b strings.Builder
	up := e.cursor
	if e.col > 0 {
		up++
	}
	if up > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", up)
	}
	b.WriteString("\r")
	if e.col > 0 {
		fmt.Fprintf(&b, "\x1b[%dC", e.col)
	}
	b.WriteString("\x1b[J")
	return b.String()
}

// lower shows prompt and line below what was printed.
func (e *Editor) lower() string {
	end := ""
	switch {
	case e.col >= e.screen():
		// The cursor cannot be put behind the last column again: what follows begins in a new row, as it would anyway.
		e.col, e.swallow = 0, true
		end = "\r\n"
	case e.col > 0:
		end = "\r\n"
	}
	e.cursor = 0
	return end + e.drawn()
}

// ReadLine shows a prompt and returns the line that a person entered, without its end; Alt-Enter and pasting put
// newlines into it. Ctrl-C empties the line. It returns ErrInterrupted on Ctrl-C in an empty line, io.EOF on Ctrl-D in an
// empty line and at the end of the input, and ctx's error.
func (e *Editor) ReadLine(ctx context.Context, prompt string) (string, error) {
	e.mu.Lock()
	e.prompt, e.line, e.pos, e.paste, e.reading = []rune(prompt), nil, 0, false, true
	var back browse
	e.write("\x1b[?2004h" + e.lower()) // pasted text comes between marks
	e.mu.Unlock()
	for {
		k, err := e.next(ctx)
		e.mu.Lock()
		line, done := "", err != nil
		if done {
			e.leave()
		} else {
			line, done, err = e.apply(k, &back)
		}
		if done {
			e.write("\x1b[?2004l")
		}
		e.mu.Unlock()
		if done {
			return line, err
		}
	}
}

// browse is a walk through the history, as it was when it began.
type browse struct {
	began bool
	lines []string
	at    int
	draft []rune // what stood in the line before
}

// apply does what a key means; done ends the line.
func (e *Editor) apply(k key, back *browse) (line string, done bool, err error) {
	if e.paste && k.name != keyPasteOff {
		switch k.name {
		case "":
			e.insert(k.char)
		case keyEnter, keyNewline:
			e.insert('\n')
		}
		return "", false, nil
	}
	switch k.name {
	case "":
		e.showTyped(k.char)
	case keyEnter:
		e.leave()
		return string(e.line), true, nil
	case keyInterrupt:
		if len(e.line) > 0 {
			e.line, e.pos, *back = nil, 0, browse{}
			e.draw()
			return "", false, nil
		}
		e.leave()
		return "", true, ErrInterrupted
	case keyEOF:
		if len(e.line) == 0 {
			e.leave()
			return "", true, io.EOF
		}
		e.cut(e.pos, e.pos+1)
	case keyNewline:
		e.insert('\n')
		e.draw()
	case keyPasteOn:
		e.paste = true
	case keyPasteOff:
		e.paste = false
		e.draw()
	case keyUp, keyDown:
		e.walk(back, k.name == keyUp)
	case keyClear:
		e.write("\x1b[H\x1b[2J")
		e.cursor, e.col, e.swallow = 0, 0, false
		e.draw()
	default:
		e.edit(k.name)
	}
	return "", false, nil
}

func (e *Editor) edit(name string) {
	switch name {
	case keyLeft:
		e.move(e.pos - e.cluster(-1))
	case keyRight:
		e.move(e.pos + e.cluster(1))
	case keyHome:
		e.move(0)
	case keyEnd:
		e.move(len(e.line))
	case keyWordLeft:
		e.move(e.word(-1))
	case keyWordRight:
		e.move(e.word(1))
	case keyBackspace:
		e.cut(e.pos-e.cluster(-1), e.pos)
	case keyDelete:
		e.cut(e.pos, e.pos+e.cluster(1))
	case keyCutEnd:
		e.cut(e.pos, len(e.line))
	case keyCutLine:
		e.cut(0, e.pos)
	case keyCutWord:
		e.cut(e.word(-1), e.pos)
	}
}

func (e *Editor) insert(r rune) {
	if len(e.line) >= maxLine || !Printable(r) {
		return
	}
	if r == '\t' {
		r = ' '
	}
	e.line = append(e.line, 0)
	copy(e.line[e.pos+1:], e.line[e.pos:])
	e.line[e.pos] = r
	e.pos++
}

// showTyped inserts a character and shows it: alone where that is enough, since drawing the whole line for each would flicker.
func (e *Editor) showTyped(r rune) {
	atEnd := e.pos == len(e.line)
	before := place{}.after(e.prompt, e.screen()).after(e.line[:e.pos], e.screen())
	n := len(e.line)
	e.insert(r)
	if len(e.line) == n {
		return
	}
	after := before.after(e.line[n:], e.screen())
	if atEnd && after.row == before.row && after.col > before.col {
		e.write(string(e.line[n:]))
		return
	}
	e.draw()
}

func (e *Editor) move(to int) {
	e.pos = max(0, min(to, len(e.line)))
	e.draw()
}

func (e *Editor) cut(from, to int) {
	from, to = max(0, from), min(to, len(e.line))
	e.line = append(e.line[:from], e.line[to:]...)
	e.move(from)
}

// cluster gives how many characters the one before (-1) or after (1) the cursor is made of: combining marks belong to
// the one they stand on.
func (e *Editor) cluster(direction int) int {
	n := 0
	if direction < 0 {
		for e.pos-n > 0 {
			n++
			if !combining(e.line[e.pos-n]) {
				break
			}
		}
		return n
	}
	for e.pos+n < len(e.line) {
		n++
		if e.pos+n >= len(e.line) || !combining(e.line[e.pos+n]) {
			break
		}
	}
	return n
}

func combining(r rune) bool { return r != '\n' && Columns(r) == 0 }

// word gives where the word before or after the cursor begins or ends.
func (e *Editor) word(direction int) int {
	p := e.pos
	in := func(i int) bool {
		return i >= 0 && i < len(e.line) && (unicode.IsLetter(e.line[i]) || unicode.IsDigit(e.line[i]))
	}
	if direction < 0 {
		for p > 0 && !in(p-1) {
			p--
		}
		for in(p - 1) {
			p--
		}
		return p
	}
	for p < len(e.line) && !in(p) {
		p++
	}
	for in(p) {
		p++
	}
	return p
}

func (e *Editor) walk(back *browse, older bool) {
	if !back.began || back.at == len(back.lines) { // lines may have been added meanwhile
		back.began, back.lines = true, e.history.all()
		back.at = len(back.lines)
	}
	to := back.at + 1
	if older {
		to = back.at - 1
	}
	if to < 0 || to > len(back.lines) {
		return
	}
	if back.at == len(back.lines) {
		back.draft = e.line
	}
	back.at = to
	if to == len(back.lines) {
		e.line = back.draft
	} else {
		e.line = []rune(back.lines[to])
	}
	e.move(len(e.line))
}

// draw writes prompt and line anew and puts the cursor where it belongs.
func (e *Editor) draw() { e.write(e.drawn()) }

func (e *Editor) drawn() string {
	screen := e.screen()
	begin := place{}.after(e.prompt, screen)
	at := begin.after(e.line[:e.pos], screen)
	end := begin.after(e.line, screen)
	var b strings.Builder
	if e.cursor > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", e.cursor)
	}
	b.WriteString("\r\x1b[J")
	b.WriteString(string(e.prompt))
	b.WriteString(strings.ReplaceAll(string(e.line), "\n", "\r\n"))
	if end.col == 0 && end.row > 0 && (len(e.line) == 0 || e.line[len(e.line)-1] != '\n') {
		b.WriteString("\r\n") // terminals stay in the last column until the next character
	}
	if up := end.row - at.row; up > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", up)
	}
	b.WriteString("\r")
	if at.col > 0 {
		fmt.Fprintf(&b, "\x1b[%dC", at.col)
	}
	e.cursor = at.row
	return b.String()
}

// leave puts the cursor below the line, which stays.
func (e *Editor) leave() {
	e.pos = len(e.line)
	e.draw()
	e.write("\r\n")
	e.reading, e.cursor, e.col, e.swallow = false, 0, 0, false
}

func (e *Editor) screen() int {
	if n := e.columns(); n >= 4 {
		return n
	}
	return 80
}

func (e *Editor) write(s string) { _, _ = io.WriteString(e.out, s) } // a terminal that is gone ends the input too

// escapeWait is how long an ESC may stand alone before it is the Escape key and not the begin of a sequence.
const escapeWait = 100 * time.Millisecond

// next gives the next key.
func (e *Editor) next(ctx context.Context) (key, error) {
	waited := false // long enough for the rest of a sequence
	for {
		var escape <-chan time.Time
		if len(e.typed) > 0 {
			k, rest, more := decode(e.typed, e.closed || waited)
			if !more {
				e.typed = rest
				return k, nil
			}
			if e.typed[0] == 0x1b {
				escape = time.After(escapeWait)
			}
		} else if e.closed {
			return key{}, io.EOF
		}
		select {
		case <-ctx.Done():
			return key{}, ctx.Err()
		case <-escape:
			waited = true
		case chunk, ok := <-e.chunks:
			if !ok {
				e.closed = true
				continue
			}
			e.typed = append(e.typed, chunk...)
		}
	}
}
