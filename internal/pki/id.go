package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// Role says what kind of party holds a certificate. It comes from the
// certificate alone; policy can only narrow what a role may do.
type Role string

// The roles of a cluster.
const (
	// RoleServer is a server of the manager.
	RoleServer Role = "server"
	// RoleNode is a node daemon.
	RoleNode Role = "node"
	// RoleAgent is a traffic agent beside a workload; its name is
	// <namespace>/<kind>/<workload>/<pod uid>.
	RoleAgent Role = "agent"
	// RoleClient is a developer who intercepts.
	RoleClient Role = "client"
	// RoleOperator is a person or a program that administers the cluster.
	RoleOperator Role = "operator"
	// RoleViewer may look but not touch.
	RoleViewer Role = "viewer"
	// RoleDebug may use the debug service of nodes.
	RoleDebug Role = "debug"
)

// Roles returns all roles, in a new slice.
func Roles() []Role {
	return []Role{RoleServer, RoleNode, RoleAgent, RoleClient, RoleOperator, RoleViewer, RoleDebug}
}

// Valid tells whether r is one of the roles.
func (r Role) Valid() bool { return slices.Contains(Roles(), r) }

// serves tells whether holders of r also accept connections, and so need a
// certificate for server authentication.
func (r Role) serves() bool { return r == RoleServer || r == RoleNode }

// Bounds of an identity. Together with scheme, role and slashes they stay far
// below the 2,048 bytes that SPIFFE allows.
const (
	// MaxClusterLen is the longest cluster name, in bytes.
	MaxClusterLen = 63
	// MaxNameLen is the longest name, in bytes; an agent's holds a namespace
	// (63), a kind, a workload (253) and a UID (36).
	MaxNameLen = 512

	maxNameSegments = 8
	spiffePrefix    = "spiffe://"
)

// ID is a verified or wished-for identity. The zero value is invalid. IDs are
// comparable.
type ID struct {
	// Cluster is the trust domain: lower-case DNS labels joined by dots.
	Cluster string
	Role    Role
	// Name is a path segment of letters, digits, '.', '-' and '_'; an agent's
	// may be several segments, joined by '/'.
	Name string
}

// String returns the SPIFFE URI of id. It does not check id.
func (id ID) String() string {
	return spiffePrefix + id.Cluster + "/" + string(id.Role) + "/" + id.Name
}

// URI returns the SPIFFE URI of id. It does not check id.
func (id ID) URI() *url.URL {
	return &url.URL{Scheme: "spiffe", Host: id.Cluster, Path: "/" + string(id.Role) + "/" + id.Name}
}

// Validate tells what is wrong with id, or nil when id.String() can be parsed
// back into id.
func (id ID) Validate() error {
	if err := ValidateCluster(id.Cluster); err != nil {
		return err
	}
	if !id.Role.Valid() {
		return badIdentity("role %q is unknown", string(id.Role)).
			WithHint("use one of: %s", joinRoles(Roles()))
	}
	return validateName(id.Role, id.Name)
}

// ValidateCluster tells what is wrong with a cluster name.
func ValidateCluster(cluster string) error {
	hint := "use 1 to 63 lower-case letters, digits, '-' and '.', such as prod or eu.example.com"
	if cluster == "" || len(cluster) > MaxClusterLen {
		return badIdentity("cluster name is %d bytes long", len(cluster)).WithHint("%s", hint)
	}
	for label := range strings.SplitSeq(cluster, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return badIdentity("cluster name %q has an invalid label %q", cluster, label).WithHint("%s", hint)
		}
		for i := range len(label) {
			if c := label[i]; !isLower(c) && !isDigit(c) && c != '-' {
				return badIdentity("cluster name %q has the character %q", cluster, c).WithHint("%s", hint)
			}
		}
	}
	return nil
}

func validateName(role Role, name string) error {
	hint := "use letters, digits, '.', '-' and '_', at most 512 bytes"
	if name == "" || len(name) > MaxNameLen {
		return badIdentity("name is %d bytes long", len(name)).WithHint("%s", hint)
	}
	segments := strings.Split(name, "/")
	if len(segments) > 1 && role != RoleAgent {
		return badIdentity("name %q of role %s has more than one path segment", name, role).WithHint("%s", hint)
	}
	if len(segments) > maxNameSegments {
		return badIdentity("name has %d path segments, more than %d", len(segments), maxNameSegments)
	}
	for _, s := range segments {
		if s == "" || s == "." || s == ".." {
			return badIdentity("name %q has the path segment %q", name, s).WithHint("%s", hint)
		}
		for i := range len(s) {
			c := s[i]
			if !isLower(c) && !isUpper(c) && !isDigit(c) && c != '.' && c != '-' && c != '_' {
				return badIdentity("name %q has the character %q", name, c).WithHint("%s", hint)
			}
		}
	}
	return nil
}

// ParseID parses a SPIFFE URI. It is strict: no port, user, query, fragment or
// percent encoding, and for every uri it accepts, String of the result equals
// uri.
func ParseID(uri string) (ID, error) {
	// Checked before anything is split, so that a hostile value costs nothing.
	if len(uri) > len(spiffePrefix)+MaxClusterLen+MaxNameLen+32 {
		return ID{}, badIdentity("identity is %d bytes long", len(uri))
	}
	rest, ok := strings.CutPrefix(uri, spiffePrefix)
	if !ok {
		return ID{}, badIdentity("identity %q is not a spiffe URI", uri)
	}
	cluster, rest, _ := strings.Cut(rest, "/")
	role, name, _ := strings.Cut(rest, "/")
	id := ID{Cluster: cluster, Role: Role(role), Name: name}
	if err := id.Validate(); err != nil {
		return ID{}, badIdentity("identity %q: %w", uri, err).WithHint("%s", errs.From(err).Hint)
	}
	return id, nil
}

// CertID returns the identity in cert: its one URI name. It does not verify
// cert.
func CertID(cert *x509.Certificate) (ID, error) {
	if len(cert.URIs) != 1 {
		return ID{}, badIdentity("certificate has %d URI names, want exactly one", len(cert.URIs))
	}
	// URL.String gives back percent encoding, ports and queries as they were,
	// so that ParseID sees and refuses them.
	return ParseID(cert.URIs[0].String())
}

// PeerID returns the identity of the other end of a connection whose handshake
// a configuration of this package has verified.
func PeerID(cs tls.ConnectionState) (ID, error) {
	if !cs.HandshakeComplete || len(cs.PeerCertificates) == 0 {
		return ID{}, noCertificate()
	}
	return CertID(cs.PeerCertificates[0])
}

func badIdentity(format string, args ...any) *errs.Error {
	return errs.New(codes.Unauthenticated, ReasonNoIdentity, format, args...).
		WithHint("an identity looks like spiffe://CLUSTER/ROLE/NAME; use a certificate that the trivet CA issued")
}

func noCertificate() *errs.Error {
	return badIdentity("peer presented no certificate").
		WithHint("dial with a bundle of this cluster")
}

func joinRoles(roles []Role) string {
	s := make([]string, len(roles))
	for i, r := range roles {
		s[i] = string(r)
	}
	return strings.Join(s, ", ")
}

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
