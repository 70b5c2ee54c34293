package shell

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/redact"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/guard"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// maxScript bounds the part of a script that is digested; a longer one counts as unreadable, which the guard's verdict on
// running scripts does not make less grave.
const maxScript = 64 << 20

// Inspect gives the exact effect of a command line; see the service's definition.
func (s *Service) Inspect(ctx context.Context, req *butlerv1.InspectRequest) (*butlerv1.InspectResponse, error) {
	if err := s.allow(req.GetPerson()); err != nil {
		return nil, err
	}
	seat := s.seat(req.GetPerson().GetId())
	seat.Lock()
	defer seat.Unlock()
	sess, err := s.tmux.Session(ctx, sessionUser(seat.person))
	if err != nil {
		return nil, err
	}
	out := &butlerv1.InspectResponse{}
	if req.GetProgram() != "" {
		out.Effect, out.Risk, err = s.inspectInput(ctx, sess, req.GetProgram())
	} else {
		out.Effect, out.Risk, err = s.inspect(ctx, sess, req.GetCommand())
	}
	if err != nil {
		return nil, err
	}
	out.Shell = s.shellState(ctx, sess)
	return out, nil
}

// inspect says what the text would do in the session now. The seat is held.
func (s *Service) inspect(ctx context.Context, sess *tmux.Session, text string) (*butlerv1.Effect, *butlerv1.Risk, error) {
	switch {
	case text == "":
		return nil, nil, fault.New(fault.Invalid, "there is no command")
	case !utf8.ValidString(text):
		return nil, nil, fault.New(fault.Invalid, "a command is text in UTF-8")
	case len(text) > guard.MaxText:
		return nil, nil, fault.New(fault.TooLarge, "a command has at most %d bytes; put longer ones into a script", guard.MaxText)
	}
	snap, err := sess.Snapshot(ctx)
	if err != nil {
		return nil, nil, s.busy(ctx, sess, err)
	}
	dir, home, name := sess.Dir(), snap.Variables["HOME"], s.osUser(snap)
	seen := s.guard.Load().Check(guard.Request{
		Text: text, Dir: dir, Home: home, User: name,
		Session: guard.Session{Aliases: snap.Aliases, Functions: snap.Definitions, Exports: snap.Variables, Options: snap.Options},
	})
	effect := &butlerv1.Effect{
		Version: 1, Kind: approval.KindCommand, Command: text, Dir: dir, Host: s.host, User: name,
		Environment: s.environment(snap), Session: sess.Generation(),
		Definitions: s.definitions(snap),
	}
	for _, args := range seen.Commands {
		effect.Argv = append(effect.Argv, &butlerv1.Argv{Args: args})
	}
	for _, path := range seen.Scripts {
		effect.Scripts = append(effect.Scripts, &butlerv1.ScriptDigest{Path: path, Sha256: digestFile(path)})
	}
	risk := riskOf(seen)
	if snap.Truncated && risk.GetVerdict() == string(guard.Run) {
		risk.Verdict, risk.Level = string(guard.Ask), string(guard.Medium)
		risk.Reasons = append(risk.Reasons, &butlerv1.RiskReason{
			Code: "session-too-large", Text: "not all that is defined in this shell could be looked at: it is too much, or has odd characters",
			TextZh: "无法检查此 shell 中的全部定义：数量过多，或含有特殊字符",
		})
	}
	if s.settings.Load().GuardDisabled && risk.GetVerdict() == string(guard.Ask) {
		risk.Verdict, risk.Level = string(guard.Run), string(guard.Low)
	}
	return effect, risk, nil
}

// environment gives the variables of an effect as they may be shown: an effect is kept in the log and told to everybody
// who may decide it. The digest among the definitions covers their values.
func (s *Service) environment(snap tmux.Snapshot) map[string]string {
	out := map[string]string{}
	for name, value := range snap.Variables {
		if redact.Name(name) && value != "" {
			out[name] = redact.Marker("secret")
		} else {
			out[name], _ = s.redactor.String(value)
		}
	}
	return out
}

