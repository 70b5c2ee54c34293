package redact

import (
	"bytes"
	"math"
)

// style is how a value is written.
type style byte

const (
	quoted   style = iota // in quotes
	assigned              // name=value
	spaced                // name = value
	colon                 // name: value
	flag                  // --name value
	said                  // in a sentence
)

// stopWords are values that are no secret, whatever their name.
var stopWords = set("string str bytes byte int bool text varchar char any object null nil none undefined true false yes no on off " +
	"required optional invalid incorrect wrong expired missing empty unset not set changed change reset default example " +
	"placeholder password passwd passphrase secret token tokens key keys apikey value the a an is are was were must see use your " +
	"my for to in at of and or with has have had can cannot should will from this that it if enter please input type " +
	"hidden prompt ask stdin env file self args async await new function return lambda failed success ok denied " +
	"authentication authenticated login user username redacted masked filtered encrypted sensitive unknown changeme " +
	"flag option argument field policy policies strength too does do did be been again only protected hash hashed mismatch " +
	"error bearer basic digest negotiate anonymous disabled enabled valid verified refreshed revoked rotated generated " +
	"created updated deleted found accepted rejected removed added used unused number boolean interface struct float " +
	"const var let pass pwd pw somepassword yourpassword mypassword confirmpassword testing test dummy changeit todo tbd " +
	"manager store file vault keychain keyring unlimited none-set number uint64 int64 uuid date datetime timestamp integer " +
	"length minimum maximum characters letters digits usage count here there below above reason status by when before after " +
	"secretstr json yaml base64 hex utf8 document.cookie application/json verifypassword")

// placeholder says whether a value stands for one: $VAR, ${VAR}, <your-key>, ****, %s, [REDACTED].
func placeholder(v []byte) bool {
	if len(v) == 0 {
		return true
	}
	switch v[0] {
	case '$':
		return variable(v)
	case '<':
		return v[len(v)-1] == '>' || bytes.HasPrefix(v, []byte("<your")) || bytes.HasPrefix(v, []byte("</"))
	case '{':
		return len(v) == 1 || v[1] == '{' || v[1] == '%' || v[len(v)-1] == '}' || v[1] == '"'
	case '%':
		if len(v) <= 3 || v[1] == '(' || v[1] == '{' || v[len(v)-1] == '%' && onlyName(v[1:len(v)-1]) {
			return true
		}
	case '(':
		return v[len(v)-1] == ')' || bytes.HasPrefix(v, []byte("(sens"))
	case '[':
		if bytes.HasPrefix(bytes.ToLower(v[:min(len(v), 9)]), []byte("[redacted")) || bytes.HasPrefix(v, []byte("[已脱敏")) {
			return true
		}
		return len(v) <= 2 || v[len(v)-1] == ']' && onlyName(v[1:len(v)-1])
	}
	if bytes.HasPrefix(v, []byte("%5BREDACTED")) || bytes.HasPrefix(v, []byte("***")) || bytes.HasPrefix(v, []byte("...")) ||
		bytes.HasSuffix(v, []byte("...")) || bytes.Contains(v, []byte("…")) || bytes.Contains(v, []byte("****")) {
		return true
	}
	same := true
	for _, b := range v[1:] {
		if b != v[0] {
			same = false
			break
		}
	}
	if same {
		return true
	}
	if first := v[0] | 0x20; len(v) <= 40 && (first == 'y' || first == 'm' || first == 'i' || first == 'r' || first == 'x' || first == 'c' ||
		first == 'e' || first == 'p' || first == 'd' || v[0] == '<') {
		var buf [40]byte
		l := lowerInto(buf[:0], v)
		for _, p := range [...]string{"your-", "your_", "yourp", "yours", "yourt", "yourk", "youra", "my-secret", "my_secret", "insert",
			"replace", "xxxx", "change-me", "change_me", "changeme", "example", "placeholder", "dummy", "<your"} {
			if bytes.HasPrefix(l, []byte(p)) && (len(l) < len(p)+24) && !hasDigit(l[len(p):]) {
				return true
			}
		}
	}
	return false
}

// variable says whether a text is a reference to variables only: $A, ${A}, $(cmd), $A:$B, $1.
func variable(v []byte) bool {
	if len(v) == 1 {
		return true
	}
	if v[1] == '{' || v[1] == '(' {
		return true
	}
	if !isWord[v[1]] {
		return v[1] == '$' || v[1] == '!' || v[1] == '@' || v[1] == '*' || v[1] == '?' || v[1] == '#'
	}
	for _, b := range v[1:] {
		if !isWord[b] && bytes.IndexByte([]byte(`$:{}.-[]>'"`), b) < 0 {
			return false
		}
	}
	return !(hasDigit(v[1:]) && len(v) >= 12 && random(v[1:]))
}

func hasDigit(v []byte) bool {
	for _, b := range v {
		if b >= '0' && b <= '9' {
			return true
		}
	}
	return false
}

func onlyName(v []byte) bool {
	for _, b := range v {
		if !isWord[b] && b != '-' && b != '.' && b != ' ' {
			return false
		}
	}
	return true
}

