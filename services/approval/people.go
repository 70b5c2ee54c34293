package approval

import (
	"context"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

const (
	accessSubject = "butler.access.changed"
	// peopleFresh is how old the list of people may be; a notice of a change makes it old at once.
	peopleFresh   = 15 * time.Second
	peopleTimeout = 3 * time.Second
	peopleRetry   = 500 * time.Millisecond
)

// people knows who can sign in now, and with which role. A role is never taken from a caller.
type people struct {
	client butlerv1.PeopleServiceClient
	now    func() time.Time
	wake   chan struct{}

	mu      sync.Mutex
	list    []*butlerv1.Actor // replaced, never changed
	at      time.Time         // when it was read
	changes int               // counts what was announced, or may have been missed
	read    int               // changes when the reading of list began
}

func newPeople(client butlerv1.PeopleServiceClient, now func() time.Time) *people {
	return &people{client: client, now: now, wake: make(chan struct{}, 1)}
}

// listen hears of changes until stop is called.
func (p *people) listen(b *bus.Bus) (stop func(), err error) {
	unlisten, err := b.Listen(accessSubject, func([]byte) { p.distrust() })
	if err != nil {
		return nil, err
	}
	unwatch := b.OnReconnect(p.distrust) // what was announced meanwhile is lost
	return func() { unwatch(); unlisten() }, nil
}

func (p *people) distrust() {
	p.mu.Lock()
	p.changes++
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// refresh keeps the list fresh, so that decisions need not wait for it, until ctx ends.
func (p *people) refresh(ctx context.Context) {
	for {
		pause := peopleFresh / 2
		if _, err := p.fetch(ctx); err != nil {
			pause = peopleRetry
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (p *people) ready(ctx context.Context) error {
	_, err := p.all(ctx)
	return err
}

// all gives everybody, as they are now.
func (p *people) all(ctx context.Context) ([]*butlerv1.Actor, error) {
	p.mu.Lock()
	list, fresh := p.list, p.read == p.changes && p.list != nil && p.now().Sub(p.at) < peopleFresh
	p.mu.Unlock()
	if fresh {
		return list, nil
	}
	return p.fetch(ctx)
}

func (p *people) fetch(ctx context.Context) ([]*butlerv1.Actor, error) {
	ctx, cancel := context.WithTimeout(ctx, peopleTimeout)
	defer cancel()
	p.mu.Lock()
	changes := p.changes // what is announced from now on makes old what is being read
	p.mu.Unlock()
	began := p.now()
	resp, err := p.client.ListPeople(ctx, &butlerv1.ListPeopleRequest{})
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "who may decide is not known now: the gateway does not answer; try again")
	}
	if changes < p.read || began.Before(p.at) {
		return p.list, nil // a later reading was faster
	}
	p.list, p.at, p.read = resp.GetPeople(), began, changes
	if p.list == nil {
		p.list = []*butlerv1.Actor{}
	}
	return p.list, nil
}

// find gives one person as they are now; false when they cannot sign in any more.
func (p *people) find(ctx context.Context, id int64) (*butlerv1.Actor, []*butlerv1.Actor, bool, error) {
	all, err := p.all(ctx)
	if err != nil {
		return nil, nil, false, err
	}
	for _, a := range all {
		if a.GetId() == id {
			return a, all, true, nil
		}
	}
	return nil, all, false, nil
}
