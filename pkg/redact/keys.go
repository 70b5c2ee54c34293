package redact

import "bytes"

// class is what a name says about its value.
type class byte

const (
	none     class = iota
	generic        // some key: only a value that looks random is a secret
	weak           // of a secret, but not it (token_bucket): as generic
	token          // a value that is no word is a secret
	secret         // as token
	password       // nearly any value is a secret
	named          // "name", "key": its value may be the name of a secret that follows
)

func (c class) kind() string {
	switch c {
	case password:
		return "password"
	case token:
		return "token"
	case generic:
		return "key"
	default:
		return "secret"
	}
}

// Name says whether a name (of a setting, a variable, an attribute) is that of a secret: DB_PASSWORD, clientSecret,
// x-api-key, but not PASSWORD_FILE or total_tokens.
func Name(name string) bool {
	c := classOf([]byte(name))
	return c == password || c == secret || c == token
}

// Environment gives the values of an environment ("NAME=value") whose names are those of secrets, to Add.
func Environment(environ []string) []string {
	var values []string
	for _, kv := range environ {
		name, value, ok := bytes.Cut([]byte(kv), []byte("="))
		if c := classOf(name); ok && (c == password || c == secret || c == token || c == generic) && Knowable(string(value)) &&
			!isPath(value) {
			values = append(values, string(value))
		}
	}
	return values
}

// lastPart classes names by their last part.
var lastPart = map[string]class{
	"password": password, "passwd": password, "passphrase": password, "pass": password, "pwd": password, "pw": password,
	"psk": password, "presharedkey": password, "passwort": password, "contraseña": password, "requirepass": password,
	"masterauth": password, "passin": password, "passout": password, "storepass": password, "keypass": password,
	"secret": secret, "apikey": secret, "secretkey": secret, "accesskey": secret, "privatekey": secret,
	"authkey": secret, "accountkey": secret, "signingkey": secret, "encryptionkey": secret, "credential": secret,
	"credentials": secret, "creds": secret, "dockerconfigjson": secret, "hmackey": secret, "masterkey": secret,
	"token": token, "jwt": token, "bearer": token, "authorization": token, "auth": token, "ticket": token,
	"cookie": token, "sessionid": token, "sessid": token, "phpsessid": token, "jsessionid": token, "csrf": token,
	"xsrf": token, "signature": token, "sig": token, "sas": token, "securitytoken": token,
	"key": generic, "salt": generic, "pepper": generic, "seed": generic, "otp": generic, "dsn": none,
	"name": named,
}

// suffixes class last parts that are several words written as one.
var suffixes = []struct {
	text  string
	class class
}{
	{"password", password}, {"passwd", password}, {"passphrase", password}, {"secret", secret}, {"token", token},
	{"apikey", secret}, {"secretkey", secret}, {"accesskey", secret}, {"privatekey", secret}, {"authkey", secret},
	{"pwd", password}, {"pass", password}, {"accountkey", secret}, {"keystorepass", password},
}

// notSuffixed are words that end like a name of secrets.
var notSuffixed = map[string]bool{
	"bypass": true, "compass": true, "surpass": true, "trespass": true, "encompass": true, "oldpwd": true, "cpwd": true,
	"multipass": true, "overpass": true, "underpass": true,
}

// beforeKey make "key" a secret; notKeys make it harmless.
var (
	beforeKey = set("api secret access private auth account signing encryption master shared app service client deploy bot " +
		"session storage license hmac jwt webhook admin ssh subscription stripe openai anthropic fernet crypto aes cipher gpg " +
		"vault registration consumer presharedkey preshared publishable")
	notKeys = set("public primary foreign cache partition sort routing object host idempotency row etag index lookup " +
		"websocket socket map hash group unique composite natural shift any enter hot short ssl tls registry translation i18n " +
		"dedup dedupe lock msg message config issue project jira object")
)

// qualifiers may come after the part that says what it is.
var qualifiers = set("old new prod production dev development test testing staging stage live confirm confirmation again " +
	"base value default primary secondary backup root admin user b64 base64 data plain text plaintext repeat string str " +
	"current original main master slave repl replica ro rw readonly local remote internal external")

// notSecret are last parts of names of something about a secret.
var notSecret = set("file files path paths dir directory url uri endpoint type types id ids name names count counts len length " +
	"min max size policy policies ttl expiry expires expiration expire expired at age limit limits usage used field fields " +
	"input label hint prompt placeholder reset changed change changes required enabled disabled valid invalid status state " +
	"error errors version ref refs arn manager store provider providers algorithm alg method methods rotation strength " +
	"regex pattern column env var variable bucket rate index budget handler service server class helper length bits " +
	"fingerprint selector header headers format prefix suffix source sources stdin issuer scope scopes audience callback " +
	"html page form dialog link title button mode role roles rules rule kind check validator verifier util utils test " +
	"tests spec docs go py js ts rb java md json yaml yml txt html css ref sock cmd command required")

