package compactor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cloudwego/eino/schema"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/memory"
	"github.com/butlerhub/butler/pkg/tokens"
	"github.com/butlerhub/butler/pkg/transcript"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

const (
	// leastWorth is how many tokens a summary must replace at least: below, it could only be longer.
	leastWorth = 300
	// around is what of the model's window stands around a piece and the summaries: instructions, and what the count is off.
	around = 1500
	// leastPiece is the smallest piece; with a window too small for it the model will say so.
	leastPiece = 500
	// appendTimeout bounds the append, its repetitions included.
	appendTimeout = time.Minute
)

// compact makes a summary of a session. by is who asks for it, nil when it is made by itself: then a failure is followed by
// a time of patience. The summary is nil when there was nothing to do, or another one was first.
func (s *Service) compact(ctx context.Context, session chat.Session, reason string, by *butlerv1.Actor) (*butlerv1.StoredSummary, error) {
	result, made, err := s.attempt(ctx, session, reason, by)
	s.metrics.done.WithLabelValues(result).Inc()
	switch result {
	case resultModel, resultRejected:
		if ctx.Err() == nil {
			s.metrics.failing.Set(float64(s.patience.failed(s.now(), session, result == resultModel)))
		}
	case resultDone:
		s.patience.succeeded(session)
		s.metrics.failing.Set(0)
	}
	return made, err
}

func (s *Service) attempt(ctx context.Context, session chat.Session, reason string, by *butlerv1.Actor) (string, *butlerv1.StoredSummary, error) {
	if s.model == nil {
		return resultModel, nil, fault.New(fault.Conflict, "no model is configured that could write summaries: set BUTLER_BASE_URL and BUTLER_MODEL")
	}
	if left := s.patience.left(s.now(), session); left > 0 && by == nil {
		return resultWaiting, nil, nil
	}
	if !s.claim(session) {
		return resultWaiting, nil, fault.New(fault.Conflict, "this conversation is being compacted right now")
	}
	defer s.release(session)
	began := s.now()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.New("the compaction took too long"))
	defer cancel()
	c, err := s.read(ctx, session)
	if err != nil {
		return resultLog, nil, err
	}
	policy := s.settings.Policy
	if by != nil {
		policy.Recent = min(policy.Recent, 2) // the person wants it shorter now
	}
	n := policy.Cover(c.sizes())
	if n == 0 {
		return resultNothing, nil, nil
	}
	var used spent
	next, err := s.summarise(ctx, c, n, &used)
	s.metrics.tokens.WithLabelValues("prompt").Add(float64(max(used.prompt, 0)))
	s.metrics.tokens.WithLabelValues("completion").Add(float64(max(used.completion, 0)))
	if used.calls > 0 {
		s.metrics.seconds.Observe(s.now().Sub(began).Seconds())
	}
	switch {
	case err != nil && isRejected(err):
		return resultRejected, nil, fault.Wrap(err, fault.Unavailable, "what the model wrote is no summary: %s", err)
	case err != nil:
		return resultModel, nil, fault.Wrap(err, fault.Unavailable, "the model that writes summaries gave no answer")
	case next == nil:
		return resultNothing, nil, nil
	}
	next.By, next.Receipt.Reason, next.Receipt.DurationMs = by, reason, s.now().Sub(began).Milliseconds()
	stored, err := s.append(ctx, c, next)
	switch {
	case errors.Is(err, bus.ErrFenced):
		s.log.InfoContext(ctx, "another summary was first", "session", session.String())
		return resultFenced, nil, nil
	case err != nil:
		return resultLog, nil, err
	}
	r := next.Receipt
	s.metrics.tokens.WithLabelValues("replaced").Add(float64(r.TokensBefore))
	s.metrics.tokens.WithLabelValues("written").Add(float64(r.TokensAfter))
	s.metrics.messages.Add(float64(r.Messages))
	s.log.InfoContext(ctx, "a conversation was compacted", "session", session.String(), "reason", reason, "messages", r.Messages,
		"tokens_before", r.TokensBefore, "tokens_after", r.TokensAfter, "model_calls", r.ModelCalls, "pieces", r.Pieces)
	return resultDone, stored, nil
}

func isRejected(err error) bool {
	_, ok := errors.AsType[*rejected](err)
	return ok
}

