package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"trivet/cmd/trivet/bundles"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

const (
	// The rhythms of keepalives: of the older generation of published peers, and
	// of the newer one's agents.
	olderEvery = 5 * time.Second
	newerEvery = 60 * time.Second
	// keepers is how many keepalives may be under way. One is answered when the
	// leader has it, for which it waits up to 50 ms with others.
	keepers = 4096
	// leaderCores and sessionBytes are the design's targets.
	leaderCores  = 1.0
	sessionBytes = 4 << 10
)

// SessionsOptions tune the bench of sessions.
type SessionsOptions struct {
	// Exe is the trivet binary.
	Exe string
	// Dir, when set, holds the servers' data and logs and is kept.
	Dir string
	// Sessions are held over Connections, half of them by peers of the older
	// generation.
	Sessions, Connections int
	// Rounds of measuring, each of Time.
	Rounds int
	Time   time.Duration
	// Progress is told what goes on.
	Progress io.Writer
}

// Sessions holds many sessions and measures what their keepalives cost.
func Sessions(ctx context.Context, o SessionsOptions) (res *Result, err error) {
	res = NewResult("sessions")
	t, end, err := soleTrivet(ctx, o.Exe, &o.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	leader, err := t.leader(ctx)
	if err != nil {
		return nil, err
	}
	before, err := t.procs[leader].memory()
	if err != nil {
		return nil, err
	}
	h, err := hold(ctx, t, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	after, err := t.procs[leader].memory()
	if err != nil {
		return nil, err
	}
	var cores, all, p50, p99 []float64
	for round := range o.Rounds {
		c0, err := t.procs[leader].cpu()
		if err != nil {
			return nil, err
		}
		a0, err := t.cpu()
		if err != nil {
			return nil, err
		}
		h.measure()
		began := time.Now()
		if err := pause(ctx, o.Time); err != nil {
			return nil, err
		}
		took := time.Since(began).Seconds()
		c1, err := t.procs[leader].cpu()
		if err != nil {
			return nil, err
		}
		a1, err := t.cpu()
		if err != nil {
			return nil, err
		}
		lat := h.measured()
		cores, all = append(cores, (c1-c0).Seconds()/took), append(all, (a1-a0).Seconds()/took)
		p50, p99 = append(p50, percentile(lat, 50)), append(p99, percentile(lat, 99))
		fmt.Fprintf(o.Progress, "round %d: %.2f cores of the leader, %.0f keepalives per second\n", round+1, cores[round], float64(len(lat))/took)
	}
	if now, err := t.leader(ctx); err != nil || now != leader {
		return nil, errors.Join(err, errors.New("the leader changed while it was measured: the machine is too busy"))
	}
	lost, err := h.missing(ctx)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%d sessions over %d connections", o.Sessions, o.Connections)
	used := res.Add(name, "CPU of the leader", "cores", cores)
	res.Add(name, "CPU of all servers", "cores", all)
	res.Add(name, "keepalive, p50", "ms", p50)
	res.Add(name, "keepalive, p99", "ms", p99)
	each := res.Add(name, "memory of the leader per session", "bytes", []float64{float64(after-before) / float64(o.Sessions)})
	gone := res.Add(name, "sessions lost", "sessions", []float64{lost})
	failed := res.Add(name, "keepalives that failed", "calls", []float64{float64(h.failed.Load())})
	res.Targets = append(
		res.Targets,
		Target{Name: "CPU of the leader", Want: "< 1 core", Got: used.Median, Met: used.Median < leaderCores},
		Target{Name: "memory per session", Want: "< 4096 bytes", Got: each.Median, Met: each.Median < sessionBytes},
		Target{Name: "sessions lost", Want: "0", Got: gone.Median, Met: gone.Median == 0 && failed.Median == 0},
	)
	return res, nil
}

// soleTrivet starts three servers that nothing is compared with. end stops them.
func soleTrivet(ctx context.Context, exe string, dir *string) (t *trivet, end func() error, err error) {
	remove := func() error { return nil }
	if *dir == "" {
		if *dir, err = os.MkdirTemp("", "trivet-bench-"); err != nil {
			return nil, nil, fmt.Errorf("make a directory: %w", err)
		}
		remove = func() error { return os.RemoveAll(*dir) }
	}
	if t, err = newTrivet(trivetOptions{exe: exe, dir: filepath.Join(*dir, "trivet")}); err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	end = func() error { return errors.Join(t.close(), remove()) }
	sctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = t.start(sctx)
	if err == nil {
		err = t.unlimit(sctx)
	}
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return t, end, nil
}

// holding is sessions that are kept alive.
type holding struct {
	t        *trivet
	sessions int
	conns    []*grpc.ClientConn
	failed   atomic.Uint64
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu        sync.Mutex
	latencies []float64 // milliseconds; guarded by mu
	on        bool      // guarded by mu
}

// hold lets the sessions arrive and starts to keep them alive.
func hold(ctx context.Context, t *trivet, o SessionsOptions) (*holding, error) {
	h := &holding{t: t, sessions: o.Sessions}
	for i := range o.Connections {
		cc, err := t.client(i%len(t.procs), bundles.ClientsDir)
		if err != nil {
			return nil, errors.Join(err, h.close())
		}
		h.conns = append(h.conns, cc)
	}
	began := time.Now()
	ids := make([]*manager.SessionInfo, o.Sessions)
	life, cancel := context.WithCancel(ctx)
	h.cancel = cancel
	fill, done := context.WithTimeout(ctx, moveTimeout)
	defer done()
	err := each(fill, o.Sessions, func(ctx context.Context, i int) (err error) {
		version := "2.20.2"
		if i%2 == 1 {
			version = "2.30.0"
		}
		ids[i], err = h.client(i).ArriveAsClient(ctx, &manager.ClientInfo{
			Name: fmt.Sprintf("client-%d", i), InstallId: fmt.Sprintf("install-%d", i), Product: product, Version: version, Namespace: namespace,
		}, grpc.WaitForReady(true))
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("let %d sessions arrive: %w", o.Sessions, err), h.close())
	}
	fmt.Fprintf(o.Progress, "%d sessions are there after %s\n", o.Sessions, time.Since(began).Round(time.Second))
	due := make(chan int, keepers)
	for range keepers {
		h.wg.Go(func() {
			for i := range due {
				h.remain(life, i, ids[i])
			}
		})
	}
	h.wg.Go(func() {
		defer close(due)
		h.beat(life, due)
	})
	return h, nil
}

func (h *holding) client(i int) managersvc.ManagerClient {
	return managersvc.NewManagerClient(h.conns[i%len(h.conns)])
}

// beat says whose keepalive is due, evenly over each period.
func (h *holding) beat(ctx context.Context, due chan<- int) {
	const step = 10 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	var sent [2]int
	began := time.Now()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for kind, every := range [2]time.Duration{olderEvery, newerEvery} {
			half := (h.sessions + 1 - kind) / 2
			want := int(float64(half) * time.Since(began).Seconds() / every.Seconds())
			for ; sent[kind] < want; sent[kind]++ {
				select {
				case due <- 2*(sent[kind]%half) + kind:
				case <-ctx.Done():
					return
				}
			}
		}
	}
}

func (h *holding) remain(ctx context.Context, i int, session *manager.SessionInfo) {
	ctx, cancel := context.WithTimeout(ctx, olderEvery*3)
	defer cancel()
	began := time.Now()
	_, err := h.client(i).Remain(ctx, &manager.RemainRequest{Session: session}, grpc.WaitForReady(true))
	if err != nil {
		if ctx.Err() == nil {
			h.failed.Add(1)
		}
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.on {
		h.latencies = append(h.latencies, float64(time.Since(began))/float64(time.Millisecond))
	}
}

func (h *holding) measure() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.on, h.latencies = true, nil
}

func (h *holding) measured() []float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.on = false
	return h.latencies
}

// missing is how many sessions the server that knows least has less than at
// first.
func (h *holding) missing(ctx context.Context) (float64, error) {
	ops, end, err := h.t.operators()
	if err != nil {
		return 0, err
	}
	defer end()
	worst := 0
	for i, op := range ops {
		st, err := op.Status(ctx, new(operatorv1.StatusRequest), grpc.WaitForReady(true))
		if err != nil {
			return 0, fmt.Errorf("ask %s what it holds: %w", h.t.procs[i].name, err)
		}
		worst = max(worst, h.sessions-int(st.GetClients()))
	}
	return float64(worst), nil
}

func (h *holding) close() error {
	if h.cancel != nil {
		h.cancel()
	}
	h.wg.Wait()
	var errs []error
	for _, cc := range h.conns {
		errs = append(errs, cc.Close())
	}
	return errors.Join(errs...)
}
