package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"

	"trivet/cluster/engine"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/internal/seal"
	commandv1 "trivet/proto/trivet/command/v1"
)

// Reasons of refusals.
const (
	// ReasonNoIssuingKey: the cluster has no issuing CA to sign with.
	ReasonNoIssuingKey = "NO_ISSUING_KEY"
	// ReasonTokenInvalid: a token is unknown, or its secret is wrong.
	ReasonTokenInvalid = fsm.ReasonTokenInvalid
	// ReasonNameRequired: a token allows many names and none was asked for.
	ReasonNameRequired = "NAME_REQUIRED"
	// ReasonNotRenewable: certificates of the role are not renewed.
	ReasonNotRenewable = "NOT_RENEWABLE"
	// ReasonEnrolRate: too many ask for certificates at once.
	ReasonEnrolRate = "ENROLL_RATE"
	// ReasonDenied: the identity is on the deny-list.
	ReasonDenied = fsm.ReasonIdentityDenied
)

// Questions of callers without a certificate that a server takes per second,
// and at once. Each costs a signature check and, with a good secret, a write.
const (
	enrolRate  = 50
	enrolBurst = 200
)

// Core is what is needed of the engine.
type Core interface {
	Propose(ctx context.Context, identity string, req *engine.Request, cmd *commandv1.Command) (*commandv1.Result, error)
	Read(ctx context.Context, level engine.Level, seen uint64) (*fsm.Root, error)
	Root() *fsm.Root
	WatchFrom(root *fsm.Root) *fsm.Cursor
}

// Config of an Authority.
type Config struct {
	Core   Core
	Sealer *Sealer
	// Source is the server's own certificate.
	Source *pki.Source
	// DataDir receives copies of the keyring and of the issuing CA.
	DataDir string
	// Issuing is the content of the IssuingFile that came with the bundle; the
	// first leader puts it into the state. May be empty.
	Issuing []byte
	// Advertise is this server's main address.
	Advertise string
	// TTL is how long new leaves of a role live; nil: pki.DefaultTTL.
	TTL func(pki.Role) time.Duration
	// Leads tells whether this server leads.
	Leads  func() bool
	Logger *slog.Logger
}

// Authority gives out certificates.
type Authority struct {
	cfg Config
	now func() time.Time

	limiter *rate.Limiter

	mu       sync.Mutex
	ca       *pki.CA // guarded by mu; made of the following
	caRow    *commandv1.KeyRow
	caBundle *pki.Bundle
	fallback []byte // guarded by mu; an IssuingFile
}

// New makes an authority.
func New(cfg Config) (*Authority, error) {
	if cfg.TTL == nil {
		cfg.TTL = pki.DefaultTTL
	}
	a := &Authority{cfg: cfg, now: time.Now, limiter: rate.NewLimiter(enrolRate, enrolBurst), fallback: cfg.Issuing}
	switch data, err := os.ReadFile(filepath.Join(cfg.DataDir, IssuingFile)); {
	case err == nil:
		a.fallback = data
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the issuing CA: %w", err)
	}
	return a, nil
}

// issuing makes the CA that the state says is in use.
func (a *Authority) issuing(root *fsm.Root) (*pki.CA, error) {
	row := activeKey(root, KindIssuing)
	if row == nil {
		return nil, errs.New(codes.Unavailable, ReasonNoIssuingKey, "the cluster has no issuing CA to sign with").
			WithHint("it comes with the servers' bundles at the first start; otherwise run: trivet ca rotate --dir DIR").
			WithRetry(time.Second)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	bundle := a.cfg.Source.Bundle()
	if a.ca != nil && a.caRow == row && a.caBundle == bundle {
		return a.ca, nil
	}
	ca, err := issuing{id: row.GetId(), certificate: row.GetPublic(), sealed: row.GetSealed()}.open(a.cfg.Sealer.Ring(), bundle.RootPEM())
	if err != nil {
		return nil, err
	}
	a.ca, a.caRow, a.caBundle = ca, row, bundle
	return ca, nil
}

// sign certifies the key in csr for id.
func (a *Authority) sign(ca *pki.CA, id pki.ID, csr []byte) (pki.Signed, error) {
	now := a.now()
	ttl := a.cfg.TTL(id.Role)
	if left := ca.NotAfter().Sub(now); left > 0 {
		ttl = min(ttl, left)
	}
	chain, err := ca.SignCSR(csr, pki.Template{ID: id, TTL: ttl}, now)
	return pki.Signed{Chain: chain, Roots: a.cfg.Source.Bundle().RootPEM()}, err
}

// SignOwn certifies a key of this server's own. It asks nobody: a server that
// has the keys must come up again also when the certificates of all servers
// have ended meanwhile.
func (a *Authority) SignOwn(_ context.Context, csr []byte) (pki.Signed, error) {
	id := a.cfg.Source.Bundle().ID
	root := a.cfg.Core.Root()
	if row, ok := root.Identity(id.String()); ok && row.GetDenied() {
		return pki.Signed{}, errs.New(codes.PermissionDenied, ReasonDenied, "%s is on the deny-list: %s", id, row.GetReason()).
			WithHint("an operator may lift that: trivet identity allow server/%s", id.Name)
	}
	ca, err := a.issuing(root)
	if errs.Reason(err) == ReasonNoIssuingKey {
		// The log may not be read yet for want of a leader, who may have the
		// same trouble.
		ca, err = a.ownIssuing(err)
	}
	if err != nil {
		return pki.Signed{}, err
	}
	return a.sign(ca, id, csr)
}

// ownIssuing makes the CA of the copy in the data directory.
func (a *Authority) ownIssuing(none error) (*pki.CA, error) {
	a.mu.Lock()
	data := a.fallback
	a.mu.Unlock()
	if len(data) == 0 {
		return nil, none
	}
	i, err := decodeIssuing(data)
	if err != nil {
		return nil, err
	}
	return i.open(a.cfg.Sealer.Ring(), a.cfg.Source.Bundle().RootPEM())
}

// servers lists the main addresses of all servers.
func (a *Authority) servers(root *fsm.Root) []string {
	var out []string
	for row := range root.Servers {
		if row.GetAddress() != "" {
			out = append(out, row.GetAddress())
		}
	}
	if len(out) == 0 {
		out = []string{a.cfg.Advertise}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// keep writes what must be at hand at the next start.
func (a *Authority) keep(root *fsm.Root) error {
	ring := a.cfg.Sealer.Ring()
	if err := keepFile(filepath.Join(a.cfg.DataDir, seal.FileName), ring.Encode(), func() error { return ring.Save(a.cfg.DataDir) }); err != nil {
		return err
	}
	row := activeKey(root, KindIssuing)
	if row == nil {
		return nil
	}
	data := issuing{id: row.GetId(), certificate: row.GetPublic(), sealed: row.GetSealed()}.encode()
	path := filepath.Join(a.cfg.DataDir, IssuingFile)
	if err := keepFile(path, data, func() error { return writeFile(path, data) }); err != nil {
		return err
	}
	a.mu.Lock()
	a.fallback = data
	a.mu.Unlock()
	return nil
}

// keepFile writes a file unless it has that content.
func keepFile(path string, data []byte, write func() error) error {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
		return nil
	}
	return write()
}

// writeFile writes a file (0600) as a whole or not at all.
func writeFile(path string, data []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
