package redact

import "bytes"

const (
	// maxLine bounds what is looked at as one line, in bytes; a longer one is cut, at a place where no secret is.
	maxLine = 16 << 10
	// lookBack is how much text before a line that goes on after a cut is kept, for the names of values.
	lookBack = 512
	// maxContinued bounds the lines over which a wrapped token goes on.
	maxContinued = 64
)

// span is a secret in the plain text. A silent one leaves no marker: it continues another.
type span struct {
	start, end int
	kind       string
	silent     bool
}

// carry is what one unit leaves to the next.
type carry struct {
	pem     bool // inside a private key
	pemFull bool // its last line was a long one
	swallow bool // inside a value that was too long for one unit
	quote   byte // what ends it; 0: what ends a word
	cut     bool // the unit before ended inside its line
}

// scanner finds secrets in plain text, unit by unit. A unit is a line, or as many lines as a secret spans. What it finds
// depends on the text alone, never on how much of it has arrived: a decision that needs more waits.
type scanner struct {
	known *knownSet
	text  []byte
	final bool // nothing comes after text
	open  bool // but for a look at an unfinished line
	carry carry
	spans []span

	waits  bool // a decision needs text that is not there yet
	waitAt int  // where what it is about begins

	line      int // where the current line, or what is left of it, begins
	back      int // how far back names are looked for in it
	stop      int // where it ends, without its line break
	end       int // where the next begins
	cmdEnd    int // how far arguments of a command were read
	refused   int // candidates in the run of characters that ends at refusedTo
	refusedTo int
	block     int // how far the text is known to be lines of base64
}

// unit looks at the unit that begins at pos and gives where it ends; ok is false when that is not known yet.
func (s *scanner) unit(pos int) (end int, ok bool) {
	s.spans, s.waits, s.cmdEnd, s.refusedTo = s.spans[:0], false, 0, 0
	before := s.carry
	s.carry.cut = false
	end, ok = s.scan(pos, before.cut)
	if !ok {
		s.carry = before
		return 0, false
	}
	s.merge(pos)
	return end, true
}

func (s *scanner) scan(pos int, continued bool) (end int, ok bool) {
	if !s.bounds(pos) {
		return 0, false
	}
	from := pos
	switch {
	case s.carry.pem:
		if from, ok = s.inKey(pos); !ok || from >= s.end {
			return s.end, ok
		}
	case s.carry.swallow:
		if from = s.swallowed(pos); from >= s.end {
			s.carry.cut = s.isCut()
			return s.end, true
		}
	case continued:
		from = max(0, pos-lookBack)
		s.back = from
	default:
		if to := s.base64Block(pos); s.waits {
			return 0, false
		} else if to > 0 {
			return to, true
		}
	}
	for {
		i := s.scanLine(from)
		if s.carry.pem || i <= s.end || s.waits && !s.open {
			break
		}
		if !s.bounds(i) { // a secret that goes on in another line
			return 0, false
		}
		from = i
	}
	if s.isCut() && !s.carry.pem {
		s.cut(pos)
	}
	if s.known != nil {
		s.knownValues(pos)
	}
	if s.waits && !s.open {
		return 0, false
	}
	return s.end, true
}

// knownValues looks for known values, which may go on behind the unit: then so does the unit.
func (s *scanner) knownValues(pos int) {
	for from := pos; ; {
		to := s.end
		s.known.find(s, from, to)
		last := 0
		for _, sp := range s.spans {
			last = max(last, sp.end)
		}
		if s.waits || last <= s.end {
			return
		}
		if !s.bounds(last) {
			s.wait(pos)
			return
		}
		from = to
		s.scanLine(last)
	}
}

// bounds sets the line that holds pos. It is false when the line's end is not known yet.
func (s *scanner) bounds(pos int) bool {
	rest := s.text[pos:min(len(s.text), pos+maxLine)]
	s.line, s.back = pos, pos
	if n := bytes.IndexByte(rest, '\n'); n >= 0 {
		s.stop, s.end = pos+n, pos+n+1
		if n > 0 && rest[n-1] == '\r' {
			s.stop--
		}
		return true
	}
	s.stop, s.end = pos+len(rest), pos+len(rest)
	if len(rest) < maxLine && !s.final {
		s.wait(pos)
		return false
	}
	return true
}

// isCut says whether the current line goes on behind the unit.
func (s *scanner) isCut() bool {
	return s.end == s.line+maxLine && s.text[s.end-1] != '\n'
}

// cut moves the end of a unit that would end inside a line to where no secret is cut. A value that fills the unit is
// swallowed up to its end.
func (s *scanner) cut(pos int) {
	s.carry.cut = true
	end := s.end
	if s.known != nil {
		end = s.known.tail(s.text[:end], max(pos, end-maxKnown))
	}
	for i := len(s.spans) - 1; i >= 0; i-- {
		if sp := s.spans[i]; sp.end >= s.stop && sp.start < end {
			if sp.start > pos {
				end = sp.start
				continue
			}
			s.carry.swallow = true
			s.carry.quote = 0
			if sp.start > 0 && isQuote(s.text[sp.start-1]) {
				s.carry.quote = s.text[sp.start-1]
			}
			return
		}
	}
	if end == s.end { // not inside a word, if there is an end of one
		for i := end; i > max(pos, end-maxLine/4); i-- {
			if !isToken[s.text[i-1]] && s.text[i-1] < 0x80 {
				end = i
				break
			}
		}
	}
	if end <= pos {
		end = s.end
	}
	s.end, s.stop = end, end
}

