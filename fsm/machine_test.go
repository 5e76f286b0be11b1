package fsm

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	commandv1 "trivet/proto/trivet/command/v1"
)

func TestEveryCommandHasARevision(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	results := r.entry(
		r.stamp(cmdPutConfig("a", "1")),
		r.stamp(cmdPutConfig("", "refused")),
		r.stamp(withRequest(cmdPutConfig("b", "2"), "client/w", 1, 1)),
		r.stamp(withRequest(cmdPutConfig("b", "2"), "client/w", 1, 1)),
	)
	var got []uint64
	for _, res := range results {
		got = append(got, res.GetRevision())
	}
	if diff := cmp.Diff([]uint64{1, 2, 3, 3}, got); diff != "" {
		t.Errorf("revisions of the answers (-want +got):\n%s", diff)
	}
	if root := r.m.Root(); root.Revision() != 4 {
		t.Errorf("revision is %d after four commands", root.Revision())
	}
	row, _ := r.m.Root().Config("b")
	if row.GetModifyRevision() != 3 {
		t.Errorf("the repetition changed the row: %v", compact(row))
	}
}

func TestEntryBecomesVisibleAsAWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	before := r.m.Root()
	r.entry(r.stamp(cmdPutConfig("a", "1")), r.stamp(cmdPutConfig("b", "2")))
	if before.Revision() != 0 || before.Len(TableConfig) != 0 {
		t.Error("a published root changed")
	}
	after := r.m.Root()
	if after.Revision() != 2 || after.Position() != (Position{Index: 1, Term: 1}) {
		t.Errorf("revision %d at %v", after.Revision(), after.Position())
	}
	if after.CommandVersion() != CommandVersion {
		t.Errorf("command version is %d", after.CommandVersion())
	}
}

func TestEmptyEntryMovesThePosition(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.entry()
	if got := r.m.Root().Position().Index; got != 1 {
		t.Errorf("position is %d", got)
	}
}

func TestTimeNeverRunsBackwards(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for _, stamp := range []int64{epoch + 5, epoch + 3, -7, epoch + 9} {
		c := r.stamp(cmdPutConfig("a", "1"))
		c.Time = stamp
		r.entry(c)
	}
	if got := r.m.Root().Meta().GetTime(); got != epoch+9 {
		t.Errorf("time is %d", got-epoch)
	}
	c := r.stamp(cmdPutConfig("a", "1"))
	c.Time = epoch
	r.entry(c)
	if got := r.m.Root().Meta().GetTime(); got != epoch+9 {
		t.Errorf("time went back to %d", got-epoch)
	}
}

// withUnknownField returns the command as an older program decodes it that
// does not know field number.
func withUnknownField(t *testing.T, c *commandv1.Command, number protowire.Number) *commandv1.Command {
	t.Helper()
	raw, err := proto.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	raw = protowire.AppendTag(raw, number, protowire.BytesType)
	raw = protowire.AppendBytes(raw, []byte{8, 1})
	out := &commandv1.Command{}
	if err := proto.Unmarshal(raw, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestUnknownCommandStopsTheReplica(t *testing.T) {
	t.Parallel()
	newer := cmdPutConfig("b", "2")
	newer.Version = CommandVersion + 1
	for name, c := range map[string]*commandv1.Command{
		"version":               newer,
		"operation":             withUnknownField(t, &commandv1.Command{Version: 1}, 999),
		"operation beside ours": withUnknownField(t, cmdPutConfig("b", "2"), 999),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{})
			r.ok(cmdPutConfig("a", "1"))
			before := r.m.Root()
			_, err := r.m.Apply(Position{Index: 7, Term: 3}, &commandv1.Entry{
				Commands: []*commandv1.Command{r.stamp(cmdPutConfig("c", "3")), c},
			})
			var unknown *UnknownCommandError
			if !errors.As(err, &unknown) || unknown.Command != 1 || unknown.Position.Index != 7 {
				t.Fatalf("error is %v", err)
			}
			for _, part := range []string{"log entry 7", "term 3", "run a newer program"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if r.m.Root() != before {
				t.Error("part of the entry became visible")
			}
			// There is no way back but a snapshot.
			_, again := r.m.Apply(Position{Index: 8, Term: 3}, &commandv1.Entry{})
			if !errors.Is(again, err) {
				t.Errorf("next entry: %v", again)
			}
			if err := r.m.Restore(strings.NewReader(snapshotOf(t, newRig(t, Options{}).m))); err != nil {
				t.Fatal(err)
			}
			if _, err := r.m.Apply(Position{Index: 9, Term: 3}, &commandv1.Entry{}); err != nil {
				t.Errorf("after restore: %v", err)
			}
		})
	}
}

