package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"trivet/cluster/api/enrollapi"
	"trivet/cluster/api/managerapi"
	"trivet/cluster/api/nodeapi"
	"trivet/cluster/api/operatorapi"
	"trivet/cluster/api/peerapi"
	"trivet/cluster/attach"
	"trivet/cluster/authz"
	"trivet/cluster/deathwatch"
	"trivet/cluster/engine"
	"trivet/cluster/exchange"
	"trivet/cluster/identity"
	"trivet/cluster/integrity"
	"trivet/cluster/limits"
	"trivet/cluster/membership"
	"trivet/cluster/names"
	"trivet/cluster/peers"
	"trivet/cluster/replica"
	"trivet/fsm"
	"trivet/internal/pki"
	"trivet/internal/portmux"
	"trivet/internal/rt"
	"trivet/proto/telepresence/managersvc"
	"trivet/proto/trivet/node/v1/nodesvc"
	"trivet/proto/trivet/operator/v1/operatorsvc"
	"trivet/proto/trivet/peer/v1/peersvc"
	"trivet/tunnel"
)

// Keepalive bounds: peers may ping as often as every half second, and a peer
// that does not answer for 5 s is gone.
const (
	minPing     = 500 * time.Millisecond
	pingIdle    = 10 * time.Second
	pingTimeout = 5 * time.Second
	maxMessage  = 4 << 20
	maxStreams  = 10_000
	// unreadyAfter is how long a server stays ready without hearing a leader.
	unreadyAfter = 5 * time.Second
)

// Server is one server of the manager. Make it with Start.
type Server struct {
	cfg     Config
	log     *slog.Logger
	bootID  string
	started time.Time

	machine   *fsm.Machine
	replica   *replica.Replica
	pool      *peers.Pool
	dir       *directory
	engine    *engine.Engine
	registry  *attach.Registry
	view      *attach.View
	exchange  *exchange.Exchange
	follower  *peers.Follower
	watch     *deathwatch.Watch
	actors    *rt.System
	guard     *authz.Guard
	sealer    *identity.Sealer
	authority *identity.Authority
	limiter   *limits.Limiter
	rpcs      *rpcMetrics
	mux       *portmux.Mux
	names     *names.Broker
	front     *front
	compat    *compatListener // nil: there is none
	enrol     *grpc.Server
	manager   *managerapi.Service
	admin     *admin

	standing   *standing
	membership *membership.Manager
	monitor    *integrity.Monitor
	steering   steering
	// restored tells lead that the state was replaced.
	restored chan struct{}

	hasState atomic.Bool
	// checks add to Checks; set before the server runs.
	checks   []func() []Check
	stopping chan struct{}
	// escalations tells lead that the actors cannot go on.
	escalations chan escalation
	stopOnce    sync.Once
	unwatch     func()
	cancel      context.CancelFunc
	wg          sync.WaitGroup
	muxErr      chan error
	watchConns  net.Listener
}

// Start starts a server. It returns once the ports are open and Raft runs;
// whether there is a leader is for Ready to tell.
func Start(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("server configuration: %w", err)
	}
	ln := cfg.Listener
	if ln == nil {
		var err error
		if ln, err = net.Listen("tcp", cfg.Listen); err != nil {
			return nil, fmt.Errorf("open the main port: %w", err)
		}
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, bootID: uuid.NewString(), started: time.Now(),
		machine: fsm.New(fsm.Options{}), registry: attach.NewRegistry(), view: attach.NewView(),
		stopping: make(chan struct{}), escalations: make(chan escalation, 1), muxErr: make(chan error, 1),
		standing: newStanding(), restored: make(chan struct{}, 1),
	}
	if err := s.start(ln); err != nil {
		return nil, err
	}
	return s, nil
}

