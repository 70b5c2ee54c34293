package journal

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
)

// Parallel calls fn for 0 … n-1, at most limit at the same time (0: all), and waits for all of them, also when one
// fails. It returns the error that matters most: ErrFenced, a panic, any other error, ErrCancelled, and ErrSuspended
// only when nothing else went wrong; among equals the one of the lowest index. Panics are caught.
func Parallel(ctx context.Context, n, limit int, fn func(ctx context.Context, i int) error) error {
	errs := make([]error, n)
	if limit <= 0 || limit > n {
		limit = n
	}
	slots := make(chan struct{}, max(limit, 1))
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			defer func() {
				if v := recover(); v != nil {
					errs[i] = &PanicError{Value: v, Stack: debug.Stack()}
				}
			}()
			errs[i] = fn(ctx, i)
		})
	}
	wg.Wait()
	var worst error
	for _, err := range errs {
		if weight(err) > weight(worst) {
			worst = err
		}
	}
	return worst
}

func weight(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrSuspended):
		return 1
	case errors.Is(err, ErrCancelled):
		return 2
	case errors.Is(err, ErrFenced):
		return 5
	}
	if _, ok := errors.AsType[*PanicError](err); ok {
		return 4
	}
	return 3
}
