package registry

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	sdk "github.com/butlerhub/butler/pkg/agent"
	"github.com/butlerhub/butler/pkg/task"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// start runs an agent of the SDK, and gives what ends it and waits for that.
func startAgent(t *testing.T, r *rig, file string, drain time.Duration, handlers map[string]sdk.Handler) (a *sdk.Agent, stop func()) {
	t.Helper()
	a, err := sdk.New(sdk.Config{Credentials: file, URL: r.url, Worker: "sdk", DrainTimeout: drain})
	require.NoError(t, err)
	for name, h := range handlers {
		a.Handle(name, h)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-ended)
		}
	}
	t.Cleanup(stop)
	return a, stop
}

func TestAnAgentOfTheSDK(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	names := []string{"echo", "panics", "fails", "again", "waits", "asks", "large"}
	req := &butlerv1.AddAgentRequest{Name: "seven"}
	for _, name := range append(names, "nobody") {
		req.Capabilities = append(req.Capabilities, &butlerv1.AgentCapability{Name: name})
	}
	out, file := r.add(t, req)
	id := out.GetAgent().GetId()
	cancelled, tries := make(chan error, 1), atomic.Int32{}
	a, _ := startAgent(t, r, file, time.Minute, map[string]sdk.Handler{
		"echo": func(ctx context.Context, t *sdk.Task) (any, error) {
			var in string
			err := t.Input(&in)
			t.Progress(ctx, "echoing")
			return "you said " + in, err
		},
		"panics": func(context.Context, *sdk.Task) (any, error) { panic("oh") },
		"fails":  func(context.Context, *sdk.Task) (any, error) { return nil, errors.New("the disk is full") },
		"again": func(context.Context, *sdk.Task) (any, error) {
			if tries.Add(1) < 3 {
				return nil, sdk.Retry(errors.New("not yet"), time.Millisecond)
			}
			return "at last", nil
		},
		"waits": func(ctx context.Context, _ *sdk.Task) (any, error) {
			<-ctx.Done()
			cancelled <- context.Cause(ctx)
			return nil, ctx.Err()
		},
		"asks": func(ctx context.Context, t *sdk.Task) (any, error) {
			answer, err := t.Ask(ctx, "restart", "May I?")
			return answer, err
		},
		"large": func(context.Context, *sdk.Task) (any, error) { return make([]byte, task.MaxValue), nil },
	})
	require.Equal(t, id, a.ID())
	for _, name := range append(names, "nobody") {
		r.create(t, id, name, func(q *butlerv1.CreateTaskRequest) { q.Capability = name })
	}
	ended := func(name string) *butlerv1.Task { return r.until(t, id, name, over).GetTask() }
	require.Equal(t, "you said look", ended("echo").GetOutcome().GetOutput().GetStringValue())
	require.Equal(t, "sdk", ended("echo").GetOutcome().GetWorker())
	require.Contains(t, ended("panics").GetOutcome().GetReason(), "panicked: oh")
	require.Equal(t, "the disk is full", ended("fails").GetOutcome().GetReason())
	require.Contains(t, ended("nobody").GetOutcome().GetReason(), "no handler")
	require.Contains(t, ended("large").GetOutcome().GetReason(), "at most 256")
	require.Equal(t, "at last", ended("again").GetOutcome().GetOutput().GetStringValue())
	require.EqualValues(t, 3, ended("again").GetOutcome().GetAttempt())

	r.until(t, id, "asks", func(v *butlerv1.TaskView) bool { return len(v.GetQuestions()) == 1 })
	_, err := r.AnswerTask(t.Context(), &butlerv1.AnswerTaskRequest{AgentId: id, Id: "asks", Question: "restart", Approved: true, Text: "go on"})
	require.NoError(t, err)
	require.Equal(t, "go on", ended("asks").GetOutcome().GetOutput().GetStructValue().GetFields()["Text"].GetStringValue())

	r.until(t, id, "waits", func(v *butlerv1.TaskView) bool { return v.GetState() == task.Running })
	_, err = r.CancelTask(t.Context(), &butlerv1.CancelTaskRequest{AgentId: id, Id: "waits"})
	require.NoError(t, err)
	select {
	case cause := <-cancelled:
		require.ErrorIs(t, cause, sdk.ErrCancelled)
	case <-time.After(20 * time.Second):
		t.Fatal("a cancelled task goes on")
	}
	list, err := r.ListAgents(t.Context(), &butlerv1.ListAgentsRequest{OnlineOnly: true})
	require.NoError(t, err)
	require.Len(t, list.GetAgents(), 1)
}

// An agent that stops lets its work end; what does not end in time goes to another replica at once.
func TestAnAgentOfTheSDKStops(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	out, file := r.add(t, &butlerv1.AddAgentRequest{Name: "seven"})
	id := out.GetAgent().GetId()
	begun, finish := make(chan string, 2), make(chan struct{})
	_, stop := startAgent(t, r, file, 100*time.Millisecond, map[string]sdk.Handler{"": func(ctx context.Context, t *sdk.Task) (any, error) {
		begun <- t.ID
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}})
	r.create(t, id, "t1")
	require.Equal(t, "t1", <-begun)
	stop()
	_, _ = startAgent(t, r, file, time.Minute, map[string]sdk.Handler{"": func(_ context.Context, t *sdk.Task) (any, error) {
		begun <- t.ID
		<-finish
		return t.Attempt, nil
	}})
	began := time.Now()
	require.Equal(t, "t1", <-begun)
	require.Less(t, time.Since(began), 10*time.Second)
	close(finish)
	require.EqualValues(t, 2, r.until(t, id, "t1", over).GetTask().GetOutcome().GetOutput().GetNumberValue())
}

func TestTheExampleRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	out, file := r.add(t, &butlerv1.AddAgentRequest{Name: "disk"})
	program := filepath.Join(t.TempDir(), "agent")
	said, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../examples/agent").CombinedOutput()
	require.NoError(t, err, "%s", said)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), "AGENT_CREDENTIALS="+file, "NATS_URL="+r.url)
	require.NoError(t, cmd.Start())
	id := out.GetAgent().GetId()
	input, err := structpb.NewValue(map[string]any{"path": "/"})
	require.NoError(t, err)
	r.create(t, id, "t1", func(q *butlerv1.CreateTaskRequest) { q.Input = input })
	done := r.until(t, id, "t1", over).GetTask()
	require.Equal(t, task.Done, done.GetStatus(), done.GetOutcome().GetReason())
	require.Contains(t, done.GetOutcome().GetOutput().GetStructValue().GetFields()["df"].GetStringValue(), "%")
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait(), "it ends in order")
}

func TestCredentialsThatAreNone(t *testing.T) {
	t.Parallel()
	_, err := sdk.New(sdk.Config{Credentials: filepath.Join(t.TempDir(), "none")})
	require.Error(t, err)
	file := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	_, err = sdk.New(sdk.Config{Credentials: file})
	require.Error(t, err)
}
