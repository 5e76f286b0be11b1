package bench

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"trivet/internal/config"
)

// Names of the baselines in results. With TLS etcd does what trivet does; the
// plaintext one is what most published figures of etcd measure.
const (
	etcdTLS   = "etcd"
	etcdPlain = "etcd plaintext"
)

// etcdOptions say which etcd.
type etcdOptions struct {
	exe, dir string
	// tls: with client certificates, between the servers too.
	tls bool
	// apart puts every server into a network namespace of its own.
	apart bool
}

// etcdFile is the configuration file of one server; all else has etcd's
// defaults, the syncing of the log to disk among them.
type etcdFile struct {
	Name      string   `json:"name"`
	DataDir   string   `json:"data-dir"`
	Client    string   `json:"listen-client-urls"`
	Advertise string   `json:"advertise-client-urls"`
	Peer      string   `json:"listen-peer-urls"`
	PeerAdv   string   `json:"initial-advertise-peer-urls"`
	Cluster   string   `json:"initial-cluster"`
	State     string   `json:"initial-cluster-state"`
	Logger    string   `json:"logger"`
	Outputs   []string `json:"log-outputs"`
	// Two sections with one form; nil: plaintext.
	ClientTLS *etcdTLSFile `json:"client-transport-security,omitempty"`
	PeerTLS   *etcdTLSFile `json:"peer-transport-security,omitempty"`
}

type etcdTLSFile struct {
	Cert string `json:"cert-file"`
	Key  string `json:"key-file"`
	CA   string `json:"trusted-ca-file"`
	Auth bool   `json:"client-cert-auth"`
}

// findEtcd returns the path of etcd and its version, or why it cannot be
// measured.
func findEtcd(ctx context.Context) (exe, version string, err error) {
	exe, err = exec.LookPath("etcd")
	if err != nil {
		return "", "", fmt.Errorf("etcd is not installed: %w", err)
	}
	out, err := exec.CommandContext(ctx, exe, "--version").Output()
	if err != nil {
		return "", "", fmt.Errorf("ask etcd for its version: %w", err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return exe, strings.TrimPrefix(first, "etcd Version: "), nil
}

// newEtcd writes the files of three servers; no process runs yet.
func newEtcd(o etcdOptions) (*store, error) {
	site, err := newSite(o.dir, o.apart)
	if err != nil {
		return nil, err
	}
	st := &store{dialect: etcdDialect{}, name: etcdPlain, what: "plaintext everywhere, log synced to disk", site: site, creds: insecure.NewCredentials()}
	if o.tls {
		st.name, st.what = etcdTLS, "mutual TLS everywhere, log synced to disk"
	}
	if err := configureEtcd(st, o); err != nil {
		return nil, errors.Join(err, site.close())
	}
	return st, nil
}

func configureEtcd(st *store, o etcdOptions) error {
	addrs, err := st.site.listen(2)
	if err != nil {
		return err
	}
	scheme := "http://"
	var certs *etcdCerts
	if o.tls {
		scheme = "https://"
		if certs, err = newEtcdCerts(o.dir, st.site.hosts); err != nil {
			return err
		}
		st.creds = credentials.NewTLS(certs.client)
	}
	var list []string
	for i, a := range addrs {
		st.addresses = append(st.addresses, a[0])
		list = append(list, hostName(i)+"="+scheme+a[1])
	}
	for i, a := range addrs {
		f := etcdFile{
			Name: hostName(i), DataDir: filepath.Join(o.dir, hostName(i)), Client: scheme + a[0], Advertise: scheme + a[0],
			Peer: scheme + a[1], PeerAdv: scheme + a[1], Cluster: strings.Join(list, ","), State: "new", Logger: "zap", Outputs: []string{"stderr"},
		}
		if o.tls {
			section := etcdTLSFile{Cert: certs.cert[i], Key: certs.key[i], CA: certs.ca, Auth: true}
			f.ClientTLS, f.PeerTLS = &section, &section
		}
		path := filepath.Join(o.dir, hostName(i)+".yaml")
		if err := config.Save(path, &f, 0o600); err != nil {
			return err
		}
		st.procs = append(st.procs, st.site.proc(i, "etcd", o.exe, []string{"--config-file", path}, nil))
	}
	return nil
}

type etcdDialect struct{}

func (etcdDialect) put(key string, value []byte) call {
	return call{method: "/etcdserverpb.KV/Put", body: encodePut(key, value)}
}

func (etcdDialect) get(key string, linearizable bool) call {
	return call{method: "/etcdserverpb.KV/Range", body: encodeRange(key, !linearizable)}
}

func (etcdDialect) leads(ctx context.Context, cc *grpc.ClientConn) (bool, error) {
	var in, out []byte
	if err := cc.Invoke(ctx, "/etcdserverpb.Maintenance/Status", &in, &out); err != nil {
		return false, err
	}
	return decodeLeads(out)
}

// elected looks for the record of Raft's change of state. Its times have
// milliseconds.
func (etcdDialect) elected(log string) (time.Time, bool) {
	return lastRecord(log, "became leader at term", "ts")
}

// clientTLS is the configuration of etcd's clients.
func clientTLS(cert tls.Certificate, roots *x509.CertPool) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}
}
