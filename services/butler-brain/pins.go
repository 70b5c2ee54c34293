package brain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/journal"
	"github.com/butlerhub/butler/pkg/memory"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Messages about what the conversation remembers. In a conversation that is attached to a shell they are the shell's.
const (
	rememberWord = "/remember"
	forgetWord   = "/forget"
	compactWord  = "/compact"
)

// Key of their step, how long a compaction is waited for, and how often a change of the pins is tried while others change
// them.
const (
	memoryKey      = "memory"
	compactTimeout = 3 * time.Minute
	pinTries       = 5
)

// memoryOutcome is what is recorded of such a message.
type memoryOutcome struct {
	Code fault.Code      `json:"code,omitempty"` // it did not work
	Text string          `json:"text,omitempty"` // why, or the fact
	Pins []string        `json:"pins,omitempty"` // all facts, where they were asked for
	Made *compactOutcome `json:"made,omitempty"`
}

// compactOutcome says what a compaction did.
type compactOutcome struct {
	Messages int32 `json:"messages,omitempty"`
	Before   int64 `json:"before,omitempty"`
	After    int64 `json:"after,omitempty"`
}

// remembers ends the turn when its message is about what the conversation remembers.
func (t *talk) remembers(ctx context.Context) (end journal.End, handled bool, err error) {
	word, rest := strings.TrimSpace(t.asked.Text), ""
	if i := strings.IndexFunc(word, unicode.IsSpace); i > 0 {
		word, rest = word[:i], strings.TrimSpace(word[i:])
	}
	var do func(context.Context) (memoryOutcome, error)
	switch {
	case word == compactWord && t.past.attached != "": // there it is the shell's: a picture of it
		return end, false, nil
	case word == rememberWord && rest == "":
		do = t.listPins
	case word == rememberWord:
		do = func(ctx context.Context) (memoryOutcome, error) {
			return t.changePins(ctx, func(pins []*butlerv1.Pin) ([]*butlerv1.Pin, string, error) {
				pins, err := memory.Remember(pins, t.turn.ID, rest, t.s.clock.Now())
				return pins, rest, err
			})
		}
	case word == forgetWord:
		do = func(ctx context.Context) (memoryOutcome, error) {
			return t.changePins(ctx, func(pins []*butlerv1.Pin) ([]*butlerv1.Pin, string, error) {
				pins, gone, err := memory.Forget(pins, rest)
				return pins, gone.GetText(), err
			})
		}
	case word == compactWord && rest == "":
		do = t.compactNow
	default:
		return end, false, nil
	}
	// Forgetting by number means another fact the second time, so after a crash it is not done again by itself.
	effect := journal.Effect{Repeat: journal.Pure, Description: word}
	if word == forgetWord {
		effect.Repeat = journal.Once
	}
	out, err := journal.Do(ctx, t.run, memoryKey, effect, func(ctx context.Context, _ *journal.Call) (memoryOutcome, error) {
		out, err := do(ctx)
		switch {
		case err == nil:
			return out, nil
		case ctx.Err() != nil:
			return out, context.Cause(ctx)
		}
		if fault.ClassOf(err) != fault.User {
			t.s.log.WarnContext(ctx, "what a conversation remembers could not be changed", "turn", t.turn.String(), "error", err)
		}
		return memoryOutcome{Code: fault.CodeOf(err), Text: fault.MessageOf(err)}, nil
	})
	words := wordsIn(t.asked.Language)
	var failure *journal.Failure
	switch {
	case errors.As(err, &failure):
		end, err = t.directEnd(chat.Failed, "memory_unknown", &butlerv1.ChatReply{Text: words.memoryUnknown()})
	case err != nil:
		return end, false, err
	case out.Code != "" && fault.ClassOf(&fault.Error{Code: out.Code}) == fault.User:
		end, err = t.directEnd(chat.Answered, "refused", &butlerv1.ChatReply{Text: sentence(out.Text)})
	case out.Code != "":
		end, err = t.directEnd(chat.Failed, "memory_unavailable", &butlerv1.ChatReply{Text: words.noMemory()})
	default:
		end, err = t.directEnd(chat.Answered, "", &butlerv1.ChatReply{Text: words.remembered(word, out)})
	}
	return end, true, err
}

func (t *talk) listPins(ctx context.Context) (memoryOutcome, error) {
	pins, _, err := t.s.pins(ctx, t.turn.Session)
	out := memoryOutcome{}
	for _, p := range pins {
		out.Pins = append(out.Pins, p.GetText())
	}
	return out, err
}

