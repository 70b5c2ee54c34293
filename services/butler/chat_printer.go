package main

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/butlerhub/butler/services/butler/client"
	"github.com/butlerhub/butler/services/butler/terminal"
)

var (
	_ client.Progress         = (*printer)(nil)
	_ client.EchoProgress     = (*printer)(nil)
	_ client.ApprovalProgress = (*printer)(nil)
)

// notice writes a line beside the conversation.
func (t *talk) notice(format string, args ...any) {
	if t.app.json {
		return
	}
	text := oneLine(fmt.Sprintf(format, args...))
	if _, ok := t.screen.(*terminal.Editor); ok {
		t.display("[" + text + "]\n")
		return
	}
	t.endLine()
	fmt.Fprintf(t.app.err, "butler: %s\n", text)
}

// display writes whole lines to the screen.
func (t *talk) display(lines string) {
	t.printing.Lock()
	defer t.printing.Unlock()
	t.breakLine()
	t.speaker = nil
	_, _ = io.WriteString(t.screen, lines)
}

// endLine ends the current line, if something stands in it.
func (t *talk) endLine() {
	t.printing.Lock()
	defer t.printing.Unlock()
	t.breakLine()
}

// breakLine is endLine for who holds t.printing.
func (t *talk) breakLine() {
	if t.app.json {
		return
	}
	if editor, ok := t.screen.(*terminal.Editor); ok {
		editor.EndLine()
	} else if t.begun {
		fmt.Fprintln(t.screen)
	}
	t.begun = false
}

// live says whether pieces of an answer are printed as they come: not to a file or a program, where what turns out to be
// void could not be taken back.
func (t *talk) live() bool {
	if _, editing := t.screen.(*terminal.Editor); editing {
		return true
	}
	_, tty := terminalOf(t.screen)
	return tty
}

// chatLine is one line of `butler chat --json`.
type chatLine struct {
	Type           string          `json:"type"` // accepted, text, restart, approval, output or answer
	Status         string          `json:"status,omitempty"`
	Reason         string          `json:"reason,omitempty"`
	ID             uint64          `json:"id,omitempty"`
	ConversationID int64           `json:"conversation_id,omitempty"`
	LocalID        string          `json:"local_id,omitempty"`
	Text           string          `json:"text,omitempty"`
	Usage          json.RawMessage `json:"usage,omitempty"`
	ActionID       string          `json:"action_id,omitempty"` // approval, output
	Code           string          `json:"code,omitempty"`      // approval
}

// keepStreamed bounds what is kept of the begin and of the end of the output that was shown, in bytes each: more than an
// answer has of either.
const keepStreamed = 128 << 10

// printer shows an answer while it comes in.
type printer struct {
	talk         *talk
	asked        asked
	accepted     chan struct{} // closed when the message is in the log
	conversation int64         // set before accepted is closed
	live         bool          // pieces are shown as they come

	shown    strings.Builder // of the answer, as it came
	streamed []byte          // of the output of commands, as it came; without its middle when it is long
	waited   bool            // for an approval: what comes after it goes on, and does not begin again
}

// Accepted notes that the message is in the log.
func (p *printer) Accepted(conversation int64) {
	p.conversation = conversation
	t := p.talk
	t.mu.Lock()
	if t.conversation == 0 {
		t.conversation = conversation
	}
	t.mu.Unlock()
	close(p.accepted)
	if p.asked.accepted != nil {
		p.asked.accepted()
	}
	p.line(chatLine{Type: "accepted", ConversationID: conversation, LocalID: p.asked.localID})
}

// Echo notes how the message stands in the log.
func (p *printer) Echo(written string) {
	if p.asked.echoed != nil {
		p.asked.echoed(written)
	}
}

// Text shows a piece of the answer.
func (p *printer) Text(piece string, restarted bool) {
	if restarted {
		p.line(chatLine{Type: "restart"})
		if p.live && p.shown.Len() > 0 {
			p.talk.endLine()
			if !p.waited {
				p.talk.notice("%s", p.talk.app.say("beginning again", "重新开始回答"))
			}
		}
		p.shown.Reset()
	}
	p.line(chatLine{Type: "text", Text: piece})
	if p.live && !p.talk.app.json {
		p.shown.WriteString(piece)
		p.print(piece)
	}
}

