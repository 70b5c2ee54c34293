package main

import (
	"math"
	"slices"
	"time"
)

// durations are what was measured, one for each repetition, in any order.
type durations []time.Duration

// quantile gives the value below which a share q (0–1) of them lies, 0 when there are none: the nearest rank.
func (d durations) quantile(q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)-1, max(0, int(math.Ceil(q*float64(len(s))))-1))]
}

func (d durations) ms(q float64) float64 { return milliseconds(d.quantile(q)) }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// series are one number a round.
type series []float64

// median gives the middle, NaN of none.
func (s series) median() float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(s))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
