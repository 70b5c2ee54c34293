package storage

import "strings"

// Dialect is the SQL that a database speaks.
type Dialect string

const (
	// SQLite is SQLite in a file, with one writer.
	SQLite Dialect = "sqlite"
	// Postgres is PostgreSQL 13 or later.
	Postgres Dialect = "postgres"
)

// ILike is the operator that compares text with a pattern without regard to case (of ASCII letters at least). The
// pattern's escape character is the backslash: use it with EscapeLike and ESCAPE '\'.
func (d Dialect) ILike() string {
	if d == Postgres {
		return "ILIKE"
	}
	return "LIKE"
}

// ForUpdate ends a SELECT whose rows no other transaction may change or delete before this one ends. Rows that refer to
// them may be added. SQLite has one writer and needs nothing.
func (d Dialect) ForUpdate() string {
	if d == Postgres {
		return " FOR NO KEY UPDATE"
	}
	return ""
}

// EscapeLike gives the LIKE pattern that matches text anywhere, literally.
func EscapeLike(text string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(text) + "%"
}

// rebind gives a query with PostgreSQL's placeholders in the form that the dialect is fast with: $1 becomes ?1 for
// SQLite, outside of string literals. SQLite understands $1 too, but as a name, which it looks for among all others.
func (d Dialect) rebind(query string) string {
	if d == Postgres || !strings.Contains(query, "$") {
		return query
	}
	out := []byte(query)
	quoted := false
	for i, c := range out {
		switch {
		case c == '\'':
			quoted = !quoted
		case c == '$' && !quoted && i+1 < len(out) && out[i+1] >= '0' && out[i+1] <= '9':
			out[i] = '?'
		}
	}
	return string(out)
}

// clean makes text arguments such as both databases can hold: PostgreSQL refuses NUL and invalid UTF-8, so they
// become U+FFFD, in both dialects alike.
func clean(args []any) []any {
	for i, arg := range args {
		if s, ok := arg.(string); ok {
			args[i] = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
		}
	}
	return args
}
