package exchange

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/tunnel"
)

func wantError(t *testing.T, err error, code codes.Code, reason string) {
	t.Helper()
	if errs.Code(err) != code || errs.Reason(err) != reason {
		t.Errorf("got %v (%s %s), want %s %s", err, errs.Code(err), errs.Reason(err), code, reason)
	}
}

func TestTwoEndsOnOneServer(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		d := r.attachHere()
		id := connID(t, 1)
		first := r.await(id, 5*time.Second)
		req := take(t, d)
		if string(req.GetConnId()) != string(id) || req.GetDialTimeout() != int64(5*time.Second) {
			t.Errorf("dial request %v", req)
		}
		first.waits()
		if s := r.Stats(); s.Waiting != 1 || s.Open != 0 {
			t.Errorf("stats while one waits: %+v", s)
		}
		second := r.answer(id)
		first.waits()
		if s := r.Stats(); s.Waiting != 0 || s.Open != 1 {
			t.Errorf("stats while the tunnel is open: %+v", s)
		}
		talk(t, first, second)
		if s := r.Stats(); s != (Stats{Total: 1, BytesIn: uint64(len("request")), BytesTo: uint64(len("response"))}) {
			t.Errorf("stats at the end: %+v", s)
		}
	})
}

func TestNobodyAnswersInTime(t *testing.T) {
	for name, c := range map[string]struct{ asked, want time.Duration }{
		"the peer's own time":    {7 * time.Second, 7 * time.Second},
		"not less than a second": {time.Millisecond, minDial},
		"not more than 30 s":     {time.Hour, maxDial},
		"nor with the largest":   {math.MaxInt64, maxDial},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				r.attachHere()
				begin := time.Now()
				err := <-r.await(connID(t, 1), c.asked).result
				wantError(t, err, codes.DeadlineExceeded, "TUNNEL_TIMEOUT")
				if !strings.Contains(err.Error(), "timeout while establishing bidipipe") {
					t.Errorf("%q lacks the words that published peers know", err)
				}
				if took := time.Since(begin); took != c.want {
					t.Errorf("gave up after %s, want %s", took, c.want)
				}
				if s := r.Stats(); s.Waiting != 0 || s.Failed != 1 {
					t.Errorf("stats %+v", s)
				}
				// Too late.
				wantError(t, <-r.answer(connID(t, 1)).result, codes.FailedPrecondition, "TUNNEL_NO_PEER")
			})
		})
	}
}

func TestLatencyAddsToTheTime(t *testing.T) {
	info := tunnel.StreamInfo{DialTimeout: 3 * time.Second, RoundtripLatency: 2 * time.Second}
	if got := dialLimit(info); got != 5*time.Second {
		t.Errorf("got %s, want 5s", got)
	}
	info = tunnel.StreamInfo{DialTimeout: math.MaxInt64, RoundtripLatency: math.MaxInt64}
	if got := dialLimit(info); got != maxDial {
		t.Errorf("got %s, want %s", got, maxDial)
	}
}

func TestOwnerThatIsNowhereAttached(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		err := <-r.await(connID(t, 1), 2*time.Second).result
		wantError(t, err, codes.Unavailable, "OWNER_NOT_ATTACHED")
		if e := errs.From(err); e.Hint == "" || e.RetryAfter == 0 {
			t.Errorf("%+v has no hint or no time to retry", e)
		}
	})
}

func TestOwnerThatAttachesWhileOneWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		first := r.await(connID(t, 1), 5*time.Second)
		time.Sleep(4 * time.Second)
		d := r.attachHere()
		take(t, d)
		talk(t, first, r.answer(connID(t, 1)))
	})
}

