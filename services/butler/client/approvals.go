package client

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/fault"
)

// Approval is a request for approval as it stands; docs/reference/websocket.md has all its fields.
type Approval struct {
	ID             string             `json:"action_id"`
	Code           string             `json:"code"`
	Status         string             `json:"status"` // PENDING, APPROVED, REJECTED, EXPIRED, …
	Version        int32              `json:"version"`
	Digest         string             `json:"digest"`
	Command        string             `json:"command"`
	Why            string             `json:"reason"`
	Kind           string             `json:"kind"`
	Agent          string             `json:"target_agent_name"`
	Host           string             `json:"host"`
	Dir            string             `json:"dir"`
	User           string             `json:"user"`
	Program        string             `json:"program"`
	Risk           string             `json:"risk"`
	Reasons        []ApprovalReason   `json:"reasons"`
	Untrusted      []UntrustedText    `json:"untrusted"`
	Requester      Somebody           `json:"requester"`
	Proposer       string             `json:"proposer"`
	Rule           string             `json:"rule"` // of the policy, which says who decides
	Quorum         int                `json:"quorum"`
	Agreed         int                `json:"agreed"`
	MayDecide      bool               `json:"may_decide"`
	ConversationID int64              `json:"conversation_id"` // only for the requester
	ReplyToLocalID string             `json:"reply_to_local_id"`
	RequestedAt    *time.Time         `json:"requested_at"`
	DecideBy       *time.Time         `json:"decide_by"`
	Decisions      []ApprovalDecision `json:"decisions"`
	Edits          []ApprovalEdit     `json:"edits"`
	Failure        string             `json:"failure"`
	Outcome        *ApprovalOutcome   `json:"outcome"`
}

// Pending says whether somebody has still to decide.
func (a Approval) Pending() bool { return a.Status == "PENDING" }

type (
	// Somebody is a person, an agent or Butler.
	Somebody struct {
		ID   int64  `json:"id"`
		Name string `json:"name"`
		Role string `json:"role"`
	}
	// ApprovalReason is one thing that makes a command risky.
	ApprovalReason struct {
		Code   string `json:"code"`
		Text   string `json:"text"`
		TextZH string `json:"text_zh"`
	}
	// UntrustedText is text from outside that came before.
	UntrustedText struct {
		Name    string `json:"name"`
		Excerpt string `json:"excerpt"`
	}
	// ApprovalDecision is one person's word.
	ApprovalDecision struct {
		By       Somebody   `json:"by"`
		Approved bool       `json:"approved"`
		Reason   string     `json:"reason"`
		Channel  string     `json:"channel"`
		At       *time.Time `json:"at"`
	}
	// ApprovalEdit is a change of the command; Command is as it was.
	ApprovalEdit struct {
		By      Somebody   `json:"by"`
		At      *time.Time `json:"at"`
		Command string     `json:"command"`
	}
	// ApprovalOutcome is how a command went.
	ApprovalOutcome struct {
		ExitStatus  int32  `json:"exit_status"`
		StatusKnown bool   `json:"status_known"`
		Output      string `json:"output"`
		OutputBytes int64  `json:"output_bytes"`
		Truncated   bool   `json:"truncated"`
	}
)

// ApprovalFilter selects requests; the zero value selects the newest 50.
type ApprovalFilter struct {
	Status string // pending, approved, denied, …; empty for all
	Limit  int    // at most so many, at most 200
}

