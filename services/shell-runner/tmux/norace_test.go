//go:build !race

package tmux

const raceEnabled = false
