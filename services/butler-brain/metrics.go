package brain

import (
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	turns    *prometheus.CounterVec
	running  prometheus.Gauge
	sessions prometheus.Gauge
	waiting  prometheus.Histogram
	routes   *prometheus.CounterVec
	commands *prometheus.CounterVec
	trimmed  prometheus.Counter
	asked    *prometheus.CounterVec
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
	m.routes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "butler_turn_routes_total", Help: "Messages of conversations that may be attached to a shell, by what they were taken for.",
	}, []string{"kind"})
	m.commands = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "butler_turn_commands_total", Help: "Commands that turns wanted to run, by who proposed them and what became of them.",
	}, []string{"proposer", "end"})
	m.trimmed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "butler_prompts_trimmed_total", Help: "Prompts from which something was left out because it did not fit into the model's window.",
	})
	m.asked = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "butler_compactions_asked_total", Help: "Summaries that were asked for after an answer, by why.",
	}, []string{"reason"})
	if r != nil {
		r.MustRegister(m.turns, m.running, m.sessions, m.waiting, m.routes, m.commands, m.trimmed, m.asked)
	}
	return m
}
