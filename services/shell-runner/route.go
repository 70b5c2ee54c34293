package shell

import (
	"context"
	"os/exec"
	"strings"
	"unicode"

	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// Kinds of a message.
const (
	kindChat    = "chat"
	kindCommand = "command"
	kindInput   = "input"
	kindControl = "control"
)

// Route says what a message is; see the service's definition.
func (s *Service) Route(ctx context.Context, req *butlerv1.RouteRequest) (*butlerv1.RouteResponse, error) {
	said, err := s.unseal(ctx, req.GetPerson().GetId(), req.GetText(), req.GetSealed(), req.GetLanguage())
	if err != nil {
		return nil, err
	}
	text := strings.TrimSpace(said)
	if req.GetSealed() == nil && s.isControl(text) {
		return s.routeControl(ctx, req, text)
	}
	if !req.GetAttached() || text == "" {
		return &butlerv1.RouteResponse{Kind: kindChat}, nil
	}
	if err := s.allowIn(req.GetPerson(), req.GetLanguage()); err != nil {
		return nil, err
	}
	seat := s.seat(req.GetPerson().GetId())
	seat.Lock()
	defer seat.Unlock()
	sess, err := s.tmux.Session(ctx, sessionUser(seat.person))
	if err != nil {
		return nil, err
	}
	if req.GetSealed() != nil && !stateOf(ctx, sess).Password {
		s.shellState(ctx, sess)                   // gateways are told
		return nil, promptGone(req.GetLanguage()) // nor is the shell asked what its words mean
	}
	out, err := s.route(ctx, seat, sess, said, req.GetLanguage())
	if err != nil {
		return nil, err
	}
	out.Shell = s.shellState(ctx, sess)
	if req.GetSealed() != nil && (out.GetKind() != kindInput || !out.GetShell().GetPassword()) {
		return nil, promptGone(req.GetLanguage()) // nothing else gets it
	}
	return out, nil
}

// isControl says whether a message is for Control whatever the shell shows.
func (s *Service) isControl(text string) bool {
	word := firstField(text)
	return controls[word] || s.skills[word] != nil
}

// routeControl is for messages that begin with a known slash word. Keys that need a grant are input.
func (s *Service) routeControl(ctx context.Context, req *butlerv1.RouteRequest, text string) (*butlerv1.RouteResponse, error) {
	if err := s.allowIn(req.GetPerson(), req.GetLanguage()); err != nil {
		return nil, err
	}
	out := &butlerv1.RouteResponse{Kind: kindControl}
	sess, err := s.tmux.Find(sessionUser(req.GetPerson().GetId()))
	if err != nil || sess.Lost() != nil {
		return out, nil // Control says so where one is needed
	}
	if firstField(text) == "/key" {
		seat := s.seat(req.GetPerson().GetId())
		seat.Lock()
		defer seat.Unlock()
		st := stateOf(ctx, sess)
		if keys, err := parseKeys(text, ""); err == nil && !atPrompt(st) && keysNeedGrant(st, keys) && !s.hasGrant(seat, sess, st) {
			if out.Effect, out.Risk, err = s.inspectInput(ctx, sess, ""); err != nil {
				return nil, err
			}
			out.Kind = kindInput
		}
	}
	out.Shell = s.shellState(ctx, sess)
	return out, nil
}

// route says what a message of an attached conversation is that is no control. The seat is held.
func (s *Service) route(ctx context.Context, seat *seat, sess *tmux.Session, text, language string) (*butlerv1.RouteResponse, error) {
	st := stateOf(ctx, sess)
	mode, talk := seat.mode(st)
	trimmed := strings.TrimSpace(text)
	line, marked := markedCommand(trimmed)
	switch {
	case !talk && takesInput(st, mode):
		out := &butlerv1.RouteResponse{Kind: kindInput}
		if !s.granted(seat, sess, st, literal(text)) {
			var err error
			if out.Effect, out.Risk, err = s.inspectInput(ctx, sess, ""); err != nil {
				return nil, err
			}
		}
		return out, nil
	case !atPrompt(st):
		// Something runs. Talk goes on meanwhile; what is plainly a command has to wait.
		if marked || mode == tmux.Interactive || !talk && classify(trimmed, onPath) {
			return nil, busyFault(st, language)
		}
		return &butlerv1.RouteResponse{Kind: kindChat}, nil
	case marked:
		if line == "" {
			return nil, fault.New(fault.Invalid, "%s", say(language, "there is no command after the mark", "标记之后没有命令"))
		}
	case strings.HasPrefix(trimmed, "//"):
		return &butlerv1.RouteResponse{Kind: kindChat}, nil
	case mode == tmux.Interactive: // chosen by the person: every line is one
		line = trimmed
	case s.mistyped(trimmed) != "" && !s.knows(ctx, sess, trimmed):
		return &butlerv1.RouteResponse{Kind: kindControl}, nil
	default:
		if !s.classify(ctx, sess, trimmed) {
			return &butlerv1.RouteResponse{Kind: kindChat}, nil
		}
		line = trimmed
	}
	effect, risk, err := s.inspect(ctx, sess, line)
	if err != nil {
		return nil, err
	}
	return &butlerv1.RouteResponse{Kind: kindCommand, Effect: effect, Risk: risk}, nil
}

// classify asks the shell itself what the words mean. A shell that cannot answer knows no word: the message is talk.
func (s *Service) classify(ctx context.Context, sess *tmux.Session, text string) bool {
	return classify(text, func(word string) bool { return s.knows(ctx, sess, word) })
}

func (s *Service) knows(ctx context.Context, sess *tmux.Session, word string) bool {
	found, err := sess.Resolve(ctx, word)
	return err == nil && found.Kind != ""
}

// onPath stands for the shell's own answer while it is busy.
func onPath(word string) bool {
	_, err := exec.LookPath(word)
	return err == nil || word == "cd" || word == "export" || word == "source"
}

// markedCommand gives the command of a message that is marked as one, "!cmd" or "$ cmd".
func markedCommand(text string) (line string, marked bool) {
	for _, mark := range []string{"!", "！"} { // the second is what Chinese keyboards give
		if line, ok := strings.CutPrefix(text, mark); ok {
			return strings.TrimSpace(line), true
		}
	}
	if text == "$" {
		return "", true
	}
	if line, ok := strings.CutPrefix(text, "$ "); ok {
		return strings.TrimSpace(line), true
	}
	return "", false
}

// literal takes one slash off a message that begins with two: it is no slash command.
func literal(text string) string {
	if strings.HasPrefix(text, "//") {
		return text[1:]
	}
	return text
}

// atPrompt says whether the shell itself is in the foreground and does not wait for a line of its own (read).
func atPrompt(st tmux.State) bool {
	return st.ShellForeground && st.State != tmux.Blocked && st.State != tmux.Running
}

// takesInput says whether what a person writes goes to what runs.
func takesInput(st tmux.State, mode tmux.Mode) bool {
	return st.State == tmux.Blocked || mode == tmux.Interactive && !st.ShellForeground
}

func firstField(text string) string {
	word, _, _ := strings.Cut(strings.TrimLeftFunc(text, unicode.IsSpace), "\n")
	if f := strings.Fields(word); len(f) > 0 {
		return strings.ToLower(f[0])
	}
	return ""
}
