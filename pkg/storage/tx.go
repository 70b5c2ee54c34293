package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

const (
	// maxContention bounds how often a transaction that lost against others is run again.
	maxContention = 10
	// maxReconnect bounds how often a call whose connection broke is run again on another. Idle connections do not
	// know that the server was restarted.
	maxReconnect = 3
)

// Tx runs statements: those of Write in one transaction, those of Read each on its own. It is for one goroutine, and
// not valid after the function that got it has returned. Its errors are those of this package: faults, or ErrNoRows.
type Tx struct {
	ctx     context.Context
	dialect Dialect
	q       interface {
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
		PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	}
}

// Row is one row of a result: what Scan takes is as in database/sql.
type Row interface {
	Scan(dest ...any) error
}

// Dialect says which SQL the database speaks.
func (tx *Tx) Dialect() Dialect { return tx.dialect }

// Exec runs a statement and gives the number of rows that it changed.
func (tx *Tx) Exec(query string, args ...any) (int64, error) {
	result, err := tx.q.ExecContext(tx.ctx, tx.dialect.rebind(query), clean(args)...)
	if err != nil {
		return 0, mapped(err)
	}
	n, err := result.RowsAffected()
	return n, mapped(err)
}

// Stmt is a statement that runs many times in one transaction: it is read by the database once.
type Stmt struct {
	tx   *Tx
	stmt *sql.Stmt
}

// Prepare gives a statement for many executions; Close it.
func (tx *Tx) Prepare(query string) (*Stmt, error) {
	stmt, err := tx.q.PrepareContext(tx.ctx, tx.dialect.rebind(query))
	if err != nil {
		return nil, mapped(err)
	}
	return &Stmt{tx, stmt}, nil
}

// Exec runs the statement and gives the number of rows that it changed.
func (s *Stmt) Exec(args ...any) (int64, error) {
	result, err := s.stmt.ExecContext(s.tx.ctx, clean(args)...)
	if err != nil {
		return 0, mapped(err)
	}
	n, err := result.RowsAffected()
	return n, mapped(err)
}

// Close gives back what the statement holds; the transaction's end does so too.
func (s *Stmt) Close() { _ = s.stmt.Close() }

// QueryRow runs a query whose first row is wanted; the Row's Scan gives ErrNoRows when there is none.
func (tx *Tx) QueryRow(query string, args ...any) Row {
	return row{tx.q.QueryRowContext(tx.ctx, tx.dialect.rebind(query), clean(args)...)}
}

type row struct{ row *sql.Row }

func (r row) Scan(dest ...any) error { return mapped(r.row.Scan(dest...)) }

// Collect runs a query and gives what scan makes of each row, in order; nil when there is none.
func Collect[T any](tx *Tx, scan func(Row) (T, error), query string, args ...any) ([]T, error) {
	rows, err := tx.q.QueryContext(tx.ctx, tx.dialect.rebind(query), clean(args)...)
	if err != nil {
		return nil, mapped(err)
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, mapped(err)
		}
		all = append(all, one)
	}
	return all, mapped(rows.Err())
}

// Lock takes the lock of that name until the transaction ends, and waits for it: what is decided from several rows is
// decided by one transaction at a time. SQLite has one writer and needs none.
func (tx *Tx) Lock(name string) error {
	if tx.dialect != Postgres {
		return nil
	}
	_, err := tx.Exec("SELECT pg_advisory_xact_lock($1)", lockID(name))
	return err
}

func lockID(name string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("butler:" + name))
	return int64(h.Sum64()) //nolint:gosec // any 64 bits will do
}

// Write runs fn in a transaction and commits when fn returns nil. When the transaction lost against another one, or
// its connection broke before the commit, fn runs again: it must not keep anything of an earlier run. Isolation is
// READ COMMITTED; Lock gives more. When the commit itself got no answer the error is fault.Unavailable and the outcome
// is unknown.
func (db *DB) Write(ctx context.Context, fn func(tx *Tx) error) error {
	return db.attempt(ctx, func(ctx context.Context) error {
		tx, err := db.writer.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // nothing to do after the commit
		if err := fn(&Tx{ctx: ctx, dialect: db.dialect, q: tx}); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			if troubleOf(err) == unreachable {
				return fmt.Errorf("%w: %w", errOutcomeUnknown, err)
			}
			return err
		}
		return nil
	})
}

// Read runs fn, whose statements only read. Each sees what was committed when it began. When the connection breaks, fn
// runs again: it must not keep anything of an earlier run.
func (db *DB) Read(ctx context.Context, fn func(tx *Tx) error) error {
	return db.attempt(ctx, func(ctx context.Context) error {
		return fn(&Tx{ctx: ctx, dialect: db.dialect, q: db.reader})
	})
}

// attempt runs fn until it succeeds, fails for good, or the time is up.
func (db *DB) attempt(ctx context.Context, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, db.timeout)
	defer cancel()
	for n := 1; ; n++ {
		err := fn(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return mapped(errors.Join(ctx.Err(), err))
		}
		limit := 0
		switch troubleOf(err) {
		case contention:
			limit = maxContention
		case unreachable:
			if !errors.Is(err, errOutcomeUnknown) {
				limit = maxReconnect
			}
		}
		if n >= limit {
			return mapped(err)
		}
		// From about 2 ms, doubling to 256 ms, with jitter so that the losers do not meet again.
		pause := time.Millisecond << min(n, 8)
		pause = pause/2 + rand.N(pause) //nolint:gosec // not a secret
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return mapped(errors.Join(ctx.Err(), err))
		}
	}
}
