//go:build !linux

package tmux

import (
	"context"
	"time"
)

// Host keeps the shells of one machine; here there are none.
type Host struct{}

// Session is one person's shell; here there is none.
type Session struct{}

// Recovered is what became of a session while no process of ours looked after it.
type Recovered struct {
	User    string
	Session *Session
	Err     error
	Command string
	Running bool
	Outcome Outcome
	Output  []Output
}

// Open returns ErrUnsupported.
func Open(Config) (*Host, error) { return nil, ErrUnsupported }

// The methods of Host and Session are those of Linux; none can be reached, since Open gives no Host.

func (*Host) Warnings() []string                                { return nil }
func (*Host) Version() string                                   { return "" }
func (*Host) Ready(context.Context) error                       { return ErrUnsupported }
func (*Host) Session(context.Context, string) (*Session, error) { return nil, ErrUnsupported }
func (*Host) SessionNumber(context.Context, string, int) (*Session, error) {
	return nil, ErrUnsupported
}
func (*Host) Sessions() []*Session                         { return nil }
func (*Host) Find(string) (*Session, error)                { return nil, ErrUnsupported }
func (*Host) Recover(context.Context) ([]Recovered, error) { return nil, ErrUnsupported }
func (*Host) Close()                                       {}

func (*Session) User() string                                  { return "" }
func (*Session) Name() string                                  { return "" }
func (*Session) Generation() string                            { return "" }
func (*Session) Socket() string                                { return "" }
func (*Session) Dir() string                                   { return "" }
func (*Session) Lost() error                                   { return ErrUnsupported }
func (*Session) Idle() (time.Duration, bool)                   { return 0, false }
func (*Session) Run(context.Context, Command) (Outcome, error) { return Outcome{}, ErrUnsupported }
func (*Session) Wait(context.Context) (Outcome, error)         { return Outcome{}, ErrUnsupported }
func (*Session) Keys(context.Context, ...string) error         { return ErrUnsupported }
func (*Session) Type(context.Context, string, bool) error      { return ErrUnsupported }
func (*Session) Screen(context.Context, bool) (Screen, error)  { return Screen{}, ErrUnsupported }
func (*Session) Resize(context.Context, int, int) error        { return ErrUnsupported }
func (*Session) Settle(context.Context, time.Duration)         {}
func (*Session) State(context.Context) (State, error)          { return State{}, ErrUnsupported }
func (*Session) Foreground(context.Context) (Process, error)   { return Process{}, ErrUnsupported }
func (*Session) Resolve(context.Context, string) (Resolution, error) {
	return Resolution{}, ErrUnsupported
}
func (*Session) Environment(context.Context) ([]string, error) { return nil, ErrUnsupported }
func (*Session) Snapshot(context.Context) (Snapshot, error)    { return Snapshot{}, ErrUnsupported }
func (*Session) Jobs(context.Context) ([]Job, error)           { return nil, ErrUnsupported }
func (*Session) KillForeground(context.Context) error          { return ErrUnsupported }
func (*Session) Restart(context.Context) error                 { return ErrUnsupported }
func (*Session) Close(context.Context) error                   { return ErrUnsupported }
