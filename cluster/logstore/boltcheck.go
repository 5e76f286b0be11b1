package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
)

// The file format of bbolt, as far as it is needed to see that a file is whole.
// bbolt itself panics on one that is not, partly on goroutines where nobody can
// recover, and follows wrong offsets out of its mapping. So a file is read here
// first, with bounds.
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltPageHeader = 16
	boltElement    = 16
	boltMetaSum    = 56 // offset of the checksum in a meta page's body
	boltBucket     = 16 // header of a bucket in a leaf's value
	noFreelist     = ^uint64(0)
	maxBoltDepth   = 64

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10
	flagIsBucket = 0x01
)

// What raft-boltdb keeps in a file: nothing else may be in it. A bucket or a
// stable value under a damaged name would not be missed by anybody: the server
// would have forgotten its log, its term or its vote.
var (
	boltBuckets = []string{"conf", boltLogs}
	boltConf    = append([]string{keySealed}, stableKeys...)
)

const boltLogs = "logs"

// checkBolt reads every page that is reachable in a bbolt file and says what is
// wrong with the first that is damaged. It holds the file's lock meanwhile.
func checkBolt(path string) error {
	f, err := lockFile(path)
	if err != nil {
		return err
	}
	defer f.Close()
	c := &boltChecker{file: f, seen: make(map[uint64]bool)}
	if err := c.check(); err != nil {
		var e *os.PathError
		if errors.As(err, &e) {
			return corrupt(path, "a page", err)
		}
		return corrupt(path, "the log", err)
	}
	return nil
}

type boltChecker struct {
	file     *os.File
	pageSize uint64
	pages    uint64 // high-water mark: pages in use are below it
	seen     map[uint64]bool
}

type boltMeta struct {
	pageSize             uint32
	root, freelist, high uint64
	txid                 uint64
}

func readMeta(body []byte) (m boltMeta, err error) {
	n := binary.NativeEndian
	sum := fnv.New64a()
	_, _ = sum.Write(body[:boltMetaSum])
	switch {
	case n.Uint32(body) != boltMagic || n.Uint32(body[4:]) != boltVersion:
		return m, errors.New("it does not begin like one")
	case n.Uint64(body[boltMetaSum:]) != sum.Sum64():
		return m, errChecksum
	}
	return boltMeta{
		pageSize: n.Uint32(body[8:]), root: n.Uint64(body[16:]), freelist: n.Uint64(body[32:]), high: n.Uint64(body[40:]),
		txid: n.Uint64(body[48:]),
	}, nil
}

// check walks the file from the newer of its two meta pages. Both must be
// right: bbolt would go on with the other, that is, without the newest write.
// A power cut does not leave a half-written one, they are smaller than a sector.
func (c *boltChecker) check() error {
	var head [boltPageHeader + boltMetaSum + 8]byte
	if _, err := c.file.ReadAt(head[:], 0); err != nil {
		return fmt.Errorf("read meta page 0: %w", err)
	}
	a, err := readMeta(head[boltPageHeader:])
	if err != nil {
		return fmt.Errorf("meta page 0: %w", err)
	}
	if a.pageSize < 512 || a.pageSize > 1<<20 {
		return fmt.Errorf("meta page 0: pages of %d bytes", a.pageSize)
	}
	if _, err := c.file.ReadAt(head[:], int64(a.pageSize)); err != nil {
		return fmt.Errorf("read meta page 1: %w", err)
	}
	b, err := readMeta(head[boltPageHeader:])
	if err != nil {
		return fmt.Errorf("meta page 1: %w", err)
	}
	if a.txid < b.txid {
		a = b
	}
	st, err := c.file.Stat()
	if err != nil {
		return err
	}
	c.pageSize, c.pages = uint64(a.pageSize), a.high
	if have := uint64(st.Size()) / c.pageSize; c.pages > have {
		return fmt.Errorf("it was cut off: %d of %d pages are there", have, c.pages)
	}
	if a.freelist != noFreelist {
		if err := c.freelist(a.freelist); err != nil {
			return err
		}
	}
	return c.tree(span{page: a.root, keys: boltBuckets, buckets: true}, 0)
}

