package devenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"trivet/client"
	"trivet/cmd/trivet/bundles"
	"trivet/internal/config"
	"trivet/internal/spawn"
	"trivet/node/steal"
)

const (
	// ClusterName is the name in the identities of an environment.
	ClusterName = "dev"
	// SampleNamespace and SampleName name the sample workload, SamplePort its
	// port.
	SampleNamespace = "default"
	SampleName      = "sample"
	SamplePort      = "http"
	samplePort      = 8080
	leafTTL         = 365 * 24 * time.Hour
	readyPoll       = 20 * time.Millisecond
)

// Options of an environment.
type Options struct {
	// Dir holds everything; made if missing. An environment that was stopped
	// can be started again in the same directory.
	Dir string
	// Servers is 1, 3 or 5; Nodes is 0 or 1.
	Servers, Nodes int
	// Exe is the trivet binary; empty means this one.
	Exe string
	// Progress is told of each step, may be nil.
	Progress func(format string, args ...any)
}

// Env is a running environment. Its fields do not change after Start.
type Env struct {
	Dir string
	// Servers are the server processes, server-1 first; Addresses their main
	// ports.
	Servers   []*Proc
	Addresses []string
	// Node and Sample are nil without a node.
	Node, Sample *Proc
	// ContextFile has the contexts "dev" (the user's client identity) and
	// "dev-operator".
	ContextFile string
	// StealBackend is what the node uses, StealReason why it is not
	// sk_lookup.
	StealBackend, StealReason string
	// URLs reach the sample as a visitor does, IPv4 first.
	URLs []string
	// TrafficPIDFile holds the process id of the node's traffic process.
	TrafficPIDFile string

	exe   string
	spawn *spawn.Spawner
	net   *network
	admin []string
}

// Start starts an environment and returns once all of it answers. On error
// nothing is left running.
func Start(ctx context.Context, o Options) (*Env, error) {
	e, err := prepare(o)
	if err != nil {
		return nil, err
	}
	say := o.Progress
	if say == nil {
		say = func(string, ...any) {}
	}
	if err := e.start(ctx, o, say); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func prepare(o Options) (*Env, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("directory of the environment: %w", err)
	}
	exe := o.Exe
	if exe == "" {
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the environment's directory: %w", err)
	}
	return &Env{Dir: dir, exe: exe, spawn: spawn.New(), ContextFile: filepath.Join(dir, "context.yaml")}, nil
}

func (e *Env) start(ctx context.Context, o Options, say func(string, ...any)) error {
	if err := e.identities(o); err != nil {
		return err
	}
	if err := e.writeServers(o.Servers); err != nil {
		return err
	}
	for _, p := range e.Servers {
		if err := p.Start(); err != nil {
			return err
		}
	}
	if err := e.waitReady(ctx); err != nil {
		return err
	}
	say("%d servers are up, a leader is elected", len(e.Servers))
	if o.Nodes == 0 {
		return nil
	}
	if err := e.startSample(ctx); err != nil {
		return err
	}
	say("the sample answers on %s", strings.Join(e.URLs, " and "))
	if err := e.startNode(ctx); err != nil {
		return err
	}
	say("the node is connected (steal backend: %s)", e.StealBackend)
	return nil
}

func (e *Env) proc(name string, args ...string) *Proc {
	return &Proc{Name: name, LogFile: filepath.Join(e.Dir, name+".log"), env: e, exe: e.exe, args: args}
}

// UserName is the name of the client identity that Start makes.
func UserName() string {
	u, err := user.Current()
	if err != nil {
		return "developer"
	}
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return -1
	}, u.Username)
	if name == "" {
		return "developer"
	}
	return name
}

func (e *Env) identities(o Options) error {
	want := bundles.Options{Dir: e.Dir, Cluster: ClusterName, TTL: leafTTL}
	add := func(list *[]string, dir, name string) {
		if _, err := os.Stat(filepath.Join(e.Dir, dir, name)); err != nil {
			*list = append(*list, name)
		}
	}
	for i := range o.Servers {
		add(&want.Servers, bundles.ServersDir, serverName(i))
	}
	if o.Nodes > 0 {
		add(&want.Nodes, bundles.NodesDir, nodeName)
	}
	add(&want.Clients, bundles.ClientsDir, UserName())
	add(&want.Operators, bundles.OperatorDir, UserName())
	_, err := bundles.Init(want, time.Now())
	return err
}

