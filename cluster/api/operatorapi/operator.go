// Package operatorapi serves trivet.operator.v1.Operator: what operators and
// the command line see and change.
//
// Clients see and remove only what is theirs; operators and viewers see
// everything, without secrets.
package operatorapi

import (
	"context"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/cluster/archive"
	"trivet/cluster/attach"
	"trivet/cluster/authz"
	"trivet/cluster/engine"
	"trivet/fsm"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// Core is what the handlers need of the engine.
type Core interface {
	Propose(ctx context.Context, identity string, req *engine.Request, cmd *commandv1.Command) (*commandv1.Result, error)
	Read(ctx context.Context, level engine.Level, seen uint64) (*fsm.Root, error)
	Root() *fsm.Root
	Watch(after uint64) *fsm.Cursor
	WatchFrom(root *fsm.Root) *fsm.Cursor
}

// Cluster is what the handlers need to know of the servers.
type Cluster interface {
	// Servers lists the voters as this server sees them.
	Servers(ctx context.Context) ([]*operatorv1.Server, error)
	// Self names this server.
	Self() string
	// Version is the build's version.
	Version() string
	// Ready says whether this server is in contact with a leader.
	Ready() bool
	Term() uint64
	// LeaderName is empty when no leader is known.
	LeaderName() string
	// NameOf turns a server id into its name.
	NameOf(id string) string
	// Transfer hands leadership to a server by name or id (empty: any) and
	// returns the names of the old and the new leader.
	Transfer(ctx context.Context, to string) (from, leader string, err error)
	// AddPeer takes a server into the configuration, RemovePeer takes one out, by
	// name or id. Any server may be asked.
	AddPeer(ctx context.Context, req *operatorv1.AddPeerRequest) (*operatorv1.Peer, error)
	RemovePeer(ctx context.Context, who string, force bool) (*operatorv1.Peer, error)
	// RaftInfo is what this server knows of its own Raft.
	RaftInfo() *operatorv1.RaftInfoResponse
	// SaveSnapshot writes an archive of the state as a linearizable read sees it.
	SaveSnapshot(ctx context.Context, w io.Writer) (archive.Meta, error)
	// RestoreSnapshot replaces the state by that of an archive, which is checked
	// as a whole first. identity is who asked for it.
	RestoreSnapshot(ctx context.Context, identity string, in io.Reader) (*operatorv1.RestoreSnapshotResponse, error)
	// Health is what this server knows about its own health.
	Health() []*operatorv1.HealthCheck
	// Collect emits the files of this server's part of a support bundle.
	Collect(ctx context.Context, emit func(name string, data []byte) error) error
}

// Creator makes intercepts; the manager service does.
type Creator interface {
	Create(ctx context.Context, req *manager.CreateInterceptRequest, force bool, lease time.Duration) (*manager.InterceptInfo, error)
}

// Config of a Service.
type Config struct {
	Core    Core
	Cluster Cluster
	Creator Creator
	View    *attach.View
	// Authority gives out certificates.
	Authority Authority
	// Stopping is closed when the server shuts down; watches end then.
	Stopping <-chan struct{}
}

// Service is the operator service.
type Service struct {
	operatorsvc.UnimplementedOperatorServer
	cfg Config
}

// New makes the service.
func New(cfg Config) *Service { return &Service{cfg: cfg} }

func (s *Service) read(ctx context.Context) (*fsm.Root, error) {
	level, seen, err := engine.ReadOptions(ctx)
	if err != nil {
		return nil, err
	}
	return s.cfg.Core.Read(ctx, level, seen)
}

func (s *Service) propose(ctx context.Context, cmd *commandv1.Command) (*commandv1.Result, error) {
	req, err := engine.RequestFromContext(ctx)
	if err != nil {
		return nil, err
	}
	return s.cfg.Core.Propose(ctx, authz.Caller(ctx).String(), req, cmd)
}

func all(id pki.ID) bool { return id.Role == pki.RoleOperator || id.Role == pki.RoleViewer }

// Status never needs a leader: it is what one looks at when there is none.
func (s *Service) Status(ctx context.Context, _ *operatorv1.StatusRequest) (*operatorv1.StatusResponse, error) {
	root := s.cfg.Core.Root()
	servers, err := s.cfg.Cluster.Servers(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.StatusResponse{
		ClusterId: root.Meta().GetClusterId(), Server: s.cfg.Cluster.Self(), Version: s.cfg.Cluster.Version(),
		Leader: s.cfg.Cluster.LeaderName(), Term: s.cfg.Cluster.Term(), Revision: root.Revision(), Servers: servers,
		Ready: s.cfg.Cluster.Ready(),
	}
	for row := range root.Sessions {
		if row.GetKind() == commandv1.SessionKind_SESSION_KIND_AGENT {
			out.Agents++
		} else {
			out.Clients++
		}
	}
	for range root.Intercepts {
		out.Intercepts++
	}
	for range root.Nodes {
		out.Nodes++
	}
	for range root.Workloads {
		out.Workloads++
	}
	return out, nil
}

func stamp(unixNano int64) *timestamppb.Timestamp {
	if unixNano == 0 {
		return nil
	}
	return timestamppb.New(time.Unix(0, unixNano))
}
