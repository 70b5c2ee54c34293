package shell

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/redact"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

const (
	// coalesce is how long output is collected before it is published; an unfinished line waits a little longer, since it
	// may be a progress bar that writes over itself.
	coalesce  = 30 * time.Millisecond
	lineWaits = 250 * time.Millisecond
	// maxDelta bounds the text of one delta, and maxStreamed that of all deltas of one command, in bytes. What is more is
	// told at the end, and stands in the log.
	maxDelta    = 32 << 10
	maxStreamed = 512 << 10
	// keepHead and keepTail are what the outcome keeps of long output.
	keepHead = 16 << 10
	keepTail = 48 << 10
)

// output is what one command prints, on its way to people: redacted as one stream, without control sequences, published in
// pieces to the conversation, its beginning and end kept for the outcome; when that is not all, the whole goes into the log.
type output struct {
	s    *Service
	req  *butlerv1.ExecuteRequest
	mu   sync.Mutex
	safe *redact.Stream
	text plain // below safe

	pending  bytes.Buffer // to be published
	index    int32        // deltas published
	streamed int
	last     time.Time
	timer    *time.Timer
	full     bool // no more is published: maxStreamed was reached, or the program draws on the screen
	pages    int  // times the screen was begun anew
	shown    bool // a picture of the screen was published
	closed   bool

	head  []byte
	tail  []byte // the last keepTail bytes or a little more
	total int64  // bytes of text
	raw   int64  // bytes that the command printed
	// unread of them came faster than they could be read.
	unread int64
	before int64      // bytes of text in the log that are not counted in total
	log    *outputLog // once the text is longer than what the outcome keeps; nil when output is not logged
}

func (s *Service) newOutput(req *butlerv1.ExecuteRequest) *output {
	o := &output{s: s, req: req}
	o.text.emit, o.text.home = o.collect, o.page
	o.safe = s.redactor.Stream(&o.text)
	return o
}

// take takes a piece as package tmux gives it.
func (o *output) take(p tmux.Output) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.raw += p.Skipped + int64(len(p.Data))
	if p.Skipped > 0 {
		o.unread += p.Skipped
		_ = o.safe.Flush()
		o.collect(fmt.Appendf(nil, "\n[… %d bytes …]\n", p.Skipped))
	}
	_, _ = o.safe.Write(p.Data)
	// What is held back until its line ends may be a prompt that somebody waits for.
	_ = o.safe.Flush()
	o.schedule()
}

// collect takes text that may be shown. o.mu is held.
func (o *output) collect(text []byte) {
	o.total += int64(len(text))
	if room := keepHead - len(o.head); room > 0 {
		o.head = append(o.head, text[:min(room, len(text))]...)
		text2 := text[min(room, len(text)):]
		o.tail = append(o.tail, text2...)
	} else {
		o.tail = append(o.tail, text...)
	}
	if o.log != nil {
		o.log.add(text)
	} else if o.total > keepHead+keepTail {
		if o.log = o.s.newOutputLog(o.req, nil, 0); o.log != nil { // head and tail are all of it
			o.log.add(slices.Concat(o.head, o.tail)) // which may meet inside a character
		}
	}
	if len(o.tail) > 2*keepTail {
		o.tail = append(o.tail[:0], o.tail[len(o.tail)-keepTail:]...)
	}
	if o.full {
		return
	}
	if o.streamed+o.pending.Len()+len(text) > maxStreamed {
		o.full = true
		text = fmt.Appendf(nil, "\n[… the output goes on; what is shown here ends after %d KiB%s …]\n", maxStreamed>>10, o.elsewhere())
	}
	o.pending.Write(text)
}

// maxPages is how often a command may begin the screen anew before its further output is not published: it draws.
const maxPages = 2

// page takes that the screen is written anew, as top does it: of what stood there nothing is kept. o.mu is held.
func (o *output) page() {
	if o.total == 0 {
		return
	}
	if o.log != nil {
		o.before += o.total
	}
	o.head, o.tail, o.total = nil, nil, 0
	if o.pages++; o.pages == maxPages && !o.full {
		o.pending.WriteString("\n[… it draws on the screen: /screen shows that …]\n")
		o.full = true
	}
}

// show publishes a picture of the screen, once.
func (o *output) show(screen string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.shown || screen == "" {
		return
	}
	o.shown = true
	o.publish()
	o.index++
	o.send(&butlerv1.ChatDelta{Index: o.index, Text: screen + "\n"})
}

