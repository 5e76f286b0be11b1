package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// writers are the numbers of writers and readers of every case.
var writers = []int{1, 64, 1024}

// raftCase is one row's load and what to say of it.
type raftCase struct {
	name string
	load load
	// baseline, when set, is the case to compare with: the other store has no
	// call like this one.
	baseline string
}

// raftCases are all cases, in the order in which they are measured.
func raftCases(duration time.Duration) []raftCase {
	var out []raftCase
	for _, n := range writers {
		unary := fmt.Sprintf("put, %s, to the leader", count(n, "writer"))
		out = append(out,
			raftCase{name: unary, load: load{op: put, workers: n, duration: duration}},
			raftCase{name: fmt.Sprintf("put, %s, over all servers", count(n, "writer")), load: load{op: put, workers: n, spread: true, duration: duration}},
			raftCase{name: fmt.Sprintf("put stream, %s, to the leader", count(n, "writer")), load: load{op: putStream, workers: n, duration: duration}, baseline: unary},
		)
		if n > maxConns {
			out = append(out, raftCase{
				name:     fmt.Sprintf("put stream, %s on %d streams", count(n, "write"), maxConns),
				load:     load{op: putStream, workers: n, streams: maxConns, duration: duration},
				baseline: unary,
			})
		}
	}
	for _, n := range writers {
		out = append(out,
			raftCase{name: fmt.Sprintf("get linearizable, %s", count(n, "reader")), load: load{op: getLinearizable, workers: n, spread: true, duration: duration}},
			raftCase{name: fmt.Sprintf("get stale, %s", count(n, "reader")), load: load{op: getStale, workers: n, spread: true, duration: duration}},
		)
	}
	return out
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// keep returns the cases whose names contain one of the words, and those that
// they are compared with.
func keep(cases []raftCase, words []string) []raftCase {
	if len(words) == 0 {
		return cases
	}
	var want []string
	for _, c := range cases {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(c.name, w) }) {
			want = append(want, c.name, c.baseline)
		}
	}
	return slices.DeleteFunc(cases, func(c raftCase) bool { return !slices.Contains(want, c.name) })
}

// raftTarget is what the design asks of one case, as a multiple of etcd's
// figure for the unary case with as many writers.
type raftTarget struct {
	name, against string
	want          float64
}

func raftTargetList() []raftTarget {
	return []raftTarget{
		{name: "put, 1 writer, to the leader", want: 0.8},
		{name: "put, 64 writers, to the leader", want: 1.3},
		{name: "put, 1024 writers, to the leader", want: 1.3},
		{name: "put stream, 1024 writers, to the leader", against: "put, 1024 writers, to the leader", want: 2},
		{name: "put stream, 1024 writes on 100 streams", against: "put, 1024 writers, to the leader", want: 2},
	}
}
