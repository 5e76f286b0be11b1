package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// state is a machine with some rows.
func state(t testing.TB) *fsm.Machine {
	t.Helper()
	m := fsm.New(fsm.Options{})
	entry := &commandv1.Entry{Commands: []*commandv1.Command{{
		Version: fsm.CommandVersion,
		Op:      &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "test", DedupeKey: make([]byte, 32)}},
	}}}
	for i := range 20 {
		entry.Commands = append(entry.Commands, &commandv1.Command{
			Version: fsm.CommandVersion, Time: int64(i),
			Op: &commandv1.Command_PutConfig{PutConfig: &commandv1.PutConfig{Key: fmt.Sprint("key-", i), Value: []byte("value")}},
		})
	}
	if _, err := m.Apply(fsm.Position{Index: 7, Term: 2}, entry); err != nil {
		t.Fatal(err)
	}
	return m
}

func written(t testing.TB, m *fsm.Machine) ([]byte, Meta) {
	t.Helper()
	var buf bytes.Buffer
	meta, err := Write(&buf, m.Snapshot(), Origin{Server: "server-1", Version: "v1", At: time.Unix(1000, 0)})
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes(), meta
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	m := state(t)
	raw, meta := written(t, m)
	got, err := Open(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(meta, got.Meta); diff != "" {
		t.Error(diff)
	}
	if got.Snapshot.Root().Digest() != m.Root().Digest() {
		t.Error("the digests differ")
	}
	if meta.Revision != 21 || meta.Index != 7 || meta.Rows["config"] != 20 {
		t.Errorf("meta %+v", meta)
	}
}

// TestAnyTarReadsIt: an operator without this program can look inside.
func TestAnyTarReadsIt(t *testing.T) {
	raw, meta := written(t, state(t))
	r := tar.NewReader(bytes.NewReader(raw))
	var names []string
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == stateName && h.Size != meta.StateBytes {
			t.Errorf("%s has %d bytes, meta.json says %d", h.Name, h.Size, meta.StateBytes)
		}
		names = append(names, h.Name)
	}
	if diff := cmp.Diff([]string{metaName, stateName, sumsName}, names); diff != "" {
		t.Error(diff)
	}
}

func TestEveryFlippedByteIsNoticed(t *testing.T) {
	raw, _ := written(t, state(t))
	for i := 0; i < len(raw); i += 3 {
		bad := bytes.Clone(raw)
		bad[i] ^= 1 << (i % 8)
		if _, err := Open(bytes.NewReader(bad)); err == nil {
			t.Fatalf("byte %d of %d was changed and nobody noticed", i, len(raw))
		}
	}
}

func TestEveryTruncationIsNoticed(t *testing.T) {
	raw, _ := written(t, state(t))
	for i := 0; i < len(raw); i += 7 {
		if _, err := Open(bytes.NewReader(raw[:i])); !errors.Is(err, ErrDamaged) {
			t.Fatalf("the first %d of %d bytes: %v", i, len(raw), err)
		}
	}
	if _, err := Open(bytes.NewReader(append(bytes.Clone(raw), 0))); !errors.Is(err, ErrDamaged) {
		t.Errorf("one byte more: %v", err)
	}
}

type broken struct{ left int }

func (b *broken) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

func TestWriteSaysWhenItsWriterFails(t *testing.T) {
	m := state(t)
	raw, _ := written(t, m)
	for i := 0; i < len(raw); i += 101 {
		if _, err := Write(&broken{i}, m.Snapshot(), Origin{}); !errors.Is(err, io.ErrShortWrite) {
			t.Fatalf("a writer that takes %d bytes: %v", i, err)
		}
	}
}
