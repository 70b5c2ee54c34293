package redact

import "bytes"

// meaning is what a word announces.
type meaning byte

const (
	saysPassword meaning = iota + 1
	saysSecret           // token, secret
	saysKey              // key: with what is before it
	saysBearer
	saysBasic
	saysIdentified // SQL: identified by 'x'
	saysEcho       // echo x | sudo -S
	saysEnv        // ENV NAME x
	saysAuth       // AUTH x, requirepass x
	saysCommand    // a program that takes passwords in flags
)

var words = map[string]meaning{
	"password": saysPassword, "passwd": saysPassword, "passphrase": saysPassword, "passcode": saysPassword, "pwd": saysPassword,
	"token": saysSecret, "secret": saysSecret, "key": saysKey, "apikey": saysSecret, "bearer": saysBearer, "basic": saysBasic,
	"identified": saysIdentified, "echo": saysEcho, "printf": saysEcho, "env": saysEnv, "arg": saysEnv, "setx": saysEnv,
	"set": saysEnv, "requirepass": saysAuth, "masterauth": saysAuth, "auth": saysAuth,
}

// word looks at the word that begins at i, and gives the end of a secret it begins or announces.
func (s *scanner) word(i int) int {
	text := s.text
	b := text[i]
	if i+1 >= s.stop {
		return 0
	}
	if startOf[int(b)<<8|int(text[i+1])] != 0 {
		if n := s.shape(i); n > 0 {
			return n
		}
	}
	switch b {
	case '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		if i+8 < s.stop {
			if n := s.numbered(i); n > 0 {
				return n
			}
		}
	case 'M', 'N', 'O':
		if i+58 < s.stop && isWord[text[i+20]] {
			if n := s.bot(i); n > 0 {
				return n
			}
		}
		if b == 'M' {
			if n := s.keyBody(i); n > 0 {
				return n
			}
		}
	case 'b':
		if n := s.keyBody(i); n > 0 {
			return n
		}
	}
	if !byWord[int(lower(b))<<8|int(lower(text[i+1]))] {
		return s.underscored(i)
	}
	e := i
	for e < s.stop && e-i < 20 && (isWord[text[e]] || text[e] == '-') {
		e++
	}
	var buf [20]byte
	w := lowerInto(buf[:0], text[i:e])
	m := words[string(w)]
	if m == 0 {
		if n := bytes.IndexByte(w, '-'); n > 0 {
			e = i + n
			m = words[string(w[:n])]
		}
	}
	if m == 0 {
		return s.underscored(i)
	}
	if e >= s.stop || i > 0 && (text[i-1] == '-' && m != saysBearer && m != saysBasic || text[i-1] == '.' || text[i-1] == '/' && m != saysCommand) {
		return 0
	}
	blank := text[e] == ' ' || text[e] == '\t'
	switch m {
	case saysPassword:
		return s.said(i, e, password)
	case saysSecret:
		return s.said(i, e, token)
	case saysKey:
		start := i
		for start > 0 && text[start-1] == ' ' && i-start < 2 {
			start--
		}
		for start > 0 && isWord[text[start-1]] && i-start < 20 {
			start--
		}
		if start < i && classOf(text[start:e]) == secret {
			return s.said(i, e, secret)
		}
	case saysBearer, saysBasic:
		return s.scheme(e, m)
	case saysIdentified:
		if by := bytes.Index(bytes.ToLower(text[e:min(s.stop, e+80)]), []byte(" by ")); by >= 0 {
			return s.literal(e + by + 4)
		}
	case saysEcho:
		if blank {
			return s.echo(e)
		}
	case saysEnv:
		if blank {
			return s.env(e)
		}
	case saysAuth:
		if blank {
			vs, ve, st, _ := s.read(e, said)
			if v := text[vs:ve]; judge(password, v, st, true) && (s.alone(ve) && (m != saysAuth || hasDigit(v)) && (w[0] != 'a' || random(v))) {
				s.add(vs, ve, "password")
				return ve
			}
		}
	case saysCommand:
		if blank && i >= s.cmdEnd {
			return s.command(e, commands[string(w[:e-i])])
		}
	}
	return 0
}

func lower(b byte) byte {
	if b >= 'A' && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}

