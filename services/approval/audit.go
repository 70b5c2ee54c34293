package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/redact"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

const (
	// linkItems bounds the items of one link.
	linkItems = 200
	// maxSummary bounds an item's line, in bytes.
	maxSummary = 500
)

// chain appends links. Calls at the same time share a link: while one is being appended, what comes meanwhile waits for the
// next, so that a busy time costs few appends.
type chain struct {
	s *Service

	mu   sync.Mutex
	head *butlerv1.AuditRecord // nil: not read
	seq  uint64                // of head in AUDIT
}

func newChain(s *Service) *chain { return &chain{s: s} }

// cover returns once every event of APPROVAL up to seq is in the chain.
func (c *chain) cover(ctx context.Context, seq uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.read(ctx); err != nil {
			return err
		}
		if c.head.GetCovered() >= seq {
			return nil
		}
		events, err := c.s.bus.Load(ctx, bus.ApprovalStream, "butler.>", c.head.GetCovered(), linkItems)
		if err != nil {
			return err
		}
		if len(events) == 0 {
			return fault.New(fault.Unavailable, "the event %d is not in the log of approvals yet", seq)
		}
		items := make([]*butlerv1.AuditItem, len(events))
		for i, ev := range events {
			items[i] = c.s.item(ev)
		}
		if err := c.link(ctx, items, events[len(events)-1].Seq); err != nil && !errors.Is(err, bus.ErrFenced) {
			return err
		}
	}
}

// note adds facts that are events nowhere else.
func (c *chain) note(ctx context.Context, items ...*butlerv1.AuditItem) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.read(ctx); err != nil {
			return err
		}
		err := c.link(ctx, items, c.head.GetCovered())
		if !errors.Is(err, bus.ErrFenced) {
			return err
		}
	}
}

// read makes sure that the head is known. c.mu is held.
func (c *chain) read(ctx context.Context) error {
	if c.head != nil {
		return nil
	}
	ev, found, err := c.s.bus.Last(ctx, bus.AuditStream, approval.AuditSubject)
	if err != nil {
		return err
	}
	head := &butlerv1.AuditRecord{}
	last := ev.Seq
	if found && ev.Type == bus.TypeForged { // what somebody smuggled in is passed over, and told by verifying
		if ev, found, err = c.s.lastLink(ctx, ev.Seq); err != nil {
			return err
		}
	}
	if found {
		if err := chat.Decode(ev.Data, head); err != nil {
			return fault.Wrap(err, fault.Internal, "the newest link of the audit chain (AUDIT %d) cannot be read", ev.Seq)
		}
	}
	c.head, c.seq = head, last
	return nil
}

// lastLink gives the newest event of AUDIT before a sequence that was published to it.
func (s *Service) lastLink(ctx context.Context, before uint64) (bus.Stored, bool, error) {
	const window = 256
	for before > 1 {
		from := uint64(0)
		if before-1 > window {
			from = before - 1 - window
		}
		events, err := s.bus.Load(ctx, bus.AuditStream, approval.AuditSubject, from, int(before-1-from))
		if err != nil {
			return bus.Stored{}, false, err
		}
		for _, ev := range slices.Backward(events) {
			if ev.Seq < before && ev.Type != bus.TypeForged {
				return ev, true, nil
			}
		}
		before = from + 1
	}
	return bus.Stored{}, false, nil
}

// link appends one link after the head. bus.ErrFenced: another replica was first, and the head is not known any more. c.mu
// is held.
func (c *chain) link(ctx context.Context, items []*butlerv1.AuditItem, covered uint64) error {
	r := &butlerv1.AuditRecord{
		N: c.head.GetN() + 1, Items: items, Previous: c.head.GetHash(), Covered: covered, Key: c.s.signer.KeyID(),
	}
	r.Hash = approval.LinkHash(r)
	r.Signature = c.s.signer.Sign([]byte(r.GetHash()))
	data, err := chat.Encode(r)
	if err != nil {
		return err
	}
	ev := bus.NewEvent(approval.TypeAudit, c.s.bus.Source(), approval.AuditSubject, data)
	seq, err := c.s.bus.Append(ctx, ev, bus.Expect{Filter: approval.AuditSubject, Seq: c.seq})
	if err != nil {
		c.head = nil // also when nobody knows whether it is stored
		return err
	}
	c.head, c.seq = r, seq
	return nil
}

// item makes the fact of an event.
func (s *Service) item(ev bus.Stored) *butlerv1.AuditItem {
	i := &butlerv1.AuditItem{
		Kind: "unreadable", Stream: ev.Stream, Seq: ev.Seq, Subject: ev.Subject, At: timestamppb.New(ev.At),
		Digest: approval.EventDigest(ev.Subject, ev.ID, ev.Type, ev.Data),
	}
	if strings.HasPrefix(ev.Subject, "butler.approval-use.") {
		var use butlerv1.ApprovalUse
		if ev.Type == approval.TypeUse && chat.Decode(ev.Data, &use) == nil {
			i.Kind, i.ApprovalId, i.Actor = use.GetStatus(), use.GetId(), use.GetRequester()
			i.Summary = summary(useLine(&use))
		}
		return i
	}
	a, err := decodeApproval(ev)
	if err != nil {
		return i
	}
	i.ApprovalId, i.Actor = a.GetId(), a.GetRequester()
	i.Kind = a.GetStatus()
	if a.GetStatus() == approval.Pending {
		i.Kind = "requested"
		if a.GetVersion() > 1 {
			i.Kind = "voted"
		}
	}
	why := ""
	if n := len(a.GetDecisions()); n > 0 {
		d := a.GetDecisions()[n-1]
		i.Actor = d.GetBy()
		if d.GetReason() != "" {
			why = " (" + d.GetReason() + ")"
		}
	}
	place := a.GetEffect().GetHost()
	if a.GetEffect().GetAgentName() != "" {
		place = a.GetEffect().GetAgentName()
	}
	i.Summary = summary(fmt.Sprintf("%s for %s on %s: %s%s", strings.TrimSpace(i.GetKind()+" "+a.GetCode()), a.GetRequester().GetName(), place,
		oneLine(a.GetRisk().GetVisible(), a.GetEffect().GetCommand()), why))
	return i
}

