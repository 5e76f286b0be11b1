package tunnel

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

func netipAddrPort(a netip.AddrPort, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), port)
}

func TestStreamConnect(t *testing.T) {
	t.Parallel()
	eachCodec(t, func(t *testing.T, c codecs) {
		seen := make(chan StreamInfo, 1)
		sessions := make(chan string, 1)
		cc := c.serve(t, func(s managersvc.Manager_TunnelServer) error {
			si, err := Accept(s)
			if err != nil {
				return err
			}
			seen <- si
			id, err := ReadSession(s)
			sessions <- id
			return err
		})
		s := dial(t, cc)
		version, err := Open(limited(t), s, contractInfo, "cli-1")
		if err != nil || version != 2 {
			t.Fatalf("server has version %d, %v", version, err)
		}
		if si := receive(t, seen); si != contractInfo {
			t.Errorf("server saw %+v", si)
		}
		if id := receive(t, sessions); id != "cli-1" {
			t.Errorf("server saw client session %q", id)
		}
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("stream ended with %v", err)
		}
	})
}

func TestAcceptRefuses(t *testing.T) {
	t.Parallel()
	const (
		notInfo   = "failed to connect stream: initial message was not StreamInfo"
		malformed = "failed to connect stream: malformed Connect message"
	)
	for name, c := range map[string]struct{ first, want string }{
		"nothing":           {"-", notInfo},
		"zero length":       {"", notInfo},
		"StreamOK":          {"02 02", notInfo},
		"Normal":            {"00 47455420", notInfo},
		"unknown code":      {"ff", notInfo},
		"no body":           {"01", malformed},
		"truncated varint":  {"01 02 80", malformed},
		"overlong varint":   {"01 02 ffffffffffffffffffff7f", malformed},
		"short id":          {"01 02 00 00 0c 0a0000059c407f0000011f90 01 61", malformed},
		"truncated id":      {"01 02 00 00 0d 0a000005", malformed},
		"truncated session": {"01 02 00 00 0d 0a0000059c407f0000011f9006 05 61", malformed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cc := codecs{}.serve(t, func(s managersvc.Manager_TunnelServer) error {
				_, err := Accept(s)
				return errs.Status(err)
			})
			s := dial(t, cc)
			if c.first != "-" {
				if err := s.Send(&manager.TunnelMessage{Payload: unhex(t, c.first)}); err != nil {
					t.Fatal(err)
				}
			} else if err := s.CloseSend(); err != nil {
				t.Fatal(err)
			}
			_, err := s.Recv()
			if st := status.Convert(err); st.Code() != codes.FailedPrecondition || st.Message() != c.want {
				t.Errorf("got %v, want FailedPrecondition %q", err, c.want)
			}
		})
	}
}

func TestReadSessionRefuses(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]string{
		"zero length": "", "Normal": "00 61", "not UTF-8": "08 ff", "too long": "08" + strings.Repeat("61", 1025), "end": "-",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake()
			defer f.Abort()
			go func() {
				if second == "-" {
					close(f.in)
					return
				}
				f.in <- &manager.TunnelMessage{Payload: unhex(t, second)}
			}()
			if id, err := ReadSession(f); errs.Code(err) != codes.FailedPrecondition {
				t.Errorf("got %q, %v", id, err)
			}
		})
	}
}

