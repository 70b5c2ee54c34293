package model

import (
	"fmt"

	"github.com/cloudwego/eino/schema"
)

const (
	messageOverhead = 4  // tokens around each message
	smallestMessage = 64 // tokens to which a giant message may be cut
)

// EstimateTokens gives about how many tokens messages take in a prompt. Tokenizers differ: it counts four characters of
// Latin text, one of Chinese, Japanese or Korean, and two of anything else as a token, which is rather too many than
// too few.
func EstimateTokens(msgs []*schema.Message) int {
	n := 0
	for _, m := range msgs {
		n += messageTokens(m)
	}
	return n
}

func messageTokens(m *schema.Message) int {
	if m == nil {
		return 0
	}
	n := messageOverhead + textTokens(m.Content) + textTokens(m.Name) + textTokens(m.ToolCallID)
	for i := range m.ToolCalls {
		call := &m.ToolCalls[i]
		n += messageOverhead + textTokens(call.ID) + textTokens(call.Function.Name) + textTokens(call.Function.Arguments)
	}
	return n
}

// mostTokens gives what EstimateTokens cannot exceed, from the sizes alone: no character counts more than a third of a token
// for each of its bytes.
func mostTokens(msgs []*schema.Message) int {
	most := func(s string) int { return len(s)/3 + 1 }
	n := 0
	for _, m := range msgs {
		if m == nil {
			continue
		}
		n += messageOverhead + most(m.Content) + most(m.Name) + most(m.ToolCallID)
		for i := range m.ToolCalls {
			call := &m.ToolCalls[i]
			n += messageOverhead + most(call.ID) + most(call.Function.Name) + most(call.Function.Arguments)
		}
	}
	return n
}

// textTokens estimates in quarters of a token.
func textTokens(s string) int {
	quarters := 0
	for _, r := range s {
		quarters += runeQuarters(r)
	}
	return (quarters + 3) / 4
}

// runeQuarters takes whole blocks for Chinese, Japanese and Korean: exact tables would cost more than they tell.
func runeQuarters(r rune) int {
	switch {
	case r < 0x80:
		return 1
	case r < 0x1100:
		return 2
	case r < 0x1200, r >= 0x2E80 && r < 0xA4D0, r >= 0xAC00 && r < 0xD7B0, r >= 0xF900 && r < 0xFB00, r >= 0xFF00:
		return 4 // Jamo, radicals to Yi, Hangul, compatibility and full-width forms, everything beyond the BMP
	default:
		return 2
	}
}

// Trimmed says what TrimToWindow left out.
type Trimmed struct {
	Messages int // whole messages left out
	Turns    int // turns that these were, the oldest first
	Cut      int // messages whose middle was cut out
}

// Any says whether anything was left out.
func (t Trimmed) Any() bool { return t != Trimmed{} }

// TrimToWindow gives the messages that fit into window tokens (as EstimateTokens counts) and says what was left out. The
// system messages at the beginning stay. A turn, a person's message and all that follows up to the next one, stays or
// goes as a whole, the oldest first, and a note says so; so a tool call is never parted from its results. The last turn
// always stays: in it, giant messages lose their middle, and then the oldest rounds of tool calls go. The given messages
// are not changed. When the system messages leave no room, the result may be larger than window.
func TrimToWindow(msgs []*schema.Message, window int) ([]*schema.Message, Trimmed) {
	if mostTokens(msgs) <= window || EstimateTokens(msgs) <= window {
		return msgs, Trimmed{}
	}
	head := 0
	for head < len(msgs) && msgs[head].Role == schema.System {
		head++
	}
	var trimmed Trimmed
	left := window - EstimateTokens(msgs[:head])
	turns := splitBefore(msgs[head:], schema.User)
	if len(turns) == 0 {
		return msgs, trimmed
	}
	last := turns[len(turns)-1]
	sizes := make([]int, len(turns))
	total := 0
	for i, turn := range turns {
		sizes[i] = EstimateTokens(turn)
		total += sizes[i]
	}
	note := omitted(0)
	for i := 0; i < len(turns)-1 && total > left; i++ {
		if trimmed.Turns == 0 {
			left -= messageTokens(note)
		}
		total -= sizes[i]
		trimmed.Turns++
		trimmed.Messages += len(turns[i])
	}
	if total > left { // the last turn alone
		if trimmed.Turns == 0 {
			left -= messageTokens(note)
		}
		last, trimmed.Messages, trimmed.Cut = trimTurn(last, left, trimmed.Messages)
	}
	out := make([]*schema.Message, 0, len(msgs)+1)
	out = append(out, msgs[:head]...)
	if trimmed.Messages > 0 {
		out = append(out, omitted(trimmed.Messages))
	}
	for _, turn := range turns[trimmed.Turns : len(turns)-1] {
		out = append(out, turn...)
	}
	return append(out, last...), trimmed
}

