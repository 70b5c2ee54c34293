package store

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
)

const (
	// projector names the row of the table projection.
	projector = "messages"
	// insertBatch bounds the rows of one INSERT. More save PostgreSQL little.
	insertBatch = 50
	// MaxApply bounds the messages of one Apply.
	MaxApply = 5000
	// derivedTitleRunes bounds a title that is made of a message, in characters.
	derivedTitleRunes = 60
)

// Apply adds messages to the read model, and notes that the log was read up to position. It is one transaction.
//
// It is idempotent, and the order does not matter: a message that is there already, or that is its turn's second question,
// changes nothing, the position and a
// thread's last_message_at only grow, and an untitled thread is titled after the earliest message of a person. A
// message whose thread does not exist, or is not the person's, is ignored and counted.
func (s *Store) Apply(ctx context.Context, messages []Message, position uint64) error {
	if len(messages) > MaxApply {
		return fault.New(fault.TooLarge, "at most %d messages are applied at once", MaxApply)
	}
	messages = slices.SortedFunc(slices.Values(messages), func(a, b Message) int {
		return cmp.Compare(a.ID, b.ID)
	})
	var err error
	for range 3 {
		// A foreign key that does not hold means that the thread was deleted meanwhile: the next look finds it gone.
		if err = s.apply(ctx, messages, position); !storage.IsDangling(err) {
			break
		}
	}
	return err
}

func (s *Store) apply(ctx context.Context, messages []Message, position uint64) error {
	return s.db.Write(ctx, func(tx *storage.Tx) error {
		owners, err := threadOwners(tx, messages)
		if err != nil {
			return err
		}
		known := make([]Message, 0, len(messages))
		for _, m := range messages {
			if owner, ok := owners[m.ThreadID]; ok && owner == m.PersonID && m.ID > 0 {
				known = append(known, m)
			}
		}
		var applied int64
		insert := insertMessages
		if tx.Dialect() == storage.SQLite {
			insert = insertSingly
		}
		for batch := range slices.Chunk(known, insertBatch) {
			n, err := insert(tx, batch)
			if err != nil {
				return err
			}
			applied += n
		}
		if err := touchThreads(tx, known); err != nil {
			return err
		}
		return s.advance(tx, position, applied, int64(len(messages)-len(known)))
	})
}

// threadOwners gives the owners of the messages' threads, which cannot be changed or deleted until the transaction ends.
// In order of their ids, so that two projectors wait for each other and do not lock each other out.
func threadOwners(tx *storage.Tx, messages []Message) (map[int64]int64, error) {
	ids := map[int64]struct{}{}
	for _, m := range messages {
		ids[m.ThreadID] = struct{}{}
	}
	owners := make(map[int64]int64, len(ids))
	type owned struct{ id, owner int64 }
	for batch := range slices.Chunk(slices.Sorted(maps.Keys(ids)), 1000) {
		in := make([]string, len(batch))
		args := make([]any, len(batch))
		for i, id := range batch {
			in[i], args[i] = placeholder(i+1), id
		}
		rows, err := storage.Collect(tx, func(row storage.Row) (o owned, err error) {
			return o, row.Scan(&o.id, &o.owner)
		}, "SELECT id, owner_id FROM threads WHERE id IN ("+strings.Join(in, ", ")+") ORDER BY id"+tx.Dialect().ForUpdate(),
			args...)
		if err != nil {
			return nil, err
		}
		for _, o := range rows {
			owners[o.id] = o.owner
		}
	}
	return owners, nil
}

func insertMessages(tx *storage.Tx, messages []Message) (int64, error) {
	var query strings.Builder
	query.WriteString("INSERT INTO messages (" + messageColumns + ") VALUES ")
	var args []any
	for i, m := range messages {
		if i > 0 {
			query.WriteString(", ")
		}
		values := m.values()
		for j := range values {
			query.WriteString([]string{"(", ", "}[min(j, 1)] + placeholder(len(args)+j+1))
		}
		query.WriteString(")")
		args = append(args, values...)
	}
	query.WriteString(" ON CONFLICT DO NOTHING")
	return tx.Exec(query.String(), args...)
}

// insertSingly inserts row by row: SQLite has no way to it, and reading a statement of many rows takes it longer than
// storing them.
func insertSingly(tx *storage.Tx, messages []Message) (applied int64, err error) {
	in := make([]string, strings.Count(messageColumns, ",")+1)
	for i := range in {
		in[i] = placeholder(i + 1)
	}
	insert, err := tx.Prepare("INSERT INTO messages (" + messageColumns + ") VALUES (" + strings.Join(in, ", ") + ") ON CONFLICT DO NOTHING")
	if err != nil {
		return 0, err
	}
	defer insert.Close()
	for _, m := range messages {
		n, err := insert.Exec(m.values()...)
		if err != nil {
			return applied, err
		}
		applied += n
	}
	return applied, nil
}