const nodeName = "node-1"

func serverName(i int) string { return "server-" + strconv.Itoa(i+1) }

// freePorts asks the system for ports that nobody uses right now.
func freePorts(n int) ([]string, error) {
	var out []string
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("choose a port: %w", err)
		}
		// Open until all are chosen, so that none is chosen twice.
		defer ln.Close()
		out = append(out, ln.Addr().String())
	}
	return out, nil
}

// serverConfig and nodeConfig are what this package needs of the two files.
type serverConfig struct {
	Name      string       `json:"name"`
	DataDir   string       `json:"dataDir"`
	Bundle    string       `json:"bundle"`
	Listen    string       `json:"listen"`
	Advertise string       `json:"advertise"`
	Admin     string       `json:"admin"`
	Peers     []serverPeer `json:"peers"`
}

type serverPeer struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

type nodeConfig struct {
	Name          string   `json:"name"`
	Servers       []string `json:"servers"`
	Bundle        string   `json:"bundle"`
	StateDir      string   `json:"stateDir"`
	WorkloadsFile string   `json:"workloadsFile"`
	Admin         string   `json:"admin"`
	Steal         string   `json:"steal"`
}

// writeServers writes the servers' configurations. One that exists keeps its
// ports: its Raft state names them.
func (e *Env) writeServers(n int) error {
	ports, err := freePorts(2 * n)
	if err != nil {
		return err
	}
	files := make([]*serverConfig, n)
	for i := range n {
		path := filepath.Join(e.Dir, serverName(i)+".yaml")
		if old, err := config.Load[serverConfig](path); err == nil {
			files[i] = old
		} else {
			files[i] = &serverConfig{
				Name: serverName(i), DataDir: filepath.Join(e.Dir, serverName(i)), Bundle: filepath.Join(e.Dir, bundles.ServersDir, serverName(i)),
				Listen: ports[2*i], Advertise: ports[2*i], Admin: ports[2*i+1],
			}
		}
		e.Addresses = append(e.Addresses, files[i].Advertise)
		e.admin = append(e.admin, files[i].Admin)
	}
	for i, f := range files {
		f.Peers = nil
		for j := range n {
			f.Peers = append(f.Peers, serverPeer{Name: serverName(j), Address: e.Addresses[j]})
		}
		path := filepath.Join(e.Dir, serverName(i)+".yaml")
		if err := config.Save(path, f, 0o600); err != nil {
			return err
		}
		e.Servers = append(e.Servers, e.proc(serverName(i), "server", "run", "--config", path))
	}
	return e.writeContext()
}

func (e *Env) writeContext() error {
	file := client.NewFile(e.ContextFile)
	for _, c := range []struct{ name, dir string }{{"dev", bundles.ClientsDir}, {"dev-operator", bundles.OperatorDir}} {
		file.Put(client.Context{
			Name: c.name, Servers: e.Addresses, Bundle: filepath.Join(e.Dir, c.dir, UserName()), Namespace: SampleNamespace,
		})
	}
	return file.Save()
}

// waitReady waits until every running server is in contact with a leader.
func (e *Env) waitReady(ctx context.Context) error {
	for i, p := range e.Servers {
		if err := e.poll(ctx, p, "http://"+e.admin[i]+"/readyz"); err != nil {
			return fmt.Errorf("%s did not become ready: %w", p.Name, err)
		}
	}
	return nil
}

// WaitReady waits until one server, by its place in Servers, is in contact with
// a leader.
func (e *Env) WaitReady(ctx context.Context, i int) error {
	return e.poll(ctx, e.Servers[i], "http://"+e.admin[i]+"/readyz")
}

// poll asks url until it answers with OK, the process ends or ctx does.
func (e *Env) poll(ctx context.Context, p *Proc, url string) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	hc := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		resp, err := hc.Get(url)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.Done():
			return fmt.Errorf("it ended; the end of %s:\n%s", p.LogFile, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%w; the end of %s:\n%s", ctx.Err(), p.LogFile, p.tail())
		case <-tick.C:
		}
	}
}

