package brain

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNobodyTakesThePlacesOfEverybody(t *testing.T) {
	t.Parallel()
	s := newSlots(8)
	ctx := within(t)
	var held []func()
	for range 2 {
		free, err := s.take(ctx, 1)
		require.NoError(t, err)
		held = append(held, free)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err := s.take(short, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded, "a person has a quarter at most")
	for person := range int64(3) {
		for range 2 {
			free, err := s.take(ctx, person+2)
			require.NoError(t, err, "the others have theirs")
			held = append(held, free)
		}
	}
	for _, free := range held {
		free()
	}
	require.Empty(t, s.people)
	require.Empty(t, s.all)
}
