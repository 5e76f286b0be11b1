package actors

import (
	"context"
	"runtime"
	"testing"
	"time"

	"trivet/fsm"
	"trivet/internal/rt"
	commandv1 "trivet/proto/trivet/command/v1"
)

// crowded is a world with so many sessions, half of them agents, and
// intercepts.
func crowded(tb testing.TB, sessions, intercepts int) *world {
	tb.Helper()
	w := newWorld(tb, fsm.Options{})
	var cmds []*commandv1.Command
	flush := func() {
		w.apply(cmds...)
		cmds = nil
	}
	for i := range sessions / 2 {
		agent := arriveAgent(sessionName(i), 1)
		info := agent.GetArriveAgent().Info
		info.Name = "w" + sessionName(i) // one workload each
		if cmds = append(cmds, agent, arriveClient(sessionName(i))); len(cmds) >= 256 {
			flush()
		}
	}
	for i := range intercepts {
		icept := createIntercept(sessionName(i%(sessions/2)), sessionName(i), 0)
		icept.GetCreateIntercept().Spec.Agent = "w" + sessionName(i%(sessions/2))
		if cmds = append(cmds, icept); len(cmds) >= 256 {
			flush()
		}
	}
	flush()
	if got := w.m.Root().Len(fsm.TableIntercepts); got != intercepts {
		tb.Fatalf("%d intercepts, want %d", got, intercepts)
	}
	return w
}

// heap is the live heap after a collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkStart measures how long a new leader takes until every row has its
// actor, and what that costs in memory, the state itself not counted.
func BenchmarkStart(b *testing.B) {
	for _, bc := range []struct {
		name                 string
		sessions, intercepts int
	}{
		{"100k sessions", 100_000, 0},
		{"10k intercepts", 20_000, 10_000},
		{"100k sessions, 10k intercepts", 100_000, 10_000},
	} {
		b.Run(bc.name, func(b *testing.B) {
			w := crowded(b, bc.sessions, bc.intercepts)
			sys := rt.NewSystem(rt.Options{})
			defer func() { _ = sys.Shutdown(context.Background()) }()
			var took time.Duration
			before := heap()
			var grown int64
			for b.Loop() {
				began := time.Now()
				l, err := StartLeader(context.Background(), sys, Config{Term: 1, Replicator: w})
				if err != nil {
					b.Fatal(err)
				}
				<-l.Ready()
				took += time.Since(began)
				grown = heap() - before
				if err := l.Stop(context.Background()); err != nil {
					b.Fatal(err)
				}
				l = nil
				runtime.GC()
			}
			b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "ms/ready")
			b.ReportMetric(float64(grown)/float64(bc.sessions+bc.intercepts), "B/row")
		})
	}
}

// BenchmarkTouch measures one Remain among 100,000 sessions, from all cores.
func BenchmarkTouch(b *testing.B) {
	w := crowded(b, 100_000, 0)
	sys := rt.NewSystem(rt.Options{})
	defer func() { _ = sys.Shutdown(context.Background()) }()
	l, err := StartLeader(context.Background(), sys, Config{Term: 1, Replicator: w})
	if err != nil {
		b.Fatal(err)
	}
	<-l.Ready()
	ids := make([]string, 0, 50_000)
	for i := range cap(ids) {
		ids = append(ids, "agent:"+sessionName(i))
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if !l.Touch(ids[i%len(ids)], time.Time{}) {
				b.Error("unknown session")
				return
			}
		}
	})
	b.StopTimer()
	if err := l.Stop(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAttachments measures a full report of a server that holds the
// streams of 33,000 sessions.
func BenchmarkAttachments(b *testing.B) {
	w := crowded(b, 100_000, 0)
	sys := rt.NewSystem(rt.Options{})
	defer func() { _ = sys.Shutdown(context.Background()) }()
	l, err := StartLeader(context.Background(), sys, Config{Term: 1, Replicator: w})
	if err != nil {
		b.Fatal(err)
	}
	<-l.Ready()
	atts := make([]Attachment, 33_000)
	for i := range atts {
		atts[i] = Attachment{SessionID: "agent:" + sessionName(i), DialStreams: 1, WatchStreams: 3}
	}
	for b.Loop() {
		l.SetAttachments("a", "boot", true, atts)
	}
	if err := l.Stop(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// TestStartStaysSmall bounds what a leader needs for each session.
func TestStartStaysSmall(t *testing.T) {
	const sessions = 20_000
	w := crowded(t, sessions, 0)
	sys := rt.NewSystem(rt.Options{})
	defer func() {
		if err := sys.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	before := heap()
	l, err := StartLeader(context.Background(), sys, Config{Term: 1, Replicator: w})
	if err != nil {
		t.Fatal(err)
	}
	<-l.Ready()
	if each := (heap() - before) / sessions; each > 1024 {
		t.Errorf("%d bytes for each session, want at most 1 KiB", each)
	}
	if err := l.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}
