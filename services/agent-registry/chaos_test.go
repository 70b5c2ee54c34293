package registry

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sdk "github.com/butlerhub/butler/pkg/agent"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/task"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Replicas of agents and the registry come and go while many tasks are done: each ends once, and none is lost.
func TestNoTaskIsLostWhilePartsStop(t *testing.T) {
	t.Parallel()
	const agents, each = 3, 100
	r := newRig(t)
	handlers := map[string]sdk.Handler{"": func(ctx context.Context, t *sdk.Task) (any, error) {
		select {
		case <-time.After(5 * time.Millisecond): // the work
			return t.ID, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}}
	ids, stops := make([]int64, agents), make([]func(), agents)
	files := make([]string, agents)
	for i := range agents {
		out, file := r.add(t, &butlerv1.AddAgentRequest{Name: fmt.Sprintf("a%d", i)})
		ids[i], files[i] = out.GetAgent().GetId(), file
		_, _ = startAgent(t, r, file, time.Minute, handlers)
		_, stops[i] = startAgent(t, r, file, time.Nanosecond, handlers)
	}
	for n := range each {
		for i, id := range ids {
			r.create(t, id, fmt.Sprintf("t%d", n))
			if n%25 == 10+i {
				stops[i]() // with what it works on
				_, stops[i] = startAgent(t, r, files[i], time.Nanosecond, handlers)
			}
		}
		if n%40 == 20 {
			r.stop()
			r.run(t)
		}
	}
	for _, id := range ids {
		for n := range each {
			name := fmt.Sprintf("t%d", n)
			v := r.until(t, id, name, over)
			require.Equal(t, task.Done, v.GetTask().GetStatus(), v.GetTask().GetOutcome().GetReason())
			require.Equal(t, name, v.GetTask().GetOutcome().GetOutput().GetStringValue())
		}
	}
	events, err := r.bus.Load(t.Context(), bus.TaskStream, "butler.task.>", 0, 0)
	require.NoError(t, err)
	require.Len(t, events, agents*each)
}
