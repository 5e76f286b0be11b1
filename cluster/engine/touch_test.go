package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"trivet/cluster/replica"
	"trivet/internal/errs"
	peerv1 "trivet/proto/trivet/peer/v1"
)

// touches collects messages: session to activity.
type touches struct {
	mu       sync.Mutex
	messages []map[string]int64
	when     []time.Time
}

func (c *touches) take(_ context.Context, ts []*peerv1.Touch) error {
	m := make(map[string]int64)
	for _, t := range ts {
		m[t.GetSessionId()] = t.GetLastActivity()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.messages = append(c.messages, m)
	c.when = append(c.when, time.Now())
	return nil
}

// toucher is the leader's side on this server.
type toucher struct {
	mu   sync.Mutex
	seen map[string]time.Time
	// gone is a session that it does not have.
	gone string
}

func (c *toucher) Touch(id string, at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[id] = at
	return id != c.gone
}

func TestTouchesTravelTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		var got touches
		r.addPeer("b").touch = got.take
		r.lead("b")
		var wg sync.WaitGroup
		begin := time.Now()
		touch := func(session string, at int64) {
			wg.Go(func() {
				var activity time.Time
				if at != 0 {
					activity = time.Unix(0, at)
				}
				if err := r.Touch(t.Context(), session, activity); err != nil {
					t.Errorf("touch of %s: %v", session, err)
				}
			})
		}
		touch("a", 0)
		touch("b", 20)
		touch("b", 30)
		touch("b", 10)
		wg.Wait()
		if took := time.Since(begin); took != touchEvery {
			t.Errorf("answered after %s, want %s", took, touchEvery)
		}
		// While one message is on its way the next is collected.
		for i := range 100 {
			touch(fmt.Sprintf("s%d", i), 0)
		}
		wg.Wait()
		if n := len(got.messages); n != 2 {
			t.Fatalf("%d messages, want 2", n)
		}
		if d := cmp.Diff(map[string]int64{"a": 0, "b": 30}, got.messages[0]); d != "" {
			t.Errorf("first message (-want +got):\n%s", d)
		}
		if len(got.messages[1]) != 100 {
			t.Errorf("the second message has %d touches, want 100", len(got.messages[1]))
		}
		if gap := got.when[1].Sub(got.when[0]); gap < touchEvery {
			t.Errorf("messages are %s apart, want %s", gap, touchEvery)
		}
	})
}

func TestTouchesOfManySessionsAreSplit(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		var got touches
		r.addPeer("b").touch = got.take
		r.lead("b")
		var wg sync.WaitGroup
		for i := range touchBatch + 10 {
			wg.Go(func() {
				if err := r.Touch(t.Context(), fmt.Sprintf("s%d", i), time.Time{}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		all := make(map[string]bool)
		for _, m := range got.messages {
			if len(m) > touchBatch {
				t.Errorf("a message has %d touches, the limit is %d", len(m), touchBatch)
			}
			for id := range m {
				all[id] = true
			}
		}
		if len(all) != touchBatch+10 {
			t.Errorf("%d sessions were touched, want %d", len(all), touchBatch+10)
		}
	})
}

// TestTouchIsHeldWithoutALeader: an error would make older peers tear
// themselves down, so there is none however long it takes.
func TestTouchIsHeldWithoutALeader(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		var got touches
		r.addPeer("b").touch = got.take
		out := make(chan error, 1)
		go func() { out <- r.Touch(t.Context(), "a", time.Time{}) }()
		time.Sleep(time.Minute)
		select {
		case err := <-out:
			t.Fatalf("it was answered without a leader: %v", err)
		default:
		}
		r.lead("b")
		if err := <-out; err != nil {
			t.Error(err)
		}
		if len(got.messages) != 1 {
			t.Errorf("%d messages, want 1", len(got.messages))
		}
	})
}

func TestTouchLeavesAHungLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		var got touches
		r.addPeer("b").touch = func(ctx context.Context, _ []*peerv1.Touch) error { <-ctx.Done(); return ctx.Err() }
		r.addPeer("c").touch = got.take
		r.lead("b")
		out := make(chan error, 1)
		go func() { out <- r.Touch(t.Context(), "a", time.Time{}) }()
		time.Sleep(10 * time.Second)
		r.lead("c")
		took := after(func() {
			if err := <-out; err != nil {
				t.Error(err)
			}
		})
		if took > retryPause {
			t.Errorf("took %s after the election", took)
		}
	})
}