// summarise makes the summary that stands for the oldest n turns of c beside those that the one before stands for, or for
// the first of them when that is too much at once. It is nil when there is too little.
func (s *Service) summarise(ctx context.Context, c *conversation, n int, used *spent) (*butlerv1.ChatSummary, error) {
	policy := s.settings.Policy
	pinned := tokens.Count(memory.PinsForPrompt(c.pins))
	// The window holds the summary before, the piece, and the answer with its thoughts.
	limit := min(max(s.settings.Window-4*policy.MostSummary()-pinned-around, leastPiece), mostPiece)
	texts, held := pieces(c.turns, n, limit)
	old := tokens.Count(memory.Text(c.summary))
	before := int64(old)
	for _, text := range texts {
		before += int64(tokens.Count(text))
	}
	if before-int64(old) < leastWorth {
		return nil, nil
	}
	parts := c.summary.GetParts()
	for _, text := range texts {
		var err error
		if parts, err = s.fold(ctx, parts, c.pins, text, used); err != nil {
			return nil, err
		}
	}
	covered := c.turns[:held]
	next := &butlerv1.ChatSummary{
		CoversTo: int64(covered[held-1].asked), CoversAfter: c.summary.GetCoversTo(), StartedFrom: int64(c.seq),
		Parts: parts, Verbatim: verbatim(c.summary.GetVerbatim(), covered), Attached: c.summary.GetAttached(),
	}
	r := &butlerv1.SummaryReceipt{
		Turns: int32(held), TokensBefore: before, Model: used.model, ModelCalls: used.calls, PromptTokens: used.prompt,
		CompletionTokens: used.completion, Pieces: int32(len(texts)), RemovedLines: used.removed,
	}
	for _, t := range covered {
		r.Messages += int32(len(t.messages))
		if t.attached != "" {
			next.Attached = t.attached
		}
	}
	r.TokensAfter = int64(tokens.Count(memory.Text(next)))
	if r.TokensAfter >= r.TokensBefore {
		return nil, reject("it is longer than what it replaces: %d tokens for %d", r.TokensAfter, r.TokensBefore)
	}
	r.Checks = []string{
		fmt.Sprintf("parts: all %d are there", len(memory.Parts)),
		fmt.Sprintf("size: %d tokens instead of %d", r.TokensAfter, r.TokensBefore),
		fmt.Sprintf("permissions: %d lines left out", r.RemovedLines),
		fmt.Sprintf("pinned facts: %d, kept word for word beside the summary", len(c.pins)),
		fmt.Sprintf("commands that were not run: %d, kept word for word", len(next.Verbatim)),
	}
	next.Receipt = r
	return next, nil
}

// append stores a summary of c, if no other was stored since c was read.
func (s *Service) append(ctx context.Context, c *conversation, next *butlerv1.ChatSummary) (*butlerv1.StoredSummary, error) {
	data, err := chat.Encode(next)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	if err := s.stillThere(ctx, c, next); err != nil {
		return nil, err
	}
	ev := bus.NewEvent(chat.TypeSummary, s.bus.Source(), c.session.Summary(), data)
	seq, err := s.bus.Append(ctx, ev, bus.Expect{Filter: c.session.StoredSummary(), Seq: c.seq})
	if err != nil {
		return nil, err
	}
	return stored(int64(seq), ev.Time, next), nil
}

// stillThere looks whether the conversation was deleted meanwhile: nothing of it may come back.
func (s *Service) stillThere(ctx context.Context, c *conversation, next *butlerv1.ChatSummary) error {
	if next.GetCoversTo() == 0 {
		return nil
	}
	events, err := s.bus.Load(ctx, bus.ChatStream, c.session.KindFilter(chat.Asked), uint64(next.GetCoversTo()-1), 1)
	if err != nil {
		return err
	}
	if len(events) == 0 || events[0].Seq != uint64(next.GetCoversTo()) {
		return fault.New(fault.NotFound, "this conversation was deleted")
	}
	return nil
}

// Bounds of what is kept word for word.
const (
	mostVerbatim = 20  // lines
	mostLine     = 300 // characters of each
)

// runCommand is the tool by which the model proposes commands.
const runCommand = "run_command"

// verbatim gives the lines that are kept word for word: commands that were not run, and those of which nobody knows, with
// the reason. A summary must not forget that somebody said no.
func verbatim(before []string, turns []turn) []string {
	out := append([]string(nil), before...)
	for _, t := range turns {
		commands := map[string]string{} // by call
		for i, m := range t.messages {
			for _, call := range m.ToolCalls {
				var in struct {
					Command string `json:"command"`
				}
				if call.Function.Name == runCommand && json.Unmarshal([]byte(call.Function.Arguments), &in) == nil {
					commands[call.ID] = in.Command
				}
			}
			switch text, byHand := strings.CutPrefix(m.Content, transcript.HandMark); {
			case m.Role == schema.Tool && commands[m.ToolCallID] != "" && notRun(m.Content):
				out = append(out, kept(commands[m.ToolCallID], m.Content))
			case byHand && i > 0 && notRun(text):
				out = append(out, kept(t.messages[0].Content, text))
			}
		}
	}
	return out[max(len(out)-mostVerbatim, 0):]
}

func notRun(text string) bool {
	for _, begin := range []string{"Not run", "It is unknown whether", "It is not known whether", "未运行", "无法确定是否已运行"} {
		if strings.HasPrefix(text, begin) {
			return true
		}
	}
	return false
}

func kept(command, result string) string {
	first, _, _ := strings.Cut(result, " Do not try to reach the same")
	return oneLine("`"+oneLine(command, mostLine/2)+"`: "+first, mostLine)
}

// oneLine gives the beginning of a text as one line.
func oneLine(s string, most int) string {
	s = strings.Join(strings.Fields(s), " ")
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most-1]) + "…"
	}
	return s
}