func lowerInto(buf, v []byte) []byte {
	for _, b := range v {
		if b >= 'A' && b <= 'Z' {
			b += 'a' - 'A'
		}
		buf = append(buf, b)
	}
	return buf
}

// traits counts what a value is made of.
type traits struct {
	upper, lower, digit, other, high int
	changes                          int // between letters and digits, or from lower to upper case
}

func traitsOf(v []byte) (t traits) {
	var prev byte
	for _, b := range v {
		var k byte
		switch {
		case b >= 'a' && b <= 'z':
			t.lower++
			k = 'a'
		case b >= 'A' && b <= 'Z':
			t.upper++
			k = 'A'
		case b >= '0' && b <= '9':
			t.digit++
			k = '0'
		case b >= 0x80:
			t.high++
			k = 'h'
		default:
			t.other++
			k = '.'
		}
		if prev != 0 && k != prev && !(prev == 'A' && k == 'a') && k != '.' && prev != '.' {
			t.changes++
		}
		prev = k
	}
	return t
}

// countLog holds n*log2(n).
var countLog = func() (table [256]float64) {
	for n := 1; n < len(table); n++ {
		table[n] = float64(n) * math.Log2(float64(n))
	}
	return table
}()

// entropy is Shannon's, in bits a byte, of the first 255 bytes.
func entropy(v []byte) float64 {
	v = v[:min(len(v), 255)]
	if len(v) == 0 {
		return 0
	}
	var n [256]uint8
	for _, b := range v {
		n[b]++
	}
	e := countLog[len(v)]
	for _, b := range v {
		e -= countLog[n[b]]
		n[b] = 0
	}
	return e / float64(len(v))
}

// random says whether a value looks drawn rather than named: words and numbers joined by dashes do not.
func random(v []byte) bool {
	if len(v) < 8 {
		return false
	}
	t := traitsOf(v)
	if t.lower+t.upper == 0 || t.high > 0 {
		return t.digit >= 16 && t.other == 0
	}
	if t.digit == 0 {
		return t.changes >= 3 && (t.other == 0 || t.changes*4 >= len(v)) && entropy(v) >= 3 ||
			len(v) >= 16 && t.lower > 0 && t.upper > 0 && t.changes >= 2 && t.other <= 1 && entropy(v) >= 3.5
	}
	if t.changes >= 3 {
		return entropy(v) >= 2.5
	}
	// Few changes: hunter2 and v1.2.3 are named; something long without a border of words is not.
	return len(v) >= 20 && t.changes >= 2 && t.other <= 2 && entropy(v) >= 3
}

// isPath says whether a value is a path of files rather than base64 that begins with a slash.
func isPath(v []byte) bool {
	switch {
	case len(v) == 0:
		return false
	case v[0] == '/', v[0] == '~' && len(v) > 1 && v[1] == '/', v[0] == '.' && len(v) > 1 && (v[1] == '/' || v[1] == '.'):
	case len(v) > 2 && v[1] == ':' && (v[2] == '\\' || v[2] == '/'):
		return true
	default:
		return false
	}
	for part := range bytes.SplitSeq(v[1:], []byte("/")) {
		if bytes.ContainsAny(part, "+=") || len(part) >= 12 && random(part) && bytes.IndexByte(part, '.') < 0 {
			return false
		}
	}
	return true
}

// isCode says whether a value without quotes is an expression: a call, an index, a dotted name.
func isCode(v []byte) bool {
	switch v[0] {
	case '{', '[', '(', '&', '*', '!', '|', ')', ']', '}', '=', ';', ',':
		return len(v) < 3 || !random(v[1:])
	}
	dots := 0
	start := 0
	for i, b := range v {
		switch {
		case b == '.' || b == ':' && i+1 < len(v) && v[i+1] == ':' || b == '-' && i+1 < len(v) && v[i+1] == '>' || b == '?':
			if i == start && i > 0 && v[i-1] != ':' {
				return false
			}
			if !wordy(v[start:i]) {
				return false
			}
			dots++
			start = i + 1
		case b == ':' && i > 0 && v[i-1] == ':' || b == '>' && i > 0 && v[i-1] == '-':
			start = i + 1
		case b == '(' || b == '[':
			return i > start && wordy(v[start:i])
		case !isWord[b]:
			return dots > 0 && (b == ',' || b == ';' || b == ')') && i >= len(v)-2 && wordy(v[start:i])
		}
	}
	return dots > 0 && start < len(v) && wordy(v[start:])
}

// wordy says whether a part of an expression is a name as people give them.
func wordy(v []byte) bool {
	if len(v) == 0 || v[0] >= '0' && v[0] <= '9' {
		return len(v) == 0
	}
	for _, b := range v {
		if !isWord[b] {
			return false
		}
	}
	t := traitsOf(v)
	return t.digit == 0 && t.changes <= 4 || t.digit <= 2 && t.changes <= 2 && len(v) < 24
}