// TestOfferGoesOnUntilItIsDelivered: a server that refuses, one that cannot be
// reached, and one where the owner turns up only then.
func TestOfferGoesOnUntilItIsDelivered(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		var asked []string
		r.peers.offer = func(_ context.Context, server string, o *peerv1.DialOffer) (bool, error) {
			asked = append(asked, server)
			if o.GetSessionId() != client || o.GetOrigin() != "self" {
				t.Errorf("offer %v", o)
			}
			switch server {
			case "s1":
				return false, nil
			case "s2":
				return false, errors.New("connection refused")
			}
			return true, nil
		}
		r.attached("s1")
		r.attached("s2")
		first := r.await(connID(t, 1), 5*time.Second)
		if d := cmp.Diff([]string{"s1", "s2"}, asked); d != "" {
			t.Fatalf("asked (-want +got):\n%s", d)
		}
		first.waits()
		r.attached("s3")
		first.waits()
		if d := cmp.Diff([]string{"s1", "s2", "s3"}, asked); d != "" {
			t.Errorf("asked (-want +got):\n%s", d)
		}
		// Delivered: nobody else is asked, whoever attaches.
		r.attached("s4")
		first.waits()
		if len(asked) != 3 {
			t.Errorf("asked %v after it was delivered", asked)
		}
		talk(t, first, r.answer(connID(t, 1)))
	})
}

// TestOwnerThatReconnectsToTheSameServer: what the view knows lags behind the
// registry, so the first offer meets a stream that has just gone.
func TestOwnerThatReconnectsToTheSameServer(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.attached("self")
		first := r.await(connID(t, 1), 5*time.Second)
		first.waits()
		d := r.attachHere()
		take(t, d)
		talk(t, first, r.answer(connID(t, 1)))
	})
}

func TestSecondEndThatWaitsUnderTheSameID(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		d := r.attachHere()
		first := r.await(connID(t, 1), 5*time.Second)
		wantError(t, <-r.await(connID(t, 1), 5*time.Second).result, codes.AlreadyExists, "TUNNEL_DUPLICATE")
		first.waits()
		// Another connection of the same session is another matter.
		other := r.await(connID(t, 2), 5*time.Second)
		<-d.Ready()
		if got := d.Take(); len(got) != 2 {
			t.Errorf("%d dial requests, want one of each", len(got))
		}
		talk(t, first, r.answer(connID(t, 1)))
		talk(t, other, r.answer(connID(t, 2)))
		// The id is free again.
		again := r.await(connID(t, 1), 5*time.Second)
		talk(t, again, r.answer(connID(t, 1)))
	})
}

func TestSecondArrivalDisplacesNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.attachHere()
		first := r.await(connID(t, 1), 5*time.Second)
		second := r.answer(connID(t, 1))
		wantError(t, <-r.answer(connID(t, 1)).result, codes.FailedPrecondition, "TUNNEL_NO_PEER")
		talk(t, first, second)
	})
}

func TestAnswerNeedsTheRightSession(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.attachHere()
		first := r.await(connID(t, 1), 2*time.Second)
		thief := handle(t, func(ctx context.Context, s tunnel.Stream) error {
			return r.Answer(ctx, s, tunnel.StreamInfo{ConnID: connID(t, 1), SessionID: "another"})
		})
		wantError(t, <-thief.result, codes.FailedPrecondition, "TUNNEL_NO_PEER")
		first.waits()
		talk(t, first, r.answer(connID(t, 1)))
	})
}

func TestFirstEndThatGoesAway(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.attachHere()
		first := r.await(connID(t, 1), 5*time.Second)
		first.cancel()
		wantError(t, <-first.result, codes.Canceled, "TUNNEL_CANCELED")
		if s := r.Stats(); s.Waiting != 0 {
			t.Errorf("stats %+v", s)
		}
		wantError(t, <-r.answer(connID(t, 1)).result, codes.FailedPrecondition, "TUNNEL_NO_PEER")
	})
}

func TestEndThatBreaksTakesTheOtherWithIt(t *testing.T) {
	for _, which := range []string{"first", "second"} {
		t.Run(which, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				r.attachHere()
				first := r.await(connID(t, 1), 5*time.Second)
				second := r.answer(connID(t, 1))
				broken, left := first, second
				if which == "second" {
					broken, left = second, first
				}
				broken.cancel()
				left.expect(tunnel.CodeDisconnect, "")
				<-broken.result
				<-left.result
				if s := r.Stats(); s.Open != 0 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

// TestArrivalThatLosesTheRace: it came between the end of the wait and the
// waiting end's departure.
func TestArrivalThatLosesTheRace(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		k := key{client, connID(t, 1)}
		w, err := r.register(k)
		if err != nil {
			t.Fatal(err)
		}
		late := handle(t, func(ctx context.Context, s tunnel.Stream) error { return r.JoinHere(ctx, s, k.session, k.id) })
		late.waits()
		r.unregister(k, w)
		wantError(t, <-late.result, codes.FailedPrecondition, "TUNNEL_NO_PEER")
	})
}

func TestTooManyWait(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		for i := range maxWaiting {
			r.waiting[key{fmt.Sprint(i), connID(t, 1)}] = new(waiter)
		}
		wantError(t, <-r.await(connID(t, 1), time.Second).result, codes.ResourceExhausted, "BACKPRESSURE")
	})
}

