package engine

import (
	"container/list"
	"context"
	"fmt"
	"sync"
)

// window bounds how far a writer's newest number may be ahead of its oldest
// unanswered one: the state machine keeps that many results per writer.
const window = 1000

// writer numbers commands and knows the lowest number still waited for.
type writer struct {
	// base is the name of the process's first numbering, turn counts the later
	// ones. The state machine knows them as those of one process by the names.
	base, name string
	turn       int

	mu     sync.Mutex
	next   uint64
	lowest uint64
	done   map[uint64]bool
	// waiting are those that wait for a place, in the order of their coming.
	waiting list.List
}

func newWriter(name string) *writer {
	return &writer{base: name, name: name, next: 1, lowest: 1, done: make(map[uint64]bool)}
}

// successor numbers from 1 on under a name that was not used before.
func (w *writer) successor() *writer {
	next := newWriter(w.base)
	next.turn = w.turn + 1
	next.name = fmt.Sprintf("%s/%d", w.base, next.turn)
	return next
}

// begin takes the next number, waiting while the window is full.
func (w *writer) begin(ctx context.Context) (number, lowest uint64, err error) {
	w.mu.Lock()
	for w.next >= w.lowest+window {
		turn := make(chan struct{})
		place := w.waiting.PushBack(turn)
		w.mu.Unlock()
		select {
		case <-turn:
			w.mu.Lock()
		case <-ctx.Done():
			w.mu.Lock()
			defer w.mu.Unlock()
			select {
			case <-turn:
				// It is the next one's now.
				w.wake(1)
			default:
				w.waiting.Remove(place)
			}
			return 0, 0, ctx.Err()
		}
	}
	defer w.mu.Unlock()
	number = w.next
	w.next++
	return number, w.lowest, nil
}

// wake lets the first n go on; w.mu is held.
func (w *writer) wake(n int) {
	for ; n > 0 && w.waiting.Len() > 0; n-- {
		close(w.waiting.Remove(w.waiting.Front()).(chan struct{}))
	}
}

// end says that nobody will ask for number again.
func (w *writer) end(number uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done[number] = true
	moved := 0
	for w.done[w.lowest] {
		delete(w.done, w.lowest)
		w.lowest++
		moved++
	}
	w.wake(moved)
}