func TestUnknownEnvelopeFieldIsIgnored(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	if res := r.do(withUnknownField(t, cmdPutConfig("a", "1"), 15)); res.GetCode() != 0 {
		t.Errorf("result is %v", compact(res))
	}
}

func TestCommandOlderThanItsOperationIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	c := r.stamp(cmdPutConfig("a", "1"))
	c.Version = 0
	if res := r.entry(c)[0]; res.GetReason() != ReasonInvalid {
		t.Errorf("result is %v", compact(res))
	}
}

func TestCreatorsNeedAStamp(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for _, c := range []*commandv1.Command{cmdArriveClient("a"), cmdArriveAgent(agentInfo("a", ""))} {
		c.Version, c.StampedId = 1, ""
		if res := r.entry(c)[0]; res.GetReason() != ReasonStampMissing {
			t.Errorf("result is %v", compact(res))
		}
	}
}

func TestHugeCommandIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	c := cmdArriveClient("alice")
	c.GetArriveClient().Info.Namespace = strings.Repeat("x", maxCommandBytes)
	if res := r.do(c); res.GetReason() != ReasonTooLarge {
		t.Errorf("result is %v", compact(res))
	}
}

func TestWorkloadRowIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	var last *commandv1.Result
	for i := range 8 {
		last = r.do(&commandv1.Command{Op: &commandv1.Command_ReportWorkloads{
			ReportWorkloads: &commandv1.ReportWorkloads{
				Node: "n" + string(rune('0'+i)),
				Workloads: []*commandv1.WorkloadReport{{
					Namespace: "default", Name: "api", Pods: []*commandv1.Pod{{
						Name: "p", Containers: []*commandv1.Container{{
							Environment: map[string]string{"BIG": strings.Repeat("x", maxCommandBytes-1024)},
						}},
					}},
				}},
			},
		}})
	}
	if last.GetReason() != ReasonTooLarge {
		t.Errorf("result is %v", last.GetReason())
	}
}

func TestEntriesComeInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.ok(cmdPutConfig("a", "1"))
	_, err := r.m.Apply(Position{Index: 1, Term: 1}, &commandv1.Entry{})
	var broken *InvariantError
	if !errors.As(err, &broken) || !strings.Contains(err.Error(), "entry 1 comes after entry 1") {
		t.Errorf("error is %v", err)
	}
}

