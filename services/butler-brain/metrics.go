package brain

import (
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	turns    *prometheus.CounterVec
	running  prometheus.Gauge
	sessions prometheus.Gauge
	waiting  prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		turns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "butler_turns_total", Help: "Turns that ended on this replica, by status and reason.",
		}, []string{"status", "reason"}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "butler_turns_running", Help: "Turns that are being worked on now.",
		}),
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "butler_sessions_cached", Help: "Sessions whose history is in memory.",
		}),
		waiting: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "butler_turn_wait_seconds", Help: "Time from a message's acceptance until work on it begins.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
	}
	if r != nil {
		r.MustRegister(m.turns, m.running, m.sessions, m.waiting)
	}
	return m
}
