package logstore

import (
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// BenchmarkAppend measures appends as Raft makes them: one writer at a time,
// which takes what has queued up meanwhile, here from 1 and from 64 clients.
func BenchmarkAppend(b *testing.B) {
	for _, x := range []struct {
		name string
		open func(dir string) (io.Closer, raft.LogStore, error)
	}{
		{"raft-boltdb", func(dir string) (io.Closer, raft.LogStore, error) {
			s, err := newBolt(filepath.Join(dir, boltFile), false)
			return s, s, err
		}},
		{"store", func(dir string) (io.Closer, raft.LogStore, error) {
			s, err := Open(Config{Dir: dir})
			return s, s, err
		}},
	} {
		for name, clients := range map[string]int{"1": 1, "64": 64} {
			b.Run(x.name+"/"+name, func(b *testing.B) {
				c, s, err := x.open(b.TempDir())
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.ResetTimer()
				appendAll(b, s, clients)
				b.StopTimer()
				if err := c.Close(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// appendAll appends b.N entries of 256 bytes, asked for by so many clients.
func appendAll(b *testing.B, s raft.LogStore, clients int) {
	queue := make(chan chan struct{}, clients)
	todo := make(chan struct{}, b.N)
	for range b.N {
		todo <- struct{}{}
	}
	close(todo)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			done := make(chan struct{}, 1)
			for range todo {
				queue <- done
				<-done
			}
		})
	}
	go func() { wg.Wait(); close(queue) }()
	data, index := make([]byte, 256), uint64(0)
	for first := range queue {
		batch := []chan struct{}{first}
		for n := len(queue); n > 0; n-- {
			batch = append(batch, <-queue)
		}
		logs := make([]*raft.Log, len(batch))
		for i := range logs {
			index++
			logs[i] = &raft.Log{Index: index, Term: 1, Data: data, AppendedAt: time.Now()}
		}
		if err := s.StoreLogs(logs); err != nil {
			b.Error(err)
		}
		for _, done := range batch {
			done <- struct{}{}
		}
	}
}
