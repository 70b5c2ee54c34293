package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
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

// asideWithin is how long words beside the answer wait for the end of its sentence.
const asideWithin = time.Second

// aside streams words that are not part of the answer, as lines of their own: they wait until a sentence of the answer that
// has begun is whole, or due fires.
func (c *completionWriter) aside(words string) error {
	if words == "" || !c.req.stream {
		return nil
	}
	c.held = append(c.held, words)
	if c.midSentence() {
		if c.due == nil {
			c.due = time.After(asideWithin)
		}
		return nil
	}
	return c.release()
}

// release streams the words beside the answer that wait.
func (c *completionWriter) release() error {
	held := c.held
	c.held, c.due = nil, nil
	for _, words := range held {
		before := ""
		if c.begun && !strings.HasSuffix(c.tail, "\n\n") {
			before = "\n\n"
		}
		if err := c.begin(); err != nil {
			return err
		}
		c.loose = true
		if err := c.content(before + words + "\n\n"); err != nil {
			return err
		}
	}
	return nil
}

// midSentence says whether what was streamed last ends within a sentence. A full stop ends one only with the space after
// it: the next piece may go on with a digit.
func (c *completionWriter) midSentence() bool {
	if c.tail == "" || strings.HasSuffix(c.tail, "\n") {
		return false
	}
	text := strings.TrimRight(c.tail, " \t")
	last, _ := utf8.DecodeLastRuneInString(text)
	return !strings.ContainsRune("。！？；：", last) && (text == c.tail || !strings.ContainsRune(".!?:;…", last))
}

// anew begins with another text of the same answer. When it says again what the client has, only what follows is sent.
func (c *completionWriter) anew() error {
	if c.shown == "" {
		c.shown = c.sent.String()
	}
	c.sent.Reset()
	c.loose = true
	return c.release()
}

// pending ends a completion whose turn still waits.
func (c *completionWriter) pending(words string) error {
	if c.req.stream {
		c.held = append(c.held, words)
		if err := c.release(); err != nil {
			return err
		}
	} else {
		c.sent.Reset()
		c.sent.WriteString(words)
	}
	return c.finish("", "stop", 0, 0)
}
