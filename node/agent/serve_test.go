package agent

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trivet/node/internal/managertest"
	"trivet/proto/telepresence/manager"
	"trivet/tunnel"
)

// isReset tells whether a visitor's connection was reset.
func isReset(err error) bool { return errors.Is(err, syscall.ECONNRESET) }

func awaitReset(t *testing.T, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); !isReset(err) {
		t.Fatalf("visitor read %d bytes, %v; want a reset", n, err)
	}
}

func TestTunnelCarriesBothWaysToTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	seen := make(chan tunnel.StreamInfo, 1)
	owner := managertest.Owner(serve(t, "laptop"))
	var client atomic.Value
	r.manager.OnTunnel(func(s *managertest.Server, info tunnel.StreamInfo, c string, stream tunnel.Stream) error {
		client.Store(c)
		seen <- info
		return owner(s, info, c, stream)
	})
	r.activate()
	c := r.visit()
	greeted(t, c, "laptop")
	big := strings.Repeat("0123456789abcdef", 1<<16)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.WriteString(c, big); err != nil {
			t.Error(err)
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	got, err := io.ReadAll(c)
	wg.Wait()
	if err != nil || !bytes.Equal(got, []byte(big)) {
		t.Fatalf("echo of %d bytes is %d, %v", len(big), len(got), err)
	}
	info := <-seen
	if info.SessionID != session || client.Load() != "client-1" {
		t.Errorf("tunnel is of session %q for client %q", info.SessionID, client.Load())
	}
	if got, want := info.ConnID.Source().String(), c.LocalAddr().String(); got != want {
		t.Errorf("source is %s, want the visitor's %s", got, want)
	}
	if got, want := info.ConnID.Destination().String(), "127.0.0.1:3000"; got != want {
		t.Errorf("destination is %s, want the target's %s", got, want)
	}
	r.awaitCount(outTunnel, whyClean, 1)
	if got := r.metrics.bytes.Out.Load(); got != uint64(len(big)) {
		t.Errorf("%d bytes to the owner are counted, want %d", got, len(big))
	}
}

func TestHeldConnectionIsRetriedOnTheOtherServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{servers: 2})
	owner := managertest.Owner(serve(t, "laptop"))
	r.manager.OnTunnel(func(s *managertest.Server, info tunnel.StreamInfo, c string, stream tunnel.Stream) error {
		if s == r.servers[0] {
			return status.Error(codes.Unavailable, "the owner has no dial stream here")
		}
		return owner(s, info, c, stream)
	})
	r.activate()
	c := r.visit()
	// What the visitor says first must not be lost in the first attempt.
	if _, err := io.WriteString(c, "early "); err != nil {
		t.Fatal(err)
	}
	greeted(t, c, "laptop")
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "early " {
		t.Fatalf("echo is %q, %v", got, err)
	}
	if value(t, r.metrics.retries) == 0 {
		t.Error("no retry is counted")
	}
}

func TestRequestThatGotLostIsRepeated(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{servers: 2})
	owner := managertest.Owner(serve(t, "laptop"))
	var asked atomic.Int32
	r.manager.OnTunnel(func(s *managertest.Server, info tunnel.StreamInfo, c string, stream tunnel.Stream) error {
		if asked.Add(1) == 1 {
			return managertest.Silent(s, info, c, stream)
		}
		return owner(s, info, c, stream)
	})
	r.activate()
	greeted(t, r.visit(), "laptop")
}

func TestRejectedDialResetsTheVisitor(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.manager.OnTunnel(managertest.Reject)
	r.activate()
	began := time.Now()
	awaitReset(t, r.visit())
	if took := time.Since(began); took > HoldFor {
		t.Errorf("the reset took %v", took)
	}
	r.awaitCount(outReset, whyRejected, 1)
}

