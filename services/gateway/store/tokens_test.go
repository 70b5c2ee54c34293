package store

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
)

func TestTokens(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		token, secret, err := f.CreateToken(ctx, 1, PersonalToken, " laptop ", time.Hour)
		require.NoError(t, err)
		require.Regexp(t, `^btl_[A-Za-z0-9_-]{43}$`, secret)
		require.Equal(t, Token{ID: token.ID, PersonID: 1, Kind: PersonalToken, Name: "laptop",
			CreatedAt: f.clock.Now(), ExpiresAt: f.clock.Now().Add(time.Hour)}, token)

		person, got, err := f.Authenticate(ctx, secret)
		require.NoError(t, err)
		require.Equal(t, "root", person.Name)
		require.Equal(t, f.clock.Now(), got.LastUsedAt)
		first := f.clock.Now()
		f.clock.Add(30 * time.Second)
		_, got, err = f.Authenticate(ctx, secret)
		require.NoError(t, err)
		require.Equal(t, first, got.LastUsedAt, "not written again within a minute")
		f.clock.Add(31 * time.Second)
		_, got, err = f.Authenticate(ctx, secret)
		require.NoError(t, err)
		require.Equal(t, f.clock.Now(), got.LastUsedAt)

		for _, bad := range []string{
			"", "btl_", secret + "x", secret[:len(secret)-1], strings.ToUpper(secret), "Bearer " + secret,
			"btl_" + strings.Repeat("A", 43), "btl_" + strings.Repeat("\x00", 43), strings.Repeat("x", 1<<20),
		} {
			_, _, err := f.Authenticate(ctx, bad)
			requireCode(t, fault.Unauthenticated, err)
			_, _, err = f.TakeTicket(ctx, bad)
			requireCode(t, fault.Unauthenticated, err)
		}
		f.clock.Add(time.Hour)
		_, _, err = f.Authenticate(ctx, secret)
		requireCode(t, fault.Unauthenticated, err)

		var stored string
		require.NoError(t, f.db.Read(ctx, func(tx *storage.Tx) error {
			return tx.QueryRow("SELECT secret_hash FROM tokens WHERE id = $1", token.ID).Scan(&stored)
		}))
		require.NotContains(t, stored, secret[4:])
	})
}

func TestRevokeToken(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		ada := f.person(t, "ada")
		token, secret, err := f.CreateToken(ctx, ada.ID, SessionToken, "", 0)
		require.NoError(t, err)
		requireCode(t, fault.NotFound, f.RevokeToken(ctx, 1, token.ID))
		_, _, err = f.Authenticate(ctx, secret)
		require.NoError(t, err)
		_, ticket, err := f.CreateTicket(ctx, token)
		require.NoError(t, err)

		require.NoError(t, f.RevokeToken(ctx, ada.ID, token.ID))
		revoked := f.clock.Now()
		f.clock.Add(time.Second)
		require.NoError(t, f.RevokeToken(ctx, ada.ID, token.ID))
		_, _, err = f.Authenticate(ctx, secret)
		requireCode(t, fault.Unauthenticated, err)
		_, _, err = f.TakeTicket(ctx, ticket)
		requireCode(t, fault.Unauthenticated, err)
		_, _, err = f.CreateTicket(ctx, token)
		requireCode(t, fault.Unauthenticated, err)

		tokens, err := f.Tokens(ctx, ada.ID)
		require.NoError(t, err)
		require.Len(t, tokens, 1)
		require.Equal(t, revoked, tokens[0].RevokedAt)
	})
}

func TestCreateTokenChecks(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		for name, try := range map[string]func() error{
			"kind":    func() error { _, _, err := f.CreateToken(ctx, 1, "magic", "x", 0); return err },
			"ticket":  func() error { _, _, err := f.CreateToken(ctx, 1, TicketToken, "x", 0); return err },
			"no name": func() error { _, _, err := f.CreateToken(ctx, 1, PersonalToken, " ", 0); return err },
			"long": func() error {
				_, _, err := f.CreateToken(ctx, 1, PersonalToken, strings.Repeat("x", 65), 0)
				return err
			},
			"control": func() error { _, _, err := f.CreateToken(ctx, 1, PersonalToken, "a\nb", 0); return err },
			"past":    func() error { _, _, err := f.CreateToken(ctx, 1, SessionToken, "", -1); return err },
		} {
			require.Equal(t, fault.Invalid, fault.CodeOf(try()), name)
		}
		_, _, err := f.CreateToken(ctx, 99, SessionToken, "", 0)
		requireCode(t, fault.NotFound, err)
		_, _, err = f.CreateToken(ctx, ButlerID, SessionToken, "", 0)
		requireCode(t, fault.Forbidden, err)
		ada := f.person(t, "ada")
		_, err = f.UpdatePerson(ctx, ada.ID, Change{Disabled: ptr(true)})
		require.NoError(t, err)
		_, _, err = f.CreateToken(ctx, ada.ID, SessionToken, "", 0)
		requireCode(t, fault.Forbidden, err)
	})
}