// start opens everything; what it opened before an error it closes, ln too.
func (s *Server) start(ln net.Listener) error {
	serverOnly := []pki.Role{pki.RoleServer}
	ring, err := s.openKeys()
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	s.sealer = identity.NewSealer(ring, s.machine.Root, s.log)
	s.mux = portmux.New(ln, pki.ServerConfig(s.cfg.Source, pki.Policy{
		ALPN: []string{"h2", peers.ALPNRaft, peers.ALPNWatch, pki.ALPNEnroll}, Roles: pki.Roles(),
		RolesFor: map[string][]pki.Role{peers.ALPNRaft: serverOnly, peers.ALPNWatch: serverOnly},
		NamesFor: map[string]func(pki.ID) error{peers.ALPNRaft: s.refuseDenied, peers.ALPNWatch: s.refuseDenied},
	}), portmux.Options{OnReject: s.rejected, MaxConns: unbounded(s.cfg.Quotas.MaxConnections), Identify: s.connectionQuota})
	dial := pki.ClientConfig(s.cfg.Source, pki.Policy{ALPN: []string{"h2"}, Roles: serverOnly})

	h2 := s.mux.ALPN("h2")
	s.watchConns = s.mux.ALPN(peers.ALPNWatch)
	if err := removeIncoming(s.cfg.DataDir); err != nil {
		return errors.Join(err, s.mux.Close())
	}
	s.replica, err = replica.Open(replica.Config{
		DataDir: s.cfg.DataDir, Advertise: s.cfg.Advertise, Multiplier: s.cfg.Multiplier, Machine: s.machine,
		Stream:  advertised{peers.NewStreamLayer(s.mux.ALPN(peers.ALPNRaft), dial, peers.LostAfter*time.Duration(max(s.cfg.Multiplier, 1))), s.cfg.Advertise, s.standing},
		AskTerm: s.askTerm, Cluster: s.cfg.Source.Bundle().ID.Cluster,
		Logger: s.log, SnapshotThreshold: s.cfg.SnapshotThreshold, SnapshotInterval: s.cfg.SnapshotInterval,
		TrailingLogs: s.cfg.TrailingLogs, NoSync: s.cfg.NoSync,
	})
	if err != nil {
		return errors.Join(err, s.mux.Close())
	}
	s.hasState.Store(s.replica.HasState())
	if s.replica.HasState() || s.replica.Fresh() {
		s.standing.clear()
	}
	s.pool = peers.NewPool(dial)
	s.dir = newDirectory(s.replica.ID(), s.pool)
	s.engine = engine.New(engine.Config{Replica: gate{s.replica, s.machine, func() bool { return s.monitor.Diverged() }}, Peers: s.pool, Machine: s.machine, BootID: s.bootID, Secrets: s.sealer, Members: s.dir.members, Logger: s.log})
	s.exchange = exchange.New(exchange.Config{
		Self: s.replica.ID(), Registry: s.registry, View: s.view, Peers: exchange.WirePeers{Directory: s.dir}, Logger: s.log,
		Stopping: s.stopping,
	})
	s.follower = peers.NewFollower(s.pool, s.view, s.log)
	s.membership = membership.New(s.replica, memberServers{s}, s.log)
	s.monitor = integrity.New(integrity.Config{
		Self: s.replica.ID(), History: s.machine, Peers: comparer{s}, Leads: s.replica.IsLeader,
		StepDown: func() error { return s.replica.TransferLeadership("", "") }, Heal: s.heal, Logger: s.log,
		Every: s.cfg.CompareEvery,
	})
	s.checks = append(s.checks, s.raftChecks)
	s.watch = deathwatch.New(deathwatch.Config{
		Self: s.replica.ID(), Raft: s.replica, Logger: s.log, Tell: s.tell, MayLead: s.mayLead,
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return peers.DialWatch(ctx, address, dial)
		},
	})
	s.actors = rt.NewSystem(rt.Options{Name: s.cfg.Name, Logger: s.log, OnEscalate: func(child string, reason error) {
		s.escalate(s.replica.LeaderTerm(), fmt.Errorf("actors under %s: %w", child, reason))
	}})
	if err = s.openAuthority(); err == nil {
		s.services()
		err = s.listenCompat()
	}
	if err == nil {
		s.admin, err = newAdmin(s, s.cfg.Admin)
	}
	if err != nil {
		s.engine.Close()
		ctx, cancel := context.WithTimeout(context.Background(), stopActors)
		defer cancel()
		return errors.Join(err, s.replica.Close(), s.pool.Close(), s.mux.Close(), s.actors.Shutdown(ctx))
	}
	s.run(h2)
	return nil
}