// pins reads what is pinned in a session now, and the sequence of that.
func (s *Service) pins(ctx context.Context, session chat.Session) ([]*butlerv1.Pin, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, directTimeout)
	defer cancel()
	ev, found, err := s.bus.Last(ctx, bus.ChatStream, session.StoredPins())
	if err != nil || !found {
		return nil, 0, err
	}
	pins := &butlerv1.ChatPins{}
	if ev.Type != chat.TypePins {
		return nil, 0, fault.New(fault.Internal, "an event of type %q on %s", ev.Type, ev.Subject)
	}
	if err := chat.Decode(ev.Data, pins); err != nil {
		return nil, 0, fault.Wrap(err, fault.Internal, "the pins of %s cannot be read", session)
	}
	return pins.GetPins(), ev.Seq, nil
}

// changePins changes what is pinned in the conversation; change gives the pins as they shall be and the fact in question.
func (t *talk) changePins(ctx context.Context, change func([]*butlerv1.Pin) ([]*butlerv1.Pin, string, error)) (memoryOutcome, error) {
	session := t.turn.Session
	for try := 1; ; try++ {
		pins, seq, err := t.s.pins(ctx, session)
		if err != nil {
			return memoryOutcome{}, err
		}
		next, text, err := change(pins)
		if err != nil {
			return memoryOutcome{}, err
		}
		if len(next) == len(pins) {
			return memoryOutcome{Text: text}, nil // an earlier attempt did it
		}
		data, err := chat.Encode(&butlerv1.ChatPins{Pins: next})
		if err != nil {
			return memoryOutcome{}, err
		}
		limited, cancel := context.WithTimeout(ctx, appendTimeout)
		_, err = t.s.bus.Append(limited, bus.NewEvent(chat.TypePins, t.s.bus.Source(), session.Pins(), data),
			bus.Expect{Filter: session.StoredPins(), Seq: seq})
		cancel()
		if err == nil {
			t.s.sessions.mark(session)
			return memoryOutcome{Text: text}, nil
		}
		if !errors.Is(err, bus.ErrFenced) {
			return memoryOutcome{}, err
		}
		if try == pinTries {
			return memoryOutcome{}, fault.Wrap(err, fault.Unavailable, "what is pinned is being changed by others")
		}
	}
}

func (t *talk) compactNow(ctx context.Context) (memoryOutcome, error) {
	if t.s.compactor == nil {
		return memoryOutcome{}, fault.New(fault.Unavailable, "there is no compactor")
	}
	ctx, cancel := context.WithTimeout(ctx, compactTimeout)
	defer cancel()
	res, err := t.s.compactor.Compact(ctx, &butlerv1.CompactRequest{Person: t.turn.Person, Thread: t.turn.Thread, By: t.asked.Sender})
	if err != nil {
		return memoryOutcome{}, err
	}
	out := memoryOutcome{}
	if r := res.GetSummary().GetSummary().GetReceipt(); res.GetCompacted() {
		t.s.sessions.mark(t.turn.Session)
		out.Made = &compactOutcome{Messages: r.GetMessages(), Before: r.GetTokensBefore(), After: r.GetTokensAfter()}
	}
	return out, nil
}

func (w words) remembered(word string, out memoryOutcome) string {
	switch {
	case word == compactWord && out.Made == nil:
		return w.pick("There is nothing to compact: what is not summarised yet is short, or still being worked on.",
			"没有可压缩的内容：尚未总结的部分很短，或仍在处理中。")
	case word == compactWord:
		return fmt.Sprintf(w.pick("Compacted: a summary of %d tokens stands for %d older messages now, which took %d tokens with the "+
			"summary before. The messages themselves are kept.", "已压缩：现在由 %d 个 token 的摘要代表 %d 条较早的消息（此前连同旧摘要共 %d 个 token）。原始消息仍然保留。"),
			out.Made.After, out.Made.Messages, out.Made.Before)
	case word == forgetWord:
		return fmt.Sprintf(w.pick("Forgotten: %s", "已忘记：%s"), out.Text)
	case out.Text != "":
		return fmt.Sprintf(w.pick("Pinned in this conversation: %s", "已固定在本会话中：%s"), out.Text)
	case len(out.Pins) == 0:
		return w.pick("Nothing is pinned in this conversation. `/remember` and a fact pins it.", "本会话没有固定的内容。用 `/remember` 加内容来固定。")
	}
	var b strings.Builder
	b.WriteString(w.pick("Pinned in this conversation:\n", "本会话固定的内容：\n"))
	for i, p := range out.Pins {
		fmt.Fprintf(&b, "\n%d. %s", i+1, p)
	}
	return b.String()
}

func (w words) noMemory() string {
	return w.pick("That did not work: what keeps and makes summaries does not answer now. Nothing was changed; try again later.",
		"操作未成功：负责保存和生成摘要的服务暂时无响应。没有任何更改，请稍后再试。")
}

func (w words) memoryUnknown() string {
	return w.pick("It is not known whether the fact was forgotten, and it is not done again by itself: `/remember` lists what is pinned.",
		"无法确定该内容是否已忘记，不会自动重复：用 `/remember` 查看固定的内容。")
}
