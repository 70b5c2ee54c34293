package gateway

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/gateway/store"
)

// threadJSON is a conversation, with EchoCenter's field names.
type threadJSON struct {
	ID            int64      `json:"id"`
	OwnerUserID   int64      `json:"owner_user_id"`
	PeerUserID    int64      `json:"peer_user_id"`
	ChannelKind   string     `json:"channel_kind"`
	Title         string     `json:"title"`
	Summary       string     `json:"summary,omitempty"`
	IsPinned      bool       `json:"is_pinned"`
	IsDefault     bool       `json:"is_default"`
	ArchivedAt    *time.Time `json:"archived_at,omitempty"`
	LastMessageAt *time.Time `json:"last_message_at,omitempty"`
	CreatedAt     time.Time  `json:"created_at"`
	UpdatedAt     time.Time  `json:"updated_at"`
}

func threadOf(t store.Thread) threadJSON {
	return threadJSON{
		ID: t.ID, OwnerUserID: t.OwnerID, PeerUserID: t.PeerID, ChannelKind: string(t.ChannelKind), Title: t.Title,
		Summary: t.Summary, IsPinned: t.Pinned, IsDefault: t.Default, ArchivedAt: optional(t.ArchivedAt),
		LastMessageAt: optional(t.LastMessageAt), CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt,
	}
}

// threadCache remembers which threads are whose, so that chat needs no database once it began. A deletion is announced
// like a change of rights; where a notice may have been missed, threads are read again, and believed while they cannot be.
type threadCache struct {
	store *store.Store

	mu      sync.Mutex
	changes int // counts; what was read before a change must not be remembered after it
	doubts  int // counts; what was remembered before a doubt is read again
	people  map[int64]map[threadKey]knownThread
}

// threadKey is how a thread is asked for: by its id (0: the default one), or by its name.
type threadKey struct {
	id   int64
	name string
}

type knownThread struct {
	id, peer int64
	doubts   int
}

const (
	// maxThreadOwners bounds the people whose threads are remembered, maxKnownThreads those of one person.
	maxThreadOwners = 20_000
	maxKnownThreads = 1000
)

func newThreadCache(st *store.Store) *threadCache {
	return &threadCache{store: st, people: map[int64]map[threadKey]knownThread{}}
}

// forget drops what is known of a person's threads; for 0 it has everybody's read again.
func (c *threadCache) forget(person int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if person == 0 {
		c.doubts++
		return
	}
	c.changes++
	delete(c.people, person)
}

// resolve gives the thread in which a person talks to Butler: the one with the id, or the default one for 0.
func (c *threadCache) resolve(ctx context.Context, person, id int64) (int64, error) {
	return c.get(ctx, person, threadKey{id: id}, func() (store.Thread, error) {
		if id == 0 {
			return c.store.DefaultThread(ctx, person)
		}
		return c.store.Thread(ctx, person, id)
	})
}

// named gives the thread with Butler that a person's client calls name, and makes it when there is none.
func (c *threadCache) named(ctx context.Context, person int64, name string) (int64, error) {
	return c.get(ctx, person, threadKey{name: name}, func() (store.Thread, error) {
		return c.store.ThreadByName(ctx, person, name)
	})
}

func (c *threadCache) get(ctx context.Context, person int64, key threadKey, read func() (store.Thread, error)) (int64, error) {
	c.mu.Lock()
	changes, doubts := c.changes, c.doubts
	known, ok := c.people[person][key]
	c.mu.Unlock()
	if ok && known.doubts == doubts {
		return known.id, checkPeer(known.peer)
	}
	t, err := read()
	switch {
	case err == nil:
	case ok && fault.CodeOf(err) == fault.Unavailable && ctx.Err() == nil:
		return known.id, checkPeer(known.peer)
	default:
		return 0, err
	}
	known = knownThread{t.ID, t.PeerID, doubts}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes == changes {
		c.remember(person, key, known)
		c.remember(person, threadKey{id: t.ID}, known)
	}
	return t.ID, checkPeer(t.PeerID)
}

func (c *threadCache) remember(person int64, key threadKey, t knownThread) {
	own := c.people[person]
	if own == nil {
		for p := range c.people {
			if len(c.people) < maxThreadOwners {
				break
			}
			delete(c.people, p)
		}
		own = map[threadKey]knownThread{}
		c.people[person] = own
	}
	if len(own) >= maxKnownThreads {
		clear(own)
	}
	own[key] = t
}

func checkPeer(peer int64) error {
	if peer != store.ButlerID {
		return fault.New(fault.Invalid, "this conversation is not with Butler; agents are reached through Butler")
	}
	return nil
}