// page reads a page with its overflow and checks its header.
func (c *boltChecker) page(id uint64) ([]byte, error) {
	if id < 2 || id >= c.pages {
		return nil, fmt.Errorf("page %d is outside of the file", id)
	}
	var head [boltPageHeader]byte
	if _, err := c.file.ReadAt(head[:], int64(id*c.pageSize)); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	n := binary.NativeEndian
	overflow := uint64(n.Uint32(head[12:]))
	if got := n.Uint64(head[:]); got != id {
		return nil, fmt.Errorf("page %d says that it is page %d", id, got)
	}
	if id+overflow >= c.pages {
		return nil, fmt.Errorf("page %d is longer than the file", id)
	}
	for i := id; i <= id+overflow; i++ {
		if c.seen[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		c.seen[i] = true
	}
	body := make([]byte, (overflow+1)*c.pageSize)
	if _, err := c.file.ReadAt(body, int64(id*c.pageSize)); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	return body, nil
}

func (c *boltChecker) freelist(id uint64) error {
	p, err := c.page(id)
	if err != nil {
		return err
	}
	n := binary.NativeEndian
	count, at := uint64(n.Uint16(p[10:])), uint64(boltPageHeader)
	if n.Uint16(p[8:]) != flagFreelist {
		return fmt.Errorf("page %d is not the list of free pages", id)
	}
	if count == 0xFFFF {
		count, at = n.Uint64(p[at:]), at+8
	}
	if count > (uint64(len(p))-at)/8 {
		return fmt.Errorf("page %d lists too many free pages", id)
	}
	for i := range count {
		free := n.Uint64(p[at+8*i:])
		if free < 2 || free >= c.pages || c.seen[free] {
			return fmt.Errorf("page %d lists page %d as free", id, free)
		}
		c.seen[free] = true
	}
	return nil
}

// span is a part of a bucket: the pages below one, and what their keys may be.
type span struct {
	page uint64
	// low <= key < high; nil means no bound.
	low, high []byte
	// keys are all that may be there; nil: indexes of eight bytes.
	keys []string
	// buckets: its values are buckets.
	buckets bool
}

func (x span) allows(key []byte) bool {
	if bytes.Compare(key, x.low) < 0 || x.high != nil && bytes.Compare(key, x.high) >= 0 {
		return false
	}
	if x.keys == nil {
		return len(key) == 8
	}
	return slices.Contains(x.keys, string(key))
}

// tree walks the pages of a span.
func (c *boltChecker) tree(x span, depth int) error {
	if depth > maxBoltDepth {
		return fmt.Errorf("page %d is too deep", x.page)
	}
	p, err := c.page(x.page)
	if err != nil {
		return err
	}
	if err := c.elements(p, x, depth); err != nil {
		return fmt.Errorf("page %d: %w", x.page, err)
	}
	return nil
}

// elements walks what is in a branch or leaf page.
func (c *boltChecker) elements(p []byte, x span, depth int) error {
	n := binary.NativeEndian
	flags, count := n.Uint16(p[8:]), uint64(n.Uint16(p[10:]))
	if flags != flagBranch && flags != flagLeaf {
		return fmt.Errorf("unknown flags %#x", flags)
	}
	if flags == flagBranch && count == 0 || boltPageHeader+count*boltElement > uint64(len(p)) {
		return fmt.Errorf("%d elements", count)
	}
	// Keys and values follow on the elements and on each other. A number of
	// elements that is too small would make the last ones vanish.
	end := boltPageHeader + count*boltElement
	if count == 0 && slices.ContainsFunc(p[boltPageHeader:], func(b byte) bool { return b != 0 }) {
		return errors.New("it has no elements, but their data")
	}
	var prev []byte
	for i := range count {
		e, err := readElement(p, boltPageHeader+i*boltElement, flags)
		if err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
		if e.from != end {
			return fmt.Errorf("element %d: it is at %d instead of %d", i, e.from, end)
		}
		end += uint64(len(e.key) + len(e.value))
		if prev != nil && bytes.Compare(prev, e.key) >= 0 || !x.allows(e.key) {
			return fmt.Errorf("element %d: its key %x does not belong there", i, e.key)
		}
		prev = e.key
		switch {
		case flags == flagBranch:
			next := x.high
			if i+1 < count {
				// Looked at as an element of its own in the next round.
				after, err := readElement(p, boltPageHeader+(i+1)*boltElement, flags)
				if err != nil {
					return fmt.Errorf("element %d: %w", i+1, err)
				}
				next = after.key
			}
			if err := c.tree(span{e.page, e.key, next, x.keys, x.buckets}, depth+1); err != nil {
				return err
			}
		case (e.flags == flagIsBucket) != x.buckets || e.flags&^flagIsBucket != 0:
			return fmt.Errorf("element %d: flags %#x do not belong there", i, e.flags)
		case x.buckets:
			if err := c.bucket(e.key, e.value, depth); err != nil {
				return fmt.Errorf("bucket %q: %w", e.key, err)
			}
		}
	}
	return nil
}

// bucket walks a bucket: a small one is a leaf page in the value itself.
func (c *boltChecker) bucket(name, v []byte, depth int) error {
	if len(v) < boltBucket {
		return errors.New("it is too short")
	}
	x := span{page: binary.NativeEndian.Uint64(v)}
	if string(name) != boltLogs {
		x.keys = boltConf
	}
	if x.page != 0 {
		return c.tree(x, depth+1)
	}
	inline := v[boltBucket:]
	if len(inline) < boltPageHeader || binary.NativeEndian.Uint16(inline[8:]) != flagLeaf {
		return errors.New("it holds no page")
	}
	return c.elements(inline, x, depth+1)
}

type boltElem struct {
	flags      uint32
	key, value []byte
	page       uint64
	from       uint64 // where the key begins
}

func readElement(p []byte, at uint64, flags uint16) (e boltElem, err error) {
	n := binary.NativeEndian
	var pos, ksize, vsize uint64
	if flags == flagBranch {
		pos, ksize, e.page = uint64(n.Uint32(p[at:])), uint64(n.Uint32(p[at+4:])), n.Uint64(p[at+8:])
	} else {
		e.flags = n.Uint32(p[at:])
		pos, ksize, vsize = uint64(n.Uint32(p[at+4:])), uint64(n.Uint32(p[at+8:])), uint64(n.Uint32(p[at+12:]))
	}
	from := at + pos
	e.from = from
	if from+ksize+vsize > uint64(len(p)) || pos < boltElement {
		return e, errors.New("it is outside of its page")
	}
	e.key, e.value = p[from:from+ksize], p[from+ksize:from+ksize+vsize]
	return e, nil
}
