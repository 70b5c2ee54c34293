package model

import (
	"fmt"
	"sync/atomic"
	"unicode/utf8"

	"github.com/cloudwego/eino/schema"

	"github.com/butlerhub/butler/pkg/tokens"
)

const (
	messageOverhead = 4  // tokens around each message
	smallestMessage = 64 // tokens to which a giant message is cut before anything else has to go
	omittedTokens   = 32 // most tokens of the note about what was left out
	// MinWindow is the smallest window that a prompt is made for; what is asked for less gets this.
	MinWindow = 256
)

// CountTokens gives how many tokens messages take in a prompt, by the vocabulary of package tokens. About a millisecond
// for each KiB.
func CountTokens(msgs []*schema.Message) int {
	n := 0
	for _, m := range msgs {
		n += measure(m).total()
	}
	return n
}

// mostTokens gives what CountTokens cannot exceed, from the sizes alone.
func mostTokens(msgs []*schema.Message) int {
	n := 0
	for _, m := range msgs {
		n += messageOverhead + tokens.Most(m.Content) + tokens.Most(m.Name) + tokens.Most(m.ToolCallID)
		for i := range m.ToolCalls {
			call := &m.ToolCalls[i]
			n += messageOverhead + tokens.Most(call.ID) + tokens.Most(call.Function.Name) + tokens.Most(call.Function.Arguments)
		}
	}
	return n
}

// sized is a message with its tokens: those of its text, which can be cut, and all others.
type sized struct {
	m              *schema.Message
	content, fixed int
}

func (s sized) total() int { return s.content + s.fixed }

func measure(m *schema.Message) sized {
	s := sized{m: m, content: tokens.Count(m.Content), fixed: messageOverhead + tokens.Count(m.Name) + tokens.Count(m.ToolCallID)}
	for i := range m.ToolCalls {
		call := &m.ToolCalls[i]
		s.fixed += messageOverhead + tokens.Count(call.ID) + tokens.Count(call.Function.Name) + tokens.Count(call.Function.Arguments)
	}
	return s
}

func measureAll(msgs []*schema.Message) (out []sized, total int) {
	out = make([]sized, len(msgs))
	for i, m := range msgs {
		out[i] = measure(m)
		total += out[i].total()
	}
	return out, total
}

// Group is the messages of one ended turn, which stay together. It is safe for concurrent use; the messages are not
// changed any more.
type Group struct {
	Messages []*schema.Message

	most   int
	tokens atomic.Int64 // counted when they are needed first
}

// NewGroup makes a group of messages.
func NewGroup(msgs []*schema.Message) *Group { return &Group{Messages: msgs, most: mostTokens(msgs)} }

// Most gives what Tokens cannot exceed, at once.
func (g *Group) Most() int { return g.most }

// Tokens counts the group's tokens, once.
func (g *Group) Tokens() int {
	n := g.tokens.Load()
	if n == 0 && len(g.Messages) > 0 {
		n = int64(CountTokens(g.Messages))
		g.tokens.Store(n)
	}
	return int(n)
}

// Prompt is what may stand in a prompt, in this order.
type Prompt struct {
	Heads []*schema.Message // system messages: who Butler is, pinned facts, the summary
	Past  []*Group          // ended turns, oldest first
	Turn  []*schema.Message // the turn that is being answered
}

// Trimmed says what Fit left out.
type Trimmed struct {
	Messages int // whole messages left out
	Turns    int // turns of the past that these were, the oldest first
	Cut      int // messages whose middle was cut out
	Heads    int // system messages whose middle was cut out
}

// Any says whether anything was left out.
func (t Trimmed) Any() bool { return t != Trimmed{} }

