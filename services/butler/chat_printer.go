package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/butlerhub/butler/services/butler/client"
)

var (
	_ client.Progress         = (*printer)(nil)
	_ client.ApprovalProgress = (*printer)(nil)
)

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

// printer shows an answer while it comes in.
type printer struct {
	talk         *talk
	accepted     chan struct{} // closed when the message is in the log
	conversation int64         // set before accepted is closed
	localID      string
	live         bool // pieces are shown as they come

	shown  strings.Builder // of the answer, as it came
	begun  bool            // something stands in the current line
	waited bool            // for an approval: what comes after it goes on, and does not begin again
}

// Accepted notes that the message is in the log.
func (p *printer) Accepted(conversation int64) {
	p.conversation = conversation
	close(p.accepted)
	p.line(chatLine{Type: "accepted", ConversationID: conversation, LocalID: p.localID})
}

// Text shows a piece of the answer.
func (p *printer) Text(piece string, restarted bool) {
	if restarted {
		p.line(chatLine{Type: "restart"})
		if p.live && p.shown.Len() > 0 {
			p.breakLine()
			if !p.waited {
				p.talk.notice("beginning again")
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
	p.breakLine()
	switch {
	case a.Pending() && !p.waited:
		p.waited = true
		p.talk.notice("waiting for approval %s: %s; decide with `butler approvals approve %s` or `deny %s`", a.Code, commandLine(a), a.Code, a.Code)
	case !a.Pending() && a.Status != "EXECUTED":
		p.talk.notice("approval %s: %s", a.Code, approvalWords(a))
		p.waited = true
	}
}

// Output shows what a command prints.
func (p *printer) Output(id, piece string) {
	if p.talk.app.json {
		p.line(chatLine{Type: "output", ActionID: id, Text: piece})
		return
	}
	if p.live {
		p.print(piece)
	}
}

func (p *printer) print(text string) {
	if text == "" {
		return
	}
	p.begun = !strings.HasSuffix(text, "\n")
	_, _ = io.WriteString(p.talk.screen, strings.Map(keepPrintable, text))
}

// breakLine ends the current line, if something stands in it.
func (p *printer) breakLine() {
	if p.begun && !p.talk.app.json {
		fmt.Fprintln(p.talk.screen)
		p.begun = false
	}
}

// final completes what was shown by the final message, which alone counts.
func (p *printer) final(answer client.Answer) {
	if p.talk.app.json {
		p.line(chatLine{
			Type: "answer", Status: answer.Status, Reason: answer.Reason, ID: answer.ID,
			ConversationID: answer.ConversationID, LocalID: p.localID, Text: answer.Text, Usage: answer.Usage,
		})
		return
	}
	rest, whole := strings.CutPrefix(answer.Text, p.shown.String())
	if !whole {
		p.breakLine()
		rest = answer.Text
	}
	p.print(rest)
	p.breakLine()
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
