package tmux

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/fault"
)

// Command is one text for a shell at its prompt.
type Command struct {
	// ID names it for its owner: 1 to 64 bytes, kept over restarts.
	ID string
	// Text is what is put at the prompt, whole, as one paste; it may have several lines. No control characters but
	// newline and tab.
	Text string
	// Generation, when set, is that of the shell that the text is meant for; another one is a Drift fault, and nothing is
	// sent.
	Generation string
	// OnSent, when set, is called once the text is at the prompt and entered.
	OnSent func()
	// OnOutput takes the output as it comes, with the terminal's own line ends and escape sequences, without the
	// prompt and the echo. It is called from Run, one call at a time. What is drawn on the alternate screen (vim, less)
	// is not given: that is for Screen. Nil drops it.
	OnOutput func(Output)
}

// Output is a piece of what a session printed. Pieces are cut anywhere, also inside a character.
type Output struct {
	Data    []byte
	Skipped int64 // bytes that were printed just before Data and are not given, since the reader was too slow
}

// Outcome is what is known of a command.
type Outcome struct {
	Command string // its id

	// Finished says that it ended. False after Run's deadline: it goes on, and its end is an event.
	Finished bool
	// Started says that the shell began to run it. A text that bash refused (syntax error), and an empty one, never do.
	Started bool
	// Status is the exit status, if StatusKnown: 130 after C-c, 148 after C-z, 128 and the signal's number otherwise.
	Status      int
	StatusKnown bool
	// Incomplete says that bash wanted more text, and was interrupted.
	Incomplete bool
	// ShellEnded says that the session's shell ended with it (exit, exec, kill): Status is the shell's, and the session
	// has a new generation. Lost says that the session itself was lost, or that it is not known what became of the
	// command: it may or may not have run.
	ShellEnded, Lost bool

	Dir        string        // the shell's directory afterwards, as the shell calls it
	Duration   time.Duration // since it was sent
	Bytes      int64         // of output, what was not given included
	Truncated  bool          // some of the output was not given
	FullScreen bool          // it drew on the alternate screen
	Binary     bool          // much of the output was no text; the terminal is reset before the next command
}

// EventKind says what happened.
type EventKind string

const (
	// EventOutput is output outside of Run: of a command whose Run has returned, or of a background job (no Command).
	EventOutput EventKind = "output"
	// EventFinished is the end of a command whose Run returned before it.
	EventFinished EventKind = "finished"
	// EventMode is a switch between line mode and interactive mode.
	EventMode EventKind = "mode"
	// EventRestarted is a new shell in the session: the old one ended. Generation is the new one.
	EventRestarted EventKind = "restarted"
	// EventLost is the end of the session by something other than Close.
	EventLost EventKind = "lost"
)

// Event is something that happened in a session outside of Run.
type Event struct {
	Kind       EventKind
	User       string
	Session    string // "butler_<user>"
	Generation string
	Command    string
	Output     Output  // of EventOutput
	Outcome    Outcome // of EventFinished
	Mode       Mode    // of EventMode
	Process    Process // of EventMode: what is in the foreground
	Reason     string  // of EventRestarted and EventLost: a sentence
}

// PtyState is what the terminal's foreground does.
type PtyState string

// The published states.
const (
	Idle    PtyState = "idle"    // at the prompt
	Running PtyState = "running" // a command runs
	Blocked PtyState = "blocked" // it waits for a line
	Unknown PtyState = "unknown" // it cannot be told
)

// Mode is how a person's text is to be taken.
type Mode string

// The published modes.
const (
	NaturalLanguage Mode = "nl"
	Interactive     Mode = "interactive" // the foreground program takes keys
)

// State is a snapshot of a session.
type State struct {
	State    PtyState
	Mode     Mode
	Password bool // it waits for a line that is not shown: neither log nor echo what is typed
	// AlternateScreen and ShellForeground are the facts that State and Mode were made of.
	AlternateScreen bool
	ShellForeground bool
	Integration     bool // the shell's marks can be relied on
	Foreground      Process
	Command         string // id of the command that runs
	Dir             string // of the shell, as the system sees it; "" when unknown
}

// Process is a program in a session.
type Process struct {
	PID  int
	Name string   // as the kernel has it, at most 15 bytes
	Args []string // argv, bounded; programs can change theirs
}

// Screen is what the terminal shows.
type Screen struct {
	Text             string // lines joined by newlines, wrapped lines joined, no blank lines at the end
	Width, Height    int
	CursorX, CursorY int
	Alternate        bool
}

// Resolution is what the session's shell would run for a word.
type Resolution struct {
	Kind       string // alias, keyword, function, builtin, file; "" for none
	Definition string // text of the alias or function, path of the file
}

// Snapshot is what in a shell changes the meaning of commands.
type Snapshot struct {
	Aliases     map[string]string
	Functions   []string          // names
	Definitions map[string]string // of the functions, as bash prints them
	// Variables are those that change what commands mean (PATH, LD_PRELOAD, …), where they are set, with their values.
	Variables map[string]string
	// Options are those that are on, as $SHELLOPTS and $BASHOPTS name them, sorted.
	Options []string
	// Digest covers aliases, functions, traps, options and key bindings, whole: when it differs, a text may mean
	// something else.
	Digest    string
	Truncated bool // a part was too long to read; Digest covers only its beginning
}

// Job is a background or stopped job of the shell.
type Job struct {
	Number int
	PID    int
	State  string // as bash says it: Running, Stopped, Done, …
	Text   string
}

func (c Command) check(maxText int) error {
	if c.ID == "" || len(c.ID) > 64 {
		return fault.New(fault.Invalid, "a command's id has 1 to 64 bytes")
	}
	if strings.TrimSpace(c.Text) == "" {
		return fault.New(fault.Invalid, "the command is empty")
	}
	if len(c.Text) > maxText {
		return fault.New(fault.TooLarge, "the command has %d bytes, more than %d: put it into a file", len(c.Text), maxText)
	}
	return checkText(c.Text)
}

// checkText refuses what a terminal or readline would take as something else than text: an escape sequence can end the
// paste and run the rest, ^C and ^U change what was agreed.
func checkText(s string) error {
	if !utf8.ValidString(s) {
		return fault.New(fault.Invalid, "the text is not valid UTF-8")
	}
	for _, r := range s {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return fault.New(fault.Invalid, "the text has the control character U+%04X; write it without", r)
		}
	}
	return nil
}
