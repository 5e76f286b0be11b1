package tunnel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

const (
	xferMessages = 100
	xferSize     = 4096
)

// sendXfer sends the messages that a published peer's own test sends.
func sendXfer(s Stream) error {
	for i := range xferMessages {
		b := make([]byte, xferSize)
		for k := range b {
			b[k] = byte(i & 0xff)
		}
		if err := s.Send(NewNormal(b)); err != nil {
			return err
		}
	}
	return nil
}

func recvXfer(s Stream) error {
	for i := range xferMessages {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		f, err := ParseFrame(m.GetPayload())
		if err != nil || f.Code != CodeNormal || len(f.Body) != xferSize {
			return fmt.Errorf("message %d is %s of %d bytes, %w", i, f.Code, len(f.Body), err)
		}
		for _, b := range f.Body {
			if b != byte(i&0xff) {
				return fmt.Errorf("message %d carries %d", i, b)
			}
		}
	}
	return nil
}

func TestStreamXfer(t *testing.T) {
	t.Parallel()
	eachCodec(t, func(t *testing.T, c codecs) {
		t.Run("client to server", func(t *testing.T) {
			got := make(chan error, 1)
			s := scripted(t, c, func(s managersvc.Manager_TunnelServer) error {
				got <- recvXfer(s)
				return nil
			})
			if err := sendXfer(s); err != nil {
				t.Fatal(err)
			}
			if err := receive(t, got); err != nil {
				t.Error(err)
			}
		})
		t.Run("server to client", func(t *testing.T) {
			s := scripted(t, c, func(s managersvc.Manager_TunnelServer) error { return sendXfer(s) })
			if err := recvXfer(s); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("stream ended with %v", err)
			}
		})
		t.Run("client to client", func(t *testing.T) {
			board := newSwitchboard(t.Context())
			cc := c.serve(t, board.handle)
			a, b := pair(t, cc, cc, 1)
			sent := make(chan error, 1)
			go func() { sent <- errors.Join(sendXfer(a), a.CloseSend()) }()
			if err := errors.Join(recvXfer(b), receive(t, sent)); err != nil {
				t.Fatal(err)
			}
			wantFrame(t, b, CodeCloseSend)
			if err := b.CloseSend(); err != nil {
				t.Fatal(err)
			}
			wantFrame(t, a, CodeCloseSend)
			for _, s := range []Stream{a, b} {
				if _, err := s.Recv(); !errors.Is(err, io.EOF) {
					t.Errorf("stream ended with %v", err)
				}
			}
			if st, want := receive(t, board.stats), xferMessages*xferSize; st.AToB+st.BToA != uint64(want) || st.End != EndClean {
				t.Errorf("%+v", st)
			}
		})
	})
}

// chain is two servers: the first one relays what it accepts to the second one,
// which joins it with what arrives there.
func chain(t testing.TB, c codecs) (ccA, ccB *grpc.ClientConn, first chan RelayStats, second *switchboard) {
	t.Helper()
	second = newSwitchboard(context.Background())
	ccB = c.serve(t, second.handle)
	first = make(chan RelayStats, 1000)
	ccA = c.serve(t, func(s managersvc.Manager_TunnelServer) error {
		si, err := Accept(s)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(s.Context())
		defer cancel()
		peer, err := managersvc.NewManagerClient(ccB).Tunnel(ctx)
		if err != nil {
			return err
		}
		up := NewClientStream(peer, cancel)
		if _, err := Open(ctx, up, si, ""); err != nil {
			return err
		}
		st := Relay(context.Background(), s, up, Options{})
		first <- st
		return errs.Status(st.ErrA)
	})
	return ccA, ccB, first, second
}

// rig is two applications joined by two endpoints and one or two relays.
type rig struct {
	appA, appB *net.TCPConn
	a, b       *served
}

func startRig(t testing.TB, ccA, ccB grpc.ClientConnInterface) *rig {
	t.Helper()
	sA, sB := pair(t, ccA, ccB, 1)
	appA, localA := tcpPair(t)
	appB, localB := tcpPair(t)
	return &rig{appA, appB, startServe(t, sA, Opener, localA, Options{}), startServe(t, sB, Opener, localB, Options{})}
}

func (r *rig) wantClean(t testing.TB) {
	t.Helper()
	for _, s := range []*served{r.a, r.b} {
		if st, err := s.wait(t); st.End != EndClean || err != nil {
			t.Errorf("ended %s with %v", st.End, err)
		}
	}
}

