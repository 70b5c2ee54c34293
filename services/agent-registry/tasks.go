package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/task"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

const (
	// maxChain bounds through how many agents a task comes.
	maxChain = 8
	// watchTick is how often a watched task is looked at although nothing was heard: that nobody is there shows by silence.
	watchTick = time.Second
)

// CreateTask gives an agent something to do.
func (s *Service) CreateTask(ctx context.Context, req *butlerv1.CreateTaskRequest) (*butlerv1.CreateTaskResponse, error) {
	if err := s.dispatches(); err != nil {
		return nil, fault.GRPC(err)
	}
	t, err := s.newTask(req)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	ref := refOf(t)
	if stands, _, found, err := s.loadTask(ctx, ref); err != nil || found {
		return created(s, stands, err) // the same is asked again, whatever became of the agent since
	}
	a, err := s.agentFor(ctx, t)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	if err := s.bus.EnsureAgentConsumer(ctx, a.id, a.concurrency); err != nil {
		return nil, fault.GRPC(fault.Wrap(err, fault.Unavailable, "the task cannot be given to the agent now; try again"))
	}
	_, err = s.append(ctx, t, 0, "")
	if errors.Is(err, bus.ErrFenced) {
		stands, _, _, err := s.loadTask(ctx, ref)
		return created(s, stands, err)
	}
	return created(s, t, err)
}

func created(s *Service, t *butlerv1.Task, err error) (*butlerv1.CreateTaskResponse, error) {
	if err != nil {
		return nil, fault.GRPC(err)
	}
	return &butlerv1.CreateTaskResponse{Task: s.view(t)}, nil
}

// newTask checks a request and gives the task that it asks for.
func (s *Service) newTask(req *butlerv1.CreateTaskRequest) (*butlerv1.Task, error) {
	now := s.now()
	t := &butlerv1.Task{
		Id: req.GetId(), AgentId: req.GetAgentId(), Status: task.Open, Capability: req.GetCapability(), Input: req.GetInput(),
		IdempotencyKey: req.GetIdempotencyKey(), CreatedAt: timestamppb.New(now), Deadline: req.GetDeadline(),
		MaxAttempts: req.GetMaxAttempts(), Requester: req.GetRequester(), Chain: req.GetChain(), Waiter: req.GetWaiter(),
	}
	if t.GetIdempotencyKey() == "" {
		t.IdempotencyKey = t.GetId()
	}
	if t.GetMaxAttempts() == 0 {
		t.MaxAttempts = task.DefaultAttempts
	}
	if t.GetDeadline() == nil {
		t.Deadline = timestamppb.New(now.Add(task.DefaultDeadline))
	}
	deadline := t.GetDeadline().AsTime()
	switch {
	case !task.ValidWord(t.GetId()):
		return nil, fault.New(fault.Invalid, "the id of a task has 1 to 64 characters of A–Z, a–z, 0–9, - and _")
	case t.GetAgentId() <= 0:
		return nil, errNoAgent()
	case len(t.GetIdempotencyKey()) > 256 || !utf8.ValidString(t.GetIdempotencyKey()):
		return nil, fault.New(fault.Invalid, "the idempotency key of a task has at most 256 bytes")
	case t.GetMaxAttempts() < 1 || t.GetMaxAttempts() > task.MaxAttempts:
		return nil, fault.New(fault.Invalid, "a task has 1 to %d attempts", task.MaxAttempts)
	case !deadline.After(now) || deadline.Sub(now) > task.MaxDeadline:
		return nil, fault.New(fault.Invalid, "the deadline of a task is in the future, and at most seven days away")
	case len(t.GetChain()) > maxChain:
		return nil, fault.New(fault.Invalid, "a task comes through at most %d others", maxChain)
	}
	return t, nil
}

// agentFor gives the agent of a task, checked: it is there, may work, and can do what is asked.
func (s *Service) agentFor(ctx context.Context, t *butlerv1.Task) (agent, error) {
	find := func(agents []agent) int {
		return slices.IndexFunc(agents, func(a agent) bool { return a.id == t.GetAgentId() })
	}
	agents := s.agents()
	i := find(agents)
	if i < 0 {
		var err error
		if agents, err = s.list(ctx); err != nil {
			return agent{}, err
		}
		if i = find(agents); i < 0 {
			return agent{}, errNoAgent()
		}
	}
	a := agents[i]
	if a.disabled {
		return agent{}, fault.New(fault.Conflict, "the agent %s is disabled", a.name)
	}
	input, err := valueJSON(t.GetInput())
	if err != nil {
		return agent{}, err
	}
	if len(input) > task.MaxValue {
		return agent{}, fault.New(fault.TooLarge, "the input of a task has at most %d KiB", task.MaxValue>>10)
	}
	if t.GetCapability() == "" && len(a.capabilities) == 0 {
		return a, nil
	}
	c := slices.IndexFunc(a.capabilities, func(c capability) bool { return c.Name == t.GetCapability() })
	if c < 0 {
		return agent{}, fault.New(fault.Invalid, "the agent %s does not have the capability %q", a.name, t.GetCapability())
	}
	if schema := a.capabilities[c].Schema; schema != "" {
		if err := s.schemas.check(schema, input); err != nil {
			return agent{}, err
		}
	}
	return a, nil
}

