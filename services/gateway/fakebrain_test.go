package gateway

import (
	"context"
	"io"

	"google.golang.org/grpc"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Complete is BrainService.Complete without a network.
func (f *fakeBrain) Complete(ctx context.Context, req *butlerv1.CompleteRequest, _ ...grpc.CallOption) (
	grpc.ServerStreamingClient[butlerv1.CompleteResponse], error,
) {
	f.mu.Lock()
	complete := f.complete
	f.mu.Unlock()
	if complete == nil {
		complete = func(req *butlerv1.CompleteRequest, send func(*butlerv1.CompleteResponse) error) error {
			for _, piece := range []string{"You said: ", req.GetMessages()[len(req.GetMessages())-1].GetText()} {
				if err := send(&butlerv1.CompleteResponse{Text: piece}); err != nil {
					return err
				}
			}
			return send(&butlerv1.CompleteResponse{
				Done: true, Model: "fake", FinishReason: "stop", Usage: &butlerv1.Usage{PromptTokens: 7, CompletionTokens: 3},
			})
		}
	}
	c := &completeClient{ctx: ctx, pieces: make(chan *butlerv1.CompleteResponse), done: make(chan struct{})}
	f.wg.Go(func() {
		defer close(c.done)
		c.err = complete(req, func(p *butlerv1.CompleteResponse) error {
			select {
			case c.pieces <- p:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	return c, nil
}

// ListModels is BrainService.ListModels.
func (f *fakeBrain) ListModels(context.Context, *butlerv1.ListModelsRequest, ...grpc.CallOption) (*butlerv1.ListModelsResponse, error) {
	return &butlerv1.ListModelsResponse{Models: []string{"fake", "fake/large"}}, nil
}

type completeClient struct {
	grpc.ClientStream
	ctx    context.Context
	pieces chan *butlerv1.CompleteResponse
	done   chan struct{}
	err    error
}

func (c *completeClient) Recv() (*butlerv1.CompleteResponse, error) {
	select {
	case p := <-c.pieces:
		return p, nil
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	case <-c.done:
		if c.err == nil {
			return nil, io.EOF
		}
		return nil, c.err
	}
}
