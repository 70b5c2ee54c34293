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
	"github.com/butlerhub/butler/pkg/redact"
)

// maxRedactLine is how many bytes a line of `butler guard redact` may have on standard input.
const maxRedactLine = 4 << 20

// redactAnswer is a line of output: Text and Found, or Error.
type redactAnswer struct {
	Text  string         `json:"text"`
	Found []redact.Found `json:"found"`
	Error string         `json:"error,omitempty"`
}

func (a *app) guardRedactCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "redact [TEXT...]",
		Short: "Show texts as they are logged and sent: without secrets",
		Long: `Takes secrets out of texts, as is done to what a shell prints, and prints a JSON object for each, in order:

  {"text":"export TOKEN=[REDACTED:token]","found":[{"kind":"token","count":1}]}

Texts are the arguments; without any, JSON strings on standard input, one a line, each answered at once. A line that
is no JSON string is answered with empty text and an error, and the exit code is 1 at the end.`,
		Example: `  butler guard redact 'curl -u ann:Tr0ub4dor https://example.org'
  jq -R . build.log | butler guard redact | jq -r .text`,
		RunE: func(_ *cobra.Command, texts []string) error {
			if len(texts) == 0 {
				return redactLines(a.in, a.out)
			}
			for _, text := range texts {
				if err := writeLine(a.out, redactText(text)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func redactText(text string) redactAnswer {
	text, found := redact.String(text)
	if found == nil {
		found = []redact.Found{}
	}
	return redactAnswer{Text: text, Found: found}
}

// redactLines answers each line of in before it reads the next. It gives errReported when one was not a JSON string.
func redactLines(in io.Reader, out io.Writer) error {
	r := bufio.NewReader(in)
	failed := false
	for {
		line, long, err := boundedLine(r, maxRedactLine)
		if err != nil && !errors.Is(err, io.EOF) {
			return fault.Wrap(err, fault.Unavailable, "standard input cannot be read")
		}
		if err != nil && len(line) == 0 && !long {
			break
		}
		var text *string
		answer := redactAnswer{Found: []redact.Found{}}
		switch {
		case long:
			answer.Error = "the line has more than 4 MiB; send the text in parts, cut at line breaks"
		case !utf8.Valid(line), json.Unmarshal(bytes.TrimRight(line, "\r\n"), &text) != nil, text == nil:
			answer.Error = "the line is not a JSON string; write one in quotes on each line"
		default:
			answer = redactText(*text)
		}
		failed = failed || answer.Error != ""
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

// boundedLine reads a line of at most limit bytes. Of a longer one, which it reads to its end, it keeps nothing.
func boundedLine(r *bufio.Reader, limit int) (line []byte, long bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if long = long || len(line)+len(part) > limit; long {
			line = nil
		} else {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, long, err
		}
	}
}