func TestMinVersionOfEveryOperation(t *testing.T) {
	t.Parallel()
	ops := (&commandv1.Command{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	for i := range ops.Len() {
		c := &commandv1.Command{}
		m := c.ProtoReflect()
		m.Set(ops.Get(i), m.NewField(ops.Get(i)))
		version, ok := MinVersion(c)
		if !ok || version == 0 || version > CommandVersion {
			t.Errorf("%s: version %d, %v", ops.Get(i).Name(), version, ok)
		}
	}
	if _, ok := MinVersion(&commandv1.Command{}); ok {
		t.Error("a command without an operation has a version")
	}
}

// TestEmptyOperations applies every operation without any content: refused or
// not, it must neither panic nor leave a malformed row.
func TestEmptyOperations(t *testing.T) {
	t.Parallel()
	ops := (&commandv1.Command{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	r := newRig(t, Options{})
	for i := range ops.Len() {
		c := &commandv1.Command{}
		m := c.ProtoReflect()
		m.Set(ops.Get(i), m.NewField(ops.Get(i)))
		r.do(c)
	}
	if d := Diff(nil, r.m.Root()); len(d) != 0 {
		t.Errorf("something came into being: %v", d)
	}
}

func TestRowsAreNeverChangedInPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.ok(cmdArriveClient("alice"))
	r.ok(cmdArriveAgent(agentInfo("web", "w1")))
	r.ok(cmdCreate("alice", interceptSpec("alice", "one", "web", 80)))
	root := r.m.Root()
	row, _ := root.Intercept("alice:one")
	copied := proto.Clone(row)
	digest := root.Digest()
	r.ok(cmdReview("agent:w1", "alice:one", 1))
	r.ok(cmdDepart("agent:w1"))
	r.ok(cmdDepart("alice"))
	if diff := cmp.Diff(copied, proto.Message(row), protocmp.Transform()); diff != "" {
		t.Errorf("the row changed:\n%s", diff)
	}
	if err := root.Verify(); err != nil || root.Digest() != digest {
		t.Errorf("the old root changed: %v", err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for table := range TableAudit + 1 {
		if table > 0 && strings.HasPrefix(table.String(), "table") {
			t.Errorf("table %d has no name", table)
		}
	}
	got := []string{Table(0).String(), Table(99).String(), Put.String(), Delete.String(), Op(0).String()}
	if diff := cmp.Diff([]string{"table 0", "table 99", "put", "delete", "op"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestLenOfEveryTable(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	populate(r)
	root := r.m.Root()
	for table := TableSessions; table <= TableAudit; table++ {
		if root.Len(table) == 0 {
			t.Errorf("%v is empty", table)
		}
	}
	if root.Len(0) != 0 {
		t.Error("table 0 has rows")
	}
}

// populate puts at least one row into every table.
func populate(r *rig) {
	r.tb.Helper()
	r.ok(&commandv1.Command{Op: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{
		ClusterId: "c1", DedupeKey: secretHash("key"),
	}}})
	r.ok(&commandv1.Command{Op: &commandv1.Command_PutServer{PutServer: &commandv1.PutServer{
		Server: &commandv1.ServerRow{Id: "s1", BootId: "b1"},
	}}})
	r.ok(&commandv1.Command{Op: &commandv1.Command_PutNode{PutNode: &commandv1.PutNode{
		Node: &commandv1.NodeRow{Name: "n1"},
	}}})
	r.ok(&commandv1.Command{Op: &commandv1.Command_ReportWorkloads{
		ReportWorkloads: &commandv1.ReportWorkloads{Node: "n1", Workloads: []*commandv1.WorkloadReport{{
			Namespace: "default", Name: "web", Pods: []*commandv1.Pod{{
				Name: "web-1", Uid: "w1", Containers: []*commandv1.Container{{
					Name: "app", Ports: []*commandv1.ContainerPort{{Name: "http", Port: 80}},
					Environment: map[string]string{"A": "1", "B": "2", "C": "3"},
				}},
			}},
		}}},
	}})
	r.ok(&commandv1.Command{Op: &commandv1.Command_PutIdentity{PutIdentity: &commandv1.PutIdentity{
		Uri: "spiffe://c/client/mallory", Denied: true,
	}}})
	r.ok(&commandv1.Command{Op: &commandv1.Command_CreateToken{CreateToken: &commandv1.CreateToken{
		Id: "t1", SecretHash: secretHash("secret"), Role: "client", NameGlob: "*", Uses: 1,
		ExpiresAt: r.now + 1e9,
	}}})
	r.ok(withRequest(cmdPutConfig("greeting", "hello"), "client/w", 1, 1))
	r.ok(cmdArriveClient("alice"))
	r.ok(cmdArriveAgent(agentInfo("web", "w1")))
	r.ok(withRequest(cmdCreate("alice", interceptSpec("alice", "one", "web", 80)), "client/w", 2, 1))
	r.ok(withRequest(cmdReview("agent:w1", "alice:one", 1), "server/s1/b1", 1, 1))
	r.ok(&commandv1.Command{Op: &commandv1.Command_PutKey{PutKey: &commandv1.PutKey{
		Key: &commandv1.KeyRow{Id: "issuing/1", Kind: "issuing", Sealed: []byte("sealed"), Active: true},
	}}})
	r.ok(&commandv1.Command{Op: &commandv1.Command_PutPolicy{PutPolicy: &commandv1.PutPolicy{
		Policy: &commandv1.PolicyRow{Name: "all", AllowSteal: true, AllowCopy: true, AllowReplace: true, WithheldEnvironment: []string{"AWS_*"}},
	}}})
}