// schedule publishes what is pending, now or a moment later. o.mu is held.
func (o *output) schedule() {
	wait := coalesce - time.Since(o.last)
	switch {
	case o.timer != nil:
		return
	case o.pending.Len() == 0 && !o.text.holds():
		return
	case o.pending.Len() == 0:
		wait = lineWaits
	case wait <= 0 || o.pending.Len() >= maxDelta:
		o.publish()
		o.schedule() // of an unfinished line
		return
	}
	o.timer = time.AfterFunc(wait, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.timer = nil
		if o.closed {
			return
		}
		if o.pending.Len() == 0 {
			o.text.pass()
		}
		o.publish()
		o.schedule()
	})
}

// publish sends what is pending. o.mu is held.
func (o *output) publish() {
	for o.pending.Len() > 0 {
		all := o.pending.Bytes()
		cut := len(all)
		if cut > maxDelta {
			// Not inside a character; what is no text is cut anywhere.
			for cut = maxDelta; cut > maxDelta-utf8.UTFMax && !utf8.RuneStart(all[cut]); cut-- {
			}
		}
		text := strings.ToValidUTF8(string(o.pending.Next(cut)), "\uFFFD")
		o.streamed += len(text)
		o.index++
		o.send(&butlerv1.ChatDelta{Index: o.index, Text: text})
	}
	o.last = time.Now()
}

func (o *output) send(d *butlerv1.ChatDelta) {
	w := o.req.GetWaiter()
	if w.GetPerson() == 0 {
		return
	}
	d.StreamId, d.Turn, d.ConversationId, d.ReplyToLocalId = o.req.GetApprovalId(), w.GetTurn(), w.GetThread(), o.req.GetLocalId()
	data, err := chat.EncodeDelta(d)
	if err != nil {
		o.s.log.Error("a delta cannot be written", "error", err)
		return
	}
	session := chat.Session{Person: w.GetPerson(), Thread: w.GetThread()}
	// Best effort: the outcome has the text too.
	_ = o.s.bus.Send(context.Background(), bus.NewEvent(chat.TypeDelta, o.s.bus.Source(), session.Delta(), data))
}

// flush publishes all that can be, since nothing more is expected soon.
func (o *output) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	_ = o.safe.Flush()
	o.text.pass()
	o.publish()
}

// soFar gives what would be the outcome's output now.
func (o *output) soFar() (text string, bytes int64, cut bool, redacted int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept()
}

// close ends the stream and gives what is kept of the output. Calling it again gives the same.
func (o *output) close() (text string, bytes int64, cut bool, redacted int32) {
	if o == nil {
		return "", 0, false, 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		_ = o.safe.Close()
		o.text.end()
		if o.timer != nil {
			o.timer.Stop()
			o.timer = nil
		}
		o.publish()
		o.send(&butlerv1.ChatDelta{Index: o.index + 1, End: true})
		if o.log != nil {
			o.log.close()
		}
	}
	return o.kept()
}

// deltas is how many pieces were streamed.
func (o *output) deltas() int32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.index
}

// logged gives what brings the output into the log, nil when it is short.
func (o *output) logged() *outputLog {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.log
}

// summary says what of a long output stands in the log, once logged is done.
func (o *output) summary() *butlerv1.OutputLog {
	o.mu.Lock()
	defer o.mu.Unlock()
	sum := o.log.summary()
	sum.Unread = o.unread
	return sum
}

// elsewhere says, for people, where the whole output is. o.mu is held.
func (o *output) elsewhere() string {
	switch {
	case o.log == nil:
		return ""
	case o.log.beyond() > 0:
		return fmt.Sprintf("; the first %s: butler shell log %s; %d bytes more are not in the log", inBytes(o.log.limit), o.log.id, o.log.beyond())
	}
	if o.unread > 0 {
		return "; more of it: butler shell log " + o.log.id
	}
	return "; all of it: butler shell log " + o.log.id
}

