//go:build race

package tmux

const raceEnabled = true
