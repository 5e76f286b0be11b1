package fsm

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	"google.golang.org/protobuf/proto"

	commandv1 "trivet/proto/trivet/command/v1"
)

// restoreBuffer is the size of the reads.
const restoreBuffer = 64 << 10

// Restore replaces the state by that of a snapshot. Everything is read and
// checked before the first reader sees any of it: the number of records, the
// hash of the bytes, the digest recomputed from the rows, and the rules that
// tie rows together. On an error the state is as it was. Watchers see the
// difference.
func (m *Machine) Restore(r io.Reader) error {
	root, err := readSnapshot(r, m.known)
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	root.epoch = m.work.epoch + 1
	m.work, m.failed = root, nil
	published := root.publish(newRoot())
	m.ring.reset(published, m.root.Store)
	m.digests.reset(published)
	return nil
}

func readSnapshot(r io.Reader, known uint32) (*Root, error) {
	f := &frameReader{in: bufio.NewReaderSize(r, restoreBuffer), hash: sha256.New()}
	frame, err := f.next()
	if err != nil {
		return nil, err
	}
	header := frame.GetHeader()
	if header == nil {
		return nil, errors.New("no header at the start")
	}
	l, err := newLoader(header, known)
	if err != nil {
		return nil, err
	}
	for {
		if frame, err = f.next(); err != nil {
			return nil, err
		}
		switch {
		case frame.GetRecord() != nil:
			if err := l.record(frame.GetRecord()); err != nil {
				return nil, err
			}
		case frame.GetTrailer() != nil:
			if err := l.finish(frame.GetTrailer(), f.hash.Sum(nil)); err != nil {
				return nil, err
			}
			if _, err := f.in.ReadByte(); err != io.EOF {
				return nil, errors.New("bytes after the trailer")
			}
			return l.root, nil
		default:
			return nil, errors.New("a frame is neither record nor trailer")
		}
	}
}

// frameReader reads length-delimited frames and hashes all but trailers.
type frameReader struct {
	in   *bufio.Reader
	hash hash.Hash
	buf  bytes.Buffer
}

func (f *frameReader) next() (*commandv1.SnapshotFrame, error) {
	size, err := binary.ReadUvarint(f.in)
	if err != nil {
		return nil, fmt.Errorf("read the length of a frame: %w", noEOF(err))
	}
	if size > maxFrame {
		return nil, fmt.Errorf("frame of %d bytes is larger than %d", size, maxFrame)
	}
	// The buffer grows with what arrives, not with what was announced.
	f.buf.Reset()
	if _, err := io.CopyN(&f.buf, f.in, int64(size)); err != nil {
		return nil, fmt.Errorf("read a frame of %d bytes: %w", size, noEOF(err))
	}
	frame := &commandv1.SnapshotFrame{}
	if err := proto.Unmarshal(f.buf.Bytes(), frame); err != nil {
		return nil, fmt.Errorf("decode a frame: %w", err)
	}
	if frame.GetTrailer() == nil {
		f.hash.Write(binary.AppendUvarint(nil, size))
		f.hash.Write(f.buf.Bytes())
	}
	return frame, nil
}

// noEOF makes the end of the input in the middle of a snapshot an error that
// says so.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// loader builds a root from records.
type loader struct {
	root    *Root
	enc     *encoder
	schema  uint32
	records uint64
}

func newLoader(h *commandv1.SnapshotHeader, known uint32) (*loader, error) {
	switch {
	case h.GetFormat() != snapshotFormat:
		return nil, fmt.Errorf("format is %d, not %d", h.GetFormat(), snapshotFormat)
	case h.GetCommandVersion() > known:
		return nil, &UnknownCommandError{
			Position: Position{Index: h.GetIndex(), Term: h.GetTerm()},
			Version:  h.GetCommandVersion(),
			Known:    known,
		}
	case h.GetMeta() == nil:
		return nil, errors.New("the header has no meta row")
	case h.GetMeta().GetTime() < 0, h.GetMeta().GetSteadyTime() < 0:
		return nil, errors.New("the state's time is negative")
	}
	root := newRoot()
	root.revision = h.GetRevision()
	root.position = Position{Index: h.GetIndex(), Term: h.GetTerm()}
	root.commandVersion = h.GetCommandVersion()
	root.meta = h.GetMeta()
	root.limits = limitsOf(root.meta)
	return &loader{root: root, enc: newEncoder(), schema: h.GetSchema()}, nil
}

