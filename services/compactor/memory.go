package compactor

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/memory"
	"github.com/butlerhub/butler/pkg/tokens"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func stored(seq int64, at time.Time, s *butlerv1.ChatSummary) *butlerv1.StoredSummary {
	return &butlerv1.StoredSummary{Seq: seq, At: timestamppb.New(at), Summary: s}
}

// current gives the summary of c as it is told to callers; nil for none.
func (c *conversation) current() *butlerv1.StoredSummary {
	if c.seq == 0 {
		return nil
	}
	return stored(int64(c.seq), c.at, c.summary)
}

func sessionOf(person, thread int64) (chat.Session, error) {
	if person <= 0 || thread <= 0 {
		return chat.Session{}, fault.New(fault.Invalid, "person and thread are whole numbers above 0")
	}
	return chat.Session{Person: person, Thread: thread}, nil
}

// Compact implements butlerv1.CompactorServiceServer. It does not wait for the times of patience: a person asks.
func (s *Service) Compact(ctx context.Context, req *butlerv1.CompactRequest) (*butlerv1.CompactResponse, error) {
	session, err := sessionOf(req.GetPerson(), req.GetThread())
	if err != nil {
		return nil, fault.GRPC(err)
	}
	by := req.GetBy()
	if by == nil {
		by = &butlerv1.Actor{}
	}
	made, err := s.compact(ctx, session, memory.Asked, by)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	if made != nil {
		return &butlerv1.CompactResponse{Compacted: true, Summary: made}, nil
	}
	c, err := s.read(ctx, session)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	return &butlerv1.CompactResponse{Summary: c.current()}, nil
}

// ShowMemory implements butlerv1.CompactorServiceServer.
func (s *Service) ShowMemory(ctx context.Context, req *butlerv1.ShowMemoryRequest) (*butlerv1.ShowMemoryResponse, error) {
	session, err := sessionOf(req.GetPerson(), req.GetThread())
	if err != nil {
		return nil, fault.GRPC(err)
	}
	c, err := s.read(ctx, session)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	res := &butlerv1.ShowMemoryResponse{
		Summary: c.current(), Pins: c.pins, RecentTurns: int32(len(c.turns)), SummaryTokens: int64(tokens.Count(memory.Text(c.summary))),
	}
	for _, t := range c.turns {
		res.RecentMessages += int32(len(t.messages))
		res.RecentTokens += int64(t.size.Tokens())
	}
	return res, nil
}

// UndoCompaction implements butlerv1.CompactorServiceServer: an event that repeats the summary from which the last one was
// made. Undone again, it goes back further.
func (s *Service) UndoCompaction(ctx context.Context, req *butlerv1.UndoCompactionRequest) (*butlerv1.UndoCompactionResponse, error) {
	session, err := sessionOf(req.GetPerson(), req.GetThread())
	if err != nil {
		return nil, fault.GRPC(err)
	}
	made, err := s.undo(ctx, session, req.GetBy())
	if err != nil {
		return nil, fault.GRPC(err)
	}
	return &butlerv1.UndoCompactionResponse{Summary: made}, nil
}

func (s *Service) undo(ctx context.Context, session chat.Session, by *butlerv1.Actor) (*butlerv1.StoredSummary, error) {
	c, err := s.read(ctx, session)
	if err != nil {
		return nil, err
	}
	if c.summary.GetCoversTo() == 0 {
		return nil, fault.New(fault.NotFound, "there is no summary of this conversation that could be undone")
	}
	before := &butlerv1.ChatSummary{}
	if from := c.summary.GetStartedFrom(); from > 0 {
		events, err := s.bus.Load(ctx, bus.ChatStream, session.StoredSummary(), uint64(from-1), 1)
		switch {
		case err != nil:
			return nil, err
		case len(events) == 0 || events[0].Seq != uint64(from):
			return nil, fault.New(fault.NotFound, "the summary before is not in the log any more")
		}
		if err := chat.Decode(events[0].Data, before); err != nil {
			return nil, err
		}
	}
	before.Undoes, before.By = int64(c.seq), by
	made, err := s.append(ctx, c, before)
	if errors.Is(err, bus.ErrFenced) {
		return nil, fault.Wrap(err, fault.Conflict, "another summary was made just now; look at it and undo again")
	}
	return made, err
}
