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

// flagOf says how a program takes a password.
type flagOf struct {
	flag     string // with its dash; "" is an argument, see after
	attached bool   // the value may be written without a blank
	only     bool   // attached only
	split    byte   // the password is what comes after this byte
	after    string // the flag is one of passwords only after this argument
	nth      int    // of arguments without dash, from 1
}

var commands = map[string][]flagOf{}

func init() {
	add := func(names string, flags ...flagOf) {
		for name := range set(names) {
			commands[name] = flags
			words[name] = saysCommand
		}
	}
	add("sshpass", flagOf{flag: "-p", attached: true})
	add("mysql mysqldump mysqladmin mysqlimport mysqlshow mysqlcheck mariadb mycli", flagOf{flag: "-p", attached: true, only: true})
	add("docker podman nerdctl helm skopeo oras crane buildah az", flagOf{flag: "-p", after: "login"})
	add("curl wget http https xh aria2c", flagOf{flag: "-u", attached: true, split: ':'}, flagOf{flag: "--user", split: ':'},
		flagOf{flag: "-U", split: ':'}, flagOf{flag: "--proxy-user", split: ':'}, flagOf{flag: "-a", split: ':'})
	add("lftp", flagOf{flag: "-u", split: ','})
	add("redis-cli valkey-cli keydb-cli", flagOf{flag: "-a"})
	add("mongo mongosh mongodump mongorestore mongoexport psexec rdesktop cqlsh", flagOf{flag: "-p"})
	add("ldapsearch ldapadd ldapmodify ldappasswd ldapwhoami ldapdelete", flagOf{flag: "-w", attached: true})
	add("smbclient rpcclient winexe smbget", flagOf{flag: "-U", split: '%'}, flagOf{flag: "--user", split: '%'})
	add("openssl", flagOf{flag: "-k"}, flagOf{flag: "-pass", split: ':'}, flagOf{flag: "-passin", split: ':'}, flagOf{flag: "-passout", split: ':'})
	add("zip unzip zipcloak", flagOf{flag: "-P", attached: true})
	add("7z 7za 7zz rar unrar", flagOf{flag: "-p", attached: true, only: true})
	add("sqlcmd bcp isql ipmitool mosquitto_pub mosquitto_sub", flagOf{flag: "-P"})
	add("plink pscp psftp", flagOf{flag: "-pw"})
	add("snmpwalk snmpget", flagOf{flag: "-A"}, flagOf{flag: "-X"})
	add("usermod useradd", flagOf{flag: "-p"})
	add("htpasswd", flagOf{nth: 3, after: "-b"}, flagOf{nth: 3, after: "-bB"}, flagOf{nth: 2, after: "-nb"}, flagOf{nth: 2, after: "-nbB"},
		flagOf{nth: 3, after: "-cb"}, flagOf{nth: 3, after: "-bc"})
	add("wpa_passphrase", flagOf{nth: 2})
	add("xfreerdp xfreerdp3", flagOf{flag: "/p:", attached: true, only: true})
	add("rabbitmqctl", flagOf{nth: 3, after: "add_user"}, flagOf{nth: 3, after: "change_password"})
	add("vault", flagOf{nth: 2, after: "login"})
	add("aws", flagOf{nth: 4, after: "aws_secret_access_key"}, flagOf{nth: 4, after: "aws_session_token"})
	add("gh", flagOf{flag: "-b", after: "secret"}, flagOf{flag: "--body", after: "secret"})
	add("ssh-keygen", flagOf{flag: "-N"}, flagOf{flag: "-P"})
	add("kinit", flagOf{flag: "--password"})
	for w := range words {
		byWord[int(w[0])<<8|int(w[1])] = true
	}
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

// argument gives the next argument of a command line from i, without its quotes; ok is false at its end.
func (s *scanner) argument(i int) (start, end, next int, ok bool) {
	text := s.text
	for i < s.stop && (text[i] == ' ' || text[i] == '\t') {
		i++
	}
	if i >= s.stop || text[i] == '|' || text[i] == ';' || text[i] == '&' || text[i] == '>' || text[i] == '<' || text[i] == ')' {
		return i, i, i, false
	}
	if isQuote(text[i]) {
		e := i + 1
		for e < s.stop && text[e] != text[i] {
			e++
		}
		return i + 1, e, min(e+1, s.stop), true
	}
	e := i
	for e < s.stop && text[e] != ' ' && text[e] != '\t' && text[e] != '|' && !(text[e] == ';' && (e+1 == s.stop || text[e+1] == ' ')) {
		if isQuote(text[e]) { // -p'x y'
			quote := text[e]
			for e++; e < s.stop && text[e] != quote; e++ {
			}
		}
		e = min(e+1, s.stop)
	}
	return i, e, e, true
}

// command takes passwords out of the arguments of a program.
func (s *scanner) command(i int, flags []flagOf) int {
	text := s.text
	limit := min(s.stop, i+1024)
	plain := 0
	seen := func(arg string, upTo int) bool { return arg == "" || bytes.Contains(text[i:upTo], []byte(" "+arg)) }
	for at := i; at < limit; {
		start, end, next, ok := s.argument(at)
		if !ok {
			break
		}
		at = next
		s.cmdEnd = next
		arg := text[start:end]
		if len(arg) == 0 {
			continue
		}
		if arg[0] != '-' {
			plain++
		}
		for _, f := range flags {
			if f.flag == "" {
				if arg[0] != '-' && plain == f.nth && seen(f.after, start) {
					s.secretArgument(start, end, 0)
				}
				continue
			}
			if !bytes.HasPrefix(arg, []byte(f.flag)) || !seen(f.after, start) {
				continue
			}
			switch rest := arg[len(f.flag):]; {
			case len(rest) == 0 && !f.only:
				if vs, ve, n, ok := s.argument(at); ok && ve > vs && (text[vs] != '-' || isQuote(text[vs-1])) {
					s.secretArgument(vs, ve, f.split)
					at, s.cmdEnd = n, n
				}
			case len(rest) > 0 && f.attached && rest[0] != '-':
				vs, ve := start+len(f.flag), end
				if isQuote(text[vs]) && ve-vs > 2 {
					vs, ve = vs+1, ve-1
				}
				s.secretArgument(vs, ve, f.split)
			default:
				continue
			}
			break
		}
	}
	return 0
}

// secretArgument takes an argument out that is a password by its place: anything but a reference or a word of help.
func (s *scanner) secretArgument(start, end int, split byte) {
	v := s.text[start:end]
	if split != 0 {
		if placeholder(v) {
			return
		}
		n := bytes.IndexByte(v, split)
		if n < 0 {
			return
		}
		if split == ':' && string(v[:n]) != "pass" && (string(v[:n]) == "file" || string(v[:n]) == "env") {
			return
		}
		start += n + 1
		v = s.text[start:end]
	}
	if len(v) < 3 || placeholder(v) || stopWords[string(v)] || isPath(v) {
		return
	}
	s.add(start, end, "password")
}

// echo takes out what is piped into a program that reads a password.
func (s *scanner) echo(i int) int {
	text := s.text
	start, end, next, ok := s.argument(i)
	for ok && end > start && end-start <= 3 && text[start] == '-' {
		start, end, next, ok = s.argument(next)
	}
	if !ok {
		return 0
	}
	rest := text[next:min(s.stop, next+120)]
	pipe := bytes.IndexByte(rest, '|')
	if s.open {
		s.wait(start) // what the argument is shows only at the end of the line
	}
	if pipe < 0 {
		return 0
	}
	rest = rest[pipe:]
	split := byte(0)
	switch {
	case bytes.Contains(rest, []byte("chpasswd")):
		split = ':'
	case bytes.Contains(rest, []byte("sudo -S")), bytes.Contains(rest, []byte("--stdin")), bytes.Contains(rest, []byte("-stdin")),
		bytes.Contains(rest, []byte("--with-token")):
	default:
		return 0
	}
	s.secretArgument(start, end, split)
	return 0
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

// wideNames are names of secrets in other scripts.
var wideNames = []struct {
	text  []byte
	class class
}{
	{[]byte("密码"), password}, {[]byte("密碼"), password}, {[]byte("口令"), password}, {[]byte("暗号"), password},
	{[]byte("密匙"), secret}, {[]byte("密钥"), secret}, {[]byte("秘钥"), secret}, {[]byte("密鑰"), secret}, {[]byte("金鑰"), secret},
	{[]byte("私钥"), secret}, {[]byte("令牌"), token}, {[]byte("授权码"), password}, {[]byte("凭证"), token}, {[]byte("凭据"), token},
	{[]byte("パスワード"), password}, {[]byte("비밀번호"), password},
}

// links stand between a name in another script and its value.
var links = [][]byte{[]byte("："), []byte("＝"), []byte(":"), []byte("="), []byte("是"), []byte("为"), []byte("為"), []byte("】"),
	[]byte("」"), []byte("“"), []byte("「"), []byte("は"), []byte("改成"), []byte("设为"), []byte("改为"), []byte(" "), []byte("\t"),
	[]byte(`"`), []byte("'"), []byte("`"), []byte("了"), []byte("\\\""), []byte(">"), []byte("|")}

// wide looks at a character beyond ASCII at i: the name of a secret in Chinese, or a wide separator.
func (s *scanner) wide(i int) int {
	text := s.text
	switch text[i] {
	case 0xef:
		if rest := text[i:s.stop]; bytes.HasPrefix(rest, []byte("：")) || bytes.HasPrefix(rest, []byte("＝")) {
			if start, end := s.nameBefore(i); start < end {
				if n := s.named(start, end, i+3, colon); n > 0 {
					return n
				}
			}
		}
		return i + 1
	case 0xe5, 0xe7, 0xe4, 0xe6, 0xe3, 0xeb, 0xe9:
	default:
		return i + 1
	}
	for _, name := range wideNames {
		if !bytes.HasPrefix(text[i:s.stop], name.text) {
			continue
		}
		v, firm := i+len(name.text), false
		from := v
		for _, open := range [...]string{"(", "（"} { // 密钥(key)：x
			if bytes.HasPrefix(text[v:s.stop], []byte(open)) {
				if n := bytes.IndexAny(text[v:min(s.stop, v+40)], ")）"); n > 0 {
					v += n + len(open)
				}
			}
		}
		for n := 0; n < 6; n++ {
			for _, l := range links {
				if bytes.HasPrefix(text[v:s.stop], l) {
					v += len(l)
					firm = firm || l[0] != ' ' && l[0] != '\t'
					break
				}
			}
		}
		if v == from {
			return v
		}
		e := v
		for e < s.stop && text[e] < 0x80 && !endsWord[text[e]] && !(text[e] == '\\' && e+1 < s.stop && isQuote(text[e+1])) {
			if (text[e] == ',' || text[e] == ';' || text[e] == ')' || text[e] == '}' || text[e] == ']') && (s.closes(e) || e+1 < s.stop && text[e+1] >= 0x80) {
				break
			}
			e++
		}
		st := said
		if firm {
			st = assigned
		}
		val := text[v:e]
		if t := traitsOf(val); !firm && (t.digit == 0 && t.changes < 2 || t.lower+t.upper == 0 && t.digit < 4) || !judge(name.class, val, st, false) {
			return v
		}
		if e == s.stop {
			e, _ = s.wrapped(v, e, len(val), 0)
		}
		s.add(v, e, name.class.kind())
		return e
	}
	return i + 1
}
