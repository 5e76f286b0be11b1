package replica

import (
	"time"

	"github.com/hashicorp/raft"
)

const barrierTimeout = 30 * time.Second

// Leadership delivers the beginnings and ends of this replica's leadership in
// order. The receiver must drain it; it is closed by Close.
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
		queue   []Leadership
	)
	for {
		var out chan<- Leadership
		var head Leadership
		if len(queue) > 0 {
			out, head = r.leadership, queue[0]
		}
		select {
		case <-r.stop:
			if barrier != nil {
				<-barrier
			}
			return
		case out <- head:
			queue = queue[1:]
		case leads := <-r.notify:
			if led != 0 {
				// Also for true after true: in between it was lost.
				queue = append(queue, Leadership{Term: led})
				led = 0
				r.term.Store(0)
			}
			if !leads {
				continue
			}
			r.clock.start(r.cfg.Machine.Root().Meta().GetTime())
			if barrier != nil {
				// The earlier term's barrier fails by itself; its answer is not
				// for this term.
				old := barrier
				r.wg.Add(1)
				go func() { defer r.wg.Done(); <-old }()
			}
			barrier = make(chan uint64, 1)
			r.wg.Add(1)
			go r.establish(r.raft.CurrentTerm(), barrier)
		case term := <-barrier:
			barrier = nil
			if term != 0 {
				led = term
				r.term.Store(term)
				queue = append(queue, Leadership{Established: true, Term: term})
			}
		}
	}
}

// establish waits for the barrier of term and answers with the term, or with 0
// if leadership was lost meanwhile.
func (r *Replica) establish(term uint64, answer chan<- uint64) {
	defer r.wg.Done()
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
