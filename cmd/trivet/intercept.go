package main

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// interceptView is one intercept.
type interceptView struct {
	ID              string     `json:"id"`
	Name            string     `json:"name"`
	Workload        string     `json:"workload"`
	Namespace       string     `json:"namespace"`
	Client          string     `json:"client"`
	ClientSessionID string     `json:"clientSessionId"`
	Identity        string     `json:"identity,omitempty"`
	Disposition     string     `json:"disposition"`
	OwnerState      string     `json:"ownerState,omitempty"`
	Message         string     `json:"message,omitempty"`
	PodName         string     `json:"podName,omitempty"`
	PodIP           string     `json:"podIp,omitempty"`
	ContainerPort   int32      `json:"containerPort"`
	ServicePortName string     `json:"servicePortName,omitempty"`
	TargetHost      string     `json:"targetHost"`
	TargetPort      int32      `json:"targetPort"`
	CreatedAt       *time.Time `json:"createdAt,omitempty"`
	ModifiedAt      *time.Time `json:"modifiedAt,omitempty"`
	LeaseUntil      *time.Time `json:"leaseUntil,omitempty"`
	ModifyRevision  uint64     `json:"modifyRevision"`
}

func viewIntercept(i *operatorv1.Intercept) interceptView {
	return interceptView{
		ID: i.GetId(), Name: i.GetName(), Workload: i.GetWorkload(), Namespace: i.GetNamespace(),
		Client: i.GetClient(), ClientSessionID: i.GetClientSessionId(), Identity: i.GetIdentity(),
		Disposition: i.GetDisposition(), OwnerState: i.GetOwnerState(), Message: i.GetMessage(),
		PodName: i.GetPodName(), PodIP: i.GetPodIp(), ContainerPort: i.GetContainerPort(), ServicePortName: i.GetServicePortName(),
		TargetHost: i.GetTargetHost(), TargetPort: i.GetTargetPort(), CreatedAt: moment(i.GetCreatedAt()),
		ModifiedAt: moment(i.GetModifiedAt()), LeaseUntil: moment(i.GetLeaseUntil()), ModifyRevision: i.GetModifyRevision(),
	}
}

func (i interceptView) port() string {
	text := strconv.Itoa(int(i.ContainerPort))
	if i.ServicePortName != "" {
		text = i.ServicePortName + ":" + text
	}
	return text
}

func (a *App) interceptColumns() []render.Column[interceptView] {
	return []render.Column[interceptView]{
		{Name: "NAME", Value: func(i interceptView) string { return i.Name }},
		{Name: "WORKLOAD", Value: func(i interceptView) string { return i.Workload }},
		{Name: "NAMESPACE", Value: func(i interceptView) string { return i.Namespace }},
		{Name: "CLIENT", Value: func(i interceptView) string { return i.Client }},
		{Name: "STATE", Value: func(i interceptView) string { return i.Disposition }},
		{Name: "OWNER", Value: func(i interceptView) string { return i.OwnerState }},
		{Name: "PORT", Value: interceptView.port},
		{Name: "TARGET", Value: func(i interceptView) string { return fmt.Sprintf("%s:%d", i.TargetHost, i.TargetPort) }},
		{Name: "AGE", Value: func(i interceptView) string { return a.ageText(i.CreatedAt) }},
		{Name: "ID", Wide: true, Value: func(i interceptView) string { return i.ID }},
		{Name: "POD", Wide: true, Value: func(i interceptView) string { return i.PodName }},
		{Name: "MESSAGE", Wide: true, Value: func(i interceptView) string { return i.Message }},
	}
}

func newInterceptCmd(a *App) *cobra.Command {
	intercept := group(&cobra.Command{
		Use:   "intercept",
		Short: "Have the traffic of a workload sent here",
	})
	intercept.AddCommand(newInterceptCreateCmd(a), newInterceptListCmd(a), newInterceptGetCmd(a), newInterceptDeleteCmd(a), newInterceptWatchCmd(a))
	return intercept
}

func newInterceptListCmd(a *App) *cobra.Command {
	var own bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the intercepts: your own, or all of them for an operator",
		Args:  noArgs,
		RunE: a.ask(func(q query) error {
			rows, revision, err := pages(func(p *operatorv1.Page) ([]*operatorv1.Intercept, string, uint64, error) {
				r, err := q.api.ListIntercepts(q.ctx, &operatorv1.ListInterceptsRequest{Namespace: a.flags.namespace, Own: own, Page: p})
				return r.GetIntercepts(), r.GetNextPageToken(), r.GetRevision(), err
			})
			if err != nil {
				return err
			}
			return render.List(a.Printer(), views(rows, viewIntercept), revision, "intercepts", a.interceptColumns())
		}),
	}
	cmd.Flags().BoolVar(&own, "own", false, "only your own")
	return cmd
}

func newInterceptGetCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME",
		Short: "Show one intercept, by name or id",
		Args:  oneArg("the NAME or id of an intercept"),

		ValidArgsFunction: firstArgument(a.interceptNames()),
		RunE: a.ask(func(q query) error {
			i, err := q.api.GetIntercept(q.ctx, &operatorv1.GetInterceptRequest{Name: q.args[0]})
			if err != nil {
				return err
			}
			v := viewIntercept(i)
			return render.Object(a.Printer(), v, func(io.Writer) error {
				return render.List(a.Printer(), []interceptView{v}, 0, "intercepts", a.interceptColumns())
			})
		}),
	}
}

// deletedView says which intercept is gone.
type deletedView struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Revision uint64 `json:"revision"`
}

func newInterceptDeleteCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Remove an intercept, by name or id: your own, or anybody's for an operator",
		Args:  oneArg("the NAME or id of an intercept"),

		ValidArgsFunction: firstArgument(a.interceptNames()),
		RunE: a.ask(func(q query) error {
			i, err := q.api.GetIntercept(q.ctx, &operatorv1.GetInterceptRequest{Name: q.args[0]})
			if err != nil {
				return err
			}
			r, err := q.api.DeleteIntercept(q.ctx, &operatorv1.DeleteInterceptRequest{Id: i.GetId()})
			if err != nil {
				return err
			}
			v := deletedView{ID: i.GetId(), Name: i.GetName(), Revision: r.GetRevision()}
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "intercept %s of %s was removed\n", render.Clean(i.GetName()), render.Clean(i.GetClient()))
				return err
			})
		}),
	}
}
