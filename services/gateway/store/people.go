package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
)

const personColumns = "id, name, role, disabled, created_at, updated_at"

func scanPerson(row storage.Row) (Person, error) {
	var p Person
	var created, updated int64
	if err := row.Scan(&p.ID, &p.Name, &p.Role, &p.Disabled, &created, &updated); err != nil {
		return Person{}, err
	}
	p.CreatedAt, p.UpdatedAt = fromMillis(created), fromMillis(updated)
	return p, nil
}

// EnsureFirst prepares a new installation: the first admin, with id 1 and the given name and password, and Butler, with
// id 2 and the name Butler. It says whether it did; afterwards, and for all but one of several replicas, it does
// nothing, whatever name and password are.
func (s *Store) EnsureFirst(ctx context.Context, name, password string) (created bool, err error) {
	exists := func(tx *storage.Tx) (bool, error) {
		var n int
		err := tx.QueryRow("SELECT COUNT(*) FROM people WHERE id = $1", storage.FirstPersonID).Scan(&n)
		return n > 0, err
	}
	var done bool
	err = s.db.Read(ctx, func(tx *storage.Tx) (err error) {
		done, err = exists(tx)
		return err
	})
	if err != nil || done {
		return false, err
	}
	who := NewPerson{Name: name, Role: Admin, Password: password}
	clean, key, hash, err := s.prepare(ctx, who)
	if err != nil {
		return false, err
	}
	if key == storage.NameKey(butlerName) {
		return false, fault.New(fault.Invalid, "the first admin cannot be called %s: that is Butler's own name", butlerName)
	}
	err = s.db.Write(ctx, func(tx *storage.Tx) error {
		created = false
		if err := tx.Lock("people"); err != nil {
			return err
		}
		if done, err := exists(tx); err != nil || done {
			return err
		}
		butlerKey := storage.NameKey(butlerName)
		if err := s.insertPerson(tx, ButlerID, butlerName, butlerKey, ButlerRole, ""); err != nil {
			return err
		}
		if err := s.insertPerson(tx, storage.FirstPersonID, clean, key, Admin, hash); err != nil {
			return err
		}
		if _, err := s.ensureDefault(tx, storage.FirstPersonID); err != nil {
			return err
		}
		created = true
		return nil
	})
	return created && err == nil, err
}

const butlerName = "Butler"

// CreatePerson adds a person and their default thread with Butler. A name that exists is fault.Conflict.
func (s *Store) CreatePerson(ctx context.Context, who NewPerson) (Person, error) {
	clean, key, hash, err := s.prepare(ctx, who)
	if err != nil {
		return Person{}, err
	}
	var person Person
	err = s.db.Write(ctx, func(tx *storage.Tx) error {
		id, err := tx.NewPrincipal(storage.PersonKind)
		if err != nil {
			return err
		}
		if err := s.insertPerson(tx, id, clean, key, who.Role, hash); err != nil {
			return err
		}
		if _, err := s.ensureDefault(tx, id); err != nil {
			return err
		}
		person, err = scanPerson(tx.QueryRow("SELECT "+personColumns+" FROM people WHERE id = $1", id))
		return err
	})
	if err != nil {
		return Person{}, err
	}
	return person, nil
}

// prepare checks who and hashes the password, which takes long and so happens outside of any transaction.
func (s *Store) prepare(ctx context.Context, who NewPerson) (name, key, hash string, err error) {
	if name, key, err = storage.CleanName(who.Name); err != nil {
		return "", "", "", err
	}
	if err := checkRole(who.Role); err != nil {
		return "", "", "", err
	}
	if err := checkPassword(who.Password); err != nil {
		return "", "", "", err
	}
	hash, err = s.passwords.hash(ctx, who.Password)
	return name, key, hash, err
}

func checkRole(role Role) error {
	if role != Admin && role != Member {
		return fault.New(fault.Invalid, "the role must be %s or %s", Admin, Member)
	}
	return nil
}

func (s *Store) insertPerson(tx *storage.Tx, id int64, name, key string, role Role, hash string) error {
	now := millis(s.now())
	_, err := tx.Exec(`INSERT INTO people (id, name, name_key, role, password_hash, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $6)`, id, name, key, string(role), hash, now)
	if storage.IsDuplicate(err) {
		return fault.Wrap(err, fault.Conflict, "the name %s is taken; choose another", name)
	}
	return err
}

// personLock names the lock of what is decided from several rows of one person.
func personLock(id int64) string { return fmt.Sprintf("person.%d", id) }

// Person gives a person, or Butler, by id.
func (s *Store) Person(ctx context.Context, id int64) (Person, error) {
	return s.person(ctx, "id = $1", id)
}

// PersonByName gives a person, or Butler, by name, without regard to case.
func (s *Store) PersonByName(ctx context.Context, name string) (Person, error) {
	return s.person(ctx, "name_key = $1", storage.NameKey(name))
}

