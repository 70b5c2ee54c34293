package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
)

const (
	// SecretPrefix begins every token's secret, so that a leaked one is recognized.
	SecretPrefix = "btl_"
	// TicketTTL is how long a ticket can be used.
	TicketTTL = 30 * time.Second

	secretBytes = 32
	// usedEvery is how exact a token's last use is kept, to spare a write for each request.
	usedEvery = time.Minute
	// keepEnded is how long a token that ended is still listed before PruneTokens removes it.
	keepEnded = 30 * 24 * time.Hour
	// pruneBatch bounds one transaction of PruneTokens.
	pruneBatch = 1000
)

const tokenColumns = "id, person_id, kind, name, created_at, expires_at, last_used_at, revoked_at"

func scanToken(row storage.Row) (Token, error) {
	var t Token
	var created, expires, used, revoked int64
	if err := row.Scan(&t.ID, &t.PersonID, &t.Kind, &t.Name, &created, &expires, &used, &revoked); err != nil {
		return Token{}, err
	}
	t.CreatedAt, t.ExpiresAt = fromMillis(created), fromMillis(expires)
	t.LastUsedAt, t.RevokedAt = fromMillis(used), fromMillis(revoked)
	return t, nil
}

// newSecret gives a secret of 256 random bits and what is stored of it. A fast hash is enough: there is nothing to guess.
func newSecret() (secret, hash string) {
	random := make([]byte, secretBytes)
	_, _ = rand.Read(random) // never fails
	secret = SecretPrefix + base64.RawURLEncoding.EncodeToString(random)
	return secret, hashSecret(secret)
}

func hashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// looksLikeSecret keeps other strings away from the database.
func looksLikeSecret(secret string) bool {
	return strings.HasPrefix(secret, SecretPrefix) &&
		len(secret) == len(SecretPrefix)+base64.RawURLEncoding.EncodedLen(secretBytes)
}

var errBadToken = fault.New(fault.Unauthenticated, "the token is not valid; sign in again")

// CreateToken makes a session or personal token. The secret is given here and never again. ttl 0 means that it does
// not expire. A personal token needs a name; more than MaxPersonalTokens are fault.Conflict, and of more than
// MaxSessions sessions the oldest end. Each call makes another token.
func (s *Store) CreateToken(ctx context.Context, person int64, kind TokenKind, name string, ttl time.Duration) (
	token Token, secret string, err error,
) {
	name = strings.TrimSpace(name)
	switch {
	case kind != SessionToken && kind != PersonalToken:
		return Token{}, "", fault.New(fault.Invalid, "a token is for a session or personal")
	case kind == PersonalToken && name == "":
		return Token{}, "", fault.New(fault.Invalid, "a personal token needs a name")
	case utf8.RuneCountInString(name) > MaxTokenNameRunes || strings.ContainsFunc(name, unicode.IsControl):
		return Token{}, "", fault.New(fault.Invalid,
			"the name of a token has at most %d characters, none of them control characters", MaxTokenNameRunes)
	case ttl < 0:
		return Token{}, "", fault.New(fault.Invalid, "a token cannot have expired already")
	}
	err = s.db.Write(ctx, func(tx *storage.Tx) error {
		token, secret, err = s.insertToken(tx, person, kind, name, ttl, 0)
		return err
	})
	if err != nil {
		return Token{}, "", err
	}
	return token, secret, nil
}

// CreateTicket makes a ticket: a secret that opens one connection, once, within TicketTTL, in the name of parent, which
// is a token that Authenticate gave. A ticket ends with its parent.
func (s *Store) CreateTicket(ctx context.Context, parent Token) (ticket Token, secret string, err error) {
	if parent.Kind == TicketToken {
		return Token{}, "", fault.New(fault.Invalid, "a ticket cannot make tickets")
	}
	err = s.db.Write(ctx, func(tx *storage.Tx) error {
		ticket, secret, err = s.insertToken(tx, parent.PersonID, TicketToken, "", TicketTTL, parent.ID)
		return err
	})
	if err != nil {
		return Token{}, "", err
	}
	return ticket, secret, nil
}

