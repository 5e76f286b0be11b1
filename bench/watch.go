package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"trivet/cmd/trivet/bundles"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

const (
	// seenWithin is the design's target, milliseconds.
	seenWithin = 500
	// watchedAgents is how many agents a snapshot holds.
	watchedAgents = 20
	// lastSeen bounds the wait for a change at the last watcher.
	lastSeen = 30 * time.Second
)

// WatchOptions tune the bench of watches.
type WatchOptions struct {
	// Exe is the trivet binary.
	Exe string
	// Dir, when set, holds the servers' data and logs and is kept.
	Dir string
	// Watchers is how many watch over so many Connections.
	Watchers, Connections int
	// Changes is how often something changes.
	Changes int
	// Progress is told what goes on.
	Progress io.Writer
}

// Watch lets many clients watch the agents of a namespace, and measures how long
// a change takes until they see it: from the moment when the change is asked
// for, so that the write is a part of it.
func Watch(ctx context.Context, o WatchOptions) (res *Result, err error) {
	res = NewResult("watch")
	t, end, err := soleTrivet(ctx, o.Exe, &o.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	for _, kind := range []watchKind{deltaWatch, snapshotWatch} {
		if err := o.kind(ctx, t, kind, res); err != nil {
			return nil, fmt.Errorf("%s: %w", kind.name, err)
		}
	}
	return res, nil
}

// watchKind is one of the forms in which agents can be watched.
type watchKind struct {
	name string
	// open opens a watch; the function that it returns receives one message.
	open func(ctx context.Context, c managersvc.ManagerClient, s *manager.SessionInfo) (recv func() error, err error)
}

var (
	deltaWatch = watchKind{"changes (newer clients)", func(ctx context.Context, c managersvc.ManagerClient, s *manager.SessionInfo) (func() error, error) {
		w, err := c.WatchAgentsDelta(ctx, s)
		return func() error { _, err := w.Recv(); return err }, err
	}}
	snapshotWatch = watchKind{"snapshots (older clients)", func(ctx context.Context, c managersvc.ManagerClient, s *manager.SessionInfo) (func() error, error) {
		w, err := c.WatchAgents(ctx, s)
		return func() error { _, err := w.Recv(); return err }, err
	}}
)

func (o WatchOptions) kind(ctx context.Context, t *trivet, kind watchKind, res *Result) (err error) {
	a := &audience{t: t, seen: make(chan time.Time, o.Watchers)}
	ctx, cancel := context.WithCancel(ctx)
	defer func() { cancel(); err = errors.Join(err, a.close()) }()
	change, err := a.stage(ctx)
	if err != nil {
		return err
	}
	if err := a.watch(ctx, o, kind); err != nil {
		return err
	}
	fmt.Fprintf(o.Progress, "%s: %d watch\n", kind.name, o.Watchers)
	cpu0, err := t.cpu()
	if err != nil {
		return err
	}
	var p50, p99, last []float64
	for range o.Changes {
		began := time.Now()
		if err := change(ctx); err != nil {
			return fmt.Errorf("change something: %w", err)
		}
		took, err := a.collect(ctx, o.Watchers, began)
		if err != nil {
			return err
		}
		p50, p99, last = append(p50, percentile(took, 50)), append(p99, percentile(took, 99)), append(last, percentile(took, 100))
	}
	cpu1, err := t.cpu()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d watchers over %d connections, %s", o.Watchers, o.Connections, kind.name)
	res.Add(name, "seen, p50", "ms", p50)
	row := res.Add(name, "seen, p99", "ms", p99)
	res.Add(name, "seen by the last", "ms", last)
	res.Add(name, "CPU of all servers per change", "s", []float64{(cpu1 - cpu0).Seconds() / float64(o.Changes)})
	res.Targets = append(res.Targets, Target{Name: "p99, " + kind.name, Want: "< 500 ms", Got: row.Median, Met: row.Median < seenWithin})
	return nil
}

// audience is clients that watch.
type audience struct {
	t     *trivet
	conns []*grpc.ClientConn
	wg    sync.WaitGroup
	// seen gets the time at which a watcher saw something.
	seen chan time.Time
}

// stage brings the agents that are watched, and returns what changes one of
// them.
func (a *audience) stage(ctx context.Context) (change func(context.Context) error, err error) {
	cc, err := a.t.client(0, bundles.NodesDir)
	if err != nil {
		return nil, err
	}
	a.conns = append(a.conns, cc)
	p := &population{t: a.t, nodes: []*grpc.ClientConn{cc}}
	if err := p.report(ctx, ctx, watchedAgents); err != nil {
		return nil, err
	}
	m := managersvc.NewManagerClient(cc)
	arrive := func(ctx context.Context, i, port int) error {
		_, err := m.ArriveAsAgent(ctx, &manager.AgentInfo{
			Name: app(i), Namespace: namespace, Kind: "Deployment", PodName: app(i) + "-0", PodUid: uid(i), PodIp: "10.0.0.5", ApiPort: int32(port),
			Product: product, Version: version, Mechanisms: []*manager.AgentInfo_Mechanism{{Name: "tcp", Product: product, Version: version}},
		})
		return err
	}
	for i := range watchedAgents {
		if err := arrive(ctx, i, 1); err != nil {
			return nil, err
		}
	}
	a.wg.Go(func() { p.wg.Wait() })
	port := 1
	return func(ctx context.Context) error {
		port++
		return arrive(ctx, 0, port)
	}, nil
}

// watch opens the watches and waits until each has shown what is there.
func (a *audience) watch(ctx context.Context, o WatchOptions, kind watchKind) error {
	for i := range o.Connections {
		cc, err := a.t.client(i%len(a.t.procs), bundles.ClientsDir)
		if err != nil {
			return err
		}
		a.conns = append(a.conns, cc)
	}
	conns := a.conns[len(a.conns)-o.Connections:]
	fill, done := context.WithTimeout(ctx, moveTimeout)
	defer done()
	return each(fill, o.Watchers, func(_ context.Context, i int) error {
		m := managersvc.NewManagerClient(conns[i%len(conns)])
		s, err := m.ArriveAsClient(ctx, &manager.ClientInfo{
			Name: fmt.Sprintf("watcher-%d", i), InstallId: fmt.Sprintf("install-%d", i), Product: product, Version: version, Namespace: namespace,
		}, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		recv, err := kind.open(ctx, m, s)
		if err != nil {
			return err
		}
		if err := recv(); err != nil {
			return err
		}
		a.wg.Go(func() {
			for recv() == nil {
				select {
				case a.seen <- time.Now():
				case <-ctx.Done():
					return
				}
			}
		})
		return nil
	})
}

// collect waits until all have seen a change, and returns how long it took them.
func (a *audience) collect(ctx context.Context, n int, began time.Time) ([]float64, error) {
	limit := time.NewTimer(lastSeen)
	defer limit.Stop()
	took := make([]float64, 0, n)
	for len(took) < n {
		select {
		case at := <-a.seen:
			took = append(took, float64(at.Sub(began))/float64(time.Millisecond))
		case <-limit.C:
			return nil, fmt.Errorf("%d of %d watchers saw the change within %s", len(took), n, lastSeen)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return took, nil
}

func (a *audience) close() error {
	a.wg.Wait()
	var errs []error
	for _, cc := range a.conns {
		errs = append(errs, cc.Close())
	}
	return errors.Join(errs...)
}
