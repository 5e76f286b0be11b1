package engine

import (
	"context"
	"sync"
)

// window bounds how far a writer's newest number may be ahead of its oldest
// unanswered one: the state machine keeps that many results per writer.
const window = 1000

// writer numbers commands and knows the lowest number still waited for.
type writer struct {
	name string

	mu      sync.Mutex
	next    uint64
	lowest  uint64
	done    map[uint64]bool
	advance chan struct{}
}

func newWriter(name string) *writer {
	return &writer{name: name, next: 1, lowest: 1, done: make(map[uint64]bool), advance: make(chan struct{})}
}

// begin takes the next number, waiting while the window is full.
func (w *writer) begin(ctx context.Context) (number, lowest uint64, err error) {
	for {
		w.mu.Lock()
		if w.next < w.lowest+window {
			number = w.next
			w.next++
			lowest = w.lowest
			w.mu.Unlock()
			return number, lowest, nil
		}
		ch := w.advance
		w.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}

// end says that nobody will ask for number again.
func (w *writer) end(number uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done[number] = true
	moved := false
	for w.done[w.lowest] {
		delete(w.done, w.lowest)
		w.lowest++
		moved = true
	}
	if moved {
		close(w.advance)
		w.advance = make(chan struct{})
	}
}
