package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
	password = rand.Text()
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
	created, err := st.EnsureFirst(ctx, name, password)
	if err != nil || !created {
		return "", err
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
