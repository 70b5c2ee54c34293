package redact

import "bytes"

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
