package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
)

const (
	// maxConns bounds the connections of one load: beyond it writers share.
	maxConns = 100
	// keySpace is the number of different keys; valueSize the size of values.
	keySpace  = 10_000
	valueSize = 256
	// warmUp is how long a load runs before it is measured.
	warmUp = 300 * time.Millisecond
	// callTimeout bounds one call under load, far above what it takes.
	callTimeout = 20 * time.Second
	// connectTimeout bounds finding the leader and making all connections.
	connectTimeout = 20 * time.Second
)

// operation is what a load does.
type operation int

const (
	put operation = iota
	putStream
	getLinearizable
	getStale
)

// load is one case: so many workers, each with one operation under way at a
// time.
type load struct {
	op      operation
	workers int
	// spread is over all servers; else everything goes to the leader.
	spread bool
	// streams, if not 0, is over how many streams the workers of putStream
	// share; else each has its own.
	streams  int
	duration time.Duration
}

// sample is what one load came to.
type sample struct {
	perSecond float64
	p50, p99  time.Duration
	// cpu is the servers' CPU time per 10,000 operations.
	cpu time.Duration
}

// run puts a load on a store.
func (l load) run(ctx context.Context, st *store) (sample, error) {
	fail := func(err error) (sample, error) { return sample{}, fmt.Errorf("load on %s: %w", st.name, err) }
	conns, err := l.connect(ctx, st)
	defer func() {
		for _, cc := range conns {
			_ = cc.Close() // the first close always works
		}
	}()
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m := newMeter(l.workers)
	var wg sync.WaitGroup
	l.work(ctx, st, conns, m, func(fn func() error) {
		wg.Go(func() {
			if err := fn(); err != nil && !m.over.Load() {
				cancel(err)
			}
		})
	})
	sampled, err := l.measure(ctx, st, m)
	m.over.Store(true)
	cancel(nil)
	wg.Wait()
	if err != nil {
		return fail(err)
	}
	return sampled, nil
}

