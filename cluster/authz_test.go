package cluster_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/cluster/authz"
	"trivet/cluster/clustertest"
	"trivet/internal/errs"
	"trivet/internal/pki"
)

// methods lists every rpc that the server has registered.
func methods(s *grpc.Server) map[string]bool {
	out := make(map[string]bool)
	for name, info := range s.GetServiceInfo() {
		for _, m := range info.Methods {
			out["/"+name+"/"+m.Name] = m.IsClientStream || m.IsServerStream
		}
	}
	return out
}

func TestEveryRegisteredRPCHasARule(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	registered := methods(c.Servers[0].Server.GRPC())
	if len(registered) < 43 {
		t.Fatalf("only %d rpcs are registered", len(registered))
	}
	for m := range registered {
		roles, ok := authz.Roles(m)
		if !ok {
			t.Errorf("%s has no row in the authorisation table", m)
		} else if len(roles) == 0 {
			t.Errorf("%s: its row names no role", m)
		}
	}
	for _, m := range authz.Methods() {
		if _, ok := registered[m]; !ok {
			t.Errorf("the authorisation table has a row for %s, which is not registered", m)
		}
	}
}

func TestRolesOutsideTheTableAreRefused(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	ctx := testContext(t)
	registered := methods(c.Servers[0].Server.GRPC())
	for _, role := range pki.Roles() {
		name := "x"
		if role == pki.RoleAgent {
			name = "default/Deployment/x/uid"
		}
		conn := c.Conn(c.Servers[0], role, name)
		for m, streaming := range registered {
			allowed, _ := authz.Roles(m)
			if slices.Contains(allowed, role) {
				continue
			}
			var err error
			if streaming {
				err = callStream(ctx, conn, m)
			} else {
				err = conn.Invoke(ctx, m, &emptypb.Empty{}, &emptypb.Empty{})
			}
			if errs.Code(err) != codes.PermissionDenied {
				t.Errorf("%s calls %s: %v, want PermissionDenied", role, m, err)
			}
		}
	}
}

func callStream(ctx context.Context, conn *grpc.ClientConn, method string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	return s.RecvMsg(&emptypb.Empty{})
}

func TestCertificatesThatAreNotOurs(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	foreign := clustertest.Start(t, 1, nil)
	ctx := testContext(t)
	conn := c.ConnWith(c.Servers[0], foreign.Source(pki.RoleOperator, "op"))
	err := conn.Invoke(ctx, "/telepresence.manager.Manager/Version", &emptypb.Empty{}, &emptypb.Empty{})
	if err == nil {
		t.Fatal("a certificate of another CA was accepted")
	}
	if !strings.Contains(err.Error(), "does not lead to this cluster's root") {
		t.Errorf("a certificate of another CA: %v; want an error that says so", err)
	}
}
