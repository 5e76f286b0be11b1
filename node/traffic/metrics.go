package traffic

import (
	"github.com/prometheus/client_golang/prometheus"

	"trivet/internal/rt"
)

// actorCollector shows the counters of the actor runtime.
type actorCollector struct{ system *rt.System }

func actorDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("trivet_node_actor_"+name, help, []string{"kind"}, nil)
}

var (
	actorLive        = actorDesc("live", "Actors that are there.")
	actorDepth       = actorDesc("mailbox_depth_max", "The most messages that one mailbox has held.")
	actorFull        = actorDesc("messages_refused_total", "Messages refused because a mailbox was full.")
	actorLost        = actorDesc("messages_lost_total", "Messages that were accepted and never handled.")
	actorStale       = actorDesc("results_stale_total", "Results that came too late for their incarnation.")
	actorSlow        = actorDesc("messages_slow_total", "Messages whose handling took longer than 10 ms.")
	actorFailures    = actorDesc("failures_total", "Errors and panics of actors.")
	actorRestarts    = actorDesc("restarts_total", "Restarts of actors.")
	actorQuarantined = actorDesc("quarantined_total", "Actors that were given up.")
)

// Describe implements prometheus.Collector.
func (c actorCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		actorLive, actorDepth, actorFull, actorLost, actorStale, actorSlow, actorFailures, actorRestarts, actorQuarantined,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c actorCollector) Collect(ch chan<- prometheus.Metric) {
	for kind, s := range c.system.Stats().Kinds {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, kind)
		}
		count := func(d *prometheus.Desc, v uint64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), kind)
		}
		gauge(actorLive, float64(s.Live))
		gauge(actorDepth, float64(s.Depth))
		count(actorFull, s.Full)
		count(actorLost, s.Lost)
		count(actorStale, s.Stale)
		count(actorSlow, s.Slow)
		count(actorFailures, s.Failures)
		count(actorRestarts, s.Restarts)
		count(actorQuarantined, s.Quarantined)
	}
}