// eachPath runs f over one relay and over two.
func eachPath(t *testing.T, f func(t *testing.T, ccA, ccB grpc.ClientConnInterface)) {
	eachCodec(t, func(t *testing.T, c codecs) {
		t.Run("one relay", func(t *testing.T) {
			cc := c.serve(t, newSwitchboard(context.Background()).handle)
			f(t, cc, cc)
		})
		t.Run("two relays", func(t *testing.T) {
			ccA, ccB, _, _ := chain(t, c)
			f(t, ccA, ccB)
		})
	})
}

func TestBulkBothWaysAtOnce(t *testing.T) {
	t.Parallel()
	eachPath(t, func(t *testing.T, ccA, ccB grpc.ClientConnInterface) { bulk(t, ccA, ccB, 4<<20) })
	t.Run("large", func(t *testing.T) {
		t.Parallel()
		cc := codecs{server: true, client: true}.serve(t, newSwitchboard(context.Background()).handle)
		bulk(t, cc, cc, 64<<20)
	})
}

func bulk(t *testing.T, ccA, ccB grpc.ClientConnInterface, size int64) {
	r := startRig(t, ccA, ccB)
	type sum struct {
		name       string
		sent, recv hash.Hash
	}
	sums := []*sum{{"a to b", sha256.New(), sha256.New()}, {"b to a", sha256.New(), sha256.New()}}
	errc := make(chan error, 4)
	send := func(app *net.TCPConn, h hash.Hash, seed byte) {
		src := io.LimitReader(rand.NewChaCha8([32]byte{seed}), size)
		_, err := io.Copy(io.MultiWriter(app, h), src)
		errc <- errors.Join(err, app.CloseWrite())
	}
	recv := func(app *net.TCPConn, h hash.Hash) {
		n, err := io.Copy(h, app)
		if err == nil && n != size {
			err = fmt.Errorf("%d bytes of %d arrived", n, size)
		}
		errc <- err
	}
	go send(r.appA, sums[0].sent, 1)
	go recv(r.appB, sums[0].recv)
	go send(r.appB, sums[1].sent, 2)
	go recv(r.appA, sums[1].recv)
	for range 4 {
		if err := <-errc; err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range sums {
		if string(s.sent.Sum(nil)) != string(s.recv.Sum(nil)) {
			t.Errorf("%s: different bytes", s.name)
		}
	}
	r.wantClean(t)
}

func TestHalfCloseLeavesTheOtherDirectionOpen(t *testing.T) {
	t.Parallel()
	eachPath(t, func(t *testing.T, ccA, ccB grpc.ClientConnInterface) {
		for _, swap := range []bool{false, true} {
			r := startRig(t, ccA, ccB)
			x, y := r.appA, r.appB
			if swap {
				x, y = y, x
			}
			if _, err := x.Write([]byte("question")); err != nil {
				t.Fatal(err)
			}
			if err := x.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(y); err != nil || string(b) != "question" {
				t.Fatalf("read %q, %v", b, err)
			}
			if _, err := y.Write([]byte("answer")); err != nil {
				t.Fatal(err)
			}
			if err := y.Close(); err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(x); err != nil || string(b) != "answer" {
				t.Fatalf("read %q, %v", b, err)
			}
			r.wantClean(t)
		}
	})
}

func TestResetPassesThrough(t *testing.T) {
	t.Parallel()
	eachPath(t, func(t *testing.T, ccA, ccB grpc.ClientConnInterface) {
		for _, swap := range []bool{false, true} {
			r := startRig(t, ccA, ccB)
			x, y, far := r.appA, r.appB, r.b
			if swap {
				x, y, far = y, x, r.a
			}
			if _, err := x.Write([]byte("part")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(y, make([]byte, 4)); err != nil {
				t.Fatal(err)
			}
			reset(x)
			wantReset(t, y)
			if st, err := far.wait(t); st.End != EndDisconnected || err == nil {
				t.Errorf("far end ended %s with %v", st.End, err)
			}
		}
	})
}

// A reset after a half close cannot travel as a frame any more.
func TestResetAfterHalfClosePassesThrough(t *testing.T) {
	t.Parallel()
	eachPath(t, func(t *testing.T, ccA, ccB grpc.ClientConnInterface) {
		r := startRig(t, ccA, ccB)
		if err := r.appA.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r.appB); err != nil || len(b) > 0 {
			t.Fatalf("read %q, %v", b, err)
		}
		reset(r.appA)
		wantBroken(t, r.appB)
		if st, err := r.b.wait(t); st.End == EndClean || err == nil {
			t.Errorf("far end ended %s", st.End)
		}
	})
}

func TestDialRejectPassesThrough(t *testing.T) {
	t.Parallel()
	eachPath(t, func(t *testing.T, ccA, ccB grpc.ClientConnInterface) {
		a, b := pair(t, ccA, ccB, 1)
		app, local := tcpPair(t)
		r := startServe(t, a, Opener, local, Options{})
		if err := b.Send(NewDialReject()); err != nil {
			t.Fatal(err)
		}
		wantReset(t, app)
		if st, err := r.wait(t); st.End != EndRejected || errs.Reason(err) != ReasonRejected {
			t.Errorf("ended %s with %v", st.End, err)
		}
	})
}

func TestRelayPassesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	eachPath(t, func(t *testing.T, ccA, ccB grpc.ClientConnInterface) {
		a, b := pair(t, ccA, ccB, 1)
		for _, hex := range []string{"63 0102", "07", "04", "00", "01 02"} {
			if err := a.Send(&manager.TunnelMessage{Payload: unhex(t, hex)}); err != nil {
				t.Fatal(err)
			}
			m, err := b.Recv()
			if err != nil || string(m.GetPayload()) != string(unhex(t, hex)) {
				t.Fatalf("%s arrives as % x, %v", hex, m.GetPayload(), err)
			}
		}
	})
}

