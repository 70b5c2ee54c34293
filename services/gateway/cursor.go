package gateway

import (
	"strconv"

	"github.com/butlerhub/butler/pkg/fault"
)

// cursor is where a client stands: the last sequence of CHAT and the last of DELTA of which it has seen everything that
// concerns its person. Both streams are ordered, so the pair means the same on every gateway.
type cursor struct {
	chat, delta uint64
}

// deltaBits is how much of a cursor's number is the sequence in DELTA: the rest of its 53 bits is the one in CHAT.
const (
	deltaBits = 21
	deltaMask = 1<<deltaBits - 1
	maxCursor = 1<<53 - 1 // what a JavaScript number holds exactly
)

// number gives the cursor as clients see it.
func (c cursor) number() uint64 { return c.chat<<deltaBits | c.delta&deltaMask }

func (c cursor) appendTo(b []byte) []byte { return strconv.AppendUint(b, c.number(), 10) }

// max gives the later position of each stream.
func (c cursor) max(o cursor) cursor { return cursor{max(c.chat, o.chat), max(c.delta, o.delta)} }

// parseCursor reads what a client gives as ?after= or Last-Event-ID. Of the sequence in DELTA only the lower bits are
// known: see resolve.
func parseCursor(s string) (cursor, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > maxCursor {
		return cursor{}, fault.New(fault.Invalid, "after must be the seq of the last frame you received, a whole number")
	}
	return cursor{chat: n >> deltaBits, delta: n & deltaMask}, nil
}

// resolve completes the sequence in DELTA, given the stream's newest: the newest one that ends in the known bits. When
// there is none, because the stream began anew, it is 0, the stream's start.
func (c cursor) resolve(last uint64) cursor {
	back := (last - c.delta) & deltaMask
	if back > last {
		return cursor{chat: c.chat}
	}
	return cursor{chat: c.chat, delta: last - back}
}
