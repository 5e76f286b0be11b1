package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestPlaceOfOneThatGaveUpGoesToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter("w")
		for range window {
			if _, _, err := w.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		type place struct {
			number uint64
			err    error
		}
		wait := func(ctx context.Context) <-chan place {
			got := make(chan place, 1)
			go func() {
				n, _, err := w.begin(ctx)
				got <- place{n, err}
			}()
			synctest.Wait()
			return got
		}
		impatient, cancel := context.WithCancel(t.Context())
		first, second, third := wait(impatient), wait(t.Context()), wait(t.Context())
		// Both at once: whichever the first one sees, its place must not be lost.
		cancel()
		w.end(1)
		next := uint64(window) + 1
		got := <-first
		switch {
		case errors.Is(got.err, context.Canceled):
		case got.err == nil && got.number == next:
			next++
			w.end(2)
		default:
			t.Fatalf("the first got %+v", got)
		}
		if got := <-second; got.err != nil || got.number != next {
			t.Fatalf("the second got %+v, want number %d", got, next)
		}
		synctest.Wait()
		select {
		case got := <-third:
			t.Fatalf("the third got %+v while the window was full", got)
		default:
		}
		w.end(next - window + 1)
		if got := <-third; got.err != nil || got.number != next+1 {
			t.Fatalf("the third got %+v, want number %d", got, next+1)
		}
	})
}
