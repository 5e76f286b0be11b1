package fsm

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	commandv1 "trivet/proto/trivet/command/v1"
)

func snapshotOf(tb testing.TB, m *Machine) string {
	tb.Helper()
	var out bytes.Buffer
	n, err := m.Snapshot().WriteTo(&out)
	if err != nil || n != int64(out.Len()) {
		tb.Fatalf("wrote %d of %d bytes: %v", n, out.Len(), err)
	}
	return out.String()
}

func restored(tb testing.TB, snapshot string) *rig {
	tb.Helper()
	r := newRig(tb, Options{})
	if err := r.m.Restore(strings.NewReader(snapshot)); err != nil {
		tb.Fatal(err)
	}
	r.index = r.m.Root().Position().Index
	return r
}

func TestSnapshotRoundTrip(t *testing.T) {
	t.Parallel()
	a := newRig(t, Options{})
	populate(a)
	snapshot := snapshotOf(t, a.m)
	b := restored(t, snapshot)
	sameState(t, a.m.Root(), b.m.Root())
	if snapshotOf(t, b.m) != snapshot {
		t.Error("the snapshot of the restored state differs")
	}
	if err := b.m.Root().Verify(); err != nil {
		t.Error(err)
	}

	// Both go on alike, repeated requests and idle writers included.
	b.now, b.stamps = a.now, a.stamps
	steps := []func() *commandv1.Command{
		func() *commandv1.Command { return withRequest(cmdPutConfig("greeting", "hello"), "client/w", 1, 1) },
		func() *commandv1.Command { return withRequest(cmdPutConfig("greeting", "hola"), "client/w", 3, 2) },
		func() *commandv1.Command { return cmdDepart("agent:w1") },
		func() *commandv1.Command { return cmdArriveAgent(agentInfo("web", "w2")) },
		func() *commandv1.Command { return cmdCreate("alice", interceptSpec("alice", "two", "web", 80)) },
		func() *commandv1.Command { return cmdDepart("alice") },
	}
	for _, step := range steps {
		ra, rb := a.do(step()), b.do(step())
		if diff := cmp.Diff(ra, rb, protocmp.Transform()); diff != "" {
			t.Errorf("results differ:\n%s", diff)
		}
		sameState(t, a.m.Root(), b.m.Root())
	}
}

func sameState(t *testing.T, a, b *Root) {
	t.Helper()
	for _, e := range Diff(a, b) {
		t.Errorf("%v %v %s differs", e.Op, e.Table, e.Key)
	}
	if a.Revision() != b.Revision() || a.Position() != b.Position() ||
		a.CommandVersion() != b.CommandVersion() || a.dedupeBytes != b.dedupeBytes {
		t.Errorf("revision %d at %v, revision %d at %v",
			a.Revision(), a.Position(), b.Revision(), b.Position())
	}
	if a.Digest() != b.Digest() {
		t.Error("digests differ")
	}
}

func TestSnapshotOfManyAnswersIsCutIntoRecords(t *testing.T) {
	t.Parallel()
	a := newRig(t, Options{})
	for i := range uint64(40) {
		c := cmdArriveClient(fmt.Sprintf("client-%d", i))
		c.GetArriveClient().Info.Namespace = strings.Repeat("n", 16<<10)
		c.Version = 1 // later ones take no such thing
		a.ok(withRequest(c, "server/s1/b1", i+1, 1))
	}
	snapshot := snapshotOf(t, a.m)
	records := 0
	for _, f := range frames(t, snapshot) {
		if f.GetRecord().GetTable() == uint32(TableDedupe) {
			records++
		}
	}
	if records < 2 {
		t.Errorf("%d records", records)
	}
	sameState(t, a.m.Root(), restored(t, snapshot).m.Root())
}

func TestSnapshotIsOfOneMoment(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	populate(r)
	s := r.m.Snapshot()
	digest := s.Root().Digest()
	r.ok(cmdDepart("alice"))
	var out bytes.Buffer
	if _, err := s.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	if got := restored(t, out.String()).m.Root().Digest(); got != digest {
		t.Error("the snapshot moved on")
	}
}

func TestRestoreEpoch(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	populate(r)
	var out bytes.Buffer
	if _, err := r.m.Snapshot().WithRestoreEpoch(5).WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	if got := r.m.Root().Meta().GetRestoreEpoch(); got != 0 {
		t.Errorf("the machine's own epoch became %d", got)
	}
	if got := restored(t, out.String()).m.Root().Meta().GetRestoreEpoch(); got != 5 {
		t.Errorf("epoch is %d", got)
	}
}

func TestSnapshotWriteErrorIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	populate(r)
	full := errors.New("disk full")
	if _, err := r.m.Snapshot().WriteTo(failingWriter{full}); !errors.Is(err, full) {
		t.Errorf("error is %v", err)
	}
	for range 3 {
		c := cmdPutConfig("big", strings.Repeat("x", maxConfigValue))
		c.GetPutConfig().Key += strings.Repeat("x", r.stamps)
		r.ok(c)
	}
	if _, err := r.m.Snapshot().WriteTo(failingWriter{full}); !errors.Is(err, full) {
		t.Errorf("error is %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// frames decodes a snapshot's frames.
func frames(tb testing.TB, snapshot string) []*commandv1.SnapshotFrame {
	tb.Helper()
	var out []*commandv1.SnapshotFrame
	rest := []byte(snapshot)
	for len(rest) > 0 {
		size, n := binary.Uvarint(rest)
		f := &commandv1.SnapshotFrame{}
		if err := proto.Unmarshal(rest[n:n+int(size)], f); err != nil {
			tb.Fatal(err)
		}
		out = append(out, f)
		rest = rest[n+int(size):]
	}
	return out
}

// encode writes frames as a snapshot, with the count and the hash of the
// trailer made right unless keep is set.
func encode(tb testing.TB, list []*commandv1.SnapshotFrame, keep bool) string {
	tb.Helper()
	var out []byte
	records := uint64(0)
	for _, f := range list {
		if f.GetRecord() != nil {
			records++
		}
		if trailer := f.GetTrailer(); trailer != nil && !keep {
			sum := sha256.Sum256(out)
			trailer.Records, trailer.Sha256 = records, sum[:]
		}
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(f)
		if err != nil {
			tb.Fatal(err)
		}
		out = binary.AppendUvarint(out, uint64(len(raw)))
		out = append(out, raw...)
	}
	return string(out)
}

func record(tb testing.TB, table Table, row proto.Message) *commandv1.SnapshotFrame {
	tb.Helper()
	raw, err := proto.Marshal(row)
	if err != nil {
		tb.Fatal(err)
	}
	return &commandv1.SnapshotFrame{Frame: &commandv1.SnapshotFrame_Record{
		Record: &commandv1.SnapshotRecord{Table: uint32(table), Row: raw},
	}}
}

// refused checks that a snapshot is refused and that the state stays what it
// was.
func refused(t *testing.T, snapshot, want string) {
	t.Helper()
	r := newRig(t, Options{})
	r.ok(cmdPutConfig("mine", "stays"))
	before := r.m.Root()
	err := r.m.Restore(strings.NewReader(snapshot))
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error is %v, want %q", err, want)
	}
	if r.m.Root() != before {
		t.Error("the state was replaced")
	}
	r.ok(cmdPutConfig("mine", "goes on"))
}

func TestDamagedSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	source := newRig(t, Options{})
	populate(source)
	good := snapshotOf(t, source.m)

	for name, c := range map[string]struct {
		change func([]*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame
		keep   bool
		want   string
	}{
		"no header": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame { return f[1:] },
			want:   "no header",
		},
		"two headers": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				return append(f[:1:1], f...)
			},
			want: "neither record nor trailer",
		},
		"empty frame": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				return append([]*commandv1.SnapshotFrame{f[0], {}}, f[1:]...)
			},
			want: "neither record nor trailer",
		},
		"other format": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				f[0].GetHeader().Format = 9
				return f
			},
			want: "format is 9",
		},
		"newer commands": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				f[0].GetHeader().CommandVersion = 9
				return f
			},
			want: "run a newer program",
		},
		"no meta row": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				f[0].GetHeader().Meta = nil
				return f
			},
			want: "no meta row",
		},
		"negative time": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				f[0].GetHeader().Meta.Time = -1
				return f
			},
			want: "time is negative",
		},
		"other revision": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				f[0].GetHeader().Revision++
				return f
			},
			want: "digest in the trailer",
		},
		"record missing": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				return append(f[:2:2], f[3:]...)
			},
			keep: true,
			want: "the trailer counts",
		},
		"record changed": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				f[1].GetRecord().Optional = true
				return f
			},
			keep: true,
			want: "hash in the trailer",
		},
		"record forged": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				return append(f[:1:1], append([]*commandv1.SnapshotFrame{record(t, TableConfig,
					&commandv1.ConfigRow{Key: "x", CreateRevision: 1, ModifyRevision: 1})}, f[1:]...)...)
			},
			want: "digest in the trailer",
		},
		"record twice": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				return append(f[:2:2], f[1:]...)
			},
			want: "is there twice",
		},
		"unknown table": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				return append(f[:1:1], append([]*commandv1.SnapshotFrame{record(t, 77,
					&commandv1.ConfigRow{})}, f[1:]...)...)
			},
			want: "table 77 is unknown",
		},
		"bytes after the end": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				return append(f, f[1])
			},
			want: "bytes after the trailer",
		},
		"row that is none": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				f[1].GetRecord().Row = []byte{0xFF}
				return f
			},
			want: "decode row",
		},
		"orphaned intercept": {
			change: func(f []*commandv1.SnapshotFrame) []*commandv1.SnapshotFrame {
				return withoutTable(f, TableSessions)
			},
			want: "has no client session",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, encode(t, c.change(frames(t, good)), c.keep), c.want)
		})
	}
}

