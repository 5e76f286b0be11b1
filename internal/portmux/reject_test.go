package portmux

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/google/go-cmp/cmp"

	"trivet/internal/errs"
	"trivet/internal/pki"
)

// TestTurnedAway: every peer that does not belong here is closed, counted once
// and reported once, and nothing of it is left.
func TestTurnedAway(t *testing.T) {
	t.Parallel()
	c, foreign := newCluster(t), newCluster(t)
	say := func(s string) func(*testing.T, net.Conn) {
		return func(t *testing.T, nc net.Conn) {
			if _, err := io.WriteString(nc, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	shake := func(conf *tls.Config) func(*testing.T, net.Conn) {
		return func(t *testing.T, nc net.Conn) {
			tc := tls.Client(nc, conf)
			if err := tc.Handshake(); err == nil {
				// TLS 1.3: the refusal comes with the first read.
				if n, err := tc.Read(make([]byte, 1)); err == nil {
					t.Errorf("read %d bytes", n)
				}
			}
			_ = nc.Close()
		}
	}
	old := c.client(pki.RoleClient, alpnH2)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	credulous := foreign.client(pki.RoleClient, alpnH2)
	credulous.VerifyConnection = nil // so that it is the server that refuses
	anonymous := c.client(pki.RoleClient, alpnH2)
	anonymous.GetClientCertificate = nil

	for _, tc := range []struct {
		name   string
		peer   func(*testing.T, net.Conn)
		reason Reason
		cause  string // reason of the error that OnReject gets
	}{
		{"garbage", say("\x00\x01\x02\x03\x04\x05\x06\x07"), ReasonUnknown, ""},
		{"ssh", say("SSH-2.0-x\r\n"), ReasonUnknown, ""},
		{"HTTP", say("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), ReasonHTTP, ""},
		{"HTTP/2 without TLS", say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), ReasonHTTP, ""},
		{"relay without handler", say("TRVT\x01rest"), ReasonNoHandler, ""},
		{"TLS record with garbage", say("\x16\x03\x01\x00\x04abcd"), ReasonHandshake, ""},
		{"health check of a load balancer", func(_ *testing.T, nc net.Conn) { _ = nc.Close() }, ReasonPeerClosed, ""},
		{"silence", say(""), ReasonTimeout, ""},
		{"half a preamble", say("TRV"), ReasonTimeout, ""},
		{"half a hello", say("\x16\x03\x01\x01\x00\x01"), ReasonTimeout, ""},
		{"foreign CA", shake(credulous), ReasonCertificate, pki.ReasonForeignCA},
		{"peer that does not trust us", shake(foreign.client(pki.RoleClient, alpnH2)), ReasonHandshake, pki.ReasonRefused},
		{"wrong role for the protocol", shake(c.client(pki.RoleClient, alpnRaft)), ReasonCertificate, pki.ReasonWrongRole},
		{"other protocol", shake(c.client(pki.RoleClient, "smtp")), ReasonALPN, ""},
		{"HTTP/1.1 over TLS", shake(c.client(pki.RoleClient, "http/1.1")), ReasonALPN, ""},
		{"no protocol", shake(c.client(pki.RoleClient)), ReasonALPN, ""},
		{"protocol without listener", shake(c.client(pki.RoleServer, alpnRaft)), ReasonALPN, ""},
		{"TLS 1.2", shake(old), ReasonHandshake, ""},
		{"no certificate", shake(anonymous), ReasonHandshake, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			reports := make(chan Rejection, 2)
			opts := Options{OnReject: func(r Rejection) { reports <- r }}
			if tc.reason == ReasonTimeout {
				opts.HandshakeTimeout = 50 * time.Millisecond
			}
			src := c.source(pki.RoleServer, "s1", time.Now())
			m := New(listen(t), pki.ServerConfig(src, pki.Policy{
				ALPN: []string{alpnH2, alpnRaft}, Roles: pki.Roles(),
				RolesFor: map[string][]pki.Role{alpnRaft: {pki.RoleServer}},
			}), opts)
			m.ALPN(alpnH2)
			serve(t, m)

			nc := dial(t, m)
			tc.peer(t, nc)
			report := <-reports
			if report.Reason != tc.reason || report.Remote.String() != nc.LocalAddr().String() {
				t.Errorf("reported %+v, want %s", report, tc.reason)
			}
			if tc.cause != "" {
				if got := pki.ExplainHandshake(report.Err, src); errs.Reason(got) != tc.cause {
					t.Errorf("cause %v (%s), want %s", got, errs.Reason(got), tc.cause)
				}
			}
			if nc.SetDeadline(time.Now().Add(patience)) == nil { // not closed by the peer function
				closed(t, nc)
			}
			if diff := cmp.Diff(map[Reason]uint64{tc.reason: 1}, rejected(m)); diff != "" {
				t.Errorf("counted (-want +got):\n%s", diff)
			}
			eventually(t, "nothing open", func() bool { s := m.Stats(); return s.Open == 0 && s.Handshaking == 0 })
			if s := m.Stats(); s.Accepted != 1 || len(s.Delivered) > 0 {
				t.Errorf("stats %+v", s)
			}
			if len(reports) > 0 {
				t.Errorf("reported again: %+v", <-reports)
			}
		})
	}
}

// TestAlertReachesAClientThatTalks: a refused client that has sent data
// already gets the alert, not a reset.
func TestAlertReachesAClientThatTalks(t *testing.T) {
	t.Parallel()
	c, m := start(t, Options{})
	expired := c.source(pki.RoleClient, "a", time.Now().Add(-2*time.Hour))
	for range 20 {
		tc := dialTLS(t, m, pki.ClientConfig(expired, pki.Policy{ALPN: []string{alpnH2}}))
		if _, err := tc.Write(make([]byte, 16<<10)); err != nil {
			t.Fatal(err)
		}
		_, err := tc.Read(make([]byte, 1))
		if err == nil || err.Error() != "remote error: "+tls.AlertError(45).Error() {
			t.Fatalf("read: %v, want the alert", err)
		}
		_ = tc.Close()
	}
}

func TestHandshakesAreBounded(t *testing.T) {
	t.Parallel()
	_, m := start(t, Options{MaxHandshakes: 2, HandshakeTimeout: patience})
	begin := func() net.Conn {
		nc := dial(t, m)
		if _, err := nc.Write([]byte{tlsHandshake}); err != nil {
			t.Fatal(err)
		}
		return nc
	}
	begin()
	begin()
	eventually(t, "two handshakes", func() bool { return m.Stats().Handshaking == 2 })
	closed(t, begin())
	if diff := cmp.Diff(map[Reason]uint64{ReasonHandshakeLimit: 1}, rejected(m)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	if s := m.Stats(); s.Handshaking != 2 || s.Open != 2 {
		t.Errorf("stats %+v", s)
	}
}

func TestSilentPeersTakeNoHandshakeSlot(t *testing.T) {
	t.Parallel()
	c, m := start(t, Options{MaxHandshakes: 1, HandshakeTimeout: patience})
	l := m.ALPN(alpnH2)
	for range 10 {
		dial(t, m)
	}
	eventually(t, "ten silent peers", func() bool { return m.Stats().Pending == 10 })
	echo(t, dialTLS(t, m, c.client(pki.RoleClient, alpnH2)), accept(t, l))
}

func TestOneAddressDoesNotTakeAllPlaces(t *testing.T) {
	t.Parallel()
	c, m := start(t, Options{MaxPerAddress: 3, HandshakeTimeout: patience})
	l := m.ALPN(alpnH2)
	for range 3 {
		dial(t, m)
	}
	closed(t, dial(t, m))
	if diff := cmp.Diff(map[Reason]uint64{ReasonAddressLimit: 1}, rejected(m)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	// Another address of this machine.
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	nc, err := d.Dial("tcp", m.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	tc := tls.Client(nc, c.client(pki.RoleClient, alpnH2))
	if err := tc.Handshake(); err != nil {
		t.Fatalf("another address was turned away too: %v", err)
	}
	accept(t, l)
}

func TestConnectionsOfAnIdentityAreBounded(t *testing.T) {
	t.Parallel()
	c, m := start(t, Options{Identify: func(s tls.ConnectionState) (string, int) {
		return s.PeerCertificates[0].URIs[0].String(), 1
	}})
	l := m.ALPN(alpnH2)
	first := dialTLS(t, m, c.client(pki.RoleClient, alpnH2))
	server := accept(t, l)
	refusedCall(t, c, m, codes.ResourceExhausted, "close some")
	eventually(t, "a rejection", func() bool { return m.Stats().Rejected[ReasonIdentityLimit] > 0 })
	if diff := cmp.Diff(map[Reason]uint64{ReasonIdentityLimit: 1}, rejected(m)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	echo(t, dialTLS(t, m, c.client(pki.RoleOperator, alpnH2)), accept(t, l))
	echo(t, first, server)
	_ = server.Close()
	echo(t, dialTLS(t, m, c.client(pki.RoleClient, alpnH2)), accept(t, l))
}

// TestHandshakeSlotIsFreedByHandOver: connections in use hold no slot.
func TestHandshakeSlotIsFreedByHandOver(t *testing.T) {
	t.Parallel()
	c, m := start(t, Options{MaxHandshakes: 1})
	l := m.ALPN(alpnH2)
	m.Raw(RelayPreamble, func(nc net.Conn) {
		defer nc.Close()
		_, _ = io.Copy(nc, nc)
	})
	for range 3 {
		nc := dial(t, m)
		echo2 := func(s string) {
			if _, err := io.WriteString(nc, s); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, len(s))
			if _, err := io.ReadFull(nc, buf); err != nil || string(buf) != s {
				t.Fatalf("read %q: %v", buf, err)
			}
		}
		echo2("TRVT hello")
		tc := dialTLS(t, m, c.client(pki.RoleClient, alpnH2))
		accept(t, l)
		eventually(t, "slot free", func() bool { return m.Stats().Handshaking == 0 })
		echo2("still here")
		_ = tc.Close()
	}
}

func TestOpenConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	c, m := start(t, Options{MaxConns: 1})
	l := m.ALPN(alpnH2)
	first := dialTLS(t, m, c.client(pki.RoleClient, alpnH2))
	server := accept(t, l)
	refusedCall(t, c, m, codes.Unavailable, "try another one")
	eventually(t, "a rejection", func() bool { return m.Stats().Rejected[ReasonConnLimit] > 0 })
	if diff := cmp.Diff(map[Reason]uint64{ReasonConnLimit: 1}, rejected(m)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	echo(t, first, server)
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	_ = server.Close() // counts once
	eventually(t, "nothing open", func() bool { return m.Stats().Open == 0 })
	echo(t, dialTLS(t, m, c.client(pki.RoleClient, alpnH2)), accept(t, l))
}

func TestFullQueueTurnsAway(t *testing.T) {
	t.Parallel()
	c, m := start(t, Options{Backlog: 1})
	l := m.ALPN(alpnH2)
	first := dialTLS(t, m, c.client(pki.RoleClient, alpnH2))
	eventually(t, "queued", func() bool { return m.Stats().Queued[alpnH2] == 1 })
	closed(t, dialTLS(t, m, c.client(pki.RoleClient, alpnH2)))
	if diff := cmp.Diff(map[Reason]uint64{ReasonBacklog: 1}, rejected(m)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	echo(t, first, accept(t, l))
}
