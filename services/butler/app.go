package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/butlerhub/butler/pkg/config"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/butler/client"
)

// cliEnv are the environment variables of the command line, which are not settings of a service.
var cliEnv = []string{"BUTLER_SERVER", "BUTLER_TOKEN"}

// app is one run of the program: where it reads and writes, and the flags that every command has.
type app struct {
	in       io.Reader
	out, err io.Writer
	environ  []string

	json       bool
	server     string
	configFile string
	root       *cobra.Command
}

func newApp(in io.Reader, out, err io.Writer, environ []string) *app {
	return &app{in: in, out: out, err: err, environ: environ}
}

// run runs the command that args name and gives the exit code.
func (a *app) run(args []string) int {
	a.root = a.command()
	a.root.SetArgs(args)
	a.root.SetIn(a.in)
	a.root.SetOut(a.out)
	a.root.SetErr(a.err)
	// What fails before a command's own code begins is about how it was called.
	began := false
	a.root.PersistentPreRun = func(*cobra.Command, []string) { began = true }
	cmd, err := a.root.ExecuteC()
	if err != nil && !began {
		a.json = a.json || slices.Contains(args, "--json") // flags may not have been read
		err = usageError{fmt.Errorf("%w (see `%s --help`)", err, cmd.CommandPath())}
	}
	a.report(err)
	return exitCode(err)
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "butler",
		Short: "A self-hosted control plane for AI agents",
		Long: `Butler is a self-hosted control plane for AI agents.

Start it on this machine, then talk to it:

  butler up
  butler login
  butler chat

` + exitCodesHelpText + `

Environment of the command line: BUTLER_SERVER names the server (default ` + client.DefaultServer + `),
BUTLER_TOKEN signs in with a personal token instead of what ` + "`butler login`" + ` saved, BUTLER_CONFIG is
the settings file. All settings: ` + "`butler config`" + `.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := root.PersistentFlags()
	flags.BoolVar(&a.json, "json", false, "write JSON for programs")
	flags.StringVar(&a.server, "server", "", "address of Butler (or BUTLER_SERVER; default "+client.DefaultServer+")")
	flags.StringVar(&a.configFile, "config", "", "settings file (or BUTLER_CONFIG)")
	root.AddGroup(
		&cobra.Group{ID: "talk", Title: "Talk to Butler:"},
		&cobra.Group{ID: "manage", Title: "People and access:"},
		&cobra.Group{ID: "run", Title: "Run it:"},
		&cobra.Group{ID: "operate", Title: "Look after it:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("talk", a.chatCommand(), a.sessionsCommand(), a.approvalsCommand(), a.shellCommand(), a.loginCommand(), a.logoutCommand())
	add("manage", a.usersCommand(), a.tokensCommand(), a.passwordCommand())
	add("run", a.upCommand(), a.gatewayCommand(), a.brainCommand(), a.registryCommand(), a.approvalCommand(), a.shellRunnerCommand(), a.compactorCommand())
	add("operate", a.doctorCommand(), a.configCommand(), a.guardCommand(), a.auditCommand(), a.replayCommand(), a.natsConfigCommand(), a.versionCommand())
	root.SetHelpCommandGroupID("operate")
	root.SetCompletionCommandGroupID("operate")
	strictHelp(root)
	explainArguments(root)
	return root
}

// env gives a variable of the environment.
func (a *app) env(name string) string {
	for i := len(a.environ) - 1; i >= 0; i-- {
		if k, v, ok := strings.Cut(a.environ[i], "="); ok && k == name {
			return v
		}
	}
	return ""
}

// context gives a context that ends with the first SIGINT or SIGTERM; a second one ends the process at once.
func (a *app) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s, ok := <-signals
		if !ok {
			return
		}
		cancel(signalled{s})
		if s, ok = <-signals; ok {
			fmt.Fprintf(a.err, "butler: %s again, stopping at once\n", s)
			os.Exit(exitInterrupted)
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel(nil)
	}
}

// signalled is why a context ended.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return s.String() }

// command wraps what a client command does: a context, and its error.
func (a *app) do(f func(ctx context.Context) error) error {
	ctx, cancel := a.context()
	defer cancel()
	err := f(ctx)
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

// settings reads the settings of services, for the commands that work on them. Warnings go to standard error.
func (a *app) settings() (config.Settings, []config.Warning, error) {
	return config.Load(config.Options{File: a.configFile, Environ: a.environ, KnownEnv: cliEnv})
}

func (a *app) warn(warnings []config.Warning) {
	for _, w := range warnings {
		fmt.Fprintf(a.err, "butler: warning: %s\n", w)
	}
}

// configDir is where the command line keeps sign-ins and history: $XDG_CONFIG_HOME/butler, else ~/.config/butler.
func (a *app) configDir() (string, error) {
	if dir := a.env("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "butler"), nil
	}
	if home := a.env("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".config", "butler"), nil
	}
	return "", fault.New(fault.Invalid, "set HOME or XDG_CONFIG_HOME: there is nowhere to keep the sign-in; or use BUTLER_TOKEN")
}

func (a *app) credentials() (*client.Credentials, error) {
	dir, err := a.configDir()
	if err != nil {
		return nil, err
	}
	return client.CredentialsIn(dir), nil
}

// anonymous gives a client that is not signed in.
func (a *app) anonymous() (*client.Client, error) {
	server := a.server
	if server == "" {
		server = a.env("BUTLER_SERVER")
	}
	if server == "" {
		server = client.DefaultServer
	}
	c, err := client.New(server, "", "butler/"+version)
	if err != nil {
		return nil, usageError{err}
	}
	return c.WithLanguage(a.language()), nil
}

// language is what the locale says (POSIX: LC_ALL, then LC_MESSAGES, then LANG): en, zh, or "" for any other.
func (a *app) language() string {
	for _, name := range []string{"LC_ALL", "LC_MESSAGES", "LANG"} {
		locale := a.env(name)
		if locale == "" {
			continue
		}
		lang, _, _ := strings.Cut(locale, "_") // zh_CN.UTF-8, zh.UTF-8, zh-Hans, zh@pinyin
		if i := strings.IndexAny(lang, ".-@"); i >= 0 {
			lang = lang[:i]
		}
		if lang == "en" || lang == "zh" {
			return lang
		}
		return ""
	}
	return ""
}

// say gives a text in the language of the locale.
func (a *app) say(en, zh string) string {
	if a.language() == "zh" {
		return zh
	}
	return en
}

// sentence is how an error is told, in the language of the locale as far as there is one.
func (a *app) sentence(err error) string {
	if errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled) {
		return a.say("interrupted", "已中断")
	}
	return sentence(err)
}

// client gives a client with the token of BUTLER_TOKEN or of the last `butler login`.
func (a *app) client() (*client.Client, error) {
	c, err := a.anonymous()
	if err != nil {
		return nil, err
	}
	if token := a.env("BUTLER_TOKEN"); token != "" {
		return c.WithToken(token), nil
	}
	credentials, err := a.credentials()
	if err != nil {
		return nil, err
	}
	saved, ok, err := credentials.Load(c.Server())
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fault.New(fault.Unauthenticated, "not signed in at %s: run `butler login`, or set BUTLER_TOKEN", c.Server())
	}
	return c.WithToken(saved.Token), nil
}

// with runs f with a signed-in client.
func (a *app) with(f func(ctx context.Context, c *client.Client) error) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	return a.explain(c, a.do(func(ctx context.Context) error { return f(ctx, c) }))
}

// explain says of a refused token where it came from.
func (a *app) explain(c *client.Client, err error) error {
	if fault.CodeOf(err) == fault.Unauthenticated && a.env("BUTLER_TOKEN") != "" {
		return fault.New(fault.Unauthenticated, "the token in BUTLER_TOKEN is not valid at %s: make one with `butler tokens add`, or "+
			"unset it and run `butler login`", c.Server())
	}
	return err
}

// terminal gives the file descriptor of a stream when it is a terminal.
func terminalOf(stream any) (fd int, ok bool) {
	f, isFile := stream.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	return int(f.Fd()), true
}

// printJSON writes a value as indented JSON.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// table writes rows in columns, and none as a sentence.
func (a *app) table(header, none string, rows func(row func(cells ...any))) error {
	w := tabwriter.NewWriter(a.out, 0, 4, 2, ' ', 0)
	written := false
	rows(func(cells ...any) {
		if !written {
			fmt.Fprintln(w, header)
			written = true
		}
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, oneLine(fmt.Sprint(c)))
		}
		fmt.Fprintln(w)
	})
	if !written {
		fmt.Fprintln(w, none)
	}
	return w.Flush()
}

// oneLine makes a text of others safe to show in a table.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}

// when shows a time as people read it.
func when(t *time.Time) string {
	if t == nil || t.IsZero() {
		return "–"
	}
	return t.Local().Format("2006-01-02 15:04")
}

// readAll reads standard input, at most limit bytes.
func (a *app) readAll(limit int) (string, error) {
	data, err := io.ReadAll(io.LimitReader(a.in, int64(limit)+1))
	if err != nil {
		return "", fault.Wrap(err, fault.Invalid, "standard input cannot be read")
	}
	if len(data) > limit {
		return "", fault.New(fault.TooLarge, "standard input has more than %d KiB; send less", limit>>10)
	}
	return string(data), nil
}

// maxPasswordLine bounds a password on standard input, in bytes.
const maxPasswordLine = 4 << 10

// secret asks for a password: without echo in a terminal, else the first line of standard input. With confirm it is
// asked for twice in a terminal.
func (a *app) secret(prompt string, confirm bool) (string, error) {
	fd, ok := terminalOf(a.in)
	if !ok {
		return a.line("a password, for “" + strings.TrimSuffix(prompt, ": ") + "”,")
	}
	first, err := a.hidden(fd, prompt)
	if err != nil || !confirm {
		return first, err
	}
	second, err := a.hidden(fd, "The same again: ")
	if err != nil {
		return "", err
	}
	if first != second {
		return "", usagef("the two passwords differ; nothing was changed")
	}
	return first, nil
}

func (a *app) hidden(fd int, prompt string) (string, error) {
	state, err := term.GetState(fd)
	if err != nil {
		return "", fmt.Errorf("the terminal cannot be used: %w", err)
	}
	// Ctrl-C must not leave the terminal without echo.
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(interrupted)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-interrupted:
			_ = term.Restore(fd, state)
			fmt.Fprintln(a.err)
			os.Exit(exitInterrupted)
		case <-done:
		}
	}()
	fmt.Fprint(a.err, prompt)
	data, err := term.ReadPassword(fd)
	fmt.Fprintln(a.err)
	if errors.Is(err, io.EOF) {
		return "", errInterrupted
	}
	return string(data), err
}

// line reads one line of standard input, byte by byte: what follows is another's. what says what it holds.
func (a *app) line(what string) (string, error) {
	var line []byte
	buf := make([]byte, 1)
	for len(line) <= maxPasswordLine {
		n, err := a.in.Read(buf)
		if n > 0 {
			if buf[0] == '\n' {
				return strings.TrimSuffix(string(line), "\r"), nil
			}
			line = append(line, buf[0])
		}
		if errors.Is(err, io.EOF) {
			if len(line) == 0 {
				return "", usagef("standard input ended: %s was expected there, as a line", what)
			}
			return string(line), nil
		}
		if err != nil {
			return "", fault.Wrap(err, fault.Invalid, "standard input cannot be read")
		}
	}
	return "", usagef("the line on standard input is longer than %d bytes", maxPasswordLine)
}
