package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

// scripted starts a server whose handler accepts and then runs script.
func scripted(t testing.TB, c codecs, script func(s managersvc.Manager_TunnelServer) error) *ClientStream {
	t.Helper()
	return open(t, c.serve(t, func(s managersvc.Manager_TunnelServer) error {
		if _, err := Accept(s); err != nil {
			return err
		}
		return script(s)
	}), contractInfo)
}

func TestOpenerEndsCleanly(t *testing.T) {
	t.Parallel()
	eachCodec(t, func(t *testing.T, c codecs) {
		app, local := tcpPair(t)
		s := scripted(t, c, func(s managersvc.Manager_TunnelServer) error {
			if f := wantFrame(t, s, CodeNormal); string(f.Body) != "ping" {
				t.Errorf("server got %q", f.Body)
			}
			if err := s.Send(NewNormal([]byte("pong"))); err != nil {
				return err
			}
			if err := s.Send(NewCloseSend()); err != nil {
				return err
			}
			if _, err := s.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("server got %v, want the end", err)
			}
			return nil
		})
		r := startServe(t, s, Opener, local, Options{})
		if _, err := app.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		// The application sees the end of the server's data while its own
		// direction is open.
		if b, err := io.ReadAll(app); err != nil || string(b) != "pong" {
			t.Fatalf("application read %q, %v", b, err)
		}
		if err := app.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		st, err := r.wait(t)
		if want := (Stats{BytesIn: 4, BytesOut: 4, End: EndClean}); err != nil || st != want {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

// served side: handler runs Serve, the test plays the opener.
func serveHandler(t testing.TB, c codecs, local net.Conn, opts Options) (*ClientStream, <-chan Stats) {
	t.Helper()
	stats := make(chan Stats, 1)
	return scripted(t, c, func(s managersvc.Manager_TunnelServer) error {
		st, err := Serve(s.Context(), s, Server, local, opts)
		stats <- st
		return errs.Status(err)
	}), stats
}

func TestServerEndsCleanly(t *testing.T) {
	t.Parallel()
	eachCodec(t, func(t *testing.T, c codecs) {
		app, local := tcpPair(t)
		s, stats := serveHandler(t, c, local, Options{})
		if err := app.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		wantFrame(t, s, CodeCloseSend)
		// The other direction is still open.
		if err := s.Send(NewNormal([]byte("late"))); err != nil {
			t.Fatal(err)
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(app); err != nil || string(b) != "late" {
			t.Errorf("application read %q, %v", b, err)
		}
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("stream ended with %v", err)
		}
		if st, want := receive(t, stats), (Stats{BytesIn: 4, End: EndClean}); st != want {
			t.Errorf("%+v", st)
		}
	})
}

func TestServeResetsTheApplication(t *testing.T) {
	t.Parallel()
	normal := NewNormal([]byte("part"))
	for name, c := range map[string]struct {
		script func(s managersvc.Manager_TunnelServer) error
		end    End
		reason string
		// halfClosed: the application may have seen an end of data before.
		halfClosed bool
	}{
		"on Disconnect": {func(s managersvc.Manager_TunnelServer) error {
			return errors.Join(s.Send(normal), s.Send(NewDisconnect()))
		}, EndDisconnected, ReasonDisconnected, false},
		"on Disconnect after closeSend": {func(s managersvc.Manager_TunnelServer) error {
			return errors.Join(s.Send(NewCloseSend()), s.Send(NewDisconnect()))
		}, EndDisconnected, ReasonDisconnected, true},
		"on DialReject": {func(s managersvc.Manager_TunnelServer) error {
			return s.Send(NewDialReject())
		}, EndRejected, ReasonRejected, false},
		"on a broken stream": {func(s managersvc.Manager_TunnelServer) error {
			return errors.Join(s.Send(normal), status.Error(codes.Unavailable, "server stops"))
		}, EndStream, ReasonStream, false},
		"on a message without payload": {func(s managersvc.Manager_TunnelServer) error {
			if err := s.Send(&manager.TunnelMessage{}); err != nil {
				return err
			}
			wantHardEnd(t, s)
			return nil
		}, EndMalformed, ReasonMalformed, false},
		"on data after closeSend": {func(s managersvc.Manager_TunnelServer) error {
			if err := errors.Join(s.Send(NewCloseSend()), s.Send(normal)); err != nil {
				return err
			}
			wantHardEnd(t, s)
			return nil
		}, EndMalformed, ReasonMalformed, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachCodec(t, func(t *testing.T, cs codecs) {
				app, local := tcpPair(t)
				r := startServe(t, scripted(t, cs, c.script), Opener, local, Options{})
				if st, err := r.wait(t); st.End != c.end || errs.Reason(err) != c.reason {
					t.Errorf("ended %s with %v", st.End, err)
				}
				if c.halfClosed {
					wantBroken(t, app)
				} else {
					wantReset(t, app)
				}
			})
		})
	}
}

func TestLostConnectionResetsTheApplication(t *testing.T) {
	t.Parallel()
	app, local := tcpPair(t)
	cc := codecs{}.serve(t, func(s managersvc.Manager_TunnelServer) error {
		if _, err := Accept(s); err != nil {
			return err
		}
		if err := s.Send(NewNormal([]byte("part"))); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	})
	r := startServe(t, open(t, cc, contractInfo), Opener, local, Options{})
	if _, err := io.ReadFull(app, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if err := cc.Close(); err != nil {
		t.Fatal(err)
	}
	wantReset(t, app)
	if st, err := r.wait(t); st.End != EndStream || st.BytesIn != 4 || err == nil {
		t.Errorf("%+v, %v", st, err)
	}
}

// The opener is gone after its own half close, so that Recv has nothing to
// report any more.
func TestGoneOpenerResetsTheApplication(t *testing.T) {
	t.Parallel()
	app, local := tcpPair(t)
	s, stats := serveHandler(t, codecs{}, local, Options{})
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(app); err != nil || len(b) > 0 {
		t.Fatalf("application read %q, %v", b, err)
	}
	s.Abort()
	if st := receive(t, stats); st.End != EndStream && st.End != EndCanceled {
		t.Errorf("ended %s", st.End)
	}
}

func TestApplicationsResetDisconnects(t *testing.T) {
	t.Parallel()
	app, local := tcpPair(t)
	s, stats := serveHandler(t, codecs{}, local, Options{})
	reset(app)
	wantFrame(t, s, CodeDisconnect)
	if _, err := s.Recv(); errs.Reason(err) != ReasonLocal {
		t.Errorf("stream ended with %v", err)
	}
	if st := receive(t, stats); st.End != EndLocal {
		t.Errorf("ended %s", st.End)
	}
}

func TestUnknownFramesAreIgnoredAndCounted(t *testing.T) {
	t.Parallel()
	app, local := tcpPair(t)
	s, stats := serveHandler(t, codecs{}, local, Options{})
	for _, m := range []*manager.TunnelMessage{
		{Payload: []byte{99, 1}}, NewDialOK(), NewKeepAlive(), NewStreamOK(), NewNormal(nil), NewNormal([]byte("x")),
	} {
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.CloseSend(), app.CloseWrite()); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(app); err != nil || string(b) != "x" {
		t.Errorf("application read %q, %v", b, err)
	}
	if st, want := receive(t, stats), (Stats{BytesIn: 1, Ignored: 2, End: EndClean}); st != want {
		t.Errorf("%+v", st)
	}
}

// The server is content and ends the stream while the application still talks.
func TestServerThatEndsEarlyCutsOff(t *testing.T) {
	t.Parallel()
	app, local := tcpPair(t)
	s := scripted(t, codecs{}, func(s managersvc.Manager_TunnelServer) error {
		return s.Send(NewNormal([]byte("bye")))
	})
	r := startServe(t, s, Opener, local, Options{})
	if b, err := io.ReadAll(app); err != nil || string(b) != "bye" {
		t.Fatalf("application read %q, %v", b, err)
	}
	wantBroken(t, app)
	if st, err := r.wait(t); st.End != EndStream || !errors.Is(err, errCutOff) {
		t.Errorf("ended %s with %v", st.End, err)
	}
}

func TestServerThatEndsEarlyEndsASilentApplicationCleanly(t *testing.T) {
	t.Parallel()
	app, local := tcpPair(t)
	s := scripted(t, codecs{}, func(managersvc.Manager_TunnelServer) error { return nil })
	r := startServe(t, s, Opener, local, Options{})
	if b, err := io.ReadAll(app); err != nil || len(b) > 0 {
		t.Fatalf("application read %q, %v", b, err)
	}
	app.Close()
	if st, err := r.wait(t); st.End != EndClean || err != nil {
		t.Errorf("ended %s with %v", st.End, err)
	}
}

// The opener may not leave before the server has delivered what is under way,
// even when both directions are closed.
func TestOpenerWaitsForTheServer(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	app, local := tcpPair(t)
	closed := make(chan struct{})
	got := make(chan int, 1)
	s := scripted(t, codecs{}, func(s managersvc.Manager_TunnelServer) error {
		if err := s.Send(NewCloseSend()); err != nil {
			return err
		}
		<-closed
		n := 0
		for {
			m, err := s.Recv()
			if err != nil {
				got <- n
				return nil
			}
			n += len(m.GetPayload()) - 1
		}
	})
	r := startServe(t, s, Opener, local, Options{})
	written := make(chan error, 1)
	go func() {
		_, err := app.Write(make([]byte, size))
		written <- errors.Join(err, app.CloseWrite())
	}()
	if b, err := io.ReadAll(app); err != nil || len(b) > 0 {
		t.Fatalf("application read %q, %v", b, err)
	}
	close(closed)
	if st, err := r.wait(t); err != nil || st.BytesOut != size {
		t.Errorf("%+v, %v", st, err)
	}
	// What a caller of Serve does next.
	s.Abort()
	if n := receive(t, got); n != size {
		t.Errorf("server received %d bytes of %d", n, size)
	}
	if err := receive(t, written); err != nil {
		t.Error(err)
	}
}

func TestCancelEndsServe(t *testing.T) {
	t.Parallel()
	for name, why := range map[string]error{"plain": nil, "with a reason": errs.New(codes.PermissionDenied, "REVOKED", "revoked")} {
		t.Run("opener "+name, func(t *testing.T) {
			t.Parallel()
			app, local := tcpPair(t)
			s := scripted(t, codecs{}, func(s managersvc.Manager_TunnelServer) error {
				wantFrame(t, s, CodeDisconnect)
				return nil
			})
			r := startServe(t, s, Opener, local, Options{})
			r.cancel(why)
			st, err := r.wait(t)
			want := ReasonCanceled
			if why != nil {
				want = errs.Reason(why)
			}
			if st.End != EndCanceled || errs.Reason(err) != want {
				t.Errorf("ended %s with %v", st.End, err)
			}
			wantReset(t, app)
		})
	}
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		app, local := tcpPair(t)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s := scripted(t, codecs{}, func(s managersvc.Manager_TunnelServer) error {
			_, err := Serve(ctx, s, Server, local, Options{})
			return errs.Status(err)
		})
		cancel()
		wantFrame(t, s, CodeDisconnect)
		if _, err := s.Recv(); errs.Reason(err) != ReasonCanceled {
			t.Errorf("stream ended with %v", err)
		}
		wantReset(t, app)
	})
	t.Run("while the stream is stalled", func(t *testing.T) {
		t.Parallel()
		app, local := tcpPair(t)
		release := make(chan struct{})
		defer close(release)
		s := scripted(t, codecs{}, func(managersvc.Manager_TunnelServer) error { <-release; return nil })
		var counters Counters
		r := startServe(t, s, Opener, local, Options{Counters: &counters})
		go io.Copy(app, zeros{}) // ends with the reset
		// More than the peer's window was taken: the next send has to wait.
		eventually(t, func() bool { return counters.Out.Load() >= 64<<10 })
		r.cancel(nil)
		if st, _ := r.wait(t); st.End != EndCanceled {
			t.Errorf("ended %s", st.End)
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testLimit); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("it never happened")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestServeRefusesWhatCannotHalfClose(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer b.Close()
	f := newFake()
	defer f.Abort()
	if st, err := Serve(t.Context(), f, Server, a, Options{}); st.End != EndLocal || err == nil {
		t.Errorf("a pipe: %s, %v", st.End, err)
	}
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the pipe was left open: %v", err)
	}
	f = newFake()
	defer f.Abort()
	if st, err := Serve(t.Context(), f, Opener, pipeConn{b}, Options{}); st.End != EndLocal || err == nil {
		t.Errorf("a stream: %s, %v", st.End, err)
	}
}

func TestIdleLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		opts Options
		want time.Duration
	}{
		{Options{}, 2 * time.Hour},
		{Options{Datagram: true}, time.Minute},
		{Options{Idle: 5 * time.Second}, 5 * time.Second},
	} {
		t.Run(fmt.Sprintf("%+v", c.want), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				app, local := net.Pipe()
				f := newFake()
				start := time.Now()
				go func() {
					// Each of these starts the limit anew.
					time.Sleep(c.want - time.Second)
					f.in <- NewKeepAlive()
					time.Sleep(c.want - time.Second)
					_, _ = app.Write([]byte("x"))
					time.Sleep(c.want - time.Second)
					f.in <- NewNormal([]byte("y"))
					_, _ = app.Read(make([]byte, 1))
				}()
				st, err := Serve(t.Context(), f, Server, pipeConn{local}, c.opts)
				if st.End != EndIdle || errs.Reason(err) != ReasonIdle {
					t.Errorf("ended %s with %v", st.End, err)
				}
				// The fake does not answer Disconnect, which costs the grace.
				if d, want := time.Since(start), 4*c.want-3*time.Second+abortGrace; d != want {
					t.Errorf("ended after %s, want %s", d, want)
				}
				for _, want := range []Code{CodeNormal, CodeDisconnect} {
					if m := <-f.out; Code(m.GetPayload()[0]) != want {
						t.Errorf("sent % x, want %s", m.GetPayload(), want)
					}
				}
			})
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			_, local := net.Pipe()
			f := newFake()
			ctx, cancel := context.WithTimeout(t.Context(), 1000*time.Hour)
			defer cancel()
			if st, err := Serve(ctx, f, Server, pipeConn{local}, Options{Idle: -1}); st.End != EndCanceled ||
				errs.Code(err) != codes.DeadlineExceeded {
				t.Errorf("ended %s with %v", st.End, err)
			}
		})
	})
}

