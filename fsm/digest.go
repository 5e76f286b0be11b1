package fsm

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"

	commandv1 "trivet/proto/trivet/command/v1"
)

// SchemaVersion is the version of the canonical encoding and of everything the
// digest covers. It grows with every change to a message that a row can hold,
// or to the encoding. Digests of different versions say nothing about each
// other.
const SchemaVersion uint32 = 2

// sum is the sum, modulo 2^256, of the hashes of all rows. It does not depend
// on the order in which they came, and a row leaves it by subtraction.
type sum [4]uint64

func (s *sum) add(o sum) {
	var carry uint64
	for i := range s {
		s[i], carry = bits.Add64(s[i], o[i], carry)
	}
}

func (s *sum) sub(o sum) {
	var borrow uint64
	for i := range s {
		s[i], borrow = bits.Sub64(s[i], o[i], borrow)
	}
}

// element is the digest of one row and the size of its canonical form.
type element struct {
	sum  sum
	size int
}

// element hashes (schema, table, key, row). body appends the row.
func (e *encoder) element(tag byte, key string, body func()) element {
	e.buf = e.buf[:0]
	e.uvarint(uint64(SchemaVersion))
	e.buf = append(e.buf, tag)
	e.str(key)
	head := len(e.buf)
	body()
	hash := sha256.Sum256(e.buf)
	var s sum
	for i := range s {
		s[i] = binary.LittleEndian.Uint64(hash[8*i:])
	}
	return element{sum: s, size: len(e.buf) - head}
}

// Digest returns the digest of the whole state: every table, the meta row and
// the revision. Replicas of equal SchemaVersion have equal digests at equal
// revisions; the log position is not part of it. It costs two hashes whatever
// the size of the state.
func (r *Root) Digest() [32]byte { return r.digestible().digest() }

// digestible is all of a state that its digest is made of.
type digestible struct {
	revision uint64
	meta     *commandv1.MetaRow
	sum      sum
}

func (r *Root) digestible() digestible { return digestible{r.revision, r.meta, r.sum} }

func (d digestible) digest() [32]byte {
	e := newEncoder()
	e.str("trivet fsm")
	e.uvarint(uint64(SchemaVersion))
	e.uvarint(d.revision)
	e.message(d.meta.ProtoReflect())
	for _, word := range d.sum {
		e.buf = binary.LittleEndian.AppendUint64(e.buf, word)
	}
	return sha256.Sum256(e.buf)
}