func TestTouchOnTheLeaderWaitsForItsActors(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.lead("self")
		r.read = func(context.Context) (uint64, error) { return 1, nil }
		out := make(chan error, 1)
		go func() { out <- r.Touch(t.Context(), "a", time.Unix(0, 42)) }()
		time.Sleep(3 * time.Second)
		if _, err := r.TouchHere(t.Context(), nil); errs.Reason(err) != "NOT_LEADER" {
			t.Errorf("another server's touches: %v, want NOT_LEADER", err)
		}
		c := &toucher{seen: make(map[string]time.Time)}
		r.SetToucher(c)
		if err := <-out; err != nil {
			t.Error(err)
		}
		if _, err := r.TouchHere(t.Context(), []*peerv1.Touch{{SessionId: "x", LastActivity: 7}, {SessionId: "y"}}); err != nil {
			t.Error(err)
		}
		want := map[string]time.Time{"a": time.Unix(0, 42), "x": time.Unix(0, 7), "y": {}}
		if d := cmp.Diff(want, c.seen); d != "" {
			t.Errorf("the actors got (-want +got):\n%s", d)
		}
		r.SetToucher(nil)
		if _, err := r.TouchHere(t.Context(), nil); errs.Reason(err) != "NOT_LEADER" {
			t.Errorf("after it stopped leading: %v", err)
		}
	})
}

// TestTouchIsNotAnsweredByALeaderThatWasDeposed: what such a one has been told
// is lost, so its peer must not rely on it.
func TestTouchIsNotAnsweredByALeaderThatWasDeposed(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.lead("self")
		r.read = func(context.Context) (uint64, error) { return 0, replica.ErrNotLeader }
		c := &toucher{seen: make(map[string]time.Time)}
		r.SetToucher(c)
		if _, err := r.TouchHere(t.Context(), []*peerv1.Touch{{SessionId: "x"}}); errs.Reason(err) != "NOT_LEADER" {
			t.Errorf("another server's touch: %v, want NOT_LEADER", err)
		}
		var got touches
		r.addPeer("b").touch = got.take
		out := make(chan error, 1)
		go func() { out <- r.Touch(t.Context(), "a", time.Time{}) }()
		time.Sleep(time.Second)
		select {
		case err := <-out:
			t.Fatalf("answered without a leader: %v", err)
		default:
		}
		r.lead("b")
		if err := <-out; err != nil {
			t.Error(err)
		}
		got.mu.Lock()
		defer got.mu.Unlock()
		if len(got.messages) != 1 {
			t.Errorf("the new leader got %v", got.messages)
		}
	})
}

// TestTouchNamesWhatTheLeaderDoesNotHave: the keepalive of a session that has
// departed is not acknowledged, and those that travel with it are.
func TestTouchNamesWhatTheLeaderDoesNotHave(t *testing.T) {
	both := func(t *testing.T, r *rig) {
		t.Helper()
		gone, there := make(chan error, 1), make(chan error, 1)
		go func() { gone <- r.Touch(t.Context(), "gone", time.Time{}) }()
		go func() { there <- r.Touch(t.Context(), "there", time.Time{}) }()
		if err := <-gone; !errors.Is(err, ErrUnknownSession) {
			t.Errorf("the session that has departed: %v", err)
		}
		if err := <-there; err != nil {
			t.Errorf("the other one: %v", err)
		}
	}
	t.Run("on the leader", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			r.lead("self")
			r.read = func(context.Context) (uint64, error) { return 1, nil }
			r.SetToucher(&toucher{seen: make(map[string]time.Time), gone: "gone"})
			both(t, r)
		})
	})
	t.Run("on another server", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			p := r.addPeer("b")
			p.touch = func(context.Context, []*peerv1.Touch) error { return nil }
			p.unknown = []string{"gone", "never asked about"}
			r.lead("b")
			both(t, r)
		})
	})
}

func TestTouchEndsWithItsContextOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		out := make(chan error, 1)
		go func() { out <- r.Touch(ctx, "a", time.Time{}) }()
		synctest.Wait()
		cancel()
		if err := <-out; errs.Code(err) != codes.Canceled {
			t.Errorf("got %v, want Canceled", err)
		}
	})
}

func TestCloseReleasesTouches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, peers: make(map[string]*peer), moved: make(chan struct{})}
		r.Engine = New(Config{Replica: (*fakeReplica)(r), Peers: (*fakePeers)(r)})
		out := make(chan error, 2)
		go func() { out <- r.Touch(t.Context(), "sent", time.Time{}) }()
		time.Sleep(time.Second) // it is being sent now
		go func() { out <- r.Touch(t.Context(), "collected", time.Time{}) }()
		synctest.Wait()
		r.Close()
		for range 2 {
			if err := <-out; errs.Code(err) != codes.Unavailable || errs.Reason(err) != "SERVER_STOPPING" {
				t.Errorf("got %v (%s), want SERVER_STOPPING", err, errs.Reason(err))
			}
		}
		if err := r.Touch(t.Context(), "late", time.Time{}); errs.Reason(err) != "SERVER_STOPPING" {
			t.Errorf("after close: %v", err)
		}
	})
}
