package cluster

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// newTestFront serves health, whose Watch is a stream that stays open.
func newTestFront(t *testing.T) (*front, net.Listener, *grpc.ClientConn) {
	t.Helper()
	f := newFront(func() *grpc.Server {
		g := grpc.NewServer(grpc.WaitForHandlers(true))
		healthpb.RegisterHealthServer(g, health.NewServer())
		return g
	})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return f, lis, conn
}

func TestFrontSendsAwayAndServesOn(t *testing.T) {
	f, lis, conn := newTestFront(t)
	served := make(chan error, 1)
	go func() { served <- f.serve(lis) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for turn := range 5 {
		w, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Recv(); err != nil {
			t.Fatalf("turn %d: %v", turn, err)
		}
		f.away(0)
		if _, err := w.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("turn %d: the stream ended with %v", turn, err)
		}
	}
	if f.isSendingAway() || f.turns.Load() != 5 {
		t.Errorf("sending away: %t; %d turns", f.isSendingAway(), f.turns.Load())
	}
	f.stop(0)
	lis.Close()
	<-served
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("after its end: %v", err)
	}
	f.away(0) // does nothing any more
}

func TestFrontThatEndsBeforeItServes(t *testing.T) {
	f, lis, _ := newTestFront(t)
	done := make(chan error, 1)
	go func() { done <- f.serve(lis) }()
	f.stop(0)
	lis.Close()
	<-done
}
