package replica

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// scriptedVerifier answers rounds when the test says so.
type scriptedVerifier struct {
	mu     sync.Mutex
	rounds []*scriptedFuture
}

func (v *scriptedVerifier) VerifyLeader() raft.Future {
	v.mu.Lock()
	defer v.mu.Unlock()
	f := &scriptedFuture{done: make(chan struct{})}
	v.rounds = append(v.rounds, f)
	return f
}

func (v *scriptedVerifier) answer(i int, err error) {
	v.rounds[i].err = err
	close(v.rounds[i].done)
}

func TestReadersShareTheRoundThatStartsAfterThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(scriptedVerifier)
		v := newVerifier(s)
		defer v.close()
		ask := func() <-chan error {
			out := make(chan error, 1)
			go func() { out <- v.verify(t.Context()) }()
			synctest.Wait()
			return out
		}
		first := ask()
		var later []<-chan error
		for range 50 {
			later = append(later, ask())
		}
		if len(s.rounds) != 1 {
			t.Fatalf("%d rounds are under way, want 1", len(s.rounds))
		}
		s.answer(0, nil)
		synctest.Wait()
		if err := <-first; err != nil {
			t.Error(err)
		}
		select {
		case err := <-later[0]:
			t.Fatalf("a reader was answered by a round that began before it: %v", err)
		default:
		}
		if len(s.rounds) != 2 {
			t.Fatalf("%d rounds, want a second one for all that came during the first", len(s.rounds))
		}
		s.answer(1, raft.ErrLeadershipLost)
		for _, out := range later {
			if err := <-out; !errors.Is(err, ErrNotLeader) {
				t.Errorf("got %v, want ErrNotLeader", err)
			}
		}
		if len(s.rounds) != 2 {
			t.Errorf("%d rounds, want none more", len(s.rounds))
		}
	})
}

func TestVerifyEndsWithItsContextAndCloseWaitsForTheRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(scriptedVerifier)
		v := newVerifier(s)
		ctx, cancel := context.WithCancel(t.Context())
		out := make(chan error, 1)
		go func() { out <- v.verify(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-out; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		closed := make(chan struct{})
		go func() { v.close(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("close left the round behind")
		default:
		}
		if err := v.verify(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after close: %v, want ErrClosed", err)
		}
		s.answer(0, nil)
		<-closed
	})
}
