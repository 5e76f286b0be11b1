package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"trivet/fsm"
)

const (
	adminHeaderTimeout = 5 * time.Second
	adminShutdown      = 2 * time.Second
)

// admin is the listener for health and metrics, and for nothing else.
type admin struct {
	ln  net.Listener
	srv *http.Server
	wg  sync.WaitGroup
}

func newAdmin(s *Server, address string) (*admin, error) {
	if address == "" {
		return nil, nil
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("open the admin port: %w", err)
	}
	reg := s.registryOfMetrics()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := s.notReady(); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	return &admin{ln: ln, srv: &http.Server{Handler: mux, ReadHeaderTimeout: adminHeaderTimeout}}, nil
}

// registryOfMetrics holds everything that is measured in this process.
func (s *Server) registryOfMetrics() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reg.MustRegister(s.rpcs.collectors()...)
	reg.MustRegister(raftCollector{s}, s.replica.Collector())
	return reg
}

func (a *admin) serve() {
	if a == nil {
		return
	}
	a.wg.Go(func() { _ = a.srv.Serve(a.ln) })
}

func (a *admin) close() error {
	if a == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminShutdown)
	defer cancel()
	err := a.srv.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = a.srv.Close()
	}
	a.wg.Wait()
	return err
}

// countedTables are the tables whose sizes are worth a metric.
var countedTables = []fsm.Table{
	fsm.TableSessions, fsm.TableIntercepts, fsm.TableNodes, fsm.TableWorkloads, fsm.TableConfig, fsm.TableServers, fsm.TableDedupe,
}

// collector reads the counters when Prometheus asks.
type collector struct{ s *Server }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("trivet_"+name, help, labels, nil)
}

var (
	descIsLeader  = desc("raft_is_leader", "1 while this server leads.")
	descHasLeader = desc("raft_has_leader", "1 while this server knows a leader.")
	descTerm      = desc("raft_term", "Current term.")
	descRevision  = desc("fsm_revision", "Revision of the state machine.")
	descObjects   = desc("fsm_objects", "Rows by kind.", "kind")
	descEntries   = desc("raft_entries_total", "Log entries proposed here.")
	descCommands  = desc("raft_commands_total", "Commands proposed here.")
	descRefused   = desc("raft_proposals_refused_total", "Commands refused because the queue was full.")
	descQueued    = desc("raft_proposals_pending", "Proposals waiting in the queue.")
	descElections = desc("raft_death_watch_elections_total", "Elections started because the leader's process was gone.")
	descTunnels   = desc("tunnels", "Tunnels joined here now.")
	descTunnelsT  = desc("tunnels_total", "Tunnels joined here.")
	descTunnelsF  = desc("tunnels_failed_total", "Tunnels whose other end did not come.")
	descBytes     = desc("tunnel_bytes_total", "Bytes relayed here.", "direction")
	descReported  = desc("tunnel_reported_bytes_total", "Bytes of streams that agents reported.", "direction")
	descDials     = desc("dial_requests_refused_total", "Dial requests that found a full queue.")
	descNames     = desc("lookups_agents_total", "Questions about names that agents here were handed and have answered, and what was dropped.", "outcome")
	descNamesFull = desc("lookups_refused_total", "Questions about names that found too many under way.")
	descDenied    = desc("authz_denied_total", "Calls refused because of who made them.", "reason")
	descDropped   = desc("environments_dropped_total", "Environments that were too large to be kept and were left out.")
	descActors    = desc("actors", "Actors alive here, by kind.", "kind")
	descFull      = desc("actor_mailbox_full_total", "Messages refused because an actor's mailbox was full.", "kind")
	descLost      = desc("actor_messages_lost_total", "Messages lost because their actor stopped.", "kind")
	descRestarts  = desc("actor_restarts_total", "Restarts of actors.", "kind")
	descQuarant   = desc("actor_quarantined_total", "Actors stopped because they kept failing.", "kind")
	descLimited   = desc("limit_refused_total", "Calls and streams refused by a limit per identity.", "reason")
	descOpen      = desc("connections", "Connections open on the main port.")
	descBuild     = desc("build_info", "1; the labels say what runs.", "version", "go")
	descExpiry    = desc("cert_expiry_seconds", "Unix time at which a certificate ends.", "cert")
	descHealth    = desc("health", "0 ok, 1 warning, 2 critical, by check.", "check")
	descConns     = desc("connections_rejected_total", "Connections turned away on the main port.", "reason")
)

// Describe lists the metrics.
func (c collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect reads the counters.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	s := c.s
	gauge := func(d *prometheus.Desc, v float64, l ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, l...)
	}
	count := func(d *prometheus.Desc, v uint64, l ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), l...)
	}
	leader, _ := s.replica.Leader()
	gauge(descIsLeader, bit(s.replica.IsLeader()))
	gauge(descHasLeader, bit(leader != ""))
	gauge(descTerm, float64(s.replica.Term()))
	root := s.machine.Root()
	gauge(descRevision, float64(root.Revision()))
	for _, t := range countedTables {
		gauge(descObjects, float64(root.Len(t)), t.String())
	}
	st := s.replica.Stats()
	count(descEntries, st.Entries)
	count(descCommands, st.Commands)
	count(descRefused, st.Refused)
	gauge(descQueued, float64(st.Queued))
	count(descElections, s.watch.Elections())
	x := s.exchange.Stats()
	gauge(descTunnels, float64(x.Open))
	count(descTunnelsT, x.Total)
	count(descTunnelsF, x.Failed)
	count(descBytes, x.BytesIn, "to_client")
	count(descBytes, x.BytesTo, "from_client")
	asked := s.names.Stats()
	count(descNames, asked.Asked, "asked")
	count(descNames, asked.Answered, "answered")
	count(descNames, asked.Dropped, "dropped")
	count(descNamesFull, s.manager.LookupsRefused())
	in, out := s.manager.Reported()
	count(descReported, in, "to_client")
	count(descReported, out, "from_client")
	count(descDials, s.registry.Refused())
	for reason, n := range s.guard.RefusedBy() {
		count(descDenied, n, reason)
	}
	count(descDropped, s.sealer.Dropped())
	for kind, k := range s.actors.Stats().Kinds {
		gauge(descActors, float64(k.Live), kind)
		count(descFull, k.Full, kind)
		count(descLost, k.Lost, kind)
		count(descRestarts, k.Restarts, kind)
		count(descQuarant, k.Quarantined, kind)
	}
	for reason, n := range s.limiter.Refused() {
		count(descLimited, n, reason)
	}
	gauge(descBuild, 1, s.cfg.Version, runtime.Version())
	gauge(descExpiry, float64(s.cfg.Source.Bundle().NotAfter.Unix()), "server")
	for name, level := range worstByName(s.Checks()) {
		gauge(descHealth, float64(level), name)
	}
	gauge(descOpen, float64(s.mux.Stats().Open))
	for reason, n := range s.mux.Stats().Rejected {
		count(descConns, n, string(reason))
	}
}

// worstByName is the worst level of each check: one that found several things
// is there several times, and a series twice would fail the whole scrape.
func worstByName(checks []Check) map[string]int {
	out := make(map[string]int, len(checks))
	for _, x := range checks {
		out[x.Name] = max(out[x.Name], slices.Index([]string{LevelOK, LevelWarning, LevelCritical}, x.Level))
	}
	return out
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
