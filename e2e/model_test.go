package e2e

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/butlerhub/butler/internal/modeltest"
)

// script is the model endpoint of a test. It lives in the test's process, so it survives every kill and knows how often
// the model was called for which message. Messages of a test differ from one another, so that each is known by its text.
type script struct {
	*modeltest.Server

	mu    sync.Mutex
	calls map[string][]time.Time
	reply func(text string) modeltest.Reply
}

func startModel(t testing.TB) *script {
	t.Helper()
	s := &script{Server: modeltest.Start(t), calls: map[string][]time.Time{}}
	s.Record(false)
	s.Func(func(r *modeltest.Request) modeltest.Reply {
		text := r.LastUser()
		s.mu.Lock()
		s.calls[text] = append(s.calls[text], time.Now())
		reply := s.reply
		s.mu.Unlock()
		if reply == nil {
			return nil
		}
		return reply(text)
	})
	return s
}

// answers says how the model answers from now on: n chunks, each after a pause.
func (s *script) answers(n int, pause time.Duration) {
	s.Default(modeltest.EchoSlow(n, pause))
}

// by has every reply made by f; where it gives nil, the default answers.
func (s *script) by(f func(text string) modeltest.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reply = f
}

// asked gives when the model was called for a message.
func (s *script) asked(text string) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.calls[text]...)
}

// longText makes an answer of about n bytes in pieces, with words of all sizes in two scripts.
func longText(n, pieces int) modeltest.Reply {
	return modeltest.Reply{modeltest.Text(modeltest.Split(strings.Repeat("The answer goes on — 你好. ", n/30+1), pieces)...)}
}