// Fit gives the messages of a prompt of at most window tokens (MinWindow when that is more) and says what was left out.
// A turn of the past stays or goes as a whole, the oldest first, and a note says so; so a call is never parted from its
// result. The turn that is being answered stays: in it giant messages lose their middle, and then the oldest rounds of
// calls go. System messages may take half of the window; longer ones lose their middle. When not even the newest turn of
// the past fits, it loses the middles of its giant messages too, if there is room. What is given is not changed.
//
// Nothing is counted when the sizes show that everything fits, and each turn of the past at most once.
func (p Prompt) Fit(window int) ([]*schema.Message, Trimmed) {
	window = max(window, MinWindow)
	if p.most() <= window {
		return p.all(), Trimmed{}
	}
	heads, headTokens := measureAll(p.Heads)
	turn, turnTokens := measureAll(p.Turn)
	if p.past(window-headTokens-turnTokens) == 0 && headTokens+turnTokens <= window {
		return p.all(), Trimmed{}
	}

	var t Trimmed
	head := p.Heads
	if headTokens > window/2 {
		for len(heads) > 1 && floor([][]sized{heads}) > window/2 { // hundreds of them: no one but a caller of Complete
			heads = heads[:len(heads)-1]
			t.Messages++
		}
		head, headTokens, t.Heads = cutMessages(heads, window/2)
	}
	left := window - headTokens - omittedTokens
	last := p.Turn
	if turnTokens > left {
		var gone int
		last, turnTokens, gone, t.Cut = trimTurn(turn, left)
		t.Messages += gone
	}
	left -= turnTokens
	t.Turns = p.past(left)
	var cut []*schema.Message // of the newest turn of the past
	if n := len(p.Past); n > 0 && t.Turns == n && left >= window/8 {
		newest, _ := measureAll(p.Past[n-1].Messages)
		var gone, shortened int
		if cut, _, gone, shortened = trimTurn(newest, left); len(cut) > 0 {
			t.Turns--
			t.Messages += gone
			t.Cut += shortened
		}
	}
	for _, g := range p.Past[:t.Turns] {
		t.Messages += len(g.Messages)
	}
	kept := p.Past[t.Turns:]
	out := make([]*schema.Message, 0, len(head)+len(cut)+len(last)+8)
	out = append(out, head...)
	if t.Messages > 0 {
		out = append(out, omitted(t.Messages))
	}
	if cut != nil {
		out, kept = append(out, cut...), nil
	}
	for _, g := range kept {
		out = append(out, g.Messages...)
	}
	return append(out, last...), t
}

// most is what the whole prompt cannot exceed.
func (p Prompt) most() int {
	n := mostTokens(p.Heads) + mostTokens(p.Turn)
	for _, g := range p.Past {
		n += g.most
	}
	return n
}

func (p Prompt) all() []*schema.Message {
	n := len(p.Heads) + len(p.Turn)
	for _, g := range p.Past {
		n += len(g.Messages)
	}
	out := append(make([]*schema.Message, 0, n), p.Heads...)
	for _, g := range p.Past {
		out = append(out, g.Messages...)
	}
	return append(out, p.Turn...)
}

// past gives how many of the oldest turns have to go so that the others take at most left tokens.
func (p Prompt) past(left int) int {
	i := len(p.Past)
	for i > 0 && left >= 0 {
		if left -= p.Past[i-1].Tokens(); left >= 0 {
			i--
		}
	}
	return i
}

// TrimToWindow is Fit of a conversation whose turns begin with the user's messages; the last is the one to be answered.
func TrimToWindow(msgs []*schema.Message, window int) ([]*schema.Message, Trimmed) {
	head := 0
	for head < len(msgs) && msgs[head].Role == schema.System {
		head++
	}
	p := Prompt{Heads: msgs[:head]}
	for _, turn := range splitBefore(msgs[head:], schema.User) {
		if p.Turn != nil {
			p.Past = append(p.Past, NewGroup(p.Turn))
		}
		p.Turn = turn
	}
	return p.Fit(window)
}

// omitted is the note for the model.
func omitted(n int) *schema.Message {
	return schema.SystemMessage(fmt.Sprintf("[%d earlier messages of this conversation are left out here.]", n))
}

// splitBefore cuts messages into groups, each beginning with a message of role; what stands before the first such
// message is a group too.
func splitBefore(msgs []*schema.Message, role schema.RoleType) [][]*schema.Message {
	var groups [][]*schema.Message
	for i, m := range msgs {
		if i == 0 || m.Role == role {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], m)
	}
	return groups
}

