package redact

import (
	"bytes"
	"encoding/base64"
)

const kindKey = "private-key"

// maxBlock bounds the lines of base64 that wait to see whether a private key ends with them, in bytes.
const maxBlock = 16 << 10

var (
	pemBegin = []byte("-----BEGIN ")
	pemEnd   = []byte("-----END ")
	private  = [][]byte{[]byte("PRIVATE KEY"), []byte("NKEY SEED"), []byte("NATS USER JWT")}
)

// heads are how private keys begin in base64, without their first line.
var heads = [][]byte{
	[]byte("b3BlbnNzaC1rZXktdjE"),            // OpenSSH
	[]byte("MIIEvQIBADANBgkqhkiG9w0BAQEFAA"), // PKCS #8, RSA
	[]byte("MIIEvgIBADANBgkqhkiG9w0BAQEFAA"),
	[]byte("MIIJQgIBADANBgkqhkiG9w0BAQEFAA"),
	[]byte("MIIJQwIBADANBgkqhkiG9w0BAQEFAA"),
	[]byte("MIIEpAIBAAKCAQEA"), // PKCS #1
	[]byte("MIIEowIBAAKCAQEA"), []byte("MIIEogIBAAKCAQEA"), []byte("MIIJKQIBAAKCAgEA"), []byte("MIIJKAIBAAKCAgEA"),
	[]byte("MHcCAQEEI"), []byte("MIGkAgEBBD"), // SEC 1
	[]byte("MIGHAgEAMBMGByqGSM49"), []byte("MIG2AgEAMBAGByqGSM49"), []byte("MC4CAQAwBQYDK2Vw"),
}

// label says whether a line of dashes at i begins with what introduces (or ends) a private key, and where that line ends.
func (s *scanner) label(i int, intro []byte) (end int, ok bool) {
	rest := s.text[i:min(s.stop, i+80)]
	if !bytes.HasPrefix(rest, intro) {
		return 0, false
	}
	rest = rest[len(intro):]
	for _, p := range private {
		if n := bytes.Index(rest, p); n >= 0 {
			end = i + len(intro) + n + len(p)
			break
		}
	}
	if end == 0 {
		return 0, false
	}
	if bytes.HasPrefix(s.text[end:s.stop], []byte(" BLOCK")) {
		end += len(" BLOCK")
	}
	for end < s.stop && s.text[end] == '-' {
		end++
	}
	return end, true
}

// key takes a private key out whose first line begins at i.
func (s *scanner) key(i, header int) int {
	rest := bytes.TrimRight(s.text[header:s.stop], " \t\r\\")
	if len(rest) == 0 && !s.isCut() {
		s.add(i, s.stop, kindKey)
		s.carry.pem, s.carry.pemFull = true, false
		return s.end
	}
	// On one line: with \n, or blanks, between its lines.
	if n := bytes.Index(rest, pemEnd); n >= 0 {
		end := header + n + len(pemEnd)
		if m := bytes.Index(s.text[end:s.stop], []byte("-----")); m >= 0 {
			end += m + 5
		}
		s.add(i, end, kindKey)
		return end
	}
	end := header
	for end < s.stop && !isQuote(s.text[end]) {
		end++
	}
	s.add(i, end, kindKey)
	if end == s.stop && !s.isCut() && end > header {
		s.carry.pem, s.carry.pemFull = true, false
		return s.end
	}
	return end
}

// inKey takes a line of a private key out and gives where what is no part of it begins: pos when the key had no end.
func (s *scanner) inKey(pos int) (from int, ok bool) {
	line := s.text[pos:s.stop]
	if n := bytes.Index(line, pemEnd); n >= 0 {
		end := pos + n + len(pemEnd)
		if m := bytes.Index(s.text[end:s.stop], []byte("-----")); m >= 0 {
			end += m + 5
		}
		s.carry.pem = false
		if end == s.stop { // the line before has left its break
			end = s.end
		}
		s.spans = append(s.spans, span{pos, end, "", true})
		return end, true
	}
	full, body := keyLine(line, s.carry.pemFull)
	if !body && !s.isCut() {
		s.carry.pem = false
		return pos, true
	}
	s.carry.pemFull = full
	s.spans = append(s.spans, span{pos, s.end, "", true})
	return s.end, true
}

