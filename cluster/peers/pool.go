package peers

import (
	"crypto/tls"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"trivet/proto/trivet/peer/v1/peersvc"
	"trivet/tunnel"
)

// Redials are quick because a restarted server should be found at once, and
// capped because two cores share everything.
var connectParams = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
	MinConnectTimeout: time.Second,
}

// keepaliveParams notice a hung server; its own side permits them.
var keepaliveParams = keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true}

// Pool keeps one connection per address.
type Pool struct {
	tls   *tls.Config
	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

// NewPool makes a pool that dials with conf.
func NewPool(conf *tls.Config) *Pool {
	return &Pool{tls: conf, conns: make(map[string]*grpc.ClientConn)}
}

// Client returns a client for the server at address. The connection is made
// when first used and remade by itself.
func (p *Pool) Client(address string) (peersvc.PeerClient, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok := p.conns[address]; ok {
		if c == nil {
			return nil, fmt.Errorf("dial server %s: the pool is closed", address)
		}
		return peersvc.NewPeerClient(c), nil
	}
	if p.conns == nil {
		return nil, fmt.Errorf("dial server %s: the pool is closed", address)
	}
	c, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(p.tls.Clone())),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(tunnel.Codec{})),
		grpc.WithConnectParams(connectParams),
		grpc.WithKeepaliveParams(keepaliveParams))
	if err != nil {
		return nil, fmt.Errorf("dial server %s: %w", address, err)
	}
	p.conns[address] = c
	return peersvc.NewPeerClient(c), nil
}

// Close closes all connections; the pool gives no more.
func (p *Pool) Close() error {
	p.mu.Lock()
	conns := p.conns
	p.conns = nil
	p.mu.Unlock()
	var first error
	for _, c := range conns {
		if err := c.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
