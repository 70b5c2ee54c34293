package shell

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/redact"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/guard"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

const (
	// inputSpan is how long a grant lets a person pass input to the program that it names.
	inputSpan = 10 * time.Minute
	// maxInput bounds what is passed at once, in bytes.
	maxInput = 16 << 10
	// settleQuiet and settleWait are how long a program is given to answer input before the screen is read.
	settleQuiet = 120 * time.Millisecond
	settleWait  = 1500 * time.Millisecond
)

// viewers show something and take single keys; none of these runs commands. What is typed into any other program may run
// one: the program itself may (editors, pagers with "!", REPLs, ssh, databases), or it does not read what is typed, and the
// shell does when it ends.
var viewers = map[string]bool{"top": true, "htop": true, "btop": true}

// needsGrant says whether text may be passed to the foreground program only with a grant. One key at a time may go to a
// viewer: when the key ends it, the next one is looked at anew. A line may go to who asks for a password; it is neither
// logged nor echoed.
func needsGrant(st tmux.State, text string) bool {
	if st.Password {
		return strings.ContainsAny(text, "\r\n")
	}
	return !viewers[st.Foreground.Name] || utf8.RuneCountInString(text) > 1 || strings.ContainsAny(text, "\r\n")
}

// inspectInput gives the effect of passing input to a program that is in the foreground now. The seat is held.
func (s *Service) inspectInput(ctx context.Context, sess *tmux.Session, program string) (*butlerv1.Effect, *butlerv1.Risk, error) {
	st := stateOf(ctx, sess)
	if st.ShellForeground && st.State != tmux.Blocked || st.Foreground.Name == "" {
		return nil, nil, fault.New(fault.Conflict, "there is no program in the foreground of the shell that takes input")
	}
	if program != "" && program != st.Foreground.Name {
		return nil, nil, fault.New(fault.Drift, "%s is in the foreground now, not %s", st.Foreground.Name, program)
	}
	line := strings.Join(st.Foreground.Args, " ")
	if len(line) > 500 {
		line = strings.ToValidUTF8(line[:500], "") + "…"
	}
	command := fmt.Sprintf("type into %s (%s) for %d minutes", st.Foreground.Name, line, int(inputSpan.Minutes()))
	effect := &butlerv1.Effect{
		Version: 1, Kind: approval.KindInput, Command: command, Dir: sess.Dir(), Host: s.host, Session: sess.Generation(),
		Program: st.Foreground.Name, User: s.accountName(), Argv: []*butlerv1.Argv{{Args: []string{st.Foreground.Name}}},
		// The process, so that a grant does not hold for the next program of the same name.
		Environment: map[string]string{"pid": fmt.Sprint(st.Foreground.PID)},
	}
	level := string(guard.Medium)
	text := fmt.Sprintf("%s can run commands by what is typed into it, and nothing judges those", st.Foreground.Name)
	return effect, &butlerv1.Risk{Level: level, Verdict: string(guard.Ask), Visible: command, Reasons: []*butlerv1.RiskReason{{
		Code: "interactive-program", Text: text, TextZh: fmt.Sprintf("在 %s 中输入的内容可以执行命令，且不会再被检查", st.Foreground.Name),
	}}}, nil
}

// accountName names the user of the system that shells run as, in single-user mode.
func (s *Service) accountName() string { return s.osUser(tmux.Snapshot{}) }

// grantKey names a process of a session, for the grants of a seat.
func grantKey(generation string, p tmux.Process) string {
	return fmt.Sprintf("%s %d %s", generation, p.PID, p.Name)
}

// granted says whether input may be passed to the program in the foreground. The seat is held.
func (s *Service) granted(seat *seat, sess *tmux.Session, st tmux.State, text string) bool {
	return !needsGrant(st, text) || s.hasGrant(seat, sess, st)
}

// hasGrant says whether the person may type anything into the program in the foreground. The seat is held.
func (s *Service) hasGrant(seat *seat, sess *tmux.Session, st tmux.State) bool {
	seat.mu.Lock()
	defer seat.mu.Unlock()
	until, ok := seat.grants[grantKey(sess.Generation(), st.Foreground)]
	return ok && s.now().Before(until)
}

// passInput uses a grant for a program: from now on, for a time, the person may type into it. The first input comes with
// it. The seat is held.
func (s *Service) passInput(ctx context.Context, j *job, seat *seat, sess *tmux.Session) (*butlerv1.ExecuteResponse, error) {
	st := stateOf(ctx, sess)
	seat.mu.Lock()
	for key, until := range seat.grants {
		if s.now().After(until) {
			delete(seat.grants, key)
		}
	}
	seat.grants[grantKey(sess.Generation(), st.Foreground)] = s.now().Add(inputSpan)
	seat.mu.Unlock()
	var screen string
	var err error
	if in := j.req.GetSealed(); in != nil {
		screen, err = s.passSealed(ctx, seat, sess, in, j.req.GetLanguage())
	} else {
		screen, err = s.pass(ctx, seat, sess, j.req.GetInput(), j.req.GetLanguage())
	}
	if err != nil {
		s.finish(j, approval.UseRefused, nil, fault.MessageOf(err))
		return s.atEnd(ctx, j, sess)
	}
	s.finish(j, approval.Ended, &butlerv1.CommandOutcome{Output: screen, Dir: sess.Dir()}, "")
	return s.atEnd(ctx, j, sess)
}

