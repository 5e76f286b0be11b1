package fsm

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	commandv1 "trivet/proto/trivet/command/v1"
)

// FuzzApply applies whatever decodes as a log entry. It must not panic, must
// leave a sound state that can be written and read back, and may fail only for
// an operation it does not know.
func FuzzApply(f *testing.F) {
	seeds := newRig(f, Options{})
	var log [][]byte
	for _, c := range seedCommands(seeds) {
		raw, err := proto.Marshal(&commandv1.Entry{Commands: []*commandv1.Command{c}})
		if err != nil {
			f.Fatal(err)
		}
		log = append(log, raw)
		f.Add(raw)
	}
	f.Add(bytes.Join(log, nil))
	f.Fuzz(func(t *testing.T, raw []byte) {
		entry := &commandv1.Entry{}
		if err := proto.Unmarshal(raw, entry); err != nil {
			t.Skip("not an entry")
		}
		r := newRig(t, Options{RingSize: 4})
		populate(r)
		cursor := r.m.WatchFrom(r.m.Root())
		results, err := r.m.Apply(Position{Index: 100, Term: 1}, entry)
		var unknown *UnknownCommandError
		if err != nil && !errors.As(err, &unknown) {
			t.Fatal(err)
		}
		if err == nil && len(results) != len(entry.GetCommands()) {
			t.Fatalf("%d results of %d commands", len(results), len(entry.GetCommands()))
		}
		root := cursor.Next().Root
		if err := root.Verify(); err != nil {
			t.Fatal(err)
		}
		var snapshot bytes.Buffer
		if _, err := r.m.Snapshot().WriteTo(&snapshot); err != nil {
			t.Fatal(err)
		}
		copied := New(Options{})
		if err := copied.Restore(&snapshot); err != nil {
			t.Fatal(err)
		}
		if copied.Root().Digest() != root.Digest() {
			t.Fatal("the restored state differs")
		}
	})
}

// seedCommands is one sensible command of each kind.
func seedCommands(r *rig) []*commandv1.Command {
	lines := []string{
		"init c1", "server s1 b2 req=server/s1/b2:1:1", "put a b", "delete greeting if=7",
		"identity spiffe://c/client/alice denied", "token t2 role=client", "enrol t1 role=client name=alice key=k",
		"revoke t1", "arrive-client bob", "arrive-agent web uid=w2", "depart alice", "expire alice@8 agent:w1@9",
		"set-generation agent:w1 older", "create alice two agent=web cport=81 header=X:y path=/api force",
		"remove alice one", "remove intercept=alice:one", "review agent:w1 alice:one agent_error",
		"set alice:one seen=11 owner=away", "put-node n2", "report n1 default/web=web-1@app:http:80",
		"ensure-agent alice default web", "uninstall alice default web", "remove-node n1",
		"key k kind=issuing active sealed=x if=0", "delete-key issuing/1", "policy p order=1 who=* steal copy filter max=60 withheld=AWS_*",
		"delete-policy all", "limits sessions=1 bytes=10", "record snapshot.save x class=security detail=y", "remove-server s1",
	}
	in := &interpreter{rig: r}
	makers := map[string]func(arguments) *commandv1.Command{
		"init": in.initCluster, "server": in.putServer, "put": in.putConfig, "delete": in.deleteConfig,
		"identity": in.putIdentity, "token": in.createToken, "enrol": in.consumeToken, "revoke": in.revokeToken,
		"arrive-client": in.arriveClient, "arrive-agent": in.arriveAgent, "depart": in.depart,
		"expire": in.expire, "set-generation": in.setGeneration, "create": in.create, "remove": in.remove,
		"review": in.review, "set": in.set, "put-node": in.putNode, "remove-node": in.removeNode,
		"report": in.report, "ensure-agent": in.ensureAgent, "uninstall": in.uninstall, "key": in.putKey, "delete-key": in.deleteKey, "policy": in.putPolicy,
		"delete-policy": in.deletePolicy, "limits": in.setLimits, "record": in.recordAudit, "remove-server": in.removeServer,
	}
	var out []*commandv1.Command
	for _, line := range lines {
		a, err := parseArguments(line)
		if err != nil {
			r.tb.Fatal(err)
		}
		out = append(out, r.stamp(makers[a.verb](a)))
	}
	return out
}

// FuzzRestore reads whatever comes. It must not panic, and either the state is
// replaced by a sound one or it stays as it was.
func FuzzRestore(f *testing.F) {
	source := newRig(f, Options{})
	f.Add([]byte(snapshotOf(f, source.m)))
	populate(source)
	f.Add([]byte(snapshotOf(f, source.m)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := New(Options{})
		before := m.Root()
		if err := m.Restore(bytes.NewReader(raw)); err != nil {
			if m.Root() != before {
				t.Fatal("a refused snapshot replaced the state")
			}
			return
		}
		sound(t, m)
	})
}

// FuzzRestoreRecord gets past the checksums: it puts one arbitrary record into
// a snapshot that is otherwise right.
func FuzzRestoreRecord(f *testing.F) {
	source := newRig(f, Options{})
	populate(source)
	for _, frame := range frames(f, snapshotOf(f, source.m)) {
		if rec := frame.GetRecord(); rec != nil {
			f.Add(uint8(rec.GetTable()), rec.GetRow())
		}
	}
	f.Fuzz(func(t *testing.T, table uint8, row []byte) {
		list := frames(t, snapshotOf(t, New(Options{})))
		list[0].GetHeader().Schema = SchemaVersion + 1 // the digest cannot be right
		list[0].GetHeader().Revision = 1000
		list = append(list[:1:1], &commandv1.SnapshotFrame{Frame: &commandv1.SnapshotFrame_Record{
			Record: &commandv1.SnapshotRecord{Table: uint32(table), Row: row},
		}}, list[len(list)-1])
		m := New(Options{})
		if err := m.Restore(strings.NewReader(encode(t, list, false))); err != nil {
			return
		}
		sound(t, m)
	})
}

// sound checks a state that came from outside: it is consistent, can be
// written and read back, and goes on.
func sound(t *testing.T, m *Machine) {
	t.Helper()
	if err := m.Root().Verify(); err != nil {
		t.Fatal(err)
	}
	again := New(Options{})
	if err := again.Restore(strings.NewReader(snapshotOf(t, m))); err != nil {
		t.Fatal(err)
	}
	if again.Root().Digest() != m.Root().Digest() {
		t.Fatal("the second copy differs")
	}
	c := cmdArriveAgent(agentInfo("web", "fuzz"))
	c.Version = CommandVersion
	pos := Position{Index: m.Root().Position().Index + 1}
	if _, err := m.Apply(pos, &commandv1.Entry{Commands: []*commandv1.Command{c}}); err != nil {
		t.Fatal(err)
	}
}
