package fsm

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	commandv1 "trivet/proto/trivet/command/v1"
)

// TestAnyCommands applies arbitrary commands. Whatever they are, the state
// stays sound, equal commands give equal states however they are cut into
// entries, a snapshot in the middle makes no difference, and watchers end up
// with the state.
func TestAnyCommands(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := New(Options{RingSize: 16})
		f := &follower{cursor: m.Watch(0), rows: map[string]string{}}
		lazy := &follower{cursor: m.Watch(0), rows: map[string]string{}}
		n := rapid.IntRange(1, 60).Draw(t, "commands")
		cut := rapid.IntRange(0, n-1).Draw(t, "cut")
		var log []*commandv1.Command
		var results []*commandv1.Result
		var snapshot bytes.Buffer
		now := epoch
		for i := range n {
			c := genCommand(t, now)
			now = max(now, c.GetTime())
			if seen := c.GetSetIntercept(); seen != nil && rapid.Bool().Draw(t, "fresh") {
				row, _ := m.Root().Intercept(seen.GetId())
				seen.SeenModifyRevision = row.GetModifyRevision()
			}
			log = append(log, proto.Clone(c).(*commandv1.Command))
			res, err := m.Apply(Position{Term: 1}, &commandv1.Entry{Commands: []*commandv1.Command{c}})
			if err != nil {
				t.Fatal(err)
			}
			results = append(results, res...)
			checkRoot(t, m.Root())
			f.follow()
			if i == cut {
				if _, err := m.Snapshot().WriteTo(&snapshot); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := contents(m.Root())
		f.follow()
		lazy.follow()
		if diff := cmp.Diff(want, f.rows); diff != "" {
			t.Fatalf("a follower differs:\n%s", diff)
		}
		if diff := cmp.Diff(want, lazy.rows); diff != "" {
			t.Fatalf("a slow follower differs:\n%s", diff)
		}

		batched := New(Options{})
		replay(t, batched, log, results)
		agree(t, m, batched)

		resumed := New(Options{})
		if err := resumed.Restore(&snapshot); err != nil {
			t.Fatal(err)
		}
		replay(t, resumed, log[cut+1:], results[cut+1:])
		agree(t, m, resumed)
	})
}

// checkRoot looks for what must never be.
func checkRoot(t *rapid.T, root *Root) {
	t.Helper()
	if err := root.Verify(); err != nil {
		t.Fatal(err)
	}
}

// replay applies a log in entries of random size and compares the answers.
func replay(t *rapid.T, m *Machine, log []*commandv1.Command, want []*commandv1.Result) {
	t.Helper()
	var got []*commandv1.Result
	for rest := log; len(rest) > 0; {
		n := rapid.IntRange(1, len(rest)).Draw(t, "batch")
		entry := &commandv1.Entry{}
		for _, c := range rest[:n] {
			entry.Commands = append(entry.Commands, proto.Clone(c).(*commandv1.Command))
		}
		res, err := m.Apply(Position{Term: 1}, entry)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, res...)
		rest = rest[n:]
	}
	if diff := cmp.Diff(want, got, protocmp.Transform(), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("answers differ:\n%s", diff)
	}
}

func agree(t *rapid.T, a, b *Machine) {
	t.Helper()
	if d := Diff(a.Root(), b.Root()); len(d) != 0 {
		t.Fatalf("states differ: %v", short(d))
	}
	if a.Root().Digest() != b.Root().Digest() {
		t.Fatal("digests differ")
	}
}

// TestDigestSeesEverything changes one thing at a time.
func TestDigestSeesEverything(t *testing.T) {
	t.Parallel()
	digests := map[[32]byte]string{}
	note := func(name string, root *Root) {
		t.Helper()
		if other, ok := digests[root.Digest()]; ok {
			t.Errorf("%s has the digest of %s", name, other)
		}
		digests[root.Digest()] = name
	}
	note("nothing", New(Options{}).Root())
	r := newRig(t, Options{})
	r.do(cmdPutConfig("", "refused"))
	note("a refused command", r.m.Root())
	for name, c := range map[string]*commandv1.Command{
		"a row":           cmdPutConfig("a", "1"),
		"another value":   cmdPutConfig("a", "2"),
		"another key":     cmdPutConfig("b", "1"),
		"an answer":       withRequest(cmdPutConfig("a", "1"), "client/w", 1, 1),
		"another number":  withRequest(cmdPutConfig("a", "1"), "client/w", 2, 1),
		"another writer":  withRequest(cmdPutConfig("a", "1"), "client/v", 1, 1),
		"another lowest":  withRequest(cmdPutConfig("a", "1"), "client/w", 2, 2),
		"another time":    {Time: epoch + 1, Op: cmdPutConfig("a", "1").Op},
		"another table":   cmdArriveClient("a"),
		"another cluster": {Op: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c", DedupeKey: secretHash("k")}}},
	} {
		r := newRig(t, Options{})
		r.ok(c)
		note(name, r.m.Root())
	}
}
