package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
)

const (
	// probesPerServer write at the same time through each server.
	probesPerServer = 2
	// probeTimeout bounds one write: etcd loses what it had forwarded to the
	// old leader, so a client that waits measures only its own patience.
	probeTimeout = 250 * time.Millisecond
	// probePause follows an error, so that refusals do not take the CPU that the
	// election needs.
	probePause = time.Millisecond
)

// write is one acknowledged write of a probe.
type write struct {
	server       int
	began, acked time.Time
}

// probes write through some servers of a store, without pause, until they are
// stopped.
type probes struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	conns  []*grpc.ClientConn

	mu     sync.Mutex
	writes []write // guarded by mu
}

// connectProbes makes connections and uses them, so that the fault finds them
// as warm as those of clients at work.
func connectProbes(ctx context.Context, st *store) (*probes, error) {
	p := &probes{cancel: func() {}}
	for i := range st.procs {
		for range probesPerServer {
			cc, err := st.dial(i)
			if err != nil {
				return nil, errors.Join(err, p.close())
			}
			p.conns = append(p.conns, cc)
			err = until(ctx, func() (bool, error) {
				return st.invoke(ctx, cc, st.put("probe", make([]byte, valueSize)), askTimeout) == nil, nil
			})
			if err != nil {
				return nil, errors.Join(fmt.Errorf("probe %s: %w", st.procs[i].name, err), p.close())
			}
		}
	}
	return p, nil
}

// start starts writing through all servers but one (-1: through all).
func (p *probes) start(ctx context.Context, st *store, but int) {
	ctx, p.cancel = context.WithCancel(ctx)
	for n, cc := range p.conns {
		server := n / probesPerServer
		if server == but {
			continue
		}
		p.wg.Go(func() {
			c := st.put(fmt.Sprintf("probe%d", n), make([]byte, valueSize))
			for ctx.Err() == nil {
				began := time.Now()
				if err := st.invoke(ctx, cc, c, probeTimeout); err != nil {
					_ = pause(ctx, probePause) // the loop looks at ctx
					continue
				}
				p.mu.Lock()
				p.writes = append(p.writes, write{server: server, began: began, acked: time.Now()})
				p.mu.Unlock()
			}
		})
	}
}

// stop ends the writing and returns what was acknowledged.
func (p *probes) stop() []write {
	p.cancel()
	p.wg.Wait()
	return p.writes
}

func (p *probes) close() error {
	p.stop()
	var errs []error
	for _, cc := range p.conns {
		errs = append(errs, cc.Close())
	}
	return errors.Join(errs...)
}

// after returns the first write that was acknowledged after a moment, through a
// server (-1: any), and whether there is one.
func (p *probes) after(at time.Time, server int) (first write, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.writes {
		if w.acked.After(at) && (server < 0 || w.server == server) && (!ok || w.acked.Before(first.acked)) {
			first, ok = w, true
		}
	}
	return first, ok
}
