package gateway

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/sealed"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// maxPrompts bounds the password prompts that are known, about 200 bytes each.
const maxPrompts = 10_000

// prompts are the password prompts of people's shells: what a person says in the conversation of one is sealed before it is
// written, so that neither the log nor their other devices have it. See package sealed.
type prompts struct {
	now func() time.Time

	mu  sync.Mutex
	all int
	by  map[int64][]*butlerv1.ShellPrompt // by person, one of each host, the one that began last at the end
}

func newPrompts(now func() time.Time) *prompts {
	return &prompts{now: now, by: map[int64][]*butlerv1.ShellPrompt{}}
}

// runPrompts hears of prompts until ctx ends.
func (s *Service) runPrompts(ctx context.Context) error {
	stop, err := s.bus.Listen(sealed.Changed, func(data []byte) {
		var m butlerv1.ShellPrompt
		if err := chat.Decode(data, &m); err != nil || m.GetPersonId() <= 0 {
			s.log.Warn("a notice that cannot be read", "subject", sealed.Changed, "error", err)
			return
		}
		s.prompts.heard(&m)
	})
	if err != nil {
		return err
	}
	defer stop()
	ask := func() {
		data, err := chat.Encode(&butlerv1.ShellPromptsAsked{})
		if err == nil {
			err = s.bus.Notify(sealed.Asked, data)
		}
		if err != nil {
			s.log.Debug("shell-runners cannot be asked for prompts now", "error", err)
		}
	}
	ask()
	unwatch := s.bus.OnReconnect(ask) // notices sent while the connection was away are lost
	defer unwatch()
	<-ctx.Done()
	return ctx.Err()
}

func (p *prompts) heard(m *butlerv1.ShellPrompt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all >= maxPrompts {
		p.forgetOld()
	}
	list := p.by[m.GetPersonId()]
	for i, was := range list {
		if was.GetHost() != m.GetHost() {
			continue
		}
		if bytes.Equal(was.GetKey(), m.GetKey()) { // told again: it did not begin now
			list[i] = m
			return
		}
		list = slices.Delete(list, i, i+1)
		p.all--
		break
	}
	if len(m.GetKey()) > 0 && p.all < maxPrompts {
		list = append(list, m)
		p.all++
	}
	if p.by[m.GetPersonId()] = list; len(list) == 0 {
		delete(p.by, m.GetPersonId())
	}
}

// forgetOld forgets prompts of shell-runners that went without a word. p.mu is held.
func (p *prompts) forgetOld() {
	now := p.now()
	p.all = 0
	for person, list := range p.by {
		list = slices.DeleteFunc(list, func(m *butlerv1.ShellPrompt) bool { return !now.Before(m.GetUntil().AsTime()) })
		if p.by[person] = list; len(list) == 0 {
			delete(p.by, person)
		}
		p.all += len(list)
	}
}

// newest gives the prompt of a conversation that began last, nil when there is none.
func (p *prompts) newest(person, conversation int64) *butlerv1.ShellPrompt {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range slices.Backward(p.by[person]) {
		if m.GetConversationId() == conversation && p.now().Before(m.GetUntil().AsTime()) {
			return m
		}
	}
	return nil
}

// seal gives a message sealed when it answers a prompt, nil when it does not.
func (p *prompts) seal(person, conversation int64, text string) (*butlerv1.SealedInput, error) {
	m := p.newest(person, conversation)
	if m == nil || sealed.ForButler(text) {
		return nil, nil
	}
	box, err := sealed.Seal(text, m.GetKey())
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "what answers a password prompt could not be sealed, so it was not written")
	}
	return &butlerv1.SealedInput{Host: m.GetHost(), Box: box}, nil
}