// listThreads serves GET /api/chat/threads, by peer_id, channel_kind, q, archived and limit. Archived ones are left out
// unless archived is true (only those) or all.
func (s *Service) listThreads(w http.ResponseWriter, r *http.Request, who *principal) error {
	q := r.URL.Query()
	peer, err := queryInt(q.Get("peer_id"), 0, 0, 0, "peer_id")
	if err != nil {
		return err
	}
	limit, err := queryInt(q.Get("limit"), 0, 1, 0, "limit")
	if err != nil {
		return err
	}
	filter := store.ThreadFilter{
		PeerID: int64(peer), ChannelKind: store.ChannelKind(q.Get("channel_kind")), Query: strings.TrimSpace(q.Get("q")),
		Limit: limit, Archived: new(bool),
	}
	switch q.Get("archived") {
	case "", "false":
	case "true":
		*filter.Archived = true
	case "all":
		filter.Archived = nil
	default:
		return fault.New(fault.Invalid, "archived is true, false or all")
	}
	threads, err := s.store.Threads(r.Context(), who.id(), filter)
	if err != nil {
		return err
	}
	out := make([]threadJSON, 0, len(threads))
	for _, t := range threads {
		out = append(out, threadOf(t))
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// createThread serves POST /api/chat/threads.
func (s *Service) createThread(w http.ResponseWriter, r *http.Request, who *principal) error {
	var in struct {
		PeerID      int64  `json:"peer_id"`
		ChannelKind string `json:"channel_kind"`
		Title       string `json:"title"`
	}
	if err := readJSON(w, r, &in, 64<<10); err != nil {
		return err
	}
	thread, err := s.store.CreateThread(r.Context(), who.id(), store.NewThread{
		PeerID: in.PeerID, ChannelKind: store.ChannelKind(in.ChannelKind), Title: in.Title,
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, threadOf(thread))
	return nil
}

// getThread serves GET /api/chat/threads/{id}.
func (s *Service) getThread(w http.ResponseWriter, r *http.Request, who *principal) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	thread, err := s.store.Thread(r.Context(), who.id(), id)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, threadOf(thread))
	return nil
}

// updateThread serves PATCH /api/chat/threads/{id}.
func (s *Service) updateThread(w http.ResponseWriter, r *http.Request, who *principal) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	var in struct {
		Title      *string `json:"title"`
		Summary    *string `json:"summary"`
		IsPinned   *bool   `json:"is_pinned"`
		IsArchived *bool   `json:"is_archived"`
	}
	if err := readJSON(w, r, &in, 64<<10); err != nil {
		return err
	}
	thread, err := s.store.UpdateThread(r.Context(), who.id(), id, store.ThreadChange{
		Title: in.Title, Summary: in.Summary, Pinned: in.IsPinned, Archived: in.IsArchived,
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, threadOf(thread))
	return nil
}

// deleteThread serves DELETE /api/chat/threads/{id}: it stops what is being answered, erases the conversation from the
// log and deletes it. It may be repeated when it fails half-way: the thread itself goes last.
func (s *Service) deleteThread(w http.ResponseWriter, r *http.Request, who *principal) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	if _, err := s.store.Thread(r.Context(), who.id(), id); err != nil {
		return err
	}
	// The client may go away; what was begun goes on.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 5*time.Minute)
	defer cancel()
	session := chat.Session{Person: who.id(), Thread: id}
	stopped, err := s.stopTurns(ctx, who, session, "")
	if err != nil {
		return err
	}
	if stopped > 0 {
		s.awaitAnswers(ctx, session)
	}
	erased, err := s.bus.Erase(ctx, bus.ChatStream, session.Filter())
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "the conversation could not be erased from the log now; try again")
	}
	if err := s.store.DeleteThread(ctx, who.id(), id); err != nil {
		return err
	}
	s.access.announce(ctx, who.id(), 0)
	// What was written while the thread was going: an answer that was stopped, a message from another device.
	erased += s.eraseRest(ctx, session)
	// Another gateway may have been about to append a message to what it believed to be there.
	s.afterwards.Go(func() {
		select {
		case <-s.ending.Done():
		case <-time.After(sendTimeout + deletionHolds):
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second) // a gateway that stops waits for it
		defer cancel()
		if late := s.eraseRest(ctx, session); late > 0 {
			s.log.InfoContext(ctx, "what came late to a deleted conversation was erased", "person", session.Person,
				"thread", session.Thread, "events", late)
		}
	})
	s.log.InfoContext(ctx, "a conversation was deleted", "person", who.id(), "thread", id, "events", erased)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// deletionHolds is how long other gateways may take to hear of a deleted conversation.
const deletionHolds = 5 * time.Second

// eraseRest erases what the log holds of a conversation that was deleted, and gives how many events it found.
func (s *Service) eraseRest(ctx context.Context, session chat.Session) int {
	erased, err := s.bus.Erase(ctx, bus.ChatStream, session.Filter())
	if err != nil {
		s.log.WarnContext(ctx, "events that came late to a deleted conversation may stay in the log", "person", session.Person,
			"thread", session.Thread, "error", err)
	}
	if _, err := s.bus.Erase(ctx, bus.DeltaStream, session.Delta()); err != nil {
		s.log.DebugContext(ctx, "deltas of a deleted conversation stay until they age out", "error", err)
	}
	s.hub.forget(session)
	return erased
}

// awaitAnswers waits a little for the answers of turns that are being stopped, so that they are erased with the rest.
func (s *Service) awaitAnswers(ctx context.Context, session chat.Session) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	for len(s.hub.openTurns(session)) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// pathID reads a positive id from the path. What is none does not exist.
func pathID(r *http.Request, name string) (int64, error) {
	id, err := strconv.ParseInt(r.PathValue(name), 10, 64)
	if err != nil || id <= 0 {
		return 0, fault.New(fault.NotFound, "there is no %s", r.URL.Path)
	}
	return id, nil
}

// queryInt reads a whole number of a query, from least to most; most 0 means no upper bound.
func queryInt(s string, fallback, least, most int, name string) (int, error) {
	if s = strings.TrimSpace(s); s == "" {
		return fallback, nil
	}
	n, err := strconv.Atoi(s)
	if most > 0 && (err != nil || n < least || n > most) {
		return 0, fault.New(fault.Invalid, "%s must be a whole number from %d to %d", name, least, most)
	}
	if err != nil || n < least {
		return 0, fault.New(fault.Invalid, "%s must be a whole number of at least %d", name, least)
	}
	return n, nil
}
