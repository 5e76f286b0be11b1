package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"trivet/cluster/replica"
	"trivet/fsm"
	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
)

// onWire turns an error into what a client of gRPC sees.
func onWire(err error) error { return errs.Status(transportError(err)) }

// sameNumber fails unless every attempt carried the same command under the
// same number.
func (r *rig) sameNumber() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.asked {
		if d := cmp.Diff(r.asked[0], c, protocmp.Transform()); d != "" {
			r.t.Errorf("attempts differ (-first +other):\n%s", d)
		}
		if c.GetRequestId().GetNumber() == 0 {
			r.t.Errorf("a command went out without a number: %v", c)
		}
	}
}

func TestWriteOnTheLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.lead("self")
		r.propose = accepts(7)
		out := make(chan error, 1)
		go func() {
			res, err := r.Propose(t.Context(), "me", nil, put("k"))
			if err == nil && res.GetRevision() != 7 {
				err = fmt.Errorf("result %v", res)
			}
			out <- err
		}()
		synctest.Wait()
		select {
		case err := <-out:
			t.Fatalf("answered before the local state shows it: %v", err)
		default:
		}
		r.apply(7)
		if err := <-out; err != nil {
			t.Fatal(err)
		}
		c := r.asked[0]
		want := &commandv1.RequestId{Writer: "server/self/" + bootID, Number: 1, Lowest: 1, PayloadDigest: c.GetRequestId().GetPayloadDigest()}
		if d := cmp.Diff(want, c.GetRequestId(), protocmp.Transform()); d != "" {
			t.Errorf("request id (-want +got):\n%s", d)
		}
		if len(c.GetRequestId().GetPayloadDigest()) != digestBytes || c.GetIdentity() != "me" || c.GetVersion() != fsm.CommandVersion {
			t.Errorf("command %v lacks digest, identity or version", c)
		}
	})
}

func TestUnknownOutcomeIsRepeatedUnderTheSameNumber(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.lead("self")
		r.apply(100)
		n := 0
		r.propose = func(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
			if n++; n < 4 {
				return nil, fmt.Errorf("%w: leadership lost", replica.ErrUnknownOutcome)
			}
			return accepts(5)(ctx, cmds)
		}
		if _, err := r.Propose(t.Context(), "me", nil, put("k")); err != nil {
			t.Fatal(err)
		}
		if len(r.attempts()) != 4 {
			t.Errorf("%d attempts, want 4", len(r.attempts()))
		}
		r.sameNumber()
	})
}

func TestCallersOwnNumberIsKept(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.lead("b")
		r.apply(100)
		r.addPeer("b").propose = accepts(5)
		req := &Request{Writer: "client/x", Number: 9, Lowest: 4}
		if _, err := r.Propose(t.Context(), "me", req, put("k")); err != nil {
			t.Fatal(err)
		}
		got := r.asked[0].GetRequestId()
		if got.GetWriter() != "client/x" || got.GetNumber() != 9 || got.GetLowest() != 4 {
			t.Errorf("request id %v", got)
		}
		// It took none of this server's.
		if _, err := r.Propose(t.Context(), "me", nil, put("k")); err != nil {
			t.Fatal(err)
		}
		if got := r.asked[1].GetRequestId(); got.GetNumber() != 1 {
			t.Errorf("this server's first number is %d", got.GetNumber())
		}
	})
}

// TestFollowsTheLeader: a server that says it does not lead is asked again at
// once where the next leader is.
func TestFollowsTheLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.apply(100)
		old, next := r.addPeer("b"), r.addPeer("c")
		next.propose = accepts(5)
		old.propose = func(context.Context, []*commandv1.Command) ([]*commandv1.Result, error) {
			r.lead("c")
			return nil, replica.ErrNotLeader
		}
		r.lead("b")
		took := after(func() {
			if _, err := r.Propose(t.Context(), "me", nil, put("k")); err != nil {
				t.Fatal(err)
			}
		})
		if took != 0 {
			t.Errorf("took %s, want no pause: the change of leader was known", took)
		}
		if d := cmp.Diff([]string{"b", "c"}, r.attempts()); d != "" {
			t.Errorf("attempts (-want +got):\n%s", d)
		}
		r.sameNumber()
	})
}

func TestHeldWhileThereIsNoLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.apply(100)
		r.addPeer("b").propose = accepts(5)
		out := make(chan error, 1)
		go func() {
			_, err := r.Propose(t.Context(), "me", nil, put("k"))
			out <- err
		}()
		time.Sleep(4900 * time.Millisecond)
		took := after(func() {
			r.lead("b")
			if err := <-out; err != nil {
				t.Error(err)
			}
		})
		if took != 0 {
			t.Errorf("took another %s after a leader was known", took)
		}
	})
}

func TestGivesUpWithoutALeader(t *testing.T) {
	for name, lead := range map[string]string{"none is known": "", "it cannot be reached": "gone", "it says it does not lead": "b"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				r.addPeer("b")
				r.lead(lead)
				var err error
				took := after(func() { _, err = r.Propose(t.Context(), "me", nil, put("k")) })
				e := errs.From(err)
				if e == nil || e.Code != codes.Unavailable || e.Reason != "NO_LEADER" || e.RetryAfter == 0 || e.Hint == "" {
					t.Errorf("got %+v, want Unavailable, NO_LEADER with a hint and a time to retry", e)
				}
				if took < holdWithoutLeader || took > holdWithoutLeader+100*time.Millisecond {
					t.Errorf("gave up after %s, want %s", took, holdWithoutLeader)
				}
			})
		})
	}
}

// TestUnknownOutcomeIsNeverHidden: once an attempt may have taken effect, no
// later error may sound as if nothing had happened.
func TestUnknownOutcomeIsNeverHidden(t *testing.T) {
	for name, then := range map[string]error{
		"no leader any more": replica.ErrNotLeader,
		"then a full queue":  replica.ErrBusy,
		"then closing":       replica.ErrClosed,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				n := 0
				p := r.addPeer("b")
				p.propose = func(context.Context, []*commandv1.Command) ([]*commandv1.Result, error) {
					if n++; n == 1 {
						return nil, replica.ErrUnknownOutcome
					}
					return nil, then
				}
				r.lead("b")
				_, err := r.Propose(t.Context(), "me", nil, put("k"))
				e := errs.From(err)
				if e == nil || e.Code != codes.Unavailable || e.Reason != "UNKNOWN_OUTCOME" || e.Hint == "" {
					t.Errorf("got %+v, want Unavailable, UNKNOWN_OUTCOME with a hint", e)
				}
			})
		})
	}
}

func TestBrokenConnectionIsAnUnknownOutcome(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.apply(100)
		n := 0
		p := r.addPeer("b")
		p.propose = func(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
			if n++; n == 1 {
				return nil, status.Error(codes.Unavailable, "error reading from server: EOF")
			}
			return accepts(3)(ctx, cmds)
		}
		r.lead("b")
		if _, err := r.Propose(t.Context(), "me", nil, put("k")); err != nil {
			t.Fatal(err)
		}
		r.sameNumber()
		n = -1000
		p.propose = func(context.Context, []*commandv1.Command) ([]*commandv1.Result, error) {
			return nil, status.Error(codes.Unavailable, "error reading from server: EOF")
		}
		if _, err := r.Propose(t.Context(), "me", nil, put("k")); errs.Reason(err) != "UNKNOWN_OUTCOME" {
			t.Errorf("got %v (%s), want UNKNOWN_OUTCOME", err, errs.Reason(err))
		}
	})
}

func TestBackpressureAndSizeAreFinal(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   codes.Code
		reason string
	}{
		{replica.ErrBusy, codes.ResourceExhausted, "BACKPRESSURE"},
		{replica.ErrTooLarge, codes.InvalidArgument, "TOO_LARGE"},
	} {
		for _, lead := range []string{"self", "b"} {
			inBubble(t, func(t *testing.T, r *rig) {
				refuse := func(context.Context, []*commandv1.Command) ([]*commandv1.Result, error) { return nil, c.err }
				r.propose, r.addPeer("b").propose = refuse, refuse
				r.lead(lead)
				var err error
				if took := after(func() { _, err = r.Propose(t.Context(), "me", nil, put("k")) }); took != 0 {
					t.Errorf("%v: took %s", c.err, took)
				}
				if errs.Code(err) != c.code || errs.Reason(err) != c.reason {
					t.Errorf("%v at %s became %s %s, want %s %s", c.err, lead, errs.Code(err), errs.Reason(err), c.code, c.reason)
				}
			})
		}
	}
}

