package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"trivet/internal/fault"
	"trivet/internal/tunfwd"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// mode is a way to take the leader away.
type mode struct {
	// name is that on the command line, what that in results.
	name, what string
	// target is the median of the time to the first acknowledged write that the
	// design asks for, milliseconds; 0: none.
	target float64
	// apart: the servers need a network that can be cut. disturbed: they need to
	// be built to be disturbed from inside. ours: only trivet can do it.
	apart, disturbed, ours bool
	// keepsLeader: the old leader goes on to serve, so writes through it count.
	keepsLeader bool
	strike      func(ctx context.Context, st *store, t *trivet, leader int) error
	heal        func(ctx context.Context, st *store, t *trivet, leader int) error
}

// Modes are the names of the faults of the failover bench.
func Modes() []string {
	var out []string
	for _, m := range modes() {
		out = append(out, m.name)
	}
	return out
}

// The targets of the design.
const (
	quickTarget = 100
	hangTarget  = 1500
)

func modes() []mode {
	return []mode{
		{name: "kill", what: "SIGKILL of the leader", target: quickTarget, strike: strikeSignal(syscall.SIGKILL), heal: healKill},
		{name: "stop", what: "SIGSTOP of the leader", target: hangTarget, strike: strikeSignal(syscall.SIGSTOP), heal: healStop},
		{name: "transfer", what: "transfer of leadership", ours: true, keepsLeader: true, strike: strikeTransfer, heal: nothing},
		{name: "disk", what: "hung disk of the leader", ours: true, disturbed: true, strike: strikeDisk, heal: healDisk},
		{name: "partition", what: "leader cut off", target: hangTarget, apart: true, strike: strikePartition, heal: healPartition},
	}
}

// modesNamed returns those, in the order in which they are run.
func modesNamed(names []string) ([]mode, error) {
	all := modes()
	for _, n := range names {
		if !slices.Contains(Modes(), n) {
			return nil, fmt.Errorf("unknown mode %q: use %v", n, Modes())
		}
	}
	return slices.DeleteFunc(all, func(m mode) bool { return !slices.Contains(names, m.name) }), nil
}

func nothing(context.Context, *store, *trivet, int) error { return nil }

func strikeSignal(sig syscall.Signal) func(context.Context, *store, *trivet, int) error {
	return func(_ context.Context, st *store, _ *trivet, leader int) error { return st.procs[leader].signal(sig) }
}

func healKill(ctx context.Context, st *store, _ *trivet, leader int) error {
	if err := st.procs[leader].wait(ctx); err != nil {
		return err
	}
	return st.procs[leader].start()
}

func healStop(_ context.Context, st *store, _ *trivet, leader int) error {
	return st.procs[leader].signal(syscall.SIGCONT)
}

func strikeTransfer(ctx context.Context, _ *store, t *trivet, leader int) error {
	ops, end, err := t.operators()
	if err != nil {
		return err
	}
	defer end()
	if _, err := ops[leader].TransferLeadership(ctx, &operatorv1.TransferLeadershipRequest{To: hostName((leader + 1) % servers)}); err != nil {
		return fmt.Errorf("transfer leadership: %w", err)
	}
	return nil
}

func strikeDisk(_ context.Context, _ *store, t *trivet, leader int) error {
	raw, err := json.Marshal(fault.Faults{StoreHang: true})
	if err != nil {
		return err
	}
	next := t.faultFile(leader) + ".next"
	if err := os.WriteFile(next, raw, 0o600); err != nil {
		return fmt.Errorf("hang the disk: %w", err)
	}
	return os.Rename(next, t.faultFile(leader))
}

// healDisk lets writes go on. A server whose disk hung too long has ended
// itself.
func healDisk(ctx context.Context, st *store, t *trivet, leader int) error {
	if err := os.Remove(t.faultFile(leader)); err != nil {
		return fmt.Errorf("heal the disk: %w", err)
	}
	p := st.procs[leader]
	// It may be on its way out: what counts is that it serves again.
	return until(ctx, func() (bool, error) {
		if !p.running() {
			return false, p.start()
		}
		return st.invoke(ctx, st.control[leader], st.put("whole", []byte{1}), time.Second) == nil, nil
	})
}

// strikePartition cuts a server off from its peers and from clients.
func strikePartition(_ context.Context, st *store, _ *trivet, leader int) error {
	var errs []error
	for i := range servers {
		if i != leader {
			errs = append(errs, st.site.net.SetBoth(hostName(leader), hostName(i), tunfwd.Rule{Cut: true}))
		}
	}
	return errors.Join(append(errs, st.site.net.SetBoth(hostName(leader), clientHost, tunfwd.Rule{Cut: true}))...)
}

func healPartition(_ context.Context, st *store, _ *trivet, _ int) error {
	st.site.net.Heal()
	return nil
}
