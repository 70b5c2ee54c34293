package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/gateway/store"
)

// FirstAdmin makes the first administrator and Butler on a new installation, and does nothing on any other. With an empty
// password it makes one up, keeps it in file (mode 0600), and gives it, to be shown once. With an empty name the name is
// admin. It may be called by several replicas at the same time: the others give "".
func FirstAdmin(ctx context.Context, st *store.Store, name, password, file string) (generated string, err error) {
	if name == "" {
		name = "admin"
	}
	if password != "" {
		_, err := st.EnsureFirst(ctx, name, password)
		return "", err
	}
	if _, err := st.Person(ctx, 1); err == nil {
		return "", nil
	}
	return generateFirst(ctx, file, name,
		func(password string) (bool, error) { return st.EnsureFirst(ctx, name, password) },
		func(ctx context.Context, password string) error {
			_, err := st.VerifyPassword(ctx, name, password)
			return err
		})
}

// verifyWithin is how long the database may take to say whether the first admin was made after all.
const verifyWithin = 10 * time.Second

// generateFirst makes a password up and the first admin with it. ensure is Store.EnsureFirst; verify gives nil when the
// password is the admin's.
func generateFirst(ctx context.Context, file, name string, ensure func(password string) (bool, error),
	verify func(ctx context.Context, password string) error,
) (generated string, err error) {
	password := rand.Text()
	// The file comes first, under a name of its own: what was made must not be lost when the process dies in between.
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", fmt.Errorf("the folder for the first password cannot be made: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*") // mode 0600
	if err != nil {
		return "", fmt.Errorf("the first password cannot be kept in a file: %w", err)
	}
	defer func() { err = errors.Join(err, ignoreMissing(os.Remove(tmp.Name()))) }()
	_, err = fmt.Fprintf(tmp, "name: %s\npassword: %s\n", name, password)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return "", fmt.Errorf("the first password cannot be kept in a file: %w", err)
	}
	created, err := ensure(password)
	if err != nil || !created {
		// A commit whose outcome never arrived may have been one, and a second try then finds the admin there: the password
		// itself tells. While it cannot be asked, the password is kept.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verifyWithin)
		defer cancel()
		switch unknown := verify(ctx, password); {
		case unknown == nil:
		case fault.CodeOf(unknown) == fault.Unauthenticated:
			return "", err // somebody else's, or none
		default:
			err = fmt.Errorf("whether the first admin was made is unknown; if so, their password is in %s: %w", file, cmp.Or(err, unknown))
			return "", errors.Join(err, os.Rename(tmp.Name(), file))
		}
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return password, fmt.Errorf("the first password cannot be kept in a file: %w", err)
	}
	return password, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
