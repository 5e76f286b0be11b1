package main

import (
	"os"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/yaml"

	"trivet/cluster"
	"trivet/cluster/limits"
	"trivet/internal/config"
	"trivet/internal/enroll"
	"trivet/internal/errs"
	"trivet/internal/pki"
)

// serverEnv is the prefix of the variables that overlay a server's file.
const serverEnv = "TRIVET_SERVER_"

// serverFile is the configuration file of `trivet server run`.
type serverFile struct {
	Name           string          `json:"name" doc:"name of the server, as in its certificate"`
	DataDir        string          `json:"dataDir" doc:"directory of everything that must survive a restart"`
	Bundle         string          `json:"bundle" doc:"directory with ca.crt, tls.crt and tls.key"`
	Listen         string          `json:"listen" doc:"address of the main port here"`
	Advertise      string          `json:"advertise" doc:"address of the main port as other servers dial it, host:port"`
	Admin          string          `json:"admin" doc:"address of health and metrics; empty turns them off"`
	Peers          []serverPeer    `json:"peers" doc:"the first servers of the cluster, this one included; the same list on each"`
	Join           []string        `json:"join" doc:"addresses of servers of a cluster that exists already, for a server that joins it; instead of peers"`
	Token          string          `json:"token" doc:"token for the first certificate if bundle has none; @FILE reads it from a file"`
	RaftMultiplier int             `json:"raftMultiplier" doc:"scales all Raft timeouts, 1 to 10"`
	Snapshot       serverSnapshot  `json:"snapshot" doc:"when the log is compacted"`
	DrainTimeout   config.Duration `json:"drainTimeout" doc:"bound of the wait for streams at shutdown"`
	Limits         limits.Config   `json:"limits" doc:"what one identity may use of this server; 0: the default, -1: no bound"`
	Compat         cluster.Compat  `json:"compat" doc:"a listener for published peers, which have no certificates; off unless it has an address"`
	Log            serverLog       `json:"log"`
}

// serverSnapshot tunes the log; what is left out has the replica's default.
type serverSnapshot struct {
	Threshold    uint64          `json:"threshold" doc:"entries after which a snapshot is taken"`
	Interval     config.Duration `json:"interval" doc:"how often the threshold is looked at"`
	TrailingLogs uint64          `json:"trailingLogs" doc:"entries kept behind a snapshot for slow followers"`
}

type serverLog struct {
	Level  string `json:"level" doc:"error, warn, info, debug or trace"`
	Format string `json:"format" doc:"json or text"`
}

type serverPeer struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

// SetDefaults fills in what a file may leave out.
func (f *serverFile) SetDefaults() {
	f.Listen, f.Admin = cluster.DefaultListen, cluster.DefaultAdmin
	f.RaftMultiplier = 1
	f.Limits = limits.Config{}.WithDefaults()
	f.Log = serverLog{Level: "info", Format: "json"}
}

// loadServerFile reads a server's file with the environment laid over it.
func loadServerFile(path string) (*serverFile, error) {
	if path == "" {
		return nil, errs.New(codes.InvalidArgument, "USAGE", "--config is not set").WithHint("give the server's YAML file")
	}
	f, err := config.Load[serverFile](path)
	if err != nil {
		return nil, err
	}
	return f, config.Overlay(f, serverEnv, os.LookupEnv)
}

// config makes and checks the server's configuration. path is for errors.
func (f *serverFile) config(path string) (cluster.Config, error) {
	src, err := pki.OpenSource(f.Bundle)
	if err != nil {
		return cluster.Config{}, err
	}
	cfg := cluster.Config{
		Name: f.Name, DataDir: f.DataDir, Listen: f.Listen, Advertise: f.Advertise, Admin: f.Admin, Source: src,
		Multiplier: f.RaftMultiplier, SnapshotThreshold: f.Snapshot.Threshold, SnapshotInterval: f.Snapshot.Interval.Duration(),
		TrailingLogs: f.Snapshot.TrailingLogs, DrainTimeout: f.DrainTimeout.Duration(), Version: Version(), Describe: f.describe,
		Quotas: f.Limits, Compat: f.Compat,
	}
	cfg.Join = f.Join
	for _, p := range f.Peers {
		cfg.Peers = append(cfg.Peers, cluster.Peer{Name: p.Name, Address: p.Address})
	}
	if err := cfg.Validate(); err != nil {
		return cfg, errs.New(codes.InvalidArgument, config.ReasonInvalid, "%s: %w", path, err).
			WithHint("correct these keys of the server's configuration")
	}
	return cfg, nil
}

// enrolment is the request for the first certificate.
func (f *serverFile) enrolment() enroll.Request {
	servers := f.Join
	for _, p := range f.Peers {
		if p.Name != f.Name {
			servers = append(servers, p.Address)
		}
	}
	return enroll.Request{Token: f.Token, Role: pki.RoleServer, Name: f.Name, Servers: servers}
}

// describe is the configuration for a support bundle, without the token.
func (f *serverFile) describe() []byte {
	bare := *f
	bare.Token = ""
	out, err := yaml.Marshal(&bare)
	if err != nil {
		return []byte(err.Error())
	}
	return out
}
