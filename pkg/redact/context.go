package redact

import "bytes"

// isName are the bytes of a name before = or :.
var isName = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")

// separator looks at = or : at i: is what is before the name of a secret, or a scheme?
func (s *scanner) separator(i int) int {
	text, v := s.text, i+1
	st := colon
	next := byte(0)
	if v < s.stop {
		next = text[v]
	}
	if text[i] == ':' {
		switch {
		case next == '/' && v+1 < s.stop && text[v+1] == '/':
			return s.url(i)
		case next == ':':
			return i + 2
		case next == '=':
			v, st = v+1, assigned
		case i-s.back < 200 && (next >= '0' && next <= '9' || next == '*'):
			if n := s.pgpass(i); n > 0 {
				return n
			}
		}
	} else {
		st = assigned
		switch {
		case next == '=' || next == '~':
			return i + 2
		case i > 0 && (text[i-1] == '=' || text[i-1] == '!' || text[i-1] == '<' || text[i-1] == '>' || text[i-1] == ':'):
			return 0
		case next == '>':
			v++
		}
	}
	start, end := s.nameBefore(i)
	if start == end || st == colon && (s.inPath(start) || string(text[start:end]) == "PASS") { // /etc/passwd: a line of it
		return 0
	}
	if end < i && (text[i-1] == ' ' || text[i-1] == '\t') && st == assigned {
		st = spaced
	}
	return s.named(start, end, v, st)
}

// inPath says whether a name is the last part of a path.
func (s *scanner) inPath(start int) bool {
	if start == 0 || s.text[start-1] != '/' {
		return false
	}
	first := start - 1
	for first > 0 && start-first < 64 && isWord[s.text[first-1]] {
		first--
	}
	return first > 0 && (s.text[first-1] == '/' || s.text[first-1] == '.' || s.text[first-1] == '-') || first == start-1
}

// nameBefore gives the name that ends before i, over blanks, quotes and brackets.
func (s *scanner) nameBefore(i int) (start, end int) {
	text, lo := s.text, max(0, i-128)
	end = i
	for end > lo && (text[end-1] == ' ' || text[end-1] == '\t') {
		end--
	}
	for n := 0; n < 4 && end > lo; n++ {
		if b := text[end-1]; !isQuote(b) && b != ']' && b != '\\' && b != '*' {
			break
		}
		end--
	}
	start = end
	for start > lo && isName[text[start-1]] {
		start--
	}
	if start > lo && text[start-1] == '%' && end-start > 2 && hexes[text[start]] && hexes[text[start+1]] {
		start += 2
	}
	return start, end
}

// named takes out the value at v of a name, when it is a secret.
func (s *scanner) named(start, end, v int, st style) int {
	text := s.text
	name := text[start:end]
	c := classOf(name)
	if c == named || c == generic && end-start == 3 { // "API key"
		b := start
		for b > 0 && text[b-1] == ' ' && start-b < 2 {
			b--
		}
		w := b
		for w > 0 && isWord[text[w-1]] && b-w < 16 {
			w--
		}
		if w < b && b < start && classOf(text[w:end]) == secret {
			c = secret
		}
	}
	switch c {
	case none:
		return 0
	case named:
		if n := s.pair(v); n > 0 {
			return n
		}
	case token:
		var buf [32]byte
		if len(name) <= 32 {
			switch string(lowerInto(buf[:0], name)) {
			case "authorization", "proxy-authorization":
				return s.authorization(v)
			case "cookie", "set-cookie":
				return s.cookies(v)
			}
		}
	}
	return s.value(start, v, c, st)
}

