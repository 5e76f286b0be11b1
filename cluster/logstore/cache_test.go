package logstore

import (
	"fmt"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// TestCacheAgainstModel compares the cache with the log itself: it may know
// less, never something else, and it knows the newest entries.
func TestCacheAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const slots, maxBytes = 5, 5 * (entryOverhead + 8)
		c := newCache(slots, maxBytes)
		model := make(map[uint64]string)
		var last uint64
		term := uint64(0)
		add := func(first uint64, n int) {
			var logs []*raft.Log
			for i := range n {
				term++
				data := fmt.Sprintf("%d%*s", term, rapid.IntRange(0, 300).Draw(t, "size"), "")
				l := &raft.Log{Index: first + uint64(i), Data: []byte(data)}
				model[l.Index] = data
				logs = append(logs, l)
			}
			last = first + uint64(n) - 1
			c.add(logs)
		}
		remove := func(from, to uint64) {
			for i := range model {
				if i >= from && i <= to {
					delete(model, i)
				}
			}
			c.remove(from, to)
		}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) { add(last+1, rapid.IntRange(1, 8).Draw(t, "n")) },
			"gap": func(t *rapid.T) {
				add(last+uint64(rapid.IntRange(2, 9).Draw(t, "gap")), rapid.IntRange(1, 3).Draw(t, "n"))
			},
			"compact": func(t *rapid.T) { remove(0, rapid.Uint64Range(0, last).Draw(t, "to")) },
			"cut": func(t *rapid.T) {
				from := rapid.Uint64Range(1, last+1).Draw(t, "from")
				remove(from, last)
				last = from - 1
			},
			"": func(t *rapid.T) {
				n, bytes := c.size()
				if n > slots || bytes > maxBytes {
					t.Fatalf("%d entries of %d bytes", n, bytes)
				}
				sum := 0
				for i := uint64(0); i < last+12; i++ {
					var l raft.Log
					if !c.get(i, &l) {
						continue
					}
					sum += weight(&l)
					if want, ok := model[i]; !ok || want != string(l.Data) || l.Index != i {
						t.Fatalf("entry %d is %q (%d), the log has %q (%v)", i, l.Data, l.Index, want, ok)
					}
				}
				if sum != bytes {
					t.Fatalf("%d bytes are counted, %d are held", bytes, sum)
				}
			},
		})
		if last > 0 {
			add(last+1, 1)
			var l raft.Log
			if fits := len(model[last])+entryOverhead <= maxBytes; c.get(last, &l) != fits {
				t.Fatal("the newest entry is not there")
			}
		}
	})
}

func TestCacheIsReadWhileItChanges(t *testing.T) {
	c := newCache(16, 1<<20)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			for i := uint64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				var l raft.Log
				if c.get(i%400, &l) && (l.Index != i%400 || string(l.Data) != fmt.Sprint(l.Index)) {
					t.Errorf("entry %d is %d, %q", i%400, l.Index, l.Data)
				}
			}
		})
	}
	for round := range 20 {
		for i := uint64(1); i < 400; i++ {
			c.add([]*raft.Log{{Index: i, Data: fmt.Append(nil, i)}})
			if i%50 == uint64(round) {
				c.remove(0, i-5)
			}
		}
		c.remove(200, 399)
	}
	close(stop)
	wg.Wait()
}