func (l *loader) record(rec *commandv1.SnapshotRecord) error {
	l.records++
	var err error
	switch Table(rec.GetTable()) {
	case TableSessions:
		err = load(l, &l.root.sessions, rec)
	case TableIntercepts:
		err = load(l, &l.root.intercepts, rec)
	case TableNodes:
		err = load(l, &l.root.nodes, rec)
	case TableWorkloads:
		err = load(l, &l.root.workloads, rec)
	case TableIdentities:
		err = load(l, &l.root.identities, rec)
	case TableTokens:
		err = load(l, &l.root.tokens, rec)
	case TableConfig:
		err = load(l, &l.root.configs, rec)
	case TableServers:
		err = load(l, &l.root.servers, rec)
	case TableKeys:
		err = load(l, &l.root.keys, rec)
	case TablePolicies:
		err = load(l, &l.root.policies, rec)
	case TableAudit:
		err = load(l, &l.root.audit, rec)
	case TableDedupe:
		err = l.dedupe(rec)
	default:
		if !rec.GetOptional() {
			return fmt.Errorf("table %d is unknown to this program", rec.GetTable())
		}
	}
	if err != nil {
		return fmt.Errorf("record %d, %v: %w", l.records, Table(rec.GetTable()), err)
	}
	return nil
}

func load[R protoRow](l *loader, t *table[R], rec *commandv1.SnapshotRecord) error {
	row := t.kind.fresh()
	if err := proto.Unmarshal(rec.GetRow(), row); err != nil {
		return fmt.Errorf("decode row: %w", err)
	}
	key := t.kind.key(row)
	if _, ok := t.get(key); ok {
		return fmt.Errorf("row %q is there twice", key)
	}
	if create, modify := t.kind.revisions(row); create > modify || modify > l.root.revision {
		return fmt.Errorf("row %q has revisions %d and %d at revision %d",
			key, create, modify, l.root.revision)
	}
	t.set(l.enc, &l.root.sum, key, row)
	return nil
}

// dedupe loads a writer or continues the one it has.
func (l *loader) dedupe(rec *commandv1.SnapshotRecord) error {
	row := &commandv1.DedupeRow{}
	if err := proto.Unmarshal(rec.GetRow(), row); err != nil {
		return fmt.Errorf("decode row: %w", err)
	}
	w := &writer{
		identity:       row.GetIdentity(),
		name:           row.GetWriter(),
		lowest:         row.GetLowest(),
		usedAt:         row.GetUsedAt(),
		modifyRevision: row.GetModifyRevision(),
	}
	if w.modifyRevision > l.root.revision {
		return fmt.Errorf("writer %q is from revision %d", w.name, w.modifyRevision)
	}
	known, ok := l.root.writers.get(w.key())
	if ok {
		if known.lowest != w.lowest || known.usedAt != w.usedAt ||
			known.modifyRevision != w.modifyRevision {
			return fmt.Errorf("writer %q differs between its records", w.name)
		}
		w.answers, w.bytes = known.answers, known.bytes
	}
	for _, stored := range row.GetResults() {
		a := &answer{
			writer: w.key(), number: stored.GetNumber(), hash: stored.GetHash(),
			result: &commandv1.Result{},
		}
		if err := proto.Unmarshal(stored.GetResult(), a.result); err != nil {
			return fmt.Errorf("decode answer %d: %w", a.number, err)
		}
		if a.result.GetRevision() > l.root.revision {
			return fmt.Errorf("answer %d of writer %q is from revision %d",
				a.number, w.name, a.result.GetRevision())
		}
		key := answerKind.key(a)
		if _, ok := l.root.answers.get(key); ok {
			return fmt.Errorf("answer %d of writer %q is there twice", a.number, w.name)
		}
		s, _ := l.root.answers.set(l.enc, &l.root.sum, key, a)
		w.answers++
		w.bytes += s.size
		l.root.dedupeBytes += s.size
	}
	l.root.account(known, w)
	l.root.writers.set(l.enc, &l.root.sum, w.key(), w)
	return nil
}

func (l *loader) finish(t *commandv1.SnapshotTrailer, hash []byte) error {
	if t.GetRecords() != l.records {
		return fmt.Errorf("%d records, the trailer counts %d", l.records, t.GetRecords())
	}
	if !bytes.Equal(t.GetSha256(), hash) {
		return errors.New("the hash in the trailer does not match the bytes before it")
	}
	for row := range l.root.Configs {
		l.root.configBytes += len(row.GetValue())
	}
	if err := l.root.check(); err != nil {
		return err
	}
	// Another schema digests other things; the hash has to do then.
	if digest := l.root.Digest(); l.schema == SchemaVersion && !bytes.Equal(t.GetDigest(), digest[:]) {
		return errors.New("the digest in the trailer does not match the rows")
	}
	return nil
}
