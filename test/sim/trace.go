package sim

import (
	"fmt"
	"time"
)

// traceLines is how much of the end of a run is kept.
const traceLines = 80

// line is one thing that happened.
type line struct {
	at   time.Duration
	step uint64
	what string
	who  string
	a, b uint64
}

func (l line) String() string {
	return fmt.Sprintf("%8d %12.3fms %-18s %-24s %d %d", l.step, float64(l.at)/1e6, l.what, l.who, l.a, l.b)
}

// trace keeps the newest lines, and a hash of all of them: of two runs with
// equal hashes it can be said that they were the same.
type trace struct {
	lines [traceLines]line
	n     uint64
	hash  uint64
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func (t *trace) add(l line) {
	t.lines[t.n%traceLines] = l
	t.n++
	h := t.hash
	for _, s := range []string{l.what, l.who} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * fnvPrime
		}
	}
	for _, v := range []uint64{uint64(l.at), l.step, l.a, l.b} {
		h = (h ^ v) * fnvPrime
	}
	t.hash = h
}

// last returns the kept lines, the oldest first.
func (t *trace) last() []string {
	var out []string
	for i := max(t.n, traceLines) - traceLines; i < t.n; i++ {
		out = append(out, t.lines[i%traceLines].String())
	}
	return out
}
