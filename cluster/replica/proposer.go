package replica

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	commandv1 "trivet/proto/trivet/command/v1"
)

// proposer packs what is queued into log entries: it takes what is there and
// never waits for more, so a single writer pays nothing and a thousand share
// the cost of a disk write.
type proposer struct {
	raft  applier
	clock *stampClock

	queue    chan *proposal
	bytes    atomic.Int64
	inFlight chan struct{}
	stop     chan struct{}
	wg       sync.WaitGroup

	entries  atomic.Uint64
	commands atomic.Uint64
	refused  atomic.Uint64
}

// applier is what the proposer needs of Raft.
type applier interface {
	Apply(entry []byte, enqueue time.Duration) raft.ApplyFuture
}

type proposal struct {
	cmds []*commandv1.Command
	size int
	done chan struct{}

	results []*commandv1.Result
	err     error
}

func newProposer(r applier, clock *stampClock) *proposer {
	p := &proposer{
		raft:     r,
		clock:    clock,
		queue:    make(chan *proposal, queueCommands),
		inFlight: make(chan struct{}, entriesInFlight),
		stop:     make(chan struct{}),
	}
	p.wg.Add(1)
	go p.run()
	return p
}

// close refuses what is queued and waits for what is in flight.
func (p *proposer) close() {
	close(p.stop)
	p.wg.Wait()
}

// propose hands commands over and waits. The commands of one call stay
// together and in order. The caller keeps cmds and may propose them again even
// while an earlier attempt is under way: what is stamped is a copy.
func (p *proposer) propose(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
	if len(cmds) == 0 {
		return nil, nil
	}
	pr := &proposal{cmds: make([]*commandv1.Command, len(cmds)), done: make(chan struct{})}
	for i, c := range cmds {
		pr.cmds[i] = stampable(c)
		n := proto.Size(c)
		if n > maxCommandBytes {
			return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, n, maxCommandBytes)
		}
		pr.size += n
	}
	if p.bytes.Add(int64(pr.size)) > queueBytes {
		p.bytes.Add(-int64(pr.size))
		p.refused.Add(1)
		return nil, ErrBusy
	}
	select {
	case <-p.stop:
		p.bytes.Add(-int64(pr.size))
		return nil, ErrClosed
	default:
	}
	select {
	case p.queue <- pr:
	default:
		p.bytes.Add(-int64(pr.size))
		p.refused.Add(1)
		return nil, ErrBusy
	}
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

// stampable copies what is around the operation; the operation itself is only
// read.
func stampable(c *commandv1.Command) *commandv1.Command {
	return &commandv1.Command{
		Version: c.GetVersion(), RequestId: c.GetRequestId(), Identity: c.GetIdentity(),
		ExpectedTerm: c.GetExpectedTerm(), StampedId: c.GetStampedId(), Op: c.GetOp(),
	}
}

func (p *proposer) run() {
	defer p.wg.Done()
	var held *proposal
	for {
		first := held
		held = nil
		if first == nil {
			select {
			case first = <-p.queue:
			case <-p.stop:
				p.refuseQueued()
				return
			}
		}
		select {
		case p.inFlight <- struct{}{}:
		case <-p.stop:
			p.finish([]*proposal{first}, nil, ErrClosed)
			p.refuseQueued()
			return
		}
		batch := []*proposal{first}
		n, size := len(first.cmds), first.size
	fill:
		for {
			select {
			case next := <-p.queue:
				if n+len(next.cmds) > entryCommands || size+next.size > entryBytes {
					held = next
					break fill
				}
				batch = append(batch, next)
				n += len(next.cmds)
				size += next.size
			default:
				break fill
			}
		}
		p.submit(batch, n)
	}
}

// submit starts one entry. It runs on the proposer's goroutine so that entries
// reach Raft in queue order; only the waiting is elsewhere.
func (p *proposer) submit(batch []*proposal, n int) {
	entry := &commandv1.Entry{Commands: make([]*commandv1.Command, 0, n)}
	now := p.clock.now()
	for _, pr := range batch {
		for _, c := range pr.cmds {
			c.Time = now
			if c.StampedId == "" {
				c.StampedId = uuid.NewString()
			}
			entry.Commands = append(entry.Commands, c)
		}
	}
	data, err := proto.Marshal(entry)
	if err != nil {
		<-p.inFlight
		p.finish(batch, nil, fmt.Errorf("encode entry: %w", err))
		return
	}
	p.entries.Add(1)
	p.commands.Add(uint64(n))
	future := p.raft.Apply(data, time.Second)
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		err := future.Error()
		<-p.inFlight
		if err != nil {
			p.finish(batch, nil, classify(err))
			return
		}
		results, ok := future.Response().([]*commandv1.Result)
		if !ok || len(results) != n {
			p.finish(batch, nil, fmt.Errorf("%w: the state machine gave no results", ErrUnknownOutcome))
			return
		}
		p.finish(batch, results, nil)
	}()
}

func (p *proposer) finish(batch []*proposal, results []*commandv1.Result, err error) {
	for _, pr := range batch {
		if err == nil {
			pr.results, results = results[:len(pr.cmds):len(pr.cmds)], results[len(pr.cmds):]
		}
		pr.err = err
		p.bytes.Add(-int64(pr.size))
		close(pr.done)
	}
}

func (p *proposer) refuseQueued() {
	for {
		select {
		case pr := <-p.queue:
			p.finish([]*proposal{pr}, nil, ErrClosed)
		default:
			return
		}
	}
}