func (s *Store) insertToken(tx *storage.Tx, person int64, kind TokenKind, name string, ttl time.Duration, parent int64) (
	Token, string, error,
) {
	fail := func(err error) (Token, string, error) { return Token{}, "", err }
	// Taken by UpdatePerson too: a token cannot be made while the person is being disabled.
	if err := tx.Lock(personLock(person)); err != nil {
		return fail(err)
	}
	var disabled bool
	var role Role
	if err := tx.QueryRow("SELECT disabled, role FROM people WHERE id = $1", person).Scan(&disabled, &role); err != nil {
		return fail(notFound(err, "there is no such person"))
	}
	if disabled || role == ButlerRole {
		return fail(fault.New(fault.Forbidden, "this person cannot sign in"))
	}
	now := s.now()
	if parent != 0 {
		var valid int
		if err := tx.QueryRow(`SELECT COUNT(*) FROM tokens WHERE id = $1 AND person_id = $2 AND revoked_at = 0
			AND (expires_at = 0 OR expires_at > $3)`, parent, person, millis(now)).Scan(&valid); err != nil {
			return fail(err)
		}
		if valid == 0 {
			return fail(errBadToken)
		}
	}
	if err := makeRoom(tx, person, kind, now); err != nil {
		return fail(err)
	}
	secret, hash := newSecret()
	var expires time.Time
	if ttl > 0 {
		expires = now.Add(ttl)
	}
	var parentID any
	if parent != 0 {
		parentID = parent
	}
	token, err := scanToken(tx.QueryRow(`INSERT INTO tokens (person_id, kind, name, secret_hash, parent_id, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING `+tokenColumns,
		person, string(kind), name, hash, parentID, millis(now), millis(expires)))
	return token, secret, err
}

// makeRoom keeps the limits of valid tokens.
func makeRoom(tx *storage.Tx, person int64, kind TokenKind, now time.Time) error {
	const valid = "person_id = $1 AND kind = $2 AND revoked_at = 0 AND (expires_at = 0 OR expires_at > $3)"
	var n int
	err := tx.QueryRow("SELECT COUNT(*) FROM tokens WHERE "+valid, person, string(kind), millis(now)).Scan(&n)
	switch {
	case err != nil:
		return err
	case kind == PersonalToken && n >= MaxPersonalTokens:
		return fault.New(fault.Conflict, "there are %d personal tokens already; revoke one first", n)
	case kind == TicketToken && n >= MaxTickets:
		return &fault.Error{Code: fault.RateLimited, Message: "too many tickets at once; try again in a moment",
			RetryAfter: TicketTTL / 2}
	case kind == SessionToken && n >= MaxSessions:
		_, err := tx.Exec("UPDATE tokens SET revoked_at = $3 WHERE id IN (SELECT id FROM tokens WHERE "+valid+
			" ORDER BY id LIMIT $4)", person, string(kind), millis(now), n-MaxSessions+1)
		return err
	}
	return nil
}

// Authenticate gives the person and the token of a session's or personal token's secret. A secret that is unknown,
// revoked, expired, a ticket's or a disabled person's is fault.Unauthenticated.
func (s *Store) Authenticate(ctx context.Context, secret string) (Person, Token, error) {
	if !looksLikeSecret(secret) {
		return Person{}, Token{}, errBadToken
	}
	var person Person
	var token Token
	err := s.db.Read(ctx, func(tx *storage.Tx) (err error) {
		token, err = scanToken(tx.QueryRow("SELECT "+tokenColumns+" FROM tokens WHERE secret_hash = $1", hashSecret(secret)))
		if err != nil {
			return err
		}
		person, err = scanPerson(tx.QueryRow("SELECT "+personColumns+" FROM people WHERE id = $1", token.PersonID))
		return err
	})
	now := s.now()
	switch {
	case err == storage.ErrNoRows: //nolint:errorlint // Scan gives it bare
		return Person{}, Token{}, errBadToken
	case err != nil:
		return Person{}, Token{}, err
	case token.Kind == TicketToken || !token.Valid(now) || person.Disabled:
		return Person{}, Token{}, errBadToken
	}
	if now.Sub(token.LastUsedAt) >= usedEvery {
		// Who uses a token is let in also when this cannot be noted now.
		if s.db.Write(ctx, func(tx *storage.Tx) error {
			_, err := tx.Exec("UPDATE tokens SET last_used_at = $1 WHERE id = $2 AND last_used_at < $1", millis(now), token.ID)
			return err
		}) == nil {
			token.LastUsedAt = fromMillis(millis(now))
		}
	}
	return person, token, nil
}

