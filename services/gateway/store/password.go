package store

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/argon2"

	"github.com/butlerhub/butler/pkg/fault"
)

// Params are the costs of a password's hash (argon2id, RFC 9106). They are stored in each hash, so they can change at
// any time: a weaker hash is made anew when its owner signs in.
type Params struct {
	Time      uint32 // passes over the memory
	MemoryKiB uint32 // memory of one hash
	Threads   uint8  // lanes
}

// DefaultParams are OWASP's recommendation (Password Storage Cheat Sheet): some 30 ms of one core. More memory would
// show in what an idle Butler takes, since a first sign-in comes soon after the start.
var DefaultParams = Params{Time: 2, MemoryKiB: 19 * 1024, Threads: 1}

const (
	// hashesAtOnce bounds the memory of concurrent sign-ins, with the number of cores.
	hashesAtOnce = 4
	// hashesWaiting bounds the sign-ins that wait for their turn.
	hashesWaiting = 256

	saltBytes = 16
	keyBytes  = 32
	// Bounds of what a stored hash may ask for, so that a damaged row cannot take all memory.
	maxTime      = 64
	maxMemoryKiB = 1 << 20
	maxThreads   = 64
)

// hasher hashes passwords, a bounded number at once.
type hasher struct {
	params  Params
	turns   chan struct{}
	waiting atomic.Int64
	// decoy is a hash with params that no password has: unknown names cost what known ones do.
	decoy passwordHash
}

type passwordHash struct {
	params Params
	salt   []byte
	key    []byte
}

func newHasher(params Params) (*hasher, error) {
	if params.Time == 0 {
		params.Time = DefaultParams.Time
	}
	if params.MemoryKiB == 0 {
		params.MemoryKiB = DefaultParams.MemoryKiB
	}
	if params.Threads == 0 {
		params.Threads = DefaultParams.Threads
	}
	if !params.sane() {
		return nil, fault.New(fault.Invalid,
			"the cost of passwords must be at most %d passes, %d KiB (and 8 KiB a thread at least) and %d threads",
			maxTime, maxMemoryKiB, maxThreads)
	}
	return &hasher{
		params: params, turns: make(chan struct{}, min(hashesAtOnce, runtime.GOMAXPROCS(0))),
		decoy: passwordHash{params: params, salt: make([]byte, saltBytes), key: make([]byte, keyBytes)},
	}, nil
}

func (p Params) sane() bool {
	return p.Time >= 1 && p.Time <= maxTime && p.Threads >= 1 && p.Threads <= maxThreads &&
		p.MemoryKiB >= 8*uint32(p.Threads) && p.MemoryKiB <= maxMemoryKiB
}

// weakerThan says whether a hash made with p should be made anew with q.
func (p Params) weakerThan(q Params) bool {
	return p.Time < q.Time || p.MemoryKiB < q.MemoryKiB
}

// hash gives the stored form of a password. It blocks until it is its turn, or ctx ends.
func (h *hasher) hash(ctx context.Context, password string) (string, error) {
	salt := make([]byte, saltBytes)
	_, _ = rand.Read(salt) // never fails
	key, err := h.derive(ctx, password, h.params, salt, keyBytes)
	if err != nil {
		return "", err
	}
	return passwordHash{params: h.params, salt: salt, key: key}.String(), nil
}

// verify says whether password has the stored hash; an empty or damaged one costs as much and is never right.
func (h *hasher) verify(ctx context.Context, password, stored string) (right, weak bool, err error) {
	want, ok := parseHash(stored)
	if !ok {
		want = h.decoy
	}
	if len(password) > MaxPasswordBytes {
		password, ok = "", false
	}
	key, err := h.derive(ctx, password, want.params, want.salt, uint32(len(want.key))) //nolint:gosec // parsed: ≤ 64
	if err != nil {
		return false, false, err
	}
	right = subtle.ConstantTimeCompare(key, want.key) == 1 && ok
	return right, want.params.weakerThan(h.params), nil
}

func (h *hasher) derive(ctx context.Context, password string, p Params, salt []byte, size uint32) ([]byte, error) {
	if h.waiting.Add(1) > hashesWaiting {
		h.waiting.Add(-1)
		return nil, &fault.Error{Code: fault.RateLimited, Message: "too many sign-ins at once; try again in a moment",
			RetryAfter: 2 * time.Second}
	}
	defer h.waiting.Add(-1)
	select {
	case h.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, fault.Wrap(ctx.Err(), fault.Unavailable, "too many sign-ins at once; try again in a moment")
	}
	defer func() { <-h.turns }()
	return argon2.IDKey([]byte(password), salt, p.Time, p.MemoryKiB, p.Threads, size), nil
}

// String gives the PHC form: $argon2id$v=19$m=19456,t=2,p=1$<salt>$<key>.
func (p passwordHash) String() string {
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, p.params.MemoryKiB, p.params.Time,
		p.params.Threads, base64.RawStdEncoding.EncodeToString(p.salt), base64.RawStdEncoding.EncodeToString(p.key))
}

func parseHash(stored string) (passwordHash, bool) {
	parts := strings.Split(stored, "$")
	if len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id" || parts[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return passwordHash{}, false
	}
	var p passwordHash
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &p.params.MemoryKiB, &p.params.Time, &p.params.Threads); err != nil {
		return passwordHash{}, false
	}
	var err error
	if p.salt, err = base64.RawStdEncoding.DecodeString(parts[4]); err != nil || len(p.salt) < 8 || len(p.salt) > 64 {
		return passwordHash{}, false
	}
	if p.key, err = base64.RawStdEncoding.DecodeString(parts[5]); err != nil || len(p.key) < 16 || len(p.key) > 64 {
		return passwordHash{}, false
	}
	return p, p.params.sane()
}

func checkPassword(password string) error {
	if len(password) < MinPasswordBytes || len(password) > MaxPasswordBytes {
		return fault.New(fault.Invalid, "a password must have %d to %d bytes", MinPasswordBytes, MaxPasswordBytes)
	}
	return nil
}