func withoutTable(list []*commandv1.SnapshotFrame, table Table) []*commandv1.SnapshotFrame {
	var out []*commandv1.SnapshotFrame
	for _, f := range list {
		if f.GetRecord() == nil || f.GetRecord().GetTable() != uint32(table) {
			out = append(out, f)
		}
	}
	return out
}

func TestMalformedRowsAreRefused(t *testing.T) {
	t.Parallel()
	result, err := proto.Marshal(&commandv1.Result{})
	if err != nil {
		t.Fatal(err)
	}
	answers := []*commandv1.DedupeResult{{Number: 1, Result: result}}
	for name, c := range map[string]struct {
		rows []*commandv1.SnapshotFrame
		want string
	}{
		"session of no kind": {
			[]*commandv1.SnapshotFrame{record(t, TableSessions, &commandv1.SessionRow{Id: "a"})},
			"neither a client nor an agent",
		},
		"session under the other kind's id": {
			[]*commandv1.SnapshotFrame{record(t, TableSessions, &commandv1.SessionRow{
				Id: "a", Kind: commandv1.SessionKind_SESSION_KIND_AGENT, Agent: agentInfo("web", "w1"),
			})},
			"id of the other kind",
		},
		"row without a key": {
			[]*commandv1.SnapshotFrame{record(t, TableTokens, &commandv1.TokenRow{})},
			"no key",
		},
		"workload without a name": {
			[]*commandv1.SnapshotFrame{record(t, TableWorkloads, &commandv1.WorkloadRow{Namespace: "a"})},
			"malformed",
		},
		"pods out of order": {
			[]*commandv1.SnapshotFrame{record(t, TableWorkloads, &commandv1.WorkloadRow{
				Namespace: "a", Name: "b", Pods: []*commandv1.Pod{{Node: "2"}, {Node: "1"}},
			})},
			"malformed",
		},
		"intercept under another name": {
			[]*commandv1.SnapshotFrame{
				record(t, TableSessions, &commandv1.SessionRow{
					Id: "a", Kind: commandv1.SessionKind_SESSION_KIND_CLIENT,
					Client: cmdArriveClient("a").GetArriveClient().GetInfo(),
				}),
				record(t, TableIntercepts, &commandv1.InterceptRow{Id: "a:b", SessionId: "a"}),
			},
			"id that is not its own",
		},
		"intercept served by nobody": {
			[]*commandv1.SnapshotFrame{
				record(t, TableSessions, &commandv1.SessionRow{
					Id: "a", Kind: commandv1.SessionKind_SESSION_KIND_CLIENT,
					Client: cmdArriveClient("a").GetArriveClient().GetInfo(),
				}),
				record(t, TableIntercepts, &commandv1.InterceptRow{
					Id: "a:b", SessionId: "a", Spec: interceptSpec("a", "b", "web", 80), AgentSessionId: "agent:x",
				}),
			},
			"which is gone",
		},
		"writer from before time": {
			[]*commandv1.SnapshotFrame{record(t, TableDedupe, &commandv1.DedupeRow{Writer: "w", UsedAt: -1})},
			"malformed",
		},
		"writer that differs": {
			[]*commandv1.SnapshotFrame{
				record(t, TableDedupe, &commandv1.DedupeRow{Writer: "w", Lowest: 1}),
				record(t, TableDedupe, &commandv1.DedupeRow{Writer: "w", Lowest: 2}),
			},
			"differs between its records",
		},
		"answer twice": {
			[]*commandv1.SnapshotFrame{
				record(t, TableDedupe, &commandv1.DedupeRow{Writer: "w", Results: answers}),
				record(t, TableDedupe, &commandv1.DedupeRow{Writer: "w", Results: answers}),
			},
			"is there twice",
		},
		"answer that is none": {
			[]*commandv1.SnapshotFrame{record(t, TableDedupe, &commandv1.DedupeRow{
				Writer: "w", Results: []*commandv1.DedupeResult{{Number: 1, Result: []byte{0xFF}}},
			})},
			"decode answer 1",
		},
		"row from the future": {
			[]*commandv1.SnapshotFrame{record(t, TableConfig, &commandv1.ConfigRow{
				Key: "a", CreateRevision: 1, ModifyRevision: 1,
			})},
			"has revisions 1 and 1 at revision 0",
		},
		"writer from the future": {
			[]*commandv1.SnapshotFrame{record(t, TableDedupe, &commandv1.DedupeRow{
				Writer: "w", ModifyRevision: 1,
			})},
			"is from revision 1",
		},
		"answer from the future": {
			[]*commandv1.SnapshotFrame{record(t, TableDedupe, &commandv1.DedupeRow{
				Writer: "w", Results: []*commandv1.DedupeResult{{Number: 1, Result: []byte{8, 1}}},
			})},
			"is from revision 1",
		},
		"writer that is none": {
			[]*commandv1.SnapshotFrame{{Frame: &commandv1.SnapshotFrame_Record{
				Record: &commandv1.SnapshotRecord{Table: uint32(TableDedupe), Row: []byte{0xFF}},
			}}},
			"decode row",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list := frames(t, snapshotOf(t, New(Options{})))
			list = append(list[:1:1], append(c.rows, list[1:]...)...)
			refused(t, encode(t, list, false), c.want)
		})
	}
}