func TestAcceptDoesNotWaitForever(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		if _, err := Accept(f); errs.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		if _, err := ReadSession(f); errs.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		f.Abort()
	})
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"zero length": "", "Normal": "00 61", "DialOK": "04", "no version": "02", "overlong version": "02 ffffffffffffffffffff7f",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cc := codecs{}.serve(t, func(s managersvc.Manager_TunnelServer) error {
				if _, err := s.Recv(); err != nil {
					return err
				}
				return s.Send(&manager.TunnelMessage{Payload: unhex(t, reply)})
			})
			if _, err := Open(limited(t), dial(t, cc), contractInfo, ""); errs.Reason(err) != ReasonHandshake {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("server refuses", func(t *testing.T) {
		t.Parallel()
		cc := codecs{}.serve(t, func(managersvc.Manager_TunnelServer) error {
			return status.Error(codes.NotFound, "session not found")
		})
		if _, err := Open(limited(t), dial(t, cc), contractInfo, ""); errs.Code(err) != codes.NotFound {
			t.Errorf("got %v", err)
		}
	})
	t.Run("server ends", func(t *testing.T) {
		t.Parallel()
		cc := codecs{}.serve(t, func(managersvc.Manager_TunnelServer) error { return nil })
		if _, err := Open(limited(t), dial(t, cc), contractInfo, ""); errs.Code(err) != codes.FailedPrecondition {
			t.Errorf("got %v", err)
		}
	})
	t.Run("server is silent", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			f := newFake()
			if _, err := Open(ctx, f, contractInfo, ""); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			f.Abort()
		})
	})
	t.Run("invalid info", func(t *testing.T) {
		t.Parallel()
		f := newFake()
		if _, err := Open(t.Context(), f, StreamInfo{}, ""); err == nil || len(f.out) != 0 {
			t.Errorf("got %v", err)
		}
		if _, err := Open(t.Context(), f, contractInfo, "\xff"); err == nil || len(f.out) != 0 {
			t.Errorf("got %v", err)
		}
	})
}

func TestWaitDialOK(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		frames []*manager.TunnelMessage
		reason string
	}{
		"ok":                {[]*manager.TunnelMessage{NewDialOK()}, ""},
		"ok after others":   {[]*manager.TunnelMessage{NewKeepAlive(), {Payload: []byte{99}}, NewDialOK()}, ""},
		"rejected":          {[]*manager.TunnelMessage{NewDialReject()}, ReasonRejected},
		"disconnected":      {[]*manager.TunnelMessage{NewDisconnect()}, ReasonDisconnected},
		"ended":             {nil, ReasonDisconnected},
		"data first":        {[]*manager.TunnelMessage{NewNormal([]byte("x"))}, ReasonMalformed},
		"half closed first": {[]*manager.TunnelMessage{NewCloseSend()}, ReasonMalformed},
		"zero length":       {[]*manager.TunnelMessage{{}}, ReasonMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake()
			defer f.Abort()
			go func() {
				for _, m := range c.frames {
					f.in <- m
				}
				close(f.in)
			}()
			if err := WaitDialOK(limited(t), f); errs.Reason(err) != c.reason {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("stream breaks", func(t *testing.T) {
		t.Parallel()
		f := newFake()
		f.Abort()
		if err := WaitDialOK(limited(t), f); err == nil {
			t.Error("no error")
		}
	})
	t.Run("context ends", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		f := newFake()
		defer f.Abort()
		if err := WaitDialOK(ctx, f); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// A node can take a visitor's connection to another server as long as nobody
// has accepted it: no byte of it was consumed.
func TestRejectedDialLosesNothing(t *testing.T) {
	t.Parallel()
	app, local := tcpPair(t)
	if _, err := app.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	reject := codecs{}.serve(t, func(s managersvc.Manager_TunnelServer) error {
		if _, err := Accept(s); err != nil {
			return err
		}
		return s.Send(NewDialReject())
	})
	if err := WaitDialOK(limited(t), open(t, reject, contractInfo)); errs.Reason(err) != ReasonRejected {
		t.Fatalf("got %v", err)
	}
	got := make(chan string, 1)
	accept := codecs{}.serve(t, func(s managersvc.Manager_TunnelServer) error {
		if _, err := Accept(s); err != nil {
			return err
		}
		if err := s.Send(NewDialOK()); err != nil {
			return err
		}
		got <- string(wantFrame(t, s, CodeNormal).Body)
		return nil
	})
	s := open(t, accept, contractInfo)
	if err := WaitDialOK(limited(t), s); err != nil {
		t.Fatal(err)
	}
	startServe(t, s, Opener, local, Options{})
	if s := receive(t, got); s != "hello" {
		t.Errorf("the second server got %q", s)
	}
}
