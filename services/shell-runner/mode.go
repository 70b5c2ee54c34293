package shell

import "github.com/butlerhub/butler/services/shell-runner/tmux"

// modeChoice is what a person chose beside what the foreground says.
type modeChoice string

const (
	modeAuto        modeChoice = ""            // what runs in the foreground decides
	modeInteractive modeChoice = "interactive" // every line is a command or input
	modeTalk        modeChoice = "nl"          // talk, until another program is in the foreground
	modeAlwaysTalk  modeChoice = "force-nl"    // talk, until the person chooses otherwise
)

type chosenMode struct {
	choice modeChoice
	pid    int // of the program that modeTalk is about
}

// mode gives the mode in force, and whether the person chose that text is talk whatever runs.
func (st *seat) mode(s tmux.State) (mode tmux.Mode, talk bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch c := st.chosen; c.choice {
	case modeInteractive:
		return tmux.Interactive, false
	case modeAlwaysTalk:
		return tmux.NaturalLanguage, true
	case modeTalk:
		if !atPrompt(s) && s.Foreground.PID == c.pid {
			return tmux.NaturalLanguage, true
		}
		st.chosen = chosenMode{}
	case modeAuto:
	}
	return s.Mode, false
}

// choose changes the mode; with modeTalk only for what is in the foreground now.
func (st *seat) choose(choice modeChoice, s tmux.State) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if choice == modeTalk && atPrompt(s) {
		choice = modeAuto
	}
	st.chosen = chosenMode{choice: choice, pid: s.Foreground.PID}
}
