package fsm

import (
	"encoding/binary"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/btree"
	"google.golang.org/protobuf/proto"
)

// Table numbers a table of the state. The numbers stand in snapshots and in
// digests: they are never reused and never change.
type Table uint8

// The tables. TableDedupe and TableAudit make no events; TableMeta has one row.
const (
	TableSessions Table = iota + 1
	TableIntercepts
	TableNodes
	TableWorkloads
	TableIdentities
	TableTokens
	TableDedupe
	TableConfig
	TableServers
	TableMeta
	TableKeys
	TablePolicies
	TableAudit
)

var tableNames = [...]string{
	"", "sessions", "intercepts", "nodes", "workloads", "identities", "tokens", "dedupe", "config",
	"servers", "meta", "keys", "policies", "audit",
}

// String returns the table's name, plural and lower case.
func (t Table) String() string {
	if t == 0 || int(t) >= len(tableNames) {
		return "table " + strconv.Itoa(int(t))
	}
	return tableNames[t]
}

// maxIndexes is the largest number of secondary indexes a table has.
const maxIndexes = 2

// kind is the fixed description of one table.
type kind[R any] struct {
	id Table
	// tag separates the digests of tables that share an id.
	tag byte
	// fresh makes an empty row to decode into; nil where rows are not messages.
	fresh func() R
	key   func(R) string
	// encode appends the row's canonical form.
	encode func(*encoder, R)
	// stamp sets the revisions of a row that is not published yet, revisions
	// returns them.
	stamp     func(row R, create, modify uint64)
	revisions func(R) (create, modify uint64)
	// index holds, for each secondary index, the function that emits the
	// prefixes under which a row is found.
	index []func(row R, emit func(prefix string))
	// silent tables make no events.
	silent bool
}

// stored is a row with its share of the digest, so that replacing or removing
// it does not encode it again.
type stored[R any] struct {
	row  R
	sum  sum
	size int // bytes of the canonical form
}

// table holds rows in key order, with their secondary indexes. The working
// copy belongs to the writer; publish makes copies that nobody writes.
type table[R any] struct {
	kind    *kind[R]
	rows    *btree.Map[string, *stored[R]]
	indexes [maxIndexes]*btree.Map[string, string]

	// dirty and dirtyIndex tell what changed since the last publish.
	dirty      bool
	dirtyIndex [maxIndexes]bool
}

func newTable[R any](k *kind[R]) table[R] {
	t := table[R]{kind: k, rows: btree.NewMap[string, *stored[R]](0)}
	for i := range k.index {
		t.indexes[i] = btree.NewMap[string, string](0)
	}
	return t
}

func (t *table[R]) get(key string) (R, bool) {
	s, ok := t.rows.Get(key)
	if !ok {
		var none R
		return none, false
	}
	return s.row, true
}

// set stores row under key and keeps digest and indexes in step. It returns
// the new and the replaced element; the latter is nil if there was none.
func (t *table[R]) set(e *encoder, total *sum, key string, row R) (s, old *stored[R]) {
	el := e.element(t.kind.tag, key, func() { t.kind.encode(e, row) })
	s = &stored[R]{row: row, sum: el.sum, size: el.size}
	old, _ = t.rows.Set(key, s)
	t.dirty = true
	total.add(s.sum)
	if old != nil {
		total.sub(old.sum)
	}
	t.reindex(key, old, s)
	return s, old
}

// remove deletes the row under key. It returns nil if there is none.
func (t *table[R]) remove(total *sum, key string) *stored[R] {
	old, ok := t.rows.Delete(key)
	if !ok {
		return nil
	}
	t.dirty = true
	total.sub(old.sum)
	t.reindex(key, old, nil)
	return old
}

func (t *table[R]) reindex(key string, old, s *stored[R]) {
	for i, of := range t.kind.index {
		var was, is []string
		if old != nil {
			of(old.row, func(prefix string) { was = append(was, prefix) })
		}
		if s != nil {
			of(s.row, func(prefix string) { is = append(is, prefix) })
		}
		if slices.Equal(was, is) {
			continue
		}
		t.dirtyIndex[i] = true
		for _, prefix := range was {
			t.indexes[i].Delete(prefix + key)
		}
		for _, prefix := range is {
			t.indexes[i].Set(prefix+key, key)
		}
	}
}

// publish returns an immutable view of the table. Parts that did not change
// are those of prev, so that equal tables can be told by their pointers.
func (t *table[R]) publish(prev *table[R]) table[R] {
	pub := table[R]{kind: t.kind, rows: prev.rows, indexes: prev.indexes}
	if t.dirty {
		pub.rows = t.rows.Copy()
		t.dirty = false
	}
	for i := range t.kind.index {
		if t.dirtyIndex[i] {
			pub.indexes[i] = t.indexes[i].Copy()
			t.dirtyIndex[i] = false
		}
	}
	return pub
}

// all yields the rows in key order.
func (t *table[R]) all(yield func(R) bool) {
	t.rows.Scan(func(_ string, s *stored[R]) bool { return yield(s.row) })
}

// by yields the rows that index i holds under prefix, in key order.
func (t *table[R]) by(i int, prefix string) iter.Seq[R] {
	return func(yield func(R) bool) {
		t.indexes[i].Ascend(prefix, func(at, key string) bool {
			if !strings.HasPrefix(at, prefix) {
				return false
			}
			s, ok := t.rows.Get(key)
			return !ok || yield(s.row)
		})
	}
}

// part makes a piece of an index prefix that no other value can imitate,
// whatever bytes it holds.
func part(s string) string {
	return strconv.Itoa(len(s)) + ":" + s
}

// bigEndian makes a piece of an index prefix that sorts like the number.
func bigEndian(n uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	return string(b[:])
}

// message returns a row as an event carries it; nil for no row.
func message[R any](s *stored[R]) proto.Message {
	if s == nil {
		return nil
	}
	m, _ := any(s.row).(proto.Message)
	return m
}