// Approvals gives the requests that concern who is signed in, newest first.
func (c *Client) Approvals(ctx context.Context, f ApprovalFilter) (Page[Approval], error) {
	q := url.Values{}
	if f.Status != "" {
		q.Set("status", f.Status)
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return list[Approval](ctx, c, "/api/approvals", q, "approvals")
}

// Approval gives one request by its id, or by the code of a pending one, and its JSON.
func (c *Client) Approval(ctx context.Context, id string) (a Approval, raw json.RawMessage, err error) {
	if err := c.call(ctx, http.MethodGet, "/api/approvals/"+url.PathEscape(id), nil, nil, &raw); err != nil {
		return a, nil, err
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return a, nil, c.notButler(err)
	}
	return a, raw, nil
}

// Decision is a person's word about a request.
type Decision struct {
	Approved bool   `json:"approved"`
	Reason   string `json:"reason,omitempty"`
	Command  string `json:"edited_command,omitempty"` // to be run instead
	Digest   string `json:"digest,omitempty"`         // of what the person saw: when it has changed, nothing is decided
	Channel  string `json:"channel,omitempty"`
}

// Decide approves or denies a request, and gives it as it stands then.
func (c *Client) Decide(ctx context.Context, id string, d Decision) (a Approval, raw json.RawMessage, err error) {
	d.Channel = "cli"
	if err := c.call(ctx, http.MethodPost, "/api/approvals/"+url.PathEscape(id)+"/decision", nil, d, &raw); err != nil {
		return a, nil, err
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return a, nil, c.notButler(err)
	}
	return a, raw, nil
}

// AuditEntry is one fact of the audit chain.
type AuditEntry struct {
	N          int64      `json:"n"`
	Kind       string     `json:"kind"`
	At         *time.Time `json:"at"`
	Actor      Somebody   `json:"actor"`
	ApprovalID string     `json:"action_id"`
	Summary    string     `json:"summary"`
}

// AuditFilter selects facts; the zero value selects the newest 50.
type AuditFilter struct {
	Query      string // words that must occur
	ApprovalID string
	Actor      int64
	Limit      int   // at most 500
	Before     int64 // links before this one
}

// Audit searches the audit chain, newest first; for admins.
func (c *Client) Audit(ctx context.Context, f AuditFilter) (Page[AuditEntry], error) {
	q := url.Values{}
	if f.Query != "" {
		q.Set("q", f.Query)
	}
	if f.ApprovalID != "" {
		q.Set("approval", f.ApprovalID)
	}
	for name, n := range map[string]int64{"actor": f.Actor, "limit": int64(f.Limit), "before": f.Before} {
		if n > 0 {
			q.Set(name, number(n))
		}
	}
	return list[AuditEntry](ctx, c, "/api/audit", q, "audit")
}

// AuditCheck is a line of what a check of the audit chain tells: progress, a problem, or, with Done, the end.
type AuditCheck struct {
	Links   int64  `json:"links"`
	Events  int64  `json:"events"`
	Erased  int64  `json:"erased"`
	Problem string `json:"problem"`
	N       int64  `json:"n"`
	Done    bool   `json:"done"`
}

// VerifyAudit has the audit chain checked and tells each line as it comes; for admins. It returns nil when the check came
// to its end, whatever it found.
func (c *Client) VerifyAudit(ctx context.Context, tell func(line AuditCheck, raw json.RawMessage)) error {
	body, err := c.stream(ctx, "/api/audit/verify")
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			AuditCheck
			Error string     `json:"error"`
			Code  fault.Code `json:"code"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return c.notButler(err)
		}
		if line.Error != "" {
			return &fault.Error{Code: line.Code, Message: printable(line.Error)}
		}
		tell(line.AuditCheck, json.RawMessage(append([]byte(nil), lines.Bytes()...)))
		if line.Done {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return c.unreachable(err)
	}
	return fault.New(fault.Unavailable, c.say("%s broke the check off; run it again", "%s 中断了检查，请重新运行"), c.Server())
}

// frameAuth* are the frames about requests for approval.
const (
	frameAuthRequest = "AUTH_REQUEST"
	frameAuthStatus  = "AUTH_STATUS_UPDATE"
)

// decodeFrame reads a frame. Those about requests for approval have the request as payload.
func decodeFrame(data []byte) (*Frame, error) {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		return nil, err
	}
	if kind.Type != frameAuthRequest && kind.Type != frameAuthStatus {
		var f Frame
		return &f, json.Unmarshal(data, &f)
	}
	var f struct {
		Payload json.RawMessage `json:"payload"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, err
	}
	out := &Frame{Type: kind.Type, Approval: &Approval{}, Raw: f.Payload}
	if err := json.Unmarshal(f.Payload, out.Approval); err != nil {
		return nil, err
	}
	out.ReplyToLocalID, out.ConversationID = out.Approval.ReplyToLocalID, out.Approval.ConversationID
	return out, nil
}

// isOutput says whether a stream is the output of a command, and not of an answer.
func isOutput(streamID string) bool { return approval.ValidID(streamID) }
