package storage

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	_ "modernc.org/sqlite" // registers the driver "sqlite"

	"github.com/butlerhub/butler/pkg/fault"
)

func openSQLite(ctx context.Context, path string, opts Options) (*DB, error) {
	if path == "" {
		return nil, fault.New(fault.Invalid, "the database address sqlite: names no file")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the database file %s cannot be found", path)
	}
	// SQLite gives its side files the mode of the database: created here, none of them is readable for others.
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "the database file %s cannot be opened: check that its folder exists and can be written", path)
	}
	if err := file.Close(); err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "the database file %s cannot be opened", path)
	}

	// One writer connection: several starve each other, since SQLite has no queue for its write lock. The busy
	// timeout is for other processes.
	writer, err := sql.Open("sqlite", sqliteDSN(path, opts.Timeout, false))
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "the database file %s cannot be opened", path)
	}
	writer.SetMaxOpenConns(1)
	writer.SetMaxIdleConns(1)
	reader, err := sql.Open("sqlite", sqliteDSN(path, opts.Timeout, true))
	if err != nil {
		_ = writer.Close()
		return nil, fault.Wrap(err, fault.Internal, "the database file %s cannot be opened", path)
	}
	readers := max(4, runtime.GOMAXPROCS(0))
	reader.SetMaxOpenConns(readers)
	reader.SetMaxIdleConns(readers)
	reader.SetConnMaxIdleTime(5 * time.Minute)

	db := &DB{dialect: SQLite, writer: writer, reader: reader, timeout: opts.Timeout, name: "SQLite " + path}
	db.migrating = func() (*sql.DB, func() error, error) { return writer, func() error { return nil }, nil }
	// The writer's first connection turns the file to WAL, which readers depend on.
	if err := db.Write(ctx, func(*Tx) error { return nil }); err != nil {
		_ = db.Close()
		return nil, fault.Wrap(err, fault.Unavailable, "the database file %s is not usable", path)
	}
	return db, nil
}

// sqliteDSN gives the data source name with the pragmas that every connection needs: modernc's parameters, which
// reject a typo instead of ignoring it.
func sqliteDSN(path string, timeout time.Duration, readOnly bool) string {
	query := url.Values{}
	query.Set("_busy_timeout", strconv.FormatInt((timeout*3/4).Milliseconds(), 10))
	query.Set("_foreign_keys", "on")
	query.Set("_dqs", "0")
	if readOnly {
		query.Set("_query_only", "on")
	} else {
		query.Set("_journal_mode", "WAL")
		query.Set("_synchronous", "FULL")        // an acknowledged commit survives a power cut
		query.Set("_txlock", "immediate")        // no upgrade from read to write lock, which could fail half-way
		query.Add("_pragma", "secure_delete(1)") // what was deleted is not left in the file
	}
	return (&url.URL{Scheme: "file", Path: path, OmitHost: true, RawQuery: query.Encode()}).String()
}
