// Package tmux keeps shells alive for people: one tmux server a session, on a socket of its own, under an operating
// system user of its own where it can. It knows nothing of NATS, chat or approvals.
//
//	host, err := tmux.Open(tmux.Config{Dir: "/var/lib/butler/shells"})
//	session, err := host.Session(ctx, "17")           // attach, or create
//	outcome, err := session.Run(ctx, tmux.Command{ID: "c1", Text: "ls -la", OnOutput: show})
//
// How it works. Input goes through a control-mode client: C-u, bracketed paste, Enter, as bytes of one
// buffer that tmux writes at once, so that nothing can come between. Output is appended by tmux (pipe-pane) to a file that is followed, so that
// tmux never waits for this process and nothing is lost while it is away. The shell (bash with a start file of its own)
// prints marks that carry a nonce when a command starts, when it ends (status, directory), and when it wants more text;
// they are taken out of the output. What is in the foreground and whether it waits for a line, a password or keys is
// read from the terminal's settings and /proc, never from names of programs.
//
// A session has a generation, a UUID that changes whenever its shell is another one: what was agreed for one generation
// does not hold for the next.
//
// A command is sent at most once. Run returns when it ended or when its context's deadline passed; in the second case
// the command goes on, and its end is an Event. Nothing is ever sent again by itself.
//
// What it is not: the marks are as trustworthy as the user's own shell, who can read the nonce if they try. A status is
// for people and for the log, not a security fact. Isolation is the operating system user and the control group; with
// neither (Host.Warnings says so) every program in a session can reach whatever this process can.
//
// Linux only, with tmux 3.2 or newer and bash 5.1 or newer. On other systems Open returns ErrUnsupported.
package tmux
