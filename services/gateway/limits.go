package gateway

import (
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// maxLimited bounds how many keys a limiter remembers. When it is full it forgets those that are at rest, and when there
// are none, anything: an attacker with so many addresses is not stopped by counting them.
const maxLimited = 50_000

// limiter allows each key so many events a second: a token bucket for each. It is not golang.org/x/time/rate because
// an event must be given back after the time that it took to decide (a sign-in that succeeded).
type limiter[K comparable] struct {
	now   func() time.Time
	rate  float64 // negative: no limit
	burst float64

	mu      sync.Mutex
	buckets map[K]bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

func newLimiter[K comparable](now func() time.Time, perSecond float64, burst int) *limiter[K] {
	return &limiter[K]{now: now, rate: perSecond, burst: float64(burst), buckets: map[K]bucket{}}
}

func (l *limiter[K]) filled(b bucket, now time.Time) bucket {
	if dt := now.Sub(b.at); dt > 0 {
		b.tokens = min(l.burst, b.tokens+l.rate*dt.Seconds())
		b.at = now
	}
	return b
}

// take counts one event and gives 0, or counts none and gives how long to wait.
func (l *limiter[K]) take(key K) time.Duration {
	if l.rate < 0 {
		return 0
	}
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	b, known := l.buckets[key]
	if !known {
		l.makeRoom(now)
		b = bucket{tokens: l.burst, at: now}
	}
	b = l.filled(b, now)
	if b.tokens < 1 {
		l.buckets[key] = b
		return time.Duration((1 - b.tokens) / l.rate * float64(time.Second))
	}
	b.tokens--
	l.buckets[key] = b
	return 0
}

// overdraw counts one event in any case, and gives how long it should wait: 0 while there are events left, then longer
// with each, up to most.
func (l *limiter[K]) overdraw(key K, most time.Duration) time.Duration {
	if wait := l.take(key); wait == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[key]
	least := 1 - l.rate*most.Seconds()
	b.tokens = max(b.tokens-1, least)
	l.buckets[key] = b
	return time.Duration((1 - b.tokens) / l.rate * float64(time.Second))
}

// give takes an event back.
func (l *limiter[K]) give(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b, known := l.buckets[key]; known {
		b.tokens = min(l.burst, b.tokens+1)
		l.buckets[key] = b
	}
}

func (l *limiter[K]) makeRoom(now time.Time) {
	if len(l.buckets) < maxLimited {
		return
	}
	l.forgetAt(now)
	for k := range l.buckets {
		if len(l.buckets) < maxLimited {
			return
		}
		delete(l.buckets, k)
	}
}

// forget removes the keys that are at rest.
func (l *limiter[K]) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetAt(l.now())
}

func (l *limiter[K]) forgetAt(now time.Time) {
	for k, b := range l.buckets {
		if l.filled(b, now).tokens >= l.burst {
			delete(l.buckets, k)
		}
	}
}

func rateLimited(wait time.Duration, sentence string) error {
	return &fault.Error{Code: fault.RateLimited, Message: sentence, RetryAfter: max(wait, time.Millisecond)}
}
