package fsm

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// Bounds of a policy.
const (
	maxPolicyGlobs = 100
	maxPolicyBytes = 64 << 10
)

func (t *tx) putPolicy(op *commandv1.PutPolicy) *commandv1.Result {
	p := op.GetPolicy()
	if res := first(t.operatorOnly("policies"), t.checkPolicy(p)); res != nil {
		return res
	}
	old, exists := t.work.policies.get(p.GetName())
	if res := compareRevision("policy", p.GetName(), old.GetModifyRevision(), op.IfModifyRevision); res != nil {
		return res
	}
	if limit := t.work.limits.GetPolicies(); !exists && uint32(t.work.policies.rows.Len()) >= limit {
		return overLimit(ReasonLimitPolicies, "policies", "there are %d policies, which is all there may be", limit)
	}
	row := edit(p)
	row.ChangedAt = t.now()
	put(t, &t.work.policies, row)
	return &commandv1.Result{Row: &commandv1.Result_Policy{Policy: row}}
}

func (t *tx) deletePolicy(op *commandv1.DeletePolicy) *commandv1.Result {
	row, ok := t.work.policies.get(op.GetName())
	if res := first(t.operatorOnly("policies"),
		compareRevision("policy", op.GetName(), row.GetModifyRevision(), op.IfModifyRevision)); res != nil {
		return res
	}
	if !ok {
		return refuse(commandv1.Code_CODE_NOT_FOUND, ReasonPolicyNotFound, "policy %q not found", op.GetName())
	}
	drop(t, &t.work.policies, op.GetName())
	return done()
}

func (t *tx) operatorOnly(what string) *commandv1.Result {
	if role, _ := roleOf(t.cmd.GetIdentity()); t.cmd.GetIdentity() != "" && role != roleOperator {
		return refuse(commandv1.Code_CODE_PERMISSION_DENIED, ReasonOperatorOnly, "only operators may change %s", what)
	}
	return nil
}

func (t *tx) checkPolicy(p *commandv1.PolicyRow) *commandv1.Result {
	if res := first(checkName("policy name", p.GetName()), t.bounded("policy", p, maxPolicyBytes)); res != nil {
		return res
	}
	if p.GetMaxDuration() < 0 {
		return invalid("policy %q: maximum duration must not be negative", p.GetName())
	}
	for _, globs := range [][]string{
		p.GetIdentities(), p.GetNamespaces(), p.GetWorkloads(), p.GetWithheldEnvironment(),
	} {
		if len(globs) > maxPolicyGlobs {
			return invalid("policy %q has more than %d patterns of one kind", p.GetName(), maxPolicyGlobs)
		}
		for _, g := range globs {
			if _, err := path.Match(g, ""); err != nil {
				return invalid("policy %q: pattern %q is malformed", p.GetName(), g)
			}
		}
	}
	return nil
}

// PolicyFor returns the policy that decides about an intercept: the first that
// matches, by order and then by name. ok is false when there are policies and
// none of them matches, which refuses; without any policy everything is
// allowed, and the policy is nil.
func (r *Root) PolicyFor(identity string, spec *manager.InterceptSpec) (p *commandv1.PolicyRow, ok bool) {
	if r.policies.rows.Len() == 0 {
		return nil, true
	}
	all := slices.Collect(r.Policies)
	slices.SortStableFunc(all, func(a, b *commandv1.PolicyRow) int { return cmp.Compare(a.GetOrder(), b.GetOrder()) })
	for _, p := range all {
		if matches(p.GetIdentities(), identity) && matches(p.GetNamespaces(), spec.GetNamespace()) &&
			matches(p.GetWorkloads(), spec.GetAgent()) {
			return p, true
		}
	}
	return nil, false
}

// matches tells whether one of the patterns matches, or there are none. In an
// identity, as everywhere, '*' does not cross a slash.
func matches(globs []string, text string) bool {
	return len(globs) == 0 || slices.ContainsFunc(globs, func(g string) bool {
		ok, err := path.Match(g, text)
		return err == nil && ok
	})
}

// CheckPolicy is the dry run of the policies for a new intercept. It returns
// the policy that decides (nil: there are none), and a refusal or nil.
func (r *Root) CheckPolicy(identity string, spec *manager.InterceptSpec) (*commandv1.PolicyRow, *commandv1.Result) {
	p, ok := r.PolicyFor(identity, spec)
	switch {
	case !ok:
		return nil, hinted(refuse(commandv1.Code_CODE_PERMISSION_DENIED, ReasonPolicyNoMatch,
			"no policy allows intercepts of %s/%s", spec.GetNamespace(), spec.GetAgent()),
			"ask an operator for a policy that does")
	case p == nil:
		return nil, nil
	}
	denied := func(what string) *commandv1.Result {
		return hinted(refuse(commandv1.Code_CODE_PERMISSION_DENIED, ReasonPolicyDenied, "policy %q does not allow %s", p.GetName(), what),
			"ask an operator, or ask for less")
	}
	switch {
	case spec.GetWiretap() && !p.GetAllowCopy():
		return p, denied("copies of traffic")
	case !spec.GetWiretap() && !p.GetAllowSteal():
		return p, denied("taking traffic over")
	case spec.GetReplace() && !p.GetAllowReplace():
		return p, denied("replacing the container")
	case p.GetRequireFilter() && len(spec.GetHeaderFilters())+len(spec.GetPathFilters()) == 0:
		return p, denied("intercepts without a header or path filter")
	}
	return p, nil
}

// leaseUnder is the lease that a policy leaves of one that was asked for: none
// becomes the longest there is.
func leaseUnder(p *commandv1.PolicyRow, lease int64) int64 {
	longest := p.GetMaxDuration()
	if longest == 0 || lease != 0 && lease < longest {
		return lease
	}
	return longest
}

// Withheld tells whether an environment variable is kept from an intercept's
// owner by the policy that allowed the intercept. The policy counts as it is
// now; when it is gone, nobody can say what it withheld, so everything is.
func (r *Root) Withheld(row *commandv1.InterceptRow, key string) bool {
	if row.GetPolicy() == "" {
		return false
	}
	p, ok := r.Policy(row.GetPolicy())
	return !ok || Withheld(p, key)
}

// Withheld tells whether a policy keeps an environment variable from the owner
// of an intercept.
func Withheld(p *commandv1.PolicyRow, key string) bool {
	return len(p.GetWithheldEnvironment()) > 0 && matches(p.GetWithheldEnvironment(), strings.ReplaceAll(key, "/", "_"))
}
