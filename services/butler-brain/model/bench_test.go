package model_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cloudwego/eino/schema"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

// A call whose 20 chunks arrive at once: what Butler adds to the model's own time.
func BenchmarkStream20Chunks(b *testing.B) {
	for name, parallel := range map[string]bool{"one": false, "parallel": true} {
		b.Run(name, func(b *testing.B) {
			s := modeltest.Start(b)
			s.Default(modeltest.Echo(20))
			s.Record(false)
			c := client(b, s.URL())
			ctx := b.Context()
			tools := []*schema.ToolInfo{listAgents}
			msgs := ask("a question of about the usual length, not more")
			var pieces atomic.Int64
			call := func() {
				_, err := c.Stream(ctx, msgs, tools, model.CallOptions{}, func(string) { pieces.Add(1) })
				if err != nil {
					b.Error(err)
				}
			}
			b.ReportAllocs()
			if parallel {
				b.SetParallelism(25)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						call()
					}
				})
			} else {
				for b.Loop() {
					call()
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}

func BenchmarkTrimToWindow(b *testing.B) {
	msgs := []*schema.Message{schema.SystemMessage("rules")}
	for range 200 {
		msgs = append(msgs, schema.UserMessage(strings.Repeat("问题 question ", 50)), schema.AssistantMessage(strings.Repeat("a", 2000), nil))
	}
	b.ReportAllocs()
	for b.Loop() {
		model.TrimToWindow(msgs, 30_000)
	}
}
