package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// confirmTimeout bounds one round at multiplier 1. It is longer than an
// election, so a round that hangs is one of a leader that was deposed.
const confirmTimeout = 2 * baseHeartbeat

// Voter is a server that takes part in elections.
type Voter struct{ ID, Address string }

// AskTerm asks another server for the newest term that it has seen or voted
// in. It must make sure that the server with that id answers, and none that
// took its address over.
type AskTerm func(ctx context.Context, v Voter) (term uint64, err error)

// NewestTerm is the newest term that this replica has seen. A voter adopts a
// term before its vote in it leaves the process, so a vote that a later leader
// could count on is in the answer, or was given after it.
func (r *Replica) NewestTerm() uint64 { return r.raft.CurrentTerm() }

// ConfirmStats count the rounds of confirmation.
type ConfirmStats struct {
	// Rounds were asked, Failed of them had no quorum, Redone of them were asked
	// again because this process had been paused.
	Rounds, Failed, Redone uint64
}

// confirmer asks a quorum of the voters whether a term is still the newest.
//
// Raft's own VerifyLeader can count the answer to a heartbeat that was sent
// before the question. Here the question is sent after the round began, and an
// answer with the leader's own term shows that at its time no quorum had voted
// for a later one: whatever was acknowledged before the round began was so by
// this leader or an earlier one.
type confirmer struct {
	self    string
	voters  func() ([]Voter, error)
	term    func() uint64
	ask     AskTerm
	timeout time.Duration
	pauses  *pauseDetector

	rounds, failed, redone atomic.Uint64
}

var errDeposed = errors.New("a voter knows a later term")

// maxRedone bounds the rounds of one confirmation on a machine that starves.
const maxRedone = 5

var errPaused = errors.New("this process keeps being paused")

// confirm runs rounds until one was not disturbed by a pause of this process.
func (c *confirmer) confirm(ctx context.Context, term uint64) error {
	for range maxRedone {
		before := c.pauses.seen()
		c.rounds.Add(1)
		err := c.round(ctx, term)
		if err != nil {
			c.failed.Add(1)
			return err
		}
		if c.pauses.seen() == before {
			return nil
		}
		c.redone.Add(1)
	}
	return errPaused
}

// round asks all voters at once and returns when a quorum, this server
// included, has answered with term.
func (c *confirmer) round(ctx context.Context, term uint64) error {
	voters, err := c.voters()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	need, asked, votes := len(voters)/2+1, 0, 0
	// Buffered: whoever answers late finds nobody waiting and ends.
	answers := make(chan answer, len(voters))
	for _, v := range voters {
		if v.ID == c.self {
			votes++
			continue
		}
		asked++
		go func() {
			t, err := c.ask(ctx, v)
			answers <- answer{t, err}
		}()
	}
	var last error
	// All askers are waited for: they end with ctx, soon after a quorum.
	defer func() {
		cancel()
		for ; asked > 0; asked-- {
			<-answers
		}
	}()
	for votes < need && asked > 0 {
		a := <-answers
		asked--
		switch {
		case a.err != nil:
			last = a.err
		case a.term > term:
			return fmt.Errorf("%w: %d, not %d", errDeposed, a.term, term)
		case a.term == term:
			votes++
		default:
			// It has not heard of this term yet and can still vote in it.
			last = fmt.Errorf("a voter is at term %d", a.term)
		}
	}
	if votes < need {
		return fmt.Errorf("%d of %d voters confirmed term %d: %w", votes, len(voters), term, orNone(last))
	}
	if now := c.term(); now != term {
		return fmt.Errorf("%w: %d, not %d", errDeposed, now, term)
	}
	return nil
}

type answer struct {
	term uint64
	err  error
}

func orNone(err error) error {
	if err == nil {
		return errors.New("this server has no vote")
	}
	return err
}

// pauseDetector counts the times at which this process did not run for longer
// than limit: stopped by a signal, by the hypervisor, or starved.
type pauseDetector struct {
	limit time.Duration
	// last is when the process was last seen running, monotonic nanoseconds
	// since began.
	began time.Time
	last  atomic.Int64
	count atomic.Uint64

	stop chan struct{}
	wg   sync.WaitGroup
}

func newPauseDetector(limit time.Duration) *pauseDetector {
	p := &pauseDetector{limit: limit, began: time.Now(), stop: make(chan struct{})}
	p.wg.Go(p.run)
	return p
}

func (p *pauseDetector) run() {
	tick := time.NewTicker(p.limit / 4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.look()
		case <-p.stop:
			return
		}
	}
}

// look notes that the process runs and counts a gap before now.
func (p *pauseDetector) look() {
	now := int64(time.Since(p.began))
	if last := p.last.Swap(now); now-last > int64(p.limit) {
		p.count.Add(1)
	}
}

// seen is the number of pauses up to now, one that ended just now included.
func (p *pauseDetector) seen() uint64 {
	if int64(time.Since(p.began))-p.last.Load() > int64(p.limit) {
		p.look()
	}
	return p.count.Load()
}

func (p *pauseDetector) close() {
	close(p.stop)
	p.wg.Wait()
}
