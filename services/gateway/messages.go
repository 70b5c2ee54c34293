package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/gateway/store"
)

const (
	// maxHistory bounds a page of history.
	maxHistory = 200
	// maxWait bounds how long POST /api/chat/messages waits for the answer.
	maxWait = 60 * time.Second
	// freshWait is how long a page of history waits for what was just said to be in it.
	freshWait = 500 * time.Millisecond
)

// messageJSON is a message, with EchoCenter's field names and some more.
type messageJSON struct {
	ID             uint64       `json:"id"`
	LocalID        string       `json:"local_id"`
	ConversationID int64        `json:"conversation_id"`
	SenderID       int64        `json:"sender_id"`
	SenderName     string       `json:"sender_name"`
	SenderRole     string       `json:"sender_role"`
	ReceiverID     int64        `json:"receiver_id"`
	Type           string       `json:"type"` // CHAT
	Payload        string       `json:"payload"`
	Timestamp      time.Time    `json:"timestamp"`
	StreamID       string       `json:"stream_id,omitempty"`
	Status         string       `json:"status,omitempty"`
	Reason         string       `json:"reason,omitempty"`
	ReplyTo        uint64       `json:"reply_to,omitempty"`
	ReplyToLocalID string       `json:"reply_to_local_id,omitempty"`
	Usage          *store.Usage `json:"usage,omitempty"`
}

func messageOf(m store.Message) messageJSON {
	out := messageJSON{
		ID: m.ID, LocalID: m.LocalID, ConversationID: m.ThreadID, SenderID: m.SenderID, SenderName: m.SenderName,
		SenderRole: m.SenderRole, ReceiverID: store.ButlerID, Type: "CHAT", Payload: m.Text, Timestamp: m.CreatedAt,
		StreamID: m.StreamID, Status: m.Status, Reason: m.Reason, ReplyToLocalID: m.ReplyToLocalID, Usage: m.Usage,
	}
	if m.Role == store.ButlerMessage {
		out.ReceiverID = m.PersonID
	}
	return out
}

// stored gives an event as the read model has it.
func (ev *event) stored() store.Message {
	m := store.Message{
		ID: ev.seq, PersonID: ev.turn.Person, ThreadID: ev.turn.Thread, Turn: ev.turn.ID, Text: ev.text, CreatedAt: ev.at,
	}
	if ev.kind == eventAsked {
		m.LocalID, m.Role = ev.localID, store.HumanMessage
		m.SenderID, m.SenderName, m.SenderRole = ev.sender.id, ev.sender.name, ev.sender.role
		return m
	}
	m.LocalID, m.Role, m.ReplyToLocalID = ev.localID+":answer", store.ButlerMessage, ev.localID
	m.SenderID, m.SenderName, m.SenderRole = butlerActor.id, butlerActor.name, butlerActor.role
	m.StreamID, m.Status, m.Reason = ev.streamID, ev.status, ev.reason
	m.Usage = &store.Usage{
		PromptTokens: ev.usage.prompt, CompletionTokens: ev.usage.completion,
		ModelCalls: ev.usage.modelCalls, ToolCalls: ev.usage.toolCalls,
	}
	return m
}

// json gives an event as the API shows it.
func (ev *event) json() messageJSON {
	out := messageOf(ev.stored())
	out.ReplyTo = ev.replyTo
	return out
}

// threadMessages serves GET /api/chat/threads/{id}/messages.
func (s *Service) threadMessages(w http.ResponseWriter, r *http.Request, who *principal) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	return s.page(w, r, chat.Session{Person: who.id(), Thread: id}, maxHistory,
		func(ctx context.Context, before uint64, limit int) ([]store.Message, error) {
			return s.store.Messages(ctx, who.id(), id, before, limit)
		})
}

// history serves GET /api/chat/history/{peer_id}: all conversations with Butler, as one.
func (s *Service) history(w http.ResponseWriter, r *http.Request, who *principal) error {
	peer, err := pathID(r, "peer_id")
	if err != nil {
		return err
	}
	if peer != store.ButlerID {
		return fault.New(fault.NotFound, "you have no conversation with %d; Butler is %d", peer, store.ButlerID)
	}
	return s.page(w, r, chat.Session{Person: who.id()}, 100,
		func(ctx context.Context, before uint64, limit int) ([]store.Message, error) {
			return s.store.PersonMessages(ctx, who.id(), before, limit)
		})
}

