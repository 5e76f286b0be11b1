package replica

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	commandv1 "trivet/proto/trivet/command/v1"
)

// Batcher packs proposals into log entries: it takes what is queued and never
// waits for more, so a single writer pays nothing and a thousand share the cost
// of a disk write. It has no goroutine, clock or randomness of its own and
// moves only when it is called; the proposer drives it, and so do simulations.
// Safe for concurrent use.
type Batcher struct {
	// now and newID make the stamps: unix nanoseconds and ids never given
	// before.
	now   func() int64
	newID func() string

	mu       sync.Mutex
	queue    []*Proposal // guarded by mu; oldest first
	commands int         // guarded by mu; in queue
	bytes    int         // guarded by mu; queued and in flight
	inFlight int         // guarded by mu; batches
	closed   bool        // guarded by mu
}

// Proposal is the commands of one call and how they ended.
type Proposal struct {
	cmds []*commandv1.Command
	size int
	done chan struct{}

	results []*commandv1.Result
	err     error
}

// Done is closed when the outcome is known.
func (p *Proposal) Done() <-chan struct{} { return p.done }

// Outcome is that of a proposal that is done: one result for each command, or
// an error that says whether they may have taken effect.
func (p *Proposal) Outcome() ([]*commandv1.Result, error) { return p.results, p.err }

// Batch is one log entry on its way.
type Batch struct {
	// Data is the encoded commandv1.Entry, Commands the number of its commands.
	Data     []byte
	Commands int

	proposals []*Proposal
}

// NewBatcher makes a batcher that stamps commands by now and newID.
func NewBatcher(now func() int64, newID func() string) *Batcher {
	return &Batcher{now: now, newID: newID}
}

// Add queues the commands of one call, at least one; they stay together and in
// order. The caller keeps cmds and may add them again even while an earlier
// attempt is under way: what is stamped is a copy. The error is ErrTooLarge,
// ErrBusy or ErrClosed.
func (b *Batcher) Add(cmds []*commandv1.Command) (*Proposal, error) {
	pr := &Proposal{cmds: make([]*commandv1.Command, len(cmds)), done: make(chan struct{})}
	for i, c := range cmds {
		pr.cmds[i] = stampable(c)
		n := proto.Size(c)
		if n > maxCommandBytes {
			return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, n, maxCommandBytes)
		}
		pr.size += n
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return nil, ErrClosed
	case b.commands+len(cmds) > queueCommands, b.bytes+pr.size > queueBytes:
		return nil, ErrBusy
	}
	b.queue = append(b.queue, pr)
	b.commands += len(cmds)
	b.bytes += pr.size
	return pr, nil
}

// Next takes the next entry off the queue; nil if nothing is queued or as many
// are in flight as may be. The entries must reach the log in the order in which
// Next gives them, and each must be given back by Finish.
func (b *Batcher) Next() *Batch {
	for {
		batch := b.take()
		if batch == nil {
			return nil
		}
		if err := b.encode(batch); err != nil {
			b.Finish(batch, nil, fmt.Errorf("encode entry: %w", err))
			continue
		}
		return batch
	}
}

func (b *Batcher) take() *Batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 || b.inFlight == entriesInFlight {
		return nil
	}
	n, size, commands := 0, 0, 0
	for _, pr := range b.queue {
		if n > 0 && (commands+len(pr.cmds) > entryCommands || size+pr.size > entryBytes) {
			break
		}
		n++
		commands += len(pr.cmds)
		size += pr.size
	}
	batch := &Batch{Commands: commands, proposals: append([]*Proposal(nil), b.queue[:n]...)}
	clear(b.queue[:n])
	if b.queue = b.queue[n:]; len(b.queue) == 0 {
		b.queue = nil
	}
	b.commands -= commands
	b.inFlight++
	return batch
}

// encode stamps the commands of a batch, all with the same time.
func (b *Batcher) encode(batch *Batch) error {
	entry := &commandv1.Entry{Commands: make([]*commandv1.Command, 0, batch.Commands)}
	now := b.now()
	for _, pr := range batch.proposals {
		for _, c := range pr.cmds {
			c.Time = now
			if c.StampedId == "" {
				c.StampedId = b.newID()
			}
			entry.Commands = append(entry.Commands, c)
		}
	}
	var err error
	batch.Data, err = proto.Marshal(entry)
	return err
}

// Finish ends a batch: with one result for each of its commands, or with err.
func (b *Batcher) Finish(batch *Batch, results []*commandv1.Result, err error) {
	if err == nil && len(results) != batch.Commands {
		err = fmt.Errorf("%w: the state machine gave no results", ErrUnknownOutcome)
	}
	b.mu.Lock()
	b.inFlight--
	b.mu.Unlock()
	b.end(batch.proposals, results, err)
}

func (b *Batcher) end(proposals []*Proposal, results []*commandv1.Result, err error) {
	for _, pr := range proposals {
		if err == nil {
			pr.results, results = results[:len(pr.cmds):len(pr.cmds)], results[len(pr.cmds):]
		}
		pr.err = err
		b.mu.Lock()
		b.bytes -= pr.size
		b.mu.Unlock()
		close(pr.done)
	}
}

// Close refuses what is queued and everything that comes. What is in flight is
// still to be finished.
func (b *Batcher) Close() {
	b.mu.Lock()
	b.closed = true
	queue := b.queue
	b.queue, b.commands = nil, 0
	b.mu.Unlock()
	b.end(queue, nil, ErrClosed)
}

// Queued is the number of commands that wait, of at most queueCommands.
func (b *Batcher) Queued() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.commands
}

// stampable copies what is around the operation; the operation itself is only
// read.
func stampable(c *commandv1.Command) *commandv1.Command {
	return &commandv1.Command{
		Version: c.GetVersion(), RequestId: c.GetRequestId(), Identity: c.GetIdentity(),
		ExpectedTerm: c.GetExpectedTerm(), StampedId: c.GetStampedId(), Op: c.GetOp(),
	}
}
