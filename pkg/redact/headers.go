package redact

import (
	"bytes"
	"encoding/base64"
)

// schemes of the Authorization header.
var schemes = set("bearer basic token digest negotiate ntlm apikey hawk bot oauth key aws4-hmac-sha256 sso-key splunk genie-key " +
	"private-token gotify discogs snowflake dpop")

// call takes out a value that a call hands over: WithToken("x"), define('DB_PASSWORD', 'x'). i is at its bracket or comma.
func (s *scanner) call(i int) int {
	text := s.text
	v := i + 1
	for v < s.stop && text[v] == ' ' {
		v++
	}
	if v >= s.stop || !isQuote(text[v]) || i == 0 || text[i] == ',' && !isQuote(text[i-1]) {
		return 0
	}
	start, end := s.nameBefore(i)
	c := classOf(text[start:end])
	if c != password && c != secret && c != token || text[i] == ',' && (start == 0 || !isQuote(text[start-1])) {
		return 0
	}
	vs, ve, _, _ := s.read(v, said)
	if val := text[vs:ve]; !random(val) || !judge(c, val, quoted, false) {
		return 0
	}
	s.add(vs, ve, c.kind())
	return ve
}

// authorization takes out the credentials of an Authorization header whose value is at v.
func (s *scanner) authorization(v int) int {
	text := s.text
	for v < s.stop && (text[v] == ' ' || text[v] == '\t' || isQuote(text[v]) || text[v] == '\\' || text[v] == '[' || text[v] == '{') {
		v++
	}
	e := v
	for e < s.stop && !isQuote(text[e]) && text[e] != ']' && text[e] != '}' && !(text[e] == '\\' && e+1 < s.stop && isQuote(text[e+1])) {
		e++
	}
	w := v
	for w < e && (isName[text[w]]) {
		w++
	}
	var buf [32]byte
	cred := v
	if w < e && text[w] == ' ' && w-v <= 32 && schemes[string(lowerInto(buf[:0], text[v:w]))] {
		for cred = w; cred < e && text[cred] == ' '; cred++ {
		}
	} else {
		for w < e && !endsWord[text[w]] {
			w++
		}
		if !judge(token, text[v:w], assigned, true) {
			return 0
		}
		e = w
	}
	for e > cred && (text[e-1] == ' ' || text[e-1] == '\t') {
		e--
	}
	if e-cred < 6 || placeholder(text[cred:e]) || sentence(text[cred:e]) && !hasDigit(text[cred:e]) && bytes.IndexByte(text[cred:e], ' ') > 0 {
		return 0
	}
	if e == s.stop {
		e, _ = s.wrapped(cred, e, e-cred, 0)
	}
	s.add(cred, e, "authorization")
	return e
}

// attributes of cookies are not their values.
var attributes = set("path domain expires max-age samesite version priority secure httponly partitioned")

// cookies takes out the values of a cookie header at v.
func (s *scanner) cookies(v int) int {
	text := s.text
	end := v
	for v < s.stop {
		for v < s.stop && (text[v] == ' ' || text[v] == ';' || isQuote(text[v]) && end == v || text[v] == '[') {
			v++
		}
		name := v
		for v < s.stop && isName[text[v]] {
			v++
		}
		if v == name || v >= s.stop || text[v] != '=' {
			if v < s.stop && text[v] == ';' {
				continue
			}
			return end
		}
		val := v + 1
		for v = val; v < s.stop && text[v] != ';' && !endsWord[text[v]] && text[v] != '\\'; v++ {
		}
		var buf [32]byte
		if v-name > 32 || !attributes[string(lowerInto(buf[:0], text[name:val-1]))] {
			value := text[val:v]
			if c := classOf(text[name : val-1]); (len(value) >= 8 && random(value) || len(value) >= 6 && (c == token || c == secret ||
				c == password || bytes.Contains(bytes.ToLower(text[name:val-1]), []byte("sess")))) && !placeholder(value) {
				to := v
				if v == s.stop {
					to, _ = s.wrapped(val, v, v-val, 0)
				}
				s.add(val, to, "cookie")
				if to > v {
					return to
				}
			} else if len(value) >= 12 && hasDigit(value) && !kebab(value) && !placeholder(value) {
				s.add(val, v, "cookie")
			}
		}
		end = v
		if v < s.stop && text[v] != ';' {
			return end
		}
	}
	return end
}

// basic says whether base64 is that of user:password.
func basic(v []byte) bool {
	plain, err := base64.StdEncoding.DecodeString(string(v))
	if err != nil || len(plain) < 4 {
		return false
	}
	for _, b := range plain {
		if b < ' ' || b == 0x7f {
			return false
		}
	}
	return bytes.IndexByte(plain, ':') >= 0 || v[len(v)-1] == '='
}
