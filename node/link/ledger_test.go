package link

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/testing/protocmp"

	"trivet/internal/errs"
	nodev1 "trivet/proto/trivet/node/v1"
)

// orders makes orders of cluster a.
func orders(epoch, term, revision uint64, uids ...string) *nodev1.NodeOrders {
	o := &nodev1.NodeOrders{Fence: &nodev1.Fence{ClusterId: "a", RestoreEpoch: epoch, Term: term, Revision: revision}}
	for _, uid := range uids {
		o.Agents = append(o.Agents, &nodev1.WantedAgent{Namespace: "default", Workload: "echo", PodUid: uid})
	}
	return o
}

func openLedger(t *testing.T, dir string) (*Ledger, *Metrics) {
	t.Helper()
	m := NewMetrics(prometheus.NewRegistry())
	l, err := OpenLedger(dir, m)
	if err != nil {
		t.Fatal(err)
	}
	return l, m
}

func value(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		t.Fatal(err)
	}
	return d.GetCounter().GetValue() + d.GetGauge().GetValue()
}

func TestLedgerKeepsTheHighestOrders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, m := openLedger(t, dir)
	if l.Last() != nil {
		t.Fatalf("a new ledger has orders: %v", l.Last())
	}
	foreign := orders(9, 9, 9)
	foreign.Fence.ClusterId = "b"
	unfenced := orders(9, 9, 9)
	unfenced.Fence.ClusterId = ""
	for i, step := range []struct {
		orders *nodev1.NodeOrders
		reason string
	}{
		{orders(0, 3, 10, "x"), ""},
		{orders(0, 3, 10, "x"), ""}, // the same again is in order
		{orders(0, 3, 9), ReasonStaleOrders},
		{orders(0, 2, 99), ReasonStaleOrders},
		{orders(0, 4, 1), ""},                // a later term
		{orders(1, 1, 1, "y"), ""},           // a later restore outranks it
		{orders(0, 9, 9), ReasonStaleOrders}, // and everything before
		{foreign, ReasonForeignCluster},
		{unfenced, ReasonStaleOrders},
	} {
		if got := errs.Reason(l.Accept(step.orders)); got != step.reason {
			t.Errorf("step %d: reason %q, want %q", i, got, step.reason)
		}
	}
	want := orders(1, 1, 1, "y")
	if d := cmp.Diff(want, l.Last(), protocmp.Transform()); d != "" {
		t.Errorf("orders (-want +got):\n%s", d)
	}
	for reason, n := range map[string]float64{refusedLower: 3, refusedForeign: 1, refusedUnfenced: 1} {
		if got := value(t, m.ordersRefused.WithLabelValues(reason)); got != n {
			t.Errorf("%v orders are counted as %s, want %v", got, reason, n)
		}
	}
	// The next process goes on from there.
	next, _ := openLedger(t, dir)
	if d := cmp.Diff(want, next.Last(), protocmp.Transform()); d != "" {
		t.Errorf("orders after a restart (-want +got):\n%s", d)
	}
	if got := errs.Reason(next.Accept(orders(0, 9, 9))); got != ReasonStaleOrders {
		t.Errorf("lower orders after a restart: reason %q", got)
	}
}

func TestDamagedLedgerIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ordersFile), []byte("{\"fence\": "), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := OpenLedger(dir, NewMetrics(prometheus.NewRegistry()))
	if e := errs.From(err); e == nil || e.Reason != "ORDERS_DAMAGED" || e.Hint == "" {
		t.Errorf("error is %v", err)
	}
}

func TestBackoffGrowsAndStaysInBounds(t *testing.T) {
	t.Parallel()
	var b Backoff
	want := RedialMin
	for range 10 {
		if d := b.Next(); d < want/2 || d > want {
			t.Fatalf("wait is %v, want between %v and %v", d, want/2, want)
		}
		want = min(2*want, RedialMax)
	}
	b.Reset()
	if d := b.Next(); d > RedialMin {
		t.Errorf("wait after a reset is %v", d)
	}
}
