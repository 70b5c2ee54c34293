package redact

import (
	"bytes"
	"io"
	"unsafe"
)

// Stream redacts what is written to it. A secret is found however the text is cut into writes: a line is passed on when
// it is complete and, where its end may be the begin of a secret, when the next one is. At most about 48 KiB are held
// back; Flush passes on what is already known to be harmless. Apart from Flush, what comes out depends on the text
// alone, and is what String gives for the whole.
type Stream struct {
	w     io.Writer
	r     *Redactor
	strip stripper
	scan  scanner

	pos     int // where the next unit begins in the plain text
	emitted int // up to where it was passed on
	shown   int // up to which escape
	found   map[string]int
	changed bool // something was taken out
	whole   bool // one text, then Close
	closed  bool
	out     []byte
	err     error
}

// Write takes the next piece of the text. It gives the error of the writer below, once there was one.
func (s *Stream) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	newline := s.whole
	const piece = 64 << 10 // bounds what is held of a large write
	for rest := p; len(rest) > 0; {
		part := rest[:min(len(rest), piece)]
		if s.whole {
			part = rest
		}
		rest = rest[len(part):]
		s.strip.write(part)
		for _, b := range part {
			if b == '\n' {
				newline = true
				break
			}
		}
		if !s.whole && (newline || len(s.strip.plain)-s.pos >= maxLine) {
			s.units(false)
			if s.err != nil {
				return 0, s.err
			}
		}
	}
	return len(p), nil
}

func (s *Stream) writeString(text string) (int, error) {
	return s.Write(unsafe.Slice(unsafe.StringData(text), len(text))) //nolint:gosec // Write only reads
}

// Flush passes on what of an unfinished line can be no part of a secret: a prompt, the words before the last one. Call it
// when output pauses.
func (s *Stream) Flush() error {
	if s.err != nil || s.closed {
		return s.err
	}
	s.units(false)
	s.partial()
	s.send()
	return s.err
}

// Close passes on everything that is left. It does not close the writer below, and may be called again.
func (s *Stream) Close() error {
	if s.err != nil || s.closed {
		return s.err
	}
	s.strip.end()
	s.units(true)
	s.closed = true
	return s.err
}

// Found gives what was taken out so far, by kind.
func (s *Stream) Found() []Found { return sum(s.found) }

// units passes on every unit that is complete.
func (s *Stream) units(final bool) {
	s.scan.known, s.scan.text, s.scan.final = s.r.values.set.Load(), s.strip.plain, final
	for s.pos < len(s.strip.plain) {
		end, ok := s.scan.unit(s.pos)
		if !ok {
			break
		}
		s.emit(end, true)
		s.pos = end
	}
	if final {
		s.escapesTo(len(s.strip.plain) + 1)
	}
	if s.pos == len(s.strip.plain) {
		s.escapesTo(s.pos + 1)
	}
	s.changed = s.changed || s.strip.dropped
	s.send()
	s.compact()
}

// emit passes on the plain text up to end with its escapes, and a marker in the place of each secret. Secrets are counted
// where the unit is done.
func (s *Stream) emit(end int, done bool) {
	for _, sp := range s.scan.spans {
		if sp.start >= end {
			break
		}
		if done && !sp.silent {
			if s.found == nil {
				s.found = map[string]int{}
			}
			s.found[sp.kind]++
		}
		s.changed = true
		if sp.end <= s.emitted {
			continue
		}
		s.plain(sp.start)
		if !sp.silent {
			s.escapesTo(s.emitted + 1)
			s.out = append(s.out, Marker(sp.kind)...)
		}
		s.emitted = max(s.emitted, min(sp.end, end))
		s.escapesTo(s.emitted)
	}
	s.plain(end)
}

// plain passes on text that is no secret.
func (s *Stream) plain(end int) {
	for s.emitted < end {
		to := end
		if s.shown < len(s.strip.escapes) {
			at := s.strip.escapes[s.shown].at
			if at <= s.emitted {
				s.escapesTo(s.emitted + 1)
				continue
			}
			to = min(to, at)
		}
		s.out = append(s.out, s.strip.plain[s.emitted:to]...)
		s.emitted = to
	}
}

