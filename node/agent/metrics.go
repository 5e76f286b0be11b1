package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"trivet/tunnel"
)

// outcome is what became of a stolen connection.
type outcome string

const (
	outTunnel outcome = "tunnel"
	outApp    outcome = "app"
	outReset  outcome = "reset"
)

// reason says why.
type reason string

const (
	// Tunnelled.
	whyClean       reason = "clean"
	whyInterrupted reason = "interrupted"
	// To the app.
	whyNoIntercept reason = "no_intercept"
	whyNoAnswer    reason = "manager_unknown"
	whyOwnerAway   reason = "owner_away"
	whyRefused     reason = "tunnel_refused"
	whyHeldLimit   reason = "held_limit"
	// Reset.
	whyRejected    reason = "dial_rejected"
	whyReplaced    reason = "replaced_app"
	whyNoApp       reason = "app_unreachable"
	whyOpenLimit   reason = "open_limit"
	whyStopping    reason = "stopping"
	whyAgentFailed reason = "internal_error"
)

// ways lists every outcome with its reasons, so that a series is there before
// the first connection.
var ways = map[outcome][]reason{
	outTunnel: {whyClean, whyInterrupted},
	outApp:    {whyNoIntercept, whyNoAnswer, whyOwnerAway, whyRefused, whyHeldLimit},
	outReset:  {whyRejected, whyReplaced, whyNoApp, whyOpenLimit, whyStopping, whyAgentFailed},
}

// Metrics count what agents and their connections do. They are registered by
// whoever makes them.
type Metrics struct {
	connections *prometheus.CounterVec
	open, held  prometheus.Gauge
	retries     prometheus.Counter
	reviews     *prometheus.CounterVec
	armed       prometheus.Gauge
	armFailures prometheus.Counter
	arrivals    *prometheus.CounterVec
	sessions    prometheus.Gauge
	dials       prometheus.Counter
	bytes       *tunnel.Counters
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &Metrics{
		connections: vec("trivet_node_connections_total",
			"Stolen connections by what became of them (tunnel, app, reset) and why.", "outcome", "reason"),
		open:    gauge("trivet_node_connections_open", "Stolen connections that have not ended."),
		held:    gauge("trivet_node_connections_held", "Stolen connections that wait for the owner's end of a tunnel."),
		retries: counter("trivet_node_tunnel_retries_total", "Attempts to open a tunnel after one that failed."),
		reviews: vec("trivet_node_reviews_total", "Reviews of intercepts by disposition.", "disposition"),
		armed:   gauge("trivet_node_ports_armed", "Ports whose new connections are stolen."),
		armFailures: counter("trivet_node_arm_failures_total",
			"Times that a port could not be armed, or a pod not be attached to."),
		arrivals: vec("trivet_node_agent_sessions_total",
			"Agent sessions by how they came about (arrive, reconnect).", "how"),
		sessions: gauge("trivet_node_agents_connected", "Agents whose session is held by a server."),
		dials:    counter("trivet_node_dial_requests_ignored_total", "Requests to dial that agents do not serve."),
		bytes:    &tunnel.Counters{},
	}
	bytes := func(direction string, load func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name:        "trivet_node_tunnel_bytes_total",
			Help:        "Bytes that tunnels carried, to the owners of intercepts and back to visitors.",
			ConstLabels: prometheus.Labels{"direction": direction},
		}, func() float64 { return float64(load()) })
	}
	reg.MustRegister(m.connections, m.open, m.held, m.retries, m.reviews, m.armed, m.armFailures, m.arrivals,
		m.sessions, m.dials, bytes("to_owner", m.bytes.Out.Load), bytes("to_visitor", m.bytes.In.Load))
	for out, reasons := range ways {
		for _, why := range reasons {
			m.connections.WithLabelValues(string(out), string(why))
		}
	}
	return m
}

func (m *Metrics) ended(out outcome, why reason) {
	m.connections.WithLabelValues(string(out), string(why)).Inc()
}
