package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.opentelemetry.io/otel"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/sealed"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// sendTimeout bounds how long a message waits for the log: as long as NATS may be away without anybody noticing.
const sendTimeout = 10 * time.Second

// tooManyWait is when to try again after too many messages were waiting.
const tooManyWait = 5 * time.Second

// outgoing is what a person wants to say.
type outgoing struct {
	conversation int64  // 0: the default one
	localID      string // "": one is made
	text         string
	channel      string // websocket, http, openai or cli
	language     string // en or zh
}

// accepted is a message that is in the log.
type accepted struct {
	turn    chat.Turn
	seq     uint64
	localID string
	at      time.Time
	text    string // as it is in the log: dots when it was sealed
	// Set when the message was there before: its question, and its answer unless it is still to come.
	asked, answer *event
}

// send is the one way in: it puts a person's message into the log, once for each local_id, and returns when it is on
// disk. before, when not nil, is called with the message's turn before anything is written.
func (s *Service) send(ctx context.Context, who *principal, m outgoing, before func(chat.Turn)) (accepted, error) {
	// The trace of the whole turn begins here and travels with the event.
	ctx, span := otel.Tracer("github.com/butlerhub/butler/services/gateway").Start(ctx, "message")
	defer span.End()
	a, err := s.trySend(ctx, who, m, before)
	if err != nil {
		s.metrics.refused.WithLabelValues(string(fault.CodeOf(err))).Inc()
		return a, err
	}
	s.metrics.accepted.WithLabelValues(m.channel).Inc()
	return a, nil
}

func (s *Service) trySend(ctx context.Context, who *principal, m outgoing, before func(chat.Turn)) (accepted, error) {
	if err := checkText(m.text); err != nil {
		return accepted{}, err
	}
	if m.localID == "" {
		m.localID = rand.Text()
	}
	if err := checkLocalID(m.localID); err != nil {
		return accepted{}, err
	}
	if wait := s.senders.take(who.id()); wait > 0 {
		return accepted{}, rateLimited(wait, "you are sending too fast; wait a moment")
	}
	thread, err := s.threads.resolve(ctx, who.id(), m.conversation)
	if err != nil {
		return accepted{}, err
	}
	turn := chat.Turn{Session: chat.Session{Person: who.id(), Thread: thread}, ID: chat.TurnID(m.localID)}
	if most := s.settings.MaxWaiting; most > 0 && s.hub.waiting(who.id()) >= most {
		// What was accepted before is not refused when it is sent again.
		if asked, err := s.lastOf(ctx, turn, chat.Asked); err != nil || asked == nil {
			return accepted{}, cmp.Or(err, rateLimited(tooManyWait, fmt.Sprintf(say(m.language,
				"%d of your messages wait for their answer; wait for some of them, or stop them",
				"您有 %d 条消息还在等待回答，请等其中一些完成，或停止它们"), most)))
		}
	}
	if before != nil {
		before(turn)
	}
	said := m.text
	secret, err := s.prompts.seal(who.id(), thread, said)
	if err != nil {
		return accepted{}, err
	}
	if secret != nil {
		m.text = sealed.Text
	}
	data, err := chat.Encode(&butlerv1.ChatAsked{
		Sender:         &butlerv1.Actor{Id: who.id(), Name: who.person.Name, Role: string(who.person.Role)},
		ConversationId: thread, LocalId: m.localID, Text: m.text, Channel: m.channel, Language: m.language, Sealed: secret,
	})
	if err != nil {
		return accepted{}, fault.Wrap(err, fault.Invalid, "the message cannot be written")
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	ev := bus.NewEvent(chat.TypeAsked, s.bus.Source(), turn.Subject(chat.Asked), data)
	seq, err := s.bus.Append(ctx, ev, bus.Expect{Filter: turn.Filter()})
	switch {
	case err == nil:
		return accepted{turn: turn, seq: seq, localID: m.localID, at: ev.Time, text: m.text}, nil
	case errors.Is(err, bus.ErrFenced):
		// Compared with what was said: it may have been sent before there was a prompt, perhaps as the command that led to it.
		m.text = said
		return s.sentBefore(ctx, turn, m)
	case fault.CodeOf(err) == fault.Unavailable:
		return accepted{}, fault.Wrap(err, fault.Unavailable,
			"Butler cannot take messages now; send it again with the same local_id")
	}
	return accepted{}, err
}

// sentBefore gives the message that has the same local_id.
func (s *Service) sentBefore(ctx context.Context, turn chat.Turn, m outgoing) (accepted, error) {
	asked, err := s.lastOf(ctx, turn, chat.Asked)
	if err != nil {
		return accepted{}, err
	}
	if asked == nil || asked.localID != m.localID || asked.text != m.text && asked.text != sealed.Text {
		return accepted{}, fault.New(fault.Conflict, "another message was sent with this local_id; use a new one")
	}
	a := accepted{turn: turn, seq: asked.seq, localID: m.localID, at: asked.at, asked: asked}
	if a.answer, err = s.lastOf(ctx, turn, chat.Answer); err != nil {
		return accepted{}, err
	}
	if a.answer != nil {
		a.answer.replyTo = asked.seq
	}
	return a, nil
}

// lastOf gives a turn's newest event of a kind, nil when there is none.
func (s *Service) lastOf(ctx context.Context, turn chat.Turn, kind chat.Kind) (*event, error) {
	stored, found, err := s.bus.Last(ctx, bus.ChatStream, turn.Stored(kind))
	if err != nil || !found {
		return nil, err
	}
	return decodeChat(stored)
}

func checkText(text string) error {
	switch {
	case len(text) > chat.MaxText:
		return fault.New(fault.TooLarge, "a message has at most %d KiB; this one has %d", chat.MaxText>>10, (len(text)+1023)>>10)
	case !utf8.ValidString(text):
		return fault.New(fault.Invalid, "a message must be UTF-8")
	case strings.IndexByte(text, 0) >= 0:
		return fault.New(fault.Invalid, "a message must not contain the character NUL")
	case strings.TrimSpace(text) == "":
		return fault.New(fault.Invalid, "the message is empty")
	}
	return nil
}

func checkLocalID(id string) error {
	if len(id) > chat.MaxLocalID || !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl) {
		return fault.New(fault.Invalid, "a local_id has at most %d bytes of UTF-8 without control characters", chat.MaxLocalID)
	}
	return nil
}