// read finds a value at v, and how it is written: quoted, or up to where its word ends. closed is false for quotes that
// do not end on the line.
func (s *scanner) read(v int, st style) (start, end int, as style, closed bool) {
	text := s.text
	for v < s.stop && (text[v] == ' ' || text[v] == '\t') {
		if v++; st == assigned {
			st = spaced
		}
	}
	q := v
	if q+1 < s.stop && (text[q] == 'b' || text[q] == 'r' || text[q] == 'u' || text[q] == 'f' || text[q] == '@' || text[q] == '[' ||
		text[q] == '(' || text[q] == '{') && isQuote(text[q+1]) {
		q++
	}
	escaped := false
	for q < s.stop && text[q] == '\\' {
		q++
		escaped = true
	}
	if q < s.stop && isQuote(text[q]) {
		quote := text[q]
		for q++; q < s.stop && text[q] == quote && q+1 < s.stop && text[q+1] == quote; q++ { // """
		}
		e := q
		for ; e < s.stop; e++ {
			if text[e] == '\\' && !escaped {
				e++
				continue
			}
			if text[e] == quote {
				break
			}
		}
		e = min(e, s.stop)
		closed = e < s.stop
		if escaped {
			for e > q && text[e-1] == '\\' {
				e--
			}
		}
		return q, e, quoted, closed
	}
	e := v
	for ; e < s.stop; e++ {
		b := text[e]
		if b == '<' && !s.opensTag(e) || b == '>' && e > v {
			continue
		}
		if endsWord[b] || b >= 0xe2 || b == '\\' && e+1 < s.stop && (isQuote(text[e+1]) || text[e+1] == 'n' && st != assigned) {
			break
		}
		if (b == '&' || b == ',' || b == ';') && e > v && s.separates(e) {
			break
		}
		if (b == ')' || b == '}' || b == ']' || b == '|') && e > v && s.closes(e) {
			break
		}
	}
	if st == colon || st == said || st == flag {
		for e > v+1 && (text[e-1] == '.' || text[e-1] == ',' || text[e-1] == ';') {
			e--
		}
	}
	return v, e, st, true
}

// opensTag says whether the < at i begins an element or ends one.
func (s *scanner) opensTag(i int) bool {
	j := i + 1
	for j < s.stop && (isWord[s.text[j]] || s.text[j] == '/') {
		j++
	}
	return j < s.stop && s.text[j] == '>' && j-i < 40 && (j == i+1 || i > 0 && s.text[i-1] > ' ' || s.text[i+1] == '/')
}

// separates says whether the & , or ; at i ends a value: a blank, a quote, the end or another name=value comes after it.
func (s *scanner) separates(i int) bool {
	j := i + 1
	for j < s.stop && isName[s.text[j]] && j-i < 48 {
		j++
	}
	return j == s.stop || s.text[i] == '&' && j == i+1 || j > i+1 && (s.text[j] == '=' || s.text[j] == ':') ||
		j == i+1 && (endsWord[s.text[j]] || s.text[j] == ')' || s.text[j] == '}' || s.text[j] == ']') && s.text[i] != '&'
}

// closes says whether the bracket at i ends a value: only punctuation is left of its word, and it was not opened in it.
func (s *scanner) closes(i int) bool {
	for j := i; j < s.stop && !endsWord[s.text[j]]; j++ {
		switch s.text[j] {
		case ')', '}', ']', ',', ';', ':', '.', '|':
		default:
			return false
		}
	}
	return true
}

// alone says whether nothing but punctuation follows on the line.
func (s *scanner) alone(i int) bool {
	for ; i < s.stop; i++ {
		switch s.text[i] {
		case ' ', '\t', ',', ';', '"', '\'', '}', ']', ')', '\r':
		case '#':
			return true
		default:
			return false
		}
	}
	return true
}

// value takes out the value at v when it is a secret of that class. start is where its name begins.
func (s *scanner) value(start, v int, c class, st style) int {
	vs, ve, st, closed := s.read(v, st)
	if vs == ve || ve-vs <= 2 && ve == s.stop && (s.text[vs] == '|' || s.text[vs] == '>') {
		if s.alone(ve) && c != weak && c != named && st != flag {
			return s.below(start, c, ve > vs)
		}
		return 0
	}
	val := s.text[vs:ve]
	ok := judge(c, val, st, s.alone(ve))
	if ve == s.stop && !s.isCut() && closed == (st != quoted) && c != weak && c != named && (ok || len(val) < 16 && !placeholder(val)) {
		least := 0
		if !ok {
			least = len(val) + 16
		}
		end, n := s.wrapped(start, ve, len(val), least)
		if n > len(val) && (ok || judge(c, joined(s.text[vs:end]), st, true) && random(s.text[ve:end])) {
			ve, ok = end, true
		}
	}
	if !ok {
		if ve-vs > 256 && s.tooMany(ve) {
			return ve
		}
		return 0
	}
	s.add(vs, ve, c.kind())
	return ve
}

