package fsm

import (
	"fmt"
	"testing"
)

func TestDigestsOfPassedRevisionsCanBeCompared(t *testing.T) {
	t.Parallel()
	a, b := newRig(t, Options{}), newRig(t, Options{})
	for i := range digestHistory + 50 {
		a.ok(cmdPutConfig("k", fmt.Sprint(i)))
		if i < digestHistory {
			b.ok(cmdPutConfig("k", fmt.Sprint(i)))
		}
	}
	ahead := map[uint64][32]byte{}
	for _, d := range a.m.Digests(0) {
		ahead[d.Revision] = d.Digest
	}
	if len(ahead) != digestHistory {
		t.Fatalf("%d digests", len(ahead))
	}
	shared := 0
	for _, d := range b.m.Digests(100) {
		if want, ok := ahead[d.Revision]; ok {
			shared++
			if want != d.Digest {
				t.Errorf("digests at revision %d differ", d.Revision)
			}
		}
		if d.Revision < 100 {
			t.Errorf("revision %d was not asked for", d.Revision)
		}
	}
	if shared < 100 {
		t.Errorf("%d revisions in common", shared)
	}
	if got := a.m.Digests(0); got[len(got)-1].Digest != a.m.Root().Digest() {
		t.Error("the newest digest is not that of the state")
	}
	c := restored(t, snapshotOf(t, a.m))
	if got := c.m.Digests(0); len(got) != 1 || got[0].Digest != a.m.Root().Digest() {
		t.Errorf("after a restore: %d digests", len(got))
	}
}

// TestEntryWithoutCommandsHasNoDigestOfItsOwn: one would be there twice.
func TestEntryWithoutCommandsHasNoDigestOfItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.ok(cmdPutConfig("k", "v"))
	r.entry()
	r.entry()
	if got := r.m.Digests(0); len(got) != 1 {
		t.Errorf("%d digests", len(got))
	}
}
