package brain

import (
	"context"
	"sync"
)

// slots bounds what runs at the same time, in all and for each person, so that nobody can take the places of everybody.
type slots struct {
	all  chan struct{}
	each int

	mu     sync.Mutex
	people map[int64]*share
}

// share is one person's part of the slots.
type share struct {
	places chan struct{}
	users  int // who holds a place or waits for one
}

// newSlots gives n slots, of which one person has at most a quarter, but one at least.
func newSlots(n int) *slots {
	return &slots{all: make(chan struct{}, n), each: max(n/4, 1), people: map[int64]*share{}}
}

// take waits for a slot for a person; free gives it back. The error is ctx's.
func (s *slots) take(ctx context.Context, person int64) (free func(), err error) {
	s.mu.Lock()
	p := s.people[person]
	if p == nil {
		p = &share{places: make(chan struct{}, s.each)}
		s.people[person] = p
	}
	p.users++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.users--; p.users == 0 {
			delete(s.people, person)
		}
	}
	select {
	case p.places <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
	select {
	case s.all <- struct{}{}:
	case <-ctx.Done():
		<-p.places
		leave()
		return nil, ctx.Err()
	}
	return func() { <-s.all; <-p.places; leave() }, nil
}
