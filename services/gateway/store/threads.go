package store

import (
	"context"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
)

// Where a title comes from, beside the sequence of a message: see the column title_from.
const (
	titleMissing  = 0
	titleByPerson = -1
)

const (
	threadColumns = `id, owner_id, peer_id, channel_kind, title, summary, is_pinned, is_default, archived_at,
		last_message_at, created_at, updated_at`
	noSuchThread = "there is no such conversation"
)

func scanThread(row storage.Row) (Thread, error) {
	var t Thread
	var archived, last, created, updated int64
	err := row.Scan(&t.ID, &t.OwnerID, &t.PeerID, &t.ChannelKind, &t.Title, &t.Summary, &t.Pinned, &t.Default,
		&archived, &last, &created, &updated)
	if err != nil {
		return Thread{}, err
	}
	t.ArchivedAt, t.LastMessageAt = fromMillis(archived), fromMillis(last)
	t.CreatedAt, t.UpdatedAt = fromMillis(created), fromMillis(updated)
	return t, nil
}

// DefaultThread gives the thread in which a person talks to Butler when no other is named. It is made when there is
// none, once however many calls there are.
func (s *Store) DefaultThread(ctx context.Context, owner int64) (Thread, error) {
	const query = "SELECT " + threadColumns +
		" FROM threads WHERE owner_id = $1 AND peer_id = $2 AND channel_kind = $3 AND is_default"
	args := func() []any { return []any{owner, ButlerID, string(ButlerDirect)} }
	var thread Thread
	err := s.db.Read(ctx, func(tx *storage.Tx) (err error) {
		thread, err = scanThread(tx.QueryRow(query, args()...))
		return err
	})
	if err != storage.ErrNoRows { //nolint:errorlint // Scan gives it bare
		return thread, err
	}
	err = s.db.Write(ctx, func(tx *storage.Tx) (err error) {
		if err := s.checkOwner(tx, owner); err != nil {
			return err
		}
		if thread, err = s.ensureDefault(tx, owner); err == storage.ErrNoRows { //nolint:errorlint // Scan gives it bare
			thread, err = scanThread(tx.QueryRow(query, args()...))
		}
		return err
	})
	return thread, err
}

// ensureDefault makes a person's default thread with Butler.
func (s *Store) ensureDefault(tx *storage.Tx, owner int64) (Thread, error) {
	if err := tx.Lock(personLock(owner)); err != nil {
		return Thread{}, err
	}
	// Whoever waited for the lock may find that the thread was made meanwhile: then nothing is returned.
	return scanThread(tx.QueryRow(`INSERT INTO threads (owner_id, peer_id, channel_kind, is_default, created_at, updated_at)
		VALUES ($1, $2, $3, TRUE, $4, $4)
		ON CONFLICT (owner_id, peer_id, channel_kind) WHERE is_default DO NOTHING RETURNING `+threadColumns,
		owner, ButlerID, string(ButlerDirect), millis(s.now())))
}

// CreateThread adds a thread. Each call makes another one. A peer that does not exist is fault.NotFound; more than
// MaxThreads are fault.Conflict.
func (s *Store) CreateThread(ctx context.Context, owner int64, what NewThread) (Thread, error) {
	if what.PeerID == 0 {
		what.PeerID = ButlerID
	}
	if what.ChannelKind == "" {
		what.ChannelKind = ButlerDirect
		if what.PeerID != ButlerID {
			what.ChannelKind = AgentDirect
		}
	}
	title, err := cleanTitle(what.Title)
	if err != nil {
		return Thread{}, err
	}
	if what.ChannelKind != ButlerDirect && what.ChannelKind != AgentDirect {
		return Thread{}, fault.New(fault.Invalid, "channel_kind must be %s or %s", ButlerDirect, AgentDirect)
	}
	if (what.ChannelKind == ButlerDirect) != (what.PeerID == ButlerID) {
		return Thread{}, fault.New(fault.Invalid, "%s is the kind of conversations with Butler, and of no others", ButlerDirect)
	}
	var thread Thread
	err = s.db.Write(ctx, func(tx *storage.Tx) (err error) {
		thread, err = s.insertThread(tx, owner, what.PeerID, what.ChannelKind, title, nil)
		return err
	})
	if err != nil {
		return Thread{}, err
	}
	return thread, nil
}