// underscored takes out the value after a name such as API_TOKEN that only a blank separates.
func (s *scanner) underscored(i int) int {
	text := s.text
	e, lines := i, 0
	for ; e < s.stop && isWord[text[e]]; e++ {
		if text[e] == '_' {
			lines++
		}
	}
	if lines == 0 || e+8 >= s.stop || text[e] != ' ' || e-i > maxName {
		return 0
	}
	c := classOf(text[i:e])
	if c != password && c != secret && c != token {
		return 0
	}
	vs, ve, st, _ := s.read(e, said)
	if vs-e > 8 || !random(text[vs:ve]) || !judge(c, text[vs:ve], st, s.alone(ve)) {
		return 0
	}
	s.add(vs, ve, c.kind())
	return ve
}

// said looks for a value in what a sentence or a prompt says after the word that ends at e.
func (s *scanner) said(i, e int, c class) int {
	text := s.text
	v := e
	for v < s.stop && (text[v] == ' ' || text[v] == '\t') {
		v++
	}
	if v >= s.stop || v == e && text[v] < 0x80 && text[v] != '(' && text[v] != ',' && !isQuote(text[v]) {
		return 0
	}
	rest := text[v:s.stop]
	sure := false
	switch {
	case hasWord(rest, "for"): // password for x: y; SET PASSWORD FOR x = y
		at := -1
		for j := v; j < min(s.stop, v+160); j++ {
			if (text[j] == ':' || text[j] == '=') && (j+1 == s.stop || text[j+1] == ' ') {
				at = j
				break
			}
			if hasWord(text[j:s.stop], "is") && text[j-1] == ' ' {
				at = j + 1
				break
			}
		}
		if at < 0 {
			return 0
		}
		return s.value(i, at+1, c, colon)
	case text[v] == '(': // password (again): x
		n := bytes.IndexByte(text[v:min(s.stop, v+40)], ')')
		if n < 0 || v+n+1 >= s.stop || text[v+n+1] != ':' {
			return 0
		}
		return s.value(i, v+n+2, c, colon)
	case isQuote(text[v]) && v > e && (c == password || c == token) && text[v] != '`':
		vs, ve, _, closed := s.read(v, said)
		if !closed || !judge(c, text[vs:ve], quoted, false) || onlyName(text[vs:ve]) && !hasDigit(text[vs:ve]) && text[v] == '"' {
			return 0
		}
		s.add(vs, ve, c.kind())
		return ve
	case text[v] == ',' || isQuote(text[v]): // ["--password", "x"] is for flags
		return 0
	}
	for _, w := range [...]string{"is", "was", "are", "will be", "to", "是", "为", "為", "："} {
		if bytes.HasPrefix(rest, []byte(w)) && (w[0] >= 0x80 || hasWord(rest, w)) {
			v += len(w)
			sure = true
			break
		}
	}
	for n := 0; n < 2 && v < s.stop; n++ {
		if text[v] == ':' && sure {
			v++
		} else if bytes.HasPrefix(text[v:s.stop], []byte("：")) {
			v += 3
			sure = true
		}
		for v < s.stop && (text[v] == ' ' || text[v] == '\t') {
			v++
		}
	}
	vs, ve, st, _ := s.read(v, said)
	val := text[vs:ve]
	if n := s.announced(i, v, c); n > 0 {
		return n
	}
	if len(val) < 4 || st == said && bytes.HasPrefix(text[ve:s.stop], []byte(":")) {
		return 0
	}
	if !sure && c == password { // password x: in a netrc file, or when it looks like one
		t := traitsOf(val)
		inNetrc := bytes.Contains(text[max(s.back, i-100):i], []byte("login ")) || bytes.Contains(text[max(s.back, i-100):i], []byte("machine "))
		own := s.alone(ve) && len(bytes.TrimSpace(text[s.back:i])) == 0
		if !inNetrc && t.changes < 2 && !(own && t.digit > 0) && !(t.changes > 0 && t.other > 0 && t.digit > 0) {
			return 0
		}
	}
	if !judge(c, val, st, s.alone(ve)) {
		return 0
	}
	s.add(vs, ve, c.kind())
	return ve
}

