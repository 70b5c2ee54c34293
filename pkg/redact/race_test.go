//go:build race

package redact

// slower is how much of the cuts are tried: with the race detector each takes ten times as long, and finds nothing more.
const slower = 10
