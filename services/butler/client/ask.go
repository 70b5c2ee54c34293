package client

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// ButlerID is Butler's id, under which people address it.
const ButlerID = 2

// Question is a message for Butler.
type Question struct {
	// LocalID is the message's own id: sending it again is never a second message. NewLocalID makes one.
	LocalID string
	// ConversationID is the conversation; 0 means the person's default one.
	ConversationID int64
	Text           string
}

// NewLocalID makes an id for a message.
func NewLocalID() string { return "cli-" + rand.Text() }

// Progress is told what happens on the way to an answer. All methods are called from the goroutine of Ask, in order.
type Progress interface {
	// Accepted says that the message is in the log: from now on an answer is certain.
	Accepted(conversation int64)
	// Text is the next piece of the answer. restarted means that what came before it is void.
	Text(piece string, restarted bool)
}

// ApprovalProgress is what a Progress may be told beside: of requests for approval that the answer waits for, and of the
// output of commands.
type ApprovalProgress interface {
	// Approval is news of a request; it comes again with each change.
	Approval(a Approval)
	// Output is the next piece of a command's output.
	Output(id, piece string)
}

// EchoProgress is what a Progress may be told beside: how the message stands in the log.
type EchoProgress interface {
	// Echo comes after Accepted with the text that was written: dots instead of what answers a password prompt. It may come
	// more than once, and not at all when the connection was lost.
	Echo(text string)
}

// Answer is Butler's final message.
type Answer struct {
	Frame
}

// Failed says that there is no whole answer; the text says why, or is what there was until it was stopped.
func (a Answer) Failed() bool { return a.Status != "" && a.Status != "answered" }

const (
	// maxRefusals is how often a message that the server cannot take now is sent again.
	maxRefusals = 8
	// lookEvery is how often the history is asked after frames were missed.
	lookEvery = 2 * time.Second
)

// Ask sends a question and blocks until its final answer, through lost connections: it is sent again under its id until
// it is accepted, and what was missed of the answer is fetched. It fails when the server refuses the message, when the
// connection stays lost for FeedOptions.GiveUp, or when ctx ends; in the last two cases a message that was accepted is
// answered all the same. Several questions may be asked at once; who wants them in order sends the next one when
// Progress.Accepted was told of the one before.
func (f *Feed) Ask(ctx context.Context, q Question, progress Progress) (Answer, error) {
	a, connected, err := f.begin(q.LocalID)
	if err != nil {
		return Answer{}, err
	}
	defer f.finish(a)
	t := turn{feed: f, q: q, progress: progress}
	if connected {
		t.send(ctx)
	}
	giveUp := time.NewTimer(f.o.GiveUp)
	defer giveUp.Stop()
	if connected {
		giveUp.Stop()
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return Answer{}, ctx.Err()
		case <-giveUp.C:
			return Answer{}, t.lost()
		case <-t.retry:
			t.retry = nil
			t.send(ctx)
		case <-look.C:
			if answer, ok := t.lookUp(ctx); ok {
				return answer, nil
			}
		case e := <-a.events:
			switch {
			case e.err != nil:
				return Answer{}, e.err
			case e.frame != nil:
				answer, done, err := t.frame(e.frame)
				if done || err != nil {
					return answer, err
				}
			case e.connected:
				giveUp.Stop()
				if !t.accepted || t.missed {
					t.send(ctx)
				}
			default:
				giveUp.Reset(f.o.GiveUp)
			}
		}
	}
}

// turn is where a question stands.
type turn struct {
	feed     *Feed
	q        Question
	progress Progress

	accepted bool
	missed   bool // frames were missed: the answer may be in the history already
	refusals int
	retry    <-chan time.Time
	stream   string // whose text was told
	void     bool   // that stream was abandoned
}

func (t *turn) send(ctx context.Context) {
	frame := map[string]any{"type": frameChat, "target_id": ButlerID, "local_id": t.q.LocalID, "payload": t.q.Text}
	if t.q.ConversationID != 0 {
		frame["conversation_id"] = t.q.ConversationID
	}
	t.feed.write(ctx, frame)
}

