package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trivet/internal/pki"
	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// identityView is what was decided about an identity.
type identityView struct {
	Identity  string     `json:"identity"`
	Denied    bool       `json:"denied"`
	Reason    string     `json:"reason,omitempty"`
	ChangedAt *time.Time `json:"changedAt,omitempty"`
}

func viewIdentity(i *operatorv1.Identity) identityView {
	return identityView{Identity: i.GetUri(), Denied: i.GetDenied(), Reason: i.GetReason(), ChangedAt: moment(i.GetChangedAt())}
}

func newIdentityCmd(a *App) *cobra.Command {
	identity := group(&cobra.Command{
		Use:   "identity",
		Short: "Lock identities out and let them in again",
		Long: `Lock identities out and let them in again.

A denied identity gets no answer and no new certificate from any server, and
what it has open ends within two seconds. Give it as ROLE/NAME, such as
client/alice, or as a whole URI.`,
	})
	identity.AddCommand(newIdentityListCmd(a), newIdentitySetCmd(a, true), newIdentitySetCmd(a, false))
	return identity
}

func newIdentityListCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the identities that something was decided about",
		Args:  noArgs,
		RunE: a.ask(func(q query) error {
			all, revision, err := pages(func(page *operatorv1.Page) ([]*operatorv1.Identity, string, uint64, error) {
				r, err := q.api.ListIdentities(q.ctx, &operatorv1.ListIdentitiesRequest{Page: page})
				return r.GetIdentities(), r.GetNextPageToken(), r.GetRevision(), err
			})
			if err != nil {
				return err
			}
			return render.List(a.Printer(), views(all, viewIdentity), revision, "identities", []render.Column[identityView]{
				{Name: "IDENTITY", Value: func(i identityView) string { return i.Identity }},
				{Name: "DENIED", Value: func(i identityView) string { return yesNo(i.Denied) }},
				{Name: "AGE", Value: func(i identityView) string { return a.ageText(i.ChangedAt) }},
				{Name: "REASON", Value: func(i identityView) string { return i.Reason }},
			})
		}),
	}
}

// newIdentitySetCmd makes deny, or allow.
func newIdentitySetCmd(a *App, denied bool) *cobra.Command {
	cmd := &cobra.Command{Use: "allow IDENTITY", Short: "Let an identity in again", Args: oneArg("an identity, such as client/alice")}
	var reason string
	if denied {
		cmd.Use, cmd.Short = "deny IDENTITY", "Lock an identity out, now and until it is allowed again"
		cmd.Flags().StringVar(&reason, "reason", "", "`why`; it is shown to whoever is locked out")
	}
	cmd.RunE = a.ask(func(q query) error {
		uri, err := a.identityURI(q.args[0])
		if err != nil {
			return err
		}
		if _, err := q.api.SetIdentity(q.ctx, &operatorv1.SetIdentityRequest{Uri: uri, Denied: denied, Reason: reason}); err != nil {
			return err
		}
		what := "allowed"
		if denied {
			what = "denied"
		}
		a.Printer().Notef("%s is %s", uri, what)
		return nil
	})
	return cmd
}

// identityURI completes ROLE/NAME to an identity of the context's cluster.
func (a *App) identityURI(text string) (string, error) {
	if strings.HasPrefix(text, "spiffe://") {
		return text, nil
	}
	c, err := a.Context()
	if err != nil {
		return "", err
	}
	src, err := c.Source()
	if err != nil {
		return "", err
	}
	role, name, _ := strings.Cut(text, "/")
	id := pki.ID{Cluster: src.Bundle().ID.Cluster, Role: pki.Role(role), Name: name}
	if err := id.Validate(); err != nil {
		return "", usage("%q is not an identity: %w", text, err).WithHint("give ROLE/NAME, such as client/alice")
	}
	return id.String(), nil
}
