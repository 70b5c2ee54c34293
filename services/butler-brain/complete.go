package brain

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/cloudwego/eino/schema"
	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

// Bounds of a conversation that a caller holds.
const (
	maxMessages = 5000
	maxAllText  = 2 << 20 // bytes
)

// Complete implements butlerv1.BrainServiceServer: it answers a conversation that the caller holds. It calls no tools and
// remembers nothing. A call of the model that fails is tried again as long as no text was sent; afterwards the failure is
// the last response.
func (s *Service) Complete(req *butlerv1.CompleteRequest, out grpc.ServerStreamingServer[butlerv1.CompleteResponse]) error {
	msgs, err := completeMessages(req)
	if err != nil {
		return fault.GRPC(err)
	}
	ctx, cancel := context.WithTimeout(out.Context(), s.settings.TurnTimeout)
	defer cancel()
	free, err := s.completions.take(ctx, req.GetActor().GetId())
	if err != nil {
		return fault.GRPC(err)
	}
	defer free()
	opts := model.CallOptions{MaxTokens: int(req.GetMaxTokens())}
	if req.Temperature != nil {
		t := float32(*req.Temperature)
		opts.Temperature = &t
	}
	prompt, trimmed := model.TrimToWindow(msgs, s.promptLimit())
	if trimmed.Any() {
		s.metrics.trimmed.Inc()
		s.log.InfoContext(ctx, "a conversation was cut to the model's window", "trimmed", fmt.Sprintf("%+v", trimmed))
	}
	var sendErr error
	sent := false
	calls := int32(0)
	res, err := model.Retry(ctx, s.pause, rand.Float64, func(ctx context.Context, attempt int) (*model.Result, error) {
		calls++
		res, err := s.model.Stream(ctx, prompt, nil, opts, func(text string) {
			if sendErr == nil {
				sent = true
				sendErr = out.Send(&butlerv1.CompleteResponse{Text: text})
			}
			if sendErr != nil {
				cancel()
			}
		})
		if f, ok := errors.AsType[*model.Failure](err); ok && sent {
			f.Retryable = false // what was sent cannot be taken back
		}
		return res, s.lastTry(attempt, err)
	})
	if sendErr != nil {
		return sendErr
	}
	last := &butlerv1.CompleteResponse{Done: true, Model: s.model.Model(), Usage: &butlerv1.Usage{ModelCalls: calls}}
	if err != nil {
		reason := model.ReasonOf(err)
		s.log.WarnContext(ctx, "a completion failed", "reason", reason, "error", err)
		last.ErrorCode, last.ErrorMessage = string(reason), model.Sentence(reason, req.Language)
		return out.Send(last)
	}
	last.Usage.PromptTokens, last.Usage.CompletionTokens = res.Usage.PromptTokens, res.Usage.CompletionTokens
	last.Model, last.FinishReason = res.Model, "stop"
	if res.Truncated() {
		last.FinishReason = "length"
	}
	return out.Send(last)
}

func completeMessages(req *butlerv1.CompleteRequest) ([]*schema.Message, error) {
	if len(req.Messages) == 0 {
		return nil, fault.New(fault.Invalid, "there is no message")
	}
	if len(req.Messages) > maxMessages {
		return nil, fault.New(fault.TooLarge, "there are %d messages; at most %d can be sent", len(req.Messages), maxMessages)
	}
	size := 0
	out := make([]*schema.Message, 0, len(req.Messages))
	for _, m := range req.Messages {
		size += len(m.Text)
		switch m.Role {
		case "system":
			out = append(out, schema.SystemMessage(m.Text))
		case "user":
			out = append(out, schema.UserMessage(m.Text))
		case "assistant":
			out = append(out, schema.AssistantMessage(m.Text, nil))
		default:
			return nil, fault.New(fault.Invalid, "messages have the role system, user or assistant, not %q", m.Role)
		}
	}
	if size > maxAllText {
		return nil, fault.New(fault.TooLarge, "the messages have %d bytes of text; at most %d can be sent", size, maxAllText)
	}
	if out[len(out)-1].Role != schema.User {
		return nil, fault.New(fault.Invalid, "the last message must be the user's")
	}
	return out, nil
}

// ListModels implements butlerv1.BrainServiceServer.
func (s *Service) ListModels(context.Context, *butlerv1.ListModelsRequest) (*butlerv1.ListModelsResponse, error) {
	return &butlerv1.ListModelsResponse{Models: []string{s.model.Model()}}, nil
}
