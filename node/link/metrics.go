package link

import "github.com/prometheus/client_golang/prometheus"

// Metrics count what happens between node and manager. They are registered by
// whoever makes them.
type Metrics struct {
	connected     prometheus.Gauge
	failovers     prometheus.Counter
	hangs         prometheus.Counter
	ordersRefused *prometheus.CounterVec
	orders        prometheus.Counter
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "trivet_node_manager_connected",
			Help: "1 while a server has sent this node its orders on a stream that is still open.",
		}),
		failovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trivet_node_manager_failovers_total",
			Help: "Times that the node turned from one server to the next.",
		}),
		hangs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trivet_node_manager_hangs_total",
			Help: "Servers that were cut off because they gave no sign of life.",
		}),
		orders: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trivet_node_orders_accepted_total",
			Help: "Orders of the manager that were accepted.",
		}),
		ordersRefused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_node_orders_refused_total",
			Help: "Orders of the manager that were refused, by reason.",
		}, []string{"reason"}),
	}
	reg.MustRegister(m.connected, m.failovers, m.hangs, m.orders, m.ordersRefused)
	for _, reason := range []string{refusedLower, refusedForeign, refusedUnfenced} {
		m.ordersRefused.WithLabelValues(reason)
	}
	return m
}