// advertised gives Raft the address that peers dial as its own.
type advertised struct {
	*peers.StreamLayer
	address  string
	standing *standing
}

// Accept turns connections away until it is certain that this server has
// forgotten nothing.
func (a advertised) Accept() (net.Conn, error) {
	for {
		conn, err := a.StreamLayer.Accept()
		if err != nil || a.standing.isClear() {
			return conn, err
		}
		conn.Close()
	}
}

func (a advertised) Addr() net.Addr { return address(a.address) }

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

func (s *Server) services() {
	s.guard = &authz.Guard{Denied: s.deniedIdentity, Logger: s.log}
	s.limiter = limits.New(s.cfg.Quotas)
	s.rpcs = newRPCMetrics()
	s.names = names.NewBroker()
	s.manager = managerapi.New(managerapi.Config{
		Core: s.engine, Registry: s.registry, Exchange: s.exchange, Stopping: s.stopping, Logger: s.log,
		Environment: s.sealer.InterceptEnvironment, Address: s.cfg.Advertise,
		SendingAway: s.isSendingAway,
		Names:       agentNames{s.names, s}, Resolver: names.NewResolver(s.cfg.Lookups),
	})
	operators := operatorapi.New(operatorapi.Config{
		Core: s.engine, Cluster: (*clusterView)(s), Creator: s.manager, View: s.view, Stopping: s.stopping, Authority: s.authority,
	})
	nodes := nodeapi.New(nodeapi.Config{Core: s.engine, Registry: s.registry, Stopping: s.stopping, Logger: s.log})
	others := peerapi.New(peerapi.Config{
		Engine: s.engine, Registry: s.registry, Exchange: s.exchange, Info: s.info, Hello: s.helloFrom,
		Voting: voting{s}, Members: members{s}, States: states{s},
		Transfer: s.transferHere, Stopping: s.stopping, AskAgent: s.names.Ask,
	})
	enrolment := enrollapi.New(s.authority)
	s.front = newFront(func() *grpc.Server {
		g := s.newGRPC()
		managersvc.RegisterManagerServer(g, s.manager)
		operatorsvc.RegisterOperatorServer(g, operators)
		nodesvc.RegisterNodeControlServer(g, nodes)
		peersvc.RegisterPeerServer(g, others)
		operatorsvc.RegisterEnrollmentServer(g, enrolment)
		healthpb.RegisterHealthServer(g, health.NewServer())
		return g
	})
	s.enrol = s.enrolServer()
}

// newGRPC makes a gRPC server of the main port, without services.
func (s *Server) newGRPC() *grpc.Server {
	return grpc.NewServer(
		grpc.Creds(portmux.Credentials()),
		grpc.ChainUnaryInterceptor(s.rpcs.unary, s.showRevision, s.guard.Unary, s.divergedUnary, s.limiter.Unary),
		grpc.ChainStreamInterceptor(s.rpcs.stream, s.guard.Stream, s.divergedStream, s.limiter.Stream),
		// Tunnel frames pass through unparsed; all else is encoded as usual.
		grpc.ForceServerCodecV2(tunnel.Codec{}),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingIdle, Timeout: pingTimeout}),
		// Nobody is answered by handlers that go on after the server has ended.
		grpc.WaitForHandlers(true),
	)
}

// GRPC is the gRPC server, for tests that walk its services.
func (s *Server) GRPC() *grpc.Server { return s.front.current() }

// showRevision tells the caller which state the answer shows, so that its next
// read elsewhere is not older.
func (s *Server) showRevision(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	resp, err := next(ctx, req)
	// A call that has ended already takes no header; nothing is lost by that.
	_ = grpc.SetHeader(ctx, metadata.Pairs(engine.MetaRevision, strconv.FormatUint(s.machine.Root().Revision(), 10)))
	return resp, err
}

