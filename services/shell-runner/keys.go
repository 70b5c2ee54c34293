package shell

import (
	"context"
	"slices"
	"strings"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// maxKeys bounds the keys of one message.
const maxKeys = 32

// freeKeys may go to any program without a grant: they interrupt, end, suspend or move, and make no program run a
// command. Enter is none of them: it runs what stands in a line, also what Up brought back.
var freeKeys = set(`C-c C-d C-z C-\ C-l Escape Up Down Left Right Home End PPage NPage Space`)

// signalKeys are handled by the terminal itself, whether the program reads or not.
var signalKeys = set(`C-c C-z C-\`)

// parseKeys gives the keys of a message "/key C-c Up", by tmux's names.
func parseKeys(text, language string) ([]string, error) {
	names := strings.Fields(text)[1:]
	if len(names) == 0 || len(names) > maxKeys {
		return nil, fault.New(fault.Invalid, say(language, "name 1 to %d keys, such as /key C-c or /key Down Down Enter",
			"请给出 1 到 %d 个按键，例如 /key C-c 或 /key Down Down Enter"), maxKeys)
	}
	keys := make([]string, len(names))
	for i, name := range names {
		key, ok := tmux.KeyName(name)
		if !ok {
			return nil, fault.New(fault.Invalid, say(language,
				"%.20q is no key that can be sent: use C-a to C-z, Esc, Tab, Enter, Space, Up, Down, Left, Right, Home, End, PgUp, PgDn, "+
					"Backspace, Delete, or F1 to F12; text is sent as a message of its own",
				"%.20q 不是可发送的按键：可用 C-a 到 C-z、Esc、Tab、Enter、Space、Up、Down、Left、Right、Home、End、PgUp、PgDn、"+
					"Backspace、Delete 或 F1 到 F12；文字请直接作为消息发送"), name)
		}
		keys[i] = key
	}
	return keys, nil
}

// keysNeedGrant says whether keys may be pressed in the foreground program only with a grant. A password may be left empty.
func keysNeedGrant(st tmux.State, keys []string) bool {
	return slices.ContainsFunc(keys, func(k string) bool { return !freeKeys[k] && !(st.Password && k == "Enter") })
}

// press presses keys in the foreground program and gives the screen afterwards. None but C-c reaches the shell's prompt.
// The seat is held.
func (s *Service) press(ctx context.Context, seat *seat, sess *tmux.Session, keys []string, language string) (string, error) {
	signals := !slices.ContainsFunc(keys, func(k string) bool { return !signalKeys[k] })
	st := stateOf(ctx, sess)
	if !signals {
		st = s.reading(ctx, sess)
	}
	switch {
	case st.ShellForeground && st.State != tmux.Blocked && !slices.Equal(keys, []string{"C-c"}):
		return "", fault.New(fault.Conflict, "%s", say(language,
			"the shell is at its prompt, where keys would make up a command; send the command as a message. /key C-c can be pressed always",
			"shell 处于提示符，在此按键会构成命令；请把命令作为消息发送。/key C-c 随时可用"))
	case !signals && st.State != tmux.Blocked && st.Mode != tmux.Interactive:
		return "", fault.New(fault.Conflict, say(language, "%s does not read keys; only C-c, C-z and C-\\ have an effect",
			"%s 现在不读取按键；只有 C-c、C-z 和 C-\\ 有效"), st.Foreground.Name)
	case keysNeedGrant(st, keys) && !s.hasGrant(seat, sess, st):
		return "", fault.New(fault.Forbidden, say(language, "passing these keys to %s needs an approval", "向 %s 发送这些按键需要审批"), st.Foreground.Name)
	}
	if err := s.logInput(ctx, seat, sess, st, "/key "+strings.Join(keys, " ")); err != nil {
		return "", err
	}
	if err := sess.Keys(ctx, keys...); err != nil {
		return "", err
	}
	screen, err := s.screen(ctx, sess)
	if err != nil {
		return "", nil //nolint:nilerr // they were pressed
	}
	return screen, nil
}