// below takes out a value on the line after its name: a block of YAML, a broken line. Only what looks random is taken
// unless a block was announced.
func (s *scanner) below(start int, c class, block bool) int {
	if s.isCut() {
		return 0
	}
	line, le, ok := s.next(s.stop, start)
	if !ok {
		return 0
	}
	for line < le && (s.text[line] == ' ' || s.text[line] == '\t' || isQuote(s.text[line])) {
		line++
	}
	end := line
	for end < le && !endsWord[s.text[end]] {
		end++
	}
	val := bytes.TrimRight(s.text[line:end], ",;")
	if len(val) < 8 || end < le && !isQuote(s.text[end]) || assignment(val) || bytes.HasSuffix(val, []byte(":")) ||
		!judge(c, val, quoted, true) || !block && !random(val) {
		return 0
	}
	s.add(line, line+len(val), c.kind())
	return line + len(val)
}

// pair takes out the value of name: DB_PASSWORD, value: x, where both are on one line or on two.
func (s *scanner) pair(v int) int {
	vs, ve, _, _ := s.read(v, colon)
	c := classOf(s.text[vs:ve])
	if c != password && c != secret && c != token {
		return 0
	}
	at := bytes.Index(s.text[ve:min(s.stop, ve+80)], []byte("alue"))
	lineStop := s.stop
	from := ve
	if at < 0 {
		if !s.alone(ve) || s.isCut() {
			return 0
		}
		line, le, ok := s.next(s.stop, vs)
		if !ok {
			return 0
		}
		if at = bytes.Index(s.text[line:min(le, line+40)], []byte("alue")); at < 0 {
			return 0
		}
		from, lineStop = line, le
	}
	i := from + at + 4
	for i < lineStop && (isQuote(s.text[i]) || s.text[i] == ' ' || s.text[i] == '\\') {
		i++
	}
	if i >= lineStop || s.text[i] != ':' && s.text[i] != '=' {
		return 0
	}
	defer func(stop int) { s.stop = stop }(s.stop)
	s.stop = lineStop
	xs, xe, st, _ := s.read(i+1, assigned)
	if xs == xe || !judge(c, s.text[xs:xe], st, true) {
		return 0
	}
	s.add(xs, xe, c.kind())
	return xe
}

// url takes out the password, or the token, in the user part of a URL whose "://" is at i.
func (s *scanner) url(i int) int {
	text := s.text
	host := i + 3
	if i == 0 || !isWord[text[i-1]] {
		return host
	}
	end, at, slash, colonAt := host, -1, -1, -1
	for ; end < s.stop && !endsWord[text[end]] && text[end] < 0x80 && end-host < 1024; end++ {
		switch text[end] {
		case '/', '?', '#':
			if slash < 0 {
				slash = end
			}
		case '@':
			if slash < 0 || at < 0 && colonAt > 0 && !onlyDigits(text[colonAt+1:slash]) && text[slash] == '/' {
				at = end
			}
		case ':':
			if bytes.HasPrefix(text[end:s.stop], []byte("://")) {
				return host
			}
			if colonAt < 0 && slash < 0 {
				colonAt = end
			}
		}
	}
	if at < 0 || bytes.Contains(text[host:at], []byte(marker)) {
		return max(host, at)
	}
	if colonAt >= 0 && colonAt < at {
		pw := text[colonAt+1 : at]
		if len(pw) < 2 || placeholder(pw) || stopWords[string(bytes.ToLower(pw))] {
			return at
		}
		s.add(colonAt+1, at, "url-password")
		return at
	}
	user := text[host:at]
	if len(user) >= 16 && random(user) && !placeholder(user) {
		s.add(host, at, "url-token")
	}
	return at
}

