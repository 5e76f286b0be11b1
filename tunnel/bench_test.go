//go:build unix

package tunnel

import (
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"trivet/proto/telepresence/managersvc"
)

// serveTCP is serve over loopback TCP, with the buffers of a real server.
func (c codecs) serveTCP(b *testing.B, handle func(managersvc.Manager_TunnelServer) error) *grpc.ClientConn {
	b.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	opts := []grpc.ServerOption{
		grpc.StaticStreamWindowSize(1 << 20), grpc.StaticConnWindowSize(16 << 20),
		grpc.ReadBufferSize(128 << 10), grpc.WriteBufferSize(128 << 10),
	}
	if c.server {
		opts = append(opts, grpc.ForceServerCodecV2(Codec{}))
	}
	srv := grpc.NewServer(opts...)
	managersvc.RegisterManagerServer(srv, service{handle: handle})
	stopped := make(chan error, 1)
	go func() { stopped <- srv.Serve(lis) }()
	var call []grpc.CallOption
	if c.client {
		call = append(call, grpc.ForceCodecV2(Codec{}))
	}
	cc, err := grpc.NewClient(lis.Addr().String(),
		grpc.WithStaticStreamWindowSize(1<<20), grpc.WithStaticConnWindowSize(16<<20),
		grpc.WithReadBufferSize(128<<10), grpc.WithWriteBufferSize(128<<10),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(call...))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cc.Close()
		srv.Stop()
		<-stopped
	})
	return cc
}

// cpuSeconds is what the process has used so far.
func cpuSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// BenchmarkRelay moves bytes from one application to another: connection,
// endpoint, gRPC, relay, gRPC, endpoint, connection, all over loopback TCP in
// one process. Its op is 64 KiB; B/op is for all three parts.
func BenchmarkRelay(b *testing.B) {
	for _, c := range []struct {
		name string
		codecs
	}{
		{"own codec", codecs{true, true}},
		{"own codec at the relay", codecs{true, false}},
		{"default codec", codecs{}},
	} {
		b.Run(c.name, func(b *testing.B) {
			board := newSwitchboard(context.Background())
			cc := c.serveTCP(b, board.handle)
			sA, sB := pair(b, cc, cc, 1)
			appA, localA := tcpPair(b)
			appB, localB := tcpPair(b)
			a, z := startServe(b, sA, Opener, localA, Options{}), startServe(b, sB, Opener, localB, Options{})
			_ = appA.SetDeadline(time.Time{})
			_ = appB.SetDeadline(time.Time{})
			chunk := make([]byte, largeRead)
			done := make(chan error, 1)
			go func() {
				buf := make([]byte, 1<<20)
				_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{appB}, buf)
				done <- err
			}()
			b.SetBytes(largeRead)
			b.ReportAllocs()
			cpu := cpuSeconds(b)
			for b.Loop() {
				if _, err := appA.Write(chunk); err != nil {
					b.Fatal(err)
				}
			}
			if err := appA.CloseWrite(); err != nil {
				b.Fatal(err)
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
			b.ReportMetric((cpuSeconds(b)-cpu)/(float64(b.N)*largeRead/(1<<30)), "cpu-s/GiB")
			appB.Close()
			<-a.done
			<-z.done
		})
	}
}

// BenchmarkRoundTrip sends 64 bytes there and back over the same path.
func BenchmarkRoundTrip(b *testing.B) {
	board := newSwitchboard(context.Background())
	cc := codecs{true, true}.serveTCP(b, board.handle)
	sA, sB := pair(b, cc, cc, 1)
	appA, localA := tcpPair(b)
	appB, localB := tcpPair(b)
	startServe(b, sA, Opener, localA, Options{})
	startServe(b, sB, Opener, localB, Options{})
	_ = appA.SetDeadline(time.Time{})
	_ = appB.SetDeadline(time.Time{})
	go io.Copy(appB, struct{ io.Reader }{appB}) // ends with the connection
	buf := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := appA.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(appA, buf); err != nil {
			b.Fatal(err)
		}
	}
}
