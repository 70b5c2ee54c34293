package journaltest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/butlerhub/butler/pkg/journal/journaltest"
)

func TestMemoryKeepsTheContract(t *testing.T) {
	t.Parallel()
	journaltest.Run(t, func(*testing.T, func(unit, key string, due time.Time)) journaltest.Backend {
		m := journaltest.NewMemory()
		return journaltest.Backend{
			Log: m,
			Open: func(_ context.Context, unit string, body []byte) error {
				m.Open(unit, body)
				return nil
			},
			Unit: func(n int) string { return fmt.Sprintf("u%d", n) },
		}
	})
}