func TestTokenLimits(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		ada := f.person(t, "ada")
		fill := func(kind TokenKind, n int, expires int64) {
			require.NoError(t, f.db.Write(ctx, func(tx *storage.Tx) error {
				_, err := tx.Exec(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
					INSERT INTO tokens (person_id, kind, secret_hash, created_at, expires_at)
					SELECT $2, $3, $3 || i, 0, $4 FROM n`, n, ada.ID, string(kind), expires)
				return err
			}))
		}
		fill(PersonalToken, MaxPersonalTokens, 0)
		_, _, err := f.CreateToken(ctx, ada.ID, PersonalToken, "x", 0)
		requireCode(t, fault.Conflict, err)

		session, secret, err := f.CreateToken(ctx, ada.ID, SessionToken, "", 0)
		require.NoError(t, err)
		fill(TicketToken, MaxTickets, millis(f.clock.Now().Add(TicketTTL)))
		_, _, err = f.CreateTicket(ctx, session)
		requireCode(t, fault.RateLimited, err)
		f.clock.Add(TicketTTL)
		_, _, err = f.CreateTicket(ctx, session)
		require.NoError(t, err)

		fill(SessionToken, MaxSessions-1, 0)
		_, _, err = f.Authenticate(ctx, secret)
		require.NoError(t, err)
		_, _, err = f.CreateToken(ctx, ada.ID, SessionToken, "", 0)
		require.NoError(t, err)
		_, _, err = f.Authenticate(ctx, secret)
		requireCode(t, fault.Unauthenticated, err) // the oldest session gave way
	})
}

func TestTickets(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		session, secret, err := f.CreateToken(ctx, 1, SessionToken, "", 0)
		require.NoError(t, err)
		_, ticket, err := f.CreateTicket(ctx, session)
		require.NoError(t, err)
		_, _, err = f.Authenticate(ctx, ticket)
		requireCode(t, fault.Unauthenticated, err)
		_, _, err = f.TakeTicket(ctx, secret)
		requireCode(t, fault.Unauthenticated, err)

		var wg sync.WaitGroup
		var taken atomic.Int32
		for range 10 {
			wg.Go(func() {
				person, parent, err := f.TakeTicket(ctx, ticket)
				if err == nil {
					taken.Add(1)
					if person.ID != 1 || parent.ID != session.ID {
						t.Errorf("%+v %+v", person, parent)
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, taken.Load())

		_, ticket, err = f.CreateTicket(ctx, session)
		require.NoError(t, err)
		f.clock.Add(TicketTTL)
		_, _, err = f.TakeTicket(ctx, ticket)
		requireCode(t, fault.Unauthenticated, err)

		_, ticket, err = f.CreateTicket(ctx, session)
		require.NoError(t, err)
		_, err = f.CreatePerson(ctx, NewPerson{Name: "second", Role: Admin, Password: "long enough"})
		require.NoError(t, err)
		_, err = f.UpdatePerson(ctx, 1, Change{Disabled: ptr(true)})
		require.NoError(t, err)
		_, _, err = f.TakeTicket(ctx, ticket)
		requireCode(t, fault.Unauthenticated, err)
	})
}

func TestPruneTokens(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		forever, _, err := f.CreateToken(ctx, 1, PersonalToken, "forever", 0)
		require.NoError(t, err)
		_, _, err = f.CreateToken(ctx, 1, SessionToken, "expiring", time.Hour)
		require.NoError(t, err)
		revoked, _, err := f.CreateToken(ctx, 1, SessionToken, "revoked", 0)
		require.NoError(t, err)
		require.NoError(t, f.RevokeToken(ctx, 1, revoked.ID))
		_, _, err = f.CreateTicket(ctx, forever)
		require.NoError(t, err)

		n, err := f.PruneTokens(ctx)
		require.NoError(t, err)
		require.Zero(t, n)
		f.clock.Add(2 * time.Hour)
		n, err = f.PruneTokens(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 1, n, "the ticket")
		f.clock.Add(31 * 24 * time.Hour)
		n, err = f.PruneTokens(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 2, n)
		tokens, err := f.Tokens(ctx, 1)
		require.NoError(t, err)
		require.Len(t, tokens, 1)
		require.Equal(t, "forever", tokens[0].Name)
	})
}
