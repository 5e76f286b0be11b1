package managerapi

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/cluster/attach"
	"trivet/cluster/authz"
	"trivet/cluster/engine"
	"trivet/cluster/exchange"
	"trivet/cluster/names"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	commandv1 "trivet/proto/trivet/command/v1"
)

// contractVersion is the version that Version answers. Published peers compare
// it with the releases of the product whose contract this is: some refuse
// managers below 2.21.0.
const contractVersion = "v2.30.0"

// Core is what the handlers need of the engine.
type Core interface {
	Propose(ctx context.Context, identity string, req *engine.Request, cmd *commandv1.Command) (*commandv1.Result, error)
	Read(ctx context.Context, level engine.Level, seen uint64) (*fsm.Root, error)
	Root() *fsm.Root
	WatchFrom(root *fsm.Root) *fsm.Cursor
	Touch(ctx context.Context, session string, lastActivity time.Time) error
}

// Config of a Service.
type Config struct {
	Core     Core
	Registry *attach.Registry
	Exchange *exchange.Exchange
	// Environment opens the environment of an intercept, for its owner.
	Environment func(*commandv1.InterceptRow) (map[string]string, error)
	// Names asks agents, Resolver answers what they do not.
	Names    Agents
	Resolver *names.Resolver
	// Address is where peers reach this server.
	Address string
	// Stopping is closed when the server begins to shut down: streams that end
	// after that were not ended by their peers.
	Stopping <-chan struct{}
	// SendingAway says whether this server is ending streams although it goes on
	// itself; nil: never.
	SendingAway func() bool
	Logger      *slog.Logger
}

// Service is the manager's gRPC service.
type Service struct {
	managersvc.UnimplementedManagerServer
	cfg Config

	reportedIn, reportedOut atomic.Uint64
	// lookups has an entry for each question about a name that is under way.
	lookups        chan struct{}
	lookupsRefused atomic.Uint64
}

// New makes the service.
func New(cfg Config) *Service {
	return &Service{cfg: cfg, lookups: make(chan struct{}, maxLookups)}
}

// arrivalTimeout is how long a call waits for an agent to come up.
const arrivalTimeout = 30 * time.Second

// session returns the session's row after checking that it exists, is of the
// wanted kind (0: any) and belongs to the caller. A session is called unknown
// only after a linearizable look: an error here makes peers give up.
func (s *Service) session(ctx context.Context, info *manager.SessionInfo, kind commandv1.SessionKind) (*commandv1.SessionRow, error) {
	id := info.GetSessionId()
	if id == "" {
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "session id must not be empty").
			WithHint("send the session that ArriveAsClient or ArriveAsAgent returned")
	}
	row, err := s.lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	if row == nil || (kind != 0 && row.GetKind() != kind) {
		return nil, unknownSession(id)
	}
	if err := owns(ctx, row); err != nil {
		return nil, err
	}
	return row, nil
}

func (s *Service) lookup(ctx context.Context, id string) (*commandv1.SessionRow, error) {
	if row, ok := s.cfg.Core.Root().Session(id); ok {
		return row, nil
	}
	root, err := s.cfg.Core.Read(ctx, engine.Linearizable, 0)
	if err != nil {
		return nil, err
	}
	row, _ := root.Session(id)
	return row, nil
}

func unknownSession(id string) error {
	return errs.New(codes.NotFound, "SESSION_NOT_FOUND", "session %q not found", id).
		WithHint("the session has expired or departed; arrive again")
}

// owns: a session answers only to the identity that made it.
func owns(ctx context.Context, row *commandv1.SessionRow) error {
	if authz.Confined(ctx) != nil {
		if !ownsConfined(ctx, row) {
			// As if it was not there: the peer arrives anew.
			return unknownSession(row.GetId())
		}
		return nil
	}
	if me := authz.Caller(ctx).String(); row.GetIdentity() != me {
		return errs.New(codes.PermissionDenied, "SESSION_NOT_YOURS", "session %q does not belong to %s", row.GetId(), me)
	}
	return nil
}

// propose runs a command for the caller, under the caller's own number if it
// sent one.
func (s *Service) propose(ctx context.Context, cmd *commandv1.Command) (*commandv1.Result, error) {
	return s.proposeAs(ctx, authz.Caller(ctx).String(), cmd)
}

// proposeFor is propose for a session that is the caller's.
func (s *Service) proposeFor(ctx context.Context, row *commandv1.SessionRow, cmd *commandv1.Command) (*commandv1.Result, error) {
	return s.proposeAs(ctx, actor(ctx, row), cmd)
}

func (s *Service) proposeAs(ctx context.Context, identity string, cmd *commandv1.Command) (*commandv1.Result, error) {
	req, err := engine.RequestFromContext(ctx)
	if err != nil {
		return nil, err
	}
	return s.cfg.Core.Propose(ctx, identity, req, cmd)
}

func isReader(id pki.ID) bool { return id.Role == pki.RoleOperator || id.Role == pki.RoleViewer }

// endedByPeer says whether a stream that just ended did so at the other side.
func (s *Service) endedByPeer() bool {
	select {
	case <-s.cfg.Stopping:
		return false
	default:
		return s.cfg.SendingAway == nil || !s.cfg.SendingAway()
	}
}
