package compactor

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	done     *prometheus.CounterVec
	seconds  prometheus.Histogram
	tokens   *prometheus.CounterVec
	messages prometheus.Counter
	failing  prometheus.Gauge
}

// Results of a compaction, for metrics.
const (
	resultDone     = "done"
	resultNothing  = "nothing"  // to cover
	resultFenced   = "fenced"   // another summary was first
	resultRejected = "rejected" // what the model wrote did not pass the checks
	resultModel    = "model"    // the model gave no answer
	resultLog      = "log"      // the log could not be read or written
	resultWaiting  = "waiting"  // too soon after a failure
)

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		done: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "butler_compactions_total", Help: "Compactions by what came of them.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "butler_compaction_seconds", Help: "Duration of compactions that called the model.",
			Buckets: []float64{.1, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 300},
		}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "butler_compaction_tokens_total", Help: "Tokens of compactions: replaced and written are counted, prompt and completion " +
				"are what the model's endpoint reports.",
		}, []string{"kind"}),
		messages: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "butler_compacted_messages_total", Help: "Messages that summaries came to stand for.",
		}),
		failing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "butler_compaction_failures_in_a_row", Help: "Compactions that failed since the last that did not.",
		}),
	}
	if r != nil {
		r.MustRegister(m.done, m.seconds, m.tokens, m.messages, m.failing)
	}
	return m
}