// announced takes out what ends a line after some words and a colon: the password generated for ann is: x.
func (s *scanner) announced(i, v int, c class) int {
	text := s.text
	for j := v; j+1 < min(s.stop, v+80); j++ {
		switch b := text[j]; {
		case b == ':' && text[j+1] == ' ':
			vs, ve, st, _ := s.read(j+2, colon)
			val := text[vs:ve]
			if len(val) < 6 || !s.alone(ve) || !hasDigit(val) || traitsOf(val).changes < 2 || !judge(c, val, st, true) {
				return 0
			}
			s.add(vs, ve, c.kind())
			return ve
		case isWord[b], b == ' ', b == '@', b == '-', b == '\'', b == '.' && isWord[text[j+1]]:
		default:
			return 0
		}
	}
	return 0
}

// hasWord says whether a text begins with a word and a blank, in any case.
func hasWord(text []byte, w string) bool {
	return len(text) > len(w) && (text[len(w)] == ' ' || text[len(w)] == ':') && bytes.EqualFold(text[:len(w)], []byte(w))
}

// scheme takes out what comes after Bearer or Basic.
func (s *scanner) scheme(e int, m meaning) int {
	text := s.text
	v := e
	for v < s.stop && (text[v] == ' ' || text[v] == '\t') {
		v++
	}
	if v == e && bytes.HasPrefix(text[v:s.stop], []byte("%20")) {
		v += 3
	}
	to := v
	for to < s.stop && isToken[text[to]] {
		to++
	}
	val := text[v:to]
	if v == e || len(val) < 6 || placeholder(val) {
		return 0
	}
	if m == saysBasic {
		if !basic(val) {
			return 0
		}
		s.add(v, to, "authorization")
		return to
	}
	t := traitsOf(val)
	if t.digit == 0 && (t.changes < 2 || kebab(val)) || len(val) < 8 {
		return 0
	}
	if to == s.stop {
		to, _ = s.wrapped(v, to, len(val), 0)
	}
	s.add(v, to, "authorization")
	return to
}

// literal takes out a value in quotes at v.
func (s *scanner) literal(v int) int {
	vs, ve, st, _ := s.read(v, said)
	if st != quoted || !judge(password, s.text[vs:ve], quoted, true) {
		return 0
	}
	s.add(vs, ve, "password")
	return ve
}

// env takes out the value of ENV NAME value, setx NAME value.
func (s *scanner) env(i int) int {
	start, end, next, ok := s.argument(i)
	if !ok || bytes.IndexByte(s.text[start:end], '=') >= 0 {
		return 0
	}
	c := classOf(s.text[start:end])
	if c != password && c != secret && c != token {
		return 0
	}
	vs, ve, st, _ := s.read(next, said)
	if vs == ve || bytes.IndexByte(s.text[start:end], '_') < 0 && !random(s.text[vs:ve]) || !judge(c, s.text[vs:ve], st, s.alone(ve)) {
		return 0
	}
	s.add(vs, ve, c.kind())
	return ve
}

// dash looks at a dash at i: a private key, or a flag whose name is that of a secret.
func (s *scanner) dash(i int) int {
	text := s.text
	if i+4 >= s.stop {
		return 0
	}
	if text[i+1] == '-' && text[i+2] == '-' {
		if header, ok := s.label(i, pemBegin); ok {
			return s.key(i, header)
		}
		for i < s.stop && text[i] == '-' {
			i++
		}
		return i
	}
	if i > 0 && text[i-1] > ' ' && !isQuote(text[i-1]) && text[i-1] != '[' && text[i-1] != '(' {
		return 0
	}
	start := i + 1
	if text[start] == '-' {
		start++
	}
	e := start
	for e < s.stop && isName[text[e]] {
		e++
	}
	if e-start < 4 || e >= s.stop {
		return 0
	}
	c := classOf(text[start:e])
	if c != password && c != secret && c != token {
		return 0
	}
	v, st := e, flag
	switch {
	case text[e] == ' ':
	case isQuote(text[e]): // ["--password", "x"]
		for v < s.stop && (isQuote(text[v]) || text[v] == ',' || text[v] == ' ') {
			v++
		}
		if v == s.stop || !isQuote(text[v-1]) || v-e < 3 {
			return 0
		}
		v--
		st = quoted
	default:
		return 0
	}
	vs, ve, st2, _ := s.read(v, st)
	if vs == ve || text[vs] == '-' || !judge(c, text[vs:ve], st2, s.alone(ve) || bytes.HasPrefix(text[ve:s.stop], []byte(" -"))) {
		return e
	}
	if ve == s.stop {
		ve, _ = s.wrapped(vs, ve, ve-vs, 0)
	}
	s.add(vs, ve, c.kind())
	return ve
}
