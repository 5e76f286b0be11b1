package peers

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/raft"
)

// Protocols on the main port besides gRPC's h2.
const (
	// ALPNRaft carries Raft's own connections.
	ALPNRaft = "trivet-raft/1"
	// ALPNWatch carries nothing: a connection that ends says that its server
	// ended.
	ALPNWatch = "trivet-watch/1"
)

// StreamLayer carries Raft over the main port.
type StreamLayer struct {
	net.Listener
	tls *tls.Config
}

// NewStreamLayer accepts from ln (the mux's listener for ALPNRaft) and dials
// with conf.
func NewStreamLayer(ln net.Listener, conf *tls.Config) *StreamLayer {
	return &StreamLayer{Listener: ln, tls: withALPN(conf, ALPNRaft)}
}

// Dial connects to a server's main port and completes the handshake.
func (s *StreamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return dialTLS(ctx, string(address), s.tls)
}

// DialWatch connects to a server's main port for the death watch.
func DialWatch(ctx context.Context, address string, conf *tls.Config) (net.Conn, error) {
	return dialTLS(ctx, address, withALPN(conf, ALPNWatch))
}

func withALPN(conf *tls.Config, proto string) *tls.Config {
	c := conf.Clone()
	c.NextProtos = []string{proto}
	return c
}

func dialTLS(ctx context.Context, address string, conf *tls.Config) (net.Conn, error) {
	d := tls.Dialer{NetDialer: &net.Dialer{KeepAlive: 5 * time.Second}, Config: conf}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("dial server %s: %w", address, err)
	}
	return c, nil
}
