package fsm

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"

	"google.golang.org/protobuf/proto"

	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	// snapshotFormat is the version of the frames and their order.
	snapshotFormat = 1
	// maxFrame bounds a frame; every row is far smaller by the bounds of the
	// commands that make it.
	maxFrame = 16 << 20
	// dedupeChunk is the size of the answers after which a writer's record is
	// continued in another one.
	dedupeChunk = 256 << 10
	// snapshotBuffer is the size of the writes.
	snapshotBuffer = 256 << 10
)

// Snapshot is the state at one moment, ready to be written. It is immutable
// and keeps that state from being collected.
type Snapshot struct{ root *Root }

// Snapshot takes the present state. It costs nothing, whatever the size.
func (m *Machine) Snapshot() *Snapshot { return &Snapshot{root: m.Root()} }

// Root returns the state in the snapshot.
func (s *Snapshot) Root() *Root { return s.root }

// WithRestoreEpoch returns a snapshot of the same state under another restore
// epoch. An operator who restores an old snapshot raises the epoch, so that
// nodes refuse orders from the time that was undone.
func (s *Snapshot) WithRestoreEpoch(epoch uint64) *Snapshot {
	root := *s.root
	root.meta = edit(root.meta)
	root.meta.RestoreEpoch = epoch
	return &Snapshot{root: &root}
}

// WriteTo writes the snapshot: a header, a record per row and a trailer with
// their number, the SHA-256 of everything before it, and the digest of the
// state. Memory use does not depend on the size of the state.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	f := &frameWriter{out: bufio.NewWriterSize(w, snapshotBuffer), hash: sha256.New()}
	if err := s.write(f); err != nil {
		return f.written, fmt.Errorf("write snapshot at revision %d: %w", s.root.revision, err)
	}
	return f.written, nil
}

func (s *Snapshot) write(f *frameWriter) error {
	r := s.root
	f.frame(&commandv1.SnapshotFrame{Frame: &commandv1.SnapshotFrame_Header{
		Header: &commandv1.SnapshotHeader{
			Format:         snapshotFormat,
			Revision:       r.revision,
			Index:          r.position.Index,
			Term:           r.position.Term,
			Schema:         SchemaVersion,
			Meta:           r.meta,
			CommandVersion: r.commandVersion,
		},
	}})
	writeTable(f, &r.sessions)
	writeTable(f, &r.intercepts)
	writeTable(f, &r.nodes)
	writeTable(f, &r.workloads)
	writeTable(f, &r.identities)
	writeTable(f, &r.tokens)
	writeTable(f, &r.configs)
	writeTable(f, &r.servers)
	writeTable(f, &r.keys)
	writeTable(f, &r.policies)
	writeTable(f, &r.audit)
	r.writers.all(func(w *writer) bool { return f.writer(r, w) })

	digest := r.Digest()
	f.frame(&commandv1.SnapshotFrame{Frame: &commandv1.SnapshotFrame_Trailer{
		Trailer: &commandv1.SnapshotTrailer{
			Records: f.records, Sha256: f.hash.Sum(nil), Digest: digest[:],
		},
	}})
	if f.err != nil {
		return f.err
	}
	return f.out.Flush()
}

// frameWriter writes length-delimited frames. After an error it writes
// nothing more.
type frameWriter struct {
	out     *bufio.Writer
	hash    hash.Hash
	written int64
	records uint64
	err     error
	row     []byte
	buf     []byte
}

// wire has a fixed order of map entries so that equal states give equal
// snapshots of one program.
var wire = proto.MarshalOptions{Deterministic: true}

func (f *frameWriter) frame(frame *commandv1.SnapshotFrame) bool {
	if f.err != nil {
		return false
	}
	size := wire.Size(frame)
	if size > maxFrame {
		f.err = fmt.Errorf("frame of %d bytes is larger than %d", size, maxFrame)
		return false
	}
	f.buf, f.err = wire.MarshalAppend(binary.AppendUvarint(f.buf[:0], uint64(size)), frame)
	if f.err != nil {
		return false
	}
	f.hash.Write(f.buf)
	var n int
	n, f.err = f.out.Write(f.buf)
	f.written += int64(n)
	return f.err == nil
}

func (f *frameWriter) record(t Table, row proto.Message) bool {
	if f.err != nil {
		return false
	}
	if f.row, f.err = wire.MarshalAppend(f.row[:0], row); f.err != nil {
		return false
	}
	f.records++
	return f.frame(&commandv1.SnapshotFrame{Frame: &commandv1.SnapshotFrame_Record{
		Record: &commandv1.SnapshotRecord{Table: uint32(t), Row: f.row},
	}})
}

func writeTable[R proto.Message](f *frameWriter, t *table[R]) {
	t.all(func(row R) bool { return f.record(t.kind.id, row) })
}

// writer writes one writer and its answers, in as many records as it takes.
// Each of them repeats the writer.
func (f *frameWriter) writer(r *Root, w *writer) bool {
	row := &commandv1.DedupeRow{
		Identity:       w.identity,
		Writer:         w.name,
		Lowest:         w.lowest,
		UsedAt:         w.usedAt,
		ModifyRevision: w.modifyRevision,
	}
	size := 0
	r.answersOf(w.key(), func(a *answer) bool {
		var result []byte
		if result, f.err = wire.Marshal(a.result); f.err != nil {
			return false
		}
		row.Results = append(row.Results, &commandv1.DedupeResult{
			Number: a.number, Hash: a.hash, Result: result,
		})
		if size += len(result); size > dedupeChunk {
			f.record(TableDedupe, row)
			row.Results, size = nil, 0
		}
		return f.err == nil
	})
	return f.record(TableDedupe, row)
}