// pgpass takes out the password of a line of a .pgpass file: host:port:database:user:password, of which i is the first
// colon.
func (s *scanner) pgpass(i int) int {
	text := s.text
	line := i
	for line > 0 && text[line-1] != '\n' && i-line < 128 {
		line--
		if b := text[line]; b <= ' ' && b != '\n' || b == ':' || b == '/' || b == '"' {
			return 0
		}
	}
	if line == i {
		return 0
	}
	fields := bytes.SplitN(text[i+1:s.stop], []byte(":"), 4)
	if len(fields) != 4 || !onlyDigits(fields[0]) && string(fields[0]) != "*" || len(fields[0]) > 5 || len(fields[1]) == 0 ||
		len(fields[2]) == 0 || onlyDigits(fields[1]) || onlyDigits(fields[2]) {
		return 0
	}
	pw := fields[3]
	if len(pw) < 4 || bytes.ContainsAny(pw, " \t") || placeholder(pw) || pw[0] == '/' || bytes.ContainsAny(fields[1], " /") ||
		bytes.ContainsAny(fields[2], " /") {
		return 0
	}
	s.add(s.stop-len(pw), s.stop, "password")
	return s.stop
}

// percent looks at an escape of a URL at i: %3D is =, and what comes after any begins a word.
func (s *scanner) percent(i int) int {
	if i+2 >= s.stop || !hexes[s.text[i+1]] || !hexes[s.text[i+2]] {
		return 0
	}
	if s.text[i+1] != '3' || s.text[i+2]|0x20 != 'd' {
		return i + 3
	}
	start, end := s.nameBefore(i)
	c := classOf(s.text[start:end])
	v := i + 3
	if c == none {
		return v
	}
	e := v
	for e < s.stop && !endsWord[s.text[e]] && s.text[e] != '&' && !bytes.HasPrefix(s.text[e:s.stop], []byte("%26")) {
		e++
	}
	if !judge(c, s.text[v:e], assigned, false) {
		if e-v > 256 && s.tooMany(e) {
			return e
		}
		return v
	}
	s.add(v, e, c.kind())
	return e
}

// tag takes out what is inside of an element: <password>x</password>.
func (s *scanner) tag(i int) int {
	start := i
	for start > s.back && i-start < 64 && isName[s.text[start-1]] {
		start--
	}
	if start == s.back || start == i || s.text[start-1] != '<' {
		return 0
	}
	c := classOf(s.text[start:i])
	e := i + 1
	for e < s.stop && s.text[e] != '<' {
		e++
	}
	if c == none || !judge(c, s.text[i+1:e], quoted, false) {
		return 0
	}
	s.add(i+1, e, c.kind())
	return e
}

// hash takes out a hash of a password as crypt(3) writes it.
func (s *scanner) hash(i int) int {
	text := s.text
	id := i + 1
	for id < s.stop && id-i < 16 && (isWord[text[id]] || text[id] == '-') {
		id++
	}
	if id == i+1 || id >= s.stop || text[id] != '$' {
		return 0
	}
	switch string(text[i+1 : id]) {
	case "1", "5", "6", "7", "2a", "2b", "2x", "2y", "y", "gy", "apr1", "argon2id", "argon2i", "argon2d", "scrypt", "pbkdf2",
		"pbkdf2-sha256", "pbkdf2-sha512", "sha1", "8":
	default:
		return 0
	}
	e := id
	for e < s.stop && (isB64[text[e]] || text[e] == '.' || text[e] == '$' || text[e] == ',' || text[e] == '-' || text[e] == '_') {
		e++
	}
	if e-id < 20 || bytes.IndexByte(text[id+1:e], '$') < 0 {
		return 0
	}
	s.add(i, e, "password-hash")
	return e
}
