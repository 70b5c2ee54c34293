package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

// BenchmarkApply is the projector's work: one message a transaction, and two hundred.
func BenchmarkApply(b *testing.B) {
	for _, database := range []string{"sqlite", "postgres"} {
		for name, size := range map[string]int{"1": 1, "200": 200, "2000": 2000} {
			b.Run(database+"/"+name, func(b *testing.B) {
				url := storagetest.SQLiteURL(b)
				if database == "postgres" {
					url = storagetest.Shared(b).NewDatabase(b)
				}
				s, err := New(storagetest.Open(b, url), Options{Password: cheap})
				require.NoError(b, err)
				require.NoError(b, s.Migrate(b.Context()))
				_, err = s.EnsureFirst(b.Context(), "root", adminPassword)
				require.NoError(b, err)
				thread, err := s.DefaultThread(b.Context(), 1)
				require.NoError(b, err)
				id := uint64(0)
				for b.Loop() {
					batch := make([]Message, size)
					for i := range batch {
						id++
						batch[i] = message(id, 1, thread.ID, "what a person says")
					}
					require.NoError(b, s.Apply(b.Context(), batch, id))
				}
				b.ReportMetric(float64(id)/b.Elapsed().Seconds(), "messages/s")
			})
		}
	}
}
