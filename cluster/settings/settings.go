// Package settings reads the keys of the cluster's configuration that mean
// something to trivet itself. An operator sets them like any other key; every
// server follows them.
package settings

import (
	"net/netip"
	"strings"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/yaml"

	"trivet/internal/errs"
)

// Keys that decide what peers of the published contract are told.
const (
	// KeyClientConfig is the text that GetClientConfig answers: YAML for the
	// published client, which trivet does not read.
	KeyClientConfig = "telepresence/client.yaml"
	// KeyClusterInfo describes the network to clients; see [Network].
	KeyClusterInfo = "telepresence/cluster.yaml"
	// KeyExcludedEnvironment lists environment variables that never leave an
	// agent's pod, one per line.
	KeyExcludedEnvironment = "telepresence/excluded-environment"
)

// Network is the value of KeyClusterInfo.
type Network struct {
	// ServiceSubnets and PodSubnets are what clients route to the cluster. Without
	// PodSubnets they are taken from the addresses of the pods.
	ServiceSubnets []netip.Prefix `json:"serviceSubnets,omitempty"`
	PodSubnets     []netip.Prefix `json:"podSubnets,omitempty"`
	// AlsoProxy are further subnets to route to the cluster, NeverProxy those to
	// leave alone; AllowConflicting may overlap with the client's own.
	AlsoProxy        []netip.Prefix `json:"alsoProxy,omitempty"`
	NeverProxy       []netip.Prefix `json:"neverProxy,omitempty"`
	AllowConflicting []netip.Prefix `json:"allowConflicting,omitempty"`
	// ClusterDomain is the DNS domain of the cluster, "cluster.local" by default.
	ClusterDomain string `json:"clusterDomain,omitempty"`
	// IncludeSuffixes and ExcludeSuffixes say which other names clients resolve in
	// the cluster.
	IncludeSuffixes []string `json:"includeSuffixes,omitempty"`
	ExcludeSuffixes []string `json:"excludeSuffixes,omitempty"`
	// DNSAddress is that of the cluster's DNS server; the oldest clients ask for
	// it.
	DNSAddress netip.Addr `json:"dnsAddress,omitzero"`
}

const defaultDomain = "cluster.local"

// ParseNetwork reads the value of KeyClusterInfo.
func ParseNetwork(text []byte) (Network, error) {
	var n Network
	if err := yaml.UnmarshalStrict(text, &n); err != nil {
		return Network{}, errs.New(codes.InvalidArgument, "BAD_CONFIG", "%s: %w", KeyClusterInfo, err).
			WithHint("the value is YAML; docs/peers.md lists its keys")
	}
	for _, list := range [][]netip.Prefix{n.ServiceSubnets, n.PodSubnets, n.AlsoProxy, n.NeverProxy, n.AllowConflicting} {
		for _, p := range list {
			if !p.IsValid() || p != p.Masked() {
				return Network{}, errs.New(codes.InvalidArgument, "BAD_CONFIG", "%s: %s is no subnet: it has bits behind its length", KeyClusterInfo, p).
					WithHint("did you mean %s?", p.Masked())
			}
		}
	}
	return n, nil
}

// Domain is the cluster's with a dot at its end.
func (n Network) Domain() string {
	d := strings.Trim(n.ClusterDomain, ".")
	if d == "" {
		d = defaultDomain
	}
	return d + "."
}

// Check refuses a value that a key of this package cannot have. Other keys may
// have any.
func Check(key string, value []byte) error {
	switch {
	case key == KeyClusterInfo:
		_, err := ParseNetwork(value)
		return err
	case IsLogLevel(key):
		_, err := ParseLogLevel(value)
		return err
	}
	return nil
}

// Excluded are the environment variables of KeyExcludedEnvironment's value.
func Excluded(value []byte) []string {
	var out []string
	for line := range strings.Lines(string(value)) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}