func TestRelayRefusesMessagesWithoutPayload(t *testing.T) {
	t.Parallel()
	eachCodec(t, func(t *testing.T, c codecs) {
		board := newSwitchboard(t.Context())
		cc := c.serve(t, board.handle)
		a, b := pair(t, cc, cc, 1)
		if err := a.Send(&manager.TunnelMessage{}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Recv(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("offender got %v", err)
		}
		wantFrame(t, b, CodeDisconnect)
		if _, err := b.Recv(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("other side ended with %v", err)
		}
		if st := receive(t, board.stats); st.End != EndMalformed {
			t.Errorf("ended %s", st.End)
		}
	})
}

func TestLostStreamDisconnectsTheOther(t *testing.T) {
	t.Parallel()
	eachCodec(t, func(t *testing.T, c codecs) {
		board := newSwitchboard(t.Context())
		cc := c.serve(t, board.handle)
		a, b := pair(t, cc, cc, 1)
		// Relayed both ways, so that both streams are in the relay's hands.
		if err := errors.Join(a.Send(NewDialOK()), b.Send(NewDialOK())); err != nil {
			t.Fatal(err)
		}
		wantFrame(t, a, CodeDialOK)
		wantFrame(t, b, CodeDialOK)
		a.Abort()
		wantFrame(t, b, CodeDisconnect)
		if _, err := b.Recv(); status.Code(err) != codes.Aborted {
			t.Errorf("other side ended with %v", err)
		}
		if st := receive(t, board.stats); st.End != EndStream {
			t.Errorf("ended %s", st.End)
		}
	})
}

// A peer server that ends its stream early cuts the opener off, whatever status
// it ends with.
func TestServerThatEndsEarlyCutsOffTheRelay(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{"well": nil, "badly": status.Error(codes.ResourceExhausted, "full")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachCodec(t, func(t *testing.T, c codecs) {
				far := c.serve(t, func(s managersvc.Manager_TunnelServer) error {
					if _, err := Accept(s); err != nil {
						return err
					}
					wantFrame(t, s, CodeNormal)
					return errors.Join(s.Send(NewNormal([]byte("bye"))), end)
				})
				stats := make(chan RelayStats, 1)
				s := scripted(t, c, func(s managersvc.Manager_TunnelServer) error {
					st := Relay(context.Background(), s, open(t, far, contractInfo), Options{})
					stats <- st
					return errs.Status(st.ErrA)
				})
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					for s.Send(NewNormal(make([]byte, 1<<10))) == nil {
					}
				}()
				// What the server had sent before still arrives.
				if f := wantFrame(t, s, CodeNormal); string(f.Body) != "bye" {
					t.Errorf("got %q", f.Body)
				}
				m, err := s.Recv()
				for err == nil {
					if f, _ := ParseFrame(m.GetPayload()); f.Code != CodeCloseSend && f.Code != CodeDisconnect {
						t.Errorf("got %s", f.Code)
					}
					m, err = s.Recv()
				}
				if errors.Is(err, io.EOF) {
					t.Error("the stream ended well")
				}
				wait(t, sent)
				if st := receive(t, stats); st.End != EndStream || st.BToA != 3 || st.ErrA == nil || st.ErrB == nil {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

// wrapped hides what lies below a stream, as a wrapper of a caller may.
type wrapped struct{ Stream }

func TestRelayOfOtherStreams(t *testing.T) {
	t.Parallel()
	eachCodec(t, func(t *testing.T, c codecs) {
		board := newSwitchboard(context.Background())
		cc := c.serve(t, func(s managersvc.Manager_TunnelServer) error {
			return board.join(s.Context(), wrapped{s})
		})
		a, b := pair(t, cc, cc, 1)
		sent := make(chan error, 1)
		go func() { sent <- errors.Join(sendXfer(a), a.CloseSend()) }()
		if err := errors.Join(recvXfer(b), receive(t, sent), b.CloseSend()); err != nil {
			t.Fatal(err)
		}
		if st := receive(t, board.stats); st.End != EndClean {
			t.Errorf("%+v", st)
		}
	})
}

func TestDisconnectEndsBothHandlersCleanly(t *testing.T) {
	t.Parallel()
	board := newSwitchboard(t.Context())
	cc := codecs{}.serve(t, board.handle)
	a, b := pair(t, cc, cc, 1)
	if err := a.Send(NewDisconnect()); err != nil {
		t.Fatal(err)
	}
	wantFrame(t, b, CodeDisconnect)
	for _, s := range []Stream{a, b} {
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("stream ended with %v", err)
		}
	}
	if st := receive(t, board.stats); st.End != EndDisconnected || st.ErrA != nil || st.ErrB != nil {
		t.Errorf("%+v", st)
	}
}

func TestCancelEndsRelay(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(context.Background())
	board := newSwitchboard(ctx)
	cc := codecs{}.serve(t, board.handle)
	a, b := pair(t, cc, cc, 1)
	cancel(errs.New(codes.Unavailable, "SERVER_STOPS", "the server stops"))
	for _, s := range []Stream{a, b} {
		wantFrame(t, s, CodeDisconnect)
		if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("stream ended with %v", err)
		}
	}
	if st := receive(t, board.stats); st.End != EndCanceled {
		t.Errorf("ended %s", st.End)
	}
}

// Nobody reads at either end, so no frame gets through to anybody.
func TestCancelEndsAStalledRelay(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	board := newSwitchboard(ctx)
	var counters Counters
	board.opts.Counters = &counters
	cc := codecs{server: true}.serve(t, board.handle)
	a, b := pair(t, cc, cc, 1)
	for _, s := range []*ClientStream{a, b} {
		go func() {
			for s.Send(NewNormal(make([]byte, largeRead))) == nil {
			}
		}()
	}
	eventually(t, func() bool { return min(counters.In.Load(), counters.Out.Load()) >= largeRead })
	cancel()
	if st := receive(t, board.stats); st.End != EndCanceled || st.ErrA == nil || st.ErrB == nil {
		t.Errorf("%+v", st)
	}
}

func TestRelayIdleLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := newFake(), newFake()
		start := time.Now()
		go func() {
			time.Sleep(time.Hour)
			a.in <- NewKeepAlive()
		}()
		st := Relay(t.Context(), a, b, Options{})
		if st.End != EndIdle || errs.Reason(st.ErrA) != ReasonIdle || errs.Reason(st.ErrB) != ReasonIdle {
			t.Errorf("%+v", st)
		}
		if d, want := time.Since(start), 3*time.Hour+abortGrace; d != want {
			t.Errorf("ended after %s, want %s", d, want)
		}
	})
}

