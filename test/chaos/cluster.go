package chaos

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"

	"trivet/cmd/trivet/bundles"
	"trivet/internal/config"
	"trivet/internal/pki"
	"trivet/internal/spawn"
	"trivet/internal/tunfwd"
)

const (
	clusterName  = "chaos"
	operatorName = "chaos"
	clientHost   = "clients"
	mainPort     = ":7400"
	servers      = 3
	// diskSize is that of a server's disk: room for a log that is compacted
	// often, quickly filled, and more than what servers call nearly full, so that
	// it is no reason to hand leadership over.
	diskSize = 192 << 20
	leafTTL  = 24 * time.Hour
	// A snapshot is taken, and the log behind it dropped, often enough for a
	// short partition to end in an installation of a snapshot.
	snapshotThreshold = 256
	snapshotInterval  = 2 * time.Second
	trailingLogs      = 64
)

// Cluster is three servers and the clients' place. Its methods may be called
// from several goroutines; the faults change it one at a time.
type Cluster struct {
	Dir     string
	Servers []*Server
	Net     *tunfwd.Network

	clients *tunfwd.Host
	access  *access
	spawn   *spawn.Spawner
}

// serverFile is what this package needs of a server's configuration.
type serverFile struct {
	Name      string         `json:"name"`
	DataDir   string         `json:"dataDir"`
	Bundle    string         `json:"bundle"`
	Listen    string         `json:"listen"`
	Advertise string         `json:"advertise"`
	Admin     string         `json:"admin"`
	Peers     []serverPeer   `json:"peers"`
	Snapshot  serverSnapshot `json:"snapshot"`
	Log       serverLog      `json:"log"`
}

type serverLog struct {
	Level string `json:"level"`
}

type serverSnapshot struct {
	Threshold    uint64          `json:"threshold"`
	Interval     config.Duration `json:"interval"`
	TrailingLogs uint64          `json:"trailingLogs"`
}

type serverPeer struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

// newCluster prepares a cluster in an empty directory; no process runs yet.
func newCluster(o Options) (*Cluster, error) {
	reapDisks()
	c := &Cluster{Dir: o.Dir, Net: tunfwd.New(tunfwd.Options{Seed: o.Seed}), spawn: spawn.New()}
	if err := c.prepare(o); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) prepare(o Options) error {
	want := bundles.Options{Dir: filepath.Join(c.Dir, "pki"), Cluster: clusterName, Operators: []string{operatorName}, TTL: leafTTL}
	if err := os.MkdirAll(want.Dir, 0o700); err != nil {
		return err
	}
	for i := range servers {
		name := "server-" + strconv.Itoa(i+1)
		host, err := c.Net.Add(name)
		if err != nil {
			return err
		}
		s := &Server{
			Index: i, Name: name, Host: host, Address: host.Addr.String() + mainPort, Data: filepath.Join(c.Dir, name),
			Log: filepath.Join(c.Dir, name+".log"), Faults: filepath.Join(c.Dir, name+".faults"), spawn: c.spawn, exe: o.Exe,
		}
		s.env = []string{"TRIVET_FAULTS=" + s.Faults, "TRIVET_PLANT=" + o.Plant}
		if err := mountDisk(s.Data, diskSize); err != nil {
			return err
		}
		c.Servers = append(c.Servers, s)
		want.Servers = append(want.Servers, name)
	}
	var err error
	if c.clients, err = c.Net.Add(clientHost); err != nil {
		return err
	}
	if _, err := bundles.Init(want, time.Now()); err != nil {
		return err
	}
	for _, s := range c.Servers {
		if err := c.configure(s, want.Dir); err != nil {
			return err
		}
	}
	return c.openAccess(want.Dir)
}

func (c *Cluster) configure(s *Server, pkiDir string) error {
	f := serverFile{
		Name: s.Name, DataDir: s.dataDir(), Bundle: filepath.Join(pkiDir, bundles.ServersDir, s.Name),
		Listen: mainPort, Advertise: s.Address, Admin: "127.0.0.1:7401",
		Snapshot: serverSnapshot{Threshold: snapshotThreshold, Interval: config.Duration(snapshotInterval), TrailingLogs: trailingLogs},
		Log:      serverLog{Level: "info"},
	}
	for _, p := range c.Servers {
		f.Peers = append(f.Peers, serverPeer{Name: p.Name, Address: p.Address})
	}
	path := filepath.Join(c.Dir, s.Name+".yaml")
	s.args = []string{"server", "run", "--config", path}
	return config.Save(path, &f, 0o600)
}

func (c *Cluster) openAccess(pkiDir string) error {
	ca, err := pki.LoadCA(filepath.Join(pkiDir, bundles.CADir))
	if err != nil {
		return err
	}
	operator, err := pki.OpenSource(filepath.Join(pkiDir, bundles.OperatorDir, operatorName))
	if err != nil {
		return err
	}
	c.access = &access{servers: c.Servers, from: c.clients.NS, ca: ca, operator: operator, conns: make(map[[2]int]*grpc.ClientConn)}
	return nil
}

// start starts all servers and waits until they are a whole.
func (c *Cluster) start(ctx context.Context) error {
	for _, s := range c.Servers {
		if err := s.Start(); err != nil {
			return err
		}
	}
	_, err := c.awaitWhole(ctx, nil)
	return err
}

// others are the servers but one.
func (c *Cluster) others(i int) []*Server {
	return []*Server{c.Servers[(i+1)%servers], c.Servers[(i+2)%servers]}
}

// Close ends all processes and removes everything but the directory.
func (c *Cluster) Close() error {
	var errs []error
	if c.access != nil {
		errs = append(errs, c.access.close())
	}
	c.Net.Heal()
	// Together: the last of three could not hand leadership over.
	done := make(chan error, len(c.Servers))
	for _, s := range c.Servers {
		go func() { done <- s.Stop() }()
	}
	for range c.Servers {
		errs = append(errs, <-done)
	}
	c.spawn.Close()
	errs = append(errs, c.Net.Close())
	for _, s := range c.Servers {
		errs = append(errs, unmountDisk(s.Data))
	}
	return errors.Join(errs...)
}
