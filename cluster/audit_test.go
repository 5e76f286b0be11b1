package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	"trivet/cluster/api/operatorapi"
	"trivet/cluster/clustertest"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/pki"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// audit is what a ListAudit sent.
type audit struct {
	records []*commandv1.AuditRow
	heads   []*commandv1.AuditHead
	answers int
}

func listAudit(ctx context.Context, t *testing.T, op operatorsvc.OperatorClient, req *operatorv1.ListAuditRequest) audit {
	t.Helper()
	stream, err := op.ListAudit(ctx, req)
	must(t, err)
	var a audit
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return a
		}
		must(t, err)
		if len(a.heads) > 0 {
			t.Error("heads came before the last answer")
		}
		a.records, a.heads = append(a.records, r.GetRecords()...), r.GetHeads()
		a.answers++
	}
}

// verify checks each class of an audit against its head.
func (a audit) verify(t *testing.T) {
	t.Helper()
	byClass := map[commandv1.AuditClass][]*commandv1.AuditRow{}
	for _, r := range a.records {
		byClass[r.GetClass()] = append(byClass[r.GetClass()], r)
	}
	for _, h := range a.heads {
		if err := fsm.VerifyAudit(byClass[h.GetClass()], h); err != nil {
			t.Errorf("class %v: %v", h.GetClass(), err)
		}
	}
}

func (a audit) actions() []string {
	var out []string
	for _, r := range a.records {
		out = append(out, r.GetAction())
	}
	return out
}

func TestAuditIsTheSameVerifiedChainOnEveryServer(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	ops := operators(c)
	put, err := ops[1].PutPolicy(ctx, &operatorv1.PutPolicyRequest{Policy: &commandv1.PolicyRow{Name: "all", AllowSteal: true}})
	must(t, err)
	for i := range 3 {
		_, err := ops[i].PutConfig(ctx, &operatorv1.PutConfigRequest{Key: fmt.Sprintf("trivet/x%d", i), Value: []byte("hidden-value")})
		must(t, err)
	}
	var first audit
	for i, op := range ops {
		a := listAudit(ctx, t, op, &operatorv1.ListAuditRequest{})
		a.verify(t)
		if i == 0 {
			first = a
			continue
		}
		if d := cmp.Diff(first.records, a.records, protocmp.Transform()); d != "" {
			t.Errorf("server %d has another audit (-first +other):\n%s", i, d)
		}
	}
	var policy *commandv1.AuditRow
	for _, r := range first.records {
		if r.GetAction() == "policy.put" {
			policy = r
		}
	}
	if policy.GetRevision() != put.GetRevision() || policy.GetSubject() != "all" || policy.GetIdentity() != "spiffe://test/operator/op" {
		t.Errorf("the record of the policy is %v", policy)
	}

	human := listAudit(ctx, t, ops[0], &operatorv1.ListAuditRequest{Class: "action"})
	if got, want := human.actions(), []string{"config.put", "config.put", "config.put"}; !cmp.Equal(got, want) || len(human.heads) != 1 {
		t.Errorf("class action: %v with %d heads, want %v with one", got, len(human.heads), want)
	}
	last := human.records[2].GetNumber()
	after := listAudit(ctx, t, ops[2], &operatorv1.ListAuditRequest{Class: "action", After: last - 1})
	if len(after.records) != 1 || after.records[0].GetNumber() != last {
		t.Errorf("after %d: %v", last-1, after.records)
	}
	stream, err := ops[0].ListAudit(ctx, &operatorv1.ListAuditRequest{Class: "gossip"})
	must(t, err)
	if _, err := stream.Recv(); errs.Code(err) != codes.InvalidArgument || errs.Reason(err) != operatorapi.ReasonUnknownClass {
		t.Errorf("an unknown class: %v", err)
	}
}

func TestALongAuditComesInParts(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	ctx := testContext(t)
	op := operators(c)[0]
	put, err := op.PutConfigStream(ctx)
	must(t, err)
	const n = 1500
	go func() {
		for i := range n {
			if put.Send(&operatorv1.PutConfigRequest{Key: fmt.Sprintf("trivet/k%d", i)}) != nil {
				return
			}
		}
		_ = put.CloseSend() // a failure ends Recv below
	}()
	for range n {
		_, err := put.Recv()
		must(t, err)
	}
	a := listAudit(ctx, t, op, &operatorv1.ListAuditRequest{Class: "action"})
	a.verify(t)
	if len(a.records) != n || a.answers != 2 {
		t.Errorf("%d records in %d answers, want %d in 2", len(a.records), a.answers, n)
	}
}

func TestFollowedAuditGoesOnUntilTheServerStops(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	ops := operators(c)
	leader := c.Leader()
	stream, err := operatorsvc.NewOperatorClient(c.Conn(c.Followers()[0], pki.RoleOperator, "op")).
		ListAudit(ctx, &operatorv1.ListAuditRequest{Class: "action", Follow: true})
	must(t, err)
	var all audit
	recv := func() {
		t.Helper()
		r, err := stream.Recv()
		must(t, err)
		all.records, all.heads = append(all.records, r.GetRecords()...), r.GetHeads()
	}
	recv()
	if len(all.records) != 0 {
		t.Fatalf("a new cluster has %v", all.actions())
	}
	// Through every server, one of them the one that is followed.
	for i, op := range ops {
		_, err := op.PutConfig(ctx, &operatorv1.PutConfigRequest{Key: fmt.Sprintf("trivet/x%d", i)})
		must(t, err)
		for len(all.records) <= i {
			recv()
		}
	}
	all.verify(t)
	if got := all.records[len(all.records)-1].GetSubject(); len(all.records) != 3 || got != "trivet/x2" {
		t.Errorf("%d records, the last about %q", len(all.records), got)
	}
	follower := c.Followers()[0]
	if follower == leader {
		t.Fatal("a follower leads")
	}
	c.Stop(follower)
	for {
		if _, err = stream.Recv(); err != nil {
			break
		}
	}
	if errs.Code(err) != codes.Unavailable {
		t.Errorf("the server stopped: %v", err)
	}
}
