package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

const (
	// startTimeout bounds the start of one store.
	startTimeout = 60 * time.Second
	// fillWorkers write every key once, so that reads find something.
	fillWorkers = 64
)

// RaftOptions tune the bench of writes and reads.
type RaftOptions struct {
	// Exe is the trivet binary.
	Exe string
	// Dir, when set, holds data and logs and is kept. It is on the disk that is
	// measured.
	Dir string
	// Rounds is how often every case is measured, Duration how long.
	Rounds   int
	Duration time.Duration
	// Cases, when set, keeps only cases whose name contains one of these.
	Cases []string
	// Also are other trivet binaries to compare with, each with its default log
	// store; they are named after their files.
	Also []string
	// LogStores are the log stores to compare; empty: all that the binary
	// offers.
	LogStores []string
	// NoEtcd leaves etcd out.
	NoEtcd bool
	// Profiles, when set, is the directory that receives CPU profiles of the
	// servers in every case, taken in a round that is not counted.
	Profiles string
	// Progress is told of each round.
	Progress io.Writer
}

// Raft measures durable writes and reads through gRPC on three servers, beside
// etcd when it is installed.
func Raft(ctx context.Context, o RaftOptions) (res *Result, err error) {
	res = NewResult("raft")
	dir := o.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "trivet-bench-"); err != nil {
			return nil, fmt.Errorf("make a directory: %w", err)
		}
		defer os.RemoveAll(dir)
	}
	stores, ours, err := raftStores(ctx, o, dir, res)
	defer func() {
		for _, st := range stores {
			err = errors.Join(err, st.close())
		}
	}()
	if err != nil {
		return nil, err
	}
	for _, st := range stores {
		if err := begin(ctx, st, res); err != nil {
			return nil, err
		}
	}
	cases := keep(raftCases(o.Duration), o.Cases)
	t := newTally()
	for round := range o.Rounds {
		if err := raftRound(ctx, round, cases, stores, t); err != nil {
			return nil, err
		}
		fmt.Fprintf(o.Progress, "round %d of %d, load average %.2f\n", round+1, o.Rounds, loadAverage())
	}
	if o.Profiles != "" {
		if err := profileCases(ctx, o.Profiles, cases, ours); err != nil {
			return nil, err
		}
	}
	for _, c := range cases {
		raftRows(res, c, stores, t)
	}
	raftTargets(res, stores, t)
	return res, nil
}

// raftStores makes the stores that can be had, ours again by themselves; the
// others are noted.
func raftStores(ctx context.Context, o RaftOptions, dir string, res *Result) (stores []*store, ours []*trivet, err error) {
	kinds, err := logStores(ctx, o, res)
	if err != nil {
		return nil, nil, err
	}
	for _, kind := range kinds {
		sub := filepath.Join(dir, "trivet"+kind)
		t, err := newTrivet(trivetOptions{exe: o.Exe, dir: sub, logStore: kind})
		if err != nil {
			return stores, ours, err
		}
		stores, ours = append(stores, &t.store), append(ours, t)
	}
	for _, exe := range o.Also {
		name := filepath.Base(exe)
		t, err := newTrivet(trivetOptions{exe: exe, dir: filepath.Join(dir, "also-"+name), name: name})
		if err != nil {
			return stores, ours, err
		}
		stores, ours = append(stores, &t.store), append(ours, t)
	}
	if o.NoEtcd {
		return stores, ours, nil
	}
	exe, version, err := findEtcd(ctx)
	if err != nil {
		res.Note("rows of etcd are left out: %v", err)
		return stores, ours, nil
	}
	res.Note("etcd is version %s", version)
	for _, tls := range []bool{true, false} {
		sub := filepath.Join(dir, "etcd-plaintext")
		if tls {
			sub = filepath.Join(dir, "etcd-tls")
		}
		if err := os.MkdirAll(sub, 0o700); err != nil {
			return stores, ours, fmt.Errorf("make etcd's directory: %w", err)
		}
		st, err := newEtcd(etcdOptions{exe: exe, dir: sub, tls: tls})
		if err != nil {
			return stores, ours, err
		}
		stores = append(stores, st)
	}
	return stores, ours, nil
}

// logStores are the kinds of log store to measure; one empty kind stands for
// what a binary without the choice has.
func logStores(ctx context.Context, o RaftOptions, res *Result) ([]string, error) {
	if len(o.LogStores) > 0 {
		return o.LogStores, nil
	}
	offers, err := offersLogStores(ctx, o.Exe)
	if err != nil {
		return nil, err
	}
	if !offers {
		res.Note("the servers' configuration has no %s: only the built-in log store is measured", keyLogStore)
		return []string{""}, nil
	}
	return []string{"bolt", "wal"}, nil
}

// begin starts a store and fills it.
func begin(ctx context.Context, st *store, res *Result) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := st.start(ctx); err != nil {
		return err
	}
	res.Note("%s: %s", st.name, st.what)
	return fill(ctx, st)
}

// fill writes every key once.
func fill(ctx context.Context, st *store) error {
	l := load{op: put, workers: fillWorkers}
	conns, err := l.connect(ctx, st)
	if err != nil {
		return fmt.Errorf("fill %s: %w", st.name, err)
	}
	done := make(chan error, fillWorkers)
	for w := range fillWorkers {
		go func() {
			value := make([]byte, valueSize)
			for n := 0; w+n*fillWorkers < keySpace; n++ {
				if err := st.invoke(ctx, conns[w], st.put(l.key(w, n), value), callTimeout); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range fillWorkers {
		err = errors.Join(err, <-done)
	}
	for _, cc := range conns {
		err = errors.Join(err, cc.Close())
	}
	if err != nil {
		return fmt.Errorf("fill %s: %w", st.name, err)
	}
	return nil
}

// raftRound measures every case on every store once. The stores take turns
// within a case, and another one begins in each round.
func raftRound(ctx context.Context, round int, cases []raftCase, stores []*store, t *tally) error {
	for _, c := range cases {
		for i := range stores {
			st := stores[(i+round)%len(stores)]
			if _, ok := st.dialect.(trivetDialect); c.load.op == putStream && !ok {
				continue
			}
			s, err := c.load.run(ctx, st)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			t.add(c.name, st.name, s)
		}
	}
	return nil
}
