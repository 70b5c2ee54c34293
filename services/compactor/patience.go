package compactor

import (
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/chat"
)

// Times that are waited after failures: each one doubles the time.
const (
	firstWait = 30 * time.Second
	lastWait  = time.Hour
	// lastModelWait is for a model that does not answer: it concerns every session, and people wait for it to be mended.
	lastModelWait = 10 * time.Minute
	mostWaiting   = 10_000 // sessions of which failures are remembered
)

// patience says how long a session, or the model, is left alone. What it remembers is this process's: at worst another
// replica tries once more.
type patience struct {
	mu       sync.Mutex
	sessions map[chat.Session]wait
	model    wait
	failures int // in a row
}

type wait struct {
	fails int
	until time.Time
}

func (w wait) longer(now time.Time, last time.Duration) wait {
	w.until = now.Add(min(firstWait<<min(w.fails, 20), last))
	w.fails++
	return w
}

func newPatience() *patience { return &patience{sessions: map[chat.Session]wait{}} }

// left says how long a session is to be left alone, 0 for not at all.
func (p *patience) left(now time.Time, session chat.Session) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.model.until.Sub(now), p.sessions[session].until.Sub(now), 0)
}

// failed takes a failure and gives how many there were in a row; model says that it is not the session's.
func (p *patience) failed(now time.Time, session chat.Session, model bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures++
	if model {
		p.model = p.model.longer(now, lastModelWait)
		return p.failures
	}
	if len(p.sessions) >= mostWaiting {
		for s, w := range p.sessions {
			if now.After(w.until) {
				delete(p.sessions, s)
			}
		}
	}
	if len(p.sessions) < mostWaiting {
		p.sessions[session] = p.sessions[session].longer(now, lastWait)
	}
	return p.failures
}

// succeeded forgets the failures of a session and of the model.
func (p *patience) succeeded(session chat.Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, session)
	p.model, p.failures = wait{}, 0
}
