package main

import (
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"trivet/internal/pki"
	"trivet/internal/render"
	"trivet/internal/seal"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// caView is a CA as it is in a directory or in the cluster.
type caView struct {
	Cluster string   `json:"cluster"`
	Roots   []caCert `json:"roots"`
	Issuing []caCert `json:"issuing"`
	// SealKey seals; SealKeys are all, the newest last.
	SealKey  string   `json:"sealKey,omitempty"`
	SealKeys []string `json:"sealKeys,omitempty"`
}

type caCert struct {
	// Hash is the start of the SHA-256 of the key: of a root, what tokens end
	// with.
	Hash     string    `json:"hash"`
	Serial   string    `json:"serial"`
	NotAfter time.Time `json:"notAfter"`
	Active   bool      `json:"active,omitempty"`
}

func viewCACert(c *x509.Certificate, active bool) caCert {
	return caCert{Hash: hex.EncodeToString(pki.RootHash(c)), Serial: pki.Serial(c), NotAfter: c.NotAfter, Active: active}
}

func newCAShowCmd(a *App) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "show [--dir DIR]",
		Short: "Show the CA: that of a directory, or that in use in the cluster",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir != "" {
				v, err := offlineCA(dir)
				if err != nil {
					return err
				}
				return a.printCA(v)
			}
			return a.ask(func(q query) error {
				r, err := q.api.GetAuthority(q.ctx, &operatorv1.GetAuthorityRequest{})
				if err != nil {
					return err
				}
				return a.printCA(onlineCA(r))
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` that trivet ca init made")
	return cmd
}

func offlineCA(dir string) (caView, error) {
	dir = caDir(dir)
	ca, err := pki.LoadCA(dir)
	if err != nil {
		return caView{}, err
	}
	v := caView{
		Cluster: ca.Cluster, Roots: []caCert{viewCACert(ca.Root(), true)}, Issuing: []caCert{viewCACert(ca.Issuing(), true)},
	}
	if ring, err := seal.Load(dir); err == nil {
		v.SealKey, v.SealKeys = ring.Active(), ring.IDs()
	}
	return v, nil
}

func onlineCA(r *operatorv1.GetAuthorityResponse) caView {
	v := caView{Cluster: r.GetClusterName(), SealKey: r.GetSealKeyId(), SealKeys: r.GetSealKeyIds()}
	for _, c := range certificates(r.GetRoots()) {
		v.Roots = append(v.Roots, viewCACert(c, true))
	}
	for _, i := range r.GetIssuers() {
		for _, c := range certificates(i.GetCertificate()) {
			v.Issuing = append(v.Issuing, viewCACert(c, i.GetActive()))
		}
	}
	return v
}

// certificates reads PEM certificates; what is none is left out.
func certificates(data []byte) []*x509.Certificate {
	var out []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, c)
		}
	}
	return out
}

func (a *App) printCA(v caView) error {
	return render.Object(a.Printer(), v, func(w io.Writer) error {
		fmt.Fprintf(w, "cluster      %s\n", v.Cluster)
		for _, c := range v.Roots {
			fmt.Fprintf(w, "root         %s  until %s\n", c.Hash, c.NotAfter.Format(time.DateOnly))
		}
		for _, c := range v.Issuing {
			use := "retired"
			if c.Active {
				use = "in use"
			}
			fmt.Fprintf(w, "issuing CA   %s  until %s  %s\n", c.Hash, c.NotAfter.Format(time.DateOnly), use)
		}
		for _, k := range v.SealKeys {
			use := "kept"
			if k == v.SealKey {
				use = "in use"
			}
			fmt.Fprintf(w, "seal key     %s  %s\n", k, use)
		}
		return nil
	})
}

func newCARotateCmd(a *App) *cobra.Command {
	var dir string
	var sealKey bool
	cmd := &cobra.Command{
		Use:   "rotate {--dir DIR | --seal-key}",
		Short: "Put a new issuing CA, or a new seal key, in use",
		Long: `Put a new issuing CA, or a new seal key, in use (role operator).

--dir DIR signs a new issuing CA with the root's key in that directory, which may
be kept elsewhere in between, and hands it to the servers. Certificates of the
one before stay good until they end. A rotation that was cut short is completed
by running the command again.

--seal-key makes the servers draw a new key for what they seal from now on. Keys
in the state are sealed anew, environments when they are written the next time;
the old key is kept for what it has sealed.`,
		Args: noArgs,
		RunE: a.ask(func(q query) error {
			switch {
			case (dir == "") == !sealKey:
				return usage("give either --dir or --seal-key")
			case sealKey:
				r, err := q.api.RotateAuthority(q.ctx, &operatorv1.RotateAuthorityRequest{})
				if err != nil {
					return err
				}
				a.Printer().Notef("%s is in use", r.GetIssuer().GetId())
				return nil
			}
			next, err := pki.PrepareIssuing(caDir(dir), a.Now())
			if err != nil {
				return err
			}
			cert, key, err := next.IssuingPEM()
			if err != nil {
				return err
			}
			r, err := q.api.RotateAuthority(q.ctx, &operatorv1.RotateAuthorityRequest{Certificate: cert, Key: key})
			if err != nil {
				return err
			}
			if err := pki.CommitIssuing(caDir(dir)); err != nil {
				return err
			}
			a.Printer().Notef("%s is in use, until %s", r.GetIssuer().GetId(), next.NotAfter().Format(time.DateOnly))
			return nil
		}),
	}
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` that trivet ca init made, with the root's key")
	cmd.Flags().BoolVar(&sealKey, "seal-key", false, "rotate the seal key instead")
	return cmd
}