func set(words string) map[string]bool {
	out := map[string]bool{}
	for _, w := range bytes.Fields([]byte(words)) {
		out[string(w)] = true
	}
	return out
}

// maxName bounds a name, in bytes: of a longer one the end is looked at.
const maxName = 64

// classOf classes a name by its parts: DB_PASSWORD, clientSecret, spring.datasource.password.
func classOf(name []byte) class {
	if len(name) < 2 {
		return none
	}
	name = name[max(0, len(name)-maxName):]
	if !mayName(name) {
		return none
	}
	var buf [2 * maxName]byte
	var starts [2*maxName + 1]int
	lower, parts := buf[:0], 0
	inPart := false
	for i, b := range name {
		switch {
		case b == '_' || b == '-' || b == '.' || b == ' ' || b == '/' || b == '$':
			inPart = false
			continue
		case b >= 'A' && b <= 'Z':
			prev := byte(0)
			if i > 0 {
				prev = name[i-1]
			}
			nextLower := i+1 < len(name) && name[i+1] >= 'a' && name[i+1] <= 'z'
			if prev >= 'a' && prev <= 'z' || prev >= '0' && prev <= '9' || prev >= 'A' && prev <= 'Z' && nextLower {
				inPart = false
			}
			b += 'a' - 'A'
		}
		if !inPart {
			starts[parts] = len(lower)
			parts++
			inPart = true
		}
		lower = append(lower, b)
	}
	starts[parts] = len(lower)
	part := func(i int) []byte { return lower[starts[i]:starts[i+1]] }
	last := parts - 1
	for ; last > 0; last-- { // qualifiers and numbers at the end say nothing
		p := part(last)
		if !(qualifiers[string(p)] || onlyDigits(p) || len(p) <= 3 && p[0] == 'v' && onlyDigits(p[1:])) {
			break
		}
	}
	if last < 0 {
		return none
	}
	p := bytes.TrimRight(part(last), "0123456789")
	if parts == 1 && string(p) == "pwd" && len(name) >= 3 && name[0] == 'P' && name[1] == 'W' { // the shell's PWD
		return none
	}
	if string(p) == "key" {
		if last == 0 {
			return named
		}
		before := part(last - 1)
		switch {
		case string(before) == "access" && last+1 < parts && string(part(last+1)) == "id":
			return none
		case beforeKey[string(before)]:
			return secret
		case notKeys[string(before)]:
			return none
		}
		return generic
	}
	c, ok := lastPart[string(p)]
	if !ok {
		for _, s := range suffixes {
			if len(p) > len(s.text) && bytes.HasSuffix(p, []byte(s.text)) && !notSuffixed[string(p)] &&
				(len(s.text) > 4 || len(p) <= 12) {
				return s.class
			}
		}
		if string(p) == "id" || notSecret[string(p)] {
			return none
		}
		for i := last - 1; i >= 0; i-- {
			if c := lastPart[string(part(i))]; c == password || c == secret || c == token {
				return weak
			}
		}
		return none
	}
	switch {
	case c == named && last > 0:
		return none
	case string(p) == "auth" && last > 0 && string(part(last-1)) == "no":
		return none
	case (string(p) == "pass" || string(p) == "pw") && parts == 1 && len(p) != len(name):
		return none
	}
	return c
}

// mayName is a quick look whether a name may be classed at all.
func mayName(name []byte) bool {
	for i := range len(name) - 1 {
		a, b := name[i]|0x20, name[i+1]|0x20
		switch a {
		case 'p':
			if b == 'a' || b == 'w' || b == 's' || b == 'h' || b == 'e' {
				return true
			}
		case 's':
			if b == 'e' || b == 'i' || b == 'a' {
				return true
			}
		case 't':
			if b == 'o' || b == 'i' {
				return true
			}
		case 'k', 'b':
			if b == 'e' {
				return true
			}
		case 'a':
			if b == 'u' || b == 'p' || b == 'c' {
				return true
			}
		case 'c':
			if b == 'r' || b == 'o' || b == 's' {
				return true
			}
		case 'j':
			if b == 'w' || b == 's' {
				return true
			}
		case 'n':
			if b == 'a' {
				return true
			}
		case 'x', 'o', 'd', 'r', 'm', 'h', 'e':
			if a == 'o' && b == 't' || a == 'd' && b == 'o' || a == 'x' && b == 's' {
				return true
			}
		}
	}
	return false
}

func onlyDigits(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func onlyLetters(b []byte) bool {
	for _, c := range b {
		if c|0x20 < 'a' || c|0x20 > 'z' {
			return false
		}
	}
	return true
}
