package logstore

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		childMain(dir)
	}
	// bbolt keeps a lock when it loses its file under way, so that closing hangs;
	// a process that meets that ends.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("trivet/cluster/logstore.(*Store).close.func1"))
}

func open(t testing.TB, dir string, change func(*Config)) *Store {
	t.Helper()
	s, err := tryOpen(dir, change)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func tryOpen(dir string, change func(*Config)) (*Store, error) {
	cfg := Config{Dir: dir}
	if change != nil {
		change(&cfg)
	}
	return Open(cfg)
}

// entry makes an entry that differs from all others.
func entry(index uint64) *raft.Log {
	l := &raft.Log{
		Index: index, Term: 1 + index/10, Type: raft.LogCommand, Data: fmt.Appendf(nil, "the data of entry %d", index),
		AppendedAt: time.Unix(1_700_000_000, int64(index)),
	}
	if index%7 == 0 {
		l.Type, l.Data = raft.LogNoop, nil
	}
	if index%5 == 0 {
		l.Extensions = fmt.Appendf(nil, "extensions of %d", index)
	}
	return l
}

func entries(first, last uint64) []*raft.Log {
	var out []*raft.Log
	for i := first; i <= last; i++ {
		out = append(out, entry(i))
	}
	return out
}

func store(t testing.TB, s *Store, first, last uint64) {
	t.Helper()
	if err := s.StoreLogs(entries(first, last)); err != nil {
		t.Fatal(err)
	}
}

// differs says how a log that was read differs from the one that was stored.
func differs(got, want *raft.Log) string {
	g, w := fmt.Sprint(got.Index, got.Term, got.Type, string(got.Data), string(got.Extensions), got.AppendedAt.UnixNano()),
		fmt.Sprint(want.Index, want.Term, want.Type, string(want.Data), string(want.Extensions), want.AppendedAt.UnixNano())
	if g != w {
		return fmt.Sprintf("read %s, stored %s", g, w)
	}
	return ""
}

// holds wants exactly the entries from first to last in s.
func holds(t testing.TB, s *Store, first, last uint64) {
	t.Helper()
	f, err := s.FirstIndex()
	l, err2 := s.LastIndex()
	if err != nil || err2 != nil || f != first || l != last {
		t.Fatalf("entries %d to %d (%v, %v), want %d to %d", f, l, err, err2, first, last)
	}
	for i := first; i <= last && i > 0; i++ {
		var got raft.Log
		if err := s.GetLog(i, &got); err != nil {
			t.Fatal(err)
		}
		if d := differs(&got, entry(i)); d != "" {
			t.Fatal(d)
		}
	}
}
