package engine

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"trivet/internal/errs"
)

func with(key, value string) context.Context {
	return metadata.NewIncomingContext(context.Background(), metadata.Pairs(key, value))
}

func TestRequestFromContext(t *testing.T) {
	for raw, want := range map[string]*Request{
		"w/5/3":      {Writer: "client/w", Number: 5, Lowest: 3},
		"a/b/7/7":    {Writer: "client/a/b", Number: 7, Lowest: 7},
		"w/1/0":      {Writer: "client/w", Number: 1},
		"server/1/1": {Writer: "client/server", Number: 1, Lowest: 1},
	} {
		got, err := RequestFromContext(with(MetaRequest, raw))
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%q: %v (-want +got):\n%s", raw, err, d)
		}
	}
	for _, raw := range []string{"w", "w/1", "/1/1", "w/0/0", "w/1/2", "w/x/1", "w/1/x", "w/-1/0", strings.Repeat("w", maxWriter+1) + "/1/1"} {
		_, err := RequestFromContext(with(MetaRequest, raw))
		if errs.Code(err) != codes.InvalidArgument || errs.Reason(err) != "BAD_REQUEST_NUMBER" {
			t.Errorf("%.20q: %v, want BAD_REQUEST_NUMBER", raw, err)
		}
	}
	if got, err := RequestFromContext(context.Background()); got != nil || err != nil {
		t.Errorf("without metadata: %v, %v", got, err)
	}
}

func TestReadOptions(t *testing.T) {
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(MetaConsistency, "linearizable", MetaRevision, FormatRevision(12)))
	if level, seen, err := ReadOptions(ctx); level != Linearizable || seen != 12 || err != nil {
		t.Errorf("got %d, %d, %v", level, seen, err)
	}
	if level, seen, err := ReadOptions(context.Background()); level != Default || seen != 0 || err != nil {
		t.Errorf("without metadata: %d, %d, %v", level, seen, err)
	}
	if _, _, err := ReadOptions(with(MetaRevision, "x")); errs.Reason(err) != "BAD_REVISION" {
		t.Errorf("a bad revision: %v", err)
	}
	if _, _, err := ReadOptions(with(MetaConsistency, "fresh")); errs.Reason(err) != "BAD_CONSISTENCY" || errs.From(err).Hint == "" {
		t.Errorf("a bad level: %v", err)
	}
	for s, want := range map[string]Level{"": Default, "default": Default, "stale": Stale, "linearizable": Linearizable} {
		if got, err := ParseLevel(s); got != want || err != nil {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
}
