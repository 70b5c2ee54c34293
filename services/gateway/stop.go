package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// maxStops bounds how many turns one request stops.
const maxStops = 1000

// stopTurns asks that the open turns of a session end, or only the one of localID, and gives how many will. Those that
// are answered already, or are being stopped, stay as they are.
func (s *Service) stopTurns(ctx context.Context, who *principal, session chat.Session, localID string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	var turns []chat.Turn
	if localID != "" {
		turns = []chat.Turn{{Session: session, ID: chat.TurnID(localID)}}
	} else {
		var err error
		if turns, err = s.openTurns(ctx, session); err != nil {
			return 0, err
		}
	}
	stopped := 0
	for _, turn := range turns {
		ok, err := s.stopTurn(ctx, who, turn)
		if err != nil {
			return stopped, err
		}
		if ok {
			stopped++
		}
	}
	return stopped, nil
}

// openTurns gives the turns of a session that have no answer, the newest first, so that none begins when the one before
// it is stopped. Those that were asked since this gateway began are known; of those before, it finds all that were asked
// after the question that was answered last.
func (s *Service) openTurns(ctx context.Context, session chat.Session) ([]chat.Turn, error) {
	turns := s.hub.openTurns(session)
	last, found, err := s.bus.Last(ctx, bus.ChatStream, session.KindFilter(chat.Answer))
	if err != nil {
		return nil, err
	}
	after := uint64(0)
	if found {
		answered, _, err := chat.ParseSubject(last.Subject)
		if err != nil {
			return nil, err
		}
		asked, found, err := s.bus.Last(ctx, bus.ChatStream, answered.Stored(chat.Asked))
		if err != nil {
			return nil, err
		}
		if found {
			after = asked.Seq
		}
	}
	asked, err := s.bus.Load(ctx, bus.ChatStream, session.KindFilter(chat.Asked), after, maxStops)
	if err != nil {
		return nil, err
	}
	for _, a := range slices.Backward(asked) {
		turn, _, err := chat.ParseSubject(a.Subject)
		if err == nil && !slices.Contains(turns, turn) {
			turns = append(turns, turn)
		}
	}
	return turns[:min(len(turns), maxStops)], nil
}

// stopTurn appends the stop of a turn, and says whether the turn is open and will stop.
func (s *Service) stopTurn(ctx context.Context, who *principal, turn chat.Turn) (bool, error) {
	data, err := chat.Encode(&butlerv1.ChatStop{
		By: &butlerv1.Actor{Id: who.id(), Name: who.person.Name, Role: string(who.person.Role)},
	})
	if err != nil {
		return false, err
	}
	ev := bus.NewEvent(chat.TypeStop, s.bus.Source(), turn.Subject(chat.Stop), data)
	for {
		last, found, err := s.bus.Last(ctx, bus.ChatStream, turn.Filter())
		if err != nil {
			return false, err
		}
		if !found {
			return false, nil
		}
		switch _, kind, err := chat.ParseSubject(last.Subject); {
		case err != nil:
			return false, err
		case kind == chat.Answer:
			return false, nil
		case kind == chat.Stop:
			return true, nil
		}
		// A stop that is not the newest event any more counts as well.
		if _, found, err := s.bus.Last(ctx, bus.ChatStream, turn.Stored(chat.Stop)); err != nil || found {
			return found, err
		}
		_, err = s.bus.Append(ctx, ev, bus.Expect{Filter: turn.Filter(), Seq: last.Seq})
		if !errors.Is(err, bus.ErrFenced) {
			return err == nil, err
		}
		// The turn's worker was first: look again, until ctx ends.
		if ctx.Err() != nil {
			return false, fault.Wrap(ctx.Err(), fault.Unavailable, "the answer could not be stopped now; try again")
		}
	}
}

// stopChat serves POST /api/chat/stop.
func (s *Service) stopChat(w http.ResponseWriter, r *http.Request, who *principal) error {
	var in struct {
		ConversationID integer `json:"conversation_id"`
		LocalID        string  `json:"local_id"`
	}
	if err := readJSON(w, r, &in, 16<<10); err != nil {
		return err
	}
	n, err := s.stopIn(r.Context(), who, int64(in.ConversationID), in.LocalID)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]any{"stopped": n > 0, "turns": n})
	return nil
}

// stopIn stops what is being answered in one of the person's conversations, 0 for the default one.
func (s *Service) stopIn(ctx context.Context, who *principal, conversation int64, localID string) (int, error) {
	if err := checkLocalID(localID); err != nil {
		return 0, err
	}
	thread, err := s.threads.resolve(ctx, who.id(), conversation)
	if err != nil {
		return 0, err
	}
	return s.stopTurns(ctx, who, chat.Session{Person: who.id(), Thread: thread}, localID)
}

// openTurns gives the session's unanswered turns that the hub saw, the newest first.
func (h *hub) openTurns(session chat.Session) []chat.Turn {
	prefix := session.String() + "."
	type openTurn struct {
		turn chat.Turn
		seq  uint64
	}
	var found []openTurn
	h.mu.Lock()
	for key, seq := range h.open {
		if strings.HasPrefix(key, prefix) {
			found = append(found, openTurn{chat.Turn{Session: session, ID: key[len(prefix):]}, seq})
		}
	}
	h.mu.Unlock()
	slices.SortFunc(found, func(a, b openTurn) int { return int(int64(b.seq) - int64(a.seq)) }) //nolint:gosec // sequences
	out := make([]chat.Turn, len(found))
	for i, f := range found {
		out[i] = f.turn
	}
	return out
}

// forget drops what the hub remembers of a session that was deleted.
func (h *hub) forget(session chat.Session) {
	prefix := session.String() + "."
	h.mu.Lock()
	defer h.mu.Unlock()
	for key := range h.open {
		if strings.HasPrefix(key, prefix) {
			h.close(session.Person, key)
		}
	}
}
