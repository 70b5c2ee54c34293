package shell

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

const (
	// maxPiece bounds the text of one piece, in bytes; pieceAge is how long one is filled.
	maxPiece = 256 << 10
	pieceAge = 5 * time.Second
	// maxQueued bounds what waits for the log of one command, maxQueuedAll that of all commands, in bytes. What does not
	// fit is missing in the log, which says so.
	maxQueued    = 16 << 20
	maxQueuedAll = 64 << 20
	// maxGaps bounds how many places are named where output is missing.
	maxGaps = 100
	// defaultLogOutput bounds what is logged of one command, in bytes.
	defaultLogOutput = 64 << 20
)

// outputLog brings the text of one command into the stream SHELL, in pieces. add never blocks: what the log cannot take in
// time is dropped and counted.
type outputLog struct {
	s       *Service
	id      string // of the approval
	subject string
	limit   int64
	resumed bool // pieces of an earlier process come before
	cancel  context.CancelFunc
	wake    chan struct{} // holds a token when the writer should look
	done    chan struct{} // closed when nothing more is written

	mu     sync.Mutex
	buf    []byte    // the piece that is being filled; it ends where total is
	since  time.Time // when buf began
	queue  []piece
	queued int
	total  int64 // bytes of text so far, within the bound
	gone   bool  // the writer ended
	closed bool
	sum    butlerv1.OutputLog

	// Only of the writer.
	number int64
	seq    uint64 // of the last piece
}

// piece is a part of the text.
type piece struct {
	offset int64
	text   string
}

func outputSubject(host string, req *butlerv1.ExecuteRequest) string {
	return approval.OutputSubject(host, req.GetEffect().GetSession(), req.GetApprovalId())
}

// newOutputLog begins to log the output of a command, after the last piece of an earlier process when there is one. nil
// when no output is logged.
func (s *Service) newOutputLog(req *butlerv1.ExecuteRequest, last *butlerv1.ShellOutput, seq uint64) *outputLog {
	limit := s.settings.Load().LogOutput
	if limit < 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(s.life)
	l := &outputLog{
		s: s, id: req.GetApprovalId(), subject: outputSubject(s.host, req), limit: limit, cancel: cancel,
		wake: make(chan struct{}, 1), done: make(chan struct{}), number: last.GetNumber(), seq: seq, resumed: last != nil,
		total: last.GetOffset() + int64(len(last.GetText())),
	}
	l.sum.Pieces, l.sum.Bytes, l.sum.Limit, l.sum.Interrupted = l.number, l.total, limit, l.resumed
	go l.write(ctx)
	return l
}

// add takes the next text.
func (l *outputLog) add(text []byte) {
	valid := bytes.ToValidUTF8(text, []byte("\uFFFD")) // texts are cut between characters before they come here
	l.mu.Lock()
	defer l.mu.Unlock()
	if room := max(0, l.limit-l.total); l.sum.GetBeyond() > 0 || int64(len(valid)) > room {
		cut := 0
		if l.sum.GetBeyond() == 0 {
			cut = wholeRunes(valid, int(room))
		}
		l.sum.Beyond += int64(len(valid) - cut)
		valid = valid[:cut]
	}
	if len(valid) == 0 {
		return
	}
	if l.gone {
		l.miss(l.total, int64(len(valid)))
		l.total += int64(len(valid))
		return
	}
	if len(l.buf) == 0 {
		l.since = time.Now()
		l.look()
	}
	l.buf = append(l.buf, valid...)
	l.total += int64(len(valid))
	for len(l.buf) >= maxPiece {
		l.enqueue(wholeRunes(l.buf, maxPiece))
	}
}

