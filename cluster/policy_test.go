package cluster_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

func TestPolicyDecidesAboutInterceptsAndTheirDryRun(t *testing.T) {
	f := newFleet(t, 3)
	ops := operators(f.Cluster)
	f.arriveAgent(f.manager(0, pki.RoleNode, "node-1"))
	alice, bob := f.manager(1, pki.RoleClient, "alice"), f.manager(2, pki.RoleClient, "bob")
	alices, bobs := f.arriveClient(alice, "alice"), f.arriveClient(bob, "bob")
	put, err := ops[0].PutPolicy(f.ctx, &operatorv1.PutPolicyRequest{Policy: &commandv1.PolicyRow{
		Name: "alice-only", Identities: []string{"spiffe://test/client/alice"}, Namespaces: []string{"default"}, AllowSteal: true,
		// Not the caller's to say.
		ModifyRevision: 1 << 40,
	}})
	must(t, err)

	req := &manager.CreateInterceptRequest{Session: bobs, InterceptSpec: spec("bobs")}
	if p, err := bob.PrepareIntercept(f.ctx, req); err != nil || !strings.Contains(p.GetError(), "no policy allows intercepts of default/echo") ||
		!strings.Contains(p.GetError(), "ask an operator") {
		t.Errorf("the dry run of who matches no policy: %v, %v", p, err)
	}
	if _, err := bob.CreateIntercept(f.ctx, req); errs.Reason(err) != fsm.ReasonPolicyNoMatch || errs.Code(err) != codes.PermissionDenied {
		t.Errorf("an intercept of who matches no policy: %v", err)
	}
	replacing := spec("alices")
	replacing.Replace = true
	req = &manager.CreateInterceptRequest{Session: alices, InterceptSpec: replacing}
	if p, err := alice.PrepareIntercept(f.ctx, req); err != nil || !strings.Contains(p.GetError(), `policy "alice-only" does not allow replacing`) {
		t.Errorf("the dry run of what the policy does not allow: %v, %v", p, err)
	}
	if _, err := alice.CreateIntercept(f.ctx, req); errs.Reason(err) != fsm.ReasonPolicyDenied {
		t.Errorf("an intercept that the policy does not allow: %v", err)
	}
	req.InterceptSpec = spec("alices")
	if p, err := alice.PrepareIntercept(f.ctx, req); err != nil || p.GetError() != "" {
		t.Errorf("the dry run of what is allowed: %v, %v", p, err)
	}
	if _, err := alice.CreateIntercept(f.ctx, req); err != nil {
		t.Errorf("an intercept that is allowed: %v", err)
	}

	list, err := ops[1].ListPolicies(f.ctx, &operatorv1.ListPoliciesRequest{})
	must(t, err)
	if got := list.GetPolicies(); len(got) != 1 || got[0].GetModifyRevision() != put.GetRevision() || list.GetRevision() < put.GetRevision() {
		t.Errorf("policies at %d: %v, want one of revision %d", list.GetRevision(), got, put.GetRevision())
	}
	old := put.GetRevision() - 1
	if _, err := ops[2].PutPolicy(f.ctx, &operatorv1.PutPolicyRequest{
		Policy: &commandv1.PolicyRow{Name: "alice-only"}, IfModifyRevision: &old,
	}); errs.Code(err) != codes.FailedPrecondition && errs.Code(err) != codes.Aborted {
		t.Errorf("a policy that somebody changed meanwhile: %v", err)
	}
	for name, c := range map[string]struct {
		err    error
		code   codes.Code
		reason string
	}{
		"a policy without a name": {second(ops[0].PutPolicy(f.ctx, &operatorv1.PutPolicyRequest{})), codes.InvalidArgument, "MISSING_FIELD"},
		"a malformed pattern": {second(ops[0].PutPolicy(f.ctx, &operatorv1.PutPolicyRequest{Policy: &commandv1.PolicyRow{
			Name: "bad", Workloads: []string{"[a"},
		}})), codes.InvalidArgument, ""},
		"deleting without a name":     {second(ops[0].DeletePolicy(f.ctx, &operatorv1.DeletePolicyRequest{})), codes.InvalidArgument, "MISSING_FIELD"},
		"deleting one that is not":    {second(ops[0].DeletePolicy(f.ctx, &operatorv1.DeletePolicyRequest{Name: "x"})), codes.NotFound, fsm.ReasonPolicyNotFound},
		"deleting the one that there": {second(ops[0].DeletePolicy(f.ctx, &operatorv1.DeletePolicyRequest{Name: "alice-only"})), codes.OK, ""},
	} {
		if errs.Code(c.err) != c.code || c.reason != "" && errs.Reason(c.err) != c.reason {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	// Without any policy everything is allowed, up to the conflict with alice's.
	if p, err := bob.PrepareIntercept(f.ctx, &manager.CreateInterceptRequest{Session: bobs, InterceptSpec: spec("bobs")}); err != nil ||
		!strings.Contains(p.GetError(), "conflict") {
		t.Errorf("the dry run without policies: %v, %v", p, err)
	}
}

func second[R any](_ R, err error) error { return err }
