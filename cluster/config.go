package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"trivet/actors"
	"trivet/cluster/limits"
	"trivet/cluster/names"
	"trivet/internal/loglevel"
	"trivet/internal/pki"
	"trivet/internal/seal"
)

// Defaults of the listeners.
const (
	DefaultListen = ":7400"
	DefaultAdmin  = "127.0.0.1:7401"
)

// Peer is one of the first servers of a cluster.
type Peer struct {
	// Name as in its certificate.
	Name string
	// Address of its main port, host:port.
	Address string
}

// Config of a Server.
type Config struct {
	// Name is this server's name; it must be the one in its certificate.
	Name string
	// DataDir holds everything that must survive a restart.
	DataDir string
	// Listen and Advertise are the main port's address here and as the other
	// servers dial it.
	Listen, Advertise string
	// Listener, when set, is used instead of Listen.
	Listener net.Listener
	// Admin is the address of health and metrics; empty turns them off.
	Admin string
	// Peers lists the first servers, this one included. They must all be given
	// the same list.
	Peers []Peer
	// Join lists addresses of members of a cluster that exists already, which
	// take this server in. Peers is empty then.
	Join []string
	// Source holds the server's certificate.
	Source *pki.Source
	// Keyring holds the seal keys of the cluster; nil: that in DataDir, else that
	// beside the certificate.
	Keyring *seal.Keyring
	// Issuing is the sealed issuing CA that the first leader brings into the
	// state, in the form of identity.IssuingFile; empty: that beside the
	// certificate, if there is one.
	Issuing []byte
	// LeafTTL is how long new certificates of a role live; nil: pki.DefaultTTL.
	LeafTTL func(pki.Role) time.Duration
	// Multiplier scales all Raft timeouts, 1 to 10.
	Multiplier int
	// SnapshotThreshold, SnapshotInterval and TrailingLogs tune the log; zero
	// means the replica's defaults.
	SnapshotThreshold uint64
	SnapshotInterval  time.Duration
	TrailingLogs      uint64
	// CompareEvery is how often the state's digest is compared with the other
	// servers'; 0 means 3 s.
	CompareEvery time.Duration
	// NoSync skips fsync; for benches only.
	NoSync bool
	// NoDeathWatch leaves failover to Raft's timeouts; for comparisons.
	NoDeathWatch bool
	// DrainTimeout bounds the wait for streams at shutdown; 0 means 5 s.
	DrainTimeout time.Duration
	// Compat serves peers without certificates.
	Compat Compat
	// Limits are the leader's time limits; zero means the defaults.
	Limits actors.Limits
	// Quotas bound connections, streams and calls; zero means the defaults.
	Quotas limits.Config
	// Version is the build's version, for status.
	Version string
	Logger  *slog.Logger
	// Lookups answers questions about names; nil: the system's resolver.
	Lookups names.Lookups
	// Level is that of the Logger; the server changes it as operators ask for. Nil:
	// it stays what it is.
	Level *loglevel.Var
	// RecentLog returns the newest log records for a support bundle; nil: there
	// are none.
	RecentLog func() (lines []byte, gone uint64)
	// Describe returns the configuration for a support bundle, without secrets;
	// nil: it is left out.
	Describe func() []byte
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Limits == (actors.Limits{}) {
		c.Limits = actors.DefaultLimits()
	}
	c.Quotas = c.Quotas.WithDefaults()
	return c
}

// Validate reports everything that is wrong.
func (c Config) Validate() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Name == "" {
		bad("name is not set")
	}
	if c.DataDir == "" {
		bad("dataDir is not set")
	}
	if _, _, err := net.SplitHostPort(c.Advertise); err != nil {
		bad("advertise %q is not host:port: %w", c.Advertise, err)
	}
	if c.Source == nil {
		bad("no certificate")
	} else if id := c.Source.Bundle().ID; id.Role != pki.RoleServer {
		bad("the certificate is for %s, not for a server", id)
	} else if id.Name != c.Name {
		bad("the certificate is for server %q, the configuration names %q", id.Name, c.Name)
	}
	problems = append(problems, c.Compat.validate()...)
	switch n := len(c.Peers); {
	case n == 0 && len(c.Join) > 0:
	case n > 0 && len(c.Join) > 0:
		bad("peers and join are both set: the first servers have peers, later ones join")
	case n == 0:
		bad("peers and join are empty; list all first servers, this one included, or the addresses of servers to join")
	case n > 5 || n%2 == 0:
		bad("%d peers: a manager has 1, 3 or 5 servers", n)
	}
	self, seen := false, make(map[string]bool)
	for _, p := range c.Peers {
		if seen[p.Name] || seen[p.Address] {
			bad("peer %s %s is listed twice", p.Name, p.Address)
		}
		seen[p.Name], seen[p.Address] = true, true
		if p.Name == c.Name {
			self = true
			if p.Address != c.Advertise {
				bad("peers gives this server the address %s, advertise says %s", p.Address, c.Advertise)
			}
		}
	}
	if !self && len(c.Peers) > 0 {
		bad("peers does not list this server (%s)", c.Name)
	}
	return errors.Join(problems...)
}