// ThreadByName gives the thread with Butler that an outside client calls name, and makes it when there is none, once
// however many calls there are. Names are the owner's own, compared byte by byte.
func (s *Store) ThreadByName(ctx context.Context, owner int64, name string) (Thread, error) {
	if name == "" || len(name) > MaxThreadNameBytes || !utf8.ValidString(name) ||
		strings.ContainsFunc(name, unicode.IsControl) {
		return Thread{}, fault.New(fault.Invalid,
			"the name of a session must have 1 to %d bytes of UTF-8 without control characters", MaxThreadNameBytes)
	}
	const query = "SELECT " + threadColumns + " FROM threads WHERE owner_id = $1 AND name_key = $2"
	var thread Thread
	err := s.db.Read(ctx, func(tx *storage.Tx) (err error) {
		thread, err = scanThread(tx.QueryRow(query, owner, name))
		return err
	})
	if err != storage.ErrNoRows { //nolint:errorlint // Scan gives it bare
		return thread, err
	}
	err = s.db.Write(ctx, func(tx *storage.Tx) (err error) {
		if err := tx.Lock(personLock(owner)); err != nil {
			return err
		}
		if thread, err = scanThread(tx.QueryRow(query, owner, name)); err != storage.ErrNoRows { //nolint:errorlint // bare
			return err
		}
		thread, err = s.insertThread(tx, owner, ButlerID, ButlerDirect, "", name)
		return err
	})
	if err != nil {
		return Thread{}, err
	}
	return thread, nil
}

func (s *Store) insertThread(tx *storage.Tx, owner, peer int64, kind ChannelKind, title string, nameKey any) (Thread, error) {
	if err := tx.Lock(personLock(owner)); err != nil {
		return Thread{}, err
	}
	if err := s.checkOwner(tx, owner); err != nil {
		return Thread{}, err
	}
	var peers, threads int
	// Other people are none to talk to here, and their ids are not to be found out this way.
	if err := tx.QueryRow("SELECT COUNT(*) FROM principals WHERE id = $1 AND (id = $2 OR kind = $3)",
		peer, ButlerID, string(storage.AgentKind)).Scan(&peers); err != nil {
		return Thread{}, err
	}
	if peers == 0 {
		return Thread{}, fault.New(fault.NotFound, "there is nobody with this id to talk to")
	}
	if err := tx.QueryRow("SELECT COUNT(*) FROM threads WHERE owner_id = $1", owner).Scan(&threads); err != nil {
		return Thread{}, err
	}
	if threads >= MaxThreads {
		return Thread{}, fault.New(fault.Conflict, "there are %d conversations already; delete some first", threads)
	}
	return scanThread(tx.QueryRow(`INSERT INTO threads
			(owner_id, peer_id, channel_kind, title, title_from, name_key, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $7) RETURNING `+threadColumns,
		owner, peer, string(kind), title, titleFrom(title), nameKey, millis(s.now())))
}

// checkOwner makes sure that the owner is a person: Butler and agents own no threads.
func (s *Store) checkOwner(tx *storage.Tx, owner int64) error {
	var n int
	err := tx.QueryRow("SELECT COUNT(*) FROM people WHERE id = $1 AND id <> $2", owner, ButlerID).Scan(&n)
	if err == nil && n == 0 {
		return fault.New(fault.NotFound, "there is no such person")
	}
	return err
}

func titleFrom(title string) int64 {
	if title == "" {
		return titleMissing
	}
	return titleByPerson
}

// Threads gives a person's threads: pinned ones first, then by last message or creation, the latest first.
func (s *Store) Threads(ctx context.Context, owner int64, filter ThreadFilter) ([]Thread, error) {
	where := []string{"owner_id = $1"}
	args := []any{owner}
	add := func(condition string, arg any) {
		args = append(args, arg)
		where = append(where, strings.ReplaceAll(condition, "$n", placeholder(len(args))))
	}
	if filter.PeerID != 0 {
		add("peer_id = $n", filter.PeerID)
	}
	if filter.ChannelKind != "" {
		add("channel_kind = $n", string(filter.ChannelKind))
	}
	if filter.Archived != nil {
		add("(archived_at > 0) = $n", *filter.Archived)
	}
	if q := strings.TrimSpace(filter.Query); q != "" {
		if err := checkQuery(q); err != nil {
			return nil, err
		}
		like := s.db.Dialect().ILike()
		add(`(title `+like+` $n ESCAPE '\' OR summary `+like+` $n ESCAPE '\')`, storage.EscapeLike(q))
	}
	if filter.Limit <= 0 || filter.Limit > MaxThreads {
		filter.Limit = MaxThreads
	}
	args = append(args, filter.Limit)
	query := "SELECT " + threadColumns + " FROM threads WHERE " + strings.Join(where, " AND ") +
		` ORDER BY is_pinned DESC, CASE WHEN last_message_at > 0 THEN last_message_at ELSE created_at END DESC, id DESC
		LIMIT ` + placeholder(len(args))
	var threads []Thread
	err := s.db.Read(ctx, func(tx *storage.Tx) (err error) {
		threads, err = storage.Collect(tx, scanThread, query, args...)
		return err
	})
	return threads, err
}

