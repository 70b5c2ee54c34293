package brain

import (
	"errors"
	"maps"
	"slices"
	"strings"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Shells are the shell-runners that commands can be run on.
type Shells struct {
	Hosts   map[string]butlerv1.ShellServiceClient // by the name of the host
	Default string                                 // host that is meant when nobody says which; one of Hosts
}

func (s Shells) check() error {
	if len(s.Hosts) > 0 && s.Hosts[s.Default] == nil {
		return errors.New("brain: the default host of the shells is none of them")
	}
	return nil
}

// pick gives a host's shell-runner, that of the default host when none is named. ok is false when there is no such host.
func (s Shells) pick(host string) (name string, client butlerv1.ShellServiceClient, ok bool) {
	if host == "" {
		host = s.Default
	}
	client, ok = s.Hosts[host]
	return host, client, ok
}

// names gives the hosts in order.
func (s Shells) names() []string { return slices.Sorted(maps.Keys(s.Hosts)) }

// acts says whether commands can be run at all: somebody approves them and somebody runs them.
func (s *Service) acts() bool { return s.approval != nil && len(s.shells.Hosts) > 0 }

// shellChannel is the channel whose conversations are attached to a shell from their beginning.
const shellChannel = "shell"

// shellWords are the commands of a shell, as published. Whether a message that begins with a slash is one says the
// shell-runner; this list is for when it cannot be asked.
var shellWords = map[string]bool{
	"/shell": true, "/interactive": true, "/nl": true, "/force-nl": true, "/key": true, "/kill": true, "/screen": true,
	"/pwd": true, "/cancel": true, "/jobs": true, "/compact": true, "/help": true, "/log": true, "/history": true,
	"/sys": true, "/system": true, "/load": true,
}

func firstWord(text string) string {
	if f := strings.Fields(text); len(f) > 0 {
		return f[0]
	}
	return ""
}

// marked says whether a message is meant for the shell whatever else may be the matter.
func marked(text string) bool {
	text = strings.TrimSpace(text)
	return strings.HasPrefix(text, "!") || strings.HasPrefix(text, "$ ") || strings.HasPrefix(text, "/")
}

// detaches says whether a message detaches its conversation from the shell.
func detaches(text string) bool {
	return slices.Equal(strings.Fields(strings.ToLower(text)), []string{"/shell", "off"})
}

// namedHost gives the host that "/shell <host>" names, empty for any other message.
func (s Shells) namedHost(text string) string {
	if f := strings.Fields(text); len(f) == 2 && f[0] == "/shell" && s.Hosts[f[1]] != nil {
		return f[1]
	}
	return ""
}
