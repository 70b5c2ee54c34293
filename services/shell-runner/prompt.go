package shell

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/sealed"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

const (
	// promptSpan is how long gateways seal answers unless a prompt is announced again, and promptAgain when that is done.
	promptSpan  = 10 * time.Minute
	promptAgain = time.Minute
	// promptLook is how often shells in which a command runs are looked at.
	promptLook = 200 * time.Millisecond
)

// prompt is a password prompt in a person's shell, as it was announced.
type prompt struct {
	key        *sealed.Key
	thread     int64
	generation string
	pid        int
	at         time.Time
}

// notePrompt announces to the gateways that a program asks for a password, or no more. It is called wherever the state of a
// session is told.
func (s *Service) notePrompt(sess *tmux.Session, st tmux.State) {
	seat := s.seat(personOf(sess))
	_, talk := seat.mode(st)
	asks := st.Password && !talk // after /nl what is written is for Butler
	seat.mu.Lock()
	defer seat.mu.Unlock()
	p, now := seat.prompt, s.now()
	switch {
	case !asks && p == nil:
		return
	case !asks:
		seat.prompt = nil
		s.announce(&butlerv1.ShellPrompt{PersonId: seat.person, ConversationId: p.thread, Host: s.host})
		return
	case p != nil && p.generation == sess.Generation() && p.pid == st.Foreground.PID && p.thread == seat.thread:
		if now.Sub(p.at) < promptAgain {
			return
		}
	default:
		key, err := sealed.NewKey()
		if err != nil {
			s.log.Error("no key can be made for a password prompt", "error", err)
			return
		}
		p = &prompt{key: key, thread: seat.thread, generation: sess.Generation(), pid: st.Foreground.PID}
		seat.prompt = p
	}
	p.at = now
	s.announce(p.message(seat.person, s.host))
}

func (p *prompt) message(person int64, host string) *butlerv1.ShellPrompt {
	return &butlerv1.ShellPrompt{PersonId: person, ConversationId: p.thread, Host: host, Key: p.key.Public(), Until: timestamppb.New(p.at.Add(promptSpan))}
}

// watchPrompts looks for prompts of commands that nobody waits for any more, and for those that end by themselves.
func (s *Service) watchPrompts(ctx context.Context) {
	for _, sess := range s.tmux.Sessions() {
		seat := s.seat(personOf(sess))
		seat.mu.Lock()
		prompted := seat.prompt != nil
		seat.mu.Unlock()
		if _, working := sess.Idle(); working || prompted {
			s.notePrompt(sess, stateOf(ctx, sess))
		}
	}
}

// announce is best effort: an answer that no gateway seals is passed all the same, and the person is told where it stands.
func (s *Service) announce(m *butlerv1.ShellPrompt) {
	data, err := chat.Encode(m)
	if err == nil {
		err = s.bus.Notify(sealed.Changed, data)
	}
	if err != nil {
		s.log.Warn("a password prompt could not be announced", "person", m.GetPersonId(), "error", err)
	}
}

// announceAgain tells a gateway that has just started what there is.
func (s *Service) announceAgain() {
	s.mu.Lock()
	seats := make([]*seat, 0, len(s.seats))
	for _, seat := range s.seats {
		seats = append(seats, seat)
	}
	s.mu.Unlock()
	for _, seat := range seats {
		seat.mu.Lock()
		if seat.prompt != nil {
			s.announce(seat.prompt.message(seat.person, s.host))
		}
		seat.mu.Unlock()
	}
}

// unseal gives the text of a message: what is sealed is opened.
func (s *Service) unseal(ctx context.Context, person int64, text string, in *butlerv1.SealedInput, language string) (string, error) {
	if in == nil {
		return text, nil
	}
	seat := s.seat(person)
	seat.mu.Lock()
	p := seat.prompt
	seat.mu.Unlock()
	if p != nil {
		if opened, err := p.key.Open(in.GetBox()); err == nil {
			return opened, nil
		}
	}
	// The prompt was announced by a process before this one, or has gone meanwhile: gateways learn what there is now.
	if sess, err := s.tmux.Find(sessionUser(person)); err == nil {
		if st := stateOf(ctx, sess); st.Password || p != nil {
			s.notePrompt(sess, st)
		} else {
			s.announce(&butlerv1.ShellPrompt{PersonId: person, Host: s.host})
		}
	} else {
		s.announce(&butlerv1.ShellPrompt{PersonId: person, Host: s.host})
	}
	return "", promptGone(language)
}

// passSealed types what was sealed into the program that asks for it, as it is. The seat is held.
func (s *Service) passSealed(ctx context.Context, seat *seat, sess *tmux.Session, in *butlerv1.SealedInput, language string) (screen string, err error) {
	text, err := s.unseal(ctx, seat.person, "", in, language)
	if err != nil {
		return "", err
	}
	if !s.reading(ctx, sess).Password {
		return "", promptGone(language)
	}
	return s.typeInto(ctx, seat, sess, text, language)
}

func promptGone(language string) error {
	return fault.New(fault.Conflict, "%s", say(language, "the password prompt is not there any more, and nothing was typed; what you sent is kept nowhere. Send it again if a program asks for it now",
		"密码提示已不存在，未输入任何内容，您发送的内容也没有保存。如果程序仍在询问，请重新发送"))
}
