package peers_test

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"trivet/cluster/peers"
	"trivet/internal/pki"
)

// TestRaftGivesADialUp: whoever takes the connection and says nothing does not
// hold Raft up for its own, much longer, timeout.
func TestRaftGivesADialUp(t *testing.T) {
	w := newWorld(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conf := pki.ClientConfig(w.source(pki.RoleServer, "me"), pki.Policy{ALPN: []string{"h2"}, Roles: serverOnly})
	began := time.Now()
	if c, err := peers.NewStreamLayer(ln, conf, 50*time.Millisecond).Dial(raft.ServerAddress(ln.Addr().String()), limit); err == nil {
		t.Error("connected to somebody who says nothing", c.Close())
	}
	if took := time.Since(began); took > limit/2 {
		t.Errorf("gave up after %s, want about 50 ms", took)
	}
}

// TestRaftConnectionsEndUnacknowledged: after a cut, a new connection is made
// instead of waiting for the kernel's next attempt on the old one.
func TestRaftConnectionsEndUnacknowledged(t *testing.T) {
	w := newWorld(t)
	s := w.serve("127.0.0.1:0", "s1", "b1", pki.RoleServer)
	conf := pki.ClientConfig(w.source(pki.RoleServer, "me"), pki.Policy{ALPN: []string{"h2"}, Roles: serverOnly})
	c, err := peers.NewStreamLayer(s.raft, conf, 3*time.Second).Dial(raft.ServerAddress(s.address), limit)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*tls.Conn).NetConn().(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got int
	var asked error
	err = raw.Control(func(fd uintptr) { got, asked = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) })
	if err != nil || asked != nil {
		t.Fatal(err, asked)
	}
	if got != 3000 {
		t.Errorf("the connection waits %d ms for an acknowledgement, want 3000", got)
	}
}