// Approval shows that the answer waits for somebody, and what they said.
func (p *printer) Approval(a client.Approval) {
	if p.talk.app.json {
		p.line(chatLine{Type: "approval", ActionID: a.ID, Code: a.Code, Status: a.Status, Text: a.Command})
		return
	}
	app := p.talk.app
	switch {
	case a.Pending() && !p.waited:
		p.waited = true
		how := app.othersDecide(a)
		if a.MayDecide {
			how = fmt.Sprintf(app.say("decide with `butler approvals approve %s` or `deny %s`", "用 `butler approvals approve %s` 或 `deny %s` 决定"), a.Code, a.Code)
			if _, typed := p.talk.screen.(*terminal.Editor); typed {
				how = fmt.Sprintf(app.say("write `approve %s`, or `deny %s` and why", "请输入 `确认 %s`，或 `取消 %s` 加理由"), a.Code, a.Code)
			}
		}
		p.talk.notice(app.say("waiting for approval %s: %s; %s", "等待审批 %s：%s；%s"), a.Code, commandLine(a), how)
	case !a.Pending() && a.Status != "EXECUTED":
		p.waited = true
		if a.Code == "" { // nobody was asked
			p.talk.notice("%s: %s", commandLine(a), app.approvalWords(a))
			break
		}
		p.talk.notice(app.say("approval %s: %s", "审批 %s：%s"), a.Code, app.approvalWords(a))
	}
}

// Output shows what a command prints.
func (p *printer) Output(id, piece string) {
	if p.talk.app.json {
		p.line(chatLine{Type: "output", ActionID: id, Text: piece})
		return
	}
	if p.live {
		p.streamed = append(p.streamed, piece...)
		if len(p.streamed) > 4*keepStreamed {
			p.streamed = append(p.streamed[:keepStreamed], p.streamed[len(p.streamed)-keepStreamed:]...)
		}
		p.print(piece)
	}
}

// print shows a piece of text; where another answer was shown meanwhile, in a line of its own.
func (p *printer) print(text string) {
	if text = strings.Map(keepPrintable, text); text == "" {
		return
	}
	t := p.talk
	t.printing.Lock()
	defer t.printing.Unlock()
	if t.speaker != p {
		t.breakLine()
		t.speaker = p
	}
	t.begun = !strings.HasSuffix(text, "\n")
	_, _ = io.WriteString(t.screen, text)
}

// final completes what was shown by the final message, which alone counts.
func (p *printer) final(answer client.Answer) {
	if p.talk.app.json {
		p.line(chatLine{
			Type: "answer", Status: answer.Status, Reason: answer.Reason, ID: answer.ID,
			ConversationID: answer.ConversationID, LocalID: p.asked.localID, Text: answer.Text, Usage: answer.Usage,
		})
		return
	}
	rest, whole := strings.CutPrefix(answer.Text, p.shown.String())
	if !whole {
		p.talk.endLine()
		rest = answer.Text
	}
	if cut := withoutOutput(rest, string(p.streamed)); cut != rest {
		p.talk.endLine() // of the output
		rest = cut
	}
	p.print(rest)
	p.talk.endLine()
}

// cutMark stands in an answer where long output is cut, as shell-runner writes it.
var cutMark = regexp.MustCompile(`\[… \d+ bytes[^\]\n]* …\]\n`)

// withoutOutput takes the block with a command's output out of an answer, when just that was shown while it came in.
func withoutOutput(answer, streamed string) string {
	const language = "console\n"
	at := strings.Index(answer, language)
	marks := ""
	if at >= 0 {
		marks = answer[len(strings.TrimRight(answer[:at], "`")):at]
	}
	if len(marks) < 3 {
		return answer
	}
	block, after, ended := strings.Cut(answer[at+len(language):], "\n"+marks+"\n")
	command, output, several := strings.Cut(block, "\n") // "$ command", and what it printed
	if !ended || !several || !strings.HasPrefix(command, "$ ") || strings.TrimSpace(output) == "" {
		return answer
	}
	for _, part := range cutMark.Split(output, -1) {
		if !strings.Contains(streamed, strings.TrimSpace(part)) {
			return answer
		}
	}
	return answer[:at-len(marks)] + after
}

// line writes a line of JSON, when that is wanted.
func (p *printer) line(v chatLine) {
	if !p.talk.app.json {
		return
	}
	enc := json.NewEncoder(p.talk.app.out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // who reads is gone; the next signal ends the process
}