// keyLine says whether a line may be one of a private key: base64, perhaps behind a line number or a margin, a header,
// or empty.
func keyLine(line []byte, afterFull bool) (full, ok bool) {
	line = bytes.TrimRight(line, " \t\r\\")
	if len(line) == 0 {
		return false, true
	}
	last := line[bytes.LastIndexAny(line, " \t|:>")+1:]
	for _, b := range last {
		if !isB64[b] {
			return false, bytes.Contains(line, []byte("Proc-Type:")) || bytes.Contains(line, []byte("DEK-Info:"))
		}
	}
	switch {
	case len(last) >= 40:
		return true, true
	case bytes.Contains(line, []byte(": ")) && len(line) < 100 && !afterFull:
		return false, true // Version:, Comment:, Public-Lines:
	default:
		margin := len(line) - len(last)
		return false, len(last) > 0 && (margin == 0 || margin <= 24 && (afterFull || len(last) >= 16))
	}
}

// base64Block looks for the rest of a private key whose first line is missing: lines of base64 from pos up to its last
// line, or ones that begin as keys do. It gives where the unit ends, or 0 when the lines are none.
func (s *scanner) base64Block(pos int) int {
	first := s.pureBase64(pos, s.stop)
	if first < 32 || pos < s.block {
		return 0
	}
	line, stop := pos, s.stop
	for line-pos < maxBlock {
		var ok bool
		prev := stop
		if line, stop, ok = s.blockNext(prev, pos); !ok {
			stop = prev
			break
		}
		if s.pureBase64(line, stop) > 0 {
			continue
		}
		trimmed := bytes.TrimLeft(s.text[line:stop], " \t")
		if !bytes.HasPrefix(trimmed, pemEnd) || !bytes.Contains(trimmed, private[0]) {
			break
		}
		s.add(pos, stop, kindKey)
		s.bounds(line)
		return s.end
	}
	if !s.waits {
		s.block = stop
	}
	return 0
}

// blockNext is next, but does not wait for the end of a line that cannot be a part of a key.
func (s *scanner) blockNext(stop, start int) (line, end int, ok bool) {
	i := stop
	if i < len(s.text) && s.text[i] == '\r' {
		i++
	}
	if i < len(s.text) && s.text[i] == '\n' {
		i++
	}
	rest := bytes.TrimLeft(s.text[i:], " \t")
	if n := min(len(rest), len(pemEnd)); !bytes.Equal(rest[:n], pemEnd[:n]) {
		for _, b := range rest {
			if b == '\n' {
				break
			}
			if !isB64[b] && b != '\r' {
				return 0, 0, false
			}
		}
	}
	return s.next(stop, start)
}

// pureBase64 gives the length of the base64 of which a line consists, 0 when it does not.
func (s *scanner) pureBase64(line, stop int) int {
	for line < stop && (s.text[line] == ' ' || s.text[line] == '\t') {
		line++
	}
	for i := line; i < stop; i++ {
		if !isB64[s.text[i]] {
			return 0
		}
	}
	return stop - line
}

// keyBody takes out a key that begins at i without its first line.
func (s *scanner) keyBody(i int) int {
	rest := s.text[i:s.stop]
	for _, h := range heads {
		if !bytes.HasPrefix(rest, h) {
			continue
		}
		end := i
		for end < s.stop && (isB64[s.text[end]] || s.text[end] == '\\') {
			end++
		}
		s.add(i, end, kindKey)
		if end == s.stop && !s.isCut() {
			s.carry.pem, s.carry.pemFull = true, true
			return s.end
		}
		return end
	}
	return 0
}

// encodedKey says whether a run of base64 begins a private key in PEM.
func encodedKey(run []byte) bool {
	var plain [48]byte
	n, _ := base64.StdEncoding.Decode(plain[:], run[:min(len(run), 64)&^3])
	return bytes.Contains(plain[:n], []byte("PRIVATE")) || bytes.Contains(plain[:n], []byte("NKEY SEED"))
}
