package gateway

import (
	"encoding/json"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/approval"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Statuses of a request as clients see them: EchoCenter's, and what there is beyond.
const (
	cardPending   = "PENDING"
	cardApproved  = "APPROVED"
	cardRejected  = "REJECTED"
	cardExpired   = "EXPIRED"
	cardWithdrawn = "WITHDRAWN"
	cardRefused   = "REFUSED" // by the policy
	cardExecuting = "EXECUTING"
	cardExecuted  = "EXECUTED" // it ended; outcome says how
	cardFailed    = "FAILED"   // it was approved and not done; failure says why
	cardUnknown   = "UNKNOWN"  // it may have been done
)

var cardStatuses = map[string]string{
	approval.Pending: cardPending, approval.Approved: cardApproved, approval.Denied: cardRejected,
	approval.Expired: cardExpired, approval.Withdrawn: cardWithdrawn, approval.Refused: cardRefused,
}

// statusOf gives the status of a request with what became of it.
func statusOf(a *butlerv1.Approval, use *butlerv1.ApprovalUse) string {
	switch use.GetStatus() {
	case approval.Taken:
		return cardExecuting
	case approval.Ended:
		return cardExecuted
	case approval.UseRefused:
		return cardFailed
	case approval.Unknown:
		return cardUnknown
	}
	if s, known := cardStatuses[a.GetStatus()]; known {
		return s
	}
	return strings.ToUpper(a.GetStatus())
}

// maxTail bounds the output in a frame, in bytes; the HTTP API gives all that is kept.
const maxTail = 8 << 10

// cardJSON is a request for approval as people's programs see it. Fields with EchoCenter's names are the first ones.
type cardJSON struct {
	ActionID        string `json:"action_id"`
	TargetAgentID   int64  `json:"target_agent_id"`
	TargetAgentName string `json:"target_agent_name"`
	Command         string `json:"command"`
	Reason          string `json:"reason"`
	Reasoning       string `json:"reasoning"`
	Status          string `json:"status"`

	// Only for the requester: where they asked.
	ConversationID int64  `json:"conversation_id,omitempty"`
	ReplyToLocalID string `json:"reply_to_local_id,omitempty"`

	Code        string            `json:"code"`
	Version     int32             `json:"version"`
	Digest      string            `json:"digest"`
	Kind        string            `json:"kind"`
	Host        string            `json:"host"`
	Dir         string            `json:"dir"`
	User        string            `json:"user"`
	Session     string            `json:"session,omitempty"`
	Program     string            `json:"program,omitempty"`
	Environment map[string]string `json:"environment,omitempty"`
	Scripts     []scriptJSON      `json:"scripts,omitempty"`
	Definitions []definitionJSON  `json:"definitions,omitempty"`

	Risk      string          `json:"risk"`
	Hardline  bool            `json:"hardline,omitempty"`
	Reasons   []reasonJSON    `json:"reasons"`
	Visible   string          `json:"visible"`
	Untrusted []untrustedJSON `json:"untrusted,omitempty"`

	Requester   actorJSON      `json:"requester"`
	Proposer    string         `json:"proposer"`
	Channel     string         `json:"channel"`
	Rule        string         `json:"rule,omitempty"`
	Quorum      int32          `json:"quorum"`
	Agreed      int            `json:"agreed"` // distinct people who approved what it is now
	MayDecide   bool           `json:"may_decide"`
	RequestedAt *time.Time     `json:"requested_at,omitempty"`
	DecideBy    *time.Time     `json:"decide_by,omitempty"`
	RunBy       *time.Time     `json:"run_by,omitempty"`
	Decisions   []decisionJSON `json:"decisions"`
	Edits       []editJSON     `json:"edits,omitempty"`

	TakenAt *time.Time   `json:"taken_at,omitempty"`
	EndedAt *time.Time   `json:"ended_at,omitempty"`
	Failure string       `json:"failure,omitempty"` // why it was not done, or is not known
	Outcome *outcomeJSON `json:"outcome,omitempty"`
}

type (
	actorJSON struct {
		ID   int64  `json:"id"`
		Name string `json:"name"`
		Role string `json:"role"`
	}
	scriptJSON struct {
		Path   string `json:"path"`
		SHA256 string `json:"sha256"`
	}
	definitionJSON struct {
		Name string `json:"name"`
		Kind string `json:"kind"`
		Text string `json:"text"`
	}
	reasonJSON struct {
		Code   string `json:"code"`
		Text   string `json:"text"`
		TextZH string `json:"text_zh"`
		Start  int32  `json:"start"` // bytes of command
		End    int32  `json:"end"`
	}
	untrustedJSON struct {
		Name    string `json:"name"`
		Excerpt string `json:"excerpt"`
	}
	decisionJSON struct {
		By       actorJSON  `json:"by"`
		Approved bool       `json:"approved"`
		Reason   string     `json:"reason,omitempty"`
		Channel  string     `json:"channel"`
		At       *time.Time `json:"at,omitempty"`
		Digest   string     `json:"digest"`
	}
	editJSON struct {
		By      actorJSON  `json:"by"`
		At      *time.Time `json:"at,omitempty"`
		Command string     `json:"command"` // as it was
		Digest  string     `json:"digest"`
	}
	outcomeJSON struct {
		ExitStatus  int32  `json:"exit_status"`
		StatusKnown bool   `json:"status_known"`
		Output      string `json:"output"`
		OutputBytes int64  `json:"output_bytes"`
		Truncated   bool   `json:"truncated"`
		Dir         string `json:"dir,omitempty"`
		DurationMS  int64  `json:"duration_ms"`
		Running     bool   `json:"running,omitempty"`
		Redacted    int32  `json:"redacted,omitempty"`
	}
)

// cardOf shows a request to somebody who may see it. The grant, and the waiting turn, are nobody's business.
func cardOf(a *butlerv1.Approval, use *butlerv1.ApprovalUse, mayDecide bool) cardJSON {
	e := a.GetEffect()
	c := cardJSON{
		ActionID: a.GetId(), TargetAgentID: e.GetAgentId(), TargetAgentName: e.GetAgentName(), Command: e.GetCommand(),
		Reason: a.GetWhy().GetReasoning(), Reasoning: a.GetWhy().GetReasoning(), Status: statusOf(a, use),
		Code: a.GetCode(), Version: a.GetVersion(), Digest: a.GetDigest(), Kind: e.GetKind(),
		Host: e.GetHost(), Dir: e.GetDir(), User: e.GetUser(), Session: e.GetSession(), Program: e.GetProgram(), Environment: e.GetEnvironment(),
		Risk: a.GetRisk().GetLevel(), Hardline: a.GetRisk().GetHardline(), Visible: a.GetRisk().GetVisible(),
		Requester: actorOf(a.GetRequester()), Proposer: a.GetProposer(), Channel: a.GetChannel(),
		Rule: a.GetPolicy().GetRule(), Quorum: max(1, a.GetPolicy().GetQuorum()), Agreed: approval.Agreed(a), MayDecide: mayDecide,
		RequestedAt: timeOf(a.GetRequestedAt()), DecideBy: timeOf(a.GetDecideBy()), RunBy: timeOf(a.GetRunBy()),
		Reasons: []reasonJSON{}, Decisions: []decisionJSON{},
	}
	if c.TargetAgentName == "" {
		c.TargetAgentName = e.GetHost()
	}
	for _, s := range e.GetScripts() {
		c.Scripts = append(c.Scripts, scriptJSON{s.GetPath(), s.GetSha256()})
	}
	for _, d := range e.GetDefinitions() {
		c.Definitions = append(c.Definitions, definitionJSON{d.GetName(), d.GetKind(), d.GetText()})
	}
	for _, r := range a.GetRisk().GetReasons() {
		c.Reasons = append(c.Reasons, reasonJSON{r.GetCode(), r.GetText(), r.GetTextZh(), r.GetStart(), r.GetEnd()})
	}
	for _, u := range a.GetWhy().GetUntrusted() {
		c.Untrusted = append(c.Untrusted, untrustedJSON{u.GetName(), u.GetExcerpt()})
	}
	for _, d := range a.GetDecisions() {
		c.Decisions = append(c.Decisions, decisionJSON{actorOf(d.GetBy()), d.GetApproved(), d.GetReason(), d.GetChannel(), timeOf(d.GetAt()), d.GetDigest()})
	}
	for _, x := range a.GetEdits() {
		c.Edits = append(c.Edits, editJSON{actorOf(x.GetBy()), timeOf(x.GetAt()), x.GetCommand(), x.GetDigest()})
	}
	if use == nil {
		return c
	}
	c.TakenAt, c.EndedAt, c.Failure = timeOf(use.GetTakenAt()), timeOf(use.GetEndedAt()), use.GetReason()
	if o := use.GetOutcome(); o != nil {
		c.Outcome = &outcomeJSON{
			o.GetExitStatus(), o.GetStatusKnown(), o.GetOutput(), o.GetOutputBytes(), o.GetTruncated(), o.GetDir(),
			o.GetDurationMs(), o.GetRunning(), o.GetRedacted(),
		}
	}
	return c
}

// withTail cuts the output to its end, for a frame.
func (c cardJSON) withTail() cardJSON {
	if c.Outcome == nil || len(c.Outcome.Output) <= maxTail {
		return c
	}
	o := *c.Outcome
	o.Output, o.Truncated = strings.ToValidUTF8(o.Output[len(o.Output)-maxTail:], ""), true
	c.Outcome = &o
	return c
}

func actorOf(a *butlerv1.Actor) actorJSON { return actorJSON{a.GetId(), a.GetName(), a.GetRole()} }

func timeOf(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	return optional(t.AsTime())
}

// Types of the frames about requests for approval.
const (
	frameAuthRequest = "AUTH_REQUEST"
	frameAuthStatus  = "AUTH_STATUS_UPDATE"
)

// approval makes the frame of a request for one person. Its fields stand in the frame itself and in its payload. It is
// state, not an event of a stream: it has no seq. conversation is that of the requester's question, and for them alone.
func (w writer) approval(typ string, card cardJSON, person int64, a *butlerv1.Approval, now time.Time) *frame {
	if person == a.GetRequester().GetId() {
		card.ConversationID, card.ReplyToLocalID = a.GetWaiter().GetThread(), a.GetLocalId()
	}
	fields, err := json.Marshal(card.withTail())
	if err != nil { // a defect: only plain values come here
		return nil
	}
	b := make([]byte, 0, 2*len(fields)+384)
	b = append(b, `{"type":"`...)
	b = append(b, typ...)
	b = append(b, '"')
	b = appendSender(b, w.butler, person)
	b = appendTime(field(b, "timestamp"), now)
	b = append(b, ',')
	b = append(b, fields[1:len(fields)-1]...)
	b = append(field(b, "payload"), fields...)
	f := &frame{body: append(b, '}'), approval: &pendingFrame{card: card}}
	if waiter := a.GetWaiter(); person == a.GetRequester().GetId() && waiter.GetTurn() != "" {
		f.approval.turn = turnOf(waiter).String()
	}
	return f
}

// pendingFrame is what a frame says of a request, for clients that do not speak frames.
type pendingFrame struct {
	card cardJSON
	turn string // that waits for it
}
