package contract

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	"trivet/test/peersim"
)

// visitors numbers the connections of all cases: no two are the same.
var visitors atomic.Uint32

// visitor is a connection that nobody else has.
func visitor(v6 bool) peersim.Conn {
	n := visitors.Add(1)
	c := peersim.Conn{
		From: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(n >> 8), byte(n)}), 40000),
		To:   netip.MustParseAddrPort("127.0.0.1:9090"), Protocol: peersim.TCP,
	}
	if v6 {
		c.From = netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(n >> 8), 15: byte(n)}), 40000)
	}
	return c
}

// ground is a client with an intercept that an older agent serves.
type ground struct {
	*scene
	dials grpc.ServerStreamingClient[manager.DialRequest]
	// owner is the client's way, through another server than the agent's.
	owner managersvc.ManagerClient
	id    string
}

func (s *site) ground(ownerAt int) *ground {
	s.Helper()
	g := &ground{scene: &scene{site: s, info: s.olderAgent("web", 0), sess: s.arrive()}, owner: s.asAt(ownerAt, s.user("alice"))}
	g.agent = s.arriveAgent(g.info)
	g.dials = s.present(g.owner, g.sess)
	g.id = s.create(g.sess, s.spec("one", "web")).GetId()
	s.approve(g.agent, g.id, g.info.GetPodIp())
	return g
}

// visit opens the agent's end.
func (g *ground) visit(c peersim.Conn) *peersim.Tunnel {
	g.Helper()
	t, err := peersim.OpenTunnel(g.ctx, g.node, peersim.Info{
		Latency: time.Second, DialTimeout: 5 * time.Second, ConnID: c.ID(), Session: g.agent.GetSessionId(),
	}, g.sess.GetSessionId())
	g.must(err)
	return t
}

// asked is the next request to dial.
func (g *ground) asked(c peersim.Conn) *manager.DialRequest {
	g.Helper()
	req := recv(g.site, g.dials)
	if !bytes.Equal(req.GetConnId(), c.ID()) {
		g.Fatalf("asked to dial %x, want %x", req.GetConnId(), c.ID())
	}
	return req
}

// answer opens the client's end.
func (g *ground) answer(c peersim.Conn) *peersim.Tunnel {
	g.Helper()
	t, err := peersim.OpenTunnel(g.ctx, g.owner, peersim.Info{ConnID: c.ID(), Session: g.sess.GetSessionId()}, "")
	g.must(err)
	return t
}

// joined are both ends of a new connection.
func (g *ground) joined(c peersim.Conn) (up, down *peersim.Tunnel) {
	g.Helper()
	up = g.visit(c)
	g.asked(c)
	down = g.answer(c)
	g.must(down.Send(peersim.Frame{Code: peersim.DialOK}))
	g.frame(up, peersim.DialOK, nil)
	return up, down
}

// frame is the next one that an end receives.
func (g *ground) frame(t *peersim.Tunnel, code peersim.Code, body []byte) {
	g.Helper()
	f, err := t.Recv()
	g.must(err)
	if f.Code != code || !bytes.Equal(f.Body, body) {
		g.Fatalf("code %d with %.40q, want %d with %.40q", f.Code, f.Body, code, body)
	}
}

// done receives the end of the other side's data: a closeSend, or the end of
// the stream.
func (g *ground) done(t *peersim.Tunnel) {
	g.Helper()
	if b, err := t.RecvData(); !errors.Is(err, io.EOF) {
		g.Fatalf("%.40q, %v; want the end", b, err)
	}
}

// raw opens a stream and sends payloads as they are.
func (s *site) raw(payloads ...[]byte) grpc.BidiStreamingClient[manager.TunnelMessage, manager.TunnelMessage] {
	s.Helper()
	stream, err := s.client.Tunnel(s.ctx)
	s.must(err)
	for _, p := range payloads {
		if err := stream.Send(&manager.TunnelMessage{Payload: p}); err != nil && !errors.Is(err, io.EOF) {
			s.Fatal(err)
		}
	}
	return stream
}

// handshakeRefused is a first message that no tunnel begins with.
func handshakeRefused(text string, first func(*site) []byte) func(*site) {
	return func(s *site) {
		stream := s.raw(first(s))
		for {
			_, err := stream.Recv()
			if err == nil {
				continue
			}
			s.wantsCode(err, codes.FailedPrecondition)
			if text != "" && !strings.Contains(err.Error(), text) {
				s.Errorf("%v does not say %q", err, text)
			}
			return
		}
	}
}

// wire is a frame as bytes.
func wire(f peersim.Frame) []byte { return append([]byte{byte(f.Code)}, f.Body...) }

