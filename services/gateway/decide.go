package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/gateway/store"
)

const (
	// decideWithin bounds how long a decision waits for approval to answer.
	decideWithin = 10 * time.Second
	// maxDecisionBody bounds a request that decides: a reason and a command, each byte written as an escape of six, and more.
	maxDecisionBody = 160 << 10
)

// verdict is what a person says of a request.
type verdict struct {
	id       string // its id, or its code
	approved bool
	reason   string
	digest   string // of what the person saw; "" when they do not say
	command  string // to be run instead, when not ""
	channel  string // websocket, http or cli
	language string
}

// verdictJSON is a verdict as clients send it. In a frame, the fields stand in the frame itself or in its payload.
type verdictJSON struct {
	ActionID string `json:"action_id"`
	Code     string `json:"code"`
	Approved *bool  `json:"approved"`
	Reason   string `json:"reason"`
	Digest   string `json:"digest"`
	Command  string `json:"edited_command"`
}

// with completes a verdict by that of a payload. Two that contradict each other say nothing.
func (v verdictJSON) with(p verdictJSON) (verdictJSON, error) {
	conflict := false
	pick := func(a, b string) string {
		conflict = conflict || a != "" && b != "" && a != b
		return cmp.Or(a, b)
	}
	out := verdictJSON{
		ActionID: pick(v.ActionID, p.ActionID), Code: pick(v.Code, p.Code), Reason: pick(v.Reason, p.Reason),
		Digest: pick(v.Digest, p.Digest), Command: pick(v.Command, p.Command), Approved: v.Approved,
	}
	if out.Approved == nil {
		out.Approved = p.Approved
	}
	if conflict || v.Approved != nil && p.Approved != nil && *v.Approved != *p.Approved {
		return out, fault.New(fault.Invalid, "the frame and its payload say two different things; nothing was decided")
	}
	return out, nil
}

func (v verdictJSON) verdict(channel, language string) (verdict, error) {
	if v.Approved == nil {
		return verdict{}, fault.New(fault.Invalid, "%s", say(language, "approved must be true or false", "approved 必须是 true 或 false"))
	}
	return verdict{
		id: strings.TrimSpace(cmp.Or(v.ActionID, v.Code)), approved: *v.Approved, reason: v.Reason, digest: v.Digest, command: v.Command,
		channel: channel, language: language,
	}, nil
}

// say gives a sentence in the reader's language.
func say(language, en, zh string) string {
	if language == "zh" {
		return zh
	}
	return en
}

func (v verdict) check() error {
	switch {
	case len(v.reason) > approval.MaxReason, len(v.command) > approval.MaxCommand:
		return fault.New(fault.TooLarge, say(v.language, "a reason has at most %d KiB, an edited command %d",
			"理由最多 %d KiB，修改后的命令最多 %d KiB"), approval.MaxReason>>10, approval.MaxCommand>>10)
	case !utf8.ValidString(v.reason) || !utf8.ValidString(v.command) || strings.ContainsRune(v.reason, 0) || strings.ContainsRune(v.command, 0):
		return fault.New(fault.Invalid, "%s", say(v.language,
			"a reason or a command must be UTF-8 without the character NUL", "理由和命令必须是不含 NUL 字符的 UTF-8 文本"))
	case v.command != "" && strings.TrimSpace(v.command) == "":
		return fault.New(fault.Invalid, "%s", say(v.language, "the edited command is empty", "修改后的命令是空的"))
	case v.command != "" && !v.approved:
		return fault.New(fault.Invalid, "%s", say(v.language,
			"a command that is denied cannot be edited: deny it, or approve the edited one", "拒绝时不能修改命令：请直接拒绝，或批准修改后的命令"))
	case len(v.digest) > 128:
		return fault.New(fault.Invalid, "%s", say(v.language, "the digest is not one", "digest 不正确"))
	}
	if !approval.ValidID(v.id) && !approval.ValidCode(normalID(v.id)) {
		return errNoRequest(v.language)
	}
	return nil
}

func errNoRequest(language string) error {
	return fault.New(fault.NotFound, "%s", say(language, "there is no such request for approval", "没有这个审批请求"))
}

func errNoApproval(language string, err error) error {
	e := fault.Wrap(err, fault.Unavailable, "%s", say(language,
		"approval does not answer now; nothing was decided, try again in a moment", "审批服务暂时没有响应；没有作出任何决定，请稍后再试"))
	e.RetryAfter = time.Second
	return e
}

// humanOnly refuses whoever is not a person: agents and Butler never decide, whatever token they hold.
func humanOnly(who *principal, language string) error {
	if who.person.Role == store.Admin || who.person.Role == store.Member {
		return nil
	}
	return fault.New(fault.Forbidden, "%s", say(language, "only people decide about requests", "只有人可以审批"))
}

