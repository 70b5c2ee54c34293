package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// pgx cancels a statement that ran out of time in the background, for a bounded time.
		goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgconn.(*PgConn).asyncClose.func1"))
}

// cheap keeps the tests quick; what passwords cost is tested on its own.
var cheap = Params{Time: 1, MemoryKiB: 64, Threads: 1}

// clock is a clock that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// fixture is a store with the first admin.
type fixture struct {
	*Store
	clock *clock
}

const adminPassword = "correct horse"

func newFixture(t *testing.T, url string) fixture {
	t.Helper()
	return newFixtureOn(t, storagetest.Open(t, url))
}

func newFixtureOn(t *testing.T, db *storage.DB) fixture {
	t.Helper()
	c := newClock()
	s, err := New(db, Options{Password: cheap, Now: c.Now})
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	f := fixture{Store: s, clock: c}
	created, err := f.EnsureFirst(t.Context(), "root", adminPassword)
	require.NoError(t, err)
	require.True(t, created)
	return f
}

// each runs one part of the conformance suite on both databases.
func each(t *testing.T, test func(t *testing.T, f fixture)) {
	t.Helper()
	t.Parallel()
	storagetest.EachURL(t, func(t *testing.T, url string) { test(t, newFixture(t, url)) })
}

func (f fixture) person(t *testing.T, name string) Person {
	t.Helper()
	p, err := f.CreatePerson(t.Context(), NewPerson{Name: name, Role: Member, Password: "password of " + name})
	require.NoError(t, err)
	return p
}

func (f fixture) thread(t *testing.T, owner int64) Thread {
	t.Helper()
	thread, err := f.DefaultThread(t.Context(), owner)
	require.NoError(t, err)
	return thread
}

func requireCode(t *testing.T, code fault.Code, err error) {
	t.Helper()
	require.Equal(t, code, fault.CodeOf(err), "%v", err)
}

func ptr[T any](v T) *T { return &v }

func TestOutage(t *testing.T) {
	t.Parallel()
	cluster := storagetest.New(t)
	f := newFixtureOn(t, storagetest.OpenWith(t, cluster.NewDatabase(t), storage.Options{}))
	ctx := t.Context()
	_, secret, err := f.CreateToken(ctx, 1, SessionToken, "", time.Hour)
	require.NoError(t, err)
	thread := f.thread(t, 1)

	cluster.Stop(t)
	for name, call := range map[string]func() error{
		"ping":           func() error { return f.Ping(ctx) },
		"migrate":        func() error { return f.Migrate(ctx) },
		"ensure first":   func() error { _, err := f.EnsureFirst(ctx, "root", adminPassword); return err },
		"sign in":        func() error { _, err := f.VerifyPassword(ctx, "root", adminPassword); return err },
		"authenticate":   func() error { _, _, err := f.Authenticate(ctx, secret); return err },
		"create person":  func() error { _, err := f.CreatePerson(ctx, NewPerson{"ada", Member, "long enough"}); return err },
		"create token":   func() error { _, _, err := f.CreateToken(ctx, 1, SessionToken, "", 0); return err },
		"default thread": func() error { _, err := f.DefaultThread(ctx, 1); return err },
		"thread by name": func() error { _, err := f.ThreadByName(ctx, 1, "x"); return err },
		"messages":       func() error { _, err := f.Messages(ctx, 1, thread.ID, 0, 10); return err },
		"apply":          func() error { return f.Apply(ctx, []Message{message(1, 1, thread.ID, "hi")}, 1) },
		"prune":          func() error { _, err := f.PruneTokens(ctx); return err },
		"reset":          func() error { return f.ResetProjection(ctx) },
		"delete thread":  func() error { return f.DeleteThread(ctx, 1, thread.ID) },
	} {
		start := time.Now()
		err := call()
		require.Equal(t, fault.Unavailable, fault.CodeOf(err), "%s: %v", name, err)
		require.Less(t, time.Since(start), 3500*time.Millisecond, name)
	}

	cluster.Start(t)
	person, _, err := f.Authenticate(ctx, secret)
	require.NoError(t, err)
	require.Equal(t, "root", person.Name)
	require.NoError(t, f.Apply(ctx, []Message{message(1, 1, thread.ID, "hi")}, 1))
	messages, err := f.Messages(ctx, 1, thread.ID, 0, 10)
	require.NoError(t, err)
	require.Len(t, messages, 1)
}

