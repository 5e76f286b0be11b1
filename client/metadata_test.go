package client

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

func TestWriterTellsTheLowestNumberItWaitsFor(t *testing.T) {
	t.Parallel()
	w := newWriter()
	check := func(number uint64, want string) {
		t.Helper()
		if got := w.header(number); got != w.id+want {
			t.Errorf("header(%d) = %s, want <id>%s", number, got, want)
		}
	}
	one, end1 := w.begin()
	check(one, "/1/1")
	two, end2 := w.begin()
	three, end3 := w.begin()
	check(two, "/2/1")
	end2()
	check(three, "/3/1")
	end1()
	check(three, "/3/3")
	end3()
	four, end4 := w.begin()
	defer end4()
	check(four, "/4/4")
	if other := newWriter(); other.id == w.id || strings.Contains(w.id, "/") {
		t.Errorf("writer ids %q and %q must differ and hold no slash", other.id, w.id)
	}
}

func TestParseConsistency(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "stale", "default", "linearizable"} {
		if c, err := ParseConsistency(name); err != nil || string(c) != name {
			t.Errorf("ParseConsistency(%q) = %q, %v", name, c, err)
		}
	}
	_, err := ParseConsistency("linear")
	if e := errs.From(err); e.Code != codes.InvalidArgument || e.Hint != "did you mean linearizable?" {
		t.Errorf("ParseConsistency(linear): %v, hint %q", err, e.Hint)
	}
}
