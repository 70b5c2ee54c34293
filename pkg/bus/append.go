package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/butlerhub/butler/pkg/fault"
)

// ErrFenced says that an append was refused for good: somebody else appended first.
var ErrFenced = errors.New("another writer was first")

// Expect is the condition of an append: the last sequence on any subject that matches Filter is Seq, 0 for none. All who
// write the same unit must use the same Filter: with different ones, appends that exclude each other have both been
// stored on three replicas.
type Expect struct {
	Filter string
	Seq    uint64
}

// JetStream's answers to a conditional append that did not pass. 10164 is what three replicas say; it carries no sequence
// and also means that another write is still on its way.
const (
	errWrongLastSequence         jetstream.ErrorCode = 10071
	errWrongLastSequenceConstant jetstream.ErrorCode = 10164
)

// attemptTimeout is how long one try of an append may take before it is tried again under the same id.
const attemptTimeout = 5 * time.Second

// Append stores ev when the condition holds and returns its sequence once it is on disk. It tries again, under the same
// id, while NATS does not answer, until ctx ends (fault.Unavailable: it may or may not be stored). A refusal is read back
// before it is believed: the own id there is success, anything else is ErrFenced.
func (b *Bus) Append(ctx context.Context, ev Event, expect Expect) (uint64, error) {
	msg, err := ev.message(ctx)
	if err != nil {
		return 0, fault.Wrap(err, fault.TooLarge, "the event is too large")
	}
	msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{seqString(expect.Seq)}
	msg.Header[jetstream.ExpectedLastSubjSeqSubjHeader] = []string{expect.Filter}
	stream := streamOf(ev.Subject)
	msg.Header[jetstream.ExpectedStreamHeader] = []string{stream}
	return b.append(ctx, msg, func(ctx context.Context) (uint64, error) {
		return b.readBack(ctx, stream, ev.ID, expect)
	})
}

// Publish stores ev without a condition and returns its sequence once it is on disk. It is tried again like Append; the
// stream drops a repetition by its id, for two minutes, so ctx should end before.
func (b *Bus) Publish(ctx context.Context, stream string, ev Event) (uint64, error) {
	msg, err := ev.message(ctx)
	if err != nil {
		return 0, fault.Wrap(err, fault.TooLarge, "the event is too large")
	}
	msg.Header[jetstream.ExpectedStreamHeader] = []string{stream}
	return b.append(ctx, msg, nil)
}

// Send publishes ev without waiting for anything; it is lost when there is no connection.
func (b *Bus) Send(ctx context.Context, ev Event) error {
	msg, err := ev.message(ctx)
	if err != nil {
		return err
	}
	// No id: the streams that take these do not check for duplicates, and remembering ids costs memory.
	delete(msg.Header, jetstream.MsgIDHeader)
	return b.nc.PublishMsg(msg)
}

// append publishes until the server has answered. refused, when set, settles what a refusal means: a sequence, an error,
// or 0 and nil to try again.
func (b *Bus) append(ctx context.Context, msg *nats.Msg, refused func(context.Context) (uint64, error)) (uint64, error) {
	wait := 20 * time.Millisecond
	var last error
	for {
		try, cancel := context.WithTimeout(ctx, attemptTimeout)
		ack, err := b.js.PublishMsg(try, msg)
		cancel()
		if err == nil {
			if ack.Duplicate && refused != nil {
				// An id is remembered by stream, not by subject: make sure that it is this event that is there.
				seq, err := refused(ctx)
				if seq == 0 && err == nil {
					err = ErrFenced
				}
				return seq, err
			}
			return ack.Sequence, nil
		}
		last = err
		var api *jetstream.APIError
		switch {
		case errors.As(err, &api) && (api.ErrorCode == errWrongLastSequence || api.ErrorCode == errWrongLastSequenceConstant):
			if refused == nil {
				return 0, ErrFenced
			}
			if seq, err := refused(ctx); seq != 0 || err != nil {
				return seq, err
			}
		case errors.As(err, &api) && api.Code < 500 && api.Code != 408:
			return 0, fault.Wrap(err, fault.Internal, "the log refuses the event")
		case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrConnectionClosed):
			return 0, fault.Wrap(err, fault.Internal, "the log cannot take the event")
		}
		if !sleep(ctx, wait/2+rand.N(wait)) {
			return 0, fault.Wrap(last, fault.Unavailable, "the log does not answer now; try again")
		}
		wait = min(2*wait, time.Second)
	}
}

// readBack settles a refusal: the sequence of the own event, ErrFenced, or 0 and nil when nothing newer is there yet,
// because a write of another is on its way.
// The newest event is asked from the stream's leader, because a direct read may come from a replica that lags.
func (b *Bus) readBack(ctx context.Context, stream, id string, expect Expect) (uint64, error) {
	for {
		last, found, err := b.lastFromLeader(ctx, stream, expect.Filter)
		switch {
		case err != nil:
		case !found && expect.Seq > 0, found && last.Seq < expect.Seq:
			return 0, ErrFenced // what was expected is gone: the unit was erased
		case !found || last.Seq == expect.Seq:
			return 0, nil
		case last.ID == id:
			return last.Seq, nil
		default:
			events, err := b.Load(ctx, stream, expect.Filter, expect.Seq, 0)
			if err == nil && len(events) > 0 && events[len(events)-1].Seq >= last.Seq {
				for _, e := range events {
					if e.ID == id {
						return e.Seq, nil
					}
				}
				return 0, ErrFenced
			}
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return 0, fault.Wrap(ctx.Err(), fault.Unavailable, "the log does not answer now; try again")
		}
	}
}

func (b *Bus) lastFromLeader(ctx context.Context, stream, filter string) (Stored, bool, error) {
	req, err := json.Marshal(map[string]string{"last_by_subj": filter})
	if err != nil {
		return Stored{}, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	resp, err := b.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+stream, req)
	if err != nil {
		return Stored{}, false, err
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(resp.Data, &answer); err != nil {
		return Stored{}, false, fmt.Errorf("bus: reading back: %w", err)
	}
	if answer.Error != nil {
		if answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return Stored{}, false, nil
		}
		return Stored{}, false, answer.Error
	}
	if answer.Message == nil {
		return Stored{}, false, errors.New("bus: reading back: empty answer")
	}
	m := answer.Message
	header := nats.Header{}
	if len(m.Header) > 0 {
		if header, err = nats.DecodeHeadersMsg(m.Header); err != nil {
			return Stored{}, false, fmt.Errorf("bus: reading back: %w", err)
		}
	}
	return stored(stream, m.Subject, m.Seq, m.Time, header, m.Data), true, nil
}
