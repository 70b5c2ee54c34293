package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/shell-runner/guard"
)

// maxGuardLine is how many bytes a line of `butler guard check` may have on standard input: a text of guard.MaxText bytes,
// each written as a JSON escape of six.
const maxGuardLine = 6*guard.MaxText + 1024

func (a *app) guardCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "guard",
		Short: "See how the command guard judges command lines",
		Long: `The guard reads a command line as bash would and says whether it runs, is asked for, or is refused. Its redaction takes
secrets out of what commands print. Both can be tried here; nothing is run.`,
		Example: `  butler guard check 'rm -rf build' 'git status'
  butler guard redact 'password: hunter2hunter2'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.guardCheckCommand(), a.guardRedactCommand())
	return cmd
}

func (a *app) guardCheckCommand() *cobra.Command {
	var dir, home, user string
	cmd := &cobra.Command{
		Use:   "check [LINE...]",
		Short: "Judge command lines: run, ask or refuse",
		Long: `Judges command lines without running anything, and prints a JSON object for each, in order:

  {"verdict":"run|ask|refuse","risk":"low|medium|high|critical","reasons":[{"code","text","text_zh","risk","start","end"}]}

Lines are the arguments; without any, JSON strings on standard input, one a line, each answered at once. A line
that is no JSON string is answered with verdict refuse and the reason bad-input, and the exit code is 1 at the end.

The verdict is the guard's own: the policy for approvals decides who is asked. The patterns of a settings file
(--config, BUTLER_CONFIG) or of BUTLER_DANGER_PATTERNS count too.`,
		Example: `  butler guard check 'rm -rf ~' 'git status'
  jq -c .command commands.jsonl | butler guard check`,
		RunE: func(_ *cobra.Command, lines []string) error {
			g, err := a.guardOfSettings()
			if err != nil {
				return err
			}
			judge := func(text string) guardAnswer {
				r := g.Check(guard.Request{Text: text, Dir: dir, Home: home, User: user})
				return guardAnswer{r.Verdict, r.Risk, r.Reasons}
			}
			if len(lines) == 0 {
				return guardLines(a.in, a.out, judge)
			}
			for _, line := range lines {
				if err := writeLine(a.out, judge(line)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "working directory of the shell (default: a project in the home)")
	f.StringVar(&home, "home", "", "home of the person (default: /home/user)")
	f.StringVar(&user, "user", "", "operating-system user of the shell")
	return cmd
}

// guardOfSettings makes the guard with the patterns of the settings, where such are named.
func (a *app) guardOfSettings() (*guard.Guard, error) {
	if a.settingsFile() == "" && a.env("BUTLER_DANGER_PATTERNS") == "" {
		return guard.New(guard.Options{})
	}
	s, _, err := a.settings()
	if err != nil {
		return nil, err
	}
	g, err := guard.New(guard.Options{DangerPatterns: s.Shell.DangerPatterns})
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "guardrail.danger_patterns: %v", err)
	}
	return g, nil
}

// guardAnswer is a line of output.
type guardAnswer struct {
	Verdict guard.Verdict  `json:"verdict"`
	Risk    guard.Risk     `json:"risk"`
	Reasons []guard.Reason `json:"reasons"`
}

func badGuardInput(text, zh string) guardAnswer {
	return guardAnswer{guard.Refuse, guard.High, []guard.Reason{{Code: "bad-input", Text: text, TextZH: zh, Risk: guard.High}}}
}

// guardLines answers each line of in before it reads the next. It gives errReported when one was not a JSON string.
func guardLines(in io.Reader, out io.Writer, judge func(string) guardAnswer) error {
	r := bufio.NewReaderSize(in, maxGuardLine)
	failed := false
	for {
		line, err := r.ReadSlice('\n')
		long := false
		for errors.Is(err, bufio.ErrBufferFull) {
			long = true
			line, err = r.ReadSlice('\n')
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fault.Wrap(err, fault.Unavailable, "standard input cannot be read")
		}
		if err != nil && len(line) == 0 && !long {
			break
		}
		var answer guardAnswer
		var text *string
		switch {
		case long:
			answer = badGuardInput("the line is too long; a command has at most 8192 bytes", "输入行过长；命令最多 8192 字节")
			failed = true
		case !utf8.Valid(line), json.Unmarshal(bytes.TrimRight(line, "\r\n"), &text) != nil, text == nil:
			answer = badGuardInput("the line is not a JSON string; write one in quotes on each line", "该行不是 JSON 字符串；请每行写一个带引号的字符串")
			failed = true
		default:
			answer = judge(*text)
		}
		if err := writeLine(out, answer); err != nil {
			return err
		}
		if err != nil {
			break
		}
	}
	if failed {
		return errReported
	}
	return nil
}

// writeLine writes v as one line of JSON, at once.
func writeLine(out io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := out.Write(b.Bytes())
	return err
}
