package model_test

import (
	"fmt"
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

// Prompts of sessions of any length: what fits by its sizes, and what has to be cut, when every turn was counted before.
func BenchmarkFit(b *testing.B) {
	for _, turns := range []int{10, 100, 5000} {
		for name, window := range map[string]int{"fits": 1 << 30, "cut": 8000} {
			b.Run(fmt.Sprintf("%s/%d", name, turns), func(b *testing.B) {
				p := model.Prompt{
					Heads: []*schema.Message{schema.SystemMessage(strings.Repeat("rules ", 300))},
					Turn:  []*schema.Message{schema.UserMessage("a question of about the usual length, not more")},
				}
				for range turns {
					p.Past = append(p.Past, model.NewGroup([]*schema.Message{
						schema.UserMessage(strings.Repeat("问题 question ", 10)), schema.AssistantMessage(strings.Repeat("an answer ", 50), nil)}))
				}
				p.Fit(window)
				b.ReportAllocs()
				for b.Loop() {
					p.Fit(window)
				}
			})
		}
	}
}
