package cluster

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// front is the gRPC server of the main port. It can send everybody away, which
// gRPC itself offers only once in a server's life: a server without a majority
// is of no use to peers that could be on the other side of a partition.
type front struct {
	// make makes a gRPC server with all services registered.
	make func() *grpc.Server

	mu      sync.Mutex
	now     *grpc.Server // guarded by mu
	in      *connQueue   // what now accepts; guarded by mu
	stopped bool         // guarded by mu
	serving sync.WaitGroup

	// sending is how many old servers are being sent away.
	sending atomic.Int32
	// turns counts how often everybody was sent away.
	turns atomic.Uint64
}

func newFront(makeServer func() *grpc.Server) *front {
	return &front{make: makeServer, now: makeServer()}
}

// current is the gRPC server that takes new connections.
func (f *front) current() *grpc.Server {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// serve accepts connections until lis is closed. It returns when the accepting
// has ended; stop ends the rest.
func (f *front) serve(lis net.Listener) error {
	f.mu.Lock()
	if f.stopped {
		f.mu.Unlock()
		return net.ErrClosed
	}
	f.start(lis.Addr())
	f.mu.Unlock()
	for {
		conn, err := lis.Accept()
		if err != nil {
			return err
		}
		for !f.queue().put(conn) {
			// Everybody is being sent away; the next server takes it, unless there is
			// none.
			if f.isStopped() {
				conn.Close()
				break
			}
		}
	}
}

// start serves f.now; f.mu is held.
func (f *front) start(addr net.Addr) {
	server, in := f.now, newConnQueue(addr)
	f.in = in
	f.serving.Go(func() { _ = server.Serve(in) }) // it ends when in is closed
}

func (f *front) queue() *connQueue {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.in
}

func (f *front) isStopped() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stopped
}

// away sends everybody away (GOAWAY), ends what is still open after grace, and
// serves those who come from then on.
func (f *front) away(grace time.Duration) {
	f.mu.Lock()
	if f.stopped || f.in == nil {
		f.mu.Unlock()
		return
	}
	old := f.now
	f.now = f.make()
	f.start(f.in.addr)
	f.mu.Unlock()
	f.turns.Add(1)
	f.sending.Add(1)
	defer f.sending.Add(-1)
	drain(old, grace)
}

// stop ends everything: gracefully at first, and what is left after grace.
func (f *front) stop(grace time.Duration) {
	f.mu.Lock()
	f.stopped = true
	server := f.now
	f.mu.Unlock()
	if grace == 0 {
		server.Stop()
	} else {
		drain(server, grace)
	}
	f.serving.Wait()
}

// isSendingAway says whether streams end because this server ends them.
func (f *front) isSendingAway() bool { return f.sending.Load() > 0 }

// drain ends a server; it returns when all its handlers have.
func drain(server *grpc.Server, grace time.Duration) {
	done := make(chan struct{})
	go func() { server.GracefulStop(); close(done) }()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		server.Stop()
		<-done
	}
}

// connQueue is a listener whose connections were accepted by another one.
type connQueue struct {
	addr  net.Addr
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newConnQueue(addr net.Addr) *connQueue {
	return &connQueue{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

// put hands a connection over; false: nobody accepts here any more.
func (q *connQueue) put(c net.Conn) bool {
	select {
	case q.conns <- c:
		return true
	case <-q.done:
		return false
	}
}

// Accept implements net.Listener.
func (q *connQueue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *connQueue) Close() error {
	q.once.Do(func() { close(q.done) })
	return nil
}

// Addr implements net.Listener.
func (q *connQueue) Addr() net.Addr { return q.addr }
