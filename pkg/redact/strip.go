package redact

import "bytes"

const (
	esc = 0x1b
	// maxCSI and maxString bound control sequences, in bytes. What is longer is text.
	maxCSI    = 64
	maxString = 1 << 10
)

// escape is a control sequence that was taken out of a text: at is where in the plain text it stood.
type escape struct {
	at  int
	seq []byte
}

// stripper takes control sequences of terminals out of a text that arrives in pieces: the plain text is what is searched.
// What it does depends on the text alone, not on how it was cut.
type stripper struct {
	plain   []byte
	escapes []escape
	pending []byte // an unfinished sequence
	dropped bool   // a control string was dropped

	last  int // up to where plain was looked at for the bound of escapes
	run   int // plain bytes since the last line break
	count int // escapes in this line, or this maxLine bytes of it
}

func (s *stripper) write(data []byte) {
	for len(data) > 0 {
		if len(s.pending) == 0 {
			i := bytes.IndexByte(data, esc)
			if i < 0 {
				s.plain = append(s.plain, data...)
				return
			}
			s.plain = append(s.plain, data[:i]...)
			data = data[i:]
		}
		s.pending = append(s.pending, data[0])
		data = data[1:]
		s.step()
	}
}

// step looks at an unfinished sequence that got one byte more.
func (s *stripper) step() {
	p := s.pending
	if len(p) < 2 {
		return
	}
	last := p[len(p)-1]
	switch kind := p[1]; {
	case kind == '[':
		switch {
		case len(p) == 2:
		case last >= 0x40 && last <= 0x7e:
			s.keep()
		case last < 0x20 || last > 0x3f || len(p) >= maxCSI:
			s.text()
		}
	case kind == ']' || kind == 'P' || kind == 'X' || kind == '^' || kind == '_':
		switch {
		case last == 0x07 && kind == ']', last == '\\' && p[len(p)-2] == esc && len(p) > 3:
			s.dropped = true
			s.pending = p[:0]
		case last == '\n' || len(p) >= maxString:
			s.text()
		}
	case kind >= 0x20 && kind <= 0x2f: // character sets and the like
		switch {
		case last >= 0x30 && last <= 0x7e && len(p) > 2:
			s.keep()
		case last < 0x20 || last > 0x2f || len(p) >= 8:
			s.text()
		}
	case kind >= 0x30 && kind <= 0x7e:
		s.keep()
	default:
		s.text()
	}
}

// keep takes a complete sequence out.
func (s *stripper) keep() {
	s.put(bytes.Clone(s.pending))
	s.pending = s.pending[:0]
}

// put keeps a sequence, unless the line has more of them than bytes of text could be held.
func (s *stripper) put(seq []byte) {
	s.account()
	if s.count++; s.count > maxLine {
		s.dropped = true
		return
	}
	s.escapes = append(s.escapes, escape{len(s.plain), seq})
}

// account counts the plain text that came since it was last called.
func (s *stripper) account() {
	since := s.plain[s.last:]
	s.last = len(s.plain)
	if n := bytes.LastIndexByte(since, '\n'); n >= 0 {
		s.run, s.count = 0, 0
		since = since[n+1:]
	}
	before := s.run / maxLine
	if s.run += len(since); s.run/maxLine != before {
		s.count = 0
	}
}

// text gives up on a sequence: only its ESC is taken out, the rest is text, in which another may begin.
func (s *stripper) text() {
	s.put([]byte{esc})
	rest := bytes.Clone(s.pending[1:])
	s.pending = s.pending[:0]
	s.write(rest)
}

// end treats what is unfinished as text.
func (s *stripper) end() {
	for len(s.pending) > 0 {
		s.text()
		if len(s.pending) == 1 {
			s.put([]byte{esc})
			s.pending = s.pending[:0]
		}
	}
}
