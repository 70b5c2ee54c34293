package store

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strconv"

	"github.com/butlerhub/butler/pkg/storage"
)

const messageColumns = `id, person_id, thread_id, turn, local_id, role, sender_id, sender_name, sender_role, text,
	stream_id, status, reason, reply_to_local_id, usage, created_at`

func scanMessage(row storage.Row) (Message, error) {
	var m Message
	var id, created int64
	var usage string
	err := row.Scan(&id, &m.PersonID, &m.ThreadID, &m.Turn, &m.LocalID, &m.Role, &m.SenderID, &m.SenderName,
		&m.SenderRole, &m.Text, &m.StreamID, &m.Status, &m.Reason, &m.ReplyToLocalID, &usage, &created)
	if err != nil {
		return Message{}, err
	}
	m.ID, m.CreatedAt = uint64(id), fromMillis(created) //nolint:gosec // written by values
	if usage != "" {
		m.Usage = new(Usage)
		if err := json.Unmarshal([]byte(usage), m.Usage); err != nil {
			m.Usage = nil // history is shown also when a count cannot be read
		}
	}
	return m, nil
}

// values gives a message as a row of messageColumns.
func (m Message) values() []any {
	usage := ""
	if m.Usage != nil {
		encoded, _ := json.Marshal(m.Usage) // numbers only
		usage = string(encoded)
	}
	return []any{
		int64(m.ID), m.PersonID, m.ThreadID, m.Turn, m.LocalID, m.Role, m.SenderID, m.SenderName, m.SenderRole, m.Text, //nolint:gosec // a stream's sequence
		m.StreamID, m.Status, m.Reason, m.ReplyToLocalID, usage, millis(m.CreatedAt),
	}
}

// Messages gives a page of one of a person's threads: the newest messages before the sequence before (0: the newest of
// all), at most limit (1 to MaxPage, else MaxPage), oldest first.
func (s *Store) Messages(ctx context.Context, owner, thread int64, before uint64, limit int) ([]Message, error) {
	return s.page(ctx, "SELECT "+messageColumns+" FROM messages WHERE thread_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3",
		func(tx *storage.Tx) error {
			_, err := s.thread(tx, owner, thread)
			return err
		}, thread, bound(before), pageSize(limit))
}

// PersonMessages gives a page of all of a person's threads together, as Messages does of one.
func (s *Store) PersonMessages(ctx context.Context, owner int64, before uint64, limit int) ([]Message, error) {
	return s.page(ctx, "SELECT "+messageColumns+" FROM messages WHERE person_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3",
		func(*storage.Tx) error { return nil }, owner, bound(before), pageSize(limit))
}

func (s *Store) page(ctx context.Context, query string, allowed func(tx *storage.Tx) error, args ...any) ([]Message, error) {
	var messages []Message
	err := s.db.Read(ctx, func(tx *storage.Tx) error {
		if err := allowed(tx); err != nil {
			return err
		}
		var err error
		messages, err = storage.Collect(tx, scanMessage, query, args...)
		return err
	})
	slices.Reverse(messages)
	return messages, err
}

func bound(before uint64) int64 {
	if before == 0 || before > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(before)
}

func pageSize(limit int) int {
	if limit < 1 || limit > MaxPage {
		return MaxPage
	}
	return limit
}

func placeholder(n int) string { return "$" + strconv.Itoa(n) }
