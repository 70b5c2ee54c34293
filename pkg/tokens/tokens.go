// Package tokens counts the tokens of texts with a vocabulary that is built in (o200k, MIT). Endpoints have tokenizers of
// their own: what they report of their use corrects the count, see Ratio.
package tokens

import (
	"sync"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer"
)

// piece is how many bytes are counted at once: joining the pairs of one word without a space takes time that grows with
// the square of its length. A cut adds at most one token.
const piece = 2 << 10

// codec loads the vocabulary, about 7 MB and 0.2 s, when something is counted first.
var codec = sync.OnceValues(func() (tokenizer.Codec, error) { return tokenizer.Get(tokenizer.O200kBase) })

// Count gives the number of tokens in s, never more than Most. It takes about a millisecond for each KiB, so callers
// look at Most first.
func Count(s string) int {
	c, err := codec()
	if err != nil {
		return Most(s) // the vocabulary is compiled in: this is for a library that changes its mind
	}
	n := 0
	for len(s) > 0 {
		cut := len(s)
		if cut > piece {
			cut = piece
			for cut > piece-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
				cut--
			}
		}
		got, err := c.Count(s[:cut])
		if err != nil {
			got = cut
		}
		n += min(got, cut)
		s = s[cut:]
	}
	return n
}

// Most gives what Count of s cannot exceed, at once: a token stands for at least one byte.
func Most(s string) int { return len(s) }

// Ratio is how many tokens of an endpoint one token of Count is, from what the endpoint reports. The zero value says 1
// until it has learned. It is safe for concurrent use.
type Ratio struct {
	mu sync.Mutex
	r  float64
}

// Bounds of a ratio, for reports that make no sense, and of what is learned from: small prompts consist of what is not
// counted here.
const (
	leastRatio, mostRatio = 0.5, 3.0
	leastLearned          = 500
	learning              = 0.25 // weight of the newest report
)

// Learn takes what an endpoint reports of texts of which Count gave counted.
func (r *Ratio) Learn(counted, reported int) {
	if counted < leastLearned || reported < leastLearned {
		return
	}
	seen := min(max(float64(reported)/float64(counted), leastRatio), mostRatio)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.r == 0 {
		r.r = seen
		return
	}
	r.r += learning * (seen - r.r)
}

// Value gives the ratio, 1 when nothing was learned yet.
func (r *Ratio) Value() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.r == 0 {
		return 1
	}
	return r.r
}

// Limit gives how many tokens of Count fit into limit tokens of the endpoint.
func (r *Ratio) Limit(limit int) int { return int(float64(limit) / r.Value()) }