// omitted is the note for the model; its size does not depend on n below a million.
func omitted(n int) *schema.Message {
	return schema.SystemMessage(fmt.Sprintf("[%6d earlier messages of this conversation are left out here.]", n))
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

// trimTurn makes one turn fit: first the middles of its largest messages go, then its oldest rounds, where a round is an
// assistant's message with the results of its calls.
func trimTurn(turn []*schema.Message, left, dropped int) (out []*schema.Message, messages, cut int) {
	rounds := splitBefore(turn, schema.Assistant)
	first := 0 // rounds[0] holds the person's message, unless the turn begins with an answer
	if rounds[0][0].Role != schema.Assistant {
		first = 1
	}
	for first < len(rounds)-1 && floorTokens(rounds) > left {
		dropped += len(rounds[first])
		rounds = append(rounds[:first:first], rounds[first+1:]...)
	}
	var kept []*schema.Message
	for _, round := range rounds {
		kept = append(kept, round...)
	}
	limit := fairLimit(kept, left)
	for i, m := range kept {
		if messageTokens(m) > limit && contentTokens(m) > smallestMessage {
			copied := *m
			copied.Content = cutMiddle(m.Content, max(smallestMessage, limit-(messageTokens(m)-contentTokens(m))))
			kept[i] = &copied
			cut++
		}
	}
	return kept, dropped, cut
}

func contentTokens(m *schema.Message) int { return textTokens(m.Content) }

// floorTokens is the size of rounds with every message cut as far as it may be.
func floorTokens(rounds [][]*schema.Message) int {
	n := 0
	for _, round := range rounds {
		for _, m := range round {
			n += messageTokens(m) - contentTokens(m) + min(contentTokens(m), smallestMessage)
		}
	}
	return n
}

// fairLimit gives the largest size to which all larger messages must be cut so that the sum fits into left.
func fairLimit(msgs []*schema.Message, left int) int {
	low, high := 0, left
	for low < high {
		limit := (low + high + 1) / 2
		sum := 0
		for _, m := range msgs {
			fixed := messageTokens(m) - contentTokens(m)
			sum += fixed + min(contentTokens(m), max(limit-fixed, smallestMessage))
		}
		if sum <= left {
			low = limit
		} else {
			high = limit - 1
		}
	}
	return low
}

// cutMiddle keeps the beginning and the end of s, within limit tokens including the note between them.
func cutMiddle(s string, limit int) string {
	const note = "\n[… the middle was cut out: too long …]\n"
	budget := (limit - textTokens(note) - 1) * 4 // in quarters
	if budget <= 0 {
		budget = 4
	}
	runes := []rune(s)
	front, back := 0, len(runes)
	for used := 0; front < back; front++ {
		if used += runeQuarters(runes[front]); used > budget/2 {
			break
		}
	}
	for used := 0; back > front; back-- {
		if used += runeQuarters(runes[back-1]); used > budget/2 {
			break
		}
	}
	return string(runes[:front]) + note + string(runes[back:])
}