// elsewhere runs a case with the owner on this server and on another one.
func elsewhere(run func(*ground)) func(*site) {
	return func(s *site) {
		for _, at := range []int{s.at, s.other()} {
			g := s.ground(at)
			run(g)
			_, err := s.node.Depart(s.ctx, g.agent)
			s.must(err)
			_, err = s.client.Depart(s.ctx, g.sess)
			s.must(err)
		}
	}
}

var tunnelCases = []assertion{
	{"the handshake answers StreamOK with a version", elsewhere(func(g *ground) {
		c := visitor(false)
		t := g.visit(c)
		defer t.Close()
		if !bytes.Equal(t.Peer, []byte{2}) {
			g.Errorf("version %x", t.Peer)
		}
		g.asked(c)
	})},
	{"a first message that is no StreamInfo", handshakeRefused("failed to connect stream: initial message was not StreamInfo", func(*site) []byte {
		return []byte("\x00data")
	})},
	{"a StreamInfo that is cut off", handshakeRefused("failed to connect stream: malformed Connect message", func(s *site) []byte {
		f := wire(peersim.Info{Version: 2, ConnID: visitor(false).ID(), Session: s.arrive().GetSessionId()}.Frame())
		return f[:len(f)-3]
	})},
	{"a connection id of a wrong length", handshakeRefused("failed to connect stream", func(s *site) []byte {
		return wire(peersim.Info{Version: 2, ConnID: make([]byte, 14), Session: s.arrive().GetSessionId()}.Frame())
	})},
	{"an empty first message", handshakeRefused("failed to connect stream", func(*site) []byte { return nil })},
	{"an unknown session", func(s *site) {
		for _, id := range []string{"none", "agent:none"} {
			_, err := peersim.OpenTunnel(s.ctx, s.client, peersim.Info{ConnID: visitor(false).ID(), Session: id}, "")
			if err == nil {
				// The handshake may be over before the session is looked at.
				var t *peersim.Tunnel
				t, err = peersim.OpenTunnel(s.ctx, s.client, peersim.Info{ConnID: visitor(false).ID(), Session: id}, "")
				s.must(err)
				_, err = t.Recv()
			}
			s.wantsCode(err, codes.NotFound)
		}
	}},
	{"an agent's second message must name the client", func(s *site) {
		g := s.ground(s.at)
		t, err := peersim.OpenTunnel(s.ctx, s.node, peersim.Info{ConnID: visitor(false).ID(), Session: g.agent.GetSessionId()}, "")
		s.must(err)
		s.must(t.Send(peersim.Frame{Code: peersim.Normal, Body: []byte("data")}))
		_, err = t.Recv()
		s.wantsCode(err, codes.FailedPrecondition)
	}},
	{"an agent that names a client that is gone", func(s *site) {
		g := s.ground(s.at)
		t, err := peersim.OpenTunnel(s.ctx, s.node, peersim.Info{ConnID: visitor(false).ID(), Session: g.agent.GetSessionId()}, "none")
		s.must(err)
		_, err = t.Recv()
		s.wantsCode(err, codes.Canceled)
		if !strings.Contains(err.Error(), "session cancelled") {
			s.Error(err)
		}
	}},
	{"a client that is asked and does not answer", func(s *site) {
		g := s.ground(s.other())
		c := visitor(false)
		t, err := peersim.OpenTunnel(s.ctx, s.node, peersim.Info{
			DialTimeout: 10 * time.Millisecond, ConnID: c.ID(), Session: g.agent.GetSessionId(),
		}, g.sess.GetSessionId())
		s.must(err)
		g.asked(c)
		_, err = t.Recv()
		s.wantsCode(err, codes.DeadlineExceeded)
		if !strings.Contains(err.Error(), "timeout while establishing bidipipe") {
			s.Error(err)
		}
	}},
	{"the client is asked with the visitor's connection, latency and time", elsewhere(func(g *ground) {
		for _, v6 := range []bool{false, true} {
			c := visitor(v6)
			t := g.visit(c)
			if req := g.asked(c); req.GetDialTimeout() != int64(5*time.Second) || req.GetRoundtripLatency() != int64(time.Second) {
				g.Errorf("%v", req)
			}
			t.Close()
		}
	})},
	{"data that does not wait for DialOK arrives", elsewhere(func(g *ground) {
		c := visitor(false)
		up := g.visit(c)
		_, err := up.Write([]byte("early"))
		g.must(err)
		g.asked(c)
		down := g.answer(c)
		g.frame(down, peersim.Normal, []byte("early"))
		g.must(down.Send(peersim.Frame{Code: peersim.DialOK}))
		g.frame(up, peersim.DialOK, nil)
		up.Close()
		down.Close()
	})},
	{"a rejected dial is passed on", elsewhere(func(g *ground) {
		c := visitor(false)
		up := g.visit(c)
		g.asked(c)
		down := g.answer(c)
		g.must(down.Send(peersim.Frame{Code: peersim.DialReject}))
		g.must(down.CloseSend())
		g.frame(up, peersim.DialReject, nil)
		up.Close()
	})},
	{"either side's half close leaves the other direction open", elsewhere(func(g *ground) {
		for _, agentFirst := range []bool{true, false} {
			up, down := g.joined(visitor(false))
			first, second := up, down
			if !agentFirst {
				first, second = down, up
			}
			_, err := first.Write([]byte("last words"))
			g.must(err)
			g.must(first.CloseSend())
			g.frame(second, peersim.Normal, []byte("last words"))
			g.done(second)
			_, err = second.Write([]byte("still here"))
			g.must(err)
			g.must(second.CloseSend())
			g.frame(first, peersim.Normal, []byte("still here"))
			g.done(first)
		}
	})},
	{"a disconnect is passed on and nothing follows", elsewhere(func(g *ground) {
		up, down := g.joined(visitor(false))
		g.must(up.Send(peersim.Frame{Code: peersim.Disconnect}))
		g.frame(down, peersim.Disconnect, nil)
	})},
	{"codes that nobody knows, keepalives and empty data pass through", elsewhere(func(g *ground) {
		up, down := g.joined(visitor(false))
		for _, f := range []peersim.Frame{{Code: peersim.KeepAlive}, {Code: 77, Body: []byte("new")}, {Code: peersim.Normal, Body: []byte("x")}} {
			g.must(up.Send(f))
			g.frame(down, f.Code, f.Body)
			g.must(down.Send(f))
			g.frame(up, f.Code, f.Body)
		}
		up.Close()
		down.Close()
	})},
	{"the largest message of an endpoint passes whole", elsewhere(func(g *ground) {
		up, down := g.joined(visitor(false))
		big := bytes.Repeat([]byte{0xa5}, 1<<20)
		_, err := up.Write(big)
		g.must(err)
		g.frame(down, peersim.Normal, big)
		up.Close()
		down.Close()
	})},
	{"datagrams keep their bounds", func(s *site) {
		g := s.ground(s.other())
		c := visitor(false)
		c.Protocol = peersim.UDP
		up, down := g.joined(c)
		for _, size := range []int{1, 1472, 65507} {
			d := bytes.Repeat([]byte{byte(size)}, size)
			_, err := up.Write(d)
			s.must(err)
			g.frame(down, peersim.Normal, d)
			_, err = down.Write(d)
			s.must(err)
			g.frame(up, peersim.Normal, d)
		}
	}},
	{"connections at the same time do not mix", func(s *site) {
		g := s.ground(s.other())
		type ends struct{ up, down *peersim.Tunnel }
		var all []ends
		for range 16 {
			up, down := g.joined(visitor(false))
			all = append(all, ends{up, down})
		}
		for i, e := range all {
			_, err := e.up.Write(fmt.Appendf(nil, "to %d", i))
			s.must(err)
			_, err = e.down.Write(fmt.Appendf(nil, "from %d", i))
			s.must(err)
		}
		for i, e := range all {
			g.frame(e.down, peersim.Normal, fmt.Appendf(nil, "to %d", i))
			g.frame(e.up, peersim.Normal, fmt.Appendf(nil, "from %d", i))
		}
	}},
	{"a hundred messages of 4096 bytes each way arrive whole and in order", elsewhere(func(g *ground) {
		up, down := g.joined(visitor(false))
		message := func(i int) []byte {
			m := make([]byte, 4096)
			for j := range m {
				m[j] = byte(i + j)
			}
			return m
		}
		for _, e := range [][2]*peersim.Tunnel{{up, down}, {down, up}} {
			sent := make(chan error, 1)
			go func() {
				for i := range 100 {
					if _, err := e[0].Write(message(i)); err != nil {
						sent <- err
						return
					}
				}
				sent <- e[0].CloseSend()
			}()
			for i := range 100 {
				g.frame(e[1], peersim.Normal, message(i))
			}
			g.done(e[1])
			g.must(<-sent)
		}
	})},
	{"an agent's way to a client ends when the client does", func(s *site) {
		g := s.ground(s.other())
		up, down := g.joined(visitor(false))
		down.Close()
		for {
			if _, err := up.Recv(); err != nil {
				break
			}
		}
	}},
	{"WatchDial of an unknown session", func(s *site) {
		stream, err := s.client.WatchDial(s.ctx, nobody("none"))
		s.wants(refused(s, stream, err), codes.NotFound, `session "none" not found`)
	}},
}