// trimTurn makes one turn fit into left tokens: its oldest rounds go while not even cut messages fit, where a round is an
// assistant's message with the results of its calls; then the middles of its largest messages. The person's message and
// the newest round go last, and only when nothing else helps.
func trimTurn(turn []sized, left int) (out []*schema.Message, total, gone, cut int) {
	var rounds [][]sized
	for i, s := range turn {
		if i == 0 || s.m.Role == schema.Assistant {
			rounds = append(rounds, nil)
		}
		rounds[len(rounds)-1] = append(rounds[len(rounds)-1], s)
	}
	first := 0 // rounds[0] holds the person's message, unless the turn begins with an answer
	if len(rounds) > 0 && rounds[0][0].m.Role != schema.Assistant {
		first = 1
	}
	for len(rounds) > first && floor(rounds) > left {
		if len(rounds) == first+1 { // the newest: at least what was called is told
			if short, ok := shorten(rounds[first]); ok {
				rounds[first] = short
				cut++
				continue
			}
		}
		gone += len(rounds[first])
		rounds = append(rounds[:first:first], rounds[first+1:]...)
	}
	var kept []sized
	for _, round := range rounds {
		kept = append(kept, round...)
	}
	out, total, n := cutMessages(kept, left)
	return out, total, gone, cut + n
}

// floor is the size of rounds with every message cut as far as is done before something has to go.
func floor(rounds [][]sized) int {
	n := 0
	for _, round := range rounds {
		for _, s := range round {
			n += s.fixed + min(s.content, smallestMessage)
		}
	}
	return n
}

// shorten takes the giant arguments out of calls; ok is false when there are none.
func shorten(round []sized) (out []sized, ok bool) {
	out = append(out, round...)
	for i, s := range out {
		for j, call := range s.m.ToolCalls {
			if tokens.Count(call.Function.Arguments) <= smallestMessage {
				continue
			}
			m := *out[i].m
			m.ToolCalls = append([]schema.ToolCall(nil), m.ToolCalls...)
			m.ToolCalls[j].Function.Arguments = `{"note":"cut out: too long"}`
			out[i], ok = measure(&m), true
		}
	}
	return out, ok
}

// cutMessages cuts the middles out of the largest messages, all to the same size, so that all take at most left tokens, if
// their other parts do.
func cutMessages(msgs []sized, left int) (out []*schema.Message, total, cut int) {
	limit := fairLimit(msgs, left)
	for _, s := range msgs {
		m, n := s.m, s.content
		if n > limit {
			copied := *m
			copied.Content = cutMiddle(m.Content, n, limit)
			m, n = &copied, tokens.Count(copied.Content)
			cut++
		}
		out = append(out, m)
		total += s.fixed + n
	}
	return out, total, cut
}

// fairLimit gives the largest size to which all larger texts must be cut so that the sum fits into left.
func fairLimit(msgs []sized, left int) int {
	low, high := 0, max(left, 0)
	for low < high {
		limit := (low + high + 1) / 2
		sum := 0
		for _, s := range msgs {
			sum += s.fixed + min(s.content, limit)
		}
		if sum <= left {
			low = limit
		} else {
			high = limit - 1
		}
	}
	return low
}

// cutMiddle keeps the beginning and the end of s, which has n tokens, within limit tokens including the note between them.
func cutMiddle(s string, n, limit int) string {
	const note = "\n[… the middle was cut out: too long …]\n"
	const noteTokens = 20
	if limit <= 2*noteTokens {
		return cutBytes(s, limit) // no more tokens than bytes
	}
	keep := (limit - noteTokens) * len(s) / n
	for range 8 {
		out := ends(s, keep, note)
		got := tokens.Count(out)
		if got <= limit {
			return out
		}
		keep = min(keep*limit/got, keep*19/20)
	}
	return ends(s, limit-tokens.Most(note), note)
}

// ends joins the beginning and the end of s, about keep bytes in all, at the borders of characters.
func ends(s string, keep int, between string) string {
	keep = min(max(keep, 0), len(s))
	front := cutBytes(s, keep/2)
	back := s[len(front):]
	back = back[len(cutBytes(back, max(len(back)-keep/2, 0))):]
	for len(back) > keep/2 { // cutBytes went back to the beginning of a character
		_, size := utf8.DecodeRuneInString(back)
		back = back[size:]
	}
	return front + between + back
}
