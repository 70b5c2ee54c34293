package storage

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/butlerhub/butler/pkg/fault"
)

// ErrNoRows is what a Row's Scan returns when there is no row.
var ErrNoRows = sql.ErrNoRows

// errOutcomeUnknown marks a commit that got no answer: it may have happened, so it is not repeated here.
var errOutcomeUnknown = errors.New("the commit was not confirmed")

// trouble is what kind of error a database reports.
type trouble int

const (
	other       trouble = iota
	contention          // lost against another transaction: the same again can succeed
	unreachable         // the connection or the server is in trouble
	duplicate           // a unique constraint
	dangling            // a foreign key constraint
)

func troubleOf(err error) trouble {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return postgresTrouble(pg)
	}
	if lite, ok := errors.AsType[*sqlite.Error](err); ok {
		return sqliteTrouble(lite.Code())
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return unreachable
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return unreachable
	}
	for _, e := range []error{
		driver.ErrBadConn, sql.ErrConnDone, sql.ErrTxDone, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
		context.DeadlineExceeded, context.Canceled, errOutcomeUnknown,
	} {
		if errors.Is(err, e) {
			return unreachable
		}
	}
	if pgconn.SafeToRetry(err) {
		return unreachable
	}
	return other
}

// postgresTrouble reads the SQLSTATE (PostgreSQL manual, appendix A).
func postgresTrouble(err *pgconn.PgError) trouble {
	switch err.Code {
	case "40001", "40P01", "55P03": // serialization failure, deadlock, lock not available
		return contention
	case "23505":
		return duplicate
	case "23503":
		return dangling
	case "0A000":
		// Another replica migrated a table that this connection has a prepared statement for.
		if strings.Contains(err.Message, "cached plan") {
			return contention
		}
	case "25006": // read-only: a standby, during a failover
		return unreachable
	case "3D000": // no such database
		return unreachable
	}
	switch err.Code[:min(2, len(err.Code))] {
	case "08", "28", "53", "57", "58": // connection, sign-in, resources, operator intervention, system error
		return unreachable
	}
	return other
}

func sqliteTrouble(code int) trouble {
	switch code {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
		return duplicate
	case sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
		return dangling
	}
	switch code & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return contention
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY,
		sqlite3.SQLITE_INTERRUPT:
		return unreachable
	}
	return other
}

// mapped gives err as callers of this package see it. What is a fault already, and ErrNoRows, stay as they are.
func mapped(err error) error {
	if err == nil || errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	switch troubleOf(err) {
	case contention:
		return fault.Wrap(err, fault.Unavailable, "the database is too busy now; try again")
	case unreachable:
		return fault.Wrap(err, fault.Unavailable, "the database does not answer now; try again")
	case duplicate:
		return fault.Wrap(err, fault.Conflict, "it exists already")
	case dangling:
		return fault.Wrap(err, fault.Conflict, "something that it belongs to does not exist")
	default:
		return err
	}
}

// IsDuplicate says whether err is about a unique constraint.
func IsDuplicate(err error) bool { return troubleOf(err) == duplicate }

// IsDangling says whether err is about a foreign key: something that a row belongs to is not there.
func IsDangling(err error) bool { return troubleOf(err) == dangling }
