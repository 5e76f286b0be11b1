package fsm

import (
	"path"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

var (
	genGlob = rapid.SampledFrom([]string{
		"*", "spiffe://c/client/*", "spiffe://c/client/alice", "spiffe://*/*/*", "default", "prod", "w*", "web", "nothing",
	})
	genGlobs = rapid.SliceOfN(genGlob, 0, 2)
)

func genPolicy(t *rapid.T) *commandv1.PolicyRow {
	return &commandv1.PolicyRow{
		Name:       rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name"),
		Order:      rapid.Uint32Range(0, 2).Draw(t, "order"),
		Identities: genGlobs.Draw(t, "identities"), Namespaces: genGlobs.Draw(t, "namespaces"), Workloads: genGlobs.Draw(t, "workloads"),
		AllowSteal: rapid.Bool().Draw(t, "steal"), AllowCopy: rapid.Bool().Draw(t, "copy"), AllowReplace: rapid.Bool().Draw(t, "replace"),
		RequireFilter: rapid.Bool().Draw(t, "filter"), MaxDuration: rapid.Int64Range(0, 3).Draw(t, "max") * 1e9,
	}
}

// allowedBy is what the doc says, written down once more: the reason of the
// refusal, empty if there is none, and the policy that decides.
func allowedBy(policies map[string]*commandv1.PolicyRow, identity string, spec *manager.InterceptSpec) (reason, name string) {
	if len(policies) == 0 {
		return "", ""
	}
	covers := func(globs []string, text string) bool {
		for _, g := range globs {
			if ok, _ := path.Match(g, text); ok {
				return true
			}
		}
		return len(globs) == 0
	}
	for order := range uint32(3) {
		for _, name := range []string{"a", "b", "c", "d"} {
			p := policies[name]
			if p == nil || p.GetOrder() != order || !covers(p.GetIdentities(), identity) ||
				!covers(p.GetNamespaces(), spec.GetNamespace()) || !covers(p.GetWorkloads(), spec.GetAgent()) {
				continue
			}
			kind := p.GetAllowSteal()
			if spec.GetWiretap() {
				kind = p.GetAllowCopy()
			}
			filtered := len(spec.GetHeaderFilters()) > 0 || len(spec.GetPathFilters()) > 0
			if kind && (p.GetAllowReplace() || !spec.GetReplace()) && (filtered || !p.GetRequireFilter()) {
				return "", name
			}
			return ReasonPolicyDenied, name
		}
	}
	return ReasonPolicyNoMatch, ""
}

// TestPoliciesFollowTheModel: the dry run and the creation decide as the model
// does, the row names the policy, and no lease is longer than it allows.
func TestPoliciesFollowTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := New(Options{})
		apply := func(identity string, c *commandv1.Command) *commandv1.Result {
			c.Version, c.Identity, c.Time = CommandVersion, identity, epoch
			res, err := m.Apply(Position{Term: 1}, &commandv1.Entry{Commands: []*commandv1.Command{c}})
			if err != nil {
				t.Fatal(err)
			}
			return res[0]
		}
		for _, w := range [][2]string{{"default", "web"}, {"prod", "api"}} {
			info := agentInfo(w[1], "uid-"+w[1])
			info.Namespace = w[0]
			expect(t, apply("", cmdArriveAgent(info)), commandv1.Code_CODE_OK)
		}
		policies := map[string]*commandv1.PolicyRow{}
		for range rapid.IntRange(0, 5).Draw(t, "policies") {
			p := genPolicy(t)
			put := &commandv1.Command{Op: &commandv1.Command_PutPolicy{PutPolicy: &commandv1.PutPolicy{Policy: p}}}
			expect(t, apply("spiffe://c/operator/olga", put), commandv1.Code_CODE_OK)
			policies[p.GetName()] = p
		}
		identity := rapid.SampledFrom([]string{"spiffe://c/client/alice", "spiffe://c/client/bob", "spiffe://other/operator/x"}).Draw(t, "who")
		expect(t, apply(identity, cmdArriveClient("session")), commandv1.Code_CODE_OK)
		spec := interceptSpec("session", "one", "web", 80)
		if rapid.Bool().Draw(t, "prod") {
			spec.Agent, spec.Namespace = "api", "prod"
		}
		spec.Wiretap, spec.Replace = rapid.Bool().Draw(t, "wiretap"), rapid.Bool().Draw(t, "replaces")
		if rapid.Bool().Draw(t, "header") {
			spec.HeaderFilters = map[string]string{"x": "1"}
		}
		if rapid.Bool().Draw(t, "path") {
			spec.PathFilters = []string{"/x"}
		}
		reason, name := allowedBy(policies, identity, spec)

		dry, refused := m.Root().CheckPolicy(identity, spec)
		if refused.GetReason() != reason || dry.GetName() != name {
			t.Fatalf("the dry run says %q by %q, the model %q by %q", refused.GetReason(), dry.GetName(), reason, name)
		}
		c := cmdCreate("session", spec)
		c.GetCreateIntercept().Lease = rapid.Int64Range(0, 4).Draw(t, "lease") * 1e9
		asked := c.GetCreateIntercept().GetLease()
		res := apply(identity, c)
		if res.GetReason() != reason {
			t.Fatalf("result is %v, the model says %q", compact(res), reason)
		}
		if reason != "" {
			if m.Root().Len(TableIntercepts) != 0 {
				t.Fatal("it was made all the same")
			}
			return
		}
		row := res.GetIntercept()
		want := asked
		if longest := policies[name].GetMaxDuration(); longest > 0 && (want == 0 || want > longest) {
			want = longest
		}
		if until := row.GetLeaseUntil(); row.GetPolicy() != name || (want == 0) != (until == 0) || want != 0 && until != epoch+want {
			t.Fatalf("policy %q, lease until %d", row.GetPolicy(), until-epoch)
		}
	})
}