func TestDatagramsKeepTheirBounds(t *testing.T) {
	t.Parallel()
	eachCodec(t, func(t *testing.T, c codecs) {
		app, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer app.Close()
		local, err := net.DialUDP("udp", nil, app.LocalAddr().(*net.UDPAddr))
		if err != nil {
			t.Fatal(err)
		}
		s, stats := serveHandler(t, c, local, Options{Datagram: true})
		buf := make([]byte, 1<<16)
		for _, n := range []int{5, 0, 60000, 1} {
			if err := s.Send(NewNormal(pattern(n))); err != nil {
				t.Fatal(err)
			}
			if err := app.SetDeadline(time.Now().Add(testLimit)); err != nil {
				t.Fatal(err)
			}
			k, from, err := app.ReadFromUDP(buf)
			if err != nil || k != n || string(buf[:k]) != string(pattern(n)) {
				t.Fatalf("datagram of %d bytes arrived with %d, %v", n, k, err)
			}
			if _, err := app.WriteToUDP(pattern(n), from); err != nil {
				t.Fatal(err)
			}
			if f := wantFrame(t, s, CodeNormal); string(f.Body) != string(pattern(n)) {
				t.Fatalf("datagram of %d bytes came back with %d", n, len(f.Body))
			}
		}
		// One that is too large costs itself only.
		if err := errors.Join(s.Send(NewNormal(pattern(70000))), s.Send(NewNormal(pattern(2)))); err != nil {
			t.Fatal(err)
		}
		if k, _, err := app.ReadFromUDP(buf); err != nil || k != 2 {
			t.Fatalf("%d bytes, %v", k, err)
		}
		if err := s.Send(NewDisconnect()); err != nil {
			t.Fatal(err)
		}
		if st := receive(t, stats); st.End != EndDisconnected || st.Dropped != 1 || st.BytesIn != 60008 || st.BytesOut != 60006 {
			t.Errorf("%+v", st)
		}
	})
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}
