package shell

import (
	"context"
	"errors"
	"slices"

	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// ListShells gives the sessions of this host.
func (s *Service) ListShells(ctx context.Context, req *butlerv1.ListShellsRequest) (*butlerv1.ListShellsResponse, error) {
	out := &butlerv1.ListShellsResponse{}
	for _, sess := range s.tmux.Sessions() {
		if req.GetPerson() == 0 || personOf(sess) == req.GetPerson() {
			st := s.shellState(ctx, sess)
			for _, j := range s.jobsIn(sess.Generation()) {
				text, _ := s.redactor.String(j.req.GetEffect().GetCommand())
				st.Commands = append(st.Commands, &butlerv1.RunningCommand{ApprovalId: j.id, Command: text, BeganAt: j.use.GetTakenAt()})
			}
			slices.SortFunc(st.Commands, func(a, b *butlerv1.RunningCommand) int {
				return a.GetBeganAt().AsTime().Compare(b.GetBeganAt().AsTime())
			})
			out.Shells = append(out.Shells, st)
		}
	}
	slices.SortFunc(out.Shells, func(a, b *butlerv1.ShellState) int { return int(a.GetPerson() - b.GetPerson()) })
	return out, nil
}

// CloseShell ends a person's session, and whatever runs in it.
func (s *Service) CloseShell(ctx context.Context, req *butlerv1.CloseShellRequest) (*butlerv1.CloseShellResponse, error) {
	sess, err := s.tmux.Find(sessionUser(req.GetPerson()))
	if _, gone := errors.AsType[*tmux.SessionNotFoundError](err); gone || fault.CodeOf(err) == fault.NotFound {
		return &butlerv1.CloseShellResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	generation := sess.Generation()
	if err := sess.Close(ctx); err != nil {
		return nil, err
	}
	for _, j := range s.jobsIn(generation) {
		s.finish(j, "unknown", nil, "the session was closed while it ran")
	}
	s.log.InfoContext(ctx, "a shell was closed", "by", req.GetBy().GetId(), "person", req.GetPerson())
	s.logClosed(ctx, req.GetPerson(), generation, req.GetBy())
	return &butlerv1.CloseShellResponse{}, nil
}