func TestOfferedByAnotherServer(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		offer := func(origin string, port uint16) *peerv1.DialOffer {
			return &peerv1.DialOffer{SessionId: client, Origin: origin, Request: &manager.DialRequest{ConnId: connID(t, port).Bytes()}}
		}
		if ok, err := r.Offered(offer("s2", 1)); ok || err != nil {
			t.Errorf("without a dial stream: %v, %v; want not delivered", ok, err)
		}
		d := r.attachHere()
		o := offer("s2", 1)
		if ok, err := r.Offered(o); !ok || err != nil {
			t.Errorf("got %v, %v; want delivered", ok, err)
		}
		if got := take(t, d); got != o.GetRequest() {
			t.Errorf("the stream got %v", got)
		}
		_, err := r.Offered(&peerv1.DialOffer{SessionId: client, Request: &manager.DialRequest{ConnId: []byte("short")}})
		wantError(t, err, codes.InvalidArgument, "TUNNEL_MALFORMED")

		// Who made the offer is asked first for the other end, whoever fails.
		var asked []string
		r.peers.others = []string{"s1", "s2", "s3"}
		r.peers.relay = func(_ context.Context, server, session string, id tunnel.ConnID) (tunnel.Stream, error) {
			asked = append(asked, server)
			if session != client || id != connID(t, 1) {
				t.Errorf("asked for %s of %s", id, session)
			}
			if server == "s2" {
				return nil, errors.New("connection refused")
			}
			return nil, ErrNobodyWaits
		}
		wantError(t, <-r.answer(connID(t, 1)).result, codes.FailedPrecondition, "TUNNEL_NO_PEER")
		if d := cmp.Diff([]string{"s2", "s1", "s3"}, asked); d != "" {
			t.Errorf("asked (-want +got):\n%s", d)
		}
	})
}

func TestOriginsAreForgottenInOrder(t *testing.T) {
	r := newRig(t)
	k := func(i int) key { return key{fmt.Sprint(i), connID(t, 1)} }
	for i := range recentOrigins + 10 {
		r.remember(k(i), "s1")
		r.remember(k(i), "s2")
	}
	if len(r.origins) != recentOrigins || len(r.order) != recentOrigins {
		t.Errorf("%d origins in an order of %d are remembered, want %d", len(r.origins), len(r.order), recentOrigins)
	}
	if _, ok := r.origins[k(9)]; ok {
		t.Error("an old one is still there")
	}
	if got := r.origins[k(10)]; got != "s2" {
		t.Errorf("the oldest that fits is %q, want what was said last", got)
	}
}

func TestDatagramTunnelsEndWhenIdle(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.attachHere()
		raw := slices.Clone(connID(t, 1).Bytes())
		raw[len(raw)-1] = byte(tunnel.UDP)
		id, err := tunnel.ParseConnID(raw)
		if err != nil {
			t.Fatal(err)
		}
		first := r.await(id, 5*time.Second)
		second := r.answer(id)
		begin := time.Now()
		first.expect(tunnel.CodeDisconnect, "")
		second.expect(tunnel.CodeDisconnect, "")
		<-first.result
		<-second.result
		if took := time.Since(begin); took != tunnel.IdleUDP {
			t.Errorf("the tunnel ended after %s, want %s", took, tunnel.IdleUDP)
		}
	})
}

func TestStopsWaitingForAnOffer(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		// A server that hangs takes the offer and never answers.
		r.peers.offer = func(ctx context.Context, _ string, _ *peerv1.DialOffer) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}
		r.attached("s1")
		begin := time.Now()
		err := <-r.await(connID(t, 1), 3*time.Second).result
		wantError(t, err, codes.Unavailable, "OWNER_NOT_ATTACHED")
		if took := time.Since(begin); took != 3*time.Second {
			t.Errorf("took %s", took)
		}
		synctest.Wait()
	})
}
