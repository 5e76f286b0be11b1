package bench

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"trivet/cluster/engine"
	"trivet/cmd/trivet/bundles"
	"trivet/internal/config"
	"trivet/internal/pki"
	"trivet/internal/portmux"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

const (
	clusterName = "bench"
	benchName   = "bench"
	leafTTL     = 7 * 24 * time.Hour
	// keyLogStore is the key of a server's file that chooses how the log is
	// kept.
	keyLogStore = "logStore"
)

// trivetFile is what this package needs of a server's configuration.
type trivetFile struct {
	Name      string       `json:"name"`
	DataDir   string       `json:"dataDir"`
	Bundle    string       `json:"bundle"`
	Listen    string       `json:"listen"`
	Advertise string       `json:"advertise"`
	Admin     string       `json:"admin"`
	Peers     []trivetPeer `json:"peers"`
	LogStore  string       `json:"logStore,omitempty"`
	Limits    trivetLimits `json:"limits"`
}

// trivetLimits takes the bounds away that keep one identity from using a
// server up: here one identity stands for many.
type trivetLimits struct {
	Connections int `json:"connectionsPerIdentity"`
	Calls       int `json:"callsPerSecond"`
	Watches     int `json:"watchesPerIdentity"`
}

const unbounded = -1

type trivetPeer struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

// trivetOptions say which trivet.
type trivetOptions struct {
	exe string
	dir string
	// name of the store in results; empty: made of logStore.
	name string
	// logStore is "bolt", "wal", or empty for the default.
	logStore string
	// apart puts every server into a network namespace of its own.
	apart bool
	// faults lets the servers be disturbed through faultFile, if they were
	// built for that.
	faults bool
}

// trivet is a store of three trivet servers.
type trivet struct {
	store
	operator *pki.Source
	pkiDir   string
}

// newTrivet writes the files of three servers; no process runs yet.
func newTrivet(o trivetOptions) (*trivet, error) {
	name := o.name
	if name == "" {
		name = strings.TrimSpace("trivet " + o.logStore)
	}
	t := &trivet{pkiDir: filepath.Join(o.dir, "pki")}
	want := bundles.Options{
		Dir: t.pkiDir, Cluster: clusterName, Operators: []string{benchName}, Clients: []string{benchName}, Nodes: []string{benchName}, TTL: leafTTL,
	}
	for i := range servers {
		want.Servers = append(want.Servers, hostName(i))
	}
	if err := os.MkdirAll(t.pkiDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of %s: %w", name, err)
	}
	if _, err := bundles.Init(want, time.Now()); err != nil {
		return nil, err
	}
	var err error
	if t.operator, err = pki.OpenSource(filepath.Join(t.pkiDir, bundles.OperatorDir, benchName)); err != nil {
		return nil, err
	}
	site, err := newSite(o.dir, o.apart)
	if err != nil {
		return nil, err
	}
	t.store = store{
		dialect: trivetDialect{}, name: name, what: "mutual TLS everywhere, log synced to disk", site: site,
		creds: portmux.ClientCredentials(pki.ClientConfig(t.operator, pki.Policy{ALPN: []string{"h2"}}), nil),
	}
	if err := t.configure(o); err != nil {
		return nil, errors.Join(err, site.close())
	}
	return t, nil
}

func (t *trivet) configure(o trivetOptions) error {
	addrs, err := t.site.listen(2)
	if err != nil {
		return err
	}
	var peers []trivetPeer
	for i, a := range addrs {
		t.addresses = append(t.addresses, a[0])
		peers = append(peers, trivetPeer{Name: hostName(i), Address: a[0]})
	}
	for i, a := range addrs {
		_, port, err := net.SplitHostPort(a[1])
		if err != nil {
			return err
		}
		path := filepath.Join(o.dir, hostName(i)+".yaml")
		f := trivetFile{
			Name: hostName(i), DataDir: filepath.Join(o.dir, hostName(i)), Bundle: filepath.Join(t.pkiDir, bundles.ServersDir, hostName(i)),
			Listen: a[0], Advertise: a[0], Admin: net.JoinHostPort("127.0.0.1", port), Peers: peers, LogStore: o.logStore,
			Limits: trivetLimits{Connections: unbounded, Calls: unbounded, Watches: unbounded},
		}
		if err := config.Save(path, &f, 0o600); err != nil {
			return err
		}
		var env []string
		if o.faults {
			env = append(env, "TRIVET_FAULTS="+t.faultFile(i))
		}
		t.procs = append(t.procs, t.site.proc(i, "trivet", o.exe, []string{"server", "run", "--config", path}, env))
	}
	return nil
}

// faultFile disturbs a server from inside (internal/fault).
func (t *trivet) faultFile(i int) string {
	return filepath.Join(t.site.dir, hostName(i)+".faults")
}

