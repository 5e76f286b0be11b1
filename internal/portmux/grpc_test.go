package portmux

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"trivet/internal/errs"
	"trivet/internal/pki"
)

// serveGRPC serves the health service on m and passes on who called.
func serveGRPC(t *testing.T, m *Mux) <-chan peer.Peer {
	t.Helper()
	callers := make(chan peer.Peer, 64)
	s := grpc.NewServer(grpc.Creds(Credentials()), grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			p, _ := peer.FromContext(ctx)
			callers <- *p
			return h(ctx, req)
		}))
	healthpb.RegisterHealthServer(s, health.NewServer())
	var wg sync.WaitGroup
	l := m.ALPN(alpnH2)
	wg.Go(func() {
		// The mux may be closed first.
		if err := s.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("gRPC Serve: %v", err)
		}
	})
	t.Cleanup(func() {
		s.Stop()
		wg.Wait()
	})
	return callers
}

func dialGRPC(t *testing.T, m *Mux, creds credentials.TransportCredentials) healthpb.HealthClient {
	t.Helper()
	cc, err := grpc.NewClient(m.Addr().String(), grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return healthpb.NewHealthClient(cc)
}

func explain(src *pki.Source) func(error) error {
	return func(err error) error { return pki.ExplainHandshake(err, src) }
}

func check(c healthpb.HealthClient, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.Check(ctx, &healthpb.HealthCheckRequest{}, opts...)
	return err
}

func TestGRPCAndRaftShareThePort(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	m := New(listen(t), c.server(), Options{})
	callers := serveGRPC(t, m)
	raft := m.ALPN(alpnRaft)
	serve(t, m)

	client := dialGRPC(t, m, ClientCredentials(c.client(pki.RoleAgent, alpnH2), nil))
	const n = 8
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := check(client); err != nil {
				t.Errorf("health: %v", err)
			}
		})
		echo(t, dialTLS(t, m, c.client(pki.RoleServer, alpnRaft)), accept(t, raft))
	}
	wg.Wait()

	caller := <-callers
	info, ok := caller.AuthInfo.(credentials.TLSInfo)
	if !ok {
		t.Fatalf("auth info is a %T", caller.AuthInfo)
	}
	if id, err := pki.PeerID(info.State); err != nil || id.Role != pki.RoleAgent || id.Name != "peer" {
		t.Errorf("caller %v, %v", id, err)
	}
	if info.SPIFFEID == nil || info.SPIFFEID.String() != "spiffe://prod/agent/peer" {
		t.Errorf("SPIFFE ID %v", info.SPIFFEID)
	}
	if info.SecurityLevel != credentials.PrivacyAndIntegrity {
		t.Errorf("security level %v", info.SecurityLevel)
	}
	if caller.Addr.String() == "" || caller.LocalAddr.String() != m.Addr().String() {
		t.Errorf("addresses %v, %v", caller.Addr, caller.LocalAddr)
	}
	if s := m.Stats(); s.Delivered[alpnRaft] != n || s.Delivered[alpnH2] != 1 || len(rejected(m)) > 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestRefusedGRPCClientLearnsWhy: the reason and the hint come through grpc-go
// as an error of the call, even of a call that waits for a connection.
func TestRefusedGRPCClientLearnsWhy(t *testing.T) {
	t.Parallel()
	c, foreign := newCluster(t), newCluster(t)
	m := New(listen(t), pki.ServerConfig(c.source(pki.RoleServer, "s1", time.Now()), pki.Policy{
		ALPN: []string{alpnH2}, Roles: []pki.Role{pki.RoleClient},
	}), Options{})
	serveGRPC(t, m)
	serve(t, m)

	for _, tc := range []struct {
		name   string
		src    *pki.Source
		policy pki.Policy
		want   string
	}{
		{"expired", c.source(pki.RoleClient, "a", time.Now().Add(-2*time.Hour)), pki.Policy{}, pki.ReasonExpired},
		{"foreign CA", foreign.source(pki.RoleClient, "a", time.Now()), pki.Policy{}, pki.ReasonForeignCA},
		{"wrong role", c.source(pki.RoleViewer, "a", time.Now()), pki.Policy{}, pki.ReasonRefused},
		{
			"server is not what was wanted", c.source(pki.RoleClient, "a", time.Now()),
			pki.Policy{Roles: []pki.Role{pki.RoleNode}},
			pki.ReasonWrongRole,
		},
	} {
		for _, wait := range []bool{false, true} {
			client := dialGRPC(t, m, ClientCredentials(pki.ClientConfig(tc.src, tc.policy), explain(tc.src)))
			err := check(client, grpc.WaitForReady(wait))
			if errs.Reason(err) != tc.want || errs.From(err).Hint == "" {
				t.Errorf("%s, wait %v: %v (%s), want %s with a hint", tc.name, wait, err, errs.Reason(err), tc.want)
			}
		}
	}
}

// refusedCall makes a call that has to be refused with a code and a reason.
func refusedCall(t *testing.T, c cluster, m *Mux, code codes.Code, reason string) {
	t.Helper()
	conn, err := grpc.NewClient(m.Addr().String(), grpc.WithTransportCredentials(ClientCredentials(c.client(pki.RoleClient, alpnH2), nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if status.Code(err) != code || !strings.Contains(err.Error(), reason) {
		t.Fatalf("got %v, want %s that says %q", err, code, reason)
	}
}

func TestExplainIsLeftOutAfterTheFirstRead(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	m := New(listen(t), c.server(), Options{})
	l := m.ALPN(alpnH2)
	serve(t, m)
	creds := ClientCredentials(c.client(pki.RoleClient, alpnH2), func(error) error {
		return errs.New(codes.Unauthenticated, "EXPLAINED", "x")
	})
	for _, speak := range []bool{true, false} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		nc, info, err := creds.ClientHandshake(ctx, "ignored", dial(t, m))
		if err != nil {
			t.Fatal(err)
		}
		if info.AuthType() != "tls" {
			t.Errorf("auth type %q", info.AuthType())
		}
		server := accept(t, l)
		if speak {
			echo(t, nc, server)
		}
		if err := server.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = nc.Read(make([]byte, 1))
		if explained := errs.Reason(err) == "EXPLAINED"; explained == speak {
			t.Errorf("server spoke: %v, error %v", speak, err)
		}
	}
}

func TestCredentialsRefuseForeignConnections(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, _, err := Credentials().ServerHandshake(a); err == nil {
		t.Error("took a plain connection")
	}
	if _, _, err := Credentials().ServerHandshake(tls.Server(a, &tls.Config{})); err == nil {
		t.Error("took a connection without handshake")
	}
	if _, _, err := Credentials().ClientHandshake(context.Background(), "", a); err == nil {
		t.Error("dialled with a server's credentials")
	}
	if _, _, err := ClientCredentials(&tls.Config{}, nil).ServerHandshake(a); err == nil {
		t.Error("accepted with a client's credentials")
	}
}

func TestPlaintextGRPCIsTurnedAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	m := New(listen(t), c.server(), Options{})
	serveGRPC(t, m)
	serve(t, m)
	err := check(dialGRPC(t, m, insecure.NewCredentials()))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("call without TLS: %v", err)
	}
	if m.Stats().Rejected[ReasonHTTP] == 0 {
		t.Errorf("rejected %v, want %s", rejected(m), ReasonHTTP)
	}
}
