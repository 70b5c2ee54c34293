//go:build !race

package redact

// slower is how much of the cuts are tried: every one.
const slower = 1
