package replica

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// idLen is the length of a server id, a UUID as text.
const idLen = 36

// preambleTimeout bounds the wait for the id at the start of a connection.
const preambleTimeout = 5 * time.Second

// addressed makes sure that Raft talks to the server that it means. Whoever
// dials first says the id of the server that it wants to reach, and a server
// with another id ends the connection. Without that, a server that lost its
// data and came back under a new id at the old address would vote and
// acknowledge in the name of the one that it was.
type addressed struct {
	raft.StreamLayer
	self raft.ServerID
}

// Dial takes what addressBook made: "<id>@<host:port>".
func (a addressed) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, target, ok := strings.Cut(string(address), "@")
	if !ok || len(id) != idLen {
		return nil, fmt.Errorf("dial server at %s: it is not in this server's configuration", address)
	}
	conn, err := a.StreamLayer.Dial(raft.ServerAddress(target), timeout)
	if err != nil {
		return nil, err
	}
	err = errors.Join(conn.SetWriteDeadline(time.Now().Add(timeout)), writeAll(conn, id), conn.SetWriteDeadline(time.Time{}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("greet server %s at %s: %w", id, target, err), conn.Close())
	}
	return conn, nil
}

func writeAll(w io.Writer, s string) error {
	_, err := io.WriteString(w, s)
	return err
}

// Accept returns connections whose first Read checks the id, so that a peer
// that is slow to say it holds up nobody else.
func (a addressed) Accept() (net.Conn, error) {
	conn, err := a.StreamLayer.Accept()
	if err != nil {
		return nil, err
	}
	return &meantConn{Conn: conn, self: a.self}, nil
}

type meantConn struct {
	net.Conn
	self raft.ServerID
	once sync.Once
	err  error
}

// Read reads what follows the id.
func (c *meantConn) Read(p []byte) (int, error) {
	c.once.Do(func() { c.err = c.check() })
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Read(p)
}

func (c *meantConn) check() error {
	var id [idLen]byte
	if err := c.SetReadDeadline(time.Now().Add(preambleTimeout)); err != nil {
		return err
	}
	if _, err := io.ReadFull(c.Conn, id[:]); err != nil {
		return err
	}
	if string(id[:]) != string(c.self) {
		return errors.Join(fmt.Errorf("%s wants server %q, this is %s", c.RemoteAddr(), id[:], c.self), c.Close())
	}
	return c.SetReadDeadline(time.Time{})
}

// addressBook gives Raft's transport the address of a server together with its
// id.
type addressBook struct {
	raft atomic.Pointer[raft.Raft]
	// silent: Raft calls nobody any more.
	silent atomic.Bool
}

// Silence ends Raft's calls to other servers: this one was removed and must not
// disturb them with elections.
func (r *Replica) Silence() { r.book.silent.Store(true) }

// ServerAddr implements raft.ServerAddressProvider.
func (b *addressBook) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if b.silent.Load() {
		return "", errors.New("this server was removed from the cluster")
	}
	r := b.raft.Load()
	if r == nil {
		return "", errors.New("the replica is starting")
	}
	f := r.GetConfiguration()
	if err := f.Error(); err != nil {
		return "", fmt.Errorf("read configuration: %w", err)
	}
	for _, s := range f.Configuration().Servers {
		if s.ID == id {
			return raft.ServerAddress(string(id) + "@" + string(s.Address)), nil
		}
	}
	return "", fmt.Errorf("server %s is not in the configuration", id)
}

// EncodePeer implements raft.Transport: what peers are told as a server's
// address is the address alone.
func (t transport) EncodePeer(_ raft.ServerID, address raft.ServerAddress) []byte {
	return []byte(address)
}