// Thread gives one of a person's threads.
func (s *Store) Thread(ctx context.Context, owner, id int64) (Thread, error) {
	var thread Thread
	err := s.db.Read(ctx, func(tx *storage.Tx) (err error) {
		thread, err = s.thread(tx, owner, id)
		return err
	})
	return thread, err
}

func (s *Store) thread(tx *storage.Tx, owner, id int64) (Thread, error) {
	thread, err := scanThread(tx.QueryRow("SELECT "+threadColumns+" FROM threads WHERE id = $1 AND owner_id = $2", id, owner))
	return thread, notFound(err, noSuchThread)
}

// UpdateThread changes one of a person's threads and gives it as it is then.
func (s *Store) UpdateThread(ctx context.Context, owner, id int64, change ThreadChange) (Thread, error) {
	var title string
	if change.Title != nil {
		var err error
		if title, err = cleanTitle(*change.Title); err != nil {
			return Thread{}, err
		}
	}
	if change.Summary != nil && (!utf8.ValidString(*change.Summary) || utf8.RuneCountInString(*change.Summary) > MaxSummaryRunes) {
		return Thread{}, fault.New(fault.Invalid, "a summary has at most %d characters", MaxSummaryRunes)
	}
	now := s.now()
	set := []string{"updated_at = $3"}
	args := []any{id, owner, millis(now)}
	add := func(assignment string, arg any) {
		args = append(args, arg)
		set = append(set, strings.ReplaceAll(assignment, "$n", placeholder(len(args))))
	}
	if change.Title != nil {
		add("title = $n", title)
		add("title_from = $n", titleFrom(title))
	}
	if change.Summary != nil {
		add("summary = $n", *change.Summary)
	}
	if change.Pinned != nil {
		add("is_pinned = $n", *change.Pinned)
	}
	if change.Archived != nil {
		at := millis(time.Time{})
		if *change.Archived {
			at = millis(now)
		}
		// Archiving again keeps the first time.
		add("archived_at = CASE WHEN archived_at > 0 AND CAST($n AS BIGINT) > 0 THEN archived_at ELSE $n END", at)
	}
	var thread Thread
	err := s.db.Write(ctx, func(tx *storage.Tx) (err error) {
		thread, err = scanThread(tx.QueryRow("UPDATE threads SET "+strings.Join(set, ", ")+
			" WHERE id = $1 AND owner_id = $2 RETURNING "+threadColumns, args...))
		return notFound(err, noSuchThread)
	})
	return thread, err
}

// deleteBatch bounds one transaction of a deletion, so that others get their turn.
const deleteBatch = 500

// DeleteThread removes one of a person's threads with its messages. Events of it that are applied later are ignored.
// When it fails half-way the thread is still there, and calling it again goes on.
func (s *Store) DeleteThread(ctx context.Context, owner, id int64) error {
	for {
		var n int64
		err := s.db.Write(ctx, func(tx *storage.Tx) error {
			if _, err := s.thread(tx, owner, id); err != nil {
				return err
			}
			var err error
			n, err = tx.Exec("DELETE FROM messages WHERE id IN (SELECT id FROM messages WHERE thread_id = $1 LIMIT $2)",
				id, deleteBatch)
			if err != nil || n == deleteBatch {
				return err
			}
			// What a projector adds meanwhile goes with the thread.
			_, err = tx.Exec("DELETE FROM threads WHERE id = $1 AND owner_id = $2", id, owner)
			return err
		})
		if err != nil {
			return err
		}
		if n < deleteBatch {
			return s.db.Settle(ctx)
		}
	}
}

// cleanTitle gives a title in one line without space around it.
func cleanTitle(title string) (string, error) {
	if !utf8.ValidString(title) {
		return "", fault.New(fault.Invalid, "a title must be UTF-8")
	}
	title = oneLine(title)
	if utf8.RuneCountInString(title) > MaxTitleRunes {
		return "", fault.New(fault.Invalid, "a title has at most %d characters", MaxTitleRunes)
	}
	return title, nil
}

// oneLine turns control characters into space and takes the space around away.
func oneLine(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, text))
}

func checkQuery(q string) error {
	if utf8.RuneCountInString(q) > MaxQueryRunes {
		return fault.New(fault.Invalid, "what is searched for has at most %d characters", MaxQueryRunes)
	}
	return nil
}
