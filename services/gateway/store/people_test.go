package store

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

func TestTheFirstAdminAndButler(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		people, err := f.People(ctx)
		require.NoError(t, err)
		require.Len(t, people, 2)
		require.Equal(t, Person{ID: 1, Name: "root", Role: Admin, CreatedAt: f.clock.Now(), UpdatedAt: f.clock.Now()}, people[0])
		require.EqualValues(t, 2, people[1].ID)
		require.Equal(t, "Butler", people[1].Name)
		require.Equal(t, ButlerRole, people[1].Role)

		created, err := f.EnsureFirst(ctx, "another", "another password")
		require.NoError(t, err)
		require.False(t, created)
		_, err = f.VerifyPassword(ctx, "another", "another password")
		requireCode(t, fault.Unauthenticated, err)

		threads, err := f.Threads(ctx, 1, ThreadFilter{})
		require.NoError(t, err)
		require.Len(t, threads, 1)
		require.True(t, threads[0].Default)
		require.Equal(t, ButlerID, threads[0].PeerID)
		require.Equal(t, f.thread(t, 1), threads[0])

		require.EqualValues(t, 3, f.person(t, "third").ID)
	})
}

func TestAnAgentBeforeThePeopleTakesNoReservedID(t *testing.T) {
	t.Parallel()
	storagetest.EachURL(t, func(t *testing.T, url string) {
		db := storagetest.Open(t, url)
		require.NoError(t, db.MigratePrincipals(t.Context()))
		var agent int64
		require.NoError(t, db.Write(t.Context(), func(tx *storage.Tx) (err error) {
			agent, err = tx.NewPrincipal(storage.AgentKind)
			return err
		}))
		f := newFixture(t, url)
		require.EqualValues(t, 3, agent)
		require.EqualValues(t, 4, f.person(t, "ada").ID)
	})
}

func TestCreatePerson(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		p, err := f.CreatePerson(ctx, NewPerson{Name: "  王小明 ", Role: Member, Password: "12345678"})
		require.NoError(t, err)
		require.Equal(t, "王小明", p.Name)
		got, err := f.PersonByName(ctx, "王小明")
		require.NoError(t, err)
		require.Equal(t, p, got)
		require.True(t, f.thread(t, p.ID).Default)

		f.person(t, "Ada")
		for name, who := range map[string]NewPerson{
			"other case":    {"aDA", Member, "long enough"},
			"Butler's name": {"butler", Member, "long enough"},
		} {
			_, err := f.CreatePerson(ctx, who)
			require.Equal(t, fault.Conflict, fault.CodeOf(err), "%s: %v", name, err)
		}
		for name, who := range map[string]NewPerson{
			"no name":          {" ", Member, "long enough"},
			"long name":        {strings.Repeat("名", 65), Member, "long enough"},
			"control":          {"a\tb", Member, "long enough"},
			"no role":          {"x", "", "long enough"},
			"invented role":    {"x", "GOD", "long enough"},
			"Butler's role":    {"x", ButlerRole, "long enough"},
			"short password":   {"x", Member, "1234567"},
			"endless password": {"x", Member, strings.Repeat("x", 1025)},
		} {
			_, err := f.CreatePerson(ctx, who)
			require.Equal(t, fault.Invalid, fault.CodeOf(err), "%s: %v", name, err)
		}
		people, err := f.People(ctx)
		require.NoError(t, err)
		require.Len(t, people, 4, "what failed left nothing")
		_, err = f.Person(ctx, 99)
		requireCode(t, fault.NotFound, err)
		_, err = f.PersonByName(ctx, "no\x00body")
		requireCode(t, fault.NotFound, err)
	})
}

func TestUpdatePerson(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		ada := f.person(t, "ada")
		f.clock.Add(time.Minute)
		ada, err := f.UpdatePerson(ctx, ada.ID, Change{Role: ptr(Admin)})
		require.NoError(t, err)
		require.Equal(t, Admin, ada.Role)
		require.Equal(t, f.clock.Now(), ada.UpdatedAt)
		got, err := f.Person(ctx, ada.ID)
		require.NoError(t, err)
		require.Equal(t, ada, got)

		for name, change := range map[string]struct {
			ending bool
			change Change
		}{
			"role":     {false, Change{Role: ptr(Member)}},
			"password": {true, Change{Password: ptr("a new password")}},
			"disabled": {true, Change{Disabled: ptr(true)}},
			"enabled":  {false, Change{Disabled: ptr(false)}},
		} {
			_, err := f.UpdatePerson(ctx, ada.ID, Change{Disabled: ptr(false)})
			require.NoError(t, err)
			_, secret, err := f.CreateToken(ctx, ada.ID, PersonalToken, "script", 0)
			require.NoError(t, err)
			_, err = f.UpdatePerson(ctx, ada.ID, change.change)
			require.NoError(t, err)
			_, _, err = f.Authenticate(ctx, secret)
			require.Equal(t, change.ending, err != nil, name)
		}
		_, err = f.VerifyPassword(ctx, "ada", "a new password")
		if err != nil { // the last change may have left ada disabled
			_, err = f.UpdatePerson(ctx, ada.ID, Change{Disabled: ptr(false)})
			require.NoError(t, err)
			_, err = f.VerifyPassword(ctx, "ada", "a new password")
		}
		require.NoError(t, err)

		_, err = f.UpdatePerson(ctx, ButlerID, Change{Role: ptr(Admin)})
		requireCode(t, fault.Forbidden, err)
		_, err = f.UpdatePerson(ctx, 99, Change{Role: ptr(Admin)})
		requireCode(t, fault.NotFound, err)
		_, err = f.UpdatePerson(ctx, ada.ID, Change{Role: ptr(Role("AGENT"))})
		requireCode(t, fault.Invalid, err)
		_, err = f.UpdatePerson(ctx, ada.ID, Change{Password: ptr("short")})
		requireCode(t, fault.Invalid, err)
	})
}

