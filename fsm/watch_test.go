package fsm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	commandv1 "trivet/proto/trivet/command/v1"
)

// short renders events for comparison.
func short(events []Event) []string {
	out := []string{}
	for _, e := range events {
		out = append(out, fmt.Sprintf("%d %v %v/%s", e.Revision, e.Op, e.Table, e.Key))
	}
	return out
}

func woken(c *Cursor) bool {
	select {
	case <-c.Wait():
		return true
	default:
		return false
	}
}

func TestWatchFromNow(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.ok(cmdPutConfig("a", "1"))
	c := r.m.WatchFrom(r.m.Root())
	if woken(c) {
		t.Error("woken for nothing")
	}
	if b := c.Next(); len(b.Events) != 0 || b.Root != r.m.Root() || b.Resync || b.Full {
		t.Errorf("first batch is %+v", b)
	}
	wait := c.Wait()
	r.do(cmdPutConfig("", "refused makes no event"))
	select {
	case <-wait:
		t.Error("woken by a refusal")
	default:
	}
	r.entry(r.stamp(cmdPutConfig("b", "2")), r.stamp(cmdPutConfig("c", "3")))
	r.ok(cmdPutConfig("a", "4"))
	<-wait
	if !woken(c) {
		t.Error("not woken")
	}
	b := c.Next()
	want := []string{"3 put config/b", "4 put config/c", "5 put config/a"}
	if diff := cmp.Diff(want, short(b.Events)); diff != "" {
		t.Error(diff)
	}
	if b.Root.Revision() != 5 || b.Resync {
		t.Errorf("batch is at revision %d, resync %v", b.Root.Revision(), b.Resync)
	}
	if old := b.Events[2].Old.(*commandv1.ConfigRow); string(old.GetValue()) != "1" {
		t.Errorf("old row is %v", compact(old))
	}
}

func TestWatchResumesAnywhereInTheRing(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for i := range 5 {
		r.entry(r.stamp(cmdPutConfig(fmt.Sprint(i), "x")), r.stamp(cmdPutConfig(fmt.Sprint(i), "y")))
	}
	all := []string{}
	for i := range 5 {
		all = append(all, fmt.Sprintf("%d put config/%d", 2*i+1, i), fmt.Sprintf("%d put config/%d", 2*i+2, i))
	}
	for after := range uint64(11) {
		c := r.m.Watch(after)
		if woken(c) != (after < 10) {
			t.Errorf("after %d: woken is %v", after, woken(c))
		}
		b := c.Next()
		if diff := cmp.Diff(all[after:], short(b.Events)); diff != "" || b.Resync || b.Full {
			t.Errorf("after %d (resync %v, full %v):\n%s", after, b.Resync, b.Full, diff)
		}
	}
}

func TestWatchOfARevisionToCome(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	c := r.m.Watch(2)
	for i := range 3 {
		r.ok(cmdPutConfig(fmt.Sprint(i), "x"))
	}
	if diff := cmp.Diff([]string{"3 put config/2"}, short(c.Next().Events)); diff != "" {
		t.Error(diff)
	}
	// One entry on its own is not copied, and is filtered all the same.
	c = r.m.Watch(4)
	r.ok(cmdPutConfig("4", "x"))
	if got := short(c.Next().Events); len(got) != 0 {
		t.Errorf("events are %v", got)
	}
}

func TestSlowWatcherGetsTheDifference(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{RingSize: 4})
	r.ok(cmdPutConfig("gone", "x"))
	r.ok(cmdPutConfig("stays", "x"))
	slow, slower := r.m.WatchFrom(r.m.Root()), r.m.Watch(1)
	r.ok(&commandv1.Command{Op: &commandv1.Command_DeleteConfig{
		DeleteConfig: &commandv1.DeleteConfig{Key: "gone"},
	}})
	for i := range 9 {
		r.ok(cmdPutConfig("busy", fmt.Sprint(i)))
	}
	b := slow.Next()
	want := []string{"12 put config/busy", "12 delete config/gone"}
	if diff := cmp.Diff(want, short(b.Events)); diff != "" || !b.Resync || b.Full {
		t.Errorf("resync %v, full %v:\n%s", b.Resync, b.Full, diff)
	}
	// What had been in the ring when the watch began comes before it.
	b = slower.Next()
	want = append([]string{"2 put config/stays"}, want...)
	if diff := cmp.Diff(want, short(b.Events)); diff != "" || !b.Resync || b.Full {
		t.Errorf("resync %v, full %v:\n%s", b.Resync, b.Full, diff)
	}
	r.ok(cmdPutConfig("busy", "again"))
	if b = slow.Next(); b.Resync || len(b.Events) != 1 {
		t.Errorf("after the resync: %+v", b)
	}
}