// TestWithheldEnvironment: the policy counts as it is now, and when it is gone
// nothing is given out.
func TestWithheldEnvironment(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.ok(cmdArriveClient("alice"))
	r.ok(cmdArriveAgent(agentInfo("web", "w1")))
	free := r.ok(cmdCreate("alice", interceptSpec("alice", "free", "web", 81))).GetIntercept()
	put := func(withheld ...string) *commandv1.Command {
		return &commandv1.Command{Op: &commandv1.Command_PutPolicy{PutPolicy: &commandv1.PutPolicy{
			Policy: &commandv1.PolicyRow{Name: "p", AllowSteal: true, WithheldEnvironment: withheld},
		}}}
	}
	r.ok(put("AWS_*", "TOKEN"))
	bound := r.ok(cmdCreate("alice", interceptSpec("alice", "bound", "web", 80))).GetIntercept()
	withheld := func(row *commandv1.InterceptRow) (out []string) {
		for _, key := range []string{"AWS_KEY", "AWS_A/B", "PATH", "TOKEN", "TOKENS"} {
			if r.m.Root().Withheld(row, key) {
				out = append(out, key)
			}
		}
		return out
	}
	if got := withheld(free); len(got) != 0 {
		t.Errorf("without a policy: %v", got)
	}
	if got := withheld(bound); !slices.Equal(got, []string{"AWS_KEY", "AWS_A/B", "TOKEN"}) {
		t.Errorf("with a policy: %v", got)
	}
	r.ok(put("PATH"))
	if got := withheld(bound); !slices.Equal(got, []string{"PATH"}) {
		t.Errorf("with a changed policy: %v", got)
	}
	r.ok(&commandv1.Command{Op: &commandv1.Command_DeletePolicy{DeletePolicy: &commandv1.DeletePolicy{Name: "p"}}})
	if got := withheld(bound); len(got) != 5 {
		t.Errorf("without the policy that allowed it: only %v", got)
	}
}
