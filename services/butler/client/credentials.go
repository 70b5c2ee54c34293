package client

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// Credentials are the sign-ins that the command line keeps, one for each server, in a file that only its owner can read.
type Credentials struct{ path string }

// SignIn is one of them.
type SignIn struct {
	Token    string    `json:"token"`
	Username string    `json:"username"`
	SavedAt  time.Time `json:"saved_at"`
}

type credentialsFile struct {
	Servers map[string]SignIn `json:"servers"` // by address
}

// maxCredentials bounds the file, in bytes.
const maxCredentials = 1 << 20

// CredentialsIn gives the credentials kept in a folder, which need not exist yet.
func CredentialsIn(dir string) *Credentials {
	return &Credentials{path: filepath.Join(dir, "credentials.json")}
}

// Path is where they are kept.
func (c *Credentials) Path() string { return c.path }

// Load gives the sign-in of a server; ok is false when there is none. A file that others can read is refused: what is
// in it must be taken as known to them.
func (c *Credentials) Load(server string) (s SignIn, ok bool, err error) {
	file, err := c.read()
	if err != nil {
		return SignIn{}, false, err
	}
	s, ok = file.Servers[server]
	return s, ok && s.Token != "", nil
}

// Save keeps the sign-in of a server.
func (c *Credentials) Save(server string, s SignIn) error {
	file, err := c.read()
	if err != nil {
		return err
	}
	file.Servers[server] = s
	return c.write(file)
}

// Delete forgets the sign-in of a server; it says whether there was one.
func (c *Credentials) Delete(server string) (bool, error) {
	file, err := c.read()
	if err != nil {
		return false, err
	}
	if _, ok := file.Servers[server]; !ok {
		return false, nil
	}
	delete(file.Servers, server)
	return true, c.write(file)
}

func (c *Credentials) read() (credentialsFile, error) {
	empty := credentialsFile{Servers: map[string]SignIn{}}
	info, err := os.Stat(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return empty, nil
	}
	if err != nil {
		return empty, fault.Wrap(err, fault.Internal, "the saved sign-ins cannot be read")
	}
	if info.Mode().Perm()&0o077 != 0 {
		return empty, fault.New(fault.Invalid, "others can read %s: run `chmod 600 %s`, and `butler login` again if they may have",
			c.path, c.path)
	}
	if info.Size() > maxCredentials {
		return empty, fault.New(fault.Invalid, "%s is not a file of sign-ins: delete it and run `butler login`", c.path)
	}
	data, err := os.ReadFile(c.path)
	if err != nil {
		return empty, fault.Wrap(err, fault.Internal, "the saved sign-ins cannot be read")
	}
	var file credentialsFile
	if err := json.Unmarshal(data, &file); err != nil {
		return empty, fault.Wrap(err, fault.Invalid, "%s is damaged: delete it and run `butler login`", c.path)
	}
	if file.Servers == nil {
		file.Servers = map[string]SignIn{}
	}
	return file, nil
}

// write replaces the file at once, so that a reader never sees half of it.
func (c *Credentials) write(file credentialsFile) error {
	err := func() error {
		if err := os.MkdirAll(filepath.Dir(c.path), 0o700); err != nil {
			return err
		}
		data, err := json.MarshalIndent(file, "", "  ")
		if err != nil {
			return err
		}
		tmp, err := os.CreateTemp(filepath.Dir(c.path), ".credentials-*") // mode 0600
		if err != nil {
			return err
		}
		defer os.Remove(tmp.Name()) //nolint:errcheck // it is gone after the rename
		if _, err := tmp.Write(append(data, '\n')); err != nil {
			_ = tmp.Close()
			return err
		}
		if err := tmp.Close(); err != nil {
			return err
		}
		return os.Rename(tmp.Name(), c.path)
	}()
	if err != nil {
		return fault.Wrap(err, fault.Internal, "the sign-in cannot be saved")
	}
	return nil
}
