package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"trivet/client"
	"trivet/internal/errs"
	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// probeTimeout bounds the look at one server; a hung one must not make status
// slow.
const probeTimeout = 3 * time.Second

// statusView is the state of a cluster as seen from here.
type statusView struct {
	Context   string       `json:"context"`
	ClusterID string       `json:"clusterId"`
	Ready     bool         `json:"ready"`
	Leader    string       `json:"leader"`
	Term      uint64       `json:"term"`
	Revision  uint64       `json:"revision"`
	Counts    countsView   `json:"counts"`
	Servers   []serverView `json:"servers"`
	Nodes     []nodeView   `json:"nodes"`
}

type countsView struct {
	Agents     uint32 `json:"agents"`
	Clients    uint32 `json:"clients"`
	Intercepts uint32 `json:"intercepts"`
	Nodes      uint32 `json:"nodes"`
	Workloads  uint32 `json:"workloads"`
}

// serverView is one server. Reachable is seen from here; for a server that the
// context does not list, from the server that answered.
type serverView struct {
	Name      string `json:"name"`
	Address   string `json:"address"`
	Leader    bool   `json:"leader"`
	Voter     bool   `json:"voter"`
	Reachable bool   `json:"reachable"`
	Ready     bool   `json:"ready"`
	Version   string `json:"version,omitempty"`
	Revision  uint64 `json:"revision,omitempty"`
	Error     string `json:"error,omitempty"`
}

func newStatusCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show servers, leader, nodes and counts",
		Long: `Show servers, leader, nodes and counts.

Every server is asked, each for its own view; no session is needed, and no
leader either. The exit code is 0 as long as one server answers: programs look
at "ready" and "leader" of -o json.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.Timeout(cmd.Context())
			defer cancel()
			c, err := a.Context()
			if err != nil {
				return err
			}
			v, err := collectStatus(ctx, c)
			if err != nil {
				return err
			}
			return render.Object(a.Printer(), v, func(w io.Writer) error { return a.printStatus(w, v) })
		},
	}
}

// probe is what one server said.
type probe struct {
	address string
	status  *operatorv1.StatusResponse
	nodes   []*operatorv1.Node
	err     error
}

// collectStatus asks all servers at once and puts their answers together.
func collectStatus(ctx context.Context, c client.Context) (statusView, error) {
	if err := c.Validate(); err != nil {
		return statusView{}, err
	}
	probes := make([]probe, len(c.Servers))
	var wg sync.WaitGroup
	for i, addr := range c.Servers {
		wg.Go(func() { probes[i] = probeServer(ctx, c, addr) })
	}
	wg.Wait()
	best := slices.MaxFunc(probes, func(a, b probe) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)),
			cmp.Compare(a.status.GetTerm(), b.status.GetTerm()),
			cmp.Compare(a.status.GetRevision(), b.status.GetRevision()))
	})
	if best.err != nil {
		return statusView{}, allFailed(probes)
	}
	st := best.status
	v := statusView{
		Context: c.Name, ClusterID: st.GetClusterId(), Ready: st.GetReady(), Leader: st.GetLeader(),
		Term: st.GetTerm(), Revision: st.GetRevision(),
		Counts: countsView{
			Agents: st.GetAgents(), Clients: st.GetClients(), Intercepts: st.GetIntercepts(),
			Nodes: st.GetNodes(), Workloads: st.GetWorkloads(),
		},
		Servers: joinServers(probes, st),
		Nodes:   []nodeView{},
	}
	for _, n := range best.nodes {
		v.Nodes = append(v.Nodes, viewNode(n))
	}
	return v, nil
}

// rank orders probes: no answer, an answer, one of a server with a leader.
func rank(p probe) int {
	switch {
	case p.err != nil:
		return 0
	case !p.status.GetReady():
		return 1
	}
	return 2
}

func probeServer(ctx context.Context, c client.Context, addr string) probe {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	p := probe{address: addr}
	c.Servers = []string{addr}
	pool, err := client.Dial(ctx, c, client.Options{Patience: -1, Consistency: client.Stale})
	if err != nil {
		p.err = err
		return p
	}
	defer pool.Close()
	api := operatorsvc.NewOperatorClient(pool)
	if p.status, p.err = api.Status(ctx, &operatorv1.StatusRequest{}); p.err != nil {
		return p
	}
	// Who may not list nodes still gets a status.
	if nodes, err := api.ListNodes(ctx, &operatorv1.ListNodesRequest{}); err == nil {
		p.nodes = nodes.GetNodes()
	}
	return p
}

// allFailed explains why no server answered: with one voice where they agree.
func allFailed(probes []probe) error {
	first := errs.From(probes[0].err)
	for _, p := range probes {
		e := errs.From(p.err)
		if e.Reason != first.Reason || e.Reason == client.ReasonNoServer {
			if len(probes) == 1 {
				break
			}
			all := errs.New(first.Code, client.ReasonNoServer, "none of %d servers answered", len(probes))
			text := ""
			for _, p := range probes {
				text += "; " + render.Cause(p.err)
			}
			all.Message += text
			return all.WithHint("check that the servers run and that their addresses are right (trivet context show)")
		}
	}
	return probes[0].err
}

// joinServers lists the servers of the context as seen from here, then those
// that only the answering server knows.
func joinServers(probes []probe, st *operatorv1.StatusResponse) []serverView {
	out := []serverView{}
	listed := map[string]bool{}
	for _, p := range probes {
		v := serverView{Address: p.address, Reachable: p.err == nil}
		var known *operatorv1.Server
		if p.err == nil {
			v.Name, v.Version, v.Revision, v.Ready = p.status.GetServer(), p.status.GetVersion(), p.status.GetRevision(), p.status.GetReady()
			known = findServer(st.GetServers(), func(s *operatorv1.Server) bool { return s.GetName() == v.Name })
		} else {
			v.Error = render.Cause(p.err)
			known = findServer(st.GetServers(), func(s *operatorv1.Server) bool { return s.GetAddress() == p.address })
		}
		v.Name = cmp.Or(v.Name, known.GetName())
		v.Leader = v.Name != "" && v.Name == st.GetLeader()
		v.Voter = known.GetVoter()
		listed[v.Name] = true
		out = append(out, v)
	}
	for _, s := range st.GetServers() {
		if !listed[s.GetName()] {
			out = append(out, serverView{
				Name: s.GetName(), Address: s.GetAddress(), Leader: s.GetLeader(), Voter: s.GetVoter(),
				Reachable: s.GetReachable(), Ready: s.GetReachable(), Version: s.GetVersion(), Revision: s.GetRevision(),
			})
		}
	}
	return out
}

func findServer(servers []*operatorv1.Server, match func(*operatorv1.Server) bool) *operatorv1.Server {
	if i := slices.IndexFunc(servers, match); i >= 0 {
		return servers[i]
	}
	return nil
}

func (a *App) printStatus(w io.Writer, v statusView) error {
	leader := "no leader"
	if v.Leader != "" {
		leader = "leader " + v.Leader
	}
	if _, err := fmt.Fprintf(w, "cluster %s (context %s): %s, term %d, revision %d\n%s, %s, %s, %s, %s\n\n",
		render.Clean(v.ClusterID), render.Clean(v.Context), render.Clean(leader), v.Term, v.Revision,
		count(v.Counts.Clients, "client"), count(v.Counts.Agents, "agent"), count(v.Counts.Intercepts, "intercept"),
		count(v.Counts.Workloads, "workload"), count(v.Counts.Nodes, "node")); err != nil {
		return err
	}
	p := a.Printer()
	if err := render.List(p, v.Servers, 0, "servers", []render.Column[serverView]{
		{Name: "SERVER", Value: func(s serverView) string { return cmp.Or(s.Name, s.Address) }},
		{Name: "ADDRESS", Value: func(s serverView) string { return s.Address }},
		{Name: "ROLE", Value: serverView.role},
		{Name: "REACHABLE", Value: func(s serverView) string { return yesNo(s.Reachable) }},
		{Name: "VERSION", Value: func(s serverView) string { return s.Version }},
		{Name: "REVISION", Value: func(s serverView) string { return number(s.Revision) }},
		{Name: "ERROR", Wide: true, Value: func(s serverView) string { return s.Error }},
	}); err != nil || len(v.Nodes) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return render.List(p, v.Nodes, 0, "nodes", nodeColumns)
}

func (s serverView) role() string {
	switch {
	case s.Leader:
		return "leader"
	case s.Reachable && !s.Ready:
		return "not ready"
	case s.Voter:
		return "follower"
	}
	return ""
}

func count(n uint32, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// number shows 0, which stands for unknown, as nothing.
func number(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}
