package model

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/cloudwego/eino/schema"
)

// Bounds of one answer.
const (
	maxText       = 512 << 10 // bytes
	maxToolCalls  = 32
	maxArguments  = 64 << 10 // bytes, of each call
	maxCallName   = 128      // bytes
	maxCallID     = 128      // bytes
	thinkOpen     = "<think>"
	thinkClose    = "</think>"
	unnamedCall   = "unnamed"
	maxThinkDelay = 64 // bytes of white space before a thinking tag
)

var (
	errTooLong = errors.New("the answer is larger than allowed")
	errCut     = errors.New("the stream ended before the answer did")
	errEmpty   = errors.New("neither text nor tool call")
	errFilter  = errors.New("the answer was withheld by the endpoint's content filter")
)

// collector puts the pieces of one streamed message together.
type collector struct {
	round    int // number of messages in the prompt: keeps generated ids of different rounds apart
	text     strings.Builder
	calls    []*callParts
	byIndex  map[int]*callParts
	usage    Usage
	finish   string
	streamed bool
	think    thinkFilter
}

type callParts struct {
	id, name string
	args     strings.Builder
}

func newCollector(round int) *collector {
	return &collector{round: round, byIndex: map[int]*callParts{}}
}

// add takes one piece and hands its text out.
func (c *collector) add(m *schema.Message, onText func(string)) error {
	if m == nil {
		return nil
	}
	if meta := m.ResponseMeta; meta != nil {
		if meta.FinishReason != "" {
			c.finish = meta.FinishReason
		}
		if meta.Usage != nil {
			c.usage.PromptTokens = max(c.usage.PromptTokens, int64(meta.Usage.PromptTokens))
			c.usage.CompletionTokens = max(c.usage.CompletionTokens, int64(meta.Usage.CompletionTokens))
		}
	}
	for i := range m.ToolCalls {
		if err := c.addCall(&m.ToolCalls[i]); err != nil {
			return err
		}
	}
	return c.emit(c.think.next(cleanText(m.Content)), onText)
}

// flush hands out what was held back to recognise a thinking block.
func (c *collector) flush(onText func(string)) error { return c.emit(c.think.rest(), onText) }

func (c *collector) emit(piece string, onText func(string)) error {
	if piece == "" {
		return nil
	}
	if c.text.Len()+len(piece) > maxText {
		return errTooLong
	}
	c.text.WriteString(piece)
	c.streamed = true
	if onText != nil {
		onText(piece)
	}
	return nil
}

// addCall merges a piece of a tool call. Pieces are told apart by their index; endpoints that give none, or the same
// for all, begin a new call with a new id or name.
func (c *collector) addCall(p *schema.ToolCall) error {
	call := c.find(p)
	if call == nil {
		if p.ID == "" && p.Function.Name == "" && p.Function.Arguments == "" {
			return nil
		}
		if len(c.calls) == maxToolCalls {
			return errTooLong
		}
		call = &callParts{}
		c.calls = append(c.calls, call)
		if p.Index != nil {
			c.byIndex[*p.Index] = call
		}
	}
	if call.id == "" {
		call.id = p.ID
	}
	if call.name == "" {
		call.name = p.Function.Name
	}
	if call.args.Len()+len(p.Function.Arguments) > maxArguments {
		return errTooLong
	}
	call.args.WriteString(p.Function.Arguments)
	return nil
}

func (c *collector) find(p *schema.ToolCall) *callParts {
	if p.Index != nil {
		call := c.byIndex[*p.Index]
		if call != nil && p.ID != "" && call.id != "" && p.ID != call.id {
			return nil
		}
		return call
	}
	if p.ID != "" {
		for _, call := range c.calls {
			if call.id == p.ID {
				return call
			}
		}
		return nil
	}
	if p.Function.Name != "" || len(c.calls) == 0 {
		return nil
	}
	return c.calls[len(c.calls)-1]
}

// result gives the whole message; whole says that the stream said so itself.
func (c *collector) result(whole bool, model string) (*Result, error) {
	switch {
	case c.finish == finishError, c.finish == "" && !whole:
		return nil, errCut
	case len(c.calls) == 0 && strings.TrimSpace(c.text.String()) == "":
		if c.finish == finishFilter {
			return nil, errFilter
		}
		return nil, errEmpty
	}
	msg := &schema.Message{Role: schema.Assistant, Content: c.text.String(), ResponseMeta: &schema.ResponseMeta{
		FinishReason: c.finish,
		Usage: &schema.TokenUsage{
			PromptTokens: int(c.usage.PromptTokens), CompletionTokens: int(c.usage.CompletionTokens),
			TotalTokens: int(c.usage.PromptTokens + c.usage.CompletionTokens),
		},
	}}
	ids := make(map[string]bool, len(c.calls))
	for i, call := range c.calls {
		name := cleanText(call.name)
		if name == "" {
			name = unnamedCall
		}
		name = cutBytes(name, maxCallName)
		args := cleanText(call.args.String())
		id := call.id
		if id == "" || len(id) > maxCallID || id != cleanText(id) || ids[id] {
			id = callID(c.round, i, name, args)
		}
		ids[id] = true
		msg.ToolCalls = append(msg.ToolCalls, schema.ToolCall{
			ID: id, Type: "function", Function: schema.FunctionCall{Name: name, Arguments: args},
		})
	}
	return &Result{Message: msg, Usage: c.usage, FinishReason: c.finish, Model: model}, nil
}

// callID makes an id for a call that has none: the same for the same answer to the same prompt, different within a
// message and between the rounds of a turn.
func callID(round, position int, name, args string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d\x00%d\x00%s\x00%s", round, position, name, args))
	return fmt.Sprintf("call_%x", sum[:10])
}

// cleanText makes text that every store and encoding takes: valid UTF-8 without NUL.
func cleanText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

// thinkFilter leaves out a block <think>…</think> at the very beginning of an answer: some endpoints put a model's
// reasoning there instead of into a field of its own.
type thinkFilter struct {
	state int // 0 at the beginning, 1 inside the block, 2 after it
	held  string
}

func (t *thinkFilter) next(piece string) string {
	if t.state == 2 || piece == "" {
		return piece
	}
	t.held += piece
	if t.state == 0 {
		trimmed := strings.TrimLeft(t.held, " \t\r\n")
		switch {
		case strings.HasPrefix(trimmed, thinkOpen):
			t.state, t.held = 1, trimmed[len(thinkOpen):]
		case strings.HasPrefix(thinkOpen, trimmed) && len(t.held) <= maxThinkDelay:
			return ""
		default:
			return t.rest()
		}
	}
	if at := strings.Index(t.held, thinkClose); at >= 0 {
		after := strings.TrimLeft(t.held[at+len(thinkClose):], " \t\r\n")
		t.state, t.held = 2, ""
		return after
	}
	t.held = t.held[max(0, len(t.held)-len(thinkClose)):] // enough to find a tag that is split over pieces
	return ""
}

// rest ends the filter and gives what was held back, unless it is reasoning.
func (t *thinkFilter) rest() string {
	held := t.held
	if t.state == 1 {
		held = ""
	}
	t.state, t.held = 2, ""
	return held
}
