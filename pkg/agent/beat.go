package agent

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/task"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// hurry makes the agent beat at once.
func (a *Agent) hurry() {
	select {
	case a.beatNow <- struct{}{}:
	default:
	}
}

// beat says that the agent is alive, and asks for news, until ctx ends.
func (a *Agent) beat(ctx context.Context) {
	sub, err := a.nc.Subscribe(task.Notice(a.id), func(*nats.Msg) { a.hurry() })
	if err != nil {
		a.log.Warn("news come only with each beat", "error", err)
	} else {
		defer func() { _ = sub.Unsubscribe() }()
	}
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		a.beatOnce(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-a.beatNow:
		}
	}
}

func (a *Agent) beatOnce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	a.mu.Lock()
	beat := &butlerv1.AgentBeat{Worker: a.config.Worker}
	for id := range a.running {
		beat.Tasks = append(beat.Tasks, id)
	}
	a.mu.Unlock()
	slices.Sort(beat.Tasks)
	data, err := chat.Encode(beat)
	if err != nil {
		return
	}
	out, err := a.nc.RequestMsgWithContext(ctx, a.message(task.Beat(a.id), task.TypeBeat, data))
	if err != nil {
		a.log.Debug("a beat was not answered", "error", err)
		return
	}
	answer := &butlerv1.AgentBeatAnswer{}
	if err := chat.Decode(out.Data, answer); err != nil {
		a.log.Warn("the answer to a beat cannot be read", "error", err)
		return
	}
	for _, id := range answer.GetStop() {
		a.stop(id, ErrCancelled)
	}
	for _, given := range answer.GetAnswers() {
		a.mu.Lock()
		t := a.running[given.GetTask()]
		a.mu.Unlock()
		if t != nil {
			said := given.GetAnswer()
			t.answer(said.GetQuestion(), Answer{said.GetApproved(), said.GetText(), said.GetBy().GetName()})
		}
	}
}

// stop ends the work on a task, if there is any.
func (a *Agent) stop(id string, cause error) {
	a.mu.Lock()
	t := a.running[id]
	a.mu.Unlock()
	if t != nil {
		t.cancel(cause)
	}
}
