package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"trivet/fsm"
)

// Names of the files in an archive.
const (
	metaName  = "meta.json"
	stateName = "state.bin"
	sumsName  = "SHA256SUMS"
)

const (
	// format is the version of the archive.
	format = 1
	// maxMeta bounds meta.json and SHA256SUMS.
	maxMeta = 1 << 20
	// maxState bounds state.bin; the size field of a tar ends there.
	maxState = 8<<30 - 1
)

// ErrDamaged: the archive is not what Write wrote.
var ErrDamaged = errors.New("the snapshot archive is damaged")

// Meta says where a state comes from and what is in it.
type Meta struct {
	Format int `json:"format"`
	// ClusterID is the cluster's; Server and Version are those of who wrote it.
	ClusterID string    `json:"clusterId"`
	Server    string    `json:"server"`
	Version   string    `json:"version"`
	CreatedAt time.Time `json:"createdAt"`
	// Revision, Index and Term are where the state machine was.
	Revision uint64 `json:"revision"`
	Index    uint64 `json:"index"`
	Term     uint64 `json:"term"`
	// RestoreEpoch counts the restores of the cluster up to then.
	RestoreEpoch   uint64 `json:"restoreEpoch"`
	CommandVersion uint32 `json:"commandVersion"`
	Schema         uint32 `json:"schema"`
	// Digest of the state, hexadecimal, comparable among equal schemas.
	Digest string `json:"digest"`
	// StateBytes is the size of state.bin.
	StateBytes int64 `json:"stateBytes"`
	// Rows by table.
	Rows map[string]int `json:"rows"`
}

// tables are counted in Meta.
var tables = []fsm.Table{
	fsm.TableSessions, fsm.TableIntercepts, fsm.TableNodes, fsm.TableWorkloads, fsm.TableIdentities, fsm.TableTokens,
	fsm.TableConfig, fsm.TableServers, fsm.TableKeys, fsm.TablePolicies, fsm.TableAudit, fsm.TableDedupe,
}

func describe(root *fsm.Root) Meta {
	digest := root.Digest()
	m := Meta{
		Format: format, ClusterID: root.Meta().GetClusterId(), Revision: root.Revision(),
		Index: root.Position().Index, Term: root.Position().Term, RestoreEpoch: root.Meta().GetRestoreEpoch(),
		CommandVersion: root.CommandVersion(), Schema: fsm.SchemaVersion, Digest: hex.EncodeToString(digest[:]),
		Rows: make(map[string]int),
	}
	for _, t := range tables {
		m.Rows[t.String()] = root.Len(t)
	}
	return m
}

// Origin is what an archive says of who wrote it.
type Origin struct {
	Server, Version string
	At              time.Time
}

// Write writes the archive of a snapshot and returns what its meta.json says.
// The state is encoded twice, once for its size, so that nothing is buffered.
func Write(w io.Writer, s *fsm.Snapshot, from Origin) (Meta, error) {
	m := describe(s.Root())
	m.Server, m.Version, m.CreatedAt = from.Server, from.Version, from.At.UTC()
	hash := sha256.New()
	size, err := s.WriteTo(hash)
	if err != nil {
		return m, fmt.Errorf("measure the state: %w", err)
	}
	m.StateBytes = size
	raw, err := encodeMeta(m)
	if err != nil {
		return m, err
	}
	out := &tarWriter{w: w}
	out.file(metaName, raw)
	out.begin(stateName, size)
	if out.err == nil {
		again := sha256.New()
		n, err := s.WriteTo(io.MultiWriter(out, again))
		switch {
		case err != nil:
			out.err = err
		case n != size || !bytes.Equal(again.Sum(nil), hash.Sum(nil)):
			out.err = errors.New("the state was encoded in two ways")
		}
	}
	out.pad(size)
	out.file(sumsName, sums(raw, hash.Sum(nil)))
	out.end()
	if out.err != nil {
		return m, fmt.Errorf("write the snapshot archive: %w", out.err)
	}
	return m, nil
}

func encodeMeta(m Meta) ([]byte, error) {
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode meta.json: %w", err)
	}
	return append(raw, '\n'), nil
}

func sums(meta, state []byte) []byte {
	sum := sha256.Sum256(meta)
	return fmt.Appendf(nil, "%x  %s\n%x  %s\n", sum, metaName, state, stateName)
}

// Archive is an archive that was read and found whole.
type Archive struct {
	Meta Meta
	// Snapshot is the state in it.
	Snapshot *fsm.Snapshot
}

// Open reads an archive to its end, checks every byte of it and decodes the
// state. ErrDamaged: it is not whole. Other errors say why this program cannot
// use it.
func Open(r io.Reader) (*Archive, error) {
	in := &tarReader{r: r}
	rawMeta, err := in.file(metaName, maxMeta)
	if err != nil {
		return nil, err
	}
	var m Meta
	if err := json.Unmarshal(rawMeta, &m); err != nil {
		return nil, fmt.Errorf("%w: decode %s: %w", ErrDamaged, metaName, err)
	}
	if m.Format != format {
		return nil, fmt.Errorf("the snapshot archive has format %d, this program knows %d", m.Format, format)
	}
	size, err := in.begin(stateName, maxState)
	if err != nil {
		return nil, err
	}
	machine := fsm.New(fsm.Options{RingSize: 1})
	hash := sha256.New()
	body := &io.LimitedReader{R: r, N: size}
	decode := machine.Restore(io.TeeReader(body, hash))
	if _, err := io.Copy(hash, body); err != nil {
		return nil, fmt.Errorf("read %s: %w", stateName, err)
	}
	if err := in.pad(size - body.N); err != nil {
		return nil, err
	}
	want, err := in.file(sumsName, maxMeta)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(want, sums(rawMeta, hash.Sum(nil))) {
		return nil, fmt.Errorf("%w: its checksums do not match", ErrDamaged)
	}
	if err := in.end(); err != nil {
		return nil, err
	}
	// Only now: what is wrong with whole bytes is a matter of versions.
	if decode != nil {
		return nil, fmt.Errorf("decode %s: %w", stateName, decode)
	}
	if err := agree(m, machine.Root(), size); err != nil {
		return nil, err
	}
	return &Archive{Meta: m, Snapshot: machine.Snapshot()}, nil
}

// agree compares what meta.json says with the state.
func agree(m Meta, root *fsm.Root, size int64) error {
	got := describe(root)
	if m.Schema != got.Schema {
		// The digest of another schema is not comparable.
		got.Schema, got.Digest = m.Schema, m.Digest
	}
	if m.ClusterID != got.ClusterID || m.Revision != got.Revision || m.Index != got.Index || m.Term != got.Term ||
		m.RestoreEpoch != got.RestoreEpoch || m.Digest != got.Digest || m.StateBytes != size {
		return fmt.Errorf("%w: %s is about another state", ErrDamaged, metaName)
	}
	return nil
}
