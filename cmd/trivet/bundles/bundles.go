// Package bundles makes the certificates of a whole cluster: the CA and one
// bundle per server, node, client and operator, each in a folder of its own.
package bundles

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"trivet/internal/pki"
)

// Folders below Options.Dir.
const (
	CADir       = "ca"
	ServersDir  = "servers"
	NodesDir    = "nodes"
	ClientsDir  = "clients"
	OperatorDir = "operators"
)

// Options says what to make.
type Options struct {
	// Dir receives everything; existing bundles are never overwritten.
	Dir string
	// Cluster is the name in all identities.
	Cluster string
	// Servers, Nodes, Clients and Operators are names.
	Servers, Nodes, Clients, Operators []string
	// TTL is how long the leaves are valid.
	TTL time.Duration
	// Keep leaves names alone that have a bundle already; otherwise such a name
	// is an error.
	Keep bool
}

// Made is one bundle that was written.
type Made struct {
	ID       pki.ID
	Dir      string
	NotAfter time.Time
}

// Init makes the CA and the bundles. A CA that exists in Dir for the same
// cluster is used again, so that names can be added later. The bundles of
// servers also get the seal keys and the issuing CA, its key sealed; those that
// exist and lack them too.
func Init(o Options, now time.Time) ([]Made, error) {
	ca, err := openCA(o, now)
	if err != nil {
		return nil, err
	}
	keys, err := openKeys(filepath.Join(o.Dir, CADir), ca)
	if err != nil {
		return nil, err
	}
	if err := keys.addTo(filepath.Join(o.Dir, ServersDir)); err != nil {
		return nil, err
	}
	var made []Made
	for _, group := range []struct {
		role  pki.Role
		dir   string
		names []string
	}{
		{pki.RoleServer, ServersDir, o.Servers},
		{pki.RoleNode, NodesDir, o.Nodes},
		{pki.RoleClient, ClientsDir, o.Clients},
		{pki.RoleOperator, OperatorDir, o.Operators},
	} {
		for _, name := range group.names {
			id := pki.ID{Cluster: o.Cluster, Role: group.role, Name: name}
			dir := filepath.Join(o.Dir, group.dir, name)
			if _, err := os.Stat(filepath.Join(dir, pki.ChainFile)); o.Keep && err == nil {
				continue
			}
			b, err := ca.Issue(pki.Template{ID: id, TTL: o.TTL}, now)
			if err != nil {
				return made, fmt.Errorf("issue %s: %w", id, err)
			}
			if err := b.Write(dir); err != nil {
				return made, err
			}
			if group.role == pki.RoleServer {
				if err := keys.write(dir); err != nil {
					return made, err
				}
			}
			made = append(made, Made{ID: id, Dir: dir, NotAfter: b.Leaf().NotAfter})
		}
	}
	return made, nil
}

func openCA(o Options, now time.Time) (*pki.CA, error) {
	dir := filepath.Join(o.Dir, CADir)
	if _, err := os.Stat(dir); err != nil {
		return pki.InitCA(dir, o.Cluster, now)
	}
	ca, err := pki.LoadCA(dir)
	if err != nil {
		return nil, err
	}
	if ca.Cluster != o.Cluster {
		return nil, fmt.Errorf("the CA in %s is that of cluster %q, not of %q; choose another --dir", dir, ca.Cluster, o.Cluster)
	}
	return ca, nil
}
