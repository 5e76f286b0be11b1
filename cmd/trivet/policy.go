package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trivet/internal/render"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// policyView is one policy.
type policyView struct {
	Name                string   `json:"name"`
	Order               uint32   `json:"order"`
	Identities          []string `json:"identities,omitempty"`
	Namespaces          []string `json:"namespaces,omitempty"`
	Workloads           []string `json:"workloads,omitempty"`
	Allow               []string `json:"allow"`
	RequireFilter       bool     `json:"requireFilter,omitempty"`
	MaxDuration         string   `json:"maxDuration,omitempty"`
	WithheldEnvironment []string `json:"withheldEnvironment,omitempty"`
	ModifyRevision      uint64   `json:"modifyRevision"`
}

// What a policy can allow.
const (
	allowSteal   = "steal"
	allowCopy    = "copy"
	allowReplace = "replace"
)

var allowances = []string{allowSteal, allowCopy, allowReplace}

func viewPolicy(p *commandv1.PolicyRow) policyView {
	v := policyView{
		Name: p.GetName(), Order: p.GetOrder(), Identities: p.GetIdentities(), Namespaces: p.GetNamespaces(), Workloads: p.GetWorkloads(),
		Allow: []string{}, RequireFilter: p.GetRequireFilter(), WithheldEnvironment: p.GetWithheldEnvironment(), ModifyRevision: p.GetModifyRevision(),
	}
	for i, allowed := range []bool{p.GetAllowSteal(), p.GetAllowCopy(), p.GetAllowReplace()} {
		if allowed {
			v.Allow = append(v.Allow, allowances[i])
		}
	}
	if d := p.GetMaxDuration(); d > 0 {
		v.MaxDuration = time.Duration(d).String()
	}
	return v
}

func newPolicyCmd(a *App) *cobra.Command {
	policy := group(&cobra.Command{
		Use: "policy", Short: "Who may intercept what (changing them: role operator)",
		Long: `Policies decide about new intercepts: the first that matches, by order and then by
name. Without any policy everything is allowed; as soon as there is one, what no
policy matches is refused.`,
	})
	policy.AddCommand(newPolicyListCmd(a), newPolicySetCmd(a), newPolicyDeleteCmd(a))
	return policy
}

// anything is how a table shows no pattern.
func anything(globs []string) string {
	if len(globs) == 0 {
		return "*"
	}
	return strings.Join(globs, ",")
}

func newPolicyListCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "Show the policies in the order in which they are asked", Args: noArgs,
		RunE: a.ask(func(q query) error {
			policies, revision, err := pages(func(page *operatorv1.Page) ([]*commandv1.PolicyRow, string, uint64, error) {
				r, err := q.api.ListPolicies(q.ctx, &operatorv1.ListPoliciesRequest{Page: page})
				return r.GetPolicies(), r.GetNextPageToken(), r.GetRevision(), err
			})
			if err != nil {
				return err
			}
			rows := views(policies, viewPolicy)
			slices.SortStableFunc(rows, func(x, y policyView) int { return int(int64(x.Order) - int64(y.Order)) })
			return render.List(a.Printer(), rows, revision, "policies", []render.Column[policyView]{
				{Name: "ORDER", Value: func(v policyView) string { return strconv.FormatUint(uint64(v.Order), 10) }},
				{Name: "NAME", Value: func(v policyView) string { return v.Name }},
				{Name: "WHO", Value: func(v policyView) string { return anything(v.Identities) }},
				{Name: "NAMESPACES", Value: func(v policyView) string { return anything(v.Namespaces) }},
				{Name: "WORKLOADS", Value: func(v policyView) string { return anything(v.Workloads) }},
				{Name: "ALLOWS", Value: func(v policyView) string { return strings.Join(v.Allow, ",") }},
				{Name: "FILTER", Value: func(v policyView) string {
					if v.RequireFilter {
						return "required"
					}
					return ""
				}},
				{Name: "AT MOST", Value: func(v policyView) string { return v.MaxDuration }},
				{Name: "WITHHOLDS", Wide: true, Value: func(v policyView) string { return strings.Join(v.WithheldEnvironment, ",") }},
			})
		}),
	}
}

func newPolicySetCmd(a *App) *cobra.Command {
	p := &commandv1.PolicyRow{}
	var allow []string
	var longest time.Duration
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Make a policy, or replace the one of that name",
		Example: `  trivet policy set readers --order 10 --identities 'spiffe://prod/client/*' --allow copy
  trivet policy set payments --namespaces payments --allow steal --require-filter --max-duration 2h`,
		Args: oneArg("the NAME of the policy"),
		RunE: a.ask(func(q query) error {
			p.Name, p.MaxDuration = q.args[0], int64(longest)
			for _, what := range allow {
				switch what {
				case allowSteal:
					p.AllowSteal = true
				case allowCopy:
					p.AllowCopy = true
				case allowReplace:
					p.AllowReplace = true
				default:
					return usage("--allow %q is not known", what).WithHint("it may be %s", strings.Join(allowances, ", "))
				}
			}
			r, err := q.api.PutPolicy(q.ctx, &operatorv1.PutPolicyRequest{Policy: p})
			if err != nil {
				return err
			}
			p.ModifyRevision = r.GetRevision()
			return render.Object(a.Printer(), viewPolicy(p), func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "policy %s is set (revision %d)\n", p.GetName(), r.GetRevision())
				return err
			})
		}),
	}
	flags := cmd.Flags()
	flags.Uint32Var(&p.Order, "order", 0, "lower ones are asked first")
	flags.StringSliceVar(&p.Identities, "identities", nil, "`pattern` of SPIFFE URIs that it is about; '*' does not cross a slash")
	flags.StringSliceVar(&p.Namespaces, "namespaces", nil, "`pattern` of namespaces that it is about")
	flags.StringSliceVar(&p.Workloads, "workloads", nil, "`pattern` of workloads that it is about")
	flags.StringSliceVar(&allow, "allow", nil, "what a match allows: steal, copy, replace")
	flags.BoolVar(&p.RequireFilter, "require-filter", false, "an intercept must filter by a header or a path")
	flags.DurationVar(&longest, "max-duration", 0, "longest lease of an intercept; 0: no bound")
	flags.StringSliceVar(&p.WithheldEnvironment, "withhold-env", nil, "`pattern` of environment variables that the owner does not get")
	completeFlag(cmd, "allow", choices(allowances...))
	return cmd
}

func newPolicyDeleteCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Remove a policy; without any, everything is allowed",
		Args:  oneArg("the NAME of the policy"),
		RunE: a.ask(func(q query) error {
			r, err := q.api.DeletePolicy(q.ctx, &operatorv1.DeletePolicyRequest{Name: q.args[0]})
			if err != nil {
				return err
			}
			v := map[string]any{"name": q.args[0], "revision": r.GetRevision()}
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "policy %s is deleted\n", q.args[0])
				return err
			})
		}),
		ValidArgsFunction: firstArgument(a.policyNames()),
	}
}
