package tmux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// checkCgroup says whether sessions can have groups below dir, and which limits do not hold there.
func checkCgroup(dir string) (missing []string, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, err
	}
	if fs.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, errors.New("it is no control group of version 2")
	}
	probe := filepath.Join(dir, fmt.Sprintf("butler-probe-%d", os.Getpid()))
	if err := os.Mkdir(probe, 0o750); err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(probe) }()
	for _, c := range []string{"pids", "memory"} {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
		if _, err := os.Stat(filepath.Join(probe, c+".max")); err != nil {
			missing = append(missing, c)
		}
	}
	return missing, nil
}

// makeCgroup makes a session's group, with its limits; the result is open, to start the server in.
func makeCgroup(parent, name string, l Limits) (path string, dir *os.File, err error) {
	path = filepath.Join(parent, name)
	if err := os.Mkdir(path, 0o750); err != nil && !os.IsExist(err) {
		return "", nil, err
	}
	if l.Processes > 0 {
		_ = os.WriteFile(filepath.Join(path, "pids.max"), []byte(strconv.Itoa(l.Processes)), 0)
	}
	if l.Memory > 0 {
		_ = os.WriteFile(filepath.Join(path, "memory.max"), []byte(strconv.FormatInt(l.Memory, 10)), 0)
	}
	dir, err = os.Open(path)
	return path, dir, err
}

// killCgroup kills all that is in a group at once, and removes it.
func killCgroup(path string) {
	_ = os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0)
	_ = os.Remove(path)
}