// Valid says whether the token is neither revoked nor expired.
func (t Token) Valid(now time.Time) bool {
	return t.RevokedAt.IsZero() && (t.ExpiresAt.IsZero() || now.Before(t.ExpiresAt))
}

// TakeTicket uses a ticket up and gives its person and its parent token. Of several calls with one ticket one
// succeeds; a ticket that is unknown, used, expired or whose parent is not valid is fault.Unauthenticated.
func (s *Store) TakeTicket(ctx context.Context, secret string) (Person, Token, error) {
	if !looksLikeSecret(secret) {
		return Person{}, Token{}, errBadToken
	}
	var person Person
	var parent Token
	err := s.db.Write(ctx, func(tx *storage.Tx) error {
		now := s.now()
		var parentID int64
		err := tx.QueryRow(`DELETE FROM tokens WHERE secret_hash = $1 AND kind = $2 AND revoked_at = 0 AND expires_at > $3
			RETURNING parent_id`, hashSecret(secret), string(TicketToken), millis(now)).Scan(&parentID)
		if err != nil {
			return err
		}
		if parent, err = scanToken(tx.QueryRow("SELECT "+tokenColumns+" FROM tokens WHERE id = $1", parentID)); err != nil {
			return err
		}
		person, err = scanPerson(tx.QueryRow("SELECT "+personColumns+" FROM people WHERE id = $1", parent.PersonID))
		return err
	})
	switch {
	case err == storage.ErrNoRows: //nolint:errorlint // Scan gives it bare
		return Person{}, Token{}, errBadToken
	case err != nil:
		return Person{}, Token{}, err
	case !parent.Valid(s.now()) || person.Disabled:
		return Person{}, Token{}, errBadToken
	}
	return person, parent, nil
}

// Tokens gives a person's session and personal tokens, the newest first, those that ended too until they are pruned.
func (s *Store) Tokens(ctx context.Context, person int64) ([]Token, error) {
	var tokens []Token
	err := s.db.Read(ctx, func(tx *storage.Tx) (err error) {
		tokens, err = storage.Collect(tx, scanToken, "SELECT "+tokenColumns+
			" FROM tokens WHERE person_id = $1 AND kind <> $2 ORDER BY id DESC LIMIT 1000", person, string(TicketToken))
		return err
	})
	return tokens, err
}

// RevokeToken ends a person's token, and its tickets; one that ended already stays as it is. Another person's is
// fault.NotFound.
func (s *Store) RevokeToken(ctx context.Context, person, id int64) error {
	return s.db.Write(ctx, func(tx *storage.Tx) error {
		n, err := tx.Exec(`UPDATE tokens SET revoked_at = CASE WHEN revoked_at = 0 THEN $1 ELSE revoked_at END
			WHERE id = $2 AND person_id = $3`, millis(s.now()), id, person)
		if err == nil && n == 0 {
			return fault.New(fault.NotFound, "there is no such token")
		}
		return err
	})
}

func revokeAll(tx *storage.Tx, person int64, now time.Time) error {
	_, err := tx.Exec("UPDATE tokens SET revoked_at = $1 WHERE person_id = $2 AND revoked_at = 0", millis(now), person)
	return err
}

// PruneTokens removes tickets that expired and other tokens that ended more than 30 days ago, and says how many.
func (s *Store) PruneTokens(ctx context.Context) (int64, error) {
	var total int64
	for {
		now := s.now()
		var n int64
		err := s.db.Write(ctx, func(tx *storage.Tx) (err error) {
			n, err = tx.Exec(`DELETE FROM tokens WHERE id IN (SELECT id FROM tokens
				WHERE (kind = $1 AND expires_at < $2) OR (expires_at > 0 AND expires_at < $3)
				   OR (revoked_at > 0 AND revoked_at < $3) LIMIT $4)`,
				string(TicketToken), millis(now), millis(now.Add(-keepEnded)), pruneBatch)
			return err
		})
		total += n
		if err != nil || n < pruneBatch {
			return total, err
		}
	}
}