// measure waits for the warm-up and the measured time.
func (l load) measure(ctx context.Context, st *store, m *meter) (sample, error) {
	if err := pause(ctx, warmUp); err != nil {
		return sample{}, err
	}
	before, err := st.cpu()
	if err != nil {
		return sample{}, err
	}
	start := time.Now()
	m.open.Store(true)
	if err := pause(ctx, l.duration); err != nil {
		return sample{}, err
	}
	m.open.Store(false)
	took := time.Since(start)
	after, err := st.cpu()
	if err != nil {
		return sample{}, err
	}
	all := m.latencies()
	if len(all) == 0 {
		// A stall is a result: every call took at least as long.
		return sample{p50: took, p99: took}, nil
	}
	slices.Sort(all)
	return sample{
		perSecond: float64(len(all)) / took.Seconds(), p50: all[len(all)/2], p99: all[len(all)*99/100],
		cpu: (after - before) * 10_000 / time.Duration(len(all)),
	}, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// connect makes the connections and waits until they are up. Those that it
// returns with an error are to be closed too.
func (l load) connect(ctx context.Context, st *store) ([]*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	leader, err := st.leader(ctx)
	if err != nil {
		return nil, err
	}
	n := min(l.workers, maxConns)
	if l.spread {
		n = max(n, servers)
	}
	var conns []*grpc.ClientConn
	for i := range n {
		at := leader
		if l.spread {
			at = i % servers
		}
		cc, err := st.dial(at)
		if err != nil {
			return conns, err
		}
		cc.Connect()
		conns = append(conns, cc)
	}
	for _, cc := range conns {
		for s := cc.GetState(); s != connectivity.Ready; s = cc.GetState() {
			if !cc.WaitForStateChange(ctx, s) {
				return conns, fmt.Errorf("connect: a connection is still %s: %w", s, ctx.Err())
			}
		}
	}
	return conns, nil
}

// work starts the workers.
func (l load) work(ctx context.Context, st *store, conns []*grpc.ClientConn, m *meter, goDo func(func() error)) {
	if l.op == putStream {
		l.stream(ctx, st, conns, m, goDo)
		return
	}
	for w := range l.workers {
		goDo(func() error { return l.worker(ctx, st, conns, w, m) })
	}
}

// worker calls again and again. Spread, it goes from connection to connection,
// so that one worker sees all servers too.
func (l load) worker(ctx context.Context, st *store, conns []*grpc.ClientConn, w int, m *meter) error {
	value := make([]byte, valueSize)
	for n := 0; ctx.Err() == nil; n++ {
		at := w
		if l.spread {
			at += n
		}
		c := l.call(st, w, n, value)
		start := time.Now()
		err := st.invoke(ctx, conns[at%len(conns)], c, callTimeout)
		if err != nil {
			return fmt.Errorf("%s: %w", c.method, err)
		}
		m.count(w, start)
	}
	return nil
}

// key gives each worker keys of its own as long as there are enough.
func (l load) key(w, n int) string {
	return fmt.Sprintf("%08d", (w+n*l.workers)%keySpace)
}

func (l load) call(st *store, w, n int, value []byte) call {
	key := l.key(w, n)
	switch l.op {
	case getLinearizable:
		return st.get(key, true)
	case getStale:
		return st.get(key, false)
	default:
		return st.put(key, value)
	}
}

// stream writes through streams: each has its share of the workers as writes
// under way.
func (l load) stream(ctx context.Context, st *store, conns []*grpc.ClientConn, m *meter, goDo func(func() error)) {
	n := l.streams
	if n == 0 {
		n = l.workers
	}
	for s := range n {
		first, last := s*l.workers/n, (s+1)*l.workers/n
		goDo(func() error { return l.oneStream(ctx, st, conns[s%len(conns)], first, last-first, m) })
	}
}

// oneStream keeps so many writes under way. Answers come in the order of
// requests, so a queue of start times is enough.
func (l load) oneStream(ctx context.Context, st *store, cc *grpc.ClientConn, first, window int, m *meter) error {
	stream, err := cc.NewStream(metadata.NewOutgoingContext(ctx, metadata.MD{}), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, methodPutStream)
	if err != nil {
		return fmt.Errorf("open a stream: %w", err)
	}
	value := make([]byte, valueSize)
	started := make([]time.Time, window)
	send := func(n int) error {
		slot := n % window
		body := st.put(l.key(first+slot, n/window), value).body
		started[slot] = time.Now()
		return stream.SendMsg(&body)
	}
	for n := range window {
		if err := send(n); err != nil {
			return fmt.Errorf("stream: %w", errors.Join(err, stream.RecvMsg((*[]byte)(nil))))
		}
	}
	for n := window; ctx.Err() == nil; n++ {
		if err := stream.RecvMsg((*[]byte)(nil)); err != nil {
			return fmt.Errorf("stream: %w", err)
		}
		m.count(first, started[n%window])
		if err := send(n); err != nil {
			return fmt.Errorf("stream: %w", errors.Join(err, stream.RecvMsg((*[]byte)(nil))))
		}
	}
	return nil
}

// meter takes the latencies of what ends while it is open. Each worker writes
// its own list.
type meter struct {
	open, over atomic.Bool
	lists      []latencyList
}

// latencyList is as large as a cache line or more: its neighbours are other
// workers'.
type latencyList struct {
	mu   sync.Mutex
	took []time.Duration // guarded by mu
	_    [32]byte
}

func newMeter(workers int) *meter { return &meter{lists: make([]latencyList, workers)} }

func (m *meter) count(worker int, start time.Time) {
	if !m.open.Load() {
		return
	}
	l := &m.lists[worker]
	l.mu.Lock()
	l.took = append(l.took, time.Since(start))
	l.mu.Unlock()
}

func (m *meter) latencies() []time.Duration {
	var all []time.Duration
	for i := range m.lists {
		l := &m.lists[i]
		l.mu.Lock()
		all = append(all, l.took...)
		l.mu.Unlock()
	}
	return all
}
