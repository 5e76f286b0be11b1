package tunfwd

import (
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// path is one directed pair. take has one caller, the reader of the source;
// deliver runs beside it.
type path struct {
	out   *os.File
	bound int
	rule  atomic.Pointer[Rule]
	wake  chan struct{}
	stop  chan struct{}
	rnd   *rand.Rand // take's

	mu      sync.Mutex
	waiting []parcel  // guarded by mu; in order of due
	bytes   int       // guarded by mu; of waiting and the one being delivered
	last    time.Time // guarded by mu; when the newest of them is due
	free    time.Time // guarded by mu; when the rate lets the next one start

	packets, octets, waited      atomic.Uint64
	cut, lost, overflow, refused atomic.Uint64
}

// parcel is a packet that waits.
type parcel struct {
	data []byte
	due  time.Time
}

func (p *path) counters() Counters {
	return Counters{
		Packets: p.packets.Load(), Bytes: p.octets.Load(), Waited: p.waited.Load(),
		Cut: p.cut.Load(), Lost: p.lost.Load(), Overflow: p.overflow.Load(), Refused: p.refused.Load(),
	}
}

// take decides what becomes of a packet. The packet is the caller's again when
// it returns.
func (p *path) take(packet []byte) {
	r := p.rule.Load()
	switch {
	case r.Cut:
		p.cut.Add(1)
		return
	case r.Loss > 0 && p.rnd.Float64() < r.Loss:
		p.lost.Add(1)
		return
	}
	if !p.queue(packet, r) {
		p.send(packet)
	}
}

// queue lets the packet wait if it has to; false: it can be sent at once.
func (p *path) queue(packet []byte, r *Rule) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Behind others that wait, also when there is no rule any more: order.
	if !r.waits() && p.bytes == 0 {
		return false
	}
	if p.bytes+len(packet) > p.bound {
		p.overflow.Add(1)
		return true
	}
	due := time.Now()
	if r.Rate > 0 {
		if p.free.Before(due) {
			p.free = due
		}
		p.free = p.free.Add(time.Duration(float64(len(packet)) / r.Rate * float64(time.Second)))
		due = p.free
	}
	due = due.Add(r.Delay)
	if r.Jitter > 0 {
		due = due.Add(time.Duration(p.rnd.Int64N(int64(r.Jitter))))
	}
	if due.Before(p.last) {
		due = p.last
	}
	p.last = due
	p.waiting = append(p.waiting, parcel{data: append([]byte(nil), packet...), due: due})
	p.bytes += len(packet)
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return true
}

// deliver sends what waited, each at its time, until the network is closed.
func (p *path) deliver() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next, ok := p.head()
		if !ok {
			select {
			case <-p.wake:
			case <-p.stop:
				return
			}
			continue
		}
		if wait := time.Until(next.due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-p.stop:
				return
			}
		}
		if p.rule.Load().Cut {
			p.cut.Add(1)
		} else {
			p.waited.Add(1)
			p.send(next.data)
		}
		p.shift(len(next.data))
	}
}

func (p *path) head() (parcel, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		return parcel{}, false
	}
	return p.waiting[0], true
}

func (p *path) shift(size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting[0] = parcel{}
	p.waiting = p.waiting[1:]
	p.bytes -= size
	if len(p.waiting) == 0 {
		p.waiting = nil // the array behind it has grown with the burst
		p.last = time.Time{}
	}
}

func (p *path) send(packet []byte) {
	if _, err := p.out.Write(packet); err != nil {
		p.refused.Add(1)
		return
	}
	p.packets.Add(1)
	p.octets.Add(uint64(len(packet)))
}