// One reader that takes nothing stops its own sender, after no more than the
// windows hold, and nobody else on the same connections.
func TestStalledReaderStallsNobodyElse(t *testing.T) {
	t.Parallel()
	const (
		stalled = 8
		other   = 32 << 20
		// Two hops, each with a window and gRPC's write quota of a stream, and
		// a message or two under way.
		bound = 2 * (streamWindow + 4*largeRead)
	)
	eachCodec(t, func(t *testing.T, c codecs) {
		board := newSwitchboard(t.Context())
		cc := c.serve(t, board.handle)
		counters := make([]Counters, stalled)
		for i := range stalled {
			a, _ := pair(t, cc, cc, uint16(10+i))
			app, local := tcpPair(t)
			startServe(t, a, Opener, local, Options{Counters: &counters[i]})
			go io.Copy(app, zeros{}) // ends with the test
		}
		for i := range counters {
			eventually(t, func() bool { return counters[i].Out.Load() > 0 })
		}
		r := startRig(t, cc, cc)
		sent := make(chan error, 1)
		go func() {
			_, err := io.CopyN(r.appA, zeros{}, other)
			sent <- errors.Join(err, r.appA.CloseWrite())
		}()
		if n, err := io.Copy(io.Discard, r.appB); err != nil || n != other {
			t.Errorf("the other stream moved %d bytes, %v", n, err)
		}
		if err := receive(t, sent); err != nil {
			t.Error(err)
		}
		for i := range counters {
			if n := counters[i].Out.Load(); n > bound {
				t.Errorf("stalled stream %d took %d bytes", i, n)
			} else {
				t.Logf("stalled stream %d took %d KiB", i, n>>10)
			}
		}
	})
}