func TestOptionalTableIsSkipped(t *testing.T) {
	t.Parallel()
	source := newRig(t, Options{})
	populate(source)
	list := frames(t, snapshotOf(t, source.m))
	extra := record(t, 77, &commandv1.ConfigRow{Key: "x"})
	extra.GetRecord().Optional = true
	list = append(list[:1:1], append([]*commandv1.SnapshotFrame{extra}, list[1:]...)...)
	sameState(t, source.m.Root(), restored(t, encode(t, list, false)).m.Root())
}

func TestDigestOfAnotherSchemaIsNotCompared(t *testing.T) {
	t.Parallel()
	source := newRig(t, Options{})
	populate(source)
	list := frames(t, snapshotOf(t, source.m))
	list[0].GetHeader().Schema = SchemaVersion + 1
	list[len(list)-1].GetTrailer().Digest = []byte("whatever that schema says")
	sameState(t, source.m.Root(), restored(t, encode(t, list, false)).m.Root())
}

func TestTruncatedSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	source := newRig(t, Options{})
	populate(source)
	good := snapshotOf(t, source.m)
	r := newRig(t, Options{})
	before := r.m.Root()
	for n := range len(good) {
		err := r.m.Restore(strings.NewReader(good[:n]))
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d of %d bytes: %v", n, len(good), err)
		}
	}
	if r.m.Root() != before {
		t.Error("the state was replaced")
	}
}

func TestFlippedSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	source := newRig(t, Options{})
	populate(source)
	good := snapshotOf(t, source.m)
	r := newRig(t, Options{})
	before := r.m.Root()
	for n := range len(good) {
		bad := []byte(good)
		bad[n] ^= 1 << (n % 8)
		if err := r.m.Restore(bytes.NewReader(bad)); err == nil {
			t.Fatalf("byte %d flipped: accepted", n)
		}
	}
	if r.m.Root() != before {
		t.Error("the state was replaced")
	}
}

func TestAnnouncedSizeIsNotAllocated(t *testing.T) {
	t.Parallel()
	// 15 MiB announced, a few bytes sent.
	short := append(binary.AppendUvarint(nil, 15<<20), "short"...)
	f := &frameReader{in: bufio.NewReader(bytes.NewReader(short)), hash: sha256.New()}
	if _, err := f.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error is %v", err)
	}
	if size := f.buf.Cap(); size > 1<<20 {
		t.Errorf("%d bytes allocated", size)
	}
	refused(t, string(binary.AppendUvarint(nil, maxFrame+1)), "larger than")
}

func TestRestoreReadsInPieces(t *testing.T) {
	t.Parallel()
	source := newRig(t, Options{})
	populate(source)
	r := newRig(t, Options{})
	err := r.m.Restore(iotest.OneByteReader(strings.NewReader(snapshotOf(t, source.m))))
	if err != nil {
		t.Fatal(err)
	}
	sameState(t, source.m.Root(), r.m.Root())
	broken := errors.New("cable cut")
	if err := r.m.Restore(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("error is %v", err)
	}
}