// valueJSON gives a JSON value as text; nothing for none.
func valueJSON(v proto.Message) ([]byte, error) {
	if v == nil || !v.ProtoReflect().IsValid() {
		return nil, nil
	}
	data, err := protojson.Marshal(v)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "this is no JSON value")
	}
	return data, nil
}

// GetTask gives a task as it stands.
func (s *Service) GetTask(ctx context.Context, req *butlerv1.GetTaskRequest) (*butlerv1.GetTaskResponse, error) {
	t, _, err := s.taskThere(ctx, task.Ref{Agent: req.GetAgentId(), ID: req.GetId()})
	if err != nil {
		return nil, fault.GRPC(err)
	}
	return &butlerv1.GetTaskResponse{Task: s.view(t)}, nil
}

// CancelTask ends a task that is open, and gives it as it stands then.
func (s *Service) CancelTask(ctx context.Context, req *butlerv1.CancelTaskRequest) (*butlerv1.CancelTaskResponse, error) {
	ref := task.Ref{Agent: req.GetAgentId(), ID: req.GetId()}
	reason, err := line(req.GetReason(), "reason", MaxDescriptionRunes)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	if reason == "" {
		reason = "It was cancelled."
	}
	t, seq, err := s.taskThere(ctx, ref)
	for err == nil && t.GetStatus() == task.Open {
		var ended *butlerv1.Task
		ended, err = s.end(ctx, t, seq, task.Cancelled, &butlerv1.TaskOutcome{Code: task.ByPerson, Reason: reason, By: req.GetBy()}, "")
		if err == nil {
			t = ended
		} else if errors.Is(err, bus.ErrFenced) {
			t, seq, err = s.taskThere(ctx, ref)
		}
	}
	if err != nil {
		return nil, fault.GRPC(err)
	}
	return &butlerv1.CancelTaskResponse{Task: s.view(t)}, nil
}

// WatchTask gives a task whenever something about it changed, until it is over.
func (s *Service) WatchTask(req *butlerv1.WatchTaskRequest, stream grpc.ServerStreamingServer[butlerv1.WatchTaskResponse]) error {
	ctx, ref := stream.Context(), task.Ref{Agent: req.GetAgentId(), ID: req.GetId()}
	changed, stop := s.book.watch(ref)
	defer stop()
	tick := time.NewTicker(watchTick)
	defer tick.Stop()
	var last *butlerv1.TaskView
	for {
		t, _, err := s.taskThere(ctx, ref)
		if err != nil {
			return fault.GRPC(err)
		}
		if v := s.view(t); !proto.Equal(v, last) {
			last = v
			if err := stream.Send(&butlerv1.WatchTaskResponse{Task: v}); err != nil {
				return err
			}
		}
		if t.GetStatus() != task.Open {
			return nil
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return fault.GRPC(ctx.Err())
		}
	}
}

// AnswerTask answers a question. The answer that was first is given.
func (s *Service) AnswerTask(ctx context.Context, req *butlerv1.AnswerTaskRequest) (*butlerv1.AnswerTaskResponse, error) {
	ref := task.Ref{Agent: req.GetAgentId(), ID: req.GetId()}
	if !task.ValidWord(req.GetQuestion()) || utf8.RuneCountInString(req.GetText()) > task.MaxText {
		return nil, fault.GRPC(fault.New(fault.Invalid, "name the question, and answer in at most %d characters", task.MaxText))
	}
	t, _, err := s.taskThere(ctx, ref)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	if t.GetStatus() != task.Open {
		return nil, fault.GRPC(fault.New(fault.Conflict, "the task is over: nobody waits for the answer"))
	}
	a := &butlerv1.TaskAnswer{
		Question: req.GetQuestion(), Approved: req.GetApproved(), Text: req.GetText(), By: req.GetBy(), At: timestamppb.New(s.now()),
	}
	data, err := chat.Encode(a)
	if err != nil {
		return nil, fault.GRPC(err)
	}
	subject := ref.Answer(req.GetQuestion())
	_, err = s.bus.Append(ctx, bus.NewEvent(task.TypeAnswer, s.bus.Source(), subject, data), bus.Expect{Filter: subject})
	if errors.Is(err, bus.ErrFenced) {
		var first bus.Stored
		if first, _, err = s.bus.Last(ctx, bus.TaskStream, subject); err == nil {
			err = chat.Decode(first.Data, a)
		}
	}
	if err != nil {
		return nil, fault.GRPC(err)
	}
	return &butlerv1.AnswerTaskResponse{Answer: a}, nil
}