func (p *principal) protoActor() *butlerv1.Actor {
	return &butlerv1.Actor{Id: p.person.ID, Name: p.person.Name, Role: string(p.person.Role)}
}

// decide hands a person's verdict to approval, which looks at their right to it, and gives the request as it stands then.
func (s *Service) decide(ctx context.Context, who *principal, v verdict) (cardJSON, error) {
	if err := humanOnly(who, v.language); err != nil {
		return cardJSON{}, err
	}
	if wait := s.deciders.take(who.id()); wait > 0 {
		return cardJSON{}, rateLimited(wait, say(v.language, "you are deciding too fast; wait a moment", "操作太快，请稍等片刻"))
	}
	if err := v.check(); err != nil {
		return cardJSON{}, err
	}
	if s.approval == nil {
		return cardJSON{}, errNoApproval(v.language, nil)
	}
	ctx, cancel := context.WithTimeout(ctx, decideWithin)
	defer cancel()
	res, err := s.approval.DecideApproval(ctx, &butlerv1.DecideApprovalRequest{
		Id: normalID(v.id), By: who.protoActor(), Approved: v.approved, Reason: v.reason, Channel: v.channel, Digest: v.digest, EditedCommand: v.command,
	})
	if err != nil {
		return cardJSON{}, s.refusal(ctx, who, v, err)
	}
	return viewed(&butlerv1.GetApprovalResponse{Approval: res.GetApproval()}, who), nil
}

// normalID gives an id in lower case, and a code in upper case, as they are made.
func normalID(id string) string {
	if approval.ValidID(id) {
		return strings.ToLower(id)
	}
	return strings.ToUpper(id)
}

// refusal says, in the person's language, why a verdict did not count.
func (s *Service) refusal(ctx context.Context, who *principal, v verdict, err error) error {
	switch fault.CodeOf(err) {
	case fault.NotFound:
		return errNoRequest(v.language)
	case fault.Forbidden:
		return fault.Wrap(err, fault.Forbidden, "%s", say(v.language, fault.MessageOf(err), "您无权审批这个请求，请联系管理员"))
	case fault.Conflict, fault.Drift:
		return fault.Wrap(err, fault.Conflict, "%s", s.standing(ctx, who, v, err))
	case fault.Invalid, fault.TooLarge:
		return fault.Wrap(err, fault.CodeOf(err), "%s%s", say(v.language, "", "无法按此执行："), fault.MessageOf(err))
	case fault.RateLimited:
		return err
	}
	return errNoApproval(v.language, err)
}

// standing says what became of a request that was decided before.
func (s *Service) standing(ctx context.Context, who *principal, v verdict, err error) string {
	res, lookup := s.approval.GetApproval(ctx, &butlerv1.GetApprovalRequest{Id: normalID(v.id), Viewer: who.protoActor()})
	if lookup != nil {
		return say(v.language, fault.MessageOf(err), "这个请求已经处理过了")
	}
	a := res.GetApproval()
	if a.GetStatus() == approval.Pending {
		if v.digest != "" && v.digest != a.GetDigest() {
			return say(v.language, "the command was changed since you saw it; look at it again", "命令在您查看之后被修改了，请重新查看")
		}
		return say(v.language, fault.MessageOf(err), "您已经表过态了，还在等待其他人")
	}
	name := ""
	if n := len(a.GetDecisions()); n > 0 {
		name = a.GetDecisions()[n-1].GetBy().GetName()
	}
	switch a.GetStatus() {
	case approval.Approved:
		if name == "" {
			return say(v.language, "the policy approved it already", "策略已自动批准")
		}
		return say(v.language, name+" approved it already", name+" 已经批准了")
	case approval.Denied:
		return say(v.language, name+" denied it already", name+" 已经拒绝了")
	case approval.Expired:
		return say(v.language, "the time to decide is over; it was not run", "审批时间已过，命令没有执行")
	case approval.Withdrawn:
		return say(v.language, "it was withdrawn; the work was stopped", "请求已撤回，工作已停止")
	case approval.Refused:
		return say(v.language, "the policy refused it already", "策略已拒绝")
	}
	return say(v.language, fault.MessageOf(err), "这个请求已经处理过了")
}

// decideAction serves POST /api/approvals/{id}/decision.
func (s *Service) decideAction(w http.ResponseWriter, r *http.Request, who *principal) (err error) {
	var in struct {
		verdictJSON
		Language string `json:"language"`
		Channel  string `json:"channel"`
	}
	if err := readJSON(w, r, &in, maxDecisionBody); err != nil {
		return err
	}
	in.ActionID, in.Code = r.PathValue("id"), ""
	language := s.language(r, in.Language)
	defer func() { err = inLanguage(language, err) }()
	v, err := in.verdict(httpChannel(in.Channel), language)
	if err != nil {
		return err
	}
	card, err := s.decide(r.Context(), who, v)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, card)
	return nil
}