func TestAnOutageUnderLoadLosesNothingConfirmed(t *testing.T) {
	t.Parallel()
	cluster := storagetest.New(t)
	f := newFixtureOn(t, storagetest.OpenWith(t, cluster.NewDatabase(t), storage.Options{}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	thread := f.thread(t, 1)
	var mu sync.Mutex
	var confirmed []uint64
	progress := make(chan struct{}, 1)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := uint64(1); ctx.Err() == nil; i++ {
				id := i*8 + uint64(w)
				if f.Apply(ctx, []Message{message(id, 1, thread.ID, "x")}, id) != nil {
					continue
				}
				mu.Lock()
				confirmed = append(confirmed, id)
				mu.Unlock()
				select {
				case progress <- struct{}{}:
				default:
				}
			}
		})
	}
	for range 20 {
		<-progress
	}
	cluster.Stop(t)
	cluster.Start(t)
	select { // what came before the stop does not count
	case <-progress:
	default:
	}
	for range 20 {
		<-progress
	}
	cancel()
	wg.Wait()
	stored := map[uint64]bool{}
	for before := uint64(0); ; {
		page, err := f.Messages(t.Context(), 1, thread.ID, before, MaxPage)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		for _, m := range page {
			stored[m.ID] = true
		}
		before = page[0].ID
	}
	for _, id := range confirmed {
		require.True(t, stored[id], "message %d was confirmed", id)
	}
}

func TestFiftyWriters(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		const people, messages = 50, 10
		var wg sync.WaitGroup
		var mu sync.Mutex
		ids := map[int64]bool{}
		for i := range people {
			wg.Go(func() {
				ctx := t.Context()
				fail := func(what string, err error) bool {
					if err != nil {
						t.Errorf("writer %d: %s: %v", i, what, err)
					}
					return err != nil
				}
				name := fmt.Sprintf("person %d", i)
				p, err := f.CreatePerson(ctx, NewPerson{Name: name, Role: Member, Password: "long enough"})
				if fail("create", err) {
					return
				}
				mu.Lock()
				ids[p.ID] = true
				mu.Unlock()
				_, secret, err := f.CreateToken(ctx, p.ID, SessionToken, "", time.Hour)
				if fail("token", err) {
					return
				}
				thread, err := f.ThreadByName(ctx, p.ID, "work")
				if fail("thread", err) {
					return
				}
				for j := range messages {
					id := uint64(1 + j*people + i)
					if fail("apply", f.Apply(ctx, []Message{message(id, p.ID, thread.ID, fmt.Sprint(j))}, id)) {
						return
					}
				}
				_, _, err = f.Authenticate(ctx, secret)
				fail("authenticate", err)
				got, err := f.Messages(ctx, p.ID, thread.ID, 0, 100)
				if !fail("messages", err) && len(got) != messages {
					t.Errorf("writer %d: %d messages", i, len(got))
				}
			})
		}
		wg.Wait()
		require.Len(t, ids, people)
		p, err := f.Projection(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, people*messages, p.Position)
		require.EqualValues(t, people*messages, p.Applied)
		require.Zero(t, p.Ignored)
	})
}

func TestReplicasStartTogether(t *testing.T) {
	t.Parallel()
	storagetest.EachURL(t, func(t *testing.T, url string) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var firsts []string
		for i := range 4 {
			name := fmt.Sprintf("admin%d", i)
			db := storagetest.Open(t, url)
			wg.Go(func() {
				s, err := New(db, Options{Password: cheap})
				if err == nil {
					err = s.Migrate(t.Context())
				}
				var created bool
				if err == nil {
					created, err = s.EnsureFirst(t.Context(), name, adminPassword)
				}
				if err != nil {
					t.Error(err)
				}
				if created {
					mu.Lock()
					firsts = append(firsts, name)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		require.Len(t, firsts, 1)
		s, err := New(storagetest.Open(t, url), Options{Password: cheap})
		require.NoError(t, err)
		first, err := s.Person(t.Context(), storage.FirstPersonID)
		require.NoError(t, err)
		require.Equal(t, firsts[0], first.Name)
		people, err := s.People(t.Context())
		require.NoError(t, err)
		require.Len(t, people, 2)
	})
}