// harmlessPrefix begin what is a public name of something.
func harmlessPrefix(v []byte) bool {
	for _, p := range [...]string{"arn:", "http://", "https://", "sha256:", "SHA256:", "sha512-", "sha1-", "ssh-rsa", "ssh-ed25519",
		"secretsmanager:", "vault:", "op://", "file:", "env:", "ref+"} {
		if bytes.HasPrefix(v, []byte(p)) {
			return true
		}
	}
	return false
}

// judge says whether a value is a secret, by what its name says, how it is written and what it looks like. alone says that
// nothing follows on its line.
func judge(c class, v []byte, st style, alone bool) bool {
	if len(v) < 4 || placeholder(v) || harmlessPrefix(v) || isPath(v) {
		return false
	}
	trimmed := v
	if st != quoted {
		trimmed = bytes.TrimRight(v, ".,;:)!?")
		if len(trimmed) < 4 {
			return false
		}
		if st != assigned && isCode(v) || st == assigned && isCode(v) && !random(v) {
			return false
		}
	}
	if len(trimmed) <= 40 {
		var buf [40]byte
		if stopWords[string(lowerInto(buf[:0], trimmed))] {
			return false
		}
	}
	t := traitsOf(trimmed)
	if t.high > 0 && st != quoted {
		return false
	}
	letters := t.digit+t.other == 0
	name := t.digit == 0 && t.other > 0 && onlyName(trimmed)
	switch c {
	case password:
		if bytes.Contains(v, []byte(":x:")) { // a line of /etc/passwd
			return false
		}
		if letters && st != quoted && st != assigned && namesSecret(trimmed) {
			return false
		}
		if st == quoted && bytes.IndexByte(v, ' ') >= 0 {
			return t.digit > 0 && t.lower+t.upper > 0 && len(v) < 64 && !sentence(v) || passphrase(v)
		}
		switch {
		case t.lower+t.upper+t.digit == 0:
			return st != said && st != flag && st != colon && len(v) >= 6
		case t.lower+t.upper+t.other == 0:
			return len(v) >= 6 || st == quoted || st == assigned
		case letters:
			switch st {
			case quoted, assigned:
				return true
			case flag:
				return t.upper > 0 && t.lower > 0 && t.changes > 0 || alone && len(v) >= 6
			case colon:
				return alone && len(v) >= 6 || t.changes >= 2
			default:
				return t.changes >= 2
			}
		case name:
			return st == quoted || st == assigned || st == colon && alone || t.changes >= 2
		}
		if st == said || st == flag {
			return len(v) >= 6 && (t.digit > 0 && t.lower+t.upper > 0 || t.other > 0 && t.changes > 0)
		}
		return true
	case token, secret:
		if bytes.IndexByte(v, ' ') >= 0 {
			return false
		}
		if st == said {
			return len(v) >= 8 && t.digit > 0 && random(trimmed) || len(v) >= 16 && random(trimmed)
		}
		if random(trimmed) {
			return true
		}
		if t.lower+t.upper == 0 {
			return t.digit >= 16
		}
		if letters || name {
			return st == quoted && letters && len(v) >= 16 && entropy(v) >= 3.3
		}
		return t.digit > 0 && (st == assigned && len(v) >= 6 || st == quoted && len(v) >= 7 || len(v) >= 12) && !kebab(trimmed) ||
			t.other > 1 && t.digit > 0
	case generic, weak, named:
		if bytes.IndexByte(v, ' ') >= 0 || len(v) < 16 || kebab(trimmed) || bytes.IndexByte(v, ':') >= 0 {
			return false
		}
		return random(trimmed) && t.digit > 0 && (t.upper > 0 && t.lower > 0 || len(v) >= 32) && (c != named || t.upper > 2 && t.lower > 2)
	}
	return false
}

// namesSecret says whether a word holds one for secrets: passwordHash, userToken.
func namesSecret(v []byte) bool {
	l := bytes.ToLower(v)
	return bytes.Contains(l, []byte("passw")) || bytes.Contains(l, []byte("token")) || bytes.Contains(l, []byte("secret"))
}

// kebab says whether a value is words and numbers joined by dashes, dots or slashes: db-credentials-v2.
func kebab(v []byte) bool {
	parts := 0
	for part := range bytes.FieldsFuncSeq(v, func(r rune) bool { return r == '-' || r == '_' || r == '.' || r == '/' || r == ':' }) {
		t := traitsOf(part)
		if t.changes > 1 || t.other > 0 || len(part) > 16 {
			return false
		}
		parts++
	}
	return parts > 1
}

// sentence says whether a text of several words reads like one.
func sentence(v []byte) bool {
	words, plain := 0, 0
	for w := range bytes.FieldsSeq(v) {
		words++
		w = bytes.TrimRight(w, ".,;:!?)")
		if onlyLetters(w) || onlyDigits(w) {
			plain++
		}
	}
	return plain*4 >= words*3
}

// passphrase says whether a text is lower-case words as in "correct horse battery staple".
func passphrase(v []byte) bool {
	words := 0
	for w := range bytes.FieldsSeq(v) {
		if !onlyLetters(w) || len(w) < 3 || stopWords[string(w)] || w[0] < 'a' {
			return false
		}
		words++
	}
	return words >= 4 && words <= 8
}
