package cluster_test

import (
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"trivet/cluster"
	"trivet/cluster/clustertest"
	"trivet/internal/errs"
	"trivet/internal/pki"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
	"trivet/test/metricdoc"
)

// TestEveryMetricIsInTheCatalogue: what dashboards and alerts are made from is
// written down, and nothing is that does not exist.
func TestEveryMetricIsInTheCatalogue(t *testing.T) {
	f := newFleet(t, 3, func(c *cluster.Config) { c.Admin = "127.0.0.1:0" })
	// Some series come with the first thing that they count.
	viewer := operatorsvc.NewOperatorClient(f.Conn(f.Servers[0], pki.RoleViewer, "vera"))
	if _, err := viewer.PutConfig(f.ctx, &operatorv1.PutConfigRequest{Key: "k"}); errs.Code(err) != codes.PermissionDenied {
		t.Fatalf("a viewer writes: %v", err)
	}
	_, err := operators(f.Cluster)[1].PutConfig(f.ctx, &operatorv1.PutConfigRequest{Key: "k"})
	must(t, err)
	f.arriveClient(f.manager(2, pki.RoleClient, "alice"), "alice")
	documented, err := metricdoc.Documented("../docs/metrics.md", metricdoc.Servers)
	must(t, err)
	// What the servers measure of each other comes with their next hellos.
	var differences []string
	defer func() {
		for _, d := range differences {
			t.Error(d)
		}
	}()
	clustertest.Eventually(t, "the servers expose what the catalogue lists", func() bool {
		var bodies []io.Reader
		for _, m := range f.Servers {
			_, body := get(t, "http://"+m.Server.AdminAddress()+"/metrics")
			bodies = append(bodies, strings.NewReader(body))
		}
		exposed, err := metricdoc.Exposed(bodies...)
		must(t, err)
		differences = metricdoc.Compare(documented, exposed)
		return len(differences) == 0
	})
}
