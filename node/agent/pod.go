package agent

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"trivet/node/steal"
)

// stolen is a connection that came from a pod's steal listener.
type stolen struct {
	conn net.Conn
	// dst is what the visitor dialled.
	dst netip.AddrPort
	at  time.Time
	pod *attached
}

// attached is what an agent and its connections share: the backend, the routes
// and the session. It lives until the last of them has let go.
type attached struct {
	name    string
	backend steal.Backend
	routes  *routes
	logger  *slog.Logger
	// session is the agent's, "" before it arrived.
	session *atomic.Pointer[string]
	// held counts connections that wait for a tunnel.
	held atomic.Int64

	mu    sync.Mutex
	users int // guarded by mu
}

// use adds a user; it fails when the last one has let go already.
func (a *attached) use() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.users == 0 {
		return false
	}
	a.users++
	return true
}

// release lets go. The last one closes the backend.
func (a *attached) release() {
	a.mu.Lock()
	a.users--
	last := a.users == 0
	a.mu.Unlock()
	if !last {
		return
	}
	if err := a.backend.Close(); err != nil {
		a.logger.Warn("attachment did not close in order", "pod", a.name, "err", err)
	}
}

// sessionID returns the agent's session, or "".
func (a *attached) sessionID() string {
	if p := a.session.Load(); p != nil {
		return *p
	}
	return ""
}