// definitions are what the shell's names mean, as far as that is not what everybody expects, as they may be shown.
func (s *Service) definitions(snap tmux.Snapshot) []*butlerv1.ShellDefinition {
	var out []*butlerv1.ShellDefinition
	for kind, texts := range map[string]map[string]string{"alias": snap.Aliases, "function": snap.Definitions} {
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			text, _ := s.redactor.String(texts[name])
			out = append(out, &butlerv1.ShellDefinition{Name: name, Kind: kind, Text: text})
		}
	}
	slices.SortStableFunc(out, func(a, b *butlerv1.ShellDefinition) int { return strings.Compare(a.GetKind(), b.GetKind()) })
	// All of it as it is, and variables, traps, options and key bindings: a change of any is a change of what is approved.
	return append(out, &butlerv1.ShellDefinition{Kind: "digest", Text: snap.Digest})
}

func riskOf(r guard.Result) *butlerv1.Risk {
	out := &butlerv1.Risk{Level: string(r.Risk), Verdict: string(r.Verdict), Hardline: r.Hardline, Visible: r.Visible}
	for _, reason := range r.Reasons {
		out.Reasons = append(out.Reasons, &butlerv1.RiskReason{
			Code: reason.Code, Text: reason.Text, TextZh: reason.TextZH, Start: int32(reason.Start), End: int32(reason.End),
		})
	}
	return out
}

// higher says whether level a is graver than b.
func higher(a, b string) bool {
	order := []string{string(guard.Low), string(guard.Medium), string(guard.High), string(guard.Critical)}
	return slices.Index(order, a) > slices.Index(order, b)
}

// digestFile gives the SHA-256 of a regular file in hex, "" when there is none that can be read.
func digestFile(path string) string {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not hold us
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxScript {
		return ""
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxScript+1)); err != nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}

// osUser names the user of the system whose shell it is.
func (s *Service) osUser(snap tmux.Snapshot) string {
	if name := snap.Variables["USER"]; name != "" {
		return name
	}
	uid := os.Getuid()
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return fmt.Sprintf("u%d", uid)
}

// busy makes a sentence of an error that says that the shell is not at its prompt.
func (s *Service) busy(ctx context.Context, sess *tmux.Session, err error) error {
	if _, ok := errors.AsType[*tmux.BusyError](err); !ok {
		return err
	}
	busy := busyFault(stateOf(ctx, sess), "")
	return fault.Wrap(err, fault.CodeOf(busy), "%s", fault.MessageOf(busy))
}

// busyFault says what keeps the shell from running a command.
func busyFault(st tmux.State, language string) error {
	what := st.Foreground.Name
	if what == "" || st.ShellForeground {
		what = say(language, "a command", "一条命令")
	}
	switch {
	case st.Password:
		return fault.New(fault.Conflict, say(language, "%s asks for a password in the shell: send it, or /cancel", "shell 中的 %s 正在等待密码：请输入密码，或发送 /cancel"), what)
	case st.State == tmux.Blocked:
		return fault.New(fault.Conflict, say(language, "%s waits for a line in the shell: send it, or /cancel", "shell 中的 %s 正在等待输入：请输入一行，或发送 /cancel"), what)
	case st.Mode == tmux.Interactive:
		return fault.New(fault.Conflict, say(language, "the shell shows %s: leave it first, or /key C-c", "shell 正在显示 %s：请先退出它，或发送 /key C-c"), what)
	}
	return fault.New(fault.Conflict, say(language, "the shell is busy with %s: wait for it, or /cancel", "shell 正忙于 %s：请等待它结束，或发送 /cancel"), what)
}

// stateOf looks at a session; what cannot be told is unknown.
func stateOf(ctx context.Context, sess *tmux.Session) tmux.State {
	st, err := sess.State(ctx)
	if err != nil {
		return tmux.State{State: tmux.Unknown, Mode: tmux.NaturalLanguage}
	}
	return st
}

// shellState gives the session as it stands.
func (s *Service) shellState(ctx context.Context, sess *tmux.Session) *butlerv1.ShellState {
	st := stateOf(ctx, sess)
	s.notePrompt(sess, st)
	quiet, _ := sess.Idle()
	mode, _ := s.seat(personOf(sess)).mode(st)
	out := &butlerv1.ShellState{
		Name: sess.Name(), Session: sess.Generation(), Host: s.host, Person: personOf(sess), Mode: string(mode), State: string(st.State),
		Dir: st.Dir, Password: st.Password, ActiveAt: timestamppb.New(s.now().Add(-quiet)),
	}
	if !st.ShellForeground {
		out.Program = st.Foreground.Name
	}
	return out
}
