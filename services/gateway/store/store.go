// Package store is the gateway's SQL: people, their tokens and threads, and the read model of their messages.
//
// Errors are faults: Invalid and TooLarge for what breaks a limit, NotFound for what does not exist or is another
// person's, Conflict for what exists already, Unauthenticated for a secret that is not valid (any longer), and
// Unavailable when the database does not answer, which shows within three seconds. All calls may be repeated; those
// that create something say what a repeat does.
package store

import (
	"context"
	"embed"
	"io/fs"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
)

// ButlerID is Butler's id among people and agents.
const ButlerID int64 = storage.ButlerID

// Limits of what people may store.
const (
	// MaxThreads bounds the threads of one person.
	MaxThreads = 10_000
	// MaxTitleRunes bounds a thread's title, in characters.
	MaxTitleRunes = 200
	// MaxSummaryRunes bounds a thread's summary as people write it, in characters.
	MaxSummaryRunes = 4_000
	// MaxThreadNameBytes bounds the name of ThreadByName.
	MaxThreadNameBytes = 200
	// MaxTokenNameRunes bounds the name of a token, in characters.
	MaxTokenNameRunes = 64
	// MaxPersonalTokens bounds the valid personal tokens of one person.
	MaxPersonalTokens = 100
	// MaxSessions bounds the valid sessions of one person: a further sign-in ends the oldest.
	MaxSessions = 500
	// MaxTickets bounds the unused tickets of one person.
	MaxTickets = 100
	// MinPasswordBytes and MaxPasswordBytes bound a password.
	MinPasswordBytes = 8
	MaxPasswordBytes = 1024
	// MaxPage bounds the messages of one page.
	MaxPage = 500
	// MaxQueryRunes bounds what is searched for, in characters.
	MaxQueryRunes = 200
)

// Options adjust a Store. The zero value is right for production.
type Options struct {
	// Password is how passwords are hashed. Zero fields have the defaults of DefaultParams.
	Password Params
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Store is the gateway's SQL. It is safe for concurrent use, by any number of replicas.
type Store struct {
	db        *storage.DB
	now       func() time.Time
	passwords *hasher
}

//go:embed migrations/*.sql
var migrations embed.FS

// New returns a Store on db. It does not touch the database: Migrate does, before anything else.
func New(db *storage.DB, opts Options) (*Store, error) {
	passwords, err := newHasher(opts.Password)
	if err != nil {
		return nil, err
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return &Store{db: db, now: opts.Now, passwords: passwords}, nil
}

// Migrate brings the tables up to date. Several replicas may call it at the same time. It gives fault.Unavailable
// while the database does not answer.
func (s *Store) Migrate(ctx context.Context) error {
	if err := s.db.MigratePrincipals(ctx); err != nil {
		return err
	}
	own, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	return s.db.Migrate(ctx, "gateway", own)
}

// Ping asks the database to answer.
func (s *Store) Ping(ctx context.Context) error { return s.db.Ping(ctx) }

// millis gives t as it is stored; the zero time is 0.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// fromMillis is the inverse of millis, in UTC.
func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// notFound turns "no row" into a fault with a sentence; other errors stay.
func notFound(err error, sentence string) error {
	if err == storage.ErrNoRows { //nolint:errorlint // Scan gives it bare
		return fault.New(fault.NotFound, "%s", sentence)
	}
	return err
}