// startSample starts the sample workload, in its own network if possible, and
// writes the workload file.
func (e *Env) startSample(ctx context.Context) error {
	if err := steal.Probe(); err != nil {
		e.StealReason = err.Error()
	} else if e.net, err = newNetwork(e.Dir); err != nil {
		return err
	}
	pod := map[string]any{"name": "sample-0"}
	port := map[string]any{"name": SamplePort, "port": samplePort}
	args := []string{"sample"}
	if e.net != nil {
		e.StealBackend = steal.NameSkLookup
		pod["netns"], pod["ip"] = e.net.path, e.net.pod4.String()
		args = append(args, "--netns", e.net.path, "--listen", ":"+strconv.Itoa(samplePort))
		for _, ip := range []netip.Addr{e.net.pod4, e.net.pod6} {
			e.URLs = append(e.URLs, "http://"+netip.AddrPortFrom(ip, samplePort).String()+"/")
		}
	} else {
		e.StealBackend = steal.NameProxy
		ports, err := freePorts(2)
		if err != nil {
			return err
		}
		pod["hostNetwork"], pod["ip"] = true, "127.0.0.1"
		port["listen"], port["app"] = ports[0], ports[1]
		args = append(args, "--listen", ports[1])
		e.URLs = []string{"http://" + ports[0] + "/"}
	}
	pod["containers"] = []any{map[string]any{
		"name": "app", "env": map[string]string{"SAMPLE_GREETING": "hello from the sample"}, "ports": []any{port},
	}}
	file := map[string]any{"workloads": []any{map[string]any{
		"namespace": SampleNamespace, "name": SampleName, "kind": "Deployment", "pods": []any{pod},
	}}}
	if err := config.Save(filepath.Join(e.Dir, "workloads.yaml"), file, 0o600); err != nil {
		return err
	}
	e.Sample = e.proc("sample", args...)
	if err := e.Sample.Start(); err != nil {
		return err
	}
	if e.net == nil {
		return e.poll(ctx, e.Sample, "http://"+port["app"].(string)+"/")
	}
	if err := e.poll(ctx, e.Sample, e.URLs[0]); err != nil {
		return err
	}
	if _, err := http.Get(e.URLs[1]); err != nil {
		e.URLs = e.URLs[:1] // no IPv6 here
	}
	return nil
}

func (e *Env) startNode(ctx context.Context) error {
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	state := filepath.Join(e.Dir, nodeName)
	path := filepath.Join(e.Dir, nodeName+".yaml")
	if err := config.Save(path, &nodeConfig{
		Name: nodeName, Servers: e.Addresses, Bundle: filepath.Join(e.Dir, bundles.NodesDir, nodeName), StateDir: state,
		WorkloadsFile: filepath.Join(e.Dir, "workloads.yaml"), Admin: ports[0], Steal: e.StealBackend,
	}, 0o600); err != nil {
		return err
	}
	e.TrafficPIDFile = filepath.Join(state, "traffic.pid")
	e.Node = e.proc(nodeName, "node", "run", "--config", path)
	if err := e.Node.Start(); err != nil {
		return err
	}
	return e.poll(ctx, e.Node, "http://"+ports[0]+"/readyz")
}

// TrafficPID is the process id of the node's traffic process.
func (e *Env) TrafficPID() (int, error) {
	raw, err := os.ReadFile(e.TrafficPIDFile)
	if err != nil {
		return 0, fmt.Errorf("find the traffic process: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0, fmt.Errorf("find the traffic process: %s: %w", e.TrafficPIDFile, err)
	}
	return pid, nil
}

// Close stops everything, the node first.
func (e *Env) Close() error {
	var errs []error
	stop := func(p *Proc) {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	stop(e.Node)
	stop(e.Sample)
	// The servers together: the last of three could not hand leadership over.
	done := make(chan error, len(e.Servers))
	for _, p := range e.Servers {
		go func() { done <- p.Stop() }()
	}
	for range e.Servers {
		errs = append(errs, <-done)
	}
	if e.net != nil {
		errs = append(errs, e.net.Close())
	}
	e.spawn.Close()
	return errors.Join(errs...)
}

// Procs lists all processes.
func (e *Env) Procs() []*Proc {
	out := slices.Clone(e.Servers)
	for _, p := range []*Proc{e.Node, e.Sample} {
		if p != nil {
			out = append(out, p)
		}
	}
	return out
}
