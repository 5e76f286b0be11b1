package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/prometheus/client_golang/prometheus"

	"trivet/internal/errs"
)

func TestWhatIsStoredIsReadAfterReopening(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	holds(t, s, 0, 0)
	if v, err := s.GetUint64([]byte("CurrentTerm")); v != 0 || err != nil {
		t.Errorf("a term that was not set is %d, %v", v, err)
	}
	store(t, s, 1, 40)
	if err := errors.Join(s.SetUint64([]byte("CurrentTerm"), 7), s.Set([]byte("LastVoteCand"), []byte("me"))); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.DeleteRange(1, 9), s.DeleteRange(31, 40)); err != nil {
		t.Fatal(err)
	}
	holds(t, s, 10, 30)
	store(t, s, 31, 33)
	for range 2 {
		holds(t, s, 10, 33)
		term, err := s.GetUint64([]byte("CurrentTerm"))
		vote, err2 := s.Get([]byte("LastVoteCand"))
		if term != 7 || string(vote) != "me" || err != nil || err2 != nil {
			t.Errorf("term %d, vote %q, %v, %v", term, vote, err, err2)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir, nil)
	}
	var l raft.Log
	if err := s.GetLog(9, &l); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("an entry that was removed: %v", err)
	}
}

func TestEntryWithoutATimeIsRead(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	want := raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: []byte("first servers")}
	if err := s.StoreLog(&want); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var got raft.Log
	if err := open(t, dir, nil).GetLog(1, &got); err != nil || !got.AppendedAt.IsZero() {
		t.Errorf("read %+v, %v", got, err)
	}
}

func TestDirectoryThatIsInUseIsRefused(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, nil)
	_, err := tryOpen(dir, nil)
	if e := errs.From(err); e == nil || e.Reason != ReasonInUse || e.Hint == "" {
		t.Errorf("opened twice: %v", err)
	}
}

// legacy writes a directory as builds without checksums did.
func legacy(t *testing.T, dir string, last uint64) {
	t.Helper()
	b, err := newBolt(filepath.Join(dir, boltFile), false)
	if err != nil {
		t.Fatal(err)
	}
	logs := entries(1, last)
	for _, l := range logs {
		l.Extensions = nil
	}
	err = errors.Join(b.StoreLogs(logs), b.SetUint64([]byte("CurrentTerm"), 300), b.Set([]byte("LastVoteCand"), []byte("other")), b.Close())
	if err != nil {
		t.Fatal(err)
	}
}

func TestDirectoryOfAnOlderBuildIsTakenOver(t *testing.T) {
	dir := t.TempDir()
	legacy(t, dir, 30)
	for range 2 {
		s := open(t, dir, nil)
		for i := uint64(1); i <= 30; i++ {
			want := entry(i)
			want.Extensions = nil
			var got raft.Log
			if err := s.GetLog(i, &got); err != nil {
				t.Fatal(err)
			}
			if d := differs(&got, want); d != "" {
				t.Fatal(d)
			}
		}
		term, err := s.GetUint64([]byte("CurrentTerm"))
		vote, err2 := s.Get([]byte("LastVoteCand"))
		if term != 300 || string(vote) != "other" || err != nil || err2 != nil {
			t.Errorf("term %d, vote %q, %v, %v", term, vote, err, err2)
		}
		if s.sealedFrom != 31 {
			t.Errorf("checksums are wanted from entry %d on", s.sealedFrom)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, dir, nil)
	store(t, s, 31, 40)
	if err := errors.Join(s.DeleteRange(25, 40), s.StoreLogs(entries(25, 35)), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, nil)
	for i := uint64(25); i <= 35; i++ {
		var got raft.Log
		if err := s.GetLog(i, &got); err != nil {
			t.Fatal(err)
		}
		if d := differs(&got, entry(i)); d != "" {
			t.Fatal(d)
		}
	}
}

// TestOlderBuildReadsWhatThisOneWrote: a rolling upgrade can be rolled back.
func TestOlderBuildReadsWhatThisOneWrote(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	store(t, s, 1, 3)
	if err := errors.Join(s.SetUint64([]byte("CurrentTerm"), 12), s.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := raftboltdb.NewBoltStore(filepath.Join(dir, boltFile))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var l raft.Log
	if err := b.GetLog(2, &l); err != nil || !bytes.Equal(l.Data, entry(2).Data) {
		t.Errorf("read %+v, %v", l, err)
	}
	if term, err := b.GetUint64([]byte("CurrentTerm")); err != nil || term != 12 {
		t.Errorf("term %d, %v", term, err)
	}
}

// TestLostNoteIsNotTakenForAnOlderBuild: without the note that entries have
// checksums, those that lost theirs would pass.
func TestLostNoteIsNotTakenForAnOlderBuild(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	store(t, s, 1, 3)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, boltFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw = bytes.ReplaceAll(raw, []byte(keySealed), []byte("trivet.sealed-frop"))
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := tryOpen(dir, nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("opened: %v", err)
	}
}

func TestSameStableValueIsNotWrittenAgain(t *testing.T) {
	s := open(t, t.TempDir(), nil)
	key := []byte("CurrentTerm")
	if err := s.SetUint64(key, 5); err != nil {
		t.Fatal(err)
	}
	before := s.Stats().LastWrite
	if err := s.SetUint64(key, 5); err != nil {
		t.Fatal(err)
	}
	if after := s.Stats().LastWrite; !after.Equal(before) {
		t.Error("it was written")
	}
	if err := s.Set(key, binary.BigEndian.AppendUint64(nil, 6)); err != nil || s.Stats().LastWrite.Equal(before) {
		t.Errorf("a new value was not written: %v", err)
	}
}

func TestMetricsAreThere(t *testing.T) {
	s := open(t, t.TempDir(), nil)
	store(t, s, 1, 10)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, f := range families {
		seen[f.GetName()] = true
		if f.GetName() == "trivet_raft_log_write_seconds" && f.GetMetric()[0].GetHistogram().GetSampleCount() == 0 {
			t.Error("no write was measured")
		}
	}
	for _, name := range []string{"trivet_raft_log_write_seconds", "trivet_raft_log_write_bytes", "trivet_raft_log_bytes", "trivet_raft_disk_free_bytes"} {
		if !seen[name] {
			t.Errorf("no %s", name)
		}
	}
	st := s.Stats()
	if st.CachedEntries != 10 || st.LogBytes == 0 || st.FreeBytes == 0 || st.MeanWrite <= 0 || time.Since(st.LastWrite) > time.Minute {
		t.Errorf("figures %+v", st)
	}
}