func TestWatchOfAForgottenRevisionIsFull(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{RingSize: 2})
	old := r.m.Root()
	for i := range 4 {
		r.ok(cmdPutConfig(fmt.Sprint(i), "x"))
	}
	c := r.m.Watch(1)
	if !woken(c) {
		t.Error("not woken")
	}
	b := c.Next()
	want := []string{"1 put config/0", "2 put config/1", "3 put config/2", "4 put config/3"}
	if diff := cmp.Diff(want, short(b.Events)); diff != "" || !b.Resync || !b.Full {
		t.Errorf("resync %v, full %v:\n%s", b.Resync, b.Full, diff)
	}
	// Somebody who has the root itself loses nothing.
	c = r.m.WatchFrom(old)
	if !woken(c) {
		t.Error("not woken")
	}
	if b = c.Next(); len(b.Events) != 4 || !b.Resync || b.Full {
		t.Errorf("resync %v, full %v: %v", b.Resync, b.Full, short(b.Events))
	}
}

func TestEntryLargerThanTheRing(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{RingSize: 2})
	c := r.m.WatchFrom(r.m.Root())
	r.entry(r.stamp(cmdPutConfig("a", "1")), r.stamp(cmdPutConfig("b", "1")), r.stamp(cmdPutConfig("c", "1")))
	if b := c.Next(); len(b.Events) != 3 || !b.Resync {
		t.Errorf("resync %v: %v", b.Resync, short(b.Events))
	}
}

func TestRestoreGivesTheDifference(t *testing.T) {
	t.Parallel()
	source := newRig(t, Options{})
	source.ok(cmdPutConfig("same", "x"))
	common := snapshotOf(t, source.m)
	source.ok(cmdPutConfig("theirs", "x"))
	source.ok(&commandv1.Command{Op: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{
		ClusterId: "c1", DedupeKey: secretHash("key"),
	}}})
	later := snapshotOf(t, source.m)

	r := restored(t, common)
	r.ok(cmdPutConfig("ours", "x"))
	root := r.m.Root()
	c, behind, ahead := r.m.WatchFrom(root), r.m.Watch(0), r.m.Watch(99)
	if err := r.m.Restore(strings.NewReader(later)); err != nil {
		t.Fatal(err)
	}
	if !woken(c) {
		t.Error("not woken")
	}
	b := c.Next()
	want := []string{"3 delete config/ours", "2 put config/theirs", "3 put meta/meta"}
	if diff := cmp.Diff(want, short(b.Events)); diff != "" || !b.Resync || b.Full {
		t.Errorf("resync %v, full %v:\n%s", b.Resync, b.Full, diff)
	}
	if b.Root != r.m.Root() {
		t.Error("the batch has another root")
	}
	if b = behind.Next(); !b.Full || len(b.Events) != 3 {
		t.Errorf("behind: full %v %v", b.Full, short(b.Events))
	}
	// A cursor that held a state from before, whatever its revision.
	b = r.m.WatchFrom(root).Next()
	if diff := cmp.Diff(want, short(b.Events)); diff != "" {
		t.Error(diff)
	}
	// One that waited for a future which is not to come.
	if b = ahead.Next(); !b.Full || len(b.Events) != 3 {
		t.Errorf("ahead: full %v %v", b.Full, short(b.Events))
	}
	r.index = r.m.Root().Position().Index
	r.ok(cmdPutConfig("next", "x"))
	for _, c := range []*Cursor{c, behind, ahead} {
		if diff := cmp.Diff([]string{"4 put config/next"}, short(c.Next().Events)); diff != "" {
			t.Error(diff)
		}
	}
}

// TestRestoreOverTheRevisionWaitedFor: a reader that goes on at a machine which
// is behind knows rows that the machine has never seen. When the machine jumps
// over the reader's revision, no difference of its own states tells that they
// are gone.
func TestRestoreOverTheRevisionWaitedFor(t *testing.T) {
	t.Parallel()
	source := newRig(t, Options{})
	source.ok(cmdPutConfig("stays", "x"))
	behind := snapshotOf(t, source.m)
	source.ok(cmdPutConfig("goes", "x"))
	known := source.m.Root().Revision()
	source.ok(&commandv1.Command{Op: &commandv1.Command_DeleteConfig{DeleteConfig: &commandv1.DeleteConfig{Key: "goes"}}})
	later := snapshotOf(t, source.m)

	r := restored(t, behind)
	c := r.m.Watch(known)
	if err := r.m.Restore(strings.NewReader(later)); err != nil {
		t.Fatal(err)
	}
	b := c.Next()
	if diff := cmp.Diff([]string{"1 put config/stays"}, short(b.Events)); diff != "" || !b.Full {
		t.Errorf("full %v:\n%s", b.Full, diff)
	}
}

func TestDiffOfNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	populate(r)
	if d := Diff(nil, nil); len(d) != 0 {
		t.Errorf("nothing differs from nothing: %v", short(d))
	}
	if d := Diff(r.m.Root(), r.m.Root()); len(d) != 0 {
		t.Errorf("a state differs from itself: %v", short(d))
	}
	there, back := Diff(nil, r.m.Root()), Diff(r.m.Root(), nil)
	if len(there) == 0 || len(there) != len(back) {
		t.Errorf("%d events there, %d back", len(there), len(back))
	}
	for i, e := range back {
		if e.Table != TableMeta && (e.Op != Delete || e.Old != there[i].New || e.New != nil) {
			t.Errorf("%v %v %s", e.Op, e.Table, e.Key)
		}
	}
}

// follower keeps a copy of the state by events alone, but for the meta row,
// whose time changes without events.
type follower struct {
	cursor *Cursor
	rows   map[string]string
}

func (f *follower) follow() *Root {
	b := f.cursor.Next()
	if b.Full {
		clear(f.rows)
	}
	for _, e := range b.Events {
		key := e.Table.String() + "/" + e.Key
		switch {
		case e.Table == TableMeta:
		case e.Op == Delete:
			delete(f.rows, key)
		default:
			f.rows[key] = compact(e.New)
		}
	}
	return b.Root
}

// contents is what a follower of a state should have.
func contents(root *Root) map[string]string {
	out := map[string]string{}
	for _, e := range Diff(nil, root) {
		if e.Table != TableMeta {
			out[e.Table.String()+"/"+e.Key] = compact(e.New)
		}
	}
	return out
}

// TestFollowersSeeEveryState lets readers of all speeds follow a busy machine
// concurrently; each must have exactly the state whenever it has caught up.
func TestFollowersSeeEveryState(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{RingSize: 8})
	const entries = 400
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for pace := range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f := &follower{cursor: r.m.Watch(0), rows: map[string]string{}}
			last := uint64(0)
			for n := 0; ; n++ {
				select {
				case <-f.cursor.Wait():
				case <-stop:
					root := f.follow()
					if diff := cmp.Diff(contents(root), f.rows); diff != "" {
						t.Errorf("follower differs at the end:\n%s", diff)
					}
					return
				}
				if n%(pace+1) != 0 {
					continue
				}
				root := f.follow()
				if root.Revision() < last {
					t.Errorf("revision %d after %d", root.Revision(), last)
				}
				last = root.Revision()
				if diff := cmp.Diff(contents(root), f.rows); diff != "" {
					t.Errorf("follower differs at revision %d:\n%s", last, diff)
				}
			}
		}()
	}
	for i := range entries {
		key := fmt.Sprint(i % 7)
		var c *commandv1.Command
		if i%3 == 0 {
			c = &commandv1.Command{Op: &commandv1.Command_DeleteConfig{
				DeleteConfig: &commandv1.DeleteConfig{Key: key},
			}}
		} else {
			c = cmdPutConfig(key, fmt.Sprint(i))
		}
		r.entry(r.stamp(c), r.stamp(cmdPutConfig("n", fmt.Sprint(i))))
	}
	close(stop)
	wg.Wait()
}

func TestIteratorsStopWhenTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	populate(r)
	r.ok(cmdArriveClient("bob"))
	r.ok(cmdArriveAgent(agentInfo("web", "w2")))
	root := r.m.Root()
	for row := range root.Sessions {
		if row.GetId() != "agent:w1" {
			t.Errorf("first session is %s", row.GetId())
		}
		break
	}
	for row := range root.AgentsOf("default", "web") {
		if row.GetId() != "agent:w1" {
			t.Errorf("first agent is %s", row.GetId())
		}
		break
	}
	ids := slices.Collect(maps.Keys(contents(root)))
	if len(ids) < 10 {
		t.Errorf("only %v", ids)
	}
}

// TestIndexKeysCannotBeImitated puts the separators of index keys into names.
func TestIndexKeysCannotBeImitated(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for i, names := range [][2]string{{"a", "b"}, {"a1:b", ""}, {"", "a1:b"}, {"1:a", "1:b"}, {"a\x00", "b"}} {
		info := agentInfo(names[1]+"x", fmt.Sprint(i))
		info.Namespace = names[0] + "x"
		r.ok(cmdArriveAgent(info))
	}
	if n := len(slices.Collect(r.m.Root().AgentsOf("ax", "bx"))); n != 1 {
		t.Errorf("%d agents", n)
	}
}