// touchThreads brings last_message_at and missing titles of the messages' threads up to date.
func touchThreads(tx *storage.Tx, messages []Message) error {
	type news struct {
		last      int64
		title     string
		titleFrom int64
	}
	threads := map[int64]*news{}
	for _, m := range messages { // in order of sequence
		n := threads[m.ThreadID]
		if n == nil {
			n = &news{}
			threads[m.ThreadID] = n
		}
		n.last = max(n.last, millis(m.CreatedAt))
		if n.title == "" && m.Role == HumanMessage {
			if n.title = deriveTitle(m.Text); n.title != "" {
				n.titleFrom = int64(m.ID) //nolint:gosec // a stream's sequence
			}
		}
	}
	if len(threads) == 0 {
		return nil
	}
	// title_from = -1, a person's own title, is neither 0 nor greater than any sequence: it stays.
	const untitled = "CAST($3 AS BIGINT) > 0 AND (title_from = 0 OR title_from > $3)"
	update, err := tx.Prepare(`UPDATE threads SET
			last_message_at = CASE WHEN last_message_at < $2 THEN $2 ELSE last_message_at END,
			title = CASE WHEN ` + untitled + ` THEN $4 ELSE title END,
			title_from = CASE WHEN ` + untitled + ` THEN $3 ELSE title_from END
		WHERE id = $1 AND (last_message_at < $2 OR (` + untitled + `))`)
	if err != nil {
		return err
	}
	defer update.Close()
	for _, id := range slices.Sorted(maps.Keys(threads)) {
		n := threads[id]
		if _, err := update.Exec(id, n.last, n.titleFrom, n.title); err != nil {
			return err
		}
	}
	return nil
}

// advance notes the position. What is applied again, below the position, is not counted as ignored again.
func (s *Store) advance(tx *storage.Tx, position uint64, applied, ignored int64) error {
	_, err := tx.Exec(`INSERT INTO projection (name, position, applied, ignored, updated_at) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (name) DO UPDATE SET
			applied = projection.applied + excluded.applied,
			ignored = projection.ignored + CASE WHEN excluded.position > projection.position THEN excluded.ignored ELSE 0 END,
			position = CASE WHEN excluded.position > projection.position THEN excluded.position ELSE projection.position END,
			updated_at = excluded.updated_at`,
		projector, bound0(position), applied, ignored, millis(s.now()))
	return err
}

func bound0(position uint64) int64 {
	if position == 0 {
		return 0
	}
	return bound(position)
}

// Projection says how far the read model is; all zero before the first Apply.
func (s *Store) Projection(ctx context.Context) (Projection, error) {
	var p Projection
	err := s.db.Read(ctx, func(tx *storage.Tx) error {
		var position, updated int64
		err := tx.QueryRow("SELECT position, applied, ignored, updated_at FROM projection WHERE name = $1", projector).
			Scan(&position, &p.Applied, &p.Ignored, &updated)
		p.Position, p.UpdatedAt = uint64(position), fromMillis(updated) //nolint:gosec // written by advance
		return err
	})
	if err == storage.ErrNoRows { //nolint:errorlint // Scan gives it bare
		return Projection{}, nil
	}
	return p, err
}

// Position gives the highest sequence that was applied, 0 when none was.
func (s *Store) Position(ctx context.Context) (uint64, error) {
	p, err := s.Projection(ctx)
	return p.Position, err
}

// ResetProjection removes all messages from the read model and sets its position to 0, so that everything can be
// applied again. Threads stay. The position goes first: what fails half-way is right after everything was applied.
func (s *Store) ResetProjection(ctx context.Context) error {
	err := s.db.Write(ctx, func(tx *storage.Tx) error {
		_, err := tx.Exec("DELETE FROM projection WHERE name = $1", projector)
		return err
	})
	for err == nil {
		var n int64
		err = s.db.Write(ctx, func(tx *storage.Tx) (err error) {
			n, err = tx.Exec("DELETE FROM messages WHERE id IN (SELECT id FROM messages ORDER BY id LIMIT $1)", deleteBatch)
			return err
		})
		if n < deleteBatch {
			break
		}
	}
	return err
}

// deriveTitle makes a title of a message: its first line that says something, cut at derivedTitleRunes.
func deriveTitle(text string) string {
	for line := range strings.Lines(text) {
		// Four bytes a character, and space around: enough of a line of any length.
		line = line[:min(len(line), 8*derivedTitleRunes)]
		title := oneLine(strings.ToValidUTF8(line, ""))
		if title == "" {
			continue
		}
		if utf8.RuneCountInString(title) > derivedTitleRunes {
			title = strings.TrimSpace(string([]rune(title)[:derivedTitleRunes-1])) + "…"
		}
		return title
	}
	return ""
}
