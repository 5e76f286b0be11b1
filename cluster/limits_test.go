package cluster_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	"trivet/cluster/clustertest"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/managersvc"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

func TestLimitsHoldOnceTheyAreSetAndFallBackToTheDefaults(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	ops := operators(c)
	got, err := ops[0].GetLimits(ctx, &operatorv1.GetLimitsRequest{})
	must(t, err)
	if d := cmp.Diff(fsm.DefaultLimits(), got.GetLimits(), protocmp.Transform()); d != "" {
		t.Errorf("a new cluster's limits (-want +got):\n%s", d)
	}
	if _, err := ops[0].SetLimits(ctx, &operatorv1.SetLimitsRequest{}); errs.Code(err) != codes.InvalidArgument || errs.Reason(err) != "MISSING_FIELD" {
		t.Errorf("no limits at all: %v", err)
	}
	// As the command line does it: all that were read, one changed.
	changed := got.GetLimits()
	changed.SessionsPerIdentity = 1
	_, err = ops[1].SetLimits(ctx, &operatorv1.SetLimitsRequest{Limits: changed})
	must(t, err)
	alice := managersvc.NewManagerClient(c.Conn(c.Servers[2], pki.RoleClient, "alice"))
	_, err = alice.ArriveAsClient(ctx, clientInfo("alice"))
	must(t, err)
	if _, err := alice.ArriveAsClient(ctx, clientInfo("another")); errs.Code(err) != codes.ResourceExhausted || errs.Reason(err) != fsm.ReasonLimitSessions {
		t.Errorf("a second session: %v", err)
	}
	clearing := &operatorv1.SetLimitsRequest{Limits: &commandv1.Limits{}, IfLimits: fsm.DefaultLimits()}
	if _, err := ops[2].SetLimits(ctx, clearing); errs.Code(err) != codes.Aborted || errs.Reason(err) != fsm.ReasonConflict {
		t.Errorf("a change of limits that another has changed: %v", err)
	}
	clearing.IfLimits.SessionsPerIdentity = 1
	_, err = ops[2].SetLimits(ctx, clearing)
	must(t, err)
	got, err = ops[2].GetLimits(ctx, &operatorv1.GetLimitsRequest{})
	must(t, err)
	if d := cmp.Diff(fsm.DefaultLimits(), got.GetLimits(), protocmp.Transform()); d != "" {
		t.Errorf("limits that were given up (-want +got):\n%s", d)
	}
	if _, err := alice.ArriveAsClient(ctx, clientInfo("another")); err != nil {
		t.Errorf("a second session: %v", err)
	}
}
