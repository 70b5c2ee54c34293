package gateway

import "github.com/prometheus/client_golang/prometheus"

// metrics are the gateway's figures.
type metrics struct {
	connections prometheus.Gauge
	frames      prometheus.Counter
	slow        prometheus.Counter
	accepted    *prometheus.CounterVec
	refused     *prometheus.CounterVec
	late        prometheus.Counter
	incomplete  prometheus.Counter
	gaps        prometheus.Counter
	unfit       prometheus.Counter
	projected   prometheus.Counter
	lag         prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "butler_gateway_" + name, Help: help})
	}
	m := &metrics{
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "butler_gateway_connections", Help: "Connections that get frames now.",
		}),
		frames: counter("frames_total", "Frames handed to connections."),
		slow:   counter("slow_connections_total", "Connections cut off because they did not read."),
		accepted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "butler_gateway_messages_accepted_total", Help: "Messages of people that are in the log.",
		}, []string{"channel"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "butler_gateway_messages_refused_total", Help: "Messages of people that were refused.",
		}, []string{"code"}),
		late:       counter("late_deltas_total", "Deltas that came after their answer and were dropped."),
		incomplete: counter("incomplete_answers_total", "Answers delivered though some of their deltas were missing."),
		gaps:       counter("gaps_total", "Connections that had missed more than is told again."),
		unfit:      counter("unfit_events_total", "Events whose type, subject or content did not fit."),
		projected:  counter("projected_total", "Messages applied to the read model."),
		lag: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "butler_gateway_projector_lag_seconds", Help: "Age of the last event when it was applied to the read model.",
		}),
	}
	for _, c := range []prometheus.Collector{
		m.connections, m.frames, m.slow, m.accepted, m.refused, m.late, m.incomplete, m.gaps, m.unfit, m.projected, m.lag,
	} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) connected(n float64) { m.connections.Add(n) }
