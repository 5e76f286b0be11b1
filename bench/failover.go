package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"trivet/cmd/trivet/devenv"
)

const (
	roundTimeout   = 60 * time.Second
	failoverTarget = 100.0 // milliseconds, from the design
)

// FailoverOptions tune the failover bench.
type FailoverOptions struct {
	// Exe is the trivet binary.
	Exe string
	// Rounds is how often the leader is killed.
	Rounds int
	// Dir, when set, holds the servers' data and logs and is kept.
	Dir string
	// Progress is told of each round.
	Progress io.Writer
}

// Failover kills the leader again and again and measures the time to the first
// acknowledged write through a survivor. The log is durable; the writes go
// through gRPC with mutual TLS.
func Failover(ctx context.Context, o FailoverOptions) (res *Result, err error) {
	res = NewResult("failover")
	dir := o.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "trivet-bench-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
	}
	sctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	env, err := devenv.Start(sctx, devenv.Options{Dir: dir, Servers: 3, Exe: o.Exe})
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := env.Close(); err == nil {
			err = cerr
		}
	}()
	ops, err := env.Operators(sctx)
	if err != nil {
		return nil, err
	}
	defer ops.Close()
	var samples []float64
	for i := range o.Rounds {
		took, err := killLeader(ctx, env, ops)
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", i+1, err)
		}
		samples = append(samples, float64(took)/float64(time.Millisecond))
		fmt.Fprintf(o.Progress, "round %d of %d: first acknowledged write after %.1f ms\n", i+1, o.Rounds, samples[i])
	}
	row := res.Add("SIGKILL of the leader, durable log", "first acknowledged write", "ms", samples)
	res.Targets = append(res.Targets, Target{
		Name: "failover p50", Want: fmt.Sprintf("< %.0f ms", failoverTarget), Got: row.Median, Met: row.Median < failoverTarget,
	})
	return res, nil
}

// killLeader is one round; it ends with all servers up and equal.
func killLeader(ctx context.Context, env *devenv.Env, ops *devenv.Operators) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	leader, err := ops.Leader(ctx)
	if err != nil {
		return 0, err
	}
	// The survivors' connections are in use before the kill, as in any cluster
	// that has work to do.
	if _, err := ops.FirstWrite(ctx, leader); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := env.Servers[leader].Kill(); err != nil {
		return 0, err
	}
	acked, err := ops.FirstWrite(ctx, leader)
	if err != nil {
		return 0, err
	}
	if err := env.Servers[leader].Start(); err != nil {
		return 0, err
	}
	if err := env.WaitReady(ctx, leader); err != nil {
		return 0, err
	}
	if _, err := ops.SameState(ctx); err != nil {
		return 0, err
	}
	return acked.Sub(start), nil
}
