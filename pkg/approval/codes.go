package approval

import (
	"crypto/rand"
	"strings"
	"unicode"
)

// codeLetters make codes that can be read aloud and typed on a phone: no 0/O, 1/I/L, 5/S, 8/B, U/V.
const codeLetters = "ACDEFGHJKMNPQRTWXY234679"

// codeLength is how many of them a code has.
const codeLength = 4

// NewCode gives a code by chance: one of 331,776.
func NewCode() string {
	code := make([]byte, 0, codeLength)
	var b [1]byte
	for len(code) < codeLength {
		_, _ = rand.Read(b[:])                                    // it never fails
		if most := 256 - 256%len(codeLetters); int(b[0]) < most { // each letter equally likely
			code = append(code, codeLetters[int(b[0])%len(codeLetters)])
		}
	}
	return string(code)
}

// Decision is what a message says of a request.
type Decision struct {
	Approve bool
	// Code is upper case; empty for a bare word, which means the only request that is pending for its author.
	Code string
	// Reason is what follows the code.
	Reason string
	// Certain says that Code can hardly be a word of an ordinary sentence such as "deny that".
	Certain bool
}

// maxDecision bounds a message that decides, in bytes.
const maxDecision = 4 << 10

// decisionWords begin a decision; those that people use in ordinary talk decide only with a code.
var decisionWords = []struct {
	word    string
	approve bool
	bare    bool
}{
	{"确认", true, true}, {"approve", true, true}, {"批准", true, false}, {"同意", true, false},
	{"取消", false, true}, {"deny", false, true}, {"拒绝", false, false}, {"reject", false, false},
}

// ParseDecision reads a message such as "approve K7QF", "确认k7qf", "deny K7QF not on Fridays" or a bare "确认". ok is false for
// anything else.
func ParseDecision(text string) (d Decision, ok bool) {
	if len(text) > maxDecision {
		return Decision{}, false
	}
	text = strings.TrimSpace(text)
	for _, w := range decisionWords {
		if len(text) < len(w.word) || !strings.EqualFold(text[:len(w.word)], w.word) {
			continue
		}
		rest := text[len(w.word):]
		if isLatin(w.word) && rest != "" && !startsWithBreak(rest) {
			return Decision{}, false // approved, denying
		}
		rest = strings.TrimFunc(rest, isBreak)
		d = Decision{Approve: w.approve}
		if rest == "" {
			return d, w.bare
		}
		code, reason := rest, ""
		if i := strings.IndexFunc(rest, isBreak); i >= 0 {
			code, reason = rest[:i], strings.TrimLeftFunc(rest[i:], isBreak)
		}
		d.Code, d.Reason = strings.ToUpper(code), reason
		if !ValidCode(d.Code) {
			return Decision{}, false
		}
		d.Certain = code == d.Code || strings.ContainsAny(code, "234679")
		return d, true
	}
	return Decision{}, false
}

// ValidCode says whether code, in upper case, can be one.
func ValidCode(code string) bool {
	return len(code) == codeLength && strings.Trim(code, codeLetters) == ""
}

func isLatin(word string) bool { return word[0] < 0x80 }

// isBreak says whether r parts the words of a decision: spaces of any width, quotes and the punctuation that people put
// around a code.
func isBreak(r rune) bool {
	return unicode.IsSpace(r) || unicode.In(r, unicode.Zs) || strings.ContainsRune(":：,，.。;；!！\"'“”‘’「」`()（）[]【】<>《》#、", r)
}

func startsWithBreak(s string) bool {
	for _, r := range s {
		return isBreak(r)
	}
	return false
}