func (t *turn) lost() error {
	if t.accepted {
		return fault.New(fault.Unavailable,
			t.feed.c.say("the connection to %s is lost; Butler answers all the same: see `butler sessions show %d`",
				"与 %s 的连接已断开；Butler 仍会回答，请查看 `butler sessions show %d`"), t.feed.c.Server(), t.q.ConversationID)
	}
	return fault.New(fault.Unavailable, t.feed.c.say("the connection to %s is lost and it is not known whether the message was accepted: "+
		"look with `butler sessions list` before you send it again",
		"与 %s 的连接已断开，无法确定消息是否已送达；请先用 `butler sessions list` 查看，再决定是否重发"), t.feed.c.Server())
}

// frame takes one frame; done means that it is the final answer.
func (t *turn) frame(f *Frame) (answer Answer, done bool, err error) {
	switch f.Type {
	case frameError:
		return Answer{}, false, t.refused(f)
	case frameGap:
		t.missed = true
	case frameChat:
		if f.ReplyToLocalID == t.q.LocalID {
			t.accept(f.ConversationID)
			return Answer{*f}, true, nil
		}
		t.accept(f.ConversationID)
		if p, ok := t.progress.(EchoProgress); ok && f.LocalID == t.q.LocalID {
			p.Echo(f.Text)
		}
	case frameAuthRequest, frameAuthStatus:
		t.accept(f.ConversationID)
		if p, ok := t.progress.(ApprovalProgress); ok {
			p.Approval(*f.Approval)
		}
	case frameStream:
		t.accept(f.ConversationID)
		if isOutput(f.StreamID) {
			if p, ok := t.progress.(ApprovalProgress); ok {
				p.Output(f.StreamID, f.Text)
			}
			break
		}
		restarted := t.stream != "" && (t.void || f.StreamID != t.stream)
		t.stream, t.void = f.StreamID, false
		t.progress.Text(f.Text, restarted)
	case frameStreamEnd:
		t.void = f.StreamID == t.stream
	}
	return Answer{}, false, nil
}

func (t *turn) accept(conversation int64) {
	if t.accepted {
		return
	}
	t.accepted = true
	t.q.ConversationID = conversation
	t.progress.Accepted(conversation)
}

// refused decides about an error frame: nil when the message is sent again.
func (t *turn) refused(f *Frame) error {
	if t.accepted && f.LocalID == "" {
		return nil // not about this message
	}
	err := &fault.Error{Code: f.Code, Message: printable(f.Text), RetryAfter: time.Duration(f.RetryAfter) * time.Second}
	if fault.ClassOf(err) != fault.Transient || t.refusals >= maxRefusals {
		return err
	}
	t.refusals++
	t.retry = time.After(max(min(err.RetryAfter, time.Minute), time.Duration(t.refusals)*250*time.Millisecond))
	return nil
}

// lookUp looks for the answer in the history, once frames were missed.
func (t *turn) lookUp(ctx context.Context) (Answer, bool) {
	if !t.missed || t.q.ConversationID == 0 {
		return Answer{}, false
	}
	page, err := t.feed.c.Messages(ctx, t.q.ConversationID, 0, 50)
	if err != nil {
		return Answer{}, false // the next look, or a frame, brings it
	}
	for _, m := range page.Items {
		if m.ReplyToLocalID == t.q.LocalID {
			return Answer{Frame{
				Type: frameChat, ID: m.ID, LocalID: m.LocalID, ConversationID: m.ConversationID, SenderName: m.SenderName,
				SenderRole: m.SenderRole, Text: m.Text, StreamID: m.StreamID, ReplyToLocalID: m.ReplyToLocalID,
				Status: m.Status, Reason: m.Reason, Timestamp: m.Timestamp, Usage: m.Usage,
			}}, true
		}
	}
	return Answer{}, false
}