// dispatches says whether this replica has a log of tasks.
func (s *Service) dispatches() error {
	if s.bus == nil {
		return fault.New(fault.Unavailable, "this registry has no log of tasks")
	}
	return s.started()
}

// taskThere reads a task from the log; fault.NotFound when there is none.
func (s *Service) taskThere(ctx context.Context, ref task.Ref) (*butlerv1.Task, uint64, error) {
	if s.bus == nil {
		return nil, 0, s.dispatches()
	}
	if !task.ValidWord(ref.ID) || ref.Agent <= 0 {
		return nil, 0, fault.New(fault.NotFound, "there is no such task")
	}
	t, seq, found, err := s.loadTask(ctx, ref)
	if err == nil && !found {
		err = fault.New(fault.NotFound, "there is no such task")
	}
	return t, seq, err
}

// loadTask reads a task from the log.
func (s *Service) loadTask(ctx context.Context, ref task.Ref) (t *butlerv1.Task, seq uint64, found bool, err error) {
	ev, found, err := s.bus.Last(ctx, bus.TaskStream, ref.Subject())
	if err != nil || !found {
		return nil, 0, false, err
	}
	t, err = decodeTask(ev)
	return t, ev.Seq, err == nil, err
}

func decodeTask(ev bus.Stored) (*butlerv1.Task, error) {
	t := &butlerv1.Task{}
	if ev.Type != task.TypeTask {
		return nil, fmt.Errorf("registry: %s holds an event of type %q", ev.Subject, ev.Type)
	}
	if err := chat.Decode(ev.Data, t); err != nil {
		return nil, fmt.Errorf("registry: %s: %w", ev.Subject, err)
	}
	if refOf(t).Subject() != ev.Subject {
		return nil, fmt.Errorf("registry: %s holds another task", ev.Subject)
	}
	return t, nil
}

func refOf(t *butlerv1.Task) task.Ref { return task.Ref{Agent: t.GetAgentId(), ID: t.GetId()} }

// view gives a task with what is known of how it goes.
func (s *Service) view(t *butlerv1.Task) *butlerv1.TaskView {
	if t.GetStatus() != task.Open {
		return &butlerv1.TaskView{Task: t, State: task.Over}
	}
	v, ok := s.book.get(refOf(t))
	if !ok {
		v = &butlerv1.TaskView{Task: t, State: task.Waiting}
	}
	if v.GetState() == task.Waiting && s.now().Sub(t.GetCreatedAt().AsTime()) >= noAgentAfter {
		if _, online := s.presence.lastHeard(t.GetAgentId()); !online {
			v.State = task.Nobody
		}
	}
	return v
}

// append writes a task as it stands after the event of sequence seq; 0 for the first. id is the event's, new when empty.
func (s *Service) append(ctx context.Context, t *butlerv1.Task, seq uint64, id string) (uint64, error) {
	data, err := chat.Encode(t)
	if err != nil {
		return 0, err
	}
	ev := bus.NewEvent(task.TypeTask, s.bus.Source(), refOf(t).Subject(), data)
	if id != "" {
		ev.ID = id
	}
	return s.bus.Append(ctx, ev, bus.Expect{Filter: ev.Subject, Seq: seq})
}

// end ends an open task that stands at seq. bus.ErrFenced: something else ended it.
func (s *Service) end(ctx context.Context, t *butlerv1.Task, seq uint64, status string, o *butlerv1.TaskOutcome, id string) (*butlerv1.Task, error) {
	ended := proto.CloneOf(t)
	o.EndedAt = timestamppb.New(s.now())
	ended.Status, ended.Outcome = status, o
	if _, err := s.append(ctx, ended, seq, id); err != nil {
		return nil, err
	}
	return ended, nil
}

// endAll fails the open tasks of an agent that was deleted. What it misses ends at its deadline.
func (s *Service) endAll(ctx context.Context, id int64) {
	for _, ref := range s.book.of(id) {
		t, seq, found, err := s.loadTask(ctx, ref)
		if err == nil && found && t.GetStatus() == task.Open {
			_, err = s.end(ctx, t, seq, task.Failed, &butlerv1.TaskOutcome{Code: task.Deleted, Reason: "The agent was deleted."}, "")
		}
		if err != nil && !errors.Is(err, bus.ErrFenced) {
			s.log.WarnContext(ctx, "a task of a deleted agent ends at its deadline", "task", ref.String(), "error", err)
		}
	}
}
