package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// tokenView is a token without its secret, which only its creation shows.
type tokenView struct {
	ID        string     `json:"id"`
	Role      string     `json:"role"`
	Name      string     `json:"name"`
	UsesLeft  uint32     `json:"usesLeft"`
	Used      uint32     `json:"used"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	Revoked   bool       `json:"revoked,omitempty"`
	CreatedBy string     `json:"createdBy,omitempty"`
	CreatedAt *time.Time `json:"createdAt,omitempty"`
	Token     string     `json:"token,omitempty"`
}

func viewToken(t *operatorv1.Token) tokenView {
	return tokenView{
		ID: t.GetId(), Role: t.GetRole(), Name: t.GetNameGlob(), UsesLeft: t.GetUsesLeft(), Used: t.GetUsed(),
		ExpiresAt: moment(t.GetExpiresAt()), Revoked: t.GetRevoked(), CreatedBy: t.GetCreatedBy(), CreatedAt: moment(t.GetCreatedAt()),
	}
}

// state says in a word whether a token still works.
func (t tokenView) state(now time.Time) string {
	switch {
	case t.Revoked:
		return "revoked"
	case t.ExpiresAt != nil && !now.Before(*t.ExpiresAt):
		return "expired"
	case t.UsesLeft == 0:
		return "used"
	}
	return "open"
}

func newTokenCmd(a *App) *cobra.Command {
	token := group(&cobra.Command{
		Use:   "token",
		Short: "Let machines and people get certificates (role operator)",
		Long: `Let machines and people get certificates.

A token is for one role and for names like its glob. Whoever holds it gets a
certificate with: trivet login (people), or the key "token" of the configuration
of a server or node.`,
	})
	token.AddCommand(newTokenCreateCmd(a), newTokenListCmd(a), newTokenRevokeCmd(a))
	return token
}

func newTokenCreateCmd(a *App) *cobra.Command {
	req := &operatorv1.CreateTokenRequest{}
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "create --role ROLE [--name GLOB] [--uses N] [--ttl TIME]",
		Short: "Make a token and print it; it is not shown again",
		Args:  noArgs,
		RunE: a.ask(func(q query) error {
			if req.GetRole() == "" {
				return usage("--role is not set").WithHint("roles are %s", strings.Join(roleNames(), ", "))
			}
			req.Ttl = int64(ttl)
			resp, err := q.api.CreateToken(q.ctx, req)
			if err != nil {
				return err
			}
			v := viewToken(resp.GetToken())
			v.Token = resp.GetSecret()
			p := a.Printer()
			p.Notef("token %s: role %s, names %q, %d use(s), until %s", v.ID, v.Role, v.Name, v.UsesLeft, v.ExpiresAt.Format(time.RFC3339))
			return render.Object(p, v, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, v.Token)
				return err
			})
		}),
	}
	f := cmd.Flags()
	f.StringVar(&req.Role, "role", "", "`role` of the certificates")
	f.StringVar(&req.NameGlob, "name", "*", "`glob` of the names that may be asked for")
	f.Uint32Var(&req.Uses, "uses", 1, "how many keys it is good for")
	f.DurationVar(&ttl, "ttl", time.Hour, "how long it is good for")
	completeFlag(cmd, "role", choices(roleNames()...))
	return cmd
}

func roleNames() []string {
	var out []string
	for _, r := range pki.Roles() {
		out = append(out, string(r))
	}
	return out
}

func newTokenListCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the tokens; secrets are not kept anywhere",
		Args:  noArgs,
		RunE: a.ask(func(q query) error {
			tokens, revision, err := pages(func(page *operatorv1.Page) ([]*operatorv1.Token, string, uint64, error) {
				r, err := q.api.ListTokens(q.ctx, &operatorv1.ListTokensRequest{Page: page})
				return r.GetTokens(), r.GetNextPageToken(), r.GetRevision(), err
			})
			if err != nil {
				return err
			}
			return render.List(a.Printer(), views(tokens, viewToken), revision, "tokens", []render.Column[tokenView]{
				{Name: "ID", Value: func(t tokenView) string { return t.ID }},
				{Name: "ROLE", Value: func(t tokenView) string { return t.Role }},
				{Name: "NAME", Value: func(t tokenView) string { return t.Name }},
				{Name: "STATE", Value: func(t tokenView) string { return t.state(a.Now()) }},
				{Name: "USED", Value: func(t tokenView) string {
					return strconv.FormatUint(uint64(t.Used), 10) + "/" + strconv.FormatUint(uint64(t.Used)+uint64(t.UsesLeft), 10)
				}},
				{Name: "EXPIRES", Value: func(t tokenView) string {
					if t.ExpiresAt == nil {
						return ""
					}
					return t.ExpiresAt.Format(time.RFC3339)
				}},
				{Name: "BY", Wide: true, Value: func(t tokenView) string { return t.CreatedBy }},
			})
		}),
	}
}

func newTokenRevokeCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID",
		Short: "Make a token useless; certificates that were given for it stay",
		Args:  oneArg("the ID of a token"),
		RunE: a.ask(func(q query) error {
			if _, err := q.api.RevokeToken(q.ctx, &operatorv1.RevokeTokenRequest{Id: q.args[0]}); err != nil {
				return err
			}
			a.Printer().Notef("token %s is revoked; to withdraw certificates too: trivet identity deny", q.args[0])
			return nil
		}),
	}
}

// maxTokenText bounds what is read as a token.
const maxTokenText = 1 << 10

// readToken reads a token from where text says: "-" is standard input, "@FILE"
// a file, so that it need not stand on the command line for all to see.
func (a *App) readToken(text string) (string, error) {
	var in io.Reader
	switch {
	case text == "-":
		in = a.In
	case strings.HasPrefix(text, "@"):
		f, err := os.Open(text[1:])
		if err != nil {
			return "", errs.New(usageCode, render.ReasonUsage, "read the token: %w", err).WithHint("give --token @FILE the file that holds it")
		}
		defer f.Close()
		in = f
	default:
		return text, nil
	}
	data, err := io.ReadAll(io.LimitReader(in, maxTokenText))
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
