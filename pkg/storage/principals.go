package storage

import (
	"context"
	"embed"
	"io/fs"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"github.com/butlerhub/butler/pkg/fault"
)

const (
	// FirstPersonID is the id of the first admin.
	FirstPersonID = 1
	// ButlerID is the id of Butler itself.
	ButlerID = 2
	// MaxNameRunes bounds the name of a person or an agent, in characters.
	MaxNameRunes = 64
)

// PrincipalKind is what an id was given to.
type PrincipalKind string

const (
	// PersonKind is a person.
	PersonKind PrincipalKind = "person"
	// AgentKind is an agent.
	AgentKind PrincipalKind = "agent"
)

//go:embed principals/*.sql
var principalMigrations embed.FS

// MigratePrincipals creates the table that the ids of people and agents come from. Every service that gives out such
// ids calls it before its own Migrate; any number of them may, at the same time.
func (db *DB) MigratePrincipals(ctx context.Context) error {
	migrations, err := fs.Sub(principalMigrations, "principals")
	if err != nil {
		return err
	}
	return db.Migrate(ctx, "principals", migrations)
}

// NewPrincipal gives a fresh id, 3 or greater, within a transaction of Write. Transactions that do so run one after
// the other.
func (tx *Tx) NewPrincipal(kind PrincipalKind) (int64, error) {
	if err := tx.Lock("principals"); err != nil {
		return 0, err
	}
	var id int64
	err := tx.QueryRow("INSERT INTO principals (id, kind) SELECT MAX(id) + 1, $1 FROM principals RETURNING id",
		string(kind)).Scan(&id)
	return id, err
}

// CleanName checks the name of a person or an agent and gives it as it is stored (without space around it) and the key
// by which it is unique: the same for upper and lower case, and for the several ways in which Unicode writes one
// character. A name has 1 to MaxNameRunes characters of any script, and none that is invisible or reorders the text
// around it. The error is fault.Invalid.
func CleanName(name string) (clean, key string, err error) {
	if len(name) > 16*MaxNameRunes || !utf8.ValidString(name) {
		return "", "", fault.New(fault.Invalid, "a name must have 1 to %d characters", MaxNameRunes)
	}
	clean = norm.NFC.String(strings.TrimSpace(name))
	if n := utf8.RuneCountInString(clean); n < 1 || n > MaxNameRunes {
		return "", "", fault.New(fault.Invalid, "a name must have 1 to %d characters", MaxNameRunes)
	}
	if strings.ContainsFunc(clean, hidden) || !strings.ContainsFunc(clean, visible) {
		return "", "", fault.New(fault.Invalid, "a name must not contain control characters, nor nothing but invisible ones")
	}
	return clean, NameKey(clean), nil
}

// hidden says whether a character is invisible or reorders text. The two joiners are needed by several scripts and by
// emoji.
func hidden(r rune) bool {
	if r == '\u200c' || r == '\u200d' {
		return false
	}
	return unicode.IsControl(r) || r == unicode.ReplacementChar ||
		unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Other_Default_Ignorable_Code_Point)
}

func visible(r rune) bool {
	return unicode.In(r, unicode.L, unicode.N, unicode.S, unicode.P)
}

// NameKey gives the key by which a name is unique; see CleanName.
func NameKey(name string) string {
	return strings.TrimSpace(norm.NFKC.String(cases.Fold().String(norm.NFKC.String(name))))
}
