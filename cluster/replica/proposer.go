package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	commandv1 "trivet/proto/trivet/command/v1"
)

// proposer hands to Raft what its batcher packs, one entry after the other, and
// gives the answers to those who wait.
type proposer struct {
	raft    applier
	batcher *Batcher

	// wake has a token when the batcher may have something: something was added
	// or an entry has ended.
	wake chan struct{}
	stop chan struct{}
	wg   sync.WaitGroup

	entries  atomic.Uint64
	commands atomic.Uint64
	refused  atomic.Uint64
}

// applier is what the proposer needs of Raft.
type applier interface {
	Apply(entry []byte, enqueue time.Duration) raft.ApplyFuture
}

func newProposer(r applier, clock *stampClock) *proposer {
	p := &proposer{
		raft:    r,
		batcher: NewBatcher(clock.now, uuid.NewString),
		wake:    make(chan struct{}, 1),
		stop:    make(chan struct{}),
	}
	p.wg.Add(1)
	go p.run()
	return p
}

// close refuses what is queued and waits for what is in flight.
func (p *proposer) close() {
	p.batcher.Close()
	close(p.stop)
	p.wg.Wait()
}

// propose hands commands over and waits. The commands of one call stay
// together and in order. The caller keeps cmds, see Batcher.Add.
func (p *proposer) propose(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
	if len(cmds) == 0 {
		return nil, nil
	}
	pr, err := p.batcher.Add(cmds)
	if errors.Is(err, ErrBusy) {
		p.refused.Add(1)
	}
	if err != nil {
		return nil, err
	}
	p.kick()
	select {
	case <-pr.done:
		return pr.results, pr.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnknownOutcome, ctx.Err())
	case <-p.stop:
		select {
		case <-pr.done:
			return pr.results, pr.err
		default:
			return nil, fmt.Errorf("%w: %w", ErrUnknownOutcome, ErrClosed)
		}
	}
}

func (p *proposer) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *proposer) run() {
	defer p.wg.Done()
	for {
		select {
		case <-p.wake:
		case <-p.stop:
			return
		}
		for batch := p.batcher.Next(); batch != nil; batch = p.batcher.Next() {
			p.submit(batch)
		}
	}
}

// submit starts one entry. It runs on the proposer's goroutine so that entries
// reach Raft in queue order; only the waiting is elsewhere.
func (p *proposer) submit(batch *Batch) {
	p.entries.Add(1)
	p.commands.Add(uint64(batch.Commands))
	future := p.raft.Apply(batch.Data, time.Second)
	if p.ackedEarly(batch) {
		return
	}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		if err := future.Error(); err != nil {
			p.finish(batch, nil, classify(err))
			return
		}
		// What is of another type gives nil, which Finish recognises.
		results, _ := future.Response().([]*commandv1.Result)
		p.finish(batch, results, nil)
	}()
}

func (p *proposer) finish(batch *Batch, results []*commandv1.Result, err error) {
	p.batcher.Finish(batch, results, err)
	p.kick()
}
