// Package peerapi serves trivet.peer.v1.Peer: what servers ask of each other.
// Nothing here forwards again, so a question makes one hop at most.
package peerapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"trivet/cluster/attach"
	"trivet/cluster/authz"
	"trivet/cluster/engine"
	"trivet/cluster/exchange"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/proto/trivet/peer/v1/peersvc"
)

const (
	// maxCommands bounds one forwarded batch: a log entry holds no more.
	maxCommands = 256
	// maxAttachments bounds one update, so that no number of sessions makes it
	// too large for a message.
	maxAttachments = 8192
)

// Config of a Service.
type Config struct {
	Engine   *engine.Engine
	Registry *attach.Registry
	Exchange *exchange.Exchange
	// Info describes this server as it is now.
	Info func() *peerv1.ServerInfo
	// Hello takes what another server says of itself and answers.
	Hello   func(*peerv1.ServerInfo) *peerv1.HelloResponse
	Voting  Voting
	Members Members
	States  States
	// Transfer hands leadership to a server by id (empty: any) if this server
	// leads.
	Transfer func(to string) error
	// AskAgent asks an agent whose stream of questions this server holds.
	AskAgent func(ctx context.Context, agent string, question *manager.DNSRequest) (*manager.DNSResponse, error)
	// Stopping is closed when the server begins to shut down.
	Stopping <-chan struct{}
}

// Service is the peer service.
type Service struct {
	peersvc.UnimplementedPeerServer
	cfg Config
}

// New makes the service.
func New(cfg Config) *Service { return &Service{cfg: cfg} }

// Hello introduces two servers. A server introduces nobody but itself: what it
// says becomes the first configuration.
func (s *Service) Hello(ctx context.Context, req *peerv1.HelloRequest) (*peerv1.HelloResponse, error) {
	if req.GetServer().GetId() == "" {
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "hello without a server id")
	}
	if me := authz.Caller(ctx).Name; req.GetServer().GetName() != me {
		return nil, errs.New(codes.PermissionDenied, "NOT_YOUR_NAME", "the certificate is for server %q, the hello is from %q", me, req.GetServer().GetName()).
			WithHint("set the server's name to that in its certificate")
	}
	return s.cfg.Hello(req.GetServer()), nil
}

// Propose applies commands if this server leads.
func (s *Service) Propose(ctx context.Context, req *peerv1.ProposeRequest) (*peerv1.ProposeResponse, error) {
	if n := len(req.GetCommands()); n == 0 || n > maxCommands {
		return nil, errs.New(codes.InvalidArgument, "BAD_BATCH", "%d commands in one request, 1 to %d are allowed", n, maxCommands)
	}
	res, err := s.cfg.Engine.ProposeHere(ctx, req.GetCommands())
	if err != nil {
		return nil, err
	}
	return &peerv1.ProposeResponse{Results: res}, nil
}

// ReadRevision answers with a revision at which a read is linearizable, if
// this server leads.
func (s *Service) ReadRevision(ctx context.Context, _ *peerv1.ReadRevisionRequest) (*peerv1.ReadRevisionResponse, error) {
	rev, err := s.cfg.Engine.ReadRevisionHere(ctx)
	if err != nil {
		return nil, err
	}
	return &peerv1.ReadRevisionResponse{Revision: rev}, nil
}

// Touch takes keepalives if this server leads.
func (s *Service) Touch(ctx context.Context, req *peerv1.TouchRequest) (*peerv1.TouchResponse, error) {
	unknown, err := s.cfg.Engine.TouchHere(ctx, req.GetTouches())
	if err != nil {
		return nil, err
	}
	return &peerv1.TouchResponse{Unknown: unknown}, nil
}

// AskAgent passes a question about a name to an agent that waits for them here.
func (s *Service) AskAgent(ctx context.Context, req *peerv1.AskAgentRequest) (*peerv1.AskAgentResponse, error) {
	resp, err := s.cfg.AskAgent(ctx, req.GetAgentSessionId(), req.GetQuestion())
	if err != nil || resp == nil {
		return new(peerv1.AskAgentResponse), ctx.Err()
	}
	return &peerv1.AskAgentResponse{Answered: true, Response: resp}, nil
}

// WatchAttachments streams which sessions' streams this server holds.
func (s *Service) WatchAttachments(_ *peerv1.WatchAttachmentsRequest, stream grpc.ServerStreamingServer[peerv1.AttachmentUpdate]) error {
	sub := s.cfg.Registry.Subscribe()
	defer sub.Close()
	ctx, cancel := context.WithCancel(stream.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-s.cfg.Stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(); <-ended }()
	me := s.cfg.Info()
	full := true
	for {
		atts, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		for first := true; first || len(atts) > 0; first = false {
			n := min(len(atts), maxAttachments)
			if err := stream.Send(update(me, full, atts[:n])); err != nil {
				return err
			}
			atts, full = atts[n:], false
		}
	}
}

func update(me *peerv1.ServerInfo, full bool, atts []attach.Attachment) *peerv1.AttachmentUpdate {
	u := &peerv1.AttachmentUpdate{ServerId: me.GetId(), BootId: me.GetBootId(), Reset_: full}
	for _, a := range atts {
		u.Attachments = append(u.Attachments, &peerv1.Attachment{
			SessionId: a.SessionID, DialStreams: int32(a.DialStreams), WatchStreams: int32(a.WatchStreams), EndedByPeer: a.EndedByPeer,
		})
	}
	return u
}

// Dial passes a dial request to a session that is attached here.
func (s *Service) Dial(_ context.Context, offer *peerv1.DialOffer) (*peerv1.DialOfferResponse, error) {
	ok, err := s.cfg.Exchange.Offered(offer)
	if err != nil {
		return nil, err
	}
	return &peerv1.DialOfferResponse{Delivered: ok}, nil
}

// Transfer hands leadership over if this server leads.
func (s *Service) Transfer(_ context.Context, req *peerv1.TransferRequest) (*peerv1.TransferResponse, error) {
	if err := s.cfg.Transfer(req.GetTo()); err != nil {
		return nil, err
	}
	return new(peerv1.TransferResponse), nil
}

// Relay joins a tunnel end that arrived on another server with the one that
// waits here.
func (s *Service) Relay(stream grpc.BidiStreamingServer[manager.TunnelMessage, manager.TunnelMessage]) error {
	return s.cfg.Exchange.ServeRelay(stream)
}
