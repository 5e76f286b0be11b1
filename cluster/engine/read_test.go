package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

func at(rev uint64) func(context.Context) (uint64, error) {
	return func(context.Context) (uint64, error) { return rev, nil }
}

func TestReadLevels(t *testing.T) {
	for name, c := range map[string]struct {
		level Level
		seen  uint64
		asks  int
	}{
		"stale":                            {Stale, 0, 0},
		"stale does not look at seen":      {Stale, 1000, 0},
		"default that was seen here":       {Default, 9, 0},
		"default of somebody unknown":      {Default, 0, 1},
		"linearizable":                     {Linearizable, 0, 1},
		"linearizable, whatever was seen":  {Linearizable, 9, 1},
		"default that is seen by everyone": {Default, 10, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				r.lead("b")
				r.apply(10)
				r.addPeer("b").read = at(10)
				root, err := r.Read(t.Context(), c.level, c.seen)
				if err != nil || root == nil {
					t.Fatalf("got %v, %v", root, err)
				}
				if n := len(r.questions()); n != c.asks {
					t.Errorf("the leader was asked %d times, want %d", n, c.asks)
				}
			})
		})
	}
}

func TestReadOnTheLeaderAsksItself(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.lead("self")
		r.apply(3)
		r.read = at(3)
		if _, err := r.Read(t.Context(), Linearizable, 0); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"self"}, r.questions()); d != "" {
			t.Errorf("questions (-want +got):\n%s", d)
		}
		if rev, err := r.ReadRevisionHere(t.Context()); rev != 3 || err != nil {
			t.Errorf("another server is told %d, %v", rev, err)
		}
	})
}

func TestDefaultReadWaitsForWhatItsCallerHasSeen(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.apply(3)
		out := make(chan error, 1)
		go func() {
			_, err := r.Read(t.Context(), Default, 5)
			out <- err
		}()
		time.Sleep(time.Second)
		r.apply(5)
		if err := <-out; err != nil {
			t.Error(err)
		}
		if n := len(r.questions()); n != 0 {
			t.Errorf("the leader was asked %d times", n)
		}
	})
}

func TestReadThatLagsAsksTheLeaderAndThenSaysSo(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.lead("b")
		r.addPeer("b").read = at(50)
		r.apply(3)
		var err error
		took := after(func() { _, err = r.Read(t.Context(), Default, 5) })
		if errs.Code(err) != codes.Unavailable || errs.Reason(err) != "BEHIND" {
			t.Errorf("got %v (%s), want BEHIND", err, errs.Reason(err))
		}
		if took != catchUp+catchUpLeader {
			t.Errorf("took %s, want %s", took, catchUp+catchUpLeader)
		}
	})
}

func TestRevisionFromAnotherHistoryIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.lead("b")
		r.addPeer("b").read = at(10)
		r.apply(10)
		_, err := r.Read(t.Context(), Default, 11)
		if errs.Code(err) != codes.FailedPrecondition || errs.Reason(err) != "REVISION_AHEAD" {
			t.Errorf("got %v (%s), want REVISION_AHEAD", err, errs.Reason(err))
		}
	})
}

func TestReadersShareTheQuestionThatIsAskedAfterThem(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.lead("b")
		r.apply(100)
		var gates []chan struct{}
		r.addPeer("b").read = func(context.Context) (uint64, error) {
			r.mu.Lock()
			gate := make(chan struct{})
			gates = append(gates, gate)
			r.mu.Unlock()
			<-gate
			return 7, nil
		}
		read := func(ctx context.Context) <-chan error {
			out := make(chan error, 1)
			go func() {
				_, err := r.Read(ctx, Linearizable, 0)
				out <- err
			}()
			synctest.Wait()
			return out
		}
		first := read(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		impatient := read(ctx)
		var later []<-chan error
		for range 100 {
			later = append(later, read(t.Context()))
		}
		cancel()
		if err := <-impatient; errs.Code(err) != codes.Canceled {
			t.Errorf("a canceled reader gets %v", err)
		}
		if n := len(r.questions()); n != 1 {
			t.Fatalf("%d questions, want 1", n)
		}
		close(gates[0])
		if err := <-first; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := len(r.questions()); n != 2 {
			t.Fatalf("%d questions, want one more for all that came during the first", n)
		}
		close(gates[1])
		for _, out := range later {
			if err := <-out; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestReadIsHeldWhileThereIsNoLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		var err error
		took := after(func() { _, err = r.Read(t.Context(), Linearizable, 0) })
		if errs.Code(err) != codes.Unavailable || errs.Reason(err) != "NO_LEADER" {
			t.Errorf("got %v (%s), want NO_LEADER", err, errs.Reason(err))
		}
		if took < holdWithoutLeader || took > holdWithoutLeader+100*time.Millisecond {
			t.Errorf("gave up after %s", took)
		}
	})
}

// TestLeaderThatDoesNotAnswerReadsIsAskedAgain: without that, one lost answer
// would stop all reads of this server.
func TestLeaderThatDoesNotAnswerReadsIsAskedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.lead("b")
		r.apply(100)
		n := 0
		r.addPeer("b").read = func(ctx context.Context) (uint64, error) {
			if n++; n == 1 {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return 7, nil
		}
		took := after(func() {
			if _, err := r.Read(t.Context(), Linearizable, 0); err != nil {
				t.Error(err)
			}
		})
		if took < readAttempt || took > readAttempt+100*time.Millisecond {
			t.Errorf("took %s, want %s", took, readAttempt)
		}
	})
}

func TestCloseEndsReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, peers: make(map[string]*peer), moved: make(chan struct{})}
		r.Engine = New(Config{Replica: (*fakeReplica)(r), Peers: (*fakePeers)(r)})
		out := make(chan error, 1)
		go func() {
			_, err := r.Engine.reads.get(t.Context())
			out <- err
		}()
		synctest.Wait()
		r.Close()
		if err := <-out; errs.Code(err) != codes.Unavailable || errs.Reason(err) != "SERVER_STOPPING" {
			t.Errorf("got %v (%s), want SERVER_STOPPING", err, errs.Reason(err))
		}
		if _, err := r.Engine.reads.get(t.Context()); errs.Reason(err) != "SERVER_STOPPING" {
			t.Errorf("after close: %v", err)
		}
	})
}
