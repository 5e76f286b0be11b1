package rt

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// counting is an actor that closes done after n messages.
func counting(s *System, capacity, n int) (Ref[*int], chan struct{}) {
	done := make(chan struct{})
	seen := 0
	spec := script[*int]{handle: func(*Ctx[*int], *int) error {
		if seen++; seen == n {
			close(done)
		}
		return nil
	}}.spec("a")
	spec.Capacity = capacity
	ref, err := Spawn(s, spec)
	if err != nil {
		panic(err)
	}
	return ref, done
}

func end(b *testing.B, s *System) {
	b.Helper()
	b.StopTimer()
	if err := s.Shutdown(context.Background()); err != nil {
		b.Error(err)
	}
}

// BenchmarkOffer is the cost of a message from Offer through Handle; the
// sender waits where the mailbox is full.
func BenchmarkOffer(b *testing.B) {
	s := NewSystem(Options{})
	ref, done := counting(s, 1024, b.N)
	m := new(int)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if ref.Offer(m) != nil {
			if err := ref.Push(b.Context(), m); err != nil {
				b.Fatal(err)
			}
		}
	}
	<-done
	end(b, s)
}

// BenchmarkPush4 has four senders that wait for room.
func BenchmarkPush4(b *testing.B) {
	s := NewSystem(Options{})
	n := (b.N + 3) / 4
	ref, done := counting(s, 1024, 4*n)
	m := new(int)
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range n {
				if err := ref.Push(context.Background(), m); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	<-done
	end(b, s)
}

// BenchmarkChannel is the baseline of BenchmarkOffer.
func BenchmarkChannel(b *testing.B) {
	c := make(chan any, 1024)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range c { //nolint:revive // only the transfer counts
		}
	})
	m := new(int)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		c <- m
	}
	close(c)
	wg.Wait()
}

func BenchmarkAsk(b *testing.B) {
	s := NewSystem(Options{})
	ref, err := Spawn(s, script[Reply[int]]{handle: func(_ *Ctx[Reply[int]], r Reply[int]) error {
		r.Send(1)
		return nil
	}}.spec("a"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := Ask(b.Context(), ref, func(r Reply[int]) Reply[int] { return r }); err != nil {
			b.Fatal(err)
		}
	}
	end(b, s)
}

// BenchmarkSpawn is the cost of Spawn below a group until Start has run, and
// of the memory that an idle actor keeps.
func BenchmarkSpawn(b *testing.B) {
	s := NewSystem(Options{})
	g, err := SpawnGroup(s, "g", GroupPolicy{})
	if err != nil {
		b.Fatal(err)
	}
	var started atomic.Int64
	done := make(chan struct{})
	spec := script[int]{start: func(*Ctx[int]) error {
		if started.Add(1) == int64(b.N) {
			close(done)
		}
		return nil
	}}.spec("a")
	refs := make([]Ref[int], b.N)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&before)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if refs[i], err = Spawn(g, spec); err != nil {
			b.Fatal(err)
		}
	}
	<-done
	b.StopTimer()
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/float64(b.N), "heapB/actor")
	runtime.KeepAlive(refs)
	end(b, s)
}

func BenchmarkSpawnAndStop(b *testing.B) {
	s := NewSystem(Options{})
	spec := script[int]{}.spec("a")
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		ref, err := Spawn(s, spec)
		if err != nil {
			b.Fatal(err)
		}
		if err := ref.Stop(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	end(b, s)
}

func BenchmarkAfter(b *testing.B) {
	s := NewSystem(Options{})
	done := make(chan struct{})
	n := 0
	_, err := Spawn(s, script[int]{
		start: func(c *Ctx[int]) error { c.After(0, 0); return nil },
		handle: func(c *Ctx[int], _ int) error {
			c.After(time.Hour, 0).Stop()
			if n++; n == b.N {
				close(done)
				return nil
			}
			c.After(0, 0)
			return nil
		},
	}.spec("a"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	<-done
	end(b, s)
}
