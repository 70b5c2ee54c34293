// Package storage is Butler's SQL: it opens SQLite or PostgreSQL, runs transactions with bounded time and retry,
// migrates, and turns database errors into faults.
//
// One SQL text serves both databases. Placeholders are PostgreSQL's ($1, $2, …), rewritten for
// SQLite; where the dialects differ, Dialect gives the phrase. Times are Unix milliseconds in BIGINT columns, 0 for never; ids are BIGINT.
//
// Every call ends within Options.Timeout: a database that is down or hangs is a fault.Unavailable after that time at
// the latest, so that callers can go on without it. Connections come back by themselves.
package storage

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

const (
	// DefaultTimeout bounds a call of Read, Write or Ping, retries included.
	DefaultTimeout = 3 * time.Second
	// DefaultMaxConns bounds the connections of one process to PostgreSQL.
	DefaultMaxConns = 16
)

// Options adjust Open. The zero value is right for production.
type Options struct {
	// Timeout bounds every call, retries and the wait for a free connection included. Default DefaultTimeout.
	Timeout time.Duration
	// MaxConns bounds the connections to PostgreSQL. Default DefaultMaxConns. SQLite has one writer and a few readers.
	MaxConns int
}

// DB is a database. It is safe for concurrent use.
type DB struct {
	dialect Dialect
	writer  *sql.DB
	reader  *sql.DB // the same pool as writer on PostgreSQL
	timeout time.Duration
	name    string

	// migrating gives a pool for migrations, which may take longer than a request, and what closes it.
	migrating func() (*sql.DB, func() error, error)
}

// Open prepares the database that url names: "sqlite:PATH" or "postgres://USER:PASSWORD@HOST:PORT/NAME?…" (pgx's
// parameters). A SQLite file is opened, and created when missing (mode 0600; its folder must exist); PostgreSQL is not
// contacted, so that services start in any order: Ping says whether it answers.
func Open(ctx context.Context, url string, opts Options) (*DB, error) {
	if opts.Timeout <= 0 {
		opts.Timeout = DefaultTimeout
	}
	if opts.MaxConns <= 0 {
		opts.MaxConns = DefaultMaxConns
	}
	switch {
	case strings.HasPrefix(url, "sqlite:"):
		return openSQLite(ctx, strings.TrimPrefix(url, "sqlite:"), opts)
	case strings.HasPrefix(url, "postgres://"), strings.HasPrefix(url, "postgresql://"):
		return openPostgres(url, opts)
	default:
		// The address may hold a password: it is not repeated.
		return nil, fault.New(fault.Invalid, "the database address must begin with sqlite: or postgres://")
	}
}

// Dialect says which SQL the database speaks.
func (db *DB) Dialect() Dialect { return db.dialect }

// String names the database for people, without secrets.
func (db *DB) String() string { return db.name }

// Ping asks the database to answer. It blocks for Options.Timeout at most.
func (db *DB) Ping(ctx context.Context) error {
	return db.Read(ctx, func(tx *Tx) error {
		var one int
		return tx.QueryRow("SELECT 1").Scan(&one)
	})
}

// Settle moves what was written, and what was deleted, out of SQLite's log beside the database, so that deleted bytes are
// gone from both; readers that are at work can put that off. PostgreSQL does this by itself.
func (db *DB) Settle(ctx context.Context) error {
	if db.dialect != SQLite {
		return nil
	}
	_, err := db.writer.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	return err
}

// Close closes all connections. Calls that run are waited for.
func (db *DB) Close() error {
	if db.reader == db.writer {
		return db.writer.Close()
	}
	return errors.Join(db.reader.Close(), db.writer.Close())
}
