package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// sessionView is one session of a client or an agent.
type sessionView struct {
	ID        string     `json:"id"`
	Kind      string     `json:"kind"`
	Name      string     `json:"name"`
	Namespace string     `json:"namespace,omitempty"`
	PodName   string     `json:"podName,omitempty"`
	Version   string     `json:"version,omitempty"`
	Identity  string     `json:"identity,omitempty"`
	CreatedAt *time.Time `json:"createdAt,omitempty"`
	// Attached names the servers that hold streams of it right now.
	Attached []string `json:"attached"`
}

func viewSession(s *operatorv1.Session) sessionView {
	v := sessionView{
		ID: s.GetId(), Kind: s.GetKind(), Name: s.GetName(), Namespace: s.GetNamespace(), PodName: s.GetPodName(),
		Version: s.GetVersion(), Identity: s.GetIdentity(), CreatedAt: moment(s.GetCreatedAt()), Attached: s.GetAttached(),
	}
	if v.Attached == nil {
		v.Attached = []string{}
	}
	return v
}

func newSessionCmd(a *App) *cobra.Command {
	session := group(&cobra.Command{Use: "session", Short: "The sessions of clients and agents"})
	session.AddCommand(&cobra.Command{
		Use:   "list",
		Short: "List the sessions (role operator or viewer)",
		Args:  noArgs,
		RunE: a.ask(func(q query) error {
			rows, revision, err := pages(func(p *operatorv1.Page) ([]*operatorv1.Session, string, uint64, error) {
				r, err := q.api.ListSessions(q.ctx, &operatorv1.ListSessionsRequest{Page: p})
				return r.GetSessions(), r.GetNextPageToken(), r.GetRevision(), err
			})
			if err != nil {
				return err
			}
			return render.List(a.Printer(), views(rows, viewSession), revision, "sessions", []render.Column[sessionView]{
				{Name: "ID", Value: func(s sessionView) string { return s.ID }},
				{Name: "KIND", Value: func(s sessionView) string { return s.Kind }},
				{Name: "NAME", Value: func(s sessionView) string { return s.Name }},
				{Name: "NAMESPACE", Value: func(s sessionView) string { return s.Namespace }},
				{Name: "ATTACHED TO", Value: func(s sessionView) string { return strings.Join(s.Attached, ",") }},
				{Name: "AGE", Value: func(s sessionView) string { return a.ageText(s.CreatedAt) }},
				{Name: "POD", Wide: true, Value: func(s sessionView) string { return s.PodName }},
				{Name: "VERSION", Wide: true, Value: func(s sessionView) string { return s.Version }},
				{Name: "IDENTITY", Wide: true, Value: func(s sessionView) string { return s.Identity }},
			})
		}),
	})
	session.AddCommand(newSessionWatchCmd(a))
	return session
}