func (s *Server) run(h2 net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.unwatch = s.replica.WatchLeader(s.engine.LeaderChanged)
	s.wg.Go(func() { s.muxErr <- s.mux.Serve(ctx) })
	s.wg.Go(func() {
		if err := s.front.serve(h2); err != nil && ctx.Err() == nil {
			s.log.Error("gRPC ended", "err", err)
		}
	})
	s.serveCompat(ctx)
	s.wg.Go(func() { deathwatch.Accept(s.watchConns, s.replica.ID(), s.bootID) })
	s.runIdentity(ctx)
	s.wg.Go(func() { s.ownAttachments(ctx) })
	s.wg.Go(func() { s.monitor.Run(ctx) })
	s.wg.Go(func() { s.membership.Run(ctx) })
	s.wg.Go(func() { s.followLogLevel(ctx) })
	s.wg.Go(func() { s.leaveIsolated(ctx) })
	s.wg.Add(5)
	go s.steer(ctx)
	go s.introduce(ctx)
	go s.lead(ctx)
	go s.register(ctx)
	go s.reconcile(ctx)
	s.admin.serve()
	s.log.Info("server started", "name", s.cfg.Name, "id", s.replica.ID(), "address", s.cfg.Advertise, "boot", s.bootID)
}

// ownAttachments feeds this server's own streams into the view.
func (s *Server) ownAttachments(ctx context.Context) {
	sub := s.registry.Subscribe()
	defer sub.Close()
	full := true
	for {
		atts, err := sub.Next(ctx)
		if err != nil {
			return
		}
		s.view.Set(s.replica.ID(), s.bootID, full, atts)
		full = false
	}
}

func (s *Server) applyConfiguration(ctx context.Context, servers []raft.Server) {
	var targets []peers.Target
	var voters []deathwatch.Server
	for _, x := range servers {
		if string(x.ID) != s.replica.ID() {
			targets = append(targets, peers.Target{ID: string(x.ID), Address: string(x.Address)})
		}
		if x.Suffrage == raft.Voter {
			voters = append(voters, deathwatch.Server{ID: string(x.ID), Address: string(x.Address)})
		}
	}
	s.follower.Reconcile(ctx, targets)
	if !s.cfg.NoDeathWatch {
		s.watch.Reconcile(ctx, voters)
	}
}

func (s *Server) rejected(r portmux.Rejection) {
	s.log.Debug("a connection was turned away", "remote", r.Remote, "reason", r.Reason, "err", r.Err)
}

// Run waits until ctx ends, then shuts down in order; or until something makes
// it impossible to go on, whose error it returns.
func (s *Server) Run(ctx context.Context) error {
	var err error
	select {
	case <-ctx.Done():
	case err = <-s.replica.Fatal():
		return errors.Join(err, s.abort())
	case err = <-s.standing.fatal:
	case err = <-s.muxErr:
		s.muxErr <- err
		if err != nil {
			err = fmt.Errorf("main port: %w", err)
		}
	}
	return errors.Join(err, s.Close())
}

// fatalGrace bounds the end of a server whose replica cannot go on. Raft may
// hang in a write, and a process whose disk hangs must not stay.
const fatalGrace = time.Second

// abort ends what it can within fatalGrace. Peers see their connections end at
// once; nothing is handed over.
func (s *Server) abort() error {
	done := make(chan error, 1)
	go func() {
		err := s.mux.Close()
		s.stopFronts(0)
		done <- errors.Join(err, s.Close())
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(fatalGrace):
		return errors.New("end at once: not everything was closed")
	}
}

// Close shuts down: leadership is handed over, streams are told to go
// elsewhere, then Raft stops and the data directory is released.
func (s *Server) Close() error {
	var err error
	s.stopOnce.Do(func() { err = s.close() })
	return err
}

func (s *Server) close() error {
	if s.replica.IsLeader() && len(s.dir.Others()) > 0 {
		if err := s.replica.TransferLeadership("", ""); err != nil {
			s.log.Warn("leadership was not handed over", "err", err)
		} else {
			s.log.Info("leadership handed over")
		}
	}
	close(s.stopping)
	s.stopFronts(s.cfg.DrainTimeout)
	s.enrol.Stop()
	s.cancel()
	s.unwatch()
	s.engine.Close()
	errReplica := s.replica.Close()
	errMux := s.mux.Close()
	errPool := s.pool.Close()
	s.wg.Wait()
	s.follower.Wait()
	s.watch.Wait()
	sctx, cancel := context.WithTimeout(context.Background(), stopActors)
	defer cancel()
	return errors.Join(errReplica, errMux, errPool, s.actors.Shutdown(sctx), s.admin.close())
}
