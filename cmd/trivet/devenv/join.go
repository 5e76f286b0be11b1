package devenv

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"trivet/cmd/trivet/bundles"
	"trivet/internal/config"
)

// joinConfig is the file of a server that joins.
type joinConfig struct {
	Name      string   `json:"name"`
	DataDir   string   `json:"dataDir"`
	Bundle    string   `json:"bundle"`
	Listen    string   `json:"listen"`
	Advertise string   `json:"advertise"`
	Admin     string   `json:"admin"`
	Join      []string `json:"join"`
	Token     string   `json:"token,omitempty"`
}

// AddServer adds a server that joins the cluster once it is started, as the
// last of Servers and Addresses. Without a token its bundle is made here. No
// other method may run meanwhile; Operators made before do not know it.
func (e *Env) AddServer(name, token string) (*Proc, error) {
	if token == "" {
		if _, err := bundles.Init(bundles.Options{
			Dir: e.Dir, Cluster: ClusterName, TTL: leafTTL, Servers: []string{name},
		}, time.Now()); err != nil {
			return nil, err
		}
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(e.Dir, name+".yaml")
	if err := config.Save(path, &joinConfig{
		Name: name, DataDir: e.DataDir(name), Bundle: filepath.Join(e.Dir, bundles.ServersDir, name), Listen: ports[0],
		Advertise: ports[0], Admin: ports[1], Join: append([]string{}, e.Addresses...), Token: token,
	}, 0o600); err != nil {
		return nil, err
	}
	p := e.proc(name, "server", "run", "--config", path)
	e.Servers, e.Addresses, e.admin = append(e.Servers, p), append(e.Addresses, ports[0]), append(e.admin, ports[1])
	return p, nil
}

// DropServer stops the last server and forgets it. No other method may run
// meanwhile.
func (e *Env) DropServer() error {
	last := len(e.Servers) - 1
	if last < 0 {
		return errors.New("there is no server")
	}
	err := e.Servers[last].Stop()
	e.Servers, e.Addresses, e.admin = e.Servers[:last], e.Addresses[:last], e.admin[:last]
	return err
}

// DataDir is where the server of that name keeps its data.
func (e *Env) DataDir(name string) string { return filepath.Join(e.Dir, name) }

// WaitAllReady waits until every server is in contact with a leader.
func (e *Env) WaitAllReady(ctx context.Context) error { return e.waitReady(ctx) }