// httpChannel is where a decision over HTTP was said: the command line says so itself, for the record.
func httpChannel(said string) string {
	if said == "cli" {
		return "cli"
	}
	return "http"
}

// authResponse serves POST /api/chat/auth/response as EchoCenter has it. What it says of the sender does not count.
func (s *Service) authResponse(w http.ResponseWriter, r *http.Request, who *principal) (err error) {
	var in struct {
		verdictJSON
		Payload  json.RawMessage `json:"payload"`
		Language string          `json:"language"`
	}
	if err := readJSON(w, r, &in, maxDecisionBody); err != nil {
		return err
	}
	language := s.language(r, in.Language)
	defer func() { err = inLanguage(language, err) }()
	said, err := in.verdictJSON.withPayload(in.Payload)
	if err != nil {
		return err
	}
	v, err := said.verdict("http", language)
	if err != nil {
		return err
	}
	if v.id == "" {
		return fault.New(fault.Invalid, "%s", say(language, "action_id or code is needed", "需要 action_id 或 code"))
	}
	card, err := s.decide(r.Context(), who, v)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		Processed string   `json:"status"`
		Approval  cardJSON `json:"approval"`
	}{"processed", card})
	return nil
}

// withPayload completes a verdict by a payload that is an object.
func (v verdictJSON) withPayload(payload json.RawMessage) (verdictJSON, error) {
	if payload = bytes.TrimSpace(payload); len(payload) == 0 || payload[0] != '{' {
		return v, nil
	}
	var p verdictJSON
	if err := json.Unmarshal(payload, &p); err != nil {
		return v, fault.Wrap(err, fault.Invalid, "the payload is not what AUTH_RESPONSE has: action_id and approved")
	}
	return v.with(p)
}

// authResponse handles an AUTH_RESPONSE frame. What became of it comes as AUTH_STATUS_UPDATE, as for everybody.
func (c *socket) authResponse(ctx context.Context, in inbound, language string) {
	s := c.service
	who := c.guest.principal()
	said, err := in.verdictJSON.withPayload(in.Payload)
	id := cmp.Or(said.ActionID, said.Code)
	var v verdict
	if err == nil {
		v, err = said.verdict("websocket", language)
	}
	if err == nil && v.id == "" {
		err = fault.New(fault.Invalid, "%s", say(language, "action_id or code is needed", "需要 action_id 或 code"))
	}
	if err == nil {
		_, err = s.decide(ctx, who, v)
	}
	if err == nil {
		return
	}
	if len(id) > 64 {
		id = ""
	}
	c.problemWith(err, in.LocalID, id)
	if fault.CodeOf(err) != fault.Conflict || s.approval == nil {
		return
	}
	// This client does not know what was decided: perhaps its frame was lost.
	if res, err := s.approval.GetApproval(ctx, &butlerv1.GetApprovalRequest{Id: normalID(v.id), Viewer: who.protoActor()}); err == nil {
		a := res.GetApproval()
		c.box.push(s.hub.writer.approval(frameAuthStatus, cardOf(a, res.GetUse(), res.GetMayDecide()), who.id(), a, s.now()))
	}
}

