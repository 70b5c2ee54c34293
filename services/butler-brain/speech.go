package brain

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// maxDelta bounds the text of one delta, in bytes.
const maxDelta = 64 << 10

// speech is the streamed text of one attempt at a turn. What the model says is collected for a short time and published
// without waiting for anything. There is one stream as long as all goes well; when a call of the model fails after some of
// its text was shown, that stream is ended and the next one begins with what was said before that call.
type speech struct {
	s     *Service
	turn  chat.Turn
	local string // the question's local_id
	tag   string // tells this attempt's streams from those of any other

	mu      sync.Mutex
	nth     int             // streams begun
	id      string          // of the current stream
	index   int32           // deltas published in it
	text    strings.Builder // everything said in it
	pending strings.Builder // of that, what is not published yet
	last    time.Time       // when something was published
	timer   func()          // stops the timer that publishes what is pending
	kept    int             // length of text that belongs to calls that are complete
}

func newSpeech(s *Service, turn chat.Turn, local string) *speech {
	sp := &speech{s: s, turn: turn, local: local, tag: newTag()}
	sp.begin()
	return sp
}

// newTag makes a tag by chance: attempts are not always counted, since a crash of NATS can make a delivery the first one
// again, and two streams of one name would run into each other at the client.
func newTag() string { return strings.ToLower(rand.Text()[:8]) }

// streamID names the nth stream of an attempt.
func streamID(turn chat.Turn, tag string, nth int) string {
	return fmt.Sprintf("%s-%s-%d", turn.ID, tag, nth)
}

func (sp *speech) begin() {
	sp.nth++
	sp.id = streamID(sp.turn, sp.tag, sp.nth)
	sp.index, sp.kept = 0, 0
	sp.text.Reset()
	sp.pending.Reset()
}

// say adds text.
func (sp *speech) say(text string) {
	if text == "" {
		return
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.text.WriteString(text)
	sp.pending.WriteString(text)
	now := sp.s.clock.Now()
	wait := sp.s.settings.Coalesce - now.Sub(sp.last)
	if wait <= 0 || sp.pending.Len() >= maxDelta {
		sp.publish(now)
	} else if sp.timer == nil {
		sp.timer = sp.s.clock.AfterFunc(wait, func() {
			sp.mu.Lock()
			defer sp.mu.Unlock()
			sp.timer = nil
			sp.publish(sp.s.clock.Now())
		})
	}
}

// keep says that all text so far belongs to complete calls of the model; a paragraph separates it from what follows.
func (sp *speech) keep() {
	sp.mu.Lock()
	empty := sp.text.Len() == sp.kept
	sp.mu.Unlock()
	if !empty {
		sp.say("\n\n")
	}
	sp.mu.Lock()
	sp.kept = sp.text.Len()
	sp.mu.Unlock()
}

// retract gives up what was said since the last keep: if some of it may have been seen, the stream ends, and a new one
// begins with what is kept.
func (sp *speech) retract() {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.text.Len() == sp.kept {
		return
	}
	kept := sp.text.String()[:sp.kept]
	if sp.index > 0 {
		sp.pending.Reset()
		sp.end(sp.id, sp.index+1)
	}
	sp.begin()
	sp.text.WriteString(kept)
	sp.pending.WriteString(kept)
	sp.kept = len(kept)
}

// abandon takes back everything: if some of it may have been seen, the stream ends and an empty one begins.
func (sp *speech) abandon() {
	sp.mu.Lock()
	sp.kept = 0
	sp.mu.Unlock()
	sp.retract()
}

// finish publishes what is pending and gives the whole text, its stream and the number of its deltas. Nothing may be said
// afterwards.
func (sp *speech) finish() (text, id string, deltas int32) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.timer != nil {
		sp.timer()
		sp.timer = nil
	}
	sp.publish(sp.s.clock.Now())
	return sp.text.String(), sp.id, sp.index
}

// publish sends what is pending. What cannot be sent stays pending and is tried again with the next piece.
func (sp *speech) publish(now time.Time) {
	for sp.pending.Len() > 0 {
		all := sp.pending.String()
		piece := all
		if len(piece) > maxDelta {
			cut := maxDelta
			for cut > 0 && !utf8.RuneStart(piece[cut]) {
				cut--
			}
			piece = piece[:cut]
		}
		delta := &butlerv1.ChatDelta{StreamId: sp.id, Index: sp.index + 1, Text: piece}
		if !sp.send(delta) {
			return
		}
		sp.index++
		sp.last = now
		sp.pending.Reset()
		sp.pending.WriteString(all[len(piece):])
	}
}

func (sp *speech) end(stream string, index int32) {
	sp.send(&butlerv1.ChatDelta{StreamId: stream, Index: index, End: true})
}

func (sp *speech) send(d *butlerv1.ChatDelta) bool {
	d.Turn, d.ConversationId, d.ReplyToLocalId = sp.turn.ID, sp.turn.Thread, sp.local
	data, err := chat.EncodeDelta(d)
	if err != nil {
		sp.s.log.Error("a delta cannot be written", "error", err)
		return false
	}
	ev := bus.NewEvent(chat.TypeDelta, sp.s.bus.Source(), sp.turn.Delta(), data)
	return sp.s.bus.Send(context.Background(), ev) == nil
}

// endAbandoned ends the streams that an earlier attempt at the turn left open, so that no client waits for more.
func (sp *speech) endAbandoned(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	open := map[string]int32{}
	events, err := sp.s.bus.Load(ctx, bus.DeltaStream, sp.turn.Delta(), 0, 0)
	if err != nil {
		return // best effort: the next stream replaces them in every client
	}
	for _, ev := range events {
		var d butlerv1.ChatDelta
		if chat.Decode(ev.Data, &d) != nil || d.Turn != sp.turn.ID || approval.ValidID(d.StreamId) {
			continue // the stream of an approval goes on with the output of its command
		}
		if d.End {
			delete(open, d.StreamId)
		} else {
			open[d.StreamId] = d.Index
		}
	}
	for id, index := range open {
		sp.end(id, index+1)
	}
}
