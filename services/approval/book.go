package approval

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

const (
	// bookSpan is how far back the book goes at a start: everything that can be pending, and a little more.
	bookSpan = MaxTimeout + time.Hour
	// bookSize bounds how many decided requests stay in the book; pending ones always do.
	bookSize = 5000
)

// book has the recent requests as they stand: all that are pending, and the latest of the others. It follows the log, so
// every replica has the same; what this replica appends is in it at once. Documents in it are never changed.
type book struct {
	mu      sync.Mutex
	by      map[string]page
	pending map[string]string // code to id
	order   []string          // ids as they were first seen
	upTo    uint64            // followed so far
	target  uint64            // to be complete
	known   bool              // target is known
}

type page struct {
	a   *butlerv1.Approval
	seq uint64
}

func newBook() *book { return &book{by: map[string]page{}, pending: map[string]string{}} }

// put takes a document that stands at seq in the log; an older one than the book has is passed over.
func (b *book) put(a *butlerv1.Approval, seq uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	had, seen := b.by[a.GetId()]
	if seen && had.seq >= seq {
		return
	}
	if seen && b.pending[had.a.GetCode()] == a.GetId() {
		delete(b.pending, had.a.GetCode())
	}
	b.by[a.GetId()] = page{a, seq}
	if a.GetStatus() == approval.Pending {
		b.pending[a.GetCode()] = a.GetId()
	}
	if seen {
		return
	}
	b.order = append(b.order, a.GetId())
	for i := 0; len(b.by) > bookSize && i < len(b.order); i++ {
		if id := b.order[i]; b.by[id].a.GetStatus() != approval.Pending {
			delete(b.by, id)
			b.order = slices.Delete(b.order, i, i+1)
			i--
		}
	}
}

func (b *book) get(id string) (*butlerv1.Approval, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.by[id]
	return p.a, ok
}

// waiting gives all pending requests, oldest first.
func (b *book) waiting() []*butlerv1.Approval {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*butlerv1.Approval
	for _, id := range b.pending {
		out = append(out, b.by[id].a)
	}
	slices.SortFunc(out, func(x, y *butlerv1.Approval) int {
		return x.GetRequestedAt().AsTime().Compare(y.GetRequestedAt().AsTime())
	})
	return out
}

// withCode gives the id of a pending request.
func (b *book) withCode(code string) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, ok := b.pending[strings.ToUpper(code)]
	return id, ok
}

// newCode gives a code that no pending request has. Two replicas may choose the same one at the same moment, one time in
// 300,000: the later request then goes by its id.
func (b *book) newCode() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		code := approval.NewCode()
		if _, taken := b.pending[code]; !taken {
			return code
		}
	}
}

func (b *book) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.known && b.upTo >= b.target
}

// follow keeps the book until ctx ends.
func (s *Service) follow(ctx context.Context) error {
	var after uint64
	for {
		first, found, err := s.bus.FirstSince(ctx, bus.ApprovalStream, s.now().Add(-bookSpan))
		if err == nil {
			// The newest event that is there: the newest of all may have been erased.
			last, _, lastErr := s.bus.Last(ctx, bus.ApprovalStream, "butler.>")
			if lastErr == nil {
				after = last.Seq
				if found {
					after = first.Seq - 1
				}
				s.book.mu.Lock()
				s.book.known, s.book.target, s.book.upTo = true, last.Seq, after
				s.book.mu.Unlock()
				break
			}
			err = lastErr
		}
		s.log.WarnContext(ctx, "waiting for the log of approvals", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	return s.bus.Follow(ctx, bus.Follow{
		Stream: bus.ApprovalStream, Filters: []string{approval.RequestSubject("*"), approval.UseSubject("*", "*")}, After: after,
	}, func(ev bus.Stored) {
		if strings.HasPrefix(ev.Subject, "butler.approval.") {
			a, err := decodeApproval(ev)
			if err != nil {
				s.log.Warn("an event that cannot be read", "stream", ev.Stream, "seq", ev.Seq, "subject", ev.Subject, "error", err)
			} else {
				s.book.put(a, ev.Seq)
			}
		}
		s.book.mu.Lock()
		s.book.upTo = ev.Seq
		s.book.mu.Unlock()
	})
}
