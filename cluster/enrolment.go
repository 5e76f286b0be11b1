package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"trivet/cluster/api/enrollapi"
	"trivet/cluster/identity"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/internal/portmux"
	"trivet/internal/seal"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// Bounds of connections over which certificates are asked for: their holders
// may be anybody. A question has a few KiB and is answered within the time that
// a write is held for a leader.
const (
	enrolMessage     = 64 << 10
	enrolStreams     = 8
	enrolConnections = 256
	enrolAge         = 20 * time.Second
	enrolGrace       = 10 * time.Second
	enrolIdle        = 5 * time.Second
)

// strangers names the connections without a certificate where connections are
// counted by identity.
const strangers = "no certificate"

// endConnections is how long after its streams the connections of a denied
// identity are ended: time enough for the streams' last words.
const endConnections = 500 * time.Millisecond

// openKeys finds the keyring, and the issuing CA that came with the bundle. The
// data directory's keyring is the one in use; a bundle may bring older keys
// back.
func (s *Server) openKeys() (*seal.Keyring, error) {
	var ring *seal.Keyring
	add := func(found *seal.Keyring) (err error) {
		if ring == nil {
			ring = found
		} else {
			ring, err = ring.Including(found)
		}
		return err
	}
	load := func(dir string) error {
		found, err := seal.Load(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return add(found)
	}
	if err := load(s.cfg.DataDir); err != nil {
		return nil, err
	}
	if s.cfg.Keyring != nil {
		if err := add(s.cfg.Keyring); err != nil {
			return nil, err
		}
	}
	if dir := s.cfg.Source.Dir(); dir != "" {
		if err := load(dir); err != nil {
			return nil, err
		}
	}
	if ring == nil {
		_, err := seal.Load(s.cfg.DataDir) // says what to do
		return nil, err
	}
	if dir := s.cfg.Source.Dir(); dir != "" && len(s.cfg.Issuing) == 0 {
		data, err := os.ReadFile(filepath.Join(dir, identity.IssuingFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the issuing CA of the bundle: %w", err)
		}
		s.cfg.Issuing = data
	}
	return ring, nil
}

// openAuthority makes what gives out certificates. The engine must be there.
func (s *Server) openAuthority() error {
	if w := s.cfg.Source.Bundle().Warning(); w != "" {
		s.log.Warn("a private key is not private", "warning", w)
	}
	if err := s.sealer.Ring().Save(s.cfg.DataDir); err != nil {
		return fmt.Errorf("keep the seal keys: %w", err)
	}
	var err error
	s.authority, err = identity.New(identity.Config{
		Core: s.engine, Sealer: s.sealer, Source: s.cfg.Source, DataDir: s.cfg.DataDir, Issuing: s.cfg.Issuing,
		Advertise: s.cfg.Advertise, TTL: s.cfg.LeafTTL, Leads: s.replica.IsLeader, Logger: s.log.With("component", "identity"),
	})
	if err != nil {
		return err
	}
	s.checks = append(s.checks, s.checkKeys)
	return nil
}

// enrolServer serves those who ask for a certificate, and nothing else.
func (s *Server) enrolServer() *grpc.Server {
	g := grpc.NewServer(
		grpc.Creds(portmux.CredentialsFor(pki.ALPNEnroll)),
		grpc.ChainUnaryInterceptor(s.rpcs.unary, s.guard.Unary),
		grpc.ChainStreamInterceptor(s.rpcs.stream, s.guard.Stream),
		grpc.MaxRecvMsgSize(enrolMessage),
		grpc.MaxConcurrentStreams(enrolStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: enrolIdle, MaxConnectionAge: enrolAge, MaxConnectionAgeGrace: enrolGrace,
		}),
	)
	operatorsvc.RegisterEnrollmentServer(g, enrollapi.New(s.authority))
	return g
}

// runIdentity starts what the authority does in the background, and serves
// enrolment.
func (s *Server) runIdentity(ctx context.Context) {
	ln := s.mux.ALPN(pki.ALPNEnroll)
	s.wg.Go(func() {
		if err := s.enrol.Serve(ln); err != nil && ctx.Err() == nil {
			s.log.Error("enrolment ended", "err", err)
		}
	})
	s.wg.Go(func() { s.authority.Run(ctx) })
	s.wg.Go(func() {
		identity.FollowDenied(ctx, s.engine, func(uri, reason string) { s.endDenied(ctx, uri, reason) })
	})
}

// endDenied ends what an identity has open here. It may come again, and is told
// then why nothing is served to it.
func (s *Server) endDenied(ctx context.Context, uri, reason string) {
	streams := s.guard.End(uri, reason)
	s.log.Info("an identity was denied", "identity", uri, "streams", streams)
	s.wg.Go(func() {
		wait := time.NewTimer(endConnections)
		defer wait.Stop()
		select {
		case <-wait.C:
			if why, denied := s.deniedIdentity(uri); denied {
				n := s.mux.End(uri)
				s.log.Debug("connections of a denied identity were ended", "identity", uri, "connections", n, "why", why)
			}
		case <-ctx.Done():
		}
	})
}

// deniedIdentity says whether an identity is on the deny-list, and why.
func (s *Server) deniedIdentity(uri string) (reason string, denied bool) {
	row, ok := s.machine.Root().Identity(uri)
	return row.GetReason(), ok && row.GetDenied()
}

// refuseDenied is for the protocols that servers speak among themselves, where
// there is no call that could be refused.
func (s *Server) refuseDenied(id pki.ID) error {
	if why, denied := s.deniedIdentity(id.String()); denied {
		return fmt.Errorf("it is on the deny-list: %s", why)
	}
	return nil
}

// checkKeys notices a server whose seal keys are not those of the others.
func (s *Server) checkKeys() []Check {
	c := Check{Name: "keys", Level: LevelOK, Message: "the cluster's keys can be opened"}
	if others, of := s.otherKeys(); len(others) > 0 {
		// It is the odd one that has to keep out of the way.
		c.Level = LevelWarning
		if 2*len(others) > of {
			c.Level = LevelCritical
		}
		c.Message = fmt.Sprintf("%s and this server have no seal key in common: neither can open what the other has sealed", strings.Join(others, ", "))
		c.Hint = "give all servers of a cluster the file " + seal.FileName + " that `trivet ca init` made for it"
		return []Check{c}
	}
	if err := s.sealer.Problem(); err != nil {
		c.Level, c.Message, c.Hint = LevelWarning, err.Error(), errs.From(err).Hint
	}
	return []Check{c}
}

// otherKeys names those of the other members, or before there are any of the
// first servers, that have no seal key in common with this one. of is how many
// were asked.
func (s *Server) otherKeys() (names []string, of int) {
	ring := s.sealer.Ring()
	for _, info := range s.dir.known() {
		if info.GetId() == s.replica.ID() || len(info.GetSealKeys()) == 0 {
			continue
		}
		of++
		if !slices.ContainsFunc(info.GetSealKeys(), ring.Has) {
			names = append(names, info.GetName())
		}
	}
	slices.Sort(names)
	return names, of
}

// connectionQuota names the peer of a connection and how many it may have
// open. Servers are not bounded here.
func (s *Server) connectionQuota(state tls.ConnectionState) (name string, limit int) {
	id, err := pki.PeerID(state)
	switch {
	case err != nil:
		return strangers, enrolConnections
	case id.Role == pki.RoleServer || s.cfg.Quotas.Connections < 0:
		return id.String(), 0
	}
	return id.String(), s.cfg.Quotas.Connections
}
