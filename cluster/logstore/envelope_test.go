package logstore

import (
	"bytes"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func TestEveryFieldIsCoveredByTheChecksum(t *testing.T) {
	base := func() *raft.Log {
		return &raft.Log{
			Index: 5, Term: 3, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("more"), AppendedAt: time.Unix(9, 9),
		}
	}
	for name, change := range map[string]func(*raft.Log){
		"term":                 func(l *raft.Log) { l.Term = 4 },
		"type":                 func(l *raft.Log) { l.Type = raft.LogNoop },
		"data":                 func(l *raft.Log) { l.Data[1] ^= 1 },
		"shorter data":         func(l *raft.Log) { l.Data = l.Data[:3] },
		"time":                 func(l *raft.Log) { l.AppendedAt = time.Unix(9, 10) },
		"extensions":           func(l *raft.Log) { l.Extensions[sealBytes] ^= 1 },
		"no extensions":        func(l *raft.Log) { l.Extensions = nil },
		"checksum":             func(l *raft.Log) { l.Extensions[5] ^= 1 },
		"mark":                 func(l *raft.Log) { l.Extensions[0] ^= 1 },
		"index":                func(l *raft.Log) { l.Index = 6 },
		"data into extensions": func(l *raft.Log) { l.Data, l.Extensions = l.Data[:3], append(l.Extensions, 'a') },
	} {
		l := seal(base())
		l.Data, l.Extensions = bytes.Clone(l.Data), bytes.Clone(l.Extensions)
		change(&l)
		if err := unseal(&l, 5, true); err == nil {
			t.Errorf("a change of the %s was not noticed", name)
		}
	}
	l := seal(base())
	if err := unseal(&l, 5, true); err != nil || differs(&l, base()) != "" {
		t.Errorf("unchanged: %v, %s", err, differs(&l, base()))
	}
}

// FuzzUnseal: whatever is on the disk, what passes was sealed.
func FuzzUnseal(f *testing.F) {
	s := seal(entry(5))
	f.Add(s.Index, s.Term, byte(s.Type), s.Data, s.Extensions, s.AppendedAt.UnixNano(), true)
	f.Add(uint64(5), uint64(1), byte(0), []byte("old"), []byte(nil), int64(0), false)
	f.Fuzz(func(t *testing.T, index, term uint64, kind byte, data, ext []byte, at int64, sealed bool) {
		l := raft.Log{Index: index, Term: term, Type: raft.LogType(kind), Data: data, Extensions: bytes.Clone(ext), AppendedAt: time.Unix(0, at)}
		if err := unseal(&l, index, sealed); err != nil {
			return
		}
		if len(ext) == 0 {
			if sealed {
				t.Fatal("an entry without a checksum passed")
			}
			return
		}
		again := seal(&l)
		if !bytes.Equal(again.Extensions, ext) {
			t.Fatalf("%x passed as %x", ext, again.Extensions)
		}
	})
}

// FuzzUnsealStable is the same for stable values.
func FuzzUnsealStable(f *testing.F) {
	f.Add([]byte("CurrentTerm"), sealStable([]byte("CurrentTerm"), []byte{0, 0, 0, 0, 0, 0, 0, 9}))
	f.Add([]byte("k"), []byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, key, stored []byte) {
		v, err := unsealStable(key, stored)
		if err == nil && !bytes.Equal(sealStable(key, v), stored) {
			t.Fatalf("%x passed as %x", stored, v)
		}
	})
}