func (s *Store) person(ctx context.Context, where string, arg any) (Person, error) {
	var person Person
	err := s.db.Read(ctx, func(tx *storage.Tx) (err error) {
		person, err = scanPerson(tx.QueryRow("SELECT "+personColumns+" FROM people WHERE "+where, arg))
		return err
	})
	return person, notFound(err, "there is no such person")
}

// People gives all people by id, Butler among them.
func (s *Store) People(ctx context.Context) ([]Person, error) {
	var people []Person
	err := s.db.Read(ctx, func(tx *storage.Tx) (err error) {
		people, err = storage.Collect(tx, scanPerson, "SELECT "+personColumns+" FROM people ORDER BY id")
		return err
	})
	return people, err
}

// UpdatePerson changes a person. At least one ADMIN who is not disabled always remains: what would leave none is
// fault.Conflict. Butler cannot be changed (fault.Forbidden).
func (s *Store) UpdatePerson(ctx context.Context, id int64, change Change) (Person, error) {
	if id == ButlerID {
		return Person{}, fault.New(fault.Forbidden, "Butler cannot be changed")
	}
	if change.Role != nil {
		if err := checkRole(*change.Role); err != nil {
			return Person{}, err
		}
	}
	var hash string
	if change.Password != nil {
		if err := checkPassword(*change.Password); err != nil {
			return Person{}, err
		}
		var err error
		if hash, err = s.passwords.hash(ctx, *change.Password); err != nil {
			return Person{}, err
		}
	}
	var person Person
	err := s.db.Write(ctx, func(tx *storage.Tx) error {
		if err := errors.Join(tx.Lock("people"), tx.Lock(personLock(id))); err != nil {
			return err
		}
		var err error
		person, err = scanPerson(tx.QueryRow("SELECT "+personColumns+" FROM people WHERE id = $1", id))
		if err != nil {
			return notFound(err, "there is no such person")
		}
		if change.Role != nil {
			person.Role = *change.Role
		}
		if change.Disabled != nil {
			person.Disabled = *change.Disabled
		}
		now := s.now()
		person.UpdatedAt = fromMillis(millis(now))
		if _, err := tx.Exec(`UPDATE people SET role = $1, disabled = $2, updated_at = $3,
			password_hash = CASE WHEN $4 = '' THEN password_hash ELSE $4 END WHERE id = $5`,
			string(person.Role), person.Disabled, millis(now), hash, id); err != nil {
			return err
		}
		var admins int
		if err := tx.QueryRow("SELECT COUNT(*) FROM people WHERE role = $1 AND NOT disabled", string(Admin)).
			Scan(&admins); err != nil {
			return err
		}
		if admins == 0 {
			return fault.New(fault.Conflict, "this would leave no admin who can sign in; make another person an admin first")
		}
		if hash != "" || person.Disabled {
			return revokeAll(tx, id, now)
		}
		return nil
	})
	if err != nil {
		return Person{}, err
	}
	return person, nil
}

// VerifyPassword gives the person of that name when the password is right. Whether the name or the password is wrong,
// or the person is disabled, the answer is the same fault.Unauthenticated after the same work. Sign-ins wait for each
// other so that memory stays bounded; too many at once are fault.RateLimited.
func (s *Store) VerifyPassword(ctx context.Context, name, password string) (Person, error) {
	var person Person
	var hash string
	err := s.db.Read(ctx, func(tx *storage.Tx) error {
		person, hash = Person{}, ""
		key := storage.NameKey(name)
		row := tx.QueryRow("SELECT id, password_hash FROM people WHERE name_key = $1", key)
		if err := row.Scan(&person.ID, &hash); err != nil {
			return err
		}
		var err error
		person, err = scanPerson(tx.QueryRow("SELECT "+personColumns+" FROM people WHERE id = $1", person.ID))
		return err
	})
	if err != nil && err != storage.ErrNoRows { //nolint:errorlint // Scan gives it bare
		return Person{}, err
	}
	right, weak, err := s.passwords.verify(ctx, password, hash)
	if err != nil {
		return Person{}, err
	}
	if !right || person.Disabled {
		return Person{}, fault.New(fault.Unauthenticated, "the name or the password is wrong")
	}
	if weak {
		s.rehash(ctx, person.ID, password, hash)
	}
	return person, nil
}

// rehash makes a stronger hash of a password that is known to be right, unless it was changed meanwhile. When that
// fails the old one stays, and the next sign-in tries again.
func (s *Store) rehash(ctx context.Context, id int64, password, old string) {
	hash, err := s.passwords.hash(ctx, password)
	if err != nil {
		return
	}
	_ = s.db.Write(ctx, func(tx *storage.Tx) error {
		_, err := tx.Exec("UPDATE people SET password_hash = $1 WHERE id = $2 AND password_hash = $3", hash, id, old)
		return err
	})
}
