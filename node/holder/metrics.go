package holder

import (
	"github.com/prometheus/client_golang/prometheus"

	"trivet/node/steal"
)

// Reasons for a restart, as the metric has them.
const (
	restartExit  = "exit"
	restartHang  = "hang"
	restartStart = "not_started"
)

// metrics of a holder.
type metrics struct {
	restarts *prometheus.CounterVec
	up       prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, h *Holder) *metrics {
	m := &metrics{
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_node_traffic_restarts_total",
			Help: "Traffic processes that ended and were replaced, by reason.",
		}, []string{"reason"}),
		up: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "trivet_node_traffic_up",
			Help: "1 while a traffic process runs that has shown a heartbeat.",
		}),
	}
	for _, reason := range []string{restartExit, restartHang, restartStart} {
		m.restarts.WithLabelValues(reason)
	}
	held := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_node_attachments",
		Help: "Pods that are attached to.",
	}, func() float64 { return float64(len(h.pods.uids())) })
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_node_beat_age_seconds",
		Help: "Age of the traffic process's heartbeat, -1 before the first.",
	}, func() float64 {
		if age, ok := h.beatAge(); ok {
			return age.Seconds()
		}
		return -1
	})
	reg.MustRegister(m.restarts, m.up, held, age, stealCollector{h.pods})
	return m
}

// stealCollector shows what the steal programs counted.
type stealCollector struct{ pods *pods }

var lookups = prometheus.NewDesc("trivet_node_steal_lookups_total",
	"Lookups of a listener that the steal programs saw in the pods' namespaces, by result.", []string{"result"}, nil)

// Describe implements prometheus.Collector.
func (c stealCollector) Describe(ch chan<- *prometheus.Desc) { ch <- lookups }

// Collect implements prometheus.Collector.
func (c stealCollector) Collect(ch chan<- prometheus.Metric) {
	for result, n := range byResult(c.pods.stats()) {
		ch <- prometheus.MustNewConstMetric(lookups, prometheus.CounterValue, float64(n), result)
	}
}

func byResult(s steal.Stats) map[string]uint64 {
	return map[string]uint64{
		"stolen": s.Stolen, "self": s.Self, "stale": s.Stale,
		"no_listener": s.NoListener, "assign_error": s.AssignError, "not_armed": s.NotArmed,
	}
}