// client connects to a server as what the bundle says, with gRPC's own codec.
func (t *trivet) client(i int, folder string) (*grpc.ClientConn, error) {
	src, err := pki.OpenSource(filepath.Join(t.pkiDir, folder, benchName))
	if err != nil {
		return nil, err
	}
	cc, err := grpc.NewClient("passthrough:///"+t.addresses[i],
		grpc.WithTransportCredentials(portmux.ClientCredentials(pki.ClientConfig(src, pki.Policy{ALPN: []string{"h2"}}), nil)),
		grpc.WithContextDialer(t.site.dial), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", t.procs[i].name, err)
	}
	return cc, nil
}

// operators connects to every server as an operator.
func (t *trivet) operators() ([]operatorsvc.OperatorClient, func(), error) {
	var conns []*grpc.ClientConn
	end := func() {
		for _, cc := range conns {
			_ = cc.Close() // the first close always works
		}
	}
	var out []operatorsvc.OperatorClient
	for i := range t.procs {
		cc, err := t.client(i, bundles.OperatorDir)
		if err != nil {
			end()
			return nil, nil, err
		}
		conns = append(conns, cc)
		out = append(out, operatorsvc.NewOperatorClient(cc))
	}
	return out, end, nil
}

// many is above all that a bench puts into the state.
const many = 1 << 30

// unlimit takes the bounds of the state away: here one identity stands for many.
func (t *trivet) unlimit(ctx context.Context) error {
	ops, end, err := t.operators()
	if err != nil {
		return err
	}
	defer end()
	_, err = ops[0].SetLimits(ctx, &operatorv1.SetLimitsRequest{Limits: &commandv1.Limits{
		SessionsPerIdentity: many, InterceptsPerIdentity: many, InterceptsPerNamespace: many, WorkloadsPerNode: many, AgentsPerNode: many,
	}}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("take the limits away: %w", err)
	}
	return nil
}

type trivetDialect struct{}

const operatorService = "/trivet.operator.v1.Operator/"

// methodPutStream is the streaming form of put, with the same messages.
const methodPutStream = operatorService + "PutConfigStream"

func (trivetDialect) put(key string, value []byte) call {
	return call{method: operatorService + "PutConfig", body: encodePut(key, value)}
}

func (trivetDialect) get(key string, linearizable bool) call {
	level := "stale"
	if linearizable {
		level = "linearizable"
	}
	return call{method: operatorService + "GetConfig", body: encodeGet(key), md: metadata.Pairs(engine.MetaConsistency, level)}
}

func (trivetDialect) leads(ctx context.Context, cc *grpc.ClientConn) (bool, error) {
	var in, out []byte
	if err := cc.Invoke(ctx, operatorService+"Status", &in, &out, grpc.ForceCodecV2(passthrough{})); err != nil {
		return false, err
	}
	st := new(operatorv1.StatusResponse)
	if err := proto.Unmarshal(out, st); err != nil {
		return false, fmt.Errorf("decode a status: %w", err)
	}
	return st.GetServer() != "" && st.GetServer() == st.GetLeader(), nil
}

// elected looks for Raft's own record, which has the moment.
func (trivetDialect) elected(log string) (time.Time, bool) {
	return lastRecord(log, "entering leader state", "time")
}

// lastRecord finds the last record of a log of JSON objects whose text contains
// words, and the time in one of its fields.
func lastRecord(log, words, field string) (at time.Time, ok bool) {
	for line := range strings.Lines(log) {
		if !strings.Contains(line, words) {
			continue
		}
		var rec map[string]any
		if json.Unmarshal([]byte(line), &rec) != nil {
			continue
		}
		text, _ := rec[field].(string)
		if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
			at, ok = t, true
		}
	}
	return at, ok
}

// offersLogStores says whether the binary lets a server's file choose the log
// store.
func offersLogStores(ctx context.Context, exe string) (bool, error) {
	out, err := exec.CommandContext(ctx, exe, "config", "schema", "--kind", "server").Output()
	if err != nil {
		return false, fmt.Errorf("ask %s for the keys of a server's file: %w", exe, err)
	}
	return strings.Contains(string(out), `"`+keyLogStore+`"`), nil
}

// isDisturbable says whether the binary was built with the tag that lets tests
// disturb it from inside.
func isDisturbable(exe string) (bool, error) {
	info, err := buildinfo.ReadFile(exe)
	if err != nil {
		return false, fmt.Errorf("see how %s was built: %w", exe, err)
	}
	for _, s := range info.Settings {
		if s.Key == "-tags" && slices.Contains(strings.Split(s.Value, ","), "chaos") {
			return true, nil
		}
	}
	return false, nil
}