// page answers with the newest messages before ?before=, oldest first, at most ?limit=. X-Next-Before tells what to give
// as before for the page that comes before, when there may be one.
func (s *Service) page(w http.ResponseWriter, r *http.Request, of chat.Session, limit int,
	read func(ctx context.Context, before uint64, limit int) ([]store.Message, error)) error {
	limit, err := queryInt(r.URL.Query().Get("limit"), limit, 1, 0, "limit")
	if err != nil {
		return err
	}
	limit = min(limit, maxHistory)
	var before uint64
	if q := r.URL.Query().Get("before"); q != "" {
		if before, err = strconv.ParseUint(q, 10, 64); err != nil || before == 0 {
			return fault.New(fault.Invalid, "before must be the id of a message")
		}
	}
	if before == 0 {
		s.awaitProjection(r.Context(), of)
	}
	messages, err := read(r.Context(), before, limit)
	if err != nil {
		return err
	}
	out := make([]messageJSON, 0, len(messages))
	for _, m := range messages {
		out = append(out, messageOf(m))
	}
	if len(out) == limit {
		w.Header().Set("X-Next-Before", strconv.FormatUint(out[0].ID, 10))
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// awaitProjection waits a little for what was said last in a session, or in any of a person's when Thread is 0, to be in
// the read model.
func (s *Service) awaitProjection(ctx context.Context, session chat.Session) {
	ctx, cancel := context.WithTimeout(ctx, freshWait)
	defer cancel()
	var newest uint64
	filters := []string{chat.PersonKindFilter(session.Person, chat.Asked), chat.PersonKindFilter(session.Person, chat.Answer)}
	if session.Thread != 0 {
		filters = []string{session.KindFilter(chat.Asked), session.KindFilter(chat.Answer)}
	}
	for _, filter := range filters {
		last, found, err := s.bus.Last(ctx, bus.ChatStream, filter)
		if err != nil {
			return // the page shows what there is
		}
		if found {
			newest = max(newest, last.Seq)
		}
	}
	for wait := time.Millisecond; newest > 0; wait = min(2*wait, 50*time.Millisecond) {
		at, err := s.store.Position(ctx)
		if err != nil || at >= newest {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// postMessage serves POST /api/chat/messages: 202 with the message, or, when wait is given and the answer came in time,
// 200 with the answer too.
func (s *Service) postMessage(w http.ResponseWriter, r *http.Request, who *principal) (err error) {
	var in struct {
		ConversationID integer `json:"conversation_id"`
		LocalID        string  `json:"local_id"`
		Text           string  `json:"text"`
		Payload        string  `json:"payload"` // another name for it
		Wait           float64 `json:"wait"`    // seconds
		Language       string  `json:"language"`
		TargetID       integer `json:"target_id"`
	}
	if err := readJSON(w, r, &in, maxFrame); err != nil {
		return err
	}
	language := s.language(r, in.Language)
	defer func() { err = inLanguage(language, err) }()
	if in.Text == "" {
		in.Text = in.Payload
	}
	if in.Wait < 0 || in.Wait > maxWait.Seconds() {
		return fault.New(fault.Invalid, "wait is a number of seconds, at most %d", int(maxWait.Seconds()))
	}
	if err := checkTarget(int64(in.TargetID)); err != nil {
		return err
	}
	m := outgoing{
		conversation: int64(in.ConversationID), localID: in.LocalID, text: in.Text, channel: "http",
		language: language,
	}
	if in.Wait == 0 {
		a, err := s.send(r.Context(), who, m, nil)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusAccepted, s.accepted(who, a))
		return nil
	}
	if err := s.hub.ready(); err != nil {
		return err
	}
	if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	wt := newWaiter(who.id())
	defer s.hub.leave(wt.outbox)
	a, err := s.send(r.Context(), who, m, func(turn chat.Turn) {
		wt.only = turn.String()
		s.hub.join(wt.outbox)
	})
	if err != nil {
		return err
	}
	out := s.accepted(who, a)
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(in.Wait*float64(time.Second)))
	defer cancel()
	stop := context.AfterFunc(s.ending, cancel)
	defer stop()
	answer := a.answer
	for answer == nil {
		f, err := wt.next(ctx, nil)
		if err != nil {
			writeJSON(w, http.StatusAccepted, out) // it is still to come
			return nil
		}
		if f.event.kind == eventAnswer && !f.ends {
			answer = f.event
		}
	}
	j := answer.json()
	out.Answer = &j
	writeJSON(w, http.StatusOK, out)
	return nil
}

type acceptedJSON struct {
	messageJSON
	Answer *messageJSON `json:"answer,omitempty"`
}

func (s *Service) accepted(who *principal, a accepted) acceptedJSON {
	ev := a.asked
	if ev == nil {
		ev = &event{
			kind: eventAsked, seq: a.seq, at: a.at, turn: a.turn, text: a.text, localID: a.localID, sender: who.actor(),
		}
	}
	out := acceptedJSON{messageJSON: ev.json()}
	if a.answer != nil {
		j := a.answer.json()
		out.Answer = &j
	}
	return out
}

// checkTarget refuses a message that is not for Butler.
func checkTarget(target int64) error {
	if target != 0 && target != store.ButlerID {
		return fault.New(fault.Invalid, "messages go to Butler, target_id %d; agents are reached through Butler", store.ButlerID)
	}
	return nil
}