func useLine(u *butlerv1.ApprovalUse) string {
	line := fmt.Sprintf("%s on %s", u.GetStatus(), u.GetHost())
	if o := u.GetOutcome(); o != nil && u.GetStatus() == approval.Ended {
		if o.GetStatusKnown() {
			line += fmt.Sprintf(", exit status %d", o.GetExitStatus())
		} else {
			line += ", exit status not known"
		}
		line += fmt.Sprintf(", %d ms", o.GetDurationMs())
	}
	if u.GetReason() != "" {
		line += ": " + u.GetReason()
	}
	return line
}

// summary makes a line fit for people and for keeping: one line, without secrets.
func summary(line string) string {
	line, _ = redact.String(line)
	line = strings.ReplaceAll(line, "\n", " ")
	for len(line) > maxSummary || !utf8.ValidString(line) {
		line = strings.ToValidUTF8(line[:min(len(line), maxSummary)], "")
	}
	return line
}

// noteAttempt audits a decision that was not taken. It is best effort: nothing happened.
func (s *Service) noteAttempt(ctx context.Context, req *butlerv1.DecideApprovalRequest, cause error) {
	if fault.ClassOf(cause) != fault.User {
		return
	}
	word := "deny"
	if req.GetApproved() {
		word = "approve"
	}
	item := &butlerv1.AuditItem{
		Kind: "attempt", At: timestamppb.New(s.now()), Actor: req.GetBy(),
		Summary: summary(fmt.Sprintf("%s %s: %s", word, shown(req.GetId()), fault.MessageOf(cause))),
	}
	if approval.ValidID(req.GetId()) {
		item.ApprovalId = req.GetId()
	}
	if err := s.chain.note(ctx, item); err != nil {
		s.log.WarnContext(ctx, "an attempt to decide could not be audited", "approval", item.GetApprovalId(), "error", err)
	}
}

// ListAudit searches the chain from its end.
func (s *Service) ListAudit(ctx context.Context, req *butlerv1.ListAuditRequest) (*butlerv1.ListAuditResponse, error) {
	const window = 256
	limit := clamp(int(req.GetLimit()), 50, 500)
	last, found, err := s.bus.Last(ctx, bus.AuditStream, approval.AuditSubject)
	if err != nil || !found {
		return &butlerv1.ListAuditResponse{}, err
	}
	query := s.queryOf(req.GetQuery())
	out := &butlerv1.ListAuditResponse{}
	upTo := last.Seq
	if req.GetBefore() > 0 {
		// Positions and sequences are the same unless somebody took links away, which verifying tells.
		upTo = min(upTo, uint64(req.GetBefore()-1))
	}
	for windows := 0; upTo > 0 && windows < 40; windows++ {
		from := uint64(0)
		if upTo > window {
			from = upTo - window
		}
		events, err := s.bus.Load(ctx, bus.AuditStream, approval.AuditSubject, from, int(upTo-from))
		if err != nil {
			return nil, err
		}
		for e := len(events) - 1; e >= 0; e-- {
			var r butlerv1.AuditRecord
			if events[e].Seq > upTo || chat.Decode(events[e].Data, &r) != nil {
				continue
			}
			for i := len(r.GetItems()) - 1; i >= 0; i-- {
				if item := r.GetItems()[i]; matches(item, req, query) {
					out.Entries = append(out.Entries, &butlerv1.AuditEntry{N: r.GetN(), Item: item})
				}
			}
			if len(out.Entries) >= limit { // a link is given whole
				out.Next = int64(events[e].Seq)
				if out.Next <= 1 {
					out.Next = 0
				}
				return out, nil
			}
		}
		upTo = from
	}
	if upTo > 0 {
		out.Next = int64(upTo) + 1
	}
	return out, nil
}

// queryWord is a word that must occur in a fact, or the approval that it may be of instead.
type queryWord struct{ text, id string }

// queryOf splits what is searched for. The code of a request means all that is known of it: executions do not name it, and
// older links do not either.
func (s *Service) queryOf(query string) []queryWord {
	var out []queryWord
	for _, text := range strings.Fields(strings.ToLower(query)) {
		word := queryWord{text: text}
		if code := strings.ToUpper(text); approval.ValidCode(code) {
			var found bool
			if word.id, found = s.book.withCode(code); !found {
				word.id = s.book.lately(code)
			}
		}
		out = append(out, word)
	}
	return out
}

func matches(i *butlerv1.AuditItem, req *butlerv1.ListAuditRequest, query []queryWord) bool {
	if req.GetApprovalId() != "" && i.GetApprovalId() != req.GetApprovalId() ||
		req.GetActorId() != 0 && i.GetActor().GetId() != req.GetActorId() {
		return false
	}
	text := strings.ToLower(strings.Join([]string{i.GetKind(), i.GetSummary(), i.GetActor().GetName(), i.GetApprovalId()}, " "))
	for _, word := range query {
		if !strings.Contains(text, word.text) && (word.id == "" || word.id != i.GetApprovalId()) {
			return false
		}
	}
	return true
}

func clamp(n, def, most int) int {
	if n <= 0 {
		return def
	}
	return min(n, most)
}
