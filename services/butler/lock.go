package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/butlerhub/butler/pkg/fault"
)

// lockFile is held by the process that works on a data folder: two would write the same log.
const lockFile = "butler.lock"

// dirLock is a locked data folder. The lock ends with the process, however that ends.
type dirLock struct{ f *os.File }

// lockDir makes a data folder, for its owner alone, and locks it. The error names the process that has it.
func lockDir(dir string) (*dirLock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(pathCause(err), fault.Invalid, "the data folder %s cannot be made; set BUTLER_DATA_DIR to one that can", dir)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fault.Wrap(pathCause(err), fault.Invalid,
			"the data folder %s cannot be written; set BUTLER_DATA_DIR to one that this user owns", dir)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		defer func() { _ = f.Close() }()
		return nil, fault.New(fault.Conflict, "the data folder %s is in use by another Butler%s; stop that one, or set "+
			"BUTLER_DATA_DIR to another folder", dir, holder(f))
	}
	if err != nil {
		_ = f.Close()
		return nil, fault.Wrap(err, fault.Internal, "the data folder %s cannot be locked", dir)
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintf("%d\n", os.Getpid()))); err != nil {
		_ = f.Close()
		return nil, fault.Wrap(pathCause(err), fault.Internal, "the data folder %s cannot be written", dir)
	}
	return &dirLock{f}, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// holder says which process has the lock, for people.
func holder(f *os.File) string {
	data, _ := io.ReadAll(io.LimitReader(f, 32))
	if pid, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
		return fmt.Sprintf(" (process %d)", pid)
	}
	return ""
}

// Close unlocks the folder. The file stays: removing it would let a third process lock another file of the same name.
func (l *dirLock) Close() error { return l.f.Close() }

// pathCause takes the path out of a file error, since the sentence names it.
func pathCause(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}
