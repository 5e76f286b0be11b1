package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
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
	tls  *tls.Config
	lost time.Duration
}

// LostAfter is how long Raft's connections wait for a server that does not
// answer, at raft multiplier 1.
const LostAfter = time.Second

// NewStreamLayer accepts from ln (the mux's listener for ALPNRaft) and dials
// with conf. lost bounds a dial, and how long what was sent may stay without an
// acknowledgement by the other host. Without it a cut network would come back
// by the kernel's schedule, which waits about as long again as the cut took.
// A stopped process is not affected: its kernel goes on to acknowledge.
func NewStreamLayer(ln net.Listener, conf *tls.Config, lost time.Duration) *StreamLayer {
	return &StreamLayer{Listener: ln, tls: withALPN(conf, ALPNRaft), lost: lost}
}

// Dial connects to a server's main port and completes the handshake, within
// timeout and the layer's own bound.
func (s *StreamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), min(timeout, s.lost))
	defer cancel()
	return dialTLS(ctx, string(address), s.tls, giveUpAfter(s.lost))
}

// giveUpAfter has a connection end when data was not acknowledged for so long.
func giveUpAfter(d time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		})
		return errors.Join(err, set)
	}
}

// DialWatch connects to a server's main port for the death watch.
func DialWatch(ctx context.Context, address string, conf *tls.Config) (net.Conn, error) {
	return dialTLS(ctx, address, withALPN(conf, ALPNWatch), nil)
}

func withALPN(conf *tls.Config, proto string) *tls.Config {
	c := conf.Clone()
	c.NextProtos = []string{proto}
	return c
}

func dialTLS(ctx context.Context, address string, conf *tls.Config, control func(string, string, syscall.RawConn) error) (net.Conn, error) {
	d := tls.Dialer{NetDialer: &net.Dialer{KeepAlive: 5 * time.Second, Control: control}, Config: conf}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("dial server %s: %w", address, err)
	}
	return c, nil
}
