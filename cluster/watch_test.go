package cluster_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	"trivet/cluster/clustertest"
	"trivet/internal/errs"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// watchUntil reads a watch of the config table from a revision on until the
// state has reached `until`, and returns the changes by "<revision> <key>".
func watchUntil(ctx context.Context, t *testing.T, op operatorsvc.OperatorClient, after, until uint64) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := op.Watch(ctx, &operatorv1.WatchRequest{AfterRevision: after, Tables: []string{"config"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatalf("watch after %d: %v", after, err)
		}
		for _, c := range resp.GetChanges() {
			got = append(got, fmt.Sprint(c.GetRevision(), " ", c.GetKey(), " ", c.GetOp()))
		}
		if resp.GetRevision() >= until {
			return got
		}
	}
}

func TestWatchResumesOnAnyServerWithoutGapOrRepetition(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	ops := operators(c)
	var want []string
	var revs []uint64
	const writes = 30
	for i := range writes {
		key := fmt.Sprintf("key-%02d", i)
		put, err := ops[i%3].PutConfig(ctx, &operatorv1.PutConfigRequest{Key: key, Value: []byte("v")})
		if err != nil {
			t.Fatal(err)
		}
		revs = append(revs, put.GetRevision())
		want = append(want, fmt.Sprint(put.GetRevision(), " ", key, " put"))
	}
	last := revs[writes-1]
	for i, op := range ops {
		for _, from := range []int{0, writes / 2, writes - 2} {
			got := watchUntil(ctx, t, op, revs[from], last)
			if fmt.Sprint(got) != fmt.Sprint(want[from+1:]) {
				t.Errorf("server %d after %d: got %v, want %v", i, revs[from], got, want[from+1:])
			}
		}
		// From the beginning: the state, which here is every key once.
		if got := watchUntil(ctx, t, op, 0, last); len(got) != writes {
			t.Errorf("server %d from 0: %d changes, want %d", i, len(got), writes)
		}
	}
}

func TestWatchOfAnUnknownTableIsRefused(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	stream, err := operators(c)[0].Watch(testContext(t), &operatorv1.WatchRequest{Tables: []string{"secrets"}})
	if err == nil {
		_, err = stream.Recv()
	}
	if errs.Code(err) != codes.InvalidArgument || errs.From(err).Reason != "UNKNOWN_TABLE" {
		t.Fatalf("got %v", err)
	}
}