func TestConnectionGoesToTheAppWhenTheOwnerIsAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]managertest.TunnelFunc{"no dial stream": nil, "no answer": managertest.Silent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigOptions{tunnels: TunnelsConfig{HoldFor: 500 * time.Millisecond}})
			r.manager.OnTunnel(away)
			r.activate()
			c := r.visit()
			greeted(t, c, "app")
			echoes(t, c, "hello app")
			r.awaitCount(outApp, whyOwnerAway, 1)
		})
	}
}

func TestReplacedAppSeesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{tunnels: TunnelsConfig{HoldFor: 300 * time.Millisecond}})
	r.activate(func(i *manager.InterceptInfo) { i.Spec.Replace = true })
	awaitReset(t, r.visit())
	r.awaitCount(outReset, whyReplaced, 1)
}

func TestHeldConnectionGoesToTheAppWhenTheInterceptEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.manager.OnTunnel(managertest.Silent)
	r.activate()
	c := r.visit()
	eventually(t, "a held connection", func() bool { return value(t, r.metrics.held) == 1 })
	r.manager.SetIntercepts()
	greeted(t, c, "app")
	r.awaitCount(outApp, whyNoIntercept, 0) // it is still open
	echoes(t, c, "hello app")
	r.awaitCount(outApp, whyNoIntercept, 1)
}

func TestOpenConnectionOutlivesTheIntercept(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.manager.OnTunnel(managertest.Owner(serve(t, "laptop")))
	r.activate()
	c := r.visit()
	greeted(t, c, "laptop")
	r.manager.SetIntercepts()
	eventually(t, "a disarmed port", func() bool { return value(t, r.metrics.armed) == 0 })
	echoes(t, c, "still here")
}

func TestBrokenTunnelIsNoCleanEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	broken := make(chan struct{})
	r.manager.OnTunnel(func(_ *managertest.Server, _ tunnel.StreamInfo, _ string, stream tunnel.Stream) error {
		err := errors.Join(stream.Send(tunnel.NewDialOK()), stream.Send(tunnel.NewNormal([]byte("half a bo"))))
		<-broken
		return errors.Join(err, status.Error(codes.Unavailable, "the other server died"))
	})
	r.activate()
	c := r.visit()
	if _, err := io.ReadFull(c, make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	close(broken)
	awaitReset(t, c)
	r.awaitCount(outTunnel, whyInterrupted, 1)
}

func TestServerDeathResetsOpenTunnels(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{servers: 2})
	r.manager.OnTunnel(managertest.Owner(serve(t, "laptop")))
	r.activate()
	c := r.visit()
	greeted(t, c, "laptop")
	r.servers[0].Kill()
	awaitReset(t, c)
	greeted(t, r.visit(), "laptop")
}

func TestMoreThanMayBeHeldGoToTheApp(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{tunnels: TunnelsConfig{MaxHeld: 2}})
	r.manager.OnTunnel(managertest.Silent)
	r.activate()
	r.visit()
	r.visit()
	eventually(t, "two held connections", func() bool { return value(t, r.metrics.held) == 2 })
	c := r.visit()
	greeted(t, c, "app")
	echoes(t, c, "")
	r.awaitCount(outApp, whyHeldLimit, 1)
}

func TestMoreThanMayBeOpenAreReset(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{tunnels: TunnelsConfig{MaxOpen: 1}})
	r.manager.OnTunnel(managertest.Owner(serve(t, "laptop")))
	r.activate()
	greeted(t, r.visit(), "laptop")
	awaitReset(t, r.visit())
	r.awaitCount(outReset, whyOpenLimit, 1)
}

func TestAppThatIsNotThereIsAReset(t *testing.T) {
	t.Parallel()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	r := newRig(t, rigOptions{app: dead.Addr().String(), tunnels: TunnelsConfig{HoldFor: 100 * time.Millisecond}})
	r.activate()
	awaitReset(t, r.visit())
	r.awaitCount(outReset, whyNoApp, 1)
}
