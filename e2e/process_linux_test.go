package e2e

import "syscall"

// ownGroup gives a process a group of its own, so that it can be killed with what it started, and ends it with the tests.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
