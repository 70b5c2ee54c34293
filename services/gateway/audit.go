package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// maxVerifying bounds how many checks of the audit chain run at the same time: each reads all of it.
const maxVerifying = 2

// auditJSON is one fact of the audit chain.
type auditJSON struct {
	N        int64      `json:"n"` // position of its link
	Kind     string     `json:"kind"`
	At       *time.Time `json:"at,omitempty"`
	Actor    actorJSON  `json:"actor"`
	ActionID string     `json:"action_id,omitempty"`
	Summary  string     `json:"summary"`
	Stream   string     `json:"stream,omitempty"`
	Seq      uint64     `json:"seq,omitempty"`
	Subject  string     `json:"subject,omitempty"`
	Digest   string     `json:"digest,omitempty"`
}

// listAudit serves GET /api/audit.
func (s *Service) listAudit(w http.ResponseWriter, r *http.Request, _ *principal) error {
	q := r.URL.Query()
	limit, err := queryInt(q.Get("limit"), 50, 1, 500, "limit")
	if err != nil {
		return err
	}
	actor, err := queryInt(q.Get("actor"), 0, 0, 0, "actor")
	if err != nil {
		return err
	}
	before, err := queryInt(q.Get("before"), 0, 1, 0, "before")
	if err != nil {
		return err
	}
	id := q.Get("approval")
	switch text := q.Get("q"); {
	case len(text) > 500 || !utf8.ValidString(text):
		return fault.New(fault.Invalid, "q has at most 500 bytes of UTF-8")
	case id != "" && !approval.ValidID(id):
		return fault.New(fault.Invalid, "approval is the action_id of a request")
	case s.approval == nil:
		return errNoApproval("en", nil)
	}
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	res, err := s.approval.ListAudit(ctx, &butlerv1.ListAuditRequest{
		Query: q.Get("q"), ApprovalId: id, ActorId: int64(actor), Limit: int32(limit), Before: int64(before), //nolint:gosec // at most 500
	})
	if err != nil {
		return auditProblem(err)
	}
	out := make([]auditJSON, 0, len(res.GetEntries()))
	for _, e := range res.GetEntries() {
		i := e.GetItem()
		out = append(out, auditJSON{
			e.GetN(), i.GetKind(), timeOf(i.GetAt()), actorOf(i.GetActor()), i.GetApprovalId(), i.GetSummary(),
			i.GetStream(), i.GetSeq(), i.GetSubject(), i.GetDigest(),
		})
	}
	if next := res.GetNext(); next != 0 {
		w.Header().Set("X-Next-Before", strconv.FormatInt(next, 10))
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func auditProblem(err error) error {
	switch fault.CodeOf(err) {
	case fault.Invalid, fault.TooLarge, fault.RateLimited:
		return err
	}
	return fault.Wrap(err, fault.Unavailable, "approval, which keeps the audit chain, does not answer now; try again")
}

// verifyJSON is a line of what a check of the chain tells.
type verifyJSON struct {
	Links   int64  `json:"links"`
	Events  int64  `json:"events"`
	Erased  int64  `json:"erased"`
	Problem string `json:"problem,omitempty"`
	N       int64  `json:"n,omitempty"`
	Done    bool   `json:"done"`
}

// verifyAudit serves GET /api/audit/verify: one JSON object a line, the last one with done; or, when the check broke off,
// one with error and code.
func (s *Service) verifyAudit(w http.ResponseWriter, r *http.Request, _ *principal) error {
	if s.approval == nil {
		return errNoApproval("en", nil)
	}
	select {
	case s.verifying <- struct{}{}:
		defer func() { <-s.verifying }()
	default:
		return rateLimited(5*time.Second, "the audit chain is being checked already; wait until that is done")
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stop := context.AfterFunc(s.ending, cancel)
	defer stop()
	stream, err := s.approval.VerifyAudit(ctx, &butlerv1.VerifyAuditRequest{})
	var m *butlerv1.VerifyAuditResponse
	if err == nil {
		m, err = stream.Recv()
	}
	if err != nil {
		return auditProblem(err)
	}
	lines := eventWriter{w: w, control: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	for err == nil {
		line, _ := json.Marshal(verifyJSON{m.GetLinks(), m.GetEvents(), m.GetErased(), m.GetProblem(), m.GetN(), m.GetDone()}) // plain values
		if err := lines.send(append(line, '\n'), true); err != nil {
			return nil // the client is gone
		}
		if m.GetDone() {
			return nil
		}
		m, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("it ended without a result")
	}
	s.log.WarnContext(r.Context(), "a check of the audit chain broke off", "error", err)
	line, _ := json.Marshal(map[string]string{"error": "the check broke off; run it again", "code": string(fault.Unavailable)})
	_ = lines.send(append(line, '\n'), true)
	return nil
}
