package fsm

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	commandv1 "trivet/proto/trivet/command/v1"
)

// The files schema1.* were made by the last program of command version 1 and
// schema 1: a log of random commands, each entry followed by that program's
// answers, and the snapshot it wrote at the end. Some of the commands hold
// fields that it did not know.

func openFixture(t *testing.T, name string) *bufio.Reader {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(z)
}

func readFixture(t *testing.T, in *bufio.Reader, m proto.Message) bool {
	t.Helper()
	size, err := binary.ReadUvarint(in)
	if errors.Is(err, io.EOF) {
		return false
	}
	raw := make([]byte, size)
	if _, err2 := io.ReadFull(in, raw); err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	if err := proto.Unmarshal(raw, m); err != nil {
		t.Fatal(err)
	}
	return true
}

// TestOlderProgramsAgree: while servers of both programs are there, commands
// have version 1, and both must make the same of them.
func TestOlderProgramsAgree(t *testing.T) {
	t.Parallel()
	in := openFixture(t, "schema1.log.gz")
	m := New(Options{})
	for index := uint64(1); ; index++ {
		entry := &commandv1.Entry{}
		if !readFixture(t, in, entry) {
			break
		}
		sent := proto.CloneOf(entry)
		results, err := m.Apply(Position{Index: index, Term: 1 + index/700}, entry)
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range results {
			want := &commandv1.Result{}
			if !readFixture(t, in, want) {
				t.Fatal("an answer is missing")
			}
			if !proto.Equal(want, got) {
				t.Fatalf("entry %d, %s (-then +now):\n%s", index, compact(sent), cmp.Diff(want, got, protocmp.Transform()))
			}
		}
	}
	if m.Root().Revision() < 2500 {
		t.Fatalf("only %d commands", m.Root().Revision())
	}
	then := New(Options{})
	if err := then.Restore(openFixture(t, "schema1.snapshot.gz")); err != nil {
		t.Fatal(err)
	}
	sameState(t, then.Root(), m.Root())
}

// TestOlderSnapshotIsRestored: its digest is of another schema, so what is
// compared is what this program computes from the rows; afterwards it goes on
// under the newer rules.
func TestOlderSnapshotIsRestored(t *testing.T) {
	t.Parallel()
	m := New(Options{})
	if err := m.Restore(openFixture(t, "schema1.snapshot.gz")); err != nil {
		t.Fatal(err)
	}
	root := m.Root()
	if err := root.Verify(); err != nil {
		t.Fatal(err)
	}
	if n := root.Len(TableAudit) + root.Len(TableKeys) + root.Len(TablePolicies); n != 0 {
		t.Errorf("%d rows of tables that were not there", n)
	}
	for table := TableSessions; table <= TableMeta; table++ {
		if root.Len(table) == 0 {
			t.Errorf("the fixture has no %v", table)
		}
	}
	if diff := cmp.Diff(DefaultLimits(), root.EffectiveLimits(), protocmp.Transform()); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	sameState(t, root, restored(t, snapshotOf(t, m)).m.Root())
	r := &rig{tb: t, m: m, index: root.Position().Index, term: root.Position().Term, now: root.Meta().GetTime()}
	r.identity = "spiffe://c/operator/olga"
	r.ok(&commandv1.Command{Op: &commandv1.Command_PutKey{PutKey: &commandv1.PutKey{Key: &commandv1.KeyRow{Id: "k", Kind: "issuing", Active: true}}}})
	if n := m.Root().Len(TableAudit); n != 1 {
		t.Errorf("%d audit records", n)
	}
}

// TestOlderProgramStopsAtNewerCommands: a server that was not upgraded does not
// guess.
func TestOlderProgramStopsAtNewerCommands(t *testing.T) {
	t.Parallel()
	key := func(version uint32) *commandv1.Command {
		return &commandv1.Command{Version: version, Op: &commandv1.Command_PutKey{PutKey: &commandv1.PutKey{Key: &commandv1.KeyRow{Id: "k", Kind: "x"}}}}
	}
	config := cmdPutConfig("k", "v")
	config.Version = 2
	for name, c := range map[string]struct {
		command *commandv1.Command
		field   uint32
	}{
		"version": {key(2), 0}, "operation": {key(1), 81}, "rules": {config, 0},
	} {
		m := New(Options{MaxCommandVersion: 1})
		_, err := m.Apply(Position{Index: 1, Term: 1}, &commandv1.Entry{Commands: []*commandv1.Command{c.command}})
		var unknown *UnknownCommandError
		if !errors.As(err, &unknown) || unknown.Known != 1 || unknown.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	newer := newRig(t, Options{})
	newer.ok(config)
	m := New(Options{MaxCommandVersion: 1})
	var unknown *UnknownCommandError
	if err := m.Restore(strings.NewReader(snapshotOf(t, newer.m))); !errors.As(err, &unknown) || unknown.Version != 2 {
		t.Errorf("a snapshot of the newer program: %v", err)
	}
	if _, err := m.Apply(Position{Index: 1, Term: 1}, &commandv1.Entry{Commands: []*commandv1.Command{{Version: 1, Op: config.Op}}}); err != nil {
		t.Errorf("a command of version 1: %v", err)
	}
}

// TestSealedCommandsNeedWhoKnowsSealing: an older program would lose what is
// sealed, so the command must wait for the upgrade.
func TestSealedCommandsNeedWhoKnowsSealing(t *testing.T) {
	t.Parallel()
	arrive := cmdArriveAgent(agentInfo("web", "w1"))
	review := cmdReview("agent:w1", "alice:one", 1)
	report := &commandv1.Command{Op: &commandv1.Command_ReportWorkloads{ReportWorkloads: &commandv1.ReportWorkloads{
		Workloads: []*commandv1.WorkloadReport{{Pods: []*commandv1.Pod{{Containers: []*commandv1.Container{{}, {}}}}}},
	}}}
	check := func(want uint32) {
		t.Helper()
		for _, c := range []*commandv1.Command{arrive, review, report} {
			if got, ok := MinVersion(c); got != want || !ok {
				t.Errorf("%T needs version %d, not %d", c.GetOp(), got, want)
			}
		}
	}
	check(1)
	arrive.GetArriveAgent().SealedEnvironments = []byte("x")
	review.GetReviewIntercept().SealedEnvironment = []byte("x")
	report.GetReportWorkloads().Workloads[0].Pods[0].Containers[1].SealedEnvironment = []byte("x")
	check(2)
}