// pass gives a message to the program in the foreground: the keys of a message that begins with /key, else its text. It
// gives the screen afterwards. The seat is held.
func (s *Service) pass(ctx context.Context, seat *seat, sess *tmux.Session, text, language string) (string, error) {
	if firstField(text) == "/key" {
		keys, err := parseKeys(text, language)
		if err != nil {
			return "", err
		}
		return s.press(ctx, seat, sess, keys, language)
	}
	return s.typeInto(ctx, seat, sess, literal(text), language)
}

// typeInto passes text to the program in the foreground and gives the screen afterwards, redacted. At the shell's own
// prompt, and to a program that does not read, it types nothing: the shell would take the line for a command. The seat is
// held.
func (s *Service) typeInto(ctx context.Context, seat *seat, sess *tmux.Session, text, language string) (string, error) {
	switch {
	case len(text) > maxInput:
		return "", fault.New(fault.TooLarge, say(language, "at most %d bytes are passed at once", "一次最多传送 %d 字节"), maxInput)
	case !utf8.ValidString(text):
		return "", fault.New(fault.Invalid, "input is text in UTF-8")
	}
	st := s.reading(ctx, sess)
	switch {
	case st.ShellForeground && st.State != tmux.Blocked:
		return "", atPromptFault(language)
	case st.State != tmux.Blocked && st.Mode != tmux.Interactive:
		return "", fault.New(fault.Conflict, say(language, "%s does not read what is typed; wait for it, or /cancel",
			"%s 现在不读取输入；请等待，或发送 /cancel"), st.Foreground.Name)
	case !s.granted(seat, sess, st, text):
		return "", fault.New(fault.Forbidden, say(language, "passing input to %s needs an approval", "向 %s 传送输入需要审批"), st.Foreground.Name)
	}
	if err := s.logInput(ctx, seat, sess, st, text); err != nil {
		return "", err
	}
	// The log may have taken its time: a prompt that is gone would have a password shown, or run.
	if now := stateOf(ctx, sess); st.Password && (!now.Password || now.Foreground.PID != st.Foreground.PID) {
		return "", promptGone(language)
	}
	if err := s.typeText(ctx, sess, st, text); err != nil {
		return "", err
	}
	screen, err := s.screen(ctx, sess)
	if err != nil {
		return "", nil //nolint:nilerr // it was typed; typing it again would be worse than not to show what came of it
	}
	if st.Password && len(text) > 3 {
		screen = strings.ReplaceAll(screen, text, redact.Marker("password"))
	}
	return screen, nil
}

// typeText types text, and Enter where that belongs to it: lines and commands of full-screen programs (":wq") have one,
// single keys have not. Enter comes once it is seen that the program is still there; otherwise the shell would take the
// text for a command.
func (s *Service) typeText(ctx context.Context, sess *tmux.Session, st tmux.State, text string) error {
	single := viewers[st.Foreground.Name] && utf8.RuneCountInString(text) == 1
	fullScreen := st.AlternateScreen && (text == "" || !strings.ContainsRune(":/?", rune(text[0])))
	if single || fullScreen {
		return sess.Type(ctx, text, false)
	}
	// A line at a time: the program may end by one of them, and what follows would be the shell's next command.
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if n > 0 && !s.readsOn(ctx, sess, st) {
			return fault.New(fault.Conflict, "after %d lines %s does not read any more; the rest was not passed", n, st.Foreground.Name)
		}
		if line != "" {
			if err := sess.Type(ctx, line, false); err != nil {
				return err
			}
		}
		after := stateOf(ctx, sess)
		if after.Foreground.PID != st.Foreground.PID || after.ShellForeground && after.State != tmux.Blocked {
			return sess.Keys(ctx, "C-u") // it ended, perhaps by this very text: what the prompt got of it is erased
		}
		if err := sess.Type(ctx, "", true); err != nil {
			return err
		}
	}
	return nil
}

// readsOn waits a moment for the program to read the next line, and says whether it is still there and does.
func (s *Service) readsOn(ctx context.Context, sess *tmux.Session, was tmux.State) bool {
	wait, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	for {
		sess.Settle(wait, 10*time.Millisecond)
		st := stateOf(ctx, sess)
		if st.Foreground.PID != was.Foreground.PID || st.ShellForeground != was.ShellForeground {
			return false
		}
		if st.State == tmux.Blocked || st.Mode == tmux.Interactive {
			return true
		}
		if wait.Err() != nil {
			return false
		}
	}
}

// readingWait is how long a program may take until it reads.
const readingWait = 700 * time.Millisecond

// reading looks at the session until a program reads, for a moment at most.
func (s *Service) reading(ctx context.Context, sess *tmux.Session) tmux.State {
	limit := time.NewTimer(readingWait)
	defer limit.Stop()
	for {
		st := stateOf(ctx, sess)
		if st.ShellForeground || st.State == tmux.Blocked || st.Mode == tmux.Interactive {
			return st
		}
		select {
		case <-limit.C:
			return st
		case <-ctx.Done():
			return st
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// atPromptFault says why nothing is typed at the prompt.
func atPromptFault(language string) error {
	return fault.New(fault.Conflict, "%s", say(language, "the shell is at its prompt: what is typed there is a command; send it as one",
		"shell 处于提示符：在此输入的内容就是命令，请作为命令发送"))
}

// screen gives what the terminal shows once it is quiet, redacted.
func (s *Service) screen(ctx context.Context, sess *tmux.Session) (string, error) {
	wait, cancel := context.WithTimeout(ctx, settleWait)
	sess.Settle(wait, settleQuiet)
	cancel()
	shown, err := sess.Screen(ctx, false)
	if err != nil {
		return "", err
	}
	text, _ := s.redactor.String(shown.Text)
	return strings.TrimRight(text, "\n "), nil
}