func TestAnAdminAlwaysRemains(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		for _, change := range []Change{{Role: ptr(Member)}, {Disabled: ptr(true)}} {
			_, err := f.UpdatePerson(ctx, 1, change)
			requireCode(t, fault.Conflict, err)
		}
		// Each of two admins removes the other, or themselves, at the same time: one is refused.
		ada := f.person(t, "ada")
		for range 10 {
			for _, id := range []int64{1, ada.ID} {
				_, err := f.UpdatePerson(ctx, id, Change{Role: ptr(Admin), Disabled: ptr(false)})
				require.NoError(t, err)
			}
			var wg sync.WaitGroup
			errs := make([]error, 2)
			for i, id := range []int64{1, ada.ID} {
				wg.Go(func() {
					change := []Change{{Role: ptr(Member)}, {Disabled: ptr(true)}}[i]
					_, errs[i] = f.UpdatePerson(ctx, id, change)
				})
			}
			wg.Wait()
			require.NotEqual(t, errs[0] == nil, errs[1] == nil, "%v, %v", errs[0], errs[1])
		}
	})
}

func TestVerifyPassword(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		p, err := f.VerifyPassword(ctx, " ROOT ", adminPassword)
		require.NoError(t, err)
		require.EqualValues(t, 1, p.ID)
		ada := f.person(t, "ada")
		_, err = f.UpdatePerson(ctx, ada.ID, Change{Disabled: ptr(true)})
		require.NoError(t, err)

		var said []string
		for _, try := range [][2]string{
			{"root", "wrong"}, {"root", ""}, {"nobody", adminPassword}, {"", ""}, {"Butler", ""}, {"ada", "password of ada"},
			{"x\x00y\xff", "z\x00"}, {"root", adminPassword + strings.Repeat(" ", 2000)},
		} {
			_, err := f.VerifyPassword(ctx, try[0], try[1])
			requireCode(t, fault.Unauthenticated, err)
			said = append(said, err.Error())
		}
		for _, s := range said {
			require.Equal(t, said[0], s, "the answer does not tell why")
		}
	})
}

func TestWeakHashesAreMadeAnew(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		hash := func() (h string) {
			require.NoError(t, f.db.Read(ctx, func(tx *storage.Tx) error {
				return tx.QueryRow("SELECT password_hash FROM people WHERE id = 1").Scan(&h)
			}))
			return h
		}
		before := hash()
		require.Contains(t, before, "$argon2id$v=19$m=64,t=1,p=1$")
		stronger, err := New(f.db, Options{Password: Params{Time: 2, MemoryKiB: 128, Threads: 1}})
		require.NoError(t, err)
		_, err = stronger.VerifyPassword(ctx, "root", "wrong")
		requireCode(t, fault.Unauthenticated, err)
		require.Equal(t, before, hash())
		_, err = stronger.VerifyPassword(ctx, "root", adminPassword)
		require.NoError(t, err)
		after := hash()
		require.Contains(t, after, "m=128,t=2,p=1")
		// A replica with the old setting neither weakens it nor is locked out.
		_, err = f.VerifyPassword(ctx, "root", adminPassword)
		require.NoError(t, err)
		require.Equal(t, after, hash())
	})
}

func TestHashing(t *testing.T) {
	t.Parallel()
	for _, p := range []Params{{MemoryKiB: 1 << 30}, {Time: 1 << 20}, {Threads: 255}, {MemoryKiB: 8, Threads: 4}} {
		_, err := newHasher(p)
		requireCode(t, fault.Invalid, err)
	}
	h, err := newHasher(cheap)
	require.NoError(t, err)
	for _, stored := range []string{
		"", "x", "$argon2id$v=19$m=4294967295,t=1,p=1$c2FsdHNhbHQ$AAAAAAAAAAAAAAAAAAAAAA", "$argon2id$v=19$m=64,t=1,p=1$$",
		"$argon2i$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$AAAAAAAAAAAAAAAAAAAAAA", h.decoy.String()[:40],
	} {
		right, _, err := h.verify(t.Context(), "", stored)
		require.NoError(t, err)
		require.False(t, right, stored)
	}
	stored, err := h.hash(t.Context(), "p\u00e4ssword")
	require.NoError(t, err)
	right, weak, err := h.verify(t.Context(), "p\u00e4ssword", stored)
	require.NoError(t, err)
	require.True(t, right)
	require.False(t, weak)

	// All turns are taken: who waits too long, and too many, are told.
	for range cap(h.turns) {
		h.turns <- struct{}{}
	}
	h.waiting.Store(hashesWaiting)
	_, err = h.hash(t.Context(), "password")
	requireCode(t, fault.RateLimited, err)
	require.NotZero(t, fault.RetryAfter(err))
	require.EqualValues(t, hashesWaiting, h.waiting.Load())
}

func FuzzParseHash(f *testing.F) {
	f.Add("$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$AAAAAAAAAAAAAAAAAAAAAA")
	f.Fuzz(func(t *testing.T, stored string) {
		if p, ok := parseHash(stored); ok {
			again, ok := parseHash(p.String())
			require.True(t, ok)
			require.Equal(t, p, again)
		}
	})
}

func BenchmarkVerifyPassword(b *testing.B) {
	h, err := newHasher(Params{})
	require.NoError(b, err)
	for b.Loop() {
		if _, _, err := h.verify(b.Context(), "password", ""); err != nil {
			b.Fatal(fmt.Errorf("verify: %w", err))
		}
	}
}
