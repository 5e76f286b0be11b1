package rt

const (
	ringMin = 4
	// ringKeep is the largest buffer that an empty ring holds on to. It is
	// small because most of a hundred thousand actors are idle.
	ringKeep = 8
)

// ring is a first-in first-out queue that grows by doubling. The zero value
// is empty and holds no memory.
type ring[T any] struct {
	buf  []T // length zero or a power of two
	head int
	n    int
}

func (r *ring[T]) len() int { return r.n }

func (r *ring[T]) push(v T) {
	if r.n == len(r.buf) {
		r.grow()
	}
	r.buf[(r.head+r.n)&(len(r.buf)-1)] = v
	r.n++
}

// pop removes the oldest element; the ring must not be empty.
func (r *ring[T]) pop() T {
	var zero T
	v := r.buf[r.head]
	r.buf[r.head] = zero
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.n--
	return v
}

// take empties the ring and returns what it held, oldest first.
func (r *ring[T]) take() []T {
	out := make([]T, 0, r.n)
	for r.n > 0 {
		out = append(out, r.pop())
	}
	*r = ring[T]{}
	return out
}

// shrink gives memory back after a burst.
func (r *ring[T]) shrink() {
	if r.n == 0 && len(r.buf) > ringKeep {
		*r = ring[T]{}
	}
}

func (r *ring[T]) grow() {
	buf := make([]T, max(ringMin, 2*len(r.buf)))
	k := copy(buf, r.buf[r.head:])
	copy(buf[k:], r.buf[:r.head])
	r.buf, r.head = buf, 0
}
