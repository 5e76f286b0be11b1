package systest

import (
	"context"
	"testing"
	"time"
)

// pollEvery is the pause between two looks at something that gives no event.
const pollEvery = 20 * time.Millisecond

// Deadline is a context that ends with the test or after d.
func Deadline(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Poll looks until look returns nil, and returns its last error when ctx ends
// first.
func Poll(ctx context.Context, look func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := look()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// Eventually ends the test if look has not returned nil within d.
func Eventually(t testing.TB, d time.Duration, what string, look func() error) {
	t.Helper()
	if err := Poll(Deadline(t, d), look); err != nil {
		t.Fatalf("%s: not within %s: %v", what, d, err)
	}
}
