// Package storagetest gives tests real databases: SQLite in a temporary folder, and a throw-away PostgreSQL server
// that is started once for a test binary, with a database for each test. A machine without PostgreSQL fails the tests.
package storagetest

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/butlerhub/butler/pkg/storage"
)

// shared is the cluster of this test binary. It lives until the process ends; the shell around it then removes it.
var shared = sync.OnceValues(newCluster)

var databases atomic.Int64

// Shared gives the cluster of this test binary, for NewDatabase. Tests that stop it use New instead.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	c, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// New starts a cluster of the test's own, which the test may stop and start. It is removed when the test ends.
func New(t testing.TB) *Cluster {
	t.Helper()
	c, err := newCluster()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.remove(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// NewDatabase creates an empty database and gives its address, postgres://…. It is dropped when the test ends, if the
// cluster runs then.
func (c *Cluster) NewDatabase(t testing.TB) (url string) {
	t.Helper()
	name := fmt.Sprintf("test_%d", databases.Add(1))
	if err := c.exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.mu.Lock()
		running := c.running != nil
		c.mu.Unlock()
		if running {
			if err := c.exec("DROP DATABASE " + name + " WITH (FORCE)"); err != nil {
				t.Error(err)
			}
		}
	})
	return c.url(name)
}

func (c *Cluster) exec(statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.url("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	return err
}

// patience is the time that a call may take in tests that are not about it: a busy machine is not an outage.
const patience = 30 * time.Second

// Open opens the database at url, with a generous timeout, and closes it when the test ends.
func Open(t testing.TB, url string) *storage.DB {
	t.Helper()
	return OpenWith(t, url, storage.Options{Timeout: patience})
}

// OpenWith is Open with options, for tests that are about them.
func OpenWith(t testing.TB, url string, opts storage.Options) *storage.DB {
	t.Helper()
	db, err := storage.Open(context.Background(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// SQLiteURL gives the address of a SQLite database in a folder of the test's own.
func SQLiteURL(t testing.TB) string {
	return "sqlite:" + filepath.Join(t.TempDir(), "butler.db")
}

// EachURL runs a test, as a parallel subtest, with the address of an empty SQLite and of an empty PostgreSQL database.
func EachURL(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, SQLiteURL(t))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, Shared(t).NewDatabase(t))
	})
}

// Each runs a test, as a parallel subtest, on an empty SQLite and on an empty PostgreSQL database.
func Each(t *testing.T, test func(t *testing.T, db *storage.DB)) {
	t.Helper()
	EachURL(t, func(t *testing.T, url string) { test(t, Open(t, url)) })
}
