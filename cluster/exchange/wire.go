package exchange

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"trivet/internal/errs"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/proto/trivet/peer/v1/peersvc"
	"trivet/tunnel"
)

// Metadata of Peer.Relay.
const (
	MetaSession = "trivet-session"
	MetaConnID  = "trivet-conn-id-bin"
	// metaFound is in the response header once the waiting end was found.
	metaFound = "trivet-found"
)

// findTimeout bounds the question to one server whether an end waits there: a
// server that hangs must not keep the others from being asked.
const findTimeout = 2 * time.Second

// Directory finds the other servers.
type Directory interface {
	// Others lists the ids of the other servers.
	Others() []string
	// ClientOf returns a client of a server by id.
	ClientOf(id string) (peersvc.PeerClient, error)
}

// WirePeers is Peers over gRPC.
type WirePeers struct{ Directory }

// Offer calls Peer.Dial.
func (w WirePeers) Offer(ctx context.Context, server string, offer *peerv1.DialOffer) (bool, error) {
	c, err := w.ClientOf(server)
	if err != nil {
		return false, err
	}
	resp, err := c.Dial(ctx, offer)
	return resp.GetDelivered(), err
}

// Relay calls Peer.Relay and waits until the other server has found the
// waiting end.
func (w WirePeers) Relay(ctx context.Context, server, session string, id tunnel.ConnID) (tunnel.Stream, error) {
	c, err := w.ClientOf(server)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, MetaSession, session, MetaConnID, string(id.Bytes())))
	// The stream lives on, so only the answer has a limit, not the context.
	limit := time.AfterFunc(findTimeout, cancel)
	stream, err := c.Relay(ctx)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("join the tunnel on server %s: %w", server, err)
	}
	head, err := stream.Header()
	if err == nil && len(head.Get(metaFound)) == 0 {
		// No header means that the call has ended; Recv says how.
		if _, err = stream.Recv(); err == nil {
			err = errs.New(codes.Internal, "TUNNEL_MALFORMED", "server %s sent a frame before its header", server)
		}
	}
	if !limit.Stop() && err == nil {
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		if errs.Code(err) == codes.NotFound {
			return nil, ErrNobodyWaits
		}
		return nil, fmt.Errorf("join the tunnel on server %s: %w", server, err)
	}
	return tunnel.NewClientStream(stream, cancel), nil
}

// ServeRelay is the handler of Peer.Relay.
func (x *Exchange) ServeRelay(stream peersvc.Peer_RelayServer) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	session, raw := first(md.Get(MetaSession)), first(md.Get(MetaConnID))
	id, err := tunnel.ParseConnID([]byte(raw))
	if err != nil || session == "" {
		return errs.New(codes.InvalidArgument, "TUNNEL_MALFORMED", "relay: session or connection id is missing or malformed")
	}
	if !x.Waits(session, id) {
		return errs.New(codes.NotFound, "TUNNEL_NO_PEER", "%w", ErrNobodyWaits)
	}
	if err := stream.SendHeader(metadata.Pairs(metaFound, "1")); err != nil {
		return err
	}
	err = x.JoinHere(stream.Context(), stream, session, id)
	if errors.Is(err, ErrNobodyWaits) {
		return errs.New(codes.NotFound, "TUNNEL_NO_PEER", "%w", err)
	}
	return err
}

func first(v []string) string {
	if len(v) == 0 {
		return ""
	}
	return v[0]
}
