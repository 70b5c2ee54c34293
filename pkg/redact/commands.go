package redact

import "bytes"

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
	add("sqlcmd bcp isql ipmitool mosquitto_pub mosquitto_sub", flagOf{flag: "-P"}) //nolint:misspell // its name
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
