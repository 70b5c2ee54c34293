package shell

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// metrics have the published names.
type metrics struct {
	commands *prometheus.CounterVec
	duration prometheus.Histogram
	switches *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer, s *Service) (*metrics, error) {
	m := &metrics{
		commands: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "butler_commands_total", Help: "Commands in shells by how they ended: ok, failed, no_status, refused or unknown.",
		}, []string{"status"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "butler_command_duration_seconds", Help: "How long commands took.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 7200},
		}),
		switches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "butler_mode_switches_total", Help: "Switches of a shell between line mode (nl) and interactive mode, by the new one.",
		}, []string{"mode"}),
	}
	if r == nil {
		return m, nil
	}
	active := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "butler_sessions_active", Help: "Shell sessions on this host."},
		func() float64 {
			if s.tmux == nil {
				return 0
			}
			return float64(len(s.tmux.Sessions()))
		})
	for _, c := range []prometheus.Collector{m.commands, m.duration, m.switches, active} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) ended(status string, o *butlerv1.CommandOutcome) {
	switch {
	case status != "ended":
	case !o.GetStatusKnown():
		status = "no_status"
	case o.GetExitStatus() == 0:
		status = "ok"
	default:
		status = "failed"
	}
	m.commands.WithLabelValues(status).Inc()
	if o != nil {
		m.duration.Observe((time.Duration(o.GetDurationMs()) * time.Millisecond).Seconds())
	}
}

func (m *metrics) switched(mode tmux.Mode) { m.switches.WithLabelValues(string(mode)).Inc() }
