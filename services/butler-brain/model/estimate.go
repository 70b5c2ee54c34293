package model

import "github.com/cloudwego/eino/schema"

// estimateTokens gives about how many tokens messages take in a prompt, for what the demo model reports. It counts four
// characters of Latin text, one of Chinese, Japanese or Korean, and two of anything else as a token.
func estimateTokens(msgs []*schema.Message) int {
	n := 0
	for _, m := range msgs {
		n += messageOverhead + estimateText(m.Content) + estimateText(m.Name) + estimateText(m.ToolCallID)
		for i := range m.ToolCalls {
			call := &m.ToolCalls[i]
			n += messageOverhead + estimateText(call.ID) + estimateText(call.Function.Name) + estimateText(call.Function.Arguments)
		}
	}
	return n
}

// estimateText takes whole blocks for Chinese, Japanese and Korean: exact tables would cost more than they tell.
func estimateText(s string) int {
	quarters := 0
	for _, r := range s {
		switch {
		case r < 0x80:
			quarters++
		case r < 0x1100:
			quarters += 2
		case r < 0x1200, r >= 0x2E80 && r < 0xA4D0, r >= 0xAC00 && r < 0xD7B0, r >= 0xF900 && r < 0xFB00, r >= 0xFF00:
			quarters += 4 // Jamo, radicals to Yi, Hangul, compatibility and full-width forms, everything beyond the BMP
		default:
			quarters += 2
		}
	}
	return (quarters + 3) / 4
}
