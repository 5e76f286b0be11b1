package fsm

import (
	"fmt"
	"io"
	"strings"
	"testing"

	commandv1 "trivet/proto/trivet/command/v1"
)

// filled is a machine with a fleet in it: n clients, n agents of n/2 workloads
// and an intercept per client.
func filled(b *testing.B, n int) *rig {
	b.Helper()
	r := newRig(b, Options{})
	var batch []*commandv1.Command
	flush := func() {
		for _, res := range r.entry(batch...) {
			if res.GetCode() != commandv1.Code_CODE_OK {
				b.Fatal(compact(res))
			}
		}
		batch = nil
	}
	for i := range n {
		name := fmt.Sprintf("client-%06d", i)
		workload := fmt.Sprintf("workload-%06d", i/2)
		spec := interceptSpec(name, "one", workload, int32(80+i%2))
		batch = append(batch, r.stamp(cmdArriveClient(name)),
			r.stamp(cmdArriveAgent(agentInfo(workload, fmt.Sprint(i)))), r.stamp(cmdCreate(name, spec)))
		if len(batch) > 250 {
			flush()
		}
	}
	flush()
	return r
}

// BenchmarkApply measures one command in an entry of 64, numbered as a server
// does, on a state of 20,000 sessions and 10,000 intercepts.
func BenchmarkApply(b *testing.B) {
	const batch = 64
	for name, command := range map[string]func(i int) *commandv1.Command{
		"put-config": func(i int) *commandv1.Command {
			return cmdPutConfig(fmt.Sprintf("key-%04d", i%5000), strings.Repeat("v", 256))
		},
		"arrive-agent": func(i int) *commandv1.Command {
			return cmdArriveAgent(agentInfo(fmt.Sprintf("workload-%06d", i%5000), fmt.Sprint("new-", i)))
		},
		"arrive-again": func(i int) *commandv1.Command {
			return cmdArriveAgent(agentInfo(fmt.Sprintf("workload-%06d", i%10000/2), fmt.Sprint(i%10000)))
		},
		"review": func(i int) *commandv1.Command {
			return cmdReview(fmt.Sprintf("agent:%d", i%10000), fmt.Sprintf("client-%06d:one", i%10000), 1)
		},
	} {
		b.Run(name, func(b *testing.B) {
			r := filled(b, 10_000)
			b.ReportAllocs()
			b.ResetTimer()
			entry := make([]*commandv1.Command, 0, batch)
			for i := range b.N {
				c := command(i)
				number := uint64(i + 1)
				entry = append(entry, r.stamp(withRequest(c, "server/s1/b1", number, number-min(number-1, batch))))
				if len(entry) == batch {
					r.entry(entry...)
					entry = entry[:0]
				}
			}
		})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	r := filled(b, 10_000)
	b.Run("take", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.m.Snapshot()
		}
	})
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			n, err := r.m.Snapshot().WriteTo(io.Discard)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(n)
		}
	})
	snapshot := snapshotOf(b, r.m)
	b.Run("restore", func(b *testing.B) {
		b.SetBytes(int64(len(snapshot)))
		b.ReportAllocs()
		for b.Loop() {
			if err := New(Options{}).Restore(strings.NewReader(snapshot)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkDiff compares two states of 20,000 rows that differ in one.
func BenchmarkDiff(b *testing.B) {
	r := filled(b, 10_000)
	before := r.m.Root()
	r.entry(r.stamp(cmdDepart("agent:77")))
	after := r.m.Root()
	b.ReportAllocs()
	for b.Loop() {
		if len(Diff(before, after)) == 0 {
			b.Fatal("no difference")
		}
	}
}

func BenchmarkDigest(b *testing.B) {
	root := filled(b, 1000).m.Root()
	b.ReportAllocs()
	for b.Loop() {
		root.Digest()
	}
}