// swallowed goes to where a value ends that was too long for a unit.
func (s *scanner) swallowed(pos int) int {
	i := pos
	for ; i < s.stop; i++ {
		b := s.text[i]
		if s.carry.quote != 0 && b == s.carry.quote && s.text[i-1] != '\\' || s.carry.quote == 0 && endsWord[b] {
			break
		}
	}
	s.spans = append(s.spans, span{pos, i, "", true})
	s.carry.swallow = i == s.stop && s.isCut()
	if i == s.stop && !s.carry.swallow {
		return i
	}
	return i
}

func (s *scanner) add(start, end int, kind string) {
	s.spans = append(s.spans, span{start, end, kind, false})
}

// tooMany counts candidates that were no secrets and go on to the same place. After some it is true, and the caller skips
// to that place: what reads the same characters again and again must end.
func (s *scanner) tooMany(end int) bool {
	if end != s.refusedTo {
		s.refused, s.refusedTo = 0, end
	}
	s.refused++
	return s.refused > 16
}

func (s *scanner) wait(at int) {
	if !s.waits || at < s.waitAt {
		s.waitAt = at
	}
	s.waits = true
}

// next gives the bounds of the line after the one that ends at stop. It is not ok when there is none, or not yet; then
// the decision about what begins at start waits.
func (s *scanner) next(stop, start int) (line, end int, ok bool) {
	i := stop
	if i < len(s.text) && s.text[i] == '\r' {
		i++
	}
	if i >= len(s.text) || s.text[i] != '\n' {
		if i >= len(s.text) && !s.final && !(s.end == s.line+maxLine) {
			s.wait(start)
		}
		return 0, 0, false
	}
	i++
	rest := s.text[i:min(len(s.text), i+maxLine)]
	n := bytes.IndexByte(rest, '\n')
	if n < 0 {
		if len(rest) < maxLine && !s.final {
			s.wait(start)
			return 0, 0, false
		}
		n = len(rest)
	}
	end = i + n
	if n > 0 && rest[n-1] == '\r' {
		end--
	}
	return i, end, true
}

// merge orders the spans, joins those that overlap and cuts what is before pos.
func (s *scanner) merge(pos int) {
	if len(s.spans) == 0 {
		return
	}
	for i := 1; i < len(s.spans); i++ { // few, and nearly in order
		for j := i; j > 0 && s.spans[j].start < s.spans[j-1].start; j-- {
			s.spans[j], s.spans[j-1] = s.spans[j-1], s.spans[j]
		}
	}
	out := s.spans[:0]
	for _, sp := range s.spans {
		if sp.end <= pos || sp.start >= sp.end || sp.start >= s.end {
			continue
		}
		if sp.start < pos {
			sp.start, sp.silent = pos, true
		}
		if n := len(out); n > 0 && sp.start < out[n-1].end {
			out[n-1].end = max(out[n-1].end, sp.end)
			continue
		}
		out = append(out, sp)
	}
	s.spans = out
}

// What a byte may begin.
const (
	actNone = iota
	actWord
	actSep
	actDash
	actHigh
	actPercent
	actTag
	actDollar
	actEscape
	actCall
)

var (
	act      [256]byte
	isWord   [256]bool // letters, digits, underscore
	isToken  [256]bool // what tokens are made of
	isB64    [256]bool
	endsWord [256]bool // what ends a value without quotes, wherever it stands
)

func init() {
	for b := range 256 {
		c := byte(b)
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		digit := c >= '0' && c <= '9'
		isWord[b] = letter || digit || c == '_'
		isToken[b] = letter || digit || c != 0 && bytes.IndexByte([]byte("_-./+=~%"), c) >= 0
		isB64[b] = letter || digit || c == '+' || c == '/' || c == '='
		endsWord[b] = c <= ' ' || c == 0x7f || c == '"' || c == '\'' || c == '`' || c == '<' || c == '>'
		if isWord[b] {
			act[b] = actWord
		}
		if c >= 0x80 {
			act[b] = actHigh
		}
	}
	act['='], act[':'] = actSep, actSep
	act['-'], act['%'], act['>'], act['$'], act['\\'] = actDash, actPercent, actTag, actDollar, actEscape
	act['('], act[','] = actCall, actCall
}

func isQuote(b byte) bool { return b == '"' || b == '\'' || b == '`' }

// scanLine looks for secrets from i to the end of the line, and gives where it stopped: behind the line when a secret
// goes on there.
func (s *scanner) scanLine(i int) int {
	text := s.text
	if i > 0 && i < s.stop && isWord[text[i]] && isWord[text[i-1]] { // in the middle of a word
		for i < s.stop && isWord[text[i]] {
			i++
		}
	}
	for i < s.stop {
		b := text[i]
		n := 0
		switch act[b] {
		case actNone:
			i++
			continue
		case actWord:
			n = s.word(i)
			if n == 0 {
				for i++; i < s.stop && isWord[text[i]]; i++ {
				}
				continue
			}
		case actSep:
			n = s.separator(i)
		case actDash:
			n = s.dash(i)
		case actHigh:
			n = s.wide(i)
		case actPercent:
			n = s.percent(i)
		case actTag:
			n = s.tag(i)
		case actDollar:
			n = s.hash(i)
		case actCall:
			n = s.call(i)
		case actEscape:
			if i+1 < s.stop && (text[i+1] == 'n' || text[i+1] == 't' || text[i+1] == 'r') {
				n = i + 2
			}
		}
		if n > i {
			i = n
		} else {
			i++
		}
		if s.carry.pem {
			return s.end
		}
	}
	return i
}
