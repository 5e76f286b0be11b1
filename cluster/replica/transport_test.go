package replica

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// tcp is a raft.StreamLayer.
type tcp struct{ net.Listener }

func (tcp) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", string(address), timeout)
}

// peer is a server's end of Raft's conversation, which grants every vote.
type peer struct {
	transport *raft.NetworkTransport
	done      chan struct{}
}

func listen(t *testing.T, address string) (ln net.Listener) {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func newPeer(ln net.Listener) *peer {
	p := &peer{
		transport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: tcp{ln}, MaxPool: transportPool, MaxRPCsInFlight: 1, Timeout: transportTimeout,
			Logger: hclog.NewNullLogger(),
		}),
		done: make(chan struct{}),
	}
	go func() {
		for {
			select {
			case rpc := <-p.transport.Consumer():
				switch rpc.Command.(type) {
				case *raft.RequestVoteRequest:
					rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
				case *raft.RequestPreVoteRequest:
					rpc.Respond(&raft.RequestPreVoteResponse{Granted: true}, nil)
				default:
					rpc.Respond(&raft.TimeoutNowResponse{}, nil)
				}
			case <-p.done:
				return
			}
		}
	}()
	return p
}

// die ends all connections, as the end of the process does.
func (p *peer) die(t *testing.T) {
	t.Helper()
	close(p.done)
	p.transport.CloseStreams()
	if err := p.transport.Close(); err != nil {
		t.Error(err)
	}
}

func TestVotesReachAPeerThatWasRestarted(t *testing.T) {
	ln := listen(t, "127.0.0.1:0")
	address := raft.ServerAddress(ln.Addr().String())
	first := newPeer(ln)
	self := newPeer(listen(t, "127.0.0.1:0"))
	defer self.die(t)
	tr := transport{self.transport}

	calls := map[string]func() error{
		"vote": func() error {
			var resp raft.RequestVoteResponse
			err := tr.RequestVote("peer", address, &raft.RequestVoteRequest{}, &resp)
			if err == nil && !resp.Granted {
				return errors.New("not granted")
			}
			return err
		},
		"pre-vote": func() error {
			var resp raft.RequestPreVoteResponse
			err := tr.RequestPreVote("peer", address, &raft.RequestPreVoteRequest{}, &resp)
			if err == nil && !resp.Granted {
				return errors.New("not granted")
			}
			return err
		},
		"timeout now": func() error {
			return tr.TimeoutNow("peer", address, &raft.TimeoutNowRequest{}, new(raft.TimeoutNowResponse))
		},
	}
	for name, call := range calls {
		if err := call(); err != nil { // leaves a connection in the pool
			t.Fatalf("%s: %v", name, err)
		}
		first.die(t)
		if err := call(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s to a dead peer: %v, want a refused connection", name, err)
		}
		// What is in the pool is of the process that died: fill it again.
		first = newPeer(listen(t, string(address)))
		if err := call(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		first.die(t)
		first = newPeer(listen(t, string(address)))
		if err := call(); err != nil {
			t.Errorf("%s to a peer that was restarted: %v", name, err)
		}
	}
	first.die(t)
}
