package replica

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// scriptedRounds answers rounds when the test says so.
type scriptedRounds struct {
	mu     sync.Mutex
	rounds []chan error
}

func (v *scriptedRounds) confirm(context.Context, uint64) error {
	ch := make(chan error)
	v.mu.Lock()
	v.rounds = append(v.rounds, ch)
	v.mu.Unlock()
	return <-ch
}

func (v *scriptedRounds) answer(i int, err error) { v.rounds[i] <- err }

func TestReadersShareTheRoundThatStartsAfterThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(scriptedRounds)
		v := newVerifier(s.confirm)
		defer v.close()
		ask := func() <-chan error {
			out := make(chan error, 1)
			go func() { out <- v.verify(t.Context(), 1) }()
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
		s := new(scriptedRounds)
		v := newVerifier(s.confirm)
		ctx, cancel := context.WithCancel(t.Context())
		out := make(chan error, 1)
		go func() { out <- v.verify(ctx, 1) }()
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
		if err := v.verify(t.Context(), 1); !errors.Is(err, ErrClosed) {
			t.Errorf("after close: %v, want ErrClosed", err)
		}
		s.answer(0, nil)
		<-closed
	})
}
