package approval

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// slowDirectory answers when it is let.
type slowDirectory struct {
	asked chan struct{}
	reply chan *butlerv1.ListPeopleResponse
}

func (d slowDirectory) ListPeople(context.Context, *butlerv1.ListPeopleRequest, ...grpc.CallOption) (*butlerv1.ListPeopleResponse, error) {
	d.asked <- struct{}{}
	return <-d.reply, nil
}

// While a change that was announced is being read, what was known before it says nothing about anybody any more.
func TestPeopleAreNotBelievedWhileAChangeIsRead(t *testing.T) {
	t.Parallel()
	d := slowDirectory{make(chan struct{}), make(chan *butlerv1.ListPeopleResponse)}
	p := newPeople(d, time.Now)
	before := &butlerv1.ListPeopleResponse{People: []*butlerv1.Actor{{Id: 7, Name: "alice", Role: "ADMIN"}}}
	after := &butlerv1.ListPeopleResponse{}
	known := make(chan bool)
	find := func() {
		_, _, ok, err := p.find(t.Context(), 7)
		known <- ok && err == nil
	}
	go find()
	<-d.asked
	d.reply <- before
	require.True(t, <-known)

	p.distrust()
	go find()
	<-d.asked // the change is being read
	go find()
	<-d.asked // and this one does not go by what was known before
	d.reply <- after
	d.reply <- after
	require.False(t, <-known)
	require.False(t, <-known)

	go find()
	require.False(t, <-known, "what was read since is believed")
}
