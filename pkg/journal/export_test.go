package journal

import "context"

// Gate is the lock of a run, as the simulation provides it.
type Gate interface {
	Lock(ctx context.Context)
	Unlock()
}

type foreignGate struct{ Gate }

func (g foreignGate) lock(ctx context.Context) { g.Lock(ctx) }
func (g foreignGate) unlock()                  { g.Unlock() }

// SetGate makes the executor's runs use gates of the test.
func (x *Executor) SetGate(newGate func() Gate) {
	x.newGate = func() gate { return foreignGate{newGate()} }
}

// Canonical is canonical.
var Canonical = canonical
