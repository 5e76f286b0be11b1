package replica

import (
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

func entry(t *testing.T, cmds ...*commandv1.Command) []byte {
	t.Helper()
	data, err := proto.Marshal(&commandv1.Entry{Commands: cmds})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestNothingIsAppliedAfterAFailure: the state would miss an entry, and a
// snapshot of it would spread that.
func TestNothingIsAppliedAfterAFailure(t *testing.T) {
	unknown := put("k", nil)
	unknown.Version = fsm.CommandVersion + 1
	for name, bad := range map[string][]byte{
		"not an entry":    {0xff, 0xff},
		"a later version": entry(t, unknown),
	} {
		t.Run(name, func(t *testing.T) {
			var failures []error
			a := &adapter{machine: fsm.New(fsm.Options{}), applied: new(waitList), fatal: func(err error) { failures = append(failures, err) }}
			if got, ok := a.Apply(&raft.Log{Index: 1, Term: 1, Data: entry(t, put("a", nil))}).([]*commandv1.Result); !ok || len(got) != 1 {
				t.Fatalf("a good entry gave %v", got)
			}
			if got := a.Apply(&raft.Log{Index: 2, Term: 1, Data: bad}); got != nil {
				t.Errorf("the bad entry gave %v", got)
			}
			if len(failures) != 1 {
				t.Fatalf("failures: %v, want one", failures)
			}
			if got := a.Apply(&raft.Log{Index: 3, Term: 1, Data: entry(t, put("b", nil))}); got != nil {
				t.Errorf("the entry after it gave %v", got)
			}
			if rev := a.machine.Root().Revision(); rev != 1 || a.applied.index != 1 {
				t.Errorf("the state is at revision %d, index %d; want 1 and 1", rev, a.applied.index)
			}
			if _, err := a.Snapshot(); err == nil {
				t.Error("a snapshot was taken")
			}
			if len(failures) != 1 {
				t.Errorf("failures: %v, want no more", failures)
			}
		})
	}
}