func inBytes(n int64) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// kept is the text for the outcome. o.mu is held.
func (o *output) kept() (text string, bytes int64, cut bool, redacted int32) {
	for _, f := range o.safe.Found() {
		redacted += int32(f.Count)
	}
	tail := o.tail
	if skipped := o.total - int64(len(o.head)) - int64(len(tail)); skipped > 0 || len(tail) > keepTail {
		tail = tail[max(0, len(tail)-keepTail):]
		skipped = o.total - int64(len(o.head)) - int64(len(tail))
		text = fmt.Sprintf("%s\n[… %d bytes%s …]\n%s", o.head, skipped, o.elsewhere(), tail)
		cut = true
	} else {
		text = string(o.head) + string(tail)
	}
	if o.before > 0 {
		text = fmt.Sprintf("[… %d bytes%s …]\n%s", o.before, o.elsewhere(), text)
		cut = true
	}
	return strings.ToValidUTF8(strings.TrimRight(text, "\n"), "\uFFFD"), o.raw, cut, redacted
}

// plain takes terminal output and emits text: no escape sequences and no control characters but newline and tab, a line
// that was written over as it last stood. It is fed with any cut of the stream.
type plain struct {
	emit func([]byte)
	home func() // the screen is begun anew; may be nil

	params []byte // of a control sequence
	state  int
	line   []byte // of the current line, what was not emitted
	shown  bool   // some of the current line was emitted
	cr     bool   // a carriage return was seen: what comes writes over the line
}

const (
	inText = iota
	inEscape
	inCSI
	inString    // OSC, DCS, …: until BEL or ST
	inStringEsc // ESC within
	inCharset
)

// maxLine bounds what is held of one line.
const maxLine = 4 << 10

// Write takes the next piece; it never fails. A line is emitted when it is complete, or by pass.
func (p *plain) Write(data []byte) (int, error) {
	for _, b := range data {
		p.take(b)
	}
	return len(data), nil
}

// holds says whether there is an unfinished line that was not emitted.
func (p *plain) holds() bool { return len(p.line) > 0 }

func (p *plain) take(b byte) {
	switch p.state {
	case inEscape:
		switch b {
		case '[':
			p.state, p.params = inCSI, p.params[:0]
		case ']', 'P', 'X', '^', '_':
			p.state = inString
		case '(', ')', '*', '+', '#', '%':
			p.state = inCharset
		case 0x1b:
		default:
			p.state = inText
		}
		return
	case inCSI:
		switch {
		case b >= 0x40 && b <= 0x7e || b == '\n':
			p.state = inText
			if at := string(p.params); (b == 'H' || b == 'f') && (at == "" || at == "1" || at == "1;1") && p.home != nil {
				p.line, p.cr, p.shown = p.line[:0], false, false
				p.home()
			}
		case len(p.params) < 8:
			p.params = append(p.params, b)
		}
		return
	case inString:
		switch b {
		case 0x07:
			p.state = inText
		case 0x1b:
			p.state = inStringEsc
		}
		return
	case inStringEsc:
		if p.state = inString; b == '\\' {
			p.state = inText
		}
		return
	case inCharset:
		p.state = inText
		return
	}
	switch {
	case b == 0x1b:
		p.state = inEscape
	case b == '\n':
		p.cr = false
		p.line = append(p.line, '\n')
		p.pass()
		p.shown = false
	case b == '\r':
		p.cr = true
	case b == '\b':
		if n := len(p.line); n > 0 && !p.cr {
			_, size := utf8.DecodeLastRune(p.line)
			p.line = p.line[:n-size]
		}
	case b < 0x20 && b != '\t' || b == 0x7f:
	default:
		if p.cr { // written over
			p.cr = false
			p.line = p.line[:0]
			if p.shown { // it cannot be taken back
				p.line = append(p.line, '\n')
				p.shown = false
			}
		}
		p.line = append(p.line, b)
		if len(p.line) > maxLine {
			p.pass()
		}
	}
}

// pass emits what is held, whole characters only.
func (p *plain) pass() {
	n := len(p.line)
	for back := 1; back <= min(n, utf8.UTFMax-1); back++ {
		if c := p.line[n-back]; utf8.RuneStart(c) {
			if c >= 0x80 && !utf8.FullRune(p.line[n-back:]) {
				n -= back
			}
			break
		}
	}
	if n > 0 {
		p.emit(p.line[:n])
		p.line = append(p.line[:0], p.line[n:]...)
		p.shown = true
	}
}

// end emits the last line.
func (p *plain) end() {
	if len(p.line) > 0 {
		p.emit(p.line)
		p.line = p.line[:0]
	}
}
