package telemetry

import (
	"io"
	"log/slog"
	"testing"
)

func BenchmarkLog(b *testing.B) {
	log := NewLogger(io.Discard, "json", slog.LevelInfo)
	b.ReportAllocs()
	for b.Loop() {
		log.Info("turn answered", "person", 7, "thread", 12, "turn", "m1", "status", "answered", "reply",
			"https://butler.example.org/api/chat/threads/12/messages")
	}
}
