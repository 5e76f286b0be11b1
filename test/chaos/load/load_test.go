package load

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/test/chaos/check"
)

func TestOutcomeOfAnError(t *testing.T) {
	for name, x := range map[string]struct {
		err  error
		want check.Outcome
		// passing says that another attempt may be answered otherwise.
		passing bool
	}{
		"none":              {want: check.OK},
		"another was first": {err: errs.New(codes.Aborted, "CONFLICT", "x"), want: check.Conflict},
		"forgotten":         {err: errs.New(codes.Aborted, "REQUEST_FORGOTTEN", "x"), want: check.Failed},
		"not passed on":     {err: errs.New(codes.Unavailable, "NO_LEADER", "x"), want: check.Failed, passing: true},
		"nor in time":       {err: errs.New(codes.DeadlineExceeded, "NO_LEADER", "x"), want: check.Failed, passing: true},
		"sent":              {err: errs.New(codes.Unavailable, "UNKNOWN_OUTCOME", "x"), want: check.Unknown, passing: true},
		"lost on the way":   {err: errs.New(codes.Unavailable, "", "x"), want: check.Unknown, passing: true},
		"no answer in time": {err: errs.New(codes.DeadlineExceeded, "", "x"), want: check.Unknown},
		"busy":              {err: errs.New(codes.ResourceExhausted, "BACKPRESSURE", "x"), want: check.Failed, passing: true},
		"nonsense":          {err: errs.New(codes.InvalidArgument, "INVALID_ARGUMENT", "x"), want: check.Failed},
		"without a code":    {err: errors.New("x"), want: check.Failed},
	} {
		if got := outcome(x.err); got != x.want {
			t.Errorf("%s: %s, want %s", name, got, x.want)
		}
		if x.err != nil && passing(x.err) != x.passing {
			t.Errorf("%s: passing is %v", name, passing(x.err))
		}
	}
}

func TestSlotsTakeANewKeyInTime(t *testing.T) {
	s := &slot{name: "register-0-0"}
	first, _, _ := s.take()
	s.learn(check.Op{Key: first, Value: "a", Rev: 5, Result: check.OK})
	s.learn(check.Op{Key: first, Value: "older", Rev: 3, Result: check.OK})
	if key, value, rev := s.take(); key != first || value != "a" || rev != 5 {
		t.Errorf("%s holds %s@%d", key, value, rev)
	}
	for range maxUnknownPerKey {
		s.learn(check.Op{Key: first, Result: check.Unknown})
	}
	second, value, rev := s.take()
	if second == first || value != "" || rev != 0 {
		t.Errorf("after %d unknown outcomes: %s holds %s@%d", maxUnknownPerKey, second, value, rev)
	}
	s.learn(check.Op{Key: first, Value: "late", Rev: 9, Result: check.OK})
	for range maxOpsPerKey - 1 {
		if key, value, _ := s.take(); key != second || value != "" {
			t.Fatalf("%s holds %s", key, value)
		}
	}
	if third, _, _ := s.take(); third == second {
		t.Errorf("after %d operations: %s", maxOpsPerKey, third)
	}
}
