package replica

import (
	"time"

	"github.com/hashicorp/raft"
)

const barrierTimeout = 30 * time.Second

// Leadership delivers the beginnings and ends of this replica's leadership in
// order, leaving out leaderships that ended before the receiver could be told of
// them. It is closed by Close.
func (r *Replica) Leadership() <-chan Leadership { return r.leadership }

// monitor turns Raft's notifications into Leadership events. Raft blocks when
// its channel is full, so this goroutine never waits for anything slow: the
// barrier has a goroutine of its own per term.
func (r *Replica) monitor() {
	defer r.wg.Done()
	defer close(r.leadership)
	var (
		barrier chan uint64
		led     uint64
		queue   []Leadership // at most an end and the next beginning
	)
	for {
		var out chan<- Leadership
		var head Leadership
		if len(queue) > 0 {
			out, head = r.leadership, queue[0]
		}
		select {
		case <-r.stop:
			return
		case out <- head:
			queue = queue[1:]
		case leads := <-r.notify:
			// Whatever the notification says, an earlier leadership is over, and
			// the answer of its barrier, even a good one, is not for this term.
			barrier = nil
			if led != 0 {
				queue = end(queue, led)
				led = 0
				r.term.Store(0)
			}
			if !leads {
				continue
			}
			r.clock.start(r.cfg.Machine.Root().Meta().GetTime())
			barrier = make(chan uint64, 1)
			r.barriers.Add(1)
			go r.establish(r.raft.CurrentTerm(), barrier)
		case term := <-barrier:
			barrier = nil
			if term != 0 {
				// Entries of earlier terms are applied by now, and one of them may
				// bear a later time than this server's.
				r.clock.raise(r.cfg.Machine.Root().Meta().GetTime())
				led = term
				r.term.Store(term)
				queue = append(queue, Leadership{Established: true, Term: term})
			}
		}
	}
}

// end queues the end of a term of leadership. If nobody was told of its
// beginning yet, there is nothing to take back.
func end(queue []Leadership, term uint64) []Leadership {
	if n := len(queue); n > 0 && queue[n-1].Established {
		return queue[:n-1]
	}
	return append(queue, Leadership{Term: term})
}

// establish waits for the barrier of term and answers with the term, or with 0
// if leadership was lost meanwhile.
func (r *Replica) establish(term uint64, answer chan<- uint64) {
	defer r.barriers.Done()
	err := r.raft.Barrier(barrierTimeout).Error()
	switch {
	case err != nil:
		r.cfg.Logger.Warn("leadership was lost before it was established", "term", term, "err", err)
		answer <- 0
	case r.raft.CurrentTerm() != term || r.raft.State() != raft.Leader:
		answer <- 0
	default:
		answer <- term
	}
}
