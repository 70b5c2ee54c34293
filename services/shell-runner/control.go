package shell

import (
	"time"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// controlled is what a control call answered: the same call again gets the same, and does nothing.
type controlled struct {
	at   time.Time
	resp *butlerv1.ControlResponse
}

// controlledFor is how long an answer is kept for a repetition.
const controlledFor = 10 * time.Minute

func (s *Service) forgetControlled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, c := range s.done {
		if s.now().Sub(c.at) > controlledFor {
			delete(s.done, key)
		}
	}
}
