package approval

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

const (
	verifyBatch = 256
	// maxProblems ends a check that finds nothing but problems.
	maxProblems = 1000
	// coverWithin is how soon an event must be in the chain.
	coverWithin = time.Minute
)

// VerifyAudit checks the whole chain; see the service's definition.
func (s *Service) VerifyAudit(_ *butlerv1.VerifyAuditRequest, stream grpc.ServerStreamingServer[butlerv1.VerifyAuditResponse]) error {
	v := &verification{s: s, ctx: stream.Context(), send: stream.Send, keys: s.known}
	if err := v.run(); err != nil {
		return err
	}
	return stream.Send(&butlerv1.VerifyAuditResponse{Links: v.links, Events: v.count, Erased: v.erased, Done: true})
}

// verification walks the chain and the log of approvals side by side: every event must be covered by the next item.
type verification struct {
	s    *Service
	ctx  context.Context
	send func(*butlerv1.VerifyAuditResponse) error
	keys approval.Keys

	links, count, erased int64
	problems             int
	previous             *butlerv1.AuditRecord
	lastSeq              uint64 // of the link before in AUDIT

	events []bus.Stored // of APPROVAL, read ahead
	after  uint64       // sequence of the last event that was read
	end    bool
}

func (v *verification) problem(n int64, format string, args ...any) error {
	if v.problems++; v.problems > maxProblems {
		return nil
	}
	return v.send(&butlerv1.VerifyAuditResponse{Links: v.links, Events: v.count, N: n, Problem: fmt.Sprintf(format, args...)})
}

func (v *verification) run() error {
	v.previous = &butlerv1.AuditRecord{}
	for v.problems <= maxProblems {
		batch, err := v.s.bus.Load(v.ctx, bus.AuditStream, approval.AuditSubject, v.lastSeq, verifyBatch)
		if err != nil {
			return err
		}
		for _, ev := range batch {
			if err := v.link(ev); err != nil {
				return err
			}
		}
		if len(batch) < verifyBatch {
			break
		}
		if err := v.send(&butlerv1.VerifyAuditResponse{Links: v.links, Events: v.count, Erased: v.erased}); err != nil {
			return err
		}
	}
	return v.rest()
}

// link checks one link against the one before it, and what it covers.
func (v *verification) link(ev bus.Stored) error {
	v.lastSeq = ev.Seq
	if ev.Type == bus.TypeForged {
		return v.problem(v.previous.GetN(), "AUDIT %d is no link: it was not published to the chain, and is passed over", ev.Seq)
	}
	v.links++
	expected := v.previous.GetN() + 1
	var r butlerv1.AuditRecord
	if err := chat.Decode(ev.Data, &r); err != nil || ev.Type != approval.TypeAudit {
		v.previous = &butlerv1.AuditRecord{N: expected}
		return v.problem(expected, "link %d (AUDIT %d) cannot be read: it was changed", expected, ev.Seq)
	}
	var err error
	report := func(format string, args ...any) {
		if err == nil {
			err = v.problem(r.GetN(), format, args...)
		}
	}
	switch {
	case r.GetN() > expected:
		report("links %d to %d are missing", expected, r.GetN()-1)
	case r.GetN() < expected:
		report("link %d stands where link %d should be: links were reordered or repeated", r.GetN(), expected)
	case r.GetPrevious() != v.previous.GetHash():
		report("link %d does not follow the link before it: one of them was changed or replaced", r.GetN())
	}
	if hash := approval.LinkHash(&r); hash != r.GetHash() {
		report("link %d was changed: its hash is not that of its content", r.GetN())
	} else if key, known := v.keys[r.GetKey()]; !known {
		report("link %d is signed with the key %s, which is not known here", r.GetN(), r.GetKey())
	} else if !ed25519.Verify(key, []byte(r.GetHash()), r.GetSignature()) {
		report("link %d is not signed by its key: it was forged", r.GetN())
	}
	if err != nil {
		return err
	}
	for _, item := range r.GetItems() {
		if item.GetStream() == bus.ApprovalStream {
			if err := v.item(&r, item); err != nil {
				return err
			}
		}
	}
	v.previous = &r
	return nil
}

// item checks that the next event of the log is the one that the item covers.
func (v *verification) item(r *butlerv1.AuditRecord, item *butlerv1.AuditItem) error {
	for {
		ev, ok, err := v.peek()
		if err != nil {
			return err
		}
		switch {
		case !ok || ev.Seq > item.GetSeq():
			if item.GetKind() == "erased" {
				v.erased++
				return nil
			}
			return v.problem(r.GetN(), "the event %s %d (%s, %s) is missing: %s", item.GetStream(), item.GetSeq(), item.GetSubject(),
				item.GetKind(), item.GetSummary())
		case ev.Seq < item.GetSeq():
			v.events = v.events[1:]
			if err := v.problem(r.GetN(), "the event %s %d (%s) is in the log and not in the chain", ev.Stream, ev.Seq, ev.Subject); err != nil {
				return err
			}
			continue
		}
		v.events = v.events[1:]
		v.count++
		if approval.EventDigest(ev.Subject, ev.ID, ev.Type, ev.Data) != item.GetDigest() {
			return v.problem(r.GetN(), "the event %s %d (%s, %s) was changed", ev.Stream, ev.Seq, ev.Subject, item.GetKind())
		}
		return nil
	}
}

// rest looks at what the chain does not cover: only what was stored just now may be there.
func (v *verification) rest() error {
	for v.problems <= maxProblems {
		ev, ok, err := v.peek()
		if err != nil || !ok {
			return err
		}
		v.events = v.events[1:]
		if v.s.now().Sub(ev.At) > coverWithin {
			if err := v.problem(v.previous.GetN(), "the event %s %d (%s) is not in the chain: links are missing at its end", ev.Stream, ev.Seq, ev.Subject); err != nil {
				return err
			}
		}
	}
	return nil
}

// peek gives the next event of APPROVAL without taking it.
func (v *verification) peek() (bus.Stored, bool, error) {
	if len(v.events) == 0 && !v.end {
		events, err := v.s.bus.Load(v.ctx, bus.ApprovalStream, "butler.>", v.after, verifyBatch)
		if err != nil {
			return bus.Stored{}, false, err
		}
		v.events, v.end = events, len(events) < verifyBatch
		if len(events) > 0 {
			v.after = events[len(events)-1].Seq
		}
	}
	if len(v.events) == 0 {
		return bus.Stored{}, false, nil
	}
	return v.events[0], true, nil
}
