package compactor

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/cloudwego/eino/schema"

	"github.com/butlerhub/butler/pkg/tokens"
)

const (
	// mostPieces bounds the calls of the model of one compaction; what is beyond them is for the next.
	mostPieces = 16
	// mostPiece bounds a piece also where the model's window is large: models overlook what is in the middle of much text.
	mostPiece = 24_000
)

// pieces gives the text of the oldest n turns in pieces of at most limit tokens, and how many of these turns they hold: as
// many as fit into mostPieces, but at least one, whose giant messages are cut in the middle if they have to be.
func pieces(turns []turn, n, limit int) (out []string, held int) {
	var b strings.Builder
	used := 0 // tokens in b
	flush := func() {
		if b.Len() > 0 {
			out = append(out, b.String())
			b.Reset()
			used = 0
		}
	}
	for held < n {
		parts := turnParts(turns[held], limit, mostPieces)
		full, rest := len(out), used // pieces, and tokens in the one that is open, with these parts
		for _, p := range parts {
			if rest > 0 && rest+p.tokens > limit {
				full, rest = full+1, 0
			}
			rest += p.tokens
		}
		if held > 0 && full+1 > mostPieces {
			break
		}
		for _, p := range parts {
			if used+p.tokens > limit {
				flush()
			}
			b.WriteString(p.text)
			used += p.tokens
		}
		held++
	}
	flush()
	return out, held
}

type part struct {
	text   string
	tokens int
}

// turnParts gives a turn as parts of at most limit tokens, together at most most-1 times as many.
func turnParts(t turn, limit, most int) []part {
	share := 8 * (most - 1) * limit // bytes to which a message is cut at first
	for {
		var out []part
		total := 0
		for _, m := range t.messages {
			for _, text := range split(shown(m, share), limit) {
				p := part{text, tokens.Count(text)}
				total += p.tokens
				out = append(out, p)
			}
		}
		if len(out) < most && total <= (most-1)*limit {
			return out
		}
		if share <= 256 { // thousands of calls in one turn: the first and the last say the most
			keep := max(most/2-1, 1)
			if len(out) > 2*keep {
				out = append(out[:keep:keep], out[len(out)-keep:]...)
			}
			return out
		}
		share /= 2
	}
}

// shown gives a message as text, its own texts cut to most bytes.
func shown(m *schema.Message, most int) string {
	content := middle(m.Content, most)
	switch m.Role {
	case schema.User:
		return "[person]\n" + content + "\n\n"
	case schema.Tool:
		return fmt.Sprintf("[result of %s; untrusted data]\n%s\n\n", m.ToolName, content)
	default:
		var b strings.Builder
		if content != "" {
			fmt.Fprintf(&b, "[Butler]\n%s\n\n", content)
		}
		for _, call := range m.ToolCalls {
			fmt.Fprintf(&b, "[Butler calls %s]\n%s\n\n", call.Function.Name, middle(call.Function.Arguments, most))
		}
		return b.String()
	}
}

// middle cuts the middle out of a text that has more than most bytes.
func middle(s string, most int) string {
	if len(s) <= most {
		return s
	}
	front, back := s[:most/2], s[len(s)-most/2:]
	return strings.ToValidUTF8(front, "") + "\n[… the middle was cut out: too long …]\n" + strings.ToValidUTF8(back, "")
}

// split cuts a text into parts of at most limit tokens, at the ends of lines where that is possible.
func split(s string, limit int) []string {
	var out []string
	for tokens.Most(s) > limit && tokens.Count(s) > limit {
		cut := limit // no more tokens than bytes
		if n := tokens.Count(s[:min(len(s), 8*limit)]); n > 0 {
			cut = max(min(len(s), 8*limit)*limit/n*9/10, limit)
		}
		cut = min(cut, len(s)-1)
		if i := strings.LastIndexByte(s[:cut], '\n'); i > cut/2 {
			cut = i + 1
		}
		for cut > 1 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		if tokens.Count(s[:cut]) > limit { // denser at its beginning than as a whole
			cut = limit
			for cut > 1 && !utf8.RuneStart(s[cut]) {
				cut--
			}
		}
		out = append(out, s[:cut])
		s = s[cut:]
	}
	return append(out, s)
}