// listApprovals serves GET /api/approvals.
func (s *Service) listApprovals(w http.ResponseWriter, r *http.Request, who *principal) error {
	q := r.URL.Query()
	language := s.language(r, "")
	limit, err := queryInt(q.Get("limit"), 50, 1, 200, "limit")
	if err != nil {
		return err
	}
	var before uint64
	if text := q.Get("before"); text != "" {
		if before, err = strconv.ParseUint(text, 10, 64); err != nil {
			return fault.New(fault.Invalid, "before is what X-Next-Before of the page before it says")
		}
	}
	status, err := statusQuery(q.Get("status"))
	if err != nil {
		return err
	}
	thread, err := queryInt(q.Get("conversation"), 0, 1, 0, "conversation")
	if err != nil {
		return err
	}
	var res *butlerv1.ListApprovalsResponse
	if s.approval != nil {
		ctx, cancel := context.WithTimeout(r.Context(), decideWithin)
		defer cancel()
		res, err = s.approvals(ctx, who, &butlerv1.ListApprovalsRequest{
			Viewer: who.protoActor(), Status: status, Limit: int32(limit), Before: before, //nolint:gosec // at most 200
		}, int64(thread))
	}
	if s.approval == nil || err != nil {
		if code := fault.CodeOf(err); code != "" && code != fault.Unavailable {
			return err
		}
		if status != approval.Pending || before != 0 {
			return errNoApproval(language, err)
		}
		// What is open is known here too.
		cards := s.docket.pending(who.id(), int64(thread))
		w.Header().Set("X-Butler-Stale", "true")
		writeJSON(w, http.StatusOK, cards[:min(limit, len(cards))])
		return nil
	}
	out := make([]cardJSON, 0, len(res.GetApprovals()))
	for _, g := range res.GetApprovals() {
		if err := s.withUse(r.Context(), g); err != nil {
			return err
		}
		out = append(out, viewed(g, who))
	}
	if next := res.GetNext(); next != 0 {
		w.Header().Set("X-Next-Before", strconv.FormatUint(next, 10))
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// maxPages bounds how many pages of requests are read for one of those of a conversation.
const maxPages = 20

// approvals lists requests; with thread not 0, those that the caller asked for in it alone. A page of these may have fewer
// than there are, as any page.
func (s *Service) approvals(ctx context.Context, who *principal, req *butlerv1.ListApprovalsRequest, thread int64) (*butlerv1.ListApprovalsResponse, error) {
	if thread == 0 {
		return s.approval.ListApprovals(ctx, req)
	}
	out := &butlerv1.ListApprovalsResponse{}
	limit := int(req.GetLimit())
	for range maxPages {
		page, err := s.approval.ListApprovals(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, g := range page.GetApprovals() {
			if a := g.GetApproval(); a.GetRequester().GetId() == who.id() && a.GetWaiter().GetThread() == thread {
				out.Approvals = append(out.Approvals, g)
			}
		}
		out.Next = page.GetNext()
		if out.GetNext() == 0 || len(out.GetApprovals()) >= limit {
			break
		}
		req.Before, req.Limit = out.GetNext(), int32(limit-len(out.GetApprovals())) //nolint:gosec // at most 200
	}
	return out, nil
}

// withUse completes a request by what became of it.
func (s *Service) withUse(ctx context.Context, g *butlerv1.GetApprovalResponse) error {
	a := g.GetApproval()
	if g.GetUse() != nil || a.GetStatus() != approval.Approved || a.GetEffect().GetHost() == "" {
		return nil
	}
	ev, found, err := s.bus.Last(ctx, bus.ApprovalStream, approval.UseSubject(a.GetEffect().GetHost(), a.GetId()))
	if err != nil || !found {
		return err
	}
	if _, use, err := decodeApproval(ev); err == nil {
		g.Use = use
	}
	return nil
}

// viewed shows a request to a person. In which conversation it was asked for is the requester's business.
func viewed(g *butlerv1.GetApprovalResponse, who *principal) cardJSON {
	_, said := approval.Said(g.GetApproval(), who.id())
	card := cardOf(g.GetApproval(), g.GetUse(), g.GetMayDecide() && !said)
	if who.id() == g.GetApproval().GetRequester().GetId() {
		card.ConversationID, card.ReplyToLocalID = g.GetApproval().GetWaiter().GetThread(), g.GetApproval().GetLocalId()
	}
	return card
}

// statusQuery reads a status as frames have it, or as the log does.
func statusQuery(s string) (string, error) {
	s = strings.TrimSpace(s)
	if s == "" || strings.EqualFold(s, "all") {
		return "", nil
	}
	for status, card := range cardStatuses {
		if strings.EqualFold(s, status) || strings.EqualFold(s, card) {
			return status, nil
		}
	}
	return "", fault.New(fault.Invalid, "status is one of PENDING, APPROVED, REJECTED, EXPIRED, WITHDRAWN and REFUSED")
}

// getApproval serves GET /api/approvals/{id}.
func (s *Service) getApproval(w http.ResponseWriter, r *http.Request, who *principal) error {
	id, language := r.PathValue("id"), s.language(r, "")
	if !approval.ValidID(id) && !approval.ValidCode(normalID(id)) {
		return errNoRequest(language)
	}
	if s.approval == nil {
		return errNoApproval(language, nil)
	}
	ctx, cancel := context.WithTimeout(r.Context(), decideWithin)
	defer cancel()
	res, err := s.approval.GetApproval(ctx, &butlerv1.GetApprovalRequest{Id: normalID(id), Viewer: who.protoActor()})
	switch fault.CodeOf(err) {
	case "":
	case fault.NotFound, fault.Forbidden:
		return errNoRequest(language)
	case fault.Unavailable, fault.Internal:
		return errNoApproval(language, err)
	default:
		return err
	}
	writeJSON(w, http.StatusOK, viewed(res, who))
	return nil
}
