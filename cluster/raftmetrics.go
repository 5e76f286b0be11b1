package cluster

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descCommit     = desc("raft_commit_index", "Newest log entry that a quorum has.")
	descApplied    = desc("raft_applied_index", "Newest log entry in the state machine; Raft's own entries never reach it.")
	descLast       = desc("raft_last_index", "Newest log entry here.")
	descSnapIndex  = desc("raft_snapshot_index", "Log entry up to which the newest snapshot goes.")
	descMembers    = desc("raft_members", "Servers in the configuration.", "suffrage")
	descContact    = desc("raft_leader_last_contact_seconds", "Since the leader was last heard; 0 on the leader.")
	descRounds     = desc("raft_confirm_rounds_total", "Rounds in which this leader had its term confirmed by a quorum.")
	descRoundsFail = desc("raft_confirm_failed_total", "Rounds of confirmation without a quorum.")
	descRoundsRedo = desc("raft_confirm_redone_total", "Rounds asked again because this process had been paused.")
	descLonely     = desc("raft_death_watch_lonely_total", "Ends of the leader that this server saw and no majority did.")
	descChanges    = desc("raft_membership_changes_total", "Changes of the configuration made by this server as the leader.")
	descSentAway   = desc("raft_isolated_total", "Times that this server had no leader for so long that it sent its peers to others.")
	descHandovers  = desc("raft_handovers_total", "Times that this server gave leadership away because it was unfit.")
	descUnfit      = desc("raft_unfit", "1 while this server should not lead.")
	descMismatch   = desc("fsm_hash_mismatch_total", "Comparisons that found different digests at one revision.")
	descDiverged   = desc("fsm_diverged", "1 while this server's state differs from that of the majority.")
	descHealed     = desc("fsm_healed_total", "Times that this server took the state of another one over.")
	descCompared   = desc("fsm_hash_revision", "Newest revision at which a majority had this server's digest.")
	descEpoch      = desc("fsm_restore_epoch", "Restores of the cluster by an operator.")
	descClock      = desc("clock_offset_seconds", "How far another server's wall clock is ahead.", "server")
	descTrip       = desc("peer_round_trip_seconds", "Fastest of the newest round trips to another server.", "server")
)

// raftCollector reads what concerns Raft and the equality of the servers.
type raftCollector struct{ s *Server }

// Describe lists the metrics.
func (c raftCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect reads the counters.
func (c raftCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.s
	gauge := func(d *prometheus.Desc, v float64, l ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, l...)
	}
	count := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	i := s.replica.Info()
	gauge(descCommit, float64(i.CommitIndex))
	gauge(descApplied, float64(i.AppliedIndex))
	gauge(descLast, float64(i.LastIndex))
	gauge(descSnapIndex, float64(i.Snapshot.Index))
	if last := s.replica.LastContact(); !last.IsZero() {
		gauge(descContact, time.Since(last).Seconds())
	}
	if list, _, err := s.replica.Members(); err == nil {
		voters := 0
		for _, x := range list {
			if x.Voter {
				voters++
			}
		}
		gauge(descMembers, float64(voters), "voter")
		gauge(descMembers, float64(len(list)-voters), "nonvoter")
	}
	confirm := s.replica.ConfirmStats()
	count(descRounds, confirm.Rounds)
	count(descRoundsFail, confirm.Failed)
	count(descRoundsRedo, confirm.Redone)
	count(descLonely, s.watch.Lonely())
	count(descChanges, s.membership.Changes())
	count(descSentAway, s.front.turns.Load())
	count(descHandovers, s.steering.handovers.Load())
	gauge(descUnfit, bit(!s.mayLead()))
	mismatches, healed := s.monitor.Counts()
	count(descMismatch, mismatches)
	count(descHealed, healed)
	gauge(descDiverged, bit(s.monitor.Diverged()))
	gauge(descCompared, float64(s.monitor.Status().Compared))
	gauge(descEpoch, float64(s.machine.Root().Meta().GetRestoreEpoch()))
	for id, o := range s.dir.offsets(time.Now().Add(-offsetFresh)) {
		gauge(descClock, o.Seconds(), s.nameOf(id))
	}
	for name, d := range s.dir.fastest(time.Now().Add(-offsetFresh)) {
		gauge(descTrip, d.Seconds(), name)
	}
}
