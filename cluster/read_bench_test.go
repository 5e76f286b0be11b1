package cluster_test

import (
	"fmt"
	"sync"
	"testing"

	"trivet/cluster/clustertest"
)

// BenchmarkLinearizableRead compares the rounds of ConfirmTerm with Raft's
// VerifyLeader, by the number of readers. docs/adr/0007 quotes it.
func BenchmarkLinearizableRead(b *testing.B) {
	c := clustertest.Start(b, 3, nil)
	leader := c.Leader().Server
	for _, readers := range []int{1, 64, 1024} {
		for name, read := range map[string]func() error{
			"ConfirmTerm":  func() error { _, err := leader.ReadRevision(b.Context()); return err },
			"VerifyLeader": func() error { leader.VerifyLeader(); return nil },
		} {
			b.Run(fmt.Sprintf("%s/readers=%d", name, readers), func(b *testing.B) {
				var wg sync.WaitGroup
				next := make(chan struct{}, readers)
				for range readers {
					wg.Go(func() {
						for range next {
							if err := read(); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				for b.Loop() {
					next <- struct{}{}
				}
				close(next)
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reads/s")
			})
		}
	}
}