// wholeRunes gives the longest beginning of text of at most n bytes that ends between two characters.
func wholeRunes(text []byte, n int) int {
	if n >= len(text) {
		return len(text)
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return n
}

// enqueue hands the first n bytes of buf to the writer, or drops them when too much waits. l.mu is held.
func (l *outputLog) enqueue(n int) {
	p := piece{l.total - int64(len(l.buf)), string(l.buf[:n])}
	l.buf = append(l.buf[:0], l.buf[n:]...)
	l.since = time.Now()
	if l.queued+n > l.s.maxQueued || !l.s.room(n) {
		l.miss(p.offset, int64(n))
		return
	}
	l.queued += n
	l.queue = append(l.queue, p)
	l.look()
}

// room takes n bytes of what may wait for the log, when there are so many.
func (s *Service) room(n int) bool {
	if s.outputQueued.Add(int64(n)) > maxQueuedAll {
		s.outputQueued.Add(-int64(n))
		return false
	}
	return true
}

func (l *outputLog) look() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// miss notes that n bytes are missing. l.mu is held.
func (l *outputLog) miss(offset, n int64) {
	if n == 0 {
		return
	}
	if k := len(l.sum.GetMissing()); k > 0 {
		last := l.sum.Missing[k-1]
		if last.GetOffset()+last.GetBytes() == offset || k == maxGaps {
			last.Bytes = offset + n - last.GetOffset()
			return
		}
	}
	l.sum.Missing = append(l.sum.Missing, &butlerv1.OutputGap{Offset: offset, Bytes: n})
}

// next gives the piece to write now; when wait is not 0, none is there yet. more is false when none will come.
func (l *outputLog) next() (p piece, wait time.Duration, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 && len(l.buf) > 0 {
		wait = pieceAge - time.Since(l.since)
		if !l.closed && wait > 0 {
			return piece{}, wait, true
		}
		l.enqueue(len(l.buf))
	}
	switch {
	case len(l.queue) > 0:
		return l.queue[0], 0, true
	case l.closed:
		l.gone = true
		return piece{}, 0, false
	}
	return piece{}, time.Hour, true
}

// write appends the pieces until the log is closed and all of it was written, or ctx ends.
func (l *outputLog) write(ctx context.Context) {
	defer close(l.done)
	defer l.cancel()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p, wait, more := l.next()
		if !more {
			return
		}
		if wait == 0 {
			if err := l.append(ctx, p); err != nil { // it tried as long as that makes sense
				l.s.log.ErrorContext(ctx, "output of a command could not be logged", "approval", l.id, "offset", p.offset, "error", err)
				l.giveUp()
				return
			}
			l.wrote(p)
			continue
		}
		timer.Reset(wait)
		select {
		case <-l.wake:
		case <-timer.C:
		case <-ctx.Done():
			l.giveUp()
			return
		}
	}
}

func (l *outputLog) append(ctx context.Context, p piece) error {
	e := &butlerv1.ShellOutput{ApprovalId: l.id, Number: l.number + 1, Offset: p.offset, Text: p.text, Resumed: l.resumed}
	data, err := chat.Encode(e)
	if err != nil {
		return fmt.Errorf("shell: %w", err)
	}
	seq, err := l.s.bus.Append(ctx, bus.NewEvent(approval.TypeOutput, l.s.bus.Source(), l.subject, data), bus.Expect{Filter: l.subject, Seq: l.seq})
	if err == nil {
		l.seq, l.number, l.resumed = seq, e.GetNumber(), false
	}
	return err
}

// wrote takes a piece from the queue.
func (l *outputLog) wrote(p piece) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sum.Pieces, l.sum.Bytes = l.number, l.sum.GetBytes()+int64(len(p.text))
	l.drop()
}

// drop forgets the first of the queue. l.mu is held.
func (l *outputLog) drop() {
	n := len(l.queue[0].text)
	l.queue[0] = piece{}
	l.queue = l.queue[1:]
	l.queued -= n
	l.s.outputQueued.Add(-int64(n))
}

// giveUp counts all that waits as missing; nothing more is written.
func (l *outputLog) giveUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
	// In their order: gaps that are known may be between.
	known := l.sum.Missing
	l.sum.Missing = nil
	for len(l.queue) > 0 {
		p := l.queue[0]
		for len(known) > 0 && known[0].GetOffset() < p.offset {
			l.miss(known[0].GetOffset(), known[0].GetBytes())
			known = known[1:]
		}
		l.miss(p.offset, int64(len(p.text)))
		l.drop()
	}
	for _, g := range known {
		l.miss(g.GetOffset(), g.GetBytes())
	}
	l.miss(l.total-int64(len(l.buf)), int64(len(l.buf)))
	l.buf = nil
}

// close says that no more text comes. What waits is still written, for recordWait at most; done is closed then.
func (l *outputLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	time.AfterFunc(recordWait, l.cancel)
	l.look()
}

// beyond gives how many bytes came beyond the bound.
func (l *outputLog) beyond() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sum.GetBeyond()
}

// summary says what of the output stands in the log. It is final once done is closed.
func (l *outputLog) summary() *butlerv1.OutputLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	return proto.Clone(&l.sum).(*butlerv1.OutputLog)
}