// escapesTo passes on the escapes that stand before a place in the text.
func (s *Stream) escapesTo(at int) {
	for s.shown < len(s.strip.escapes) && s.strip.escapes[s.shown].at < at {
		s.out = append(s.out, s.strip.escapes[s.shown].seq...)
		s.shown++
	}
}

// partial passes on the harmless begin of what is not complete.
func (s *Stream) partial() {
	text := s.strip.plain
	if s.pos >= len(text) {
		s.escapesTo(len(text) + 1)
		return
	}
	hold := len(text)
	if s.scan.unit(s.pos); s.scan.waits && s.scan.waitAt > s.pos {
		hold = s.scan.waitAt
	} else if s.scan.carry.pem || s.scan.carry.swallow || s.complete() {
		return // lines that may be a private key
	}
	try := scanner{known: s.scan.known, text: text, final: true, open: true, carry: s.scan.carry}
	end, _ := try.unit(s.pos)
	hold = min(hold, end)
	if try.waits {
		hold = min(hold, try.waitAt)
	}
	for _, sp := range try.spans {
		if sp.end >= len(text) {
			hold = min(hold, sp.start)
		}
	}
	word := len(text)
	for word > s.pos && !(endsWord[text[word-1]] && !isQuote(text[word-1])) {
		word--
	}
	if !s.prompt(text[word:]) {
		hold = min(hold, word)
	}
	if known := s.scan.known; known != nil {
		hold = min(hold, known.tail(text, s.pos))
	}
	for _, sp := range try.spans { // never inside a secret
		if sp.start < hold && hold < sp.end {
			hold = sp.start
		}
	}
	if hold <= s.emitted {
		return
	}
	spans := s.scan.spans
	s.scan.spans = try.spans
	s.emit(hold, false)
	s.scan.spans = spans
}

// complete says whether the unit that waits has a complete line.
func (s *Stream) complete() bool {
	for _, b := range s.strip.plain[s.pos:] {
		if b == '\n' {
			return true
		}
	}
	return false
}

// prompt says whether a last word can be passed on: it ends as prompts do, and no URL or quote is open in it.
func (s *Stream) prompt(word []byte) bool {
	if len(word) == 0 {
		return true
	}
	if bytes.HasSuffix(word, []byte("：")) || bytes.HasSuffix(word, []byte("？")) || bytes.HasSuffix(word, []byte("）")) {
		return true
	}
	switch word[len(word)-1] {
	case ':', '>', '$', '#', '?', '%', ')', ']':
	default:
		return len(word) <= 12 && onlyLetters(word)
	}
	for i, b := range word {
		if isQuote(b) || b == '=' || b == '/' && i > 0 && word[i-1] == '/' || b == ':' && i < len(word)-1 {
			return false
		}
	}
	return true
}

func (s *Stream) send() {
	if len(s.out) == 0 || s.err != nil {
		return
	}
	_, s.err = s.w.Write(s.out)
	s.out = s.out[:0]
	if cap(s.out) > 256<<10 {
		s.out = nil
	}
}

// compact forgets what was passed on, up to the text that names of values are looked for in.
func (s *Stream) compact() {
	drop := s.pos - 2*lookBack
	if drop < lookBack || s.whole {
		return
	}
	s.strip.account()
	s.strip.last -= drop
	n := copy(s.strip.plain, s.strip.plain[drop:])
	s.strip.plain = s.strip.plain[:n]
	if n == 0 || cap(s.strip.plain) > 256<<10 {
		s.strip.plain = append([]byte(nil), s.strip.plain...)
	}
	left := s.strip.escapes[s.shown:]
	for i := range left {
		left[i].at -= drop
	}
	s.strip.escapes = append(s.strip.escapes[:0], left...)
	s.shown = 0
	s.pos -= drop
	s.emitted -= drop
	s.scan.block = max(0, s.scan.block-drop)
}
