package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"trivet/client"
	"trivet/internal/errs"
	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// digestView is the digest of one server's state.
type digestView struct {
	Server   string `json:"server"`
	Address  string `json:"address"`
	Revision uint64 `json:"revision,omitempty"`
	Schema   uint32 `json:"schema,omitempty"`
	Digest   string `json:"digest,omitempty"`
	Error    string `json:"error,omitempty"`
}

// digestsView compares them. Comparable is false when servers did not answer,
// or never stood at the same revision and schema.
type digestsView struct {
	Equal      bool         `json:"equal"`
	Comparable bool         `json:"comparable"`
	Items      []digestView `json:"items"`
}

// While writes go on, servers are at different revisions from one moment to
// the next; that many looks find them level on a cluster that is not busy.
const (
	digestRounds = 10
	digestPause  = 100 * time.Millisecond
)

func newDigestCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "digest",
		Short: "Compare the state of all servers; exits 1 if it differs",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.Timeout(cmd.Context())
			defer cancel()
			c, err := a.Context()
			if err != nil {
				return err
			}
			v, err := collectDigests(ctx, c)
			if err != nil {
				return err
			}
			if err := a.printDigests(v); err != nil {
				return err
			}
			switch {
			case !v.Comparable:
				return errs.New(codes.Unavailable, "DIGESTS_NOT_COMPARABLE",
					"the servers could not be compared: they are at different revisions, or some did not answer").
					WithHint("try again when fewer writes go on, or look at: trivet status")
			case !v.Equal:
				return errs.New(codes.DataLoss, "DIGESTS_DIFFER", "the servers' states differ at the same revision").
					WithHint("the odd one out replaces its state from a peer by itself; if this stays, save a snapshot and report it")
			}
			return nil
		},
	}
}

func (a *App) printDigests(v digestsView) error {
	p := a.Printer()
	if p.Format.Structured() {
		return render.Object(p, v, nil)
	}
	return render.List(p, v.Items, 0, "servers", []render.Column[digestView]{
		{Name: "SERVER", Value: func(d digestView) string { return d.Server }},
		{Name: "ADDRESS", Value: func(d digestView) string { return d.Address }},
		{Name: "REVISION", Value: func(d digestView) string { return number(d.Revision) }},
		{Name: "SCHEMA", Value: func(d digestView) string { return strconv.Itoa(int(d.Schema)) }},
		{Name: "DIGEST", Value: func(d digestView) string { return cmp.Or(d.Digest, d.Error) }},
	})
}

// collectDigests asks all servers until they stand at the same revision.
func collectDigests(ctx context.Context, c client.Context) (digestsView, error) {
	v := digestsView{Items: make([]digestView, len(c.Servers))}
	for round := 0; ; round++ {
		denied := make([]error, len(c.Servers))
		var absent atomic.Bool
		err := eachServer(ctx, c, 0, func(ctx context.Context, i int, api operatorsvc.OperatorClient, err error) {
			var r *operatorv1.DigestResponse
			if err != nil {
				absent.Store(true)
			} else {
				r, err = api.Digest(ctx, &operatorv1.DigestRequest{})
			}
			if errs.Code(err) == codes.PermissionDenied {
				denied[i] = err
			}
			v.Items[i] = viewDigest(c.Servers[i], r, err)
		})
		if err := cmp.Or(err, cmp.Or(denied...)); err != nil {
			return v, err
		}
		// More rounds do not bring back a server that cannot be reached.
		if v.compare(); v.Comparable || absent.Load() || round == digestRounds || !pause(ctx, digestPause) {
			return v, nil
		}
	}
}

func viewDigest(addr string, r *operatorv1.DigestResponse, err error) digestView {
	if err != nil {
		return digestView{Server: addr, Address: addr, Error: render.Cause(err)}
	}
	return digestView{
		Server: r.GetServer(), Address: addr, Revision: r.GetRevision(), Schema: r.GetSchema(),
		Digest: hex.EncodeToString(r.GetDigest()),
	}
}

func (v *digestsView) compare() {
	v.Comparable, v.Equal = true, true
	first := v.Items[0]
	for _, d := range v.Items {
		if d.Error != "" || d.Revision != first.Revision || d.Schema != first.Schema {
			v.Comparable = false
		}
		if d.Digest != first.Digest {
			v.Equal = false
		}
	}
	v.Equal = v.Equal && v.Comparable
}