// TestHungLeaderIsAbandonedWhenAnotherIsElected: its process may be stopped,
// so that no answer and no error will ever come.
func TestHungLeaderIsAbandonedWhenAnotherIsElected(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.apply(100)
		r.addPeer("b").propose = hangs
		r.addPeer("c").propose = accepts(5)
		r.lead("b")
		out := make(chan error, 1)
		go func() {
			_, err := r.Propose(t.Context(), "me", nil, put("k"))
			out <- err
		}()
		time.Sleep(time.Second)
		took := after(func() {
			r.lead("c")
			if err := <-out; err != nil {
				t.Error(err)
			}
		})
		if took > retryPause {
			t.Errorf("took %s after the election", took)
		}
		if d := cmp.Diff([]string{"b", "c"}, r.attempts()); d != "" {
			t.Errorf("attempts (-want +got):\n%s", d)
		}
		r.sameNumber()
	})
}

// TestSlowLeaderDoesNotUseUpTheHold: a disk that stalls for longer than the
// hold is not the absence of a leader.
func TestSlowLeaderDoesNotUseUpTheHold(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.apply(100)
		r.addPeer("b").propose = func(context.Context, []*commandv1.Command) ([]*commandv1.Result, error) {
			time.Sleep(8 * time.Second)
			r.lead("")
			return nil, replica.ErrUnknownOutcome
		}
		r.addPeer("c").propose = accepts(5)
		r.lead("b")
		out := make(chan error, 1)
		go func() {
			_, err := r.Propose(t.Context(), "me", nil, put("k"))
			out <- err
		}()
		time.Sleep(11 * time.Second)
		r.lead("c")
		if err := <-out; err != nil {
			t.Error(err)
		}
	})
}

func TestContextThatEndsTellsWhatIsKnown(t *testing.T) {
	for name, c := range map[string]struct{ lead, reason string }{
		"while the leader works": {"b", "UNKNOWN_OUTCOME"},
		"while there is none":    {"", "NO_LEADER"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				r.addPeer("b").propose = hangs
				r.lead(c.lead)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := r.Propose(ctx, "me", nil, put("k"))
				if errs.Code(err) != codes.DeadlineExceeded || errs.Reason(err) != c.reason {
					t.Errorf("got %v (%s %s), want DeadlineExceeded %s", err, errs.Code(err), errs.Reason(err), c.reason)
				}
			})
		})
	}
}

func TestMissingResultsAreAskedForAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.apply(100)
		n := 0
		r.addPeer("b").propose = func(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
			if n++; n == 1 {
				return nil, nil
			}
			return accepts(5)(ctx, cmds)
		}
		r.lead("b")
		if _, err := r.Propose(t.Context(), "me", nil, put("k")); err != nil {
			t.Error(err)
		}
		r.sameNumber()
	})
}

func TestRefusalIsAnErrorWithItsReason(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.lead("self")
		r.apply(100)
		r.propose = func(context.Context, []*commandv1.Command) ([]*commandv1.Result, error) {
			return []*commandv1.Result{{
				Revision: 3, Code: commandv1.Code_CODE_FAILED_PRECONDITION, Reason: "INTERCEPT_CONFLICT", Message: "taken", Hint: "use --force",
			}}, nil
		}
		res, err := r.Propose(t.Context(), "me", nil, put("k"))
		e := errs.From(err)
		if e == nil || e.Code != codes.FailedPrecondition || e.Reason != "INTERCEPT_CONFLICT" || e.Message != "taken" || e.Hint != "use --force" {
			t.Errorf("got %+v", e)
		}
		if res.GetRevision() != 3 {
			t.Errorf("the result is %v", res)
		}
		if len(r.attempts()) != 1 {
			t.Errorf("%d attempts: a refusal is final", len(r.attempts()))
		}
	})
}

func TestServerThatLagsSaysSo(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.lead("b")
		r.addPeer("b").propose = accepts(50)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.Propose(ctx, "me", nil, put("k"))
		if errs.Code(err) != codes.Unavailable || errs.Reason(err) != "BEHIND" {
			t.Errorf("got %v (%s), want BEHIND", err, errs.Reason(err))
		}
	})
}

func TestForwardedWritesAreNotForwardedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.addPeer("b").propose = accepts(5)
		r.lead("b")
		_, err := r.ProposeHere(t.Context(), []*commandv1.Command{put("k")})
		if errs.Code(err) != codes.Unavailable || errs.Reason(err) != "NOT_LEADER" {
			t.Errorf("got %v (%s), want NOT_LEADER", err, errs.Reason(err))
		}
		r.propose = func(context.Context, []*commandv1.Command) ([]*commandv1.Result, error) {
			return nil, fmt.Errorf("%w: %w", replica.ErrUnknownOutcome, replica.ErrClosed)
		}
		// Closing, but the command is on its way: that must not read as "no".
		if _, err = r.ProposeHere(t.Context(), []*commandv1.Command{put("k")}); errs.Reason(err) != "UNKNOWN_OUTCOME" {
			t.Errorf("got %v (%s), want UNKNOWN_OUTCOME", err, errs.Reason(err))
		}
		if d := cmp.Diff([]string{"self", "self"}, r.attempts()); d != "" {
			t.Errorf("attempts (-want +got):\n%s", d)
		}
	})
}

func TestWindowBoundsWhatIsOutstandingAndLowestAdvances(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.apply(1 << 40)
		answer := make(map[uint64]chan struct{})
		r.lead("self")
		r.propose = func(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
			r.mu.Lock()
			ch := make(chan struct{})
			answer[cmds[0].GetRequestId().GetNumber()] = ch
			r.mu.Unlock()
			<-ch
			return accepts(1)(ctx, cmds)
		}
		done := make(chan error, window+10)
		write := func() {
			go func() {
				_, err := r.Propose(t.Context(), "me", nil, put("k"))
				done <- err
			}()
			synctest.Wait()
		}
		for range window + 1 {
			write()
		}
		if n := len(answer); n != window {
			t.Fatalf("%d are outstanding, want %d", n, window)
		}
		// The second ends first: the lowest is still the first.
		close(answer[2])
		synctest.Wait()
		if n := len(answer); n != window {
			t.Fatalf("%d went out, want %d: the first one is still waited for", n, window)
		}
		close(answer[1])
		synctest.Wait()
		if answer[window+1] == nil {
			t.Fatal("the next one did not go out")
		}
		last := r.asked[len(r.asked)-1].GetRequestId()
		if last.GetNumber() != window+1 || last.GetLowest() != 3 {
			t.Errorf("request %d says that the lowest one is %d, want %d and 3", last.GetNumber(), last.GetLowest(), window+1)
		}
		for n := uint64(3); n <= window+1; n++ {
			close(answer[n])
		}
		for range window + 1 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestFullWindowEndsWithTheContext(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.addPeer("b").propose = hangs
		r.lead("b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		done := make(chan error, window+1)
		for range window + 1 {
			go func() {
				_, err := r.Propose(ctx, "me", nil, put("k"))
				done <- err
			}()
		}
		for range window + 1 {
			if err := <-done; errs.Code(err) != codes.DeadlineExceeded {
				t.Fatalf("got %v, want DeadlineExceeded", err)
			}
		}
		if n := len(r.attempts()); n != window {
			t.Errorf("%d attempts, want %d", n, window)
		}
	})
}

func TestDigestIsOfTheOperationOnly(t *testing.T) {
	a, err := new(Engine).payloadDigest(&commandv1.Command{Version: 1, Identity: "x", StampedId: "y", Op: put("k").GetOp()})
	if err != nil {
		t.Fatal(err)
	}
	b, err := new(Engine).payloadDigest(&commandv1.Command{Version: 1, Time: 5, ExpectedTerm: 3, Op: put("k").GetOp()})
	if err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) {
		t.Error("stamps change the digest")
	}
	if c, _ := new(Engine).payloadDigest(&commandv1.Command{Version: 1, Op: put("other").GetOp()}); string(a) == string(c) {
		t.Error("another operation has the same digest")
	}
}

func TestTransportErrorKeepsWhatItDoesNotKnow(t *testing.T) {
	other := errors.New("other")
	if got := transportError(other); got != other {
		t.Errorf("got %v", got)
	}
	if got := transportError(nil); got != nil {
		t.Errorf("got %v for nil", got)
	}
}
