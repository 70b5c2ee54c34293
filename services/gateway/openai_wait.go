package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// approvalWait is a completion's wait for people to decide. An OpenAI client knows nothing of approvals: it is told in
// words what is waited for, and gets its connection back after a while; the work goes on when somebody decides.
type approvalWait struct {
	limit    time.Duration
	language string

	waited bool              // it has been waited for somebody
	open   map[string]string // code by id of what is waited for
	timer  *time.Timer
}

// note takes notice of a request, and gives what the client is to be told, if anything.
func (w *approvalWait) note(card cardJSON) string {
	_, known := w.open[card.ActionID]
	if card.Status != cardPending {
		delete(w.open, card.ActionID)
		if len(w.open) == 0 {
			w.end()
		}
		return ""
	}
	if w.open == nil {
		w.open = map[string]string{}
	}
	w.open[card.ActionID] = card.Code
	w.waited = true
	if w.timer == nil {
		w.timer = time.NewTimer(w.limit)
	}
	if known {
		return ""
	}
	what, where := clipRunes(cmp.Or(card.Visible, card.Command), 200), ""
	if card.Host != "" {
		where = say(w.language, " on "+card.Host, "（"+card.Host+"）")
	}
	return say(w.language,
		fmt.Sprintf("[Waiting for approval %s: %s%s. Somebody who may decide says: approve %s, or deny %s]", card.Code, what, where, card.Code, card.Code),
		fmt.Sprintf("[等待审批 %s：%s%s。有权审批的人可以回复：确认 %s 或 取消 %s]", card.Code, what, where, card.Code, card.Code))
}

// over fires when the wait has been long enough; nil while nothing is waited for.
func (w *approvalWait) over() <-chan time.Time {
	if w.timer == nil {
		return nil
	}
	return w.timer.C
}

func (w *approvalWait) end() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

func (w *approvalWait) codes() string {
	codes := make([]string, 0, len(w.open))
	for _, code := range w.open {
		codes = append(codes, code)
	}
	slices.Sort(codes)
	return strings.Join(codes, ", ")
}

// sentence ends the completion.
func (w *approvalWait) sentence(thread int64) string {
	return say(w.language,
		fmt.Sprintf("Still waiting for approval %s; nothing was run yet. When somebody decides, the answer will stand in conversation %d.", w.codes(), thread),
		fmt.Sprintf("仍在等待审批 %s，尚未执行任何操作。有人审批之后，答复会出现在会话 %d 中。", w.codes(), thread))
}

func clipRunes(s string, most int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// aside streams words that are not part of the answer.
func (c *completionWriter) aside(words string) error {
	if words == "" || !c.req.stream {
		return nil
	}
	before := ""
	if c.begun {
		before = "\n\n"
	}
	if err := c.begin(); err != nil {
		return err
	}
	c.loose = true
	return c.chunk(append(appendString([]byte(`{"content":`), before+words+"\n\n"), '}'), "")
}

// anew forgets what was sent of the answer: it goes on with another text.
func (c *completionWriter) anew() error {
	had := c.sent.Len() > 0
	c.sent.Reset()
	c.loose = true
	if !had || !c.begun {
		return nil
	}
	return c.chunk([]byte(`{"content":"\n\n"}`), "")
}

// pending ends a completion whose turn still waits.
func (c *completionWriter) pending(words string) error {
	if c.req.stream {
		if err := c.aside(words); err != nil {
			return err
		}
	} else {
		c.sent.Reset()
		c.sent.WriteString(words)
	}
	return c.finish("", "stop", 0, 0)
}
