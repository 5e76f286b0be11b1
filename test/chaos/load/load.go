package load

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"trivet/test/chaos/check"
)

// Access gives the load its connections.
type Access interface {
	// Operator is a connection to one server as an operator, that of a number
	// of independent ones with that number.
	Operator(server, number int) *grpc.ClientConn
	// Agent makes connections to all servers as an agent of that pod. The
	// caller calls done when it is through with them.
	Agent(namespace, workload, podUID string) (conns []*grpc.ClientConn, done func(), err error)
}

// Config of a Load.
type Config struct {
	Access  Access
	Servers int
	// Began is the beginning of the run; all times count from it.
	Began time.Time
	Seed  uint64
	// Registers, Agents, Intercepts and Watches are the numbers of clients of
	// each kind.
	Registers, Agents, Intercepts, Watches int
	// Think is the mean pause of a register client between two operations.
	Think time.Duration
	// OnWrite is told of each acknowledged write to a register, with the times
	// of call and return. It must not block.
	OnWrite func(called, returned int64)
}

// History is what was recorded.
type History struct {
	Ops     []check.Op
	Repeats []check.Repeat
	Lives   []check.Life
	Streams []check.Stream
	Sets    []check.SetStream
	// Unexpected are answers that no fault explains.
	Unexpected []string
	Counts     map[string]Count
}

// Count sums up one kind of operation.
type Count struct {
	OK      int `json:"ok"`
	Refused int `json:"refused"`
	Failed  int `json:"failed"`
	Unknown int `json:"unknown"`
}

// Load is running work. Make it with Start, end it with Stop.
type Load struct {
	cfg    Config
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  []*slot

	mu   sync.Mutex
	hist History // guarded by mu
	acks int     // guarded by mu; acknowledged writes
}

// Start starts the clients.
func Start(ctx context.Context, cfg Config) *Load {
	ctx, cancel := context.WithCancel(ctx)
	l := &Load{cfg: cfg, cancel: cancel, hist: History{Counts: make(map[string]Count)}}
	for i := range max(1, (cfg.Registers+1)/2) {
		l.slots = append(l.slots, &slot{number: i, name: fmt.Sprintf("register-%d-0", i)})
	}
	number := 0
	start := func(n int, run func(*worker, context.Context)) {
		for range n {
			w := &worker{
				l: l, number: number, name: fmt.Sprintf("chaos-%x-%d", cfg.Seed, number),
				rnd: rand.New(rand.NewPCG(cfg.Seed, uint64(number))), avoid: make([]time.Time, cfg.Servers),
			}
			number++
			l.wg.Go(func() { run(w, ctx) })
		}
	}
	start(cfg.Registers, (*worker).registers)
	start(cfg.Agents, (*worker).agents)
	start(cfg.Intercepts, (*worker).intercepts)
	start(cfg.Watches, (*worker).watches)
	start(min(cfg.Watches, cfg.Servers), (*worker).sets)
	return l
}

// Stop ends the clients and returns what they recorded.
func (l *Load) Stop() History {
	l.cancel()
	l.wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hist
}

// Acknowledged is the number of register writes that were acknowledged so far.
func (l *Load) Acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acks
}

// Counts returns the sums so far, by kind.
func (l *Load) Counts() map[string]Count {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.hist.Counts)
}

// now is the time of the run.
func (l *Load) now() int64 { return int64(time.Since(l.cfg.Began)) }

func (l *Load) record(o check.Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hist.Ops = append(l.hist.Ops, o)
	l.countLocked(string(o.Kind), o.Result)
	if o.Result == check.OK && (o.Kind == check.Put || o.Kind == check.CAS) {
		l.acks++
		if l.cfg.OnWrite != nil {
			l.cfg.OnWrite(o.Call, o.Return)
		}
	}
}

func (l *Load) count(kind string, result check.Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.countLocked(kind, result)
}

func (l *Load) countLocked(kind string, result check.Outcome) {
	c := l.hist.Counts[kind]
	switch result {
	case check.OK:
		c.OK++
	case check.Conflict:
		c.Refused++
	case check.Unknown:
		c.Unknown++
	default:
		c.Failed++
	}
	l.hist.Counts[kind] = c
}

// maxUnexpected bounds what is kept of answers that should not have been.
const maxUnexpected = 50

func (l *Load) unexpected(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.hist.Unexpected) < maxUnexpected {
		l.hist.Unexpected = append(l.hist.Unexpected, fmt.Sprintf(format, args...))
	}
}

func (l *Load) life(x check.Life) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x.Signs, x.Gone = slices.Clone(x.Signs), slices.Clone(x.Gone)
	l.hist.Lives = append(l.hist.Lives, x)
}

func (l *Load) stream(x check.Stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hist.Streams = append(l.hist.Streams, x)
}

// worker is one client.
type worker struct {
	l      *Load
	number int
	name   string
	rnd    *rand.Rand
	writes uint64
	// avoid is until when a server that gave no answer is asked only if there
	// is no other one.
	avoid []time.Time
}

// pause waits for about d; false: the load ends.
func (w *worker) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + time.Duration(w.rnd.Int64N(int64(d)+1)))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
