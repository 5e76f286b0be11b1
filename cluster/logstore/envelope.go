package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"
)

// A stored entry has eight bytes before its extensions, a stored stable value
// eight bytes behind it: the mark and a CRC-32C of everything that is stored.
// Peers never see them. In that order older builds can still read both: they
// ignore the extensions, and of a term they read the first eight bytes.
var (
	entryMark  = [4]byte{'t', 'v', 'e', 1}
	stableMark = [4]byte{'t', 'v', 's', 1}
)

const sealBytes = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	errUnsealed = errors.New("it has no checksum")
	errChecksum = errors.New("its checksum does not match")
)

func entrySum(l *raft.Log, extensions []byte) uint32 {
	var head [8*4 + 1]byte
	binary.LittleEndian.PutUint64(head[0:], l.Index)
	binary.LittleEndian.PutUint64(head[8:], l.Term)
	binary.LittleEndian.PutUint64(head[16:], uint64(l.AppendedAt.UnixNano()))
	// The length keeps data and extensions apart.
	binary.LittleEndian.PutUint64(head[24:], uint64(len(l.Data)))
	head[32] = byte(l.Type)
	sum := crc32.Update(0, castagnoli, head[:])
	sum = crc32.Update(sum, castagnoli, l.Data)
	return crc32.Update(sum, castagnoli, extensions)
}

// seal returns the entry as it is stored. Its data is shared with l.
func seal(l *raft.Log) raft.Log {
	stored := *l
	ext := make([]byte, sealBytes, sealBytes+len(l.Extensions))
	copy(ext, entryMark[:])
	binary.LittleEndian.PutUint32(ext[4:], entrySum(l, l.Extensions))
	stored.Extensions = append(ext, l.Extensions...)
	return stored
}

// unseal verifies an entry that was read under index and makes it what Raft
// stored. Unless sealed is true it may also be one of an older build, which
// stored neither checksums nor extensions.
func unseal(l *raft.Log, index uint64, sealed bool) error {
	if l.Index != index {
		return fmt.Errorf("it says that it is entry %d", l.Index)
	}
	ext := l.Extensions
	if len(ext) == 0 && !sealed {
		return nil
	}
	if len(ext) < sealBytes || !bytes.Equal(ext[:4], entryMark[:]) {
		return errUnsealed
	}
	rest := ext[sealBytes:]
	if binary.LittleEndian.Uint32(ext[4:]) != entrySum(l, rest) {
		return errChecksum
	}
	if len(rest) == 0 {
		rest = nil
	}
	l.Extensions = rest
	return nil
}

func stableSum(key, val []byte) uint32 {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(key)))
	sum := crc32.Update(0, castagnoli, n[:])
	sum = crc32.Update(sum, castagnoli, key)
	return crc32.Update(sum, castagnoli, val)
}

// sealStable returns a stable value as it is stored.
func sealStable(key, val []byte) []byte {
	out := make([]byte, len(val), len(val)+sealBytes)
	copy(out, val)
	out = append(out, stableMark[:]...)
	return binary.LittleEndian.AppendUint32(out, stableSum(key, val))
}

// unsealStable verifies a stored stable value and returns what was set.
func unsealStable(key, stored []byte) ([]byte, error) {
	n := len(stored) - sealBytes
	if n < 0 || !bytes.Equal(stored[n:n+4], stableMark[:]) {
		return nil, errUnsealed
	}
	if binary.LittleEndian.Uint32(stored[n+4:]) != stableSum(key, stored[:n]) {
		return nil, errChecksum
	}
	return stored[:n:n], nil
}
